// SPDX-License-Identifier: GPL-2.0

//! Messages which those of another link have overtaken (RFC 7609, 4.6).
//!
//! Each link keeps the order of its messages, but several links are looked at in any order. A failover
//! validation says what is sure to have come over links that are gone; until it has been handed over,
//! what was sent after it is held.

use super::{
    Conn,
    Events,
    Violation, //
};
use crate::{
    cdc::Cdc,
    group::{
        LinkIx,
        MAX_LINKS, //
    },
};

/// Whether the message with this number was sent before the one with the other.
pub(super) const fn is_before(seq: u16, other: u16) -> bool {
    let ahead = other.wrapping_sub(seq);
    ahead != 0 && ahead < 0x8000
}

/// The number of a message which a validation named and which has not come.
#[derive(Debug, Clone, Copy)]
struct Missing {
    seq: u16,
    /// Links, one bit each, whose messages were all sent after it.
    after: u16,
}

/// All that are missing, in no order.
///
/// Linux names the number before that of the last message which it knows to have come: one that may have
/// got lost with a link, for good. So not only that message ends the wait.
///
/// The last number alone would not do: when links fail one after the other, what was sent between two
/// failures would be taken before what was sent before the first of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    /// As many as a group has places for links.
    places: [Option<Missing>; MAX_LINKS],
    /// Whether there is none: asked for each message.
    is_empty: bool,
}

impl Awaited {
    pub(super) const NONE: Awaited = Awaited {
        places: [None; MAX_LINKS],
        is_empty: true,
    };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    fn iter(&self) -> impl Iterator<Item = &Missing> {
        self.places.iter().flatten()
    }

    /// Whether something is to come that was sent before `seq`.
    fn precedes(&self, seq: u16) -> bool {
        self.iter().any(|old| is_before(old.seq, seq))
    }

    fn contains(&self, seq: u16) -> bool {
        self.iter().any(|old| old.seq == seq)
    }

    /// The messages of `link` were sent after `seq`, and so after all before that. Gives the links of
    /// which the same is known.
    fn follows(&mut self, link: LinkIx, seq: u16) -> u16 {
        let mut after = link.bit();
        for old in self.places.iter_mut().flatten() {
            if !is_before(old.seq, seq) {
                after |= old.after;
            }
            if !is_before(seq, old.seq) {
                old.after |= link.bit();
            }
        }
        after
    }

    /// False if there is no room.
    fn add(&mut self, missing: Missing) -> bool {
        let Some(free) = self.places.iter_mut().find(|place| place.is_none()) else {
            return false;
        };
        *free = Some(missing);
        self.is_empty = false;
        true
    }

    /// A message with this number has come over `link`. What was sent before it, over this link at the
    /// latest, does not come any more: it never reached us, or this one says as much.
    fn remove(&mut self, link: LinkIx, seq: u16) {
        for place in &mut self.places {
            *place = place.filter(|old| {
                let passed = is_before(old.seq, seq) && old.after & link.bit() == 0;
                old.seq != seq && !passed
            });
        }
        self.is_empty = self.places.iter().all(Option::is_none);
    }
}

/// `cdc` with what is said about the same place of the stream in `other` alone. Apart from that each message
/// carries the whole state.
pub(super) fn with_flags_of(mut cdc: Cdc, other: &Cdc) -> Cdc {
    if other.prod == cdc.prod {
        cdc.prod_flags.urgent_present |= other.prod_flags.urgent_present;
        cdc.prod_flags.urgent_pending |= other.prod_flags.urgent_pending;
    }
    cdc.prod_flags.update_requested |= other.prod_flags.update_requested;
    cdc
}

impl Conn {
    /// A validation that came over `link` names `seq`, which has not been taken.
    pub(super) fn await_message(&mut self, link: LinkIx, seq: u16, events: &mut Events) {
        let after = self.awaited.follows(link, seq);
        // What is held was sent as late or later: so this one came, or one that says as much.
        let came = self.held.is_some_and(|held| !is_before(held.seq, seq));
        if came || self.awaited.contains(seq) {
            return;
        }
        events.awaits = self.awaited.add(Missing { seq, after });
        if !events.awaits {
            // What cannot be remembered could get lost without a word.
            self.violate(Violation::DataLost, events);
        }
    }

    /// A message has come over `link`. It is kept if some that were sent before it are to come; else what
    /// it does not say itself is added, so that it can be taken. Asked only while some are awaited, which is rare.
    #[inline(never)]
    pub(super) fn put_in_order(&mut self, link: LinkIx, cdc: Cdc) -> Option<Cdc> {
        self.awaited.remove(link, cdc.seq);
        if !self.awaited.precedes(cdc.seq) {
            // The urgent byte that a held message tells of must not be read without its mark.
            return Some(match &self.held {
                Some(held) => with_flags_of(cdc, held),
                None => cdc,
            });
        }
        self.held = Some(match self.held {
            Some(held) if is_before(cdc.seq, held.seq) => with_flags_of(held, &cdc),
            Some(held) => with_flags_of(cdc, &held),
            None => cdc,
        });
        None
    }

    /// What was held, once it may be taken.
    #[inline]
    pub(super) fn release(&mut self) -> Option<Cdc> {
        self.held.take_if(|held| !self.awaited.precedes(held.seq))
    }
}
