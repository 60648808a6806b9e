// SPDX-License-Identifier: GPL-2.0

//! Counters of the namespace.

use super::own::{FailedHandshakes, ReasonCount};
use crate::attr::Attrs;
use crate::netlink::{Error, Malformed, Message, Source};
use crate::uapi::{command, nest, Reason, Role, GEN_FAMILY};
use serde::Serialize;

/// Names of the size classes.
pub const SIZES: [&str; 9] = [
    "8 KiB", "16 KiB", "32 KiB", "64 KiB", "128 KiB", "256 KiB", "512 KiB", "1 MiB", "larger",
];

/// How often something had a size up to each of [`SIZES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Buckets(pub [u64; 9]);

impl Buckets {
    fn decode(parent: &Attrs<'_>, kind: u16) -> Result<Self, Malformed> {
        let mut buckets = Self::default();
        if let Some(attrs) = parent.nest(kind)? {
            for (kind, bucket) in (1..).zip(&mut buckets.0) {
                *bucket = attrs.u64(kind)?.unwrap_or_default();
            }
        }
        Ok(buckets)
    }
}

/// What happened to buffers of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Buffers {
    /// The peer's buffer was smaller than the request.
    pub peer_too_small: u64,
    /// Our buffer was smaller than the request.
    pub own_too_small: u64,
    /// The peer's buffer was full.
    pub peer_full: u64,
    /// Our buffer was full.
    pub own_full: u64,
    /// A buffer was used again.
    pub reused: u64,
    /// A buffer was allocated.
    pub allocated: u64,
    /// A smaller buffer than wanted was allocated.
    pub downgraded: u64,
}

impl Buffers {
    fn decode(parent: &Attrs<'_>, kind: u16) -> Result<Self, Malformed> {
        let attrs = parent.nest(kind)?.unwrap_or_default();
        let counter = |kind| attrs.u64(kind).map(Option::unwrap_or_default);
        Ok(Self {
            peer_too_small: counter(1)?,
            own_too_small: counter(2)?,
            peer_full: counter(3)?,
            own_full: counter(4)?,
            reused: counter(5)?,
            allocated: counter(6)?,
            downgraded: counter(7)?,
        })
    }
}

/// One direction of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Direction {
    /// Bytes.
    pub bytes: u64,
    /// Calls.
    pub calls: u64,
    /// Bytes per call.
    pub payload_sizes: Buckets,
    /// Sizes of the buffers that connections got.
    pub buffer_sizes: Buckets,
    /// Bytes of the buffers in use.
    pub buffer_bytes: u64,
    /// What happened to buffers.
    pub buffers: Buffers,
}

/// Counters of SMC-R or of SMC-D.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Technology {
    /// Handshakes of version 1 that succeeded, as client.
    pub client_v1: u64,
    /// Of version 2.
    pub client_v2: u64,
    /// Of version 1, as server.
    pub server_v1: u64,
    /// Of version 2.
    pub server_v2: u64,
    /// Sending.
    pub tx: Direction,
    /// Receiving.
    pub rx: Direction,
    /// Calls of splice.
    pub splice_calls: u64,
    /// Calls that pushed data after a cork.
    pub cork_calls: u64,
    /// Calls that pushed data for lack of delay.
    pub nodelay_calls: u64,
    /// Urgent bytes.
    pub urgent: u64,
}

impl Technology {
    fn decode(attrs: &Attrs<'_>) -> Result<Self, Malformed> {
        let counter = |kind| attrs.u64(kind).map(Option::unwrap_or_default);
        Ok(Self {
            client_v1: counter(7)?,
            client_v2: counter(8)?,
            server_v1: counter(9)?,
            server_v2: counter(10)?,
            tx: Direction {
                bytes: counter(17)?,
                calls: counter(19)?,
                payload_sizes: Buckets::decode(attrs, 3)?,
                buffer_sizes: Buckets::decode(attrs, 1)?,
                buffer_bytes: attrs.uint(21)?.unwrap_or_default(),
                buffers: Buffers::decode(attrs, 5)?,
            },
            rx: Direction {
                bytes: counter(16)?,
                calls: counter(18)?,
                payload_sizes: Buckets::decode(attrs, 4)?,
                buffer_sizes: Buckets::decode(attrs, 2)?,
                buffer_bytes: attrs.uint(20)?.unwrap_or_default(),
                buffers: Buffers::decode(attrs, 6)?,
            },
            splice_calls: counter(12)?,
            cork_calls: counter(13)?,
            nodelay_calls: counter(14)?,
            urgent: counter(15)?,
        })
    }

