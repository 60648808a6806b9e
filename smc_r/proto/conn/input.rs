// SPDX-License-Identifier: GPL-2.0

//! What happens to a connection from outside: messages, completions, failures (RFC 7609, 4.4,
//! 4.6 and 4.8).

use super::{
    overtaken::{
        Awaited, //
    },
    Conn,
    ConnError,
    Event,
    Events,
    Fin,
    State,
    Ticket,
    Violation,
    SPARE, //
};
use crate::{
    cdc::{
        Cdc,
        StateFlags, //
    },
    cursor::{
        amount,
        Position,
        Step, //
    },
    group::LinkIx, //
};

impl Conn {
    /// A CDC message with our token came in over `link`. All messages that came over a link have been
    /// handled before its place is given to another one.
    ///
    /// `byte_at` reads the byte at an offset of our element, for urgent bytes.
    #[inline]
    pub fn handle_cdc(
        &mut self,
        link: LinkIx,
        cdc: &Cdc,
        mut byte_at: impl FnMut(u32) -> u8,
    ) -> Events {
        let is_in_order = self.hear(link, cdc.seq);
        if self.put_off != Fin::None && self.has_gap(cdc) {
            let mut events = Events::default();
            self.violate(Violation::DataLost, &mut events);
            return events;
        }
        let mut events = self.take_cdc(link, cdc, &mut byte_at);
        events.late = events.dropped && is_in_order;
        // The last one that was missing may have come.
        if let Some(held) = self.release() {
            events.merge(self.take_cdc(link, &held, &mut byte_at));
        }
        events
    }

    /// Whether messages before this one are missing, though no validation says that they come. Linux goes over to another
    /// link without one once it has said that its direction ended, and what got lost with the first is not repeated.
    fn has_gap(&self, cdc: &Cdc) -> bool {
        let ahead = cdc.seq.wrapping_sub(self.rx_seq);
        let is_validated = cdc.prod_flags.failover || self.is_awaiting() || self.is_holding();
        !is_validated && !self.is_over() && (2..0x8000).contains(&ahead)
    }

    /// Remembers the number of a message of a link. False if it is older than one that came over this link before.
    #[inline]
    fn hear(&mut self, link: LinkIx, seq: u16) -> bool {
        let Some(last) = self.heard.get_mut(link.get()) else {
            return true;
        };
        // Half of the space ahead is behind, for whoever takes the message as well.
        if last.is_some_and(|last| seq.wrapping_sub(last) >= 0x8000) {
            return false;
        }
        *last = Some(seq);
        true
    }

    /// Tells whether the link group has more than one link, whose messages may come in another order
    /// than they were sent in. Then a failover validation ([`Violation::DataLost`]) is not judged
    /// before [`Conn::handle_drained`].
    pub fn set_several_links(&mut self, on: bool) {
        self.several_links = on;
    }

    /// Tells whether the group has other links to go on over, so that a few bytes of the peer's element stay free.
    ///
    /// Linux does not say again over another link how much it has consumed. Where it has consumed all there is, and the
    /// link failed on which it said so, we would wait for room, and it for data, for ever. After a failure it is
    /// therefore asked (R), which it answers as soon as it consumes something: one of these bytes.
    #[inline]
    pub fn set_spare(&mut self, on: bool) {
        self.has_spare = on;
    }

    /// All messages which came over links that are gone have been handed over: what is still missing
    /// is lost. Where that is a matter of time, it begins anew with each [`Events::awaits`].
    pub fn handle_drained(&mut self) -> Events {
        let mut events = Events::default();
        if !self.awaited.is_empty() {
            self.awaited = Awaited::NONE;
            self.held = None;
            self.violate(Violation::DataLost, &mut events);
        }
        events
    }

