// SPDX-License-Identifier: GPL-2.0

//! How often peers broke the protocol, or went away, or could not be reached.

use kapi::genl::Request;
use kernel::prelude::*;

use super::{attr, command};
use crate::netns;

/// The counters of the namespace.
pub(super) fn get(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    let stats = &ns.stats;
    let failed = stats
        .sum(|block| &block.counters.client_errors)
        .wrapping_add(stats.sum(|block| &block.counters.server_errors));
    let faults = [
        (
            attr::CONNECTIONS_ABORTED,
            stats.sum(|block| &block.counters.violations),
        ),
        (
            attr::LINKS_BROKEN,
            stats.sum(|block| &block.counters.llc_violations),
        ),
        (
            attr::CDC_DROPPED,
            stats.sum(|block| &block.counters.cdc_dropped),
        ),
        (
            attr::LLC_DROPPED,
            stats.sum(|block| &block.counters.llc_dropped),
        ),
        (
            attr::LLC_REFUSED,
            stats.sum(|block| &block.counters.llc_refused),
        ),
        (
            attr::LINKS_LOST,
            stats.sum(|block| &block.counters.links_lost),
        ),
        (
            attr::GROUPS_LOST,
            stats.sum(|block| &block.counters.groups_lost),
        ),
        (attr::HANDSHAKES_FAILED, failed),
        (
            attr::LINKS_WITHOUT_ROUTE,
            stats.sum(|block| &block.counters.links_without_route),
        ),
    ];
    request.reply(command::FAULT_GET, |message| {
        for (number, count) in faults {
            message.u64_aligned(number, count, attr::PAD)?;
        }
        Ok(())
    })
}
