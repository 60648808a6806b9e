// SPDX-License-Identifier: GPL-2.0

//! Whether clients say what whoever closes a listener waits for, see [`Handshake::hear_out`](super::Handshake::hear_out).

use kapi::util::now_ms;
use kernel::sync::atomic::{Atomic, Relaxed};

/// For how long nothing is waited for where it was in vain; milliseconds.
const NONE: u64 = 60_000;

/// Of a link group, for Confirms of its clients; of a namespace, for first contacts, each of which has a group of its own. Any
/// context.
pub(crate) struct LastWords {
    /// Until when there are none; milliseconds since boot.
    none_until: Atomic<u64>,
}

impl LastWords {
    pub(crate) fn new() -> Self {
        Self {
            none_until: Atomic::new(0),
        }
    }

    /// A client that may have used its connection already has said nothing.
    pub(super) fn missed(&self) {
        let until = now_ms().saturating_add(NONE);
        self.none_until.store(until, Relaxed);
    }

    /// Expects them again.
    pub(crate) fn forget(&self) {
        self.none_until.store(0, Relaxed);
    }

    /// Whether they can be expected: none has been missed lately.
    pub(super) fn come(&self) -> bool {
        self.none_until.load(Relaxed) <= now_ms()
    }
}