    /// Whether messages are awaited which the peer sent over another link, before those that came
    /// in last.
    #[inline]
    pub fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Whether messages are held until those come that were sent before them.
    pub fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// As [`Conn::handle_cdc`], compiled once and here.
    fn take_cdc(&mut self, link: LinkIx, cdc: &Cdc, byte_at: &mut dyn FnMut(u32) -> u8) -> Events {
        self.undo = None;
        let mut events = Events::default();
        if matches!(self.tx.state, State::Closed | State::ProcessAbort) {
            events.dropped = true;
            return events;
        }
        let ahead = cdc.seq.wrapping_sub(self.rx_seq);
        if cdc.prod_flags.failover {
            self.held_for_peer = false;
            self.doubt_reports();
            // Only says what was sent last; anything missing here is lost, or late.
            if ahead == 0 || ahead >= 0x8000 {
                return events;
            }
            if self.several_links {
                self.await_message(link, cdc.seq, &mut events);
            } else {
                self.violate(Violation::DataLost, &mut events);
            }
            return events;
        }
        if ahead >= 0x8000 {
            events.dropped = true;
            return events;
        }
        let latest;
        let cdc = if self.awaited.is_empty() {
            cdc
        } else if let Some(cdc) = self.put_in_order(link, *cdc) {
            latest = cdc;
            &latest
        } else {
            events.held = true;
            return events;
        };
        self.rx_seq = cdc.seq;
        self.rx_prod_flags = cdc.prod_flags;
        self.rx_state_flags = cdc.state_flags;
        if cdc.state_flags.aborted {
            if !self.is_over() {
                // What it announces was written before it. There is nobody left to blame.
                let _ = self.take_cursors(cdc, &mut events, byte_at);
            }
            self.peer_aborted(&mut events);
            return events;
        }
        if self.tx.state == State::PeerAbortWait {
            events.dropped = true;
            return events;
        }
        if let Err(violation) = self.take_cursors(cdc, &mut events, byte_at) {
            self.violate(violation, &mut events);
            return events;
        }
        self.peer_blocked = cdc.prod_flags.blocked;
        if cdc.prod_flags.update_requested {
            self.tx.owe_update = true;
        }
        self.take_end(cdc.state_flags, &mut events);
        events
    }

    /// What the peer says of the end of its direction, or of both.
    ///
    /// Linux waits for 2 s for room, or as long as SO_LINGER says, but not at the end of a process; then it says so
    /// before it has sent all, and goes on as soon as there is room. It says B as well then, but also where the last bytes have
    /// filled our element exactly. For readers, such an end is put off until the rest has come, or does not come
    /// ([`Timer::Rest`]). Writers have to do with a peer that reads nothing more after C.
    fn take_end(&mut self, flags: StateFlags, events: &mut Events) {
        let fin = match flags {
            StateFlags { closed: true, .. } => Fin::Closed,
            StateFlags { done: true, .. } => Fin::Done,
            _ => Fin::None,
        };
        if fin <= self.rx_fin {
            return;
        }
        let is_unheard = fin == Fin::Closed && self.send_unsent() > 0;
        let may_have_rest = self.peer_blocked && !self.whole && !is_unheard;
        let fin = fin.max(self.put_off);
        if !may_have_rest || self.want >= Fin::Closed {
            return self.end_of_peer(fin, events);
        }
        if fin == Fin::Closed && self.put_off != fin {
            events.writable = true;
            events.changed = true;
        }
        self.put_off = fin;
    }

    /// The peer's direction, or both, end here.
    fn end_of_peer(&mut self, fin: Fin, events: &mut Events) {
        self.put_off = Fin::None;
        if fin == Fin::Closed {
            self.peer_closes(events);
        } else {
            events.readable = true;
            events.changed = true;
            self.step(Event::PeerDone);
            self.rx_fin = Fin::Done;
            self.whole = !self.peer_blocked;
        }
    }

    /// An end that was put off is one now.
    pub(super) fn end_at_last(&mut self, events: &mut Events) {
        if self.put_off != Fin::None && !self.is_over() {
            self.end_of_peer(self.put_off, events);
        }
    }

    /// Whether an end that was put off is one if nothing comes for a while: all has been read, and the peer knows.
    pub(super) fn is_rest_awaited(&self) -> bool {
        let is_told = self.reportable().since(self.tx.told) == 0;
        self.put_off != Fin::None
            && self.unread() == 0
            && is_told
            && !(self.down || self.flight.is_signalled())
    }

    /// Whether the peer has closed both directions, or has said so and may have data left.
    #[inline]
    pub(super) fn has_peer_closed(&self) -> bool {
        self.rx_fin.max(self.put_off) >= Fin::Closed
    }

    /// A posted transmit was completed; `ok` says how. A completion speaks for all before it.
    ///
    /// After a failure nothing is posted until [`Conn::handle_failover`] or
    /// [`Conn::handle_link_failed`].
    pub fn handle_sent(&mut self, ticket: Ticket, ok: bool) -> Events {
        self.undo = None;
        let mut events = Events::default();
        if !ok {
            self.down |= self.flight.contains(ticket);
            return events;
        }
        let free = self.ring_free();
        while let Some(record) = self.flight.pop_up_to(ticket) {
            if record.end.total > self.confirmed.total {
                self.confirmed = record.end;
            }
            self.confirmed_seq = record.seq;
            self.confirmed_fin = record.fin;
        }
        if self.flight.is_empty() {
            self.confirmed = self.tx.written;
        }
        let now = self.ring_free();
        events.writable = now > free && now >= self.room_worth();
        events.changed = self.want != Fin::None && self.is_drained();
        events
    }

