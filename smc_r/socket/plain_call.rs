// SPDX-License-Identifier: GPL-2.0

//! Calls that move data of plain TCP.
//!
//! They read the phase without a lock and go straight on to the inner socket, whose lock they may get much later: a program
//! can delay its own threads as it likes. Meanwhile another one may dissolve the connection and connect anew, by the same inner
//! socket. Such a call must not meet a rendezvous there: it would send in the name of this host, to the harm of all who use
//! the link group, or receive keys of the peer. So these calls are counted, and a connect that finds one is plain TCP.

use kapi::sock::Sk;
use kernel::sync::atomic::{Full, Release};

use super::{Phase, SmcSocket};

/// A call under way that moves data of plain TCP.
pub(super) struct PlainCall<'a>(&'a SmcSocket);

impl<'a> PlainCall<'a> {
    /// Counts a call, if the socket is plain TCP. Any context.
    pub(super) fn begin(sk: &'a Sk<SmcSocket>) -> Option<Self> {
        // In full order with what follows: either it sees that the socket has become something else, or who makes it that
        // sees the call.
        sk.plain_calls.fetch_add(1, Full);
        let call = Self(sk);
        (sk.phase() == Phase::Fallback).then_some(call)
    }

    /// Whether a call that began while the socket was plain TCP may be under way, on one that is so no more. Socket lock held.
    pub(super) fn is_any(sk: &SmcSocket) -> bool {
        sk.plain_calls.fetch_add(0, Full) != 0
    }
}

impl Drop for PlainCall<'_> {
    fn drop(&mut self) {
        self.0.plain_calls.fetch_add(-1, Release);
    }
}
