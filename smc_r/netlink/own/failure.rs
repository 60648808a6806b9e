// SPDX-License-Identifier: GPL-2.0

//! How often rendezvous ended without a connection, and in which way.

use kapi::genl::{Dump, Writer};
use kernel::prelude::*;

use super::{attr, command, side_number};
use crate::{netns, stats::FailureCount};

/// The ways, in the order in which they happened first.
pub(super) fn list(dump: &mut Dump<'_>) -> Result {
    let ns = netns::of(dump.net())?;
    loop {
        let place = dump.cursor()[0];
        // Not held while the message is written, for no reason but that it need not be.
        let (changes, failure) = {
            let failures = ns.stats.failures.lock();
            (failures.changes(), failures.at(place))
        };
        dump.as_of(changes);
        let Some(failure) = failure else {
            return Ok(());
        };
        if !dump.message(command::FAILURE_GET, |message| put(message, &failure))? {
            return Ok(());
        }
        dump.cursor()[0] = place.saturating_add(1);
    }
}

fn put(message: &mut Writer<'_>, failure: &FailureCount) -> Result {
    message.u8(attr::SIDE, side_number(Some(failure.side)))?;
    message.u8(attr::FAILURE, failure.kind)?;
    if let Some(reason) = failure.link {
        message.u32(attr::REASON, reason.0)?;
    }
    message.u64_aligned(attr::COUNT, failure.count, attr::PAD)
}