    /// The link is gone, and the connection moves to another one. All completions of the old
    /// link have been handled.
    ///
    /// What was not confirmed is going to be sent again, after a validation of what was.
    pub fn handle_failover(&mut self) -> Events {
        self.undo = None;
        self.held_for_us = false;
        self.silent = false;
        let free = self.ring_free();
        self.down = false;
        let lost = self.flight.iter().filter_map(|r| r.urgent).last();
        self.flight.clear();
        if self.peer_consumed.total > self.confirmed.total {
            let n = amount(self.confirmed.total, self.peer_consumed.total);
            self.confirmed = self.confirmed.advance(self.ring, n);
        }
        self.tx.written = self.confirmed;
        if self.has_peer_closed() {
            // The peer reads nothing more: what was under way is not repeated.
            self.committed = self.tx.written;
        }
        let n = amount(self.peer_consumed.total, self.confirmed.total);
        self.tx.produced = self.peer.advance(self.peer_consumed.cursor, n);
        if let Some(mark) = lost.filter(|&mark| mark > self.confirmed.total) {
            self.tx.repeat = Some(mark);
            self.tx.stall = None;
        }
        self.doubt_reports();
        self.tx.announced = false;
        self.tx.sent = self.confirmed_fin;
        if self.tx.sent < Fin::Closed {
            let over = self.tx.state == State::Closed && self.rx_fin != Fin::Closed;
            if self.failed || over {
                // Given up meanwhile, or the peer has: neither the data nor the C that got lost is
                // repeated. An A that stood for a C remains one, though all may be read by now.
                self.want = Fin::Abort;
            }
            self.tx.validate = true;
            self.tx.owe_message = true;
        }
        Events {
            writable: self.ring_free() > free,
            ..Events::default()
        }
    }

    /// A link has failed, and with it perhaps what the peer said last of what it has consumed.
    fn doubt_reports(&mut self) {
        // There was another link, then.
        self.has_spare = true;
        let end = self.tx.furthest;
        if self.peer_consumed.total >= end {
            return;
        }
        self.doubt = Some(end);
        // What was written before, and may have arrived, gives the peer nothing to consume.
        if self.window_behind(end) == 0 {
            self.spare_used = self.spare_used.saturating_add(1).min(SPARE);
        }
    }

    /// The last link is gone.
    pub fn handle_link_failed(&mut self) -> Events {
        // A peer that sent C neither reads nor sends any more.
        let complete = self.rx_fin >= Fin::Closed
            || (self.rx_fin != Fin::None
                && self.want != Fin::None
                && self.tx.sent == self.want
                && self.flight.is_empty());
        self.end_of_links(complete)
    }

    /// Nothing comes or goes any more, and whether that is all there was.
    fn end_of_links(&mut self, complete: bool) -> Events {
        let mut events = Events::default();
        self.undo = None;
        self.flight.clear();
        self.down = true;
        self.gone = true;
        if self.tx.state == State::Closed {
            return events;
        }
        if !complete && !matches!(self.tx.state, State::ProcessAbort | State::PeerAbortWait) {
            self.fail(ConnError::LinkFailed);
        }
        self.tx.state = State::Closed;
        self.reset_tcp |= self.failed;
        events.changed = true;
        events
    }

    /// The peer has taken back the element that we write to, or given it to another connection: nothing can be said
    /// to it any more. It may do so with one that is over, which is no news, and with one of which it has our C or A: its
    /// own may come after this, where that went over another link.
    pub fn handle_element_gone(&mut self) -> Events {
        let had_failed = self.failed;
        let mut events = match self.tx.sent >= Fin::Closed {
            true => self.end_of_links(true),
            false => self.handle_link_failed(),
        };
        if self.failed && !had_failed {
            events.violation = Some(Violation::ElementGone);
        }
        events
    }

    /// The TCP connection was reset.
    ///
    /// After the peer's C that is no news: nothing is unsent then, what the peer sent has
    /// arrived, and its TCP connection just went the same way.
    pub fn handle_tcp_reset(&mut self) -> Events {
        let mut events = Events::default();
        if !self.has_peer_closed() {
            self.abort_for(ConnError::TcpReset, &mut events);
        }
        events
    }

