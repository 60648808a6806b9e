// SPDX-License-Identifier: GPL-2.0

//! The end of a connection: shutdown, close, abort, and the timers that bound them (RFC 7609,
//! 4.8).

use super::{
    Conn,
    ConnError,
    Event,
    Events,
    Fin,
    State, //
};

/// The timers of a connection; it needs at most one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// A small amount of data is held back by a cork.
    Cork,
    /// The application closed, and data is left to be sent. The peer's application may take its
    /// time to read, but not be idle for the whole span.
    Drain,
    /// The peer has to answer our C.
    CloseWait,
    /// The peer has to answer our A.
    AbortWait,
    /// The peer has said that its direction ended, and might have had data left, which would have come.
    Rest,
}

impl Timer {
    /// How long it runs, in milliseconds.
    pub const fn millis(self) -> u32 {
        match self {
            Timer::Cork => 200,
            Timer::Drain => 60_000,
            Timer::CloseWait => 60_000,
            Timer::AbortWait => 2_000,
            // Linux goes on as soon as it hears that there is room. A packet that gets lost is repeated once in this time.
            Timer::Rest => 300,
        }
    }
}

impl Conn {
    /// Shuts the sending direction (`SHUT_WR`): D follows once all data was sent.
    pub fn shutdown_write(&mut self) -> Events {
        self.end_with(Fin::Done)
    }

    /// Shuts both directions (`SHUT_RDWR`): C follows once all data was sent. While there is unread data, which the
    /// application may still read, the peer is told no more than that nothing follows, as by TCP.
    pub fn shutdown_both(&mut self) -> Events {
        let mut events = Events::default();
        self.end_at_last(&mut events);
        events.merge(self.end_with(Fin::Closed));
        events
    }

    /// The application closed the socket. C follows once all data was sent, in the background.
    /// If there is unread data, A follows at once.
    pub fn close(&mut self) -> Events {
        let mut events = Events::default();
        self.app_closed = true;
        self.end_at_last(&mut events);
        self.drain_mark = self.progress();
        events.merge(self.end_with(Fin::Closed));
        events.changed |= self.step(Event::AppClosed);
        events
    }

    /// The application closed the socket and wants it gone: `SO_LINGER` with 0 seconds, or a
    /// disconnect. Data is dropped in both directions.
    pub fn abort(&mut self) -> Events {
        let mut events = Events::default();
        self.end_at_last(&mut events);
        self.abort_for(ConnError::Aborted, &mut events);
        self.app_closed = true;
        self.void = true;
        events.changed |= self.step(Event::AppClosed);
        events
    }

    /// Whether data just flows: there is no [`Conn::timer`], and neither [`Conn::is_done`] nor
    /// [`Conn::reset_tcp`] is true.
    #[inline]
    pub fn is_flowing(&self) -> bool {
        self.tx.state == State::Active
            && self.tx.sent == Fin::None
            && self.put_off == Fin::None
            && !(self.app_closed || self.reset_tcp || self.cork || self.more)
    }

    /// The timer that has to run now. Compare after each call, and start the new one if it is
    /// another than before; after [`Conn::handle_timeout`] start it in any case.
    pub fn timer(&self) -> Option<Timer> {
        let owed = !self.down && self.want > self.tx.sent;
        match self.tx.state {
            State::PeerAbortWait => Some(Timer::AbortWait),
            State::PeerCloseWait1 | State::PeerCloseWait2 | State::PeerFinCloseWait
                if self.tx.sent >= Fin::Closed =>
            {
                Some(if self.tx.sent == Fin::Closed {
                    Timer::CloseWait
                } else {
                    Timer::AbortWait
                })
            }
            State::Closed | State::ProcessAbort => None,
            _ if self.app_closed => owed.then_some(Timer::Drain),
            _ if self.is_rest_awaited() => Some(Timer::Rest),
            _ if self.send_unsent() > 0 && self.is_corked() => Some(Timer::Cork),
            _ => None,
        }
    }

    /// A timer ran out. Nothing happens if it is not the one that [`Conn::timer`] names.
    pub fn handle_timeout(&mut self, timer: Timer) -> Events {
        let mut events = Events::default();
        if self.timer() != Some(timer) {
            return events;
        }
        self.undo = None;
        match timer {
            Timer::Cork => self.push_pending(),
            Timer::Rest => self.end_at_last(&mut events),
            Timer::Drain => {
                let progress = self.progress();
                if progress == self.drain_mark {
                    self.abort_for(ConnError::TimedOut, &mut events);
                }
                self.drain_mark = progress;
            }
            Timer::CloseWait => {
                self.step(Event::Expired);
                // All was said and has arrived, if C has: the peer's application may take as
                // long as it likes to read it, and must not lose it to a reset.
                if self.confirmed_fin < Fin::Closed {
                    self.fail(ConnError::TimedOut);
                    self.reset_tcp = true;
                }
                events.changed = true;
            }
            Timer::AbortWait => {
                // An A that found no slot so far stays owed: without it there might be no
                // completion for what is in flight.
                self.step(Event::Expired);
                self.reset_tcp = true;
                events.changed = true;
            }
        }
        events
    }

    /// Whether nothing is sent and nothing more comes in, because of an error or since both sides
    /// are through.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        matches!(
            self.tx.state,
            State::Closed | State::PeerAbortWait | State::ProcessAbort
        )
    }

    /// Gives the connection up because of `error`.
    pub(super) fn abort_for(&mut self, error: ConnError, events: &mut Events) {
        self.undo = None;
        if self.is_over() {
            return;
        }
        self.fail(error);
        self.step(Event::LocalAbort);
        if self.tx.sent < Fin::Closed {
            self.want = Fin::Abort;
            self.reset_tcp |= error != ConnError::Aborted;
        } else {
            self.reset_tcp = true;
        }
        events.readable = true;
        events.writable = true;
        events.changed = true;
    }

    /// Sends nothing more, and tells the application why if it is still there.
    pub(super) fn fail(&mut self, error: ConnError) {
        self.failed = true;
        self.tx.urgent = None;
        self.tx.repeat = None;
        if !self.app_closed {
            self.error = self.error.or(Some(error));
        }
    }

    /// Shuts the sending direction by at least `fin`.
    fn end_with(&mut self, fin: Fin) -> Events {
        self.undo = None;
        let mut events = Events::default();
        let fin = if fin == Fin::Closed && self.app_closed && self.unread() > 0 {
            // The peer has to learn that its data was not read (RFC 7609, 4.8.1).
            Fin::Abort
        } else {
            fin
        };
        if self.want >= fin || self.tx.sent >= Fin::Closed || self.is_over() {
            return events;
        }
        self.want = fin;
        events.writable = true;
        events.changed = true;
        events
    }

    /// Grows whenever data gets to the peer, or the peer's application takes some.
    pub(super) fn progress(&self) -> u64 {
        self.peer_consumed.total.wrapping_add(self.tx.furthest)
    }
}