    /// Handshakes that succeeded.
    pub fn handshakes(&self) -> u64 {
        [
            self.client_v1,
            self.client_v2,
            self.server_v1,
            self.server_v2,
        ]
        .iter()
        .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// How often connections fell back for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FallbackReason {
    /// Our side.
    pub side: Role,
    /// The reason.
    pub reason: Reason,
    /// How often; without our module at most 65535 are told.
    pub count: u64,
}

/// Connections that fell back to TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fallbacks {
    /// As client.
    pub client: u64,
    /// As server.
    pub server: u64,
    /// For which reasons.
    pub reasons: Vec<FallbackReason>,
}

impl Fallbacks {
    fn decode(messages: &[Message], full: &[ReasonCount]) -> Result<Self, Malformed> {
        let mut fallbacks = Self::default();
        for message in messages {
            let attrs = Attrs::parse(&message.attributes)?;
            let attrs = attrs.need_nest(nest::FBACK_STATS)?;
            // The totals come with the first message only.
            fallbacks.server = attrs.u64(2)?.unwrap_or(fallbacks.server);
            fallbacks.client = attrs.u64(3)?.unwrap_or(fallbacks.client);
            let count = attrs.u16(5)?.unwrap_or_default();
            if count > 0 {
                fallbacks.reasons.push(FallbackReason {
                    side: Role(attrs.u8(1)?.unwrap_or_default()),
                    reason: Reason(attrs.u32(4)?.unwrap_or_default()),
                    count: count.into(),
                });
            }
        }
        for entry in &mut fallbacks.reasons {
            let same = |full: &&ReasonCount| full.is_of(entry.side) && full.reason == entry.reason;
            if let Some(full) = full.iter().find(same) {
                entry.count = full.count;
            }
        }
        fallbacks
            .reasons
            .sort_by_key(|entry| (entry.side, std::cmp::Reverse(entry.count)));
        Ok(fallbacks)
    }
}

/// All counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Handshakes that failed, as client.
    pub client_handshake_errors: u64,
    /// As server.
    pub server_handshake_errors: u64,
    /// In which ways they failed.
    pub handshake_errors: Vec<FailedHandshakes>,
    /// Fallbacks to TCP.
    pub fallbacks: Fallbacks,
    /// Counters of SMC-R.
    pub smcr: Technology,
    /// Counters of SMC-D, if there are any.
    pub smcd: Option<Technology>,
}

impl Stats {
    fn decode(
        stats: &[Message],
        failures: Vec<FailedHandshakes>,
        fallbacks: &[Message],
        reasons: &[ReasonCount],
    ) -> Result<Self, Malformed> {
        let first = stats
            .first()
            .ok_or_else(|| Malformed("empty answer".into()))?;
        let message = Attrs::parse(&first.attributes)?;
        let attrs = message.need_nest(nest::STATS)?;
        let technology = |kind| {
            attrs
                .nest(kind)?
                .map(|attrs| Technology::decode(&attrs))
                .transpose()
        };
        Ok(Self {
            client_handshake_errors: attrs.u64(3)?.unwrap_or_default(),
            server_handshake_errors: attrs.u64(4)?.unwrap_or_default(),
            handshake_errors: failures,
            fallbacks: Fallbacks::decode(fallbacks, reasons)?,
            smcr: technology(2)?.unwrap_or_default(),
            smcd: technology(1)?.filter(|technology| *technology != Technology::default()),
        })
    }

    /// Asks the kernel.
    pub fn read(source: &mut dyn Source) -> Result<Self, Error> {
        let stats = source.dump(GEN_FAMILY, command::GET_STATS)?;
        let fallbacks = source.dump(GEN_FAMILY, command::GET_FBACK_STATS)?;
        let failures = FailedHandshakes::read_all(source)?;
        let reasons = ReasonCount::read_all(source)?;
        Ok(Self::decode(&stats, failures, &fallbacks, &reasons)?)
    }
}
