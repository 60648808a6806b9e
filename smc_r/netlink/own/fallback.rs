// SPDX-License-Identifier: GPL-2.0

//! Peers with whom connections became plain TCP.

use kapi::genl::{Dump, Writer};
use kernel::prelude::*;

use super::{attr, command, put_address, side_number};
use crate::{netns, stats::PeerFallbacks};

/// The peers, the latest last.
pub(super) fn list(dump: &mut Dump<'_>) -> Result {
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
        if !dump.message(command::FALLBACK_GET, |message| put(message, &peer))? {
            return Ok(());
        }
        dump.cursor()[0] = peer.number as usize;
    }
}

fn put(message: &mut Writer<'_>, peer: &PeerFallbacks) -> Result {
    put_address(message, attr::ADDRESS, peer.peer)?;
    message.u8(attr::SIDE, side_number(Some(peer.side)))?;
    message.u32(attr::REASON, peer.reason.0)?;
    message.u64_aligned(attr::COUNT, peer.count, attr::PAD)
}
