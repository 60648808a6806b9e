// SPDX-License-Identifier: GPL-2.0

//! The receiving direction: the application's reads, urgent data, consumer updates (RFC 7609,
//! 4.5.1 and 4.7.5).

use core::fmt;

use super::{
    Conn,
    Fin,
    UrgentIn, //
};
use crate::{
    cursor::{
        amount,
        Position, //
    },
    ring::Spans, //
};

/// Why there is no urgent byte to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrgentError {
    /// There is none, it was read already, or it is part of the stream (`EINVAL`).
    Invalid,
    /// It was announced and has not arrived (`EAGAIN`).
    NotYet,
    /// It was announced and will not arrive: the peer is done (end of stream).
    End,
}

impl fmt::Display for UrgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UrgentError::Invalid => "no urgent data",
            UrgentError::NotYet => "urgent data has not arrived yet",
            UrgentError::End => "urgent data will not arrive",
        })
    }
}

impl Conn {
    /// Bytes the application can read from the stream (`SIOCINQ`), without an urgent byte that
    /// is out of line.
    #[inline]
    pub fn readable(&self) -> u32 {
        if self.void {
            return 0;
        }
        let unread = self.unread();
        match self.urgent_in {
            Some(u) if !self.inline && !u.skipped && u.at >= self.consumed.total => {
                unread.saturating_sub(1)
            }
            _ => unread,
        }
    }

    /// Whether the peer will send nothing more, and all it sent was read. It is an end of the
    /// stream only if there is no [`Conn::error`], or if it [is whole](Conn::is_whole).
    pub fn eof(&self) -> bool {
        self.read_shut() && self.readable() == 0
    }

    /// Whether the peer will send nothing more. There may be data left to read.
    #[inline]
    pub fn read_shut(&self) -> bool {
        self.rx_fin != Fin::None || self.is_over()
    }

    /// Whether all that the peer wanted to send has arrived, whatever became of the connection later:
    /// the peer has said so.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether the peer closed both directions (C).
    pub fn peer_closed(&self) -> bool {
        self.rx_fin >= Fin::Closed
    }

    /// Where bytes to read are: `max` at most, from `skip` bytes behind the next one on.
    ///
    /// `skip` is for peeking, else 0. A run ends in front of the urgent mark, and a peek may begin
    /// at the mark only if the urgent byte is in line: once the application has some bytes, stop when [`Conn::ends_at`] is true, as TCP does. Nothing that
    /// happens until [`Conn::recv_commit`] makes the bytes invalid.
    #[inline]
    pub fn recv_spans(&mut self, skip: u32, max: u32) -> Spans {
        let run = self.run(skip);
        if skip >= run {
            return Spans::EMPTY;
        }
        let n = run.saturating_sub(skip).min(max);
        self.reading = n > 0;
        Spans::new(self.own, self.own.advance(self.consumed.cursor, skip), n)
    }

    /// Ends what [`Conn::recv_spans`] began: the first `n` bytes have been read; 0 after a peek.
    #[inline]
    pub fn recv_commit(&mut self, n: u32) {
        self.undo = None;
        self.reading = false;
        let n = n.min(self.unread());
        if n > 0 {
            self.consumed = self.consumed.advance(self.own, n);
            if let Some(u) = self.urgent_in {
                if self.consumed.total > u.at {
                    // The peer waits for this, even if the window is wide.
                    self.tx.owe_update |= !u.skipped;
                    self.urgent_in = None;
                }
            }
        }
        self.skip_urgent();
    }

    /// Whether the next byte to read is the one at the urgent mark (`SIOCATMARK`).
    #[inline]
    pub fn at_mark(&self) -> bool {
        self.urgent_in.is_some_and(|u| {
            let mark = if u.skipped {
                u.at.wrapping_add(1)
            } else {
                u.at
            };
            mark == self.consumed.total
        })
    }

    /// Whether a read that has some bytes ends here, as TCP's do: at the urgent mark, or behind it
    /// if the mark came late. `skip` as for [`Conn::recv_spans`], which has nothing more then,
    /// however much there is to read.
    #[inline]
    pub fn ends_at(&self, skip: u32) -> bool {
        if skip == 0 {
            return self.at_mark();
        }
        self.urgent_in.is_some_and(|u| {
            u.at > self.consumed.total && amount(self.consumed.total, u.at) <= skip
        })
    }

    /// Whether the peer sends nothing behind an urgent byte until that is consumed, for which it has to be read up to:
    /// whoever waits for more waits for ever.
    #[inline]
    pub fn is_held_up(&self) -> bool {
        let is_ahead = |u: UrgentIn| !u.skipped && u.at >= self.consumed.total;
        self.urgent_in.is_some_and(is_ahead)
    }

    /// Whether an urgent byte waits to be read out of line (`POLLPRI`).
    pub fn urgent_ready(&self) -> bool {
        !self.void && self.urgent_in.is_some_and(|u| !u.read)
    }

    /// Reads the urgent byte out of line (`MSG_OOB`), and leaves it there if `peek`.
    ///
    /// # Errors
    ///
    /// There is no such byte; see [`UrgentError`].
    pub fn recv_urgent(&mut self, peek: bool) -> Result<u8, UrgentError> {
        if self.inline || self.void {
            return Err(UrgentError::Invalid);
        }
        let shut = self.read_shut();
        match self.urgent_in.as_mut() {
            Some(u) if u.read => Err(UrgentError::Invalid),
            Some(u) => {
                u.read = !peek;
                Ok(u.byte)
            }
            None if !self.urgent_coming || self.failed => Err(UrgentError::Invalid),
            None if shut => Err(UrgentError::End),
            None => Err(UrgentError::NotYet),
        }
    }

