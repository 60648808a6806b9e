// SPDX-License-Identifier: GPL-2.0

//! What has been posted and is not confirmed by a completion yet.

use super::state::Fin;
use crate::cursor::Position;

/// Transmits that may be outstanding at a time: a power of two.
pub const MAX_IN_FLIGHT: usize = 8;

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
/// - `first < MAX_IN_FLIGHT` and `len <= MAX_IN_FLIGHT`. In use are the `len` slots from `first` on,
///   around the end, ordered by age.
/// - `signalled` of them have `signal`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    slots: [Record; MAX_IN_FLIGHT],
    first: usize,
    len: usize,
    signalled: usize,
}

impl Flight {
    /// What an unused slot holds.
    const UNUSED: Record = Record {
        ticket: Ticket(0),
        end: Position::ZERO,
        seq: 0,
        fin: Fin::None,
        urgent: None,
        signal: false,
    };

    pub(super) const fn new() -> Flight {
        Flight {
            slots: [Flight::UNUSED; MAX_IN_FLIGHT],
            first: 0,
            len: 0,
            signalled: 0,
        }
    }

    /// The place of the record that is so much younger than the oldest.
    const fn place(&self, age: usize) -> usize {
        self.first.wrapping_add(age) % MAX_IN_FLIGHT
    }

    /// The records, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        (0..self.len).filter_map(|age| self.slots.get(self.place(age)))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.len >= MAX_IN_FLIGHT
    }

    /// Whether a completion is certain to be reported.
    pub(super) fn is_signalled(&self) -> bool {
        self.signalled != 0
    }

    /// Adds the youngest record; dropped if there is no room, which callers exclude.
    pub(super) fn push(&mut self, record: Record) {
        if self.is_full() {
            return;
        }
        let place = self.place(self.len);
        if let Some(slot) = self.slots.get_mut(place) {
            // INVARIANT: The first free slot follows the youngest record.
            *slot = record;
            self.len = self.len.saturating_add(1);
            self.signalled = self.signalled.saturating_add(record.signal.into());
        }
    }

    /// A record is no longer in use.
    fn forget(&mut self, record: &Record) {
        self.len = self.len.saturating_sub(1);
        self.signalled = self.signalled.saturating_sub(record.signal.into());
    }

    /// Takes the oldest record out if it is `ticket` or older.
    pub(super) fn pop_up_to(&mut self, ticket: Ticket) -> Option<Record> {
        let record = *self.iter().next()?;
        if record.ticket.after(ticket) {
            return None;
        }
        // INVARIANT: The oldest goes.
        self.first = self.place(1);
        self.forget(&record);
        Some(record)
    }

    /// Takes the youngest record out if it is `ticket`.
    pub(super) fn pop_youngest(&mut self, ticket: Ticket) -> Option<Record> {
        let place = self.place(self.len.checked_sub(1)?);
        let record = *self.slots.get(place)?;
        if record.ticket != ticket {
            return None;
        }
        // INVARIANT: The youngest goes.
        self.forget(&record);
        Some(record)
    }

    pub(super) fn contains(&self, ticket: Ticket) -> bool {
        self.iter().any(|r| r.ticket == ticket)
    }

    pub(super) fn clear(&mut self) {
        *self = Flight::new();
    }
}
