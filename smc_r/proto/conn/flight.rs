// SPDX-License-Identifier: GPL-2.0

//! What has been posted and is not confirmed by a completion yet.

use super::state::Fin;
use crate::cursor::Position;

/// Transmits that may be outstanding at a time.
pub const MAX_IN_FLIGHT: usize = 4;

/// Names one transmit of a connection, from posting to completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub(super) u32);

impl Ticket {
    /// The number of the ticket, to be kept in a work request's identifier.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The ticket of a number got from [`Ticket::number`].
    pub const fn from_number(number: u32) -> Ticket {
        Ticket(number)
    }

    /// Whether this ticket was given out after `other`.
    const fn after(self, other: Ticket) -> bool {
        let ahead = self.0.wrapping_sub(other.0);
        ahead != 0 && ahead < 0x8000_0000
    }
}

/// What has to be known of a transmit until it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) ticket: Ticket,
    /// Place in the send ring up to which data was written.
    pub(super) end: Position,
    /// Sequence number of its CDC message.
    pub(super) seq: u16,
    /// End of our direction as of this message.
    pub(super) fin: Fin,
    /// End of the urgent data which it carried.
    pub(super) urgent: Option<u64>,
    /// A completion will be reported for it.
    pub(super) signal: bool,
}

/// Records in the order of posting.
///
/// # Invariants
///
/// The slots in use come first, ordered by age.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    slots: [Option<Record>; MAX_IN_FLIGHT],
}

impl Flight {
    pub(super) const fn new() -> Flight {
        Flight {
            slots: [None; MAX_IN_FLIGHT],
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.slots.iter().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.slots, [None, ..])
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self.slots, [.., Some(_)])
    }

    /// Whether a completion is certain to be reported.
    pub(super) fn is_signalled(&self) -> bool {
        self.iter().any(|r| r.signal)
    }

    /// Adds the youngest record; dropped if there is no room, which callers exclude.
    pub(super) fn push(&mut self, record: Record) {
        if let Some(slot) = self.slots.iter_mut().find(|s| s.is_none()) {
            // INVARIANT: The first free slot follows the youngest record.
            *slot = Some(record);
        }
    }

    /// Takes the oldest record out if it is `ticket` or older.
    pub(super) fn pop_up_to(&mut self, ticket: Ticket) -> Option<Record> {
        let [first, rest @ ..] = self.slots;
        let record = first.filter(|r| !r.ticket.after(ticket))?;
        let [second, third, fourth] = rest;
        // INVARIANT: The rest moves up by one.
        self.slots = [second, third, fourth, None];
        Some(record)
    }

    /// Takes the youngest record out if it is `ticket`.
    pub(super) fn pop_youngest(&mut self, ticket: Ticket) -> Option<Record> {
        let slot = self.slots.iter_mut().rev().find(|s| s.is_some())?;
        if slot.is_some_and(|r| r.ticket == ticket) {
            // INVARIANT: The youngest is the last one in use.
            slot.take()
        } else {
            None
        }
    }

    pub(super) fn contains(&self, ticket: Ticket) -> bool {
        self.iter().any(|r| r.ticket == ticket)
    }

    pub(super) fn clear(&mut self) {
        *self = Flight::new();
    }
}