    /// Sets or clears `SO_OOBINLINE`: whether the urgent byte stays in the stream.
    pub fn set_oob_inline(&mut self, on: bool) {
        self.undo = None;
        self.inline = on;
        self.skip_urgent();
    }

    /// Limits how much the peer may have written that is not read (`SO_RCVBUF`), within our element.
    ///
    /// What it was told stays true: a lower limit acts as bytes are read, of which the peer is not
    /// told. A higher one acts at once.
    pub fn set_receive_limit(&mut self, bytes: u32) {
        self.recv_limit = bytes.min(self.own.capacity()).max(1);
    }

    /// How many bytes may be there at once, with [`Conn::set_receive_limit`].
    pub fn receive_limit(&self) -> u32 {
        self.recv_limit
    }

    /// Bytes received and not consumed.
    #[inline]
    pub(super) fn unread(&self) -> u32 {
        self.received.since(self.consumed)
    }

    /// Whether a reader who has seen so many bytes gets more. Behind an urgent mark there may be
    /// some that he does not get yet.
    #[inline]
    pub fn has_behind(&self, seen: u32) -> bool {
        self.readable() > seen && self.run(seen) > seen
    }

    /// Bytes that can be read at once: up to the urgent mark, or past it by who has seen all that is
    /// in front of it.
    #[inline]
    fn run(&self, seen: u32) -> u32 {
        if self.void {
            return 0;
        }
        let unread = self.unread();
        match self.urgent_in {
            Some(u) if u.at > self.consumed.total => {
                let mark = amount(self.consumed.total, u.at);
                if self.inline && seen >= mark {
                    unread
                } else {
                    mark.min(unread)
                }
            }
            _ => unread,
        }
    }

    /// Takes the urgent byte out of the stream once it is the next one, unless it is in line.
    ///
    /// The peer sends nothing more until it is consumed, so this does not wait for the
    /// application to read on; the byte and the mark are remembered.
    #[inline]
    pub(super) fn skip_urgent(&mut self) {
        if self.inline || self.reading || self.unread() == 0 {
            return;
        }
        if let Some(u) = self.urgent_in.as_mut() {
            if u.at == self.consumed.total && !u.skipped {
                u.skipped = true;
                self.consumed = self.consumed.advance(self.own, 1);
                self.tx.owe_update = true;
            }
        }
    }

    /// Remembers the urgent byte just in front of what was received. Whether it is news.
    pub(super) fn take_urgent(&mut self, byte: u8) -> bool {
        let end = self.received.total;
        if end <= self.consumed.total {
            // Read already, as ordinary data. The peer needs to know.
            self.tx.owe_update = true;
            return false;
        }
        self.urgent_in = Some(UrgentIn {
            at: end.saturating_sub(1),
            byte,
            read: false,
            skipped: false,
        });
        let announced = self.urgent_coming;
        self.urgent_coming = false;
        self.skip_urgent();
        !announced
    }

    /// What the peer is to know as consumed: all that is, but for what keeps its window within the
    /// limit.
    ///
    /// Who waits for the cursor itself is told the truth, whatever the limit: urgent data holds the
    /// peer up until it is consumed.
    #[inline]
    pub(super) fn reportable(&self) -> Position {
        let kept = self.own.capacity().saturating_sub(self.recv_limit);
        if kept == 0 || self.tx.owe_update {
            return self.consumed;
        }
        let fresh = self.consumed.since(self.tx.told);
        // A peer that overran what it was told may have got us further ahead than the element is long.
        if fresh > self.own.capacity() {
            return self.consumed;
        }
        self.tx.told.advance(self.own, fresh.saturating_sub(kept))
    }

    /// Whether so little was consumed since the peer was told that no update can be due, at a glance:
    /// where this says so, [`Self::is_update_due`] has to say that none is.
    #[inline(always)]
    pub(super) fn need_not_tell(&self) -> bool {
        !self.tx.owe_update
            && !self.peer_blocked
            && !self.is_worth(self.consumed.since(self.tx.told))
    }

    /// Whether room for so many bytes is worth an update (RFC 7609, 4.5.1).
    #[inline(always)]
    fn is_worth(&self, fresh: u32) -> bool {
        u64::from(fresh).saturating_mul(10) >= u64::from(self.recv_limit)
    }

    /// Whether the peer has to hear of what was consumed, for that alone.
    pub(super) fn is_update_due(&self, busy: bool) -> bool {
        let fresh = self.reportable().since(self.tx.told);
        if fresh == 0 || self.rx_fin >= Fin::Closed {
            return false;
        }
        if self.tx.owe_update {
            return true;
        }
        let limit = u64::from(self.recv_limit);
        // The window as the peer sees it is small, and an update worth it.
        let used = self.received.since(self.tx.told);
        let window = u64::from(self.own.capacity().saturating_sub(used));
        let small = window.saturating_mul(2) < limit;
        let worth = self.is_worth(fresh);
        let large = u64::from(fresh).saturating_mul(2) >= limit;
        // A peer that waits for room hears of crumbs only when there is nothing else to be read: it would
        // fill each of them with a transmit of its own.
        let due = if worth {
            self.peer_blocked || small
        } else {
            self.peer_blocked && self.unread() == 0
        };
        due && (large || !busy)
    }
}
