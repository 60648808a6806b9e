// SPDX-License-Identifier: GPL-2.0

//! Counters of a namespace, and the reasons for plain TCP.

use kapi::genl::{Dump, Writer};
use kernel::{prelude::*, sync::atomic::Atomic};

use super::{command, namespace, nest, once, put_uint};
use crate::stats::{Block, Direction, Reason, Stats};

mod attr {
    pub(super) const PAD: u16 = 0;
    pub(super) const SMCD: u16 = 1;
    pub(super) const SMCR: u16 = 2;
    pub(super) const CLNT_HS_ERR_CNT: u16 = 3;
    pub(super) const SRV_HS_ERR_CNT: u16 = 4;
}

mod tech {
    pub(super) const TX_RMB_SIZE: u16 = 1;
    pub(super) const RX_RMB_SIZE: u16 = 2;
    pub(super) const TXPLOAD_SIZE: u16 = 3;
    pub(super) const RXPLOAD_SIZE: u16 = 4;
    pub(super) const TX_RMB_STATS: u16 = 5;
    pub(super) const RX_RMB_STATS: u16 = 6;
    pub(super) const CLNT_V1_SUCC: u16 = 7;
    pub(super) const CLNT_V2_SUCC: u16 = 8;
    pub(super) const SRV_V1_SUCC: u16 = 9;
    pub(super) const SRV_V2_SUCC: u16 = 10;
    pub(super) const SENDPAGE_CNT: u16 = 11;
    pub(super) const SPLICE_CNT: u16 = 12;
    pub(super) const CORK_CNT: u16 = 13;
    pub(super) const NDLY_CNT: u16 = 14;
    pub(super) const URG_DATA_CNT: u16 = 15;
    pub(super) const RX_BYTES: u16 = 16;
    pub(super) const TX_BYTES: u16 = 17;
    pub(super) const RX_CNT: u16 = 18;
    pub(super) const TX_CNT: u16 = 19;
    pub(super) const RX_RMB_USAGE: u16 = 20;
    pub(super) const TX_RMB_USAGE: u16 = 21;
}

mod fallback {
    pub(super) const PAD: u16 = 0;
    pub(super) const TYPE: u16 = 1;
    pub(super) const SRV_CNT: u16 = 2;
    pub(super) const CLNT_CNT: u16 = 3;
    pub(super) const RSN_CODE: u16 = 4;
    pub(super) const RSN_CNT: u16 = 5;
}

/// Counters.
pub(super) fn stats(dump: &mut Dump<'_>) -> Result {
    let ns = namespace(dump)?;
    once(dump, command::STATS, |message| {
        message.nest(nest::STATS, |message| {
            let stats = &ns.stats;
            // There is no SMC-D: all of its counters are zero.
            message.nest(attr::SMCD, |message| put_tech(message, None))?;
            message.nest(attr::SMCR, |message| put_tech(message, Some(stats)))?;
            let client = stats.sum(|block| &block.counters.client_errors);
            let server = stats.sum(|block| &block.counters.server_errors);
            message.u64_aligned(attr::CLNT_HS_ERR_CNT, client, attr::PAD)?;
            message.u64_aligned(attr::SRV_HS_ERR_CNT, server, attr::PAD)
        })
    })
}

/// Where a processor counts something.
type Pick = fn(&Block) -> &Atomic<u64>;

/// The same for sending and receiving.
type PickDirection = fn(&Block) -> &Direction;

