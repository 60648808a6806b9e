// SPDX-License-Identifier: GPL-2.0

//! Counters of a namespace, and the reasons for plain TCP.

use kapi::genl::{Dump, Writer};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed}, //
};

use super::{command, namespace, nest, once, put_uint};
use crate::stats::{Direction, Reason, Sizes, Stats, BUCKETS};

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
            let errors = &stats.counters;
            let (client, server) = (value(&errors.client_errors), value(&errors.server_errors));
            message.u64_aligned(attr::CLNT_HS_ERR_CNT, client, attr::PAD)?;
            message.u64_aligned(attr::SRV_HS_ERR_CNT, server, attr::PAD)
        })
    })
}

fn value(counter: &Atomic<u64>) -> u64 {
    counter.load(Relaxed)
}

fn put_tech(message: &mut Writer<'_>, stats: Option<&Stats>) -> Result {
    let (tx, rx) = (stats.map(|stats| &stats.tx), stats.map(|stats| &stats.rx));
    put_sizes(message, tech::TX_RMB_SIZE, tx.map(|tx| &tx.in_use))?;
    put_sizes(message, tech::RX_RMB_SIZE, rx.map(|rx| &rx.in_use))?;
    put_sizes(message, tech::TXPLOAD_SIZE, tx.map(|tx| &tx.calls))?;
    put_sizes(message, tech::RXPLOAD_SIZE, rx.map(|rx| &rx.calls))?;
    put_buffers(message, tech::TX_RMB_STATS, tx)?;
    put_buffers(message, tech::RX_RMB_STATS, rx)?;
    let plain = stats.map(|stats| &stats.counters);
    let counters = [
        (
            tech::CLNT_V1_SUCC,
            plain.map(|plain| &plain.client_connections),
        ),
        (tech::CLNT_V2_SUCC, None),
        (
            tech::SRV_V1_SUCC,
            plain.map(|plain| &plain.server_connections),
        ),
        (tech::SRV_V2_SUCC, None),
        (tech::SENDPAGE_CNT, None),
        (tech::SPLICE_CNT, None),
        (tech::CORK_CNT, plain.map(|plain| &plain.uncorked)),
        (tech::NDLY_CNT, plain.map(|plain| &plain.undelayed)),
        (tech::URG_DATA_CNT, plain.map(|plain| &plain.urgent)),
        (tech::RX_BYTES, plain.map(|plain| &plain.rx_bytes)),
        (tech::TX_BYTES, plain.map(|plain| &plain.tx_bytes)),
        (tech::RX_CNT, plain.map(|plain| &plain.rx_calls)),
        (tech::TX_CNT, plain.map(|plain| &plain.tx_calls)),
    ];
    for (attr, counter) in counters {
        message.u64_aligned(attr, counter.map_or(0, value), attr::PAD)?;
    }
    put_uint(
        message,
        tech::RX_RMB_USAGE,
        rx.map_or(0, |rx| value(&rx.bytes_in_use)),
    )?;
    put_uint(
        message,
        tech::TX_RMB_USAGE,
        tx.map_or(0, |tx| value(&tx.bytes_in_use)),
    )
}

fn put_sizes(message: &mut Writer<'_>, attr: u16, sizes: Option<&Sizes>) -> Result {
    let mut values = [0; BUCKETS];
    if let Some(sizes) = sizes {
        for (to, from) in values.iter_mut().zip(sizes.iter()) {
            *to = from;
        }
    }
    put_numbered(message, attr, &values)
}

fn put_buffers(message: &mut Writer<'_>, attr: u16, direction: Option<&Direction>) -> Result {
    let values = direction.map_or([0; 7], |direction| {
        [
            value(&direction.beyond_peer),
            value(&direction.beyond_own),
            value(&direction.peer_full),
            value(&direction.own_full),
            value(&direction.reused),
            value(&direction.allocated),
            value(&direction.downgraded),
        ]
    });
    put_numbered(message, attr, &values)
}

/// A nest of 64-bit numbers, whose attributes count from 1.
fn put_numbered(message: &mut Writer<'_>, attr: u16, values: &[u64]) -> Result {
    message.nest(attr, |message| {
        for (attr, value) in (1..).zip(values) {
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
        let (reason, totals, more) = {
            let fallbacks = ns.stats.fallbacks.lock();
            let (server, client) = (&fallbacks.server, &fallbacks.client);
            let side = if is_server { server } else { client };
            let more = index < server.each.len().max(client.each.len());
            (
                side.each.get(index).copied(),
                (server.total, client.total),
                more,
            )
        };
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
        dump.cursor()[0] = place + 1;
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