    /// Bytes came over TCP. More may come before our reset is out: that is the same violation.
    pub fn handle_tcp_data(&mut self) -> Events {
        let mut events = Events::default();
        if !self.has_peer_closed() && !self.is_over() {
            self.violate(Violation::TcpData, &mut events);
        }
        events
    }

    /// Checks both cursors, then moves ours.
    fn take_cursors(
        &mut self,
        cdc: &Cdc,
        events: &mut Events,
        byte_at: &mut dyn FnMut(u32) -> u8,
    ) -> Result<(), Violation> {
        let producer = self
            .own
            .check(self.received.cursor, cdc.prod)
            .map_err(Violation::Producer)?;
        let consumer = self
            .peer
            .check(self.peer_consumed.cursor, cdc.cons)
            .map_err(Violation::Consumer)?;
        let produced = match producer {
            Step::Forward(n) => self.received.advance(self.own, n),
            Step::Backward => self.received,
        };
        if produced.since(self.consumed) > self.own.capacity() {
            return Err(Violation::ProducerOverrun);
        }
        if let Step::Forward(n) = consumer {
            let consumed = self.peer_consumed.advance(self.peer, n);
            if consumed.total > self.tx.furthest {
                return Err(Violation::ConsumerAhead);
            }
            events.writable |= self.peer_took(consumed);
        }

        self.tx.interactive = true;
        if self.rx_fin >= Fin::Closed {
            // The peer broke its word; what it says now is not part of the stream.
            return Ok(());
        }
        let fresh = produced != self.received;
        self.received = produced;
        events.readable |= fresh;
        if cdc.prod_flags.urgent_present {
            let end = self.received.total;
            if producer != Step::Backward && end > self.urgent_end {
                self.urgent_end = end;
                let before = match self.received.cursor.offset() {
                    o if o == self.own.base() => self.own.size(),
                    o => o,
                };
                events.urgent |= self.take_urgent(byte_at(before.saturating_sub(1)));
                events.readable = true;
            }
        } else if cdc.prod_flags.urgent_pending && !self.urgent_coming {
            self.urgent_coming = true;
            events.urgent = true;
        }
        // A byte that became the next one with this message may have to be skipped.
        self.skip_urgent();
        Ok(())
    }

    /// The peer consumed up to here. Whether there is more room in the send ring now.
    #[inline]
    fn peer_took(&mut self, consumed: Position) -> bool {
        self.peer_consumed = consumed;
        if self.doubt.is_some_and(|end| consumed.total >= end) {
            self.doubt = None;
            self.spare_used = 0;
        }
        if self.tx.stall.is_some_and(|mark| consumed.total >= mark) {
            self.tx.stall = None;
        }
        if consumed.total > self.tx.written.total {
            // After a failover: this arrived over the old link, though no completion said so.
            let free = self.ring_free();
            let n = amount(self.tx.written.total, consumed.total);
            self.tx.written = self.tx.written.advance(self.ring, n);
            if self.committed.total < self.tx.written.total {
                // The peer has closed, and none of it was to be repeated.
                self.committed = self.tx.written;
            }
            self.tx.produced = consumed.cursor;
            if self.flight.is_empty() {
                self.confirmed = self.tx.written;
            }
            if self.tx.repeat.is_some_and(|mark| consumed.total >= mark) {
                self.tx.repeat = None;
            }
            return self.ring_free() > free;
        }
        false
    }

    fn peer_closes(&mut self, events: &mut Events) {
        if self.rx_fin >= Fin::Closed {
            return;
        }
        self.step(Event::PeerClosed);
        self.rx_fin = Fin::Closed;
        self.whole |= !self.peer_blocked;
        events.readable = true;
        events.changed = true;
        if self.send_unsent() > 0 {
            // It will never be read: our application has to know.
            self.abort_for(ConnError::Reset, events);
        }
    }

    fn peer_aborted(&mut self, events: &mut Events) {
        self.step(Event::PeerAbort);
        self.rx_fin = Fin::Abort;
        if self.tx.sent != Fin::Abort {
            self.fail(ConnError::Reset);
        }
        if self.tx.sent < Fin::Closed {
            // The peer waits for this.
            self.want = Fin::Abort;
        }
        if self.app_closed {
            self.step(Event::AppClosed);
        }
        events.readable = true;
        events.writable = true;
        events.changed = true;
    }

    pub(super) fn violate(&mut self, violation: Violation, events: &mut Events) {
        if !self.is_over() {
            events.violation = Some(violation);
        }
        self.abort_for(ConnError::ProtocolViolation(violation), events);
    }
}