fn put_tech(message: &mut Writer<'_>, stats: Option<&Stats>) -> Result {
    let sum = |pick: Pick| stats.map_or(0, |stats| stats.sum(pick));
    let (tx, rx): (PickDirection, PickDirection) = (|block| &block.tx, |block| &block.rx);
    let sizes = [
        (
            tech::TX_RMB_SIZE,
            stats.map(|stats| stats.sizes(|block| &block.tx.buffers)),
        ),
        (
            tech::RX_RMB_SIZE,
            stats.map(|stats| stats.sizes(|block| &block.rx.buffers)),
        ),
        (
            tech::TXPLOAD_SIZE,
            stats.map(|stats| stats.sizes(|block| &block.tx.calls)),
        ),
        (
            tech::RXPLOAD_SIZE,
            stats.map(|stats| stats.sizes(|block| &block.rx.calls)),
        ),
    ];
    for (attr, values) in sizes {
        put_numbered(message, attr, &values.unwrap_or_default())?;
    }
    put_buffers(message, tech::TX_RMB_STATS, stats, tx)?;
    put_buffers(message, tech::RX_RMB_STATS, stats, rx)?;
    let counters: [(u16, Option<Pick>); 13] = [
        (
            tech::CLNT_V1_SUCC,
            Some(|block| &block.counters.client_connections),
        ),
        (
            tech::CLNT_V2_SUCC,
            Some(|block| &block.counters.client_connections_v2),
        ),
        (
            tech::SRV_V1_SUCC,
            Some(|block| &block.counters.server_connections),
        ),
        (
            tech::SRV_V2_SUCC,
            Some(|block| &block.counters.server_connections_v2),
        ),
        (tech::SENDPAGE_CNT, None),
        (tech::SPLICE_CNT, Some(|block| &block.counters.spliced)),
        (tech::CORK_CNT, Some(|block| &block.counters.uncorked)),
        (tech::NDLY_CNT, Some(|block| &block.counters.undelayed)),
        (tech::URG_DATA_CNT, Some(|block| &block.counters.urgent)),
        (tech::RX_BYTES, Some(|block| &block.counters.rx_bytes)),
        (tech::TX_BYTES, Some(|block| &block.counters.tx_bytes)),
        (tech::RX_CNT, Some(|block| &block.counters.rx_calls)),
        (tech::TX_CNT, Some(|block| &block.counters.tx_calls)),
    ];
    for (attr, pick) in counters {
        message.u64_aligned(attr, pick.map_or(0, sum), attr::PAD)?;
    }
    put_uint(
        message,
        tech::RX_RMB_USAGE,
        sum(|block| &block.rx.bytes_in_use),
    )?;
    put_uint(
        message,
        tech::TX_RMB_USAGE,
        sum(|block| &block.tx.bytes_in_use),
    )
}

fn put_buffers(
    message: &mut Writer<'_>,
    attr: u16,
    stats: Option<&Stats>,
    direction: PickDirection,
) -> Result {
    let picks: [fn(&Direction) -> &Atomic<u64>; 7] = [
        |direction| &direction.beyond_peer,
        |direction| &direction.beyond_own,
        |direction| &direction.peer_full,
        |direction| &direction.own_full,
        |direction| &direction.reused,
        |direction| &direction.allocated,
        |direction| &direction.downgraded,
    ];
    let values =
        picks.map(|pick| stats.map_or(0, |stats| stats.sum(|block| pick(direction(block)))));
    put_numbered(message, attr, &values)
}

/// A nest of 64-bit numbers, whose attributes count from 1.
fn put_numbered(message: &mut Writer<'_>, attr: u16, values: &[u64]) -> Result {
    message.nest(attr, |message| {
        let mut attr = 0_u16;
        for value in values {
            attr = attr.saturating_add(1);
            message.u64_aligned(attr, *value, attr::PAD)?;
        }
        Ok(())
    })
}

/// Reasons for plain TCP: the first of servers, the first of clients, the second of servers, and
/// so on. The totals are in the first message.
pub(super) fn fallbacks(dump: &mut Dump<'_>) -> Result {
    let ns = namespace(dump)?;
    loop {
        let place = dump.cursor()[0];
        let index = place >> 1;
        let is_server = place & 1 == 0;
        let (changes, reason, totals, more) = {
            let fallbacks = ns.stats.fallbacks.lock();
            let (server, client) = (&fallbacks.server, &fallbacks.client);
            let side = if is_server { server } else { client };
            let more = index < server.each.len().max(client.each.len());
            (
                fallbacks.reasons(),
                side.each.get(index).copied(),
                (server.total, client.total),
                more,
            )
        };
        dump.as_of_if_asked(changes);
        if !more {
            return Ok(());
        }
        if let Some(reason) = reason {
            let totals = (dump.cursor()[1] == 0).then_some(totals);
            let fill = |message: &mut Writer<'_>| put_reason(message, is_server, reason, totals);
            if !dump.message(command::FALLBACKS, fill)? {
                return Ok(());
            }
            dump.cursor()[1] = 1;
        }
        dump.cursor()[0] = place.saturating_add(1);
    }
}

fn put_reason(
    message: &mut Writer<'_>,
    is_server: bool,
    reason: Reason,
    totals: Option<(u64, u64)>,
) -> Result {
    message.nest(nest::FALLBACK, |message| {
        message.u8(fallback::TYPE, u8::from(is_server))?;
        if let Some((server, client)) = totals {
            message.u64_aligned(fallback::SRV_CNT, server, fallback::PAD)?;
            message.u64_aligned(fallback::CLNT_CNT, client, fallback::PAD)?;
        }
        message.u32(fallback::RSN_CODE, reason.code.0)?;
        message.u16(
            fallback::RSN_CNT,
            u16::try_from(reason.count).unwrap_or(u16::MAX),
        )
    })
}
