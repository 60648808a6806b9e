// SPDX-License-Identifier: GPL-2.0

//! Peers with whom SMC failed a short time ago.

use kapi::genl::{Dump, Request, Writer};
use kernel::prelude::*;

use super::{attr, command, put_address, side_number};
use crate::{
    clock::now,
    netns::{self, Setting},
    peers::Peer, //
};

/// The peers, the one that failed last at the end.
pub(super) fn list(dump: &mut Dump<'_>) -> Result {
    let ns = netns::of(dump.net())?;
    let on = ns.setting(Setting::PeerBackoff) != 0;
    loop {
        dump.as_of(ns.peers.changes());
        let Some(peer) = ns.peers.after(dump.cursor()[0] as u64) else {
            return Ok(());
        };
        if !dump.message(command::PEER_GET, |message| put(message, &peer, on))? {
            return Ok(());
        }
        dump.cursor()[0] = peer.number as usize;
    }
}

fn put(message: &mut Writer<'_>, peer: &Peer, on: bool) -> Result {
    let (backoff, now) = (peer.backoff, now());
    let left = if on { backoff.left(now) } else { 0 };
    put_address(message, attr::ADDRESS, peer.key.address)?;
    message.u8(attr::SIDE, side_number(Some(peer.key.side)))?;
    if let Some(port) = peer.key.port {
        message.u16(attr::PORT_FIRST, port)?;
    }
    message.u32(attr::REASON, peer.reason.0)?;
    message.u64_aligned(attr::COUNT, u64::from(backoff.failures()), attr::PAD)?;
    message.u64_aligned(attr::AGE, backoff.age(now), attr::PAD)?;
    message.u64_aligned(attr::LEFT, left, attr::PAD)
}

/// Forgets all of them, and that clients have not said what was waited for.
pub(super) fn flush(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    ns.peers.flush();
    ns.last_words.forget();
    Ok(())
}
