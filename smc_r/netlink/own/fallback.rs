// SPDX-License-Identifier: GPL-2.0

//! Connections that became plain TCP: with which peers, and for which reasons.

use kapi::genl::{Dump, Writer};
use kernel::prelude::*;

use super::{attr, command, put_address, side_number};
use crate::{
    netns,
    stats::{PeerFallbacks, Reason, Side}, //
};

/// The peers, the latest last.
pub(super) fn list_peers(dump: &mut Dump<'_>) -> Result {
    let ns = netns::of(dump.net())?;
    loop {
        let after = dump.cursor()[0] as u64;
        // Not held while the message is written, for no reason but that it need not be.
        let (changes, peer) = {
            let fallbacks = ns.stats.fallbacks.lock();
            (fallbacks.changes(), fallbacks.peer_after(after))
        };
        dump.as_of(changes);
        let Some(peer) = peer else {
            return Ok(());
        };
        if !dump.message(command::FALLBACK_GET, |message| put_peer(message, &peer))? {
            return Ok(());
        }
        dump.cursor()[0] = peer.number as usize;
    }
}

fn put_peer(message: &mut Writer<'_>, peer: &PeerFallbacks) -> Result {
    put_address(message, attr::ADDRESS, peer.peer)?;
    message.u8(attr::SIDE, side_number(Some(peer.side)))?;
    message.u32(attr::REASON, peer.reason.0)?;
    message.u64_aligned(attr::COUNT, peer.count, attr::PAD)
}

/// The reasons: those of servers, then those of clients. SMC_GEN_NETLINK has 16 bits for each.
pub(super) fn list_reasons(dump: &mut Dump<'_>) -> Result {
    let ns = netns::of(dump.net())?;
    loop {
        let (place, is_client) = (dump.cursor()[0], dump.cursor()[1] != 0);
        let side = if is_client {
            Side::Client
        } else {
            Side::Server
        };
        let (changes, reason) = {
            let fallbacks = ns.stats.fallbacks.lock();
            let reasons = &fallbacks.of(side).each;
            (fallbacks.reasons(), reasons.get(place).copied())
        };
        dump.as_of(changes);
        let next = match (reason, side) {
            (Some(reason), _) => {
                let fill = |message: &mut Writer<'_>| put_reason(message, side, reason);
                if !dump.message(command::REASON_GET, fill)? {
                    return Ok(());
                }
                place.saturating_add(1)
            }
            (None, Side::Server) => {
                dump.cursor()[1] = 1;
                0
            }
            (None, Side::Client) => return Ok(()),
        };
        dump.cursor()[0] = next;
    }
}

fn put_reason(message: &mut Writer<'_>, side: Side, reason: Reason) -> Result {
    message.u8(attr::SIDE, side_number(Some(side)))?;
    message.u32(attr::REASON, reason.code.0)?;
    message.u64_aligned(attr::COUNT, reason.count, attr::PAD)
}
