// SPDX-License-Identifier: GPL-2.0

//! Time by value: moments, spans and the defaults of the protocol's timers.
//!
//! The core has no clock. Whoever calls it says what time it is, in milliseconds since any fixed
//! moment, and asks for the next deadline afterwards. RFC 7609 leaves most spans to the
//! implementation (appendix C.7); the defaults here keep our answers well inside the spans that
//! Linux grants its peers.

use core::fmt;
use core::num::NonZeroU64;

/// A moment of a clock that never runs backwards, in milliseconds since some fixed moment. Where a moment may be missing,
/// that takes no room: state machines have many.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(NonZeroU64);

impl Time {
    /// The moment `ms` milliseconds after the clock's origin; the end of time is one before the last number.
    pub const fn from_millis(ms: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ms))
    }

    /// Milliseconds since the clock's origin.
    pub const fn as_millis(self) -> u64 {
        // Never wraps: it is not zero.
        self.0.get().wrapping_sub(1)
    }

    /// The moment `span` later, or the end of time.
    pub const fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span as u64))
    }

    /// How long it is from `earlier` to this moment, zero if `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.as_millis())
    }
}

/// A span of time in milliseconds.
pub type Millis = u32;

/// The earlier of two deadlines of which either may be missing.
pub const fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(x), Some(y)) => Some(if x.0.get() <= y.0.get() { x } else { y }),
        (Some(x), None) => Some(x),
        (None, y) => y,
    }
}

/// The spans of the rendezvous of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeTiming {
    /// Wait for one CLC message of the peer. Expiry fails the connection.
    pub clc: Millis,
    /// Wait for our own driver between a CLC message and our answer to it, including the wait for
    /// another first contact and a CONFIRM RKEY exchange. Must end before the peer's wait does.
    pub contact: Millis,
    /// Guard over the whole LLC phase of a first contact. The link group's own timers are shorter.
    pub link: Millis,
    /// Wait for the peer's Decline after the link failed for a reason that the peer knows too.
    pub decline: Millis,
}

impl HandshakeTiming {
    /// The spans used unless somebody has a reason for others.
    pub const DEFAULT: Self = Self {
        clc: 6_000,
        contact: 4_000,
        link: 20_000,
        decline: 1_000,
    };
}

impl Default for HandshakeTiming {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The spans of the LLC exchanges of a link group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTiming {
    /// Server, first link: wait for the CONFIRM LINK reply.
    pub confirm_link_reply: Millis,
    /// Client, first link: wait for the CONFIRM LINK request.
    pub confirm_link_request: Millis,
    /// Client, first contact: wait for the ADD LINK request.
    pub add_link_request: Millis,
    /// Wait for any other reply.
    pub reply: Millis,
    /// Client: wait for our own driver between an offered link and our answer to it. Shorter than any
    /// peer waits.
    pub accept_link: Millis,
    /// CONFIRM LINK on a further link.
    pub confirm_further: Millis,
    /// Pause before the next attempt to get a link that the group lacks.
    pub link_retry: Millis,
    /// Pause before a link is replaced that did not last for `link_steady`.
    pub link_pause: Millis,
    /// How long a link has to last to be replaced at once.
    pub link_steady: Millis,
    /// Pause before a CONFIRM RKEY that the peer asked us to repeat is repeated.
    pub rkey_retry: Millis,
    /// Silence on a link after which TEST LINK is sent; zero turns it off.
    pub test_link: Millis,
    /// Wait for the TEST LINK reply.
    pub test_link_reply: Millis,
    /// Server: how long a link group without connections is kept.
    pub idle_server: Millis,
    /// Client: likewise, longer so that the server goes first.
    pub idle_client: Millis,
    /// Wait for the completion of the last message of a link group.
    pub last_send: Millis,
    /// How long after it queue pairs acknowledge what is on its way.
    pub linger: Millis,
}

impl FlowTiming {
    /// The spans used unless somebody has a reason for others.
    pub const DEFAULT: Self = Self {
        confirm_link_reply: 5_000,
        confirm_link_request: 8_000,
        add_link_request: 4_000,
        reply: 5_000,
        accept_link: 1_000,
        confirm_further: 5_000,
        link_retry: 60_000,
        link_pause: 5_000,
        link_steady: 10_000,
        rkey_retry: 100,
        test_link: 30_000,
        test_link_reply: 5_000,
        idle_server: 600_000,
        idle_client: 610_000,
        last_send: 2_000,
        linger: 200,
    };
}

impl Default for FlowTiming {
    fn default() -> Self {
        Self::DEFAULT
    }
}
