// SPDX-License-Identifier: GPL-2.0

//! The sending direction: the application's bytes, and what to post (RFC 7609, 4.5 and 4.7).

use super::{
    amounts,
    flight::{
        Record,
        MAX_IN_FLIGHT, //
    },
    Conn,
    Event,
    Events,
    Fin,
    Ticket,
    Tx,
    SPARE, //
};
use crate::{
    cdc::{
        Cdc,
        ProdFlags,
        StateFlags, //
    },
    cursor::{
        amount,
        Geometry,
        Position, //
    },
    ring::Spans, //
};

/// What the application said about the bytes it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// The last of the bytes is urgent (`MSG_OOB`).
    pub urgent: bool,
    /// More will follow soon; a small amount may wait for it (`MSG_MORE`).
    pub more: bool,
    /// The call has more bytes, and goes on as soon as there is room; until it does, or
    /// [`Conn::send_given_up`] is called, a small amount waits for them.
    pub partial: bool,
}

/// RDMA writes of one transmit at most.
pub const MAX_WRITES: usize = 3;

/// One RDMA write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Write {
    /// Offset of the bytes in the send ring.
    pub from: u32,
    /// Offset of the bytes in the peer's element, counted from the start of the element.
    pub to: u32,
    /// Number of bytes.
    pub len: u32,
}

/// What to post as one chain: writes first, then the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    writes: [Write; MAX_WRITES],
    count: u8,
    /// The message that follows the writes.
    pub cdc: Cdc,
    /// To be returned with the completion.
    pub ticket: Ticket,
    /// A completion has to be asked for. Asking in any case does no harm.
    pub signal: bool,
}

impl Transmit {
    /// The writes in order; none crosses the end of a ring.
    #[inline]
    pub fn writes(&self) -> &[Write] {
        self.writes.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Bytes of data in all writes.
    #[inline]
    pub fn data_len(&self) -> u32 {
        self.writes()
            .iter()
            .fold(0, |sum, w| sum.saturating_add(w.len))
    }
}

impl Tx {
    /// End of the urgent data that is written next.
    #[inline]
    fn next_mark(&self) -> Option<u64> {
        self.repeat.or(self.urgent)
    }
}

/// What the next transmit consists of.
struct Plan {
    data: u32,
    fin: Fin,
}

// The application's side.
impl Conn {
    /// Free bytes of the send ring.
    #[inline]
    pub fn send_space(&self) -> u32 {
        let unsent = self.send_unsent();
        if self.write_shut() || unsent >= self.unsent_limit {
            return 0;
        }
        // No crumbs, however low the limit.
        let left = self.unsent_limit.saturating_sub(unsent);
        self.ring_free().min(left.max(self.worth))
    }

    /// Whether there is room that a waiting call would be told of (`POLLOUT`): a call that blocks, and sends as much
    /// as programs do at once, goes on by itself then.
    pub fn is_writable(&self) -> bool {
        self.ring_free() >= self.room_worth() && self.send_space() > 0
    }

    /// Limits how much of the send ring may be used (`SO_SNDBUF`). What is there already stays; without
    /// room, the next place comes when less is there than that.
    pub fn set_send_limit(&mut self, bytes: u32) -> Events {
        let free = self.ring_free();
        self.send_limit = bytes.max(1);
        // What was posted without a completion may be all that a writer waits for now.
        self.sync_sent();
        Events {
            writable: self.ring_free() > free,
            ..Events::default()
        }
    }

    /// Has the application wait while so many bytes are not written to the peer (`TCP_NOTSENT_LOWAT`).
    /// What leaves makes room without an event: compare [`Conn::send_space`] if there
    /// [`is a limit`](Conn::has_unsent_limit).
    pub fn set_unsent_limit(&mut self, bytes: u32) {
        self.unsent_limit = bytes.max(1);
    }

    /// Whether there is one.
    #[inline]
    pub fn has_unsent_limit(&self) -> bool {
        self.unsent_limit != u32::MAX
    }

    /// Bytes accepted and not written to the peer yet (`SIOCOUTQNSD`).
    #[inline]
    pub fn send_unsent(&self) -> u32 {
        self.committed.since(self.tx.written)
    }

    /// Bytes accepted of which it is not known that they reached the peer (`SIOCOUTQ`).
    ///
    /// Completions are not asked for each time: call [`Conn::sync_sent`] first for an exact
    /// figure to wait for.
    pub fn send_queued(&self) -> u32 {
        let reached = self.confirmed.total.max(self.peer_consumed.total);
        amount(reached, self.committed.total)
    }

    /// Makes sure that a completion comes for everything that was written; the next
    /// [`Conn::poll_transmit`] has a message for it if none is due.
    pub fn sync_sent(&mut self) {
        if !self.flight.is_empty() && !self.flight.is_signalled() {
            self.tx.owe_message = true;
        }
    }

    /// Whether the application can send nothing more: it shut its direction, the peer closed, or
    /// the connection is over.
    #[inline]
    pub fn write_shut(&self) -> bool {
        self.want != Fin::None || self.has_peer_closed() || self.is_over()
    }

    /// Whether the application could send, if only the peer had not closed both directions.
    pub fn is_unheard(&self) -> bool {
        self.want == Fin::None && self.has_peer_closed() && !self.is_over()
    }

    /// Whether nothing is under way any more: the connection may go on on another link, although its own works, as soon as
    /// [the peer has shown](crate::llc_flow::Flow::confirm_writes) that all that was has arrived. Until then it
    /// [keeps silent](Conn::set_silent).
    ///
    /// Before, ask after everything that happens, and then, instead of [`Conn::poll_transmit`],
    /// [`Conn::poll_before_move`].
    pub fn may_move(&mut self) -> bool {
        // There may be no completion on its way that would tell of the end of what is in flight.
        self.sync_sent();
        self.flight.is_empty()
    }

    /// What is to be posted next by a connection that is to move: one thing after the other, so that
    /// a moment comes at which nothing is under way.
    pub fn poll_before_move(&mut self) -> Option<Transmit> {
        if self.flight.is_signalled() {
            return None;
        }
        self.poll_transmit()
    }

    /// The connection goes on on another link, although its own works: where nothing of ours is held back.
    pub fn handle_move(&mut self) {
        self.silent = false;
        self.held_for_us = false;
    }

    /// Whether all that was accepted, and what ends it, has been sent and confirmed: what a close
    /// that lingers waits for.
    pub fn is_drained(&self) -> bool {
        self.gone
            || (self.flight.is_empty() && (self.is_over() || self.send_unsent() == 0))
                && self.want <= self.tx.sent
    }

    /// Whether nothing is in the send ring, and nobody is about to put something there, so that another one of
    /// the same size may take its place.
    pub fn is_ring_free(&self) -> bool {
        self.writing == 0 && self.confirmed.total == self.committed.total
    }

    /// Size of the send ring in bytes.
    pub fn ring_size(&self) -> u32 {
        self.ring.size()
    }

    /// Goes on with a send ring of another size. False, with nothing done, if [the present one](Conn::is_ring_free)
    /// is not free, or if that is no size.
    #[must_use]
    pub fn set_ring_size(&mut self, bytes: u32) -> bool {
        if bytes == self.ring.size() {
            return true;
        }
        let Some(ring) = Geometry::new(bytes, 0).filter(|_| self.is_ring_free()) else {
            return false;
        };
        let place = Position {
            cursor: ring.start(),
            ..self.committed
        };
        self.ring = ring;
        self.undo = None;
        self.committed = place;
        self.confirmed = place;
        self.tx.written = place;
        (self.chunk, self.worth) = amounts(ring, self.peer, self.max_transmit);
        true
    }

    /// How much of the send ring may be used.
    fn room(&self) -> u32 {
        self.send_limit.min(self.ring.capacity())
    }

    /// Where the application's next bytes go: free pieces of the send ring, `max` bytes at most.
    ///
    /// Nothing that happens until [`Conn::send_commit`] makes them invalid.
    #[inline]
    pub fn send_spans(&mut self, max: u32) -> Spans {
        let n = self.send_space().min(max);
        self.writing = n;
        Spans::new(self.ring, self.committed.cursor, n)
    }

    /// Takes over `n` bytes copied to where [`Conn::send_spans`] said. Returns how many were
    /// accepted: all of them, or 0 if the direction was shut meanwhile.
    #[inline]
    pub fn send_commit(&mut self, n: u32, flags: SendFlags) -> u32 {
        self.undo = None;
        let n = n.min(self.writing);
        self.writing = 0;
        if n == 0 || self.write_shut() {
            return 0;
        }
        self.committed = self.committed.advance(self.ring, n);
        if flags.urgent {
            // Only the last urgent byte counts, as with TCP.
            self.tx.urgent = Some(self.committed.total);
            self.tx.announced = false;
        }
        self.more = flags.more;
        self.partial = flags.partial;
        n
    }

    /// A call that had more bytes ([`SendFlags::partial`]) ended without them.
    pub fn send_given_up(&mut self) {
        self.partial = false;
    }

    /// Sets or clears `TCP_CORK`: while set, less than a quarter of the ring waits for more.
    pub fn set_cork(&mut self, on: bool) {
        self.cork = on;
        if !on {
            self.push_pending();
        }
    }

    /// Small data waits for a completion until there are so many bytes of it: 0 for not at all.
    #[inline]
    pub fn set_gather(&mut self, bytes: u32) {
        self.gather = bytes;
    }

    /// Sets or clears `TCP_NODELAY`: while set, nothing waits for a completion.
    pub fn set_nodelay(&mut self, on: bool) {
        self.nodelay = on;
        if on {
            self.push_pending();
        }
    }

    /// Sets or clears `TCP_USER_TIMEOUT`: while set, it is known of all data whether it has arrived.
    pub fn set_timed(&mut self, on: bool) {
        self.timed = on;
        if on {
            self.sync_sent();
        }
    }

    /// Holds everything back but an abort and the beginning of a failover: while the peer sends over a link
    /// that is about to go, until it has moved the connection, and while we do, until we have. See
    /// [`Event::Hold`](crate::llc_flow::Event::Hold).
    pub fn set_held(&mut self, for_peer: bool, for_us: bool) {
        self.held_for_peer = for_peer;
        self.held_for_us = for_us;
    }

    /// Keeps everything back but an abort, or does so no more: between the moment at which a connection that is to move
    /// [may do so](Conn::may_move) and that at which it [does](Conn::handle_move).
    pub fn set_silent(&mut self, on: bool) {
        self.silent = on;
    }

    /// Whether anything is held back.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.held_for_peer || self.held_for_us || self.silent
    }

    /// Lets go what a cork holds back at the moment.
    pub fn push_pending(&mut self) {
        self.push = self.committed.total;
        self.more = false;
    }
}

// What to post.
impl Conn {
    /// What is to be posted next, if anything.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if self.is_idle() || self.down || self.flight.is_full() {
            debug_assert!(!self.is_idle() || self.plan().is_none());
            return None;
        }
        if self.tx.validate {
            return Some(self.emit_validation());
        }
        if self.is_held() && self.want != Fin::Abort {
            return None;
        }
        let plan = self.plan()?;
        Some(self.emit(&plan))
    }

    /// Takes back the transmit that [`Conn::poll_transmit`] returned last, since it could not be
    /// posted. To be called before anything else is. It will be offered again.
    pub fn unpost(&mut self, ticket: Ticket) {
        if self.undo.take() == Some(ticket) && self.flight.pop_youngest(ticket).is_some() {
            self.tx = self.before;
        }
    }

    /// Whether the peer knows all that it has to, and [`Conn::poll_transmit`] need not be asked: so it is
    /// most of the time.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.tx.written.total == self.committed.total
            && (self.tx.told.total == self.consumed.total
                || self.need_not_tell()
                || self.tx.told.total == self.reportable().total)
            && self.tx.sent == self.want
            && !self.tx.owe_message
            && !self.tx.validate
            && self.tx.next_mark().is_none()
    }

    /// Decides what the next transmit consists of.
    fn plan(&self) -> Option<Plan> {
        if self.tx.sent >= Fin::Closed || (self.is_over() && self.want <= self.tx.sent) {
            // Neither a write nor a message may follow C or A.
            return None;
        }
        if self.want == Fin::Abort {
            return Some(Plan {
                data: self.repeated(self.committed.total),
                fin: Fin::Abort,
            });
        }
        let busy = self.flight.is_signalled();
        let ready = self.ready_data();
        let data = if self.is_data_due(ready, busy) {
            ready
        } else {
            0
        };
        let mut fin = self.tx.sent;
        if self.want > self.tx.sent && self.send_unsent() == data {
            fin = self.want;
            if fin == Fin::Closed && self.unread() > 0 {
                // Closing on unread data tells the peer so, after all of ours. Who only shuts may read it still.
                fin = match self.app_closed {
                    false => Fin::Done,
                    true if data > 0 => self.tx.sent,
                    true => Fin::Abort,
                };
            }
        }
        let due = data > 0
            || fin != self.tx.sent
            || self.tx.owe_message
            || self.is_announcement_due()
            || self.is_update_due(busy);
        due.then_some(Plan { data, fin })
    }

    /// Bytes that may be written now: there, inside the peer's window, not behind urgent data. What was written over a
    /// link that failed goes out whole, see [`Self::is_data_due`]; there was room for it.
    fn ready_data(&self) -> u32 {
        if self.tx.stall.is_some() || self.has_peer_closed() {
            return 0;
        }
        let end = match self.tx.next_mark() {
            Some(mark) => mark.min(self.committed.total),
            None => self.committed.total,
        };
        amount(self.tx.written.total, end)
            .min(self.window())
            .min(self.chunk)
            .max(self.repeated(end))
    }

    /// Bytes before `end` that were written over a link that failed. Each message names a place that is not behind one that
    /// was named before, see [`Self::is_data_due`], that of the end included: they come with it.
    fn repeated(&self, end: u64) -> u32 {
        if self.has_peer_closed() {
            return 0;
        }
        amount(self.tx.written.total, self.tx.furthest.min(end))
    }

    /// Whether `ready` bytes are worth a transmit now.
    fn is_data_due(&self, ready: u32, busy: bool) -> bool {
        if ready == 0 {
            return false;
        }
        if self.tx.written.total < self.tx.furthest {
            // Until this is written again, a message would name a place behind one that was named before. Linux
            // takes that for data where the place is in the first round of the element, or in its last one.
            return true;
        }
        if self.tx.next_mark().is_some() || self.want > self.tx.sent || ready >= self.worth {
            return true;
        }
        // Who corks waits for more bytes, not for more room: the peer may have no more than that.
        if (self.is_corked() && ready < self.window()) || self.is_filling() {
            return false;
        }
        !busy || self.nodelay || ready >= self.gather
    }

    /// Whether a small amount waits for the application to say more.
    pub(super) fn is_corked(&self) -> bool {
        (self.cork || self.more)
            && self.tx.written.total >= self.push
            && self.want == Fin::None
            && self.ring_free() > 0
            && self.send_unsent() < self.unsent_limit
    }

    /// Whether a call that waited for room is about to go on: it was told of so much.
    fn is_filling(&self) -> bool {
        self.partial && self.send_space() >= self.room_worth()
    }

    /// How much room in the send ring a waiting call is told of.
    pub(super) fn room_worth(&self) -> u32 {
        (self.room() / 4).max(1)
    }

    /// Whether the peer has to hear now of urgent data that cannot be written yet.
    fn is_announcement_due(&self) -> bool {
        self.tx.next_mark().is_some() && self.tx.stall.is_none() && !self.tx.announced
    }

    /// Free bytes in the peer's element that may be used, as far as it told.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.window_behind(self.tx.written.total)
    }

    /// The same, were all up to this place of our stream written.
    #[inline]
    pub(super) fn window_behind(&self, end: u64) -> u32 {
        let used = amount(self.peer_consumed.total, end);
        (self.peer.capacity())
            .saturating_sub(used)
            .saturating_sub(self.spare())
    }

    /// So many bytes of it are not to be used now: see [`Conn::set_spare`].
    #[inline]
    fn spare(&self) -> u32 {
        if self.has_spare {
            // All of them in each element that SMC knows.
            SPARE
                .min(self.peer.capacity() / 64)
                .saturating_sub(self.spare_used)
        } else {
            0
        }
    }

    /// Bytes of the send ring that hold nothing and may be used.
    #[inline]
    pub(super) fn ring_free(&self) -> u32 {
        let used = self.committed.since(self.confirmed);
        self.room().saturating_sub(used)
    }

    /// Makes a transmit of the plan.
    fn emit(&mut self, plan: &Plan) -> Transmit {
        let ticket = self.next_ticket();
        let Tx {
            sent,
            interactive,
            owe_message,
            ..
        } = self.tx;
        let busy = self.flight.is_signalled();
        let (writes, count) = self.advance(plan.data);

        let urgent = self.reach_mark();
        let pending = self.tx.next_mark().is_some() && self.tx.stall.is_none();
        self.tx.announced |= pending;
        self.tx.prod_flags = ProdFlags {
            blocked: self.window() == 0 && plan.fin == Fin::None,
            urgent_pending: pending || urgent.is_some(),
            urgent_present: urgent.is_some(),
            update_requested: self.doubt.is_some(),
            ..ProdFlags::default()
        };

        if plan.fin != sent {
            self.step(if plan.fin == Fin::Done {
                Event::SentDone
            } else {
                Event::SentFin
            });
            self.tx.sent = plan.fin;
        }
        self.tx.state_flags = StateFlags {
            done: matches!(plan.fin, Fin::Done | Fin::Closed) || sent == Fin::Done,
            closed: plan.fin == Fin::Closed,
            aborted: plan.fin == Fin::Abort,
        };

        // With the end, nothing is kept back: the peer is to see whether all that it sent was read.
        let told = if plan.fin >= Fin::Closed {
            self.consumed
        } else {
            self.reportable()
        };
        if self.consumed.total != self.tx.told.total {
            self.tx.owe_update = false;
        }
        self.tx.told = told;
        self.tx.owe_message = false;
        if plan.data > 0 {
            self.tx.interactive = false;
        }

        // A lone small piece in answer to the peer needs no completion of its own, as long as
        // enough of the ring and of the limit is left to get to one that has.
        let quiet = plan.data > 0
            && interactive
            && !busy
            && !self.timed
            && urgent.is_none()
            && plan.fin == sent
            && !owe_message
            && self.send_unsent() == 0
            && self.ring_free() > self.ring.capacity() / 2
            && self.flight.len().saturating_add(1) < MAX_IN_FLIGHT;
        let cdc = self.message(self.tx.seq);
        self.record(ticket, cdc.seq, urgent, !quiet);
        Transmit {
            writes,
            count,
            cdc,
            ticket,
            signal: !quiet,
        }
    }

    /// Moves on by the next message and `n` bytes, and says how they are to be written.
    fn advance(&mut self, n: u32) -> ([Write; MAX_WRITES], u8) {
        self.tx.seq = self.tx.seq.wrapping_add(1);
        if n == 0 {
            return Default::default();
        }
        let parts = self.map_writes(n);
        self.tx.written = self.tx.written.advance(self.ring, n);
        self.tx.produced = self.peer.advance(self.tx.produced, n);
        self.tx.furthest = self.tx.furthest.max(self.tx.written.total);
        parts
    }

    /// The end of urgent data, if all of it has been written now.
    fn reach_mark(&mut self) -> Option<u64> {
        if self.tx.next_mark() != Some(self.tx.written.total) {
            return None;
        }
        let urgent = self.tx.repeat.take().or_else(|| self.tx.urgent.take());
        self.tx.stall = urgent;
        self.tx.announced = false;
        urgent
    }

    /// The message that opens a new link.
    fn emit_validation(&mut self) -> Transmit {
        let ticket = self.next_ticket();
        self.tx.validate = false;
        let cdc = Cdc {
            prod: Default::default(),
            cons: Default::default(),
            prod_flags: ProdFlags {
                failover: true,
                ..ProdFlags::default()
            },
            state_flags: StateFlags::default(),
            ..self.message(self.confirmed_seq)
        };
        self.record(ticket, cdc.seq, None, true);
        Transmit {
            writes: Default::default(),
            count: 0,
            cdc,
            ticket,
            signal: true,
        }
    }

    fn message(&self, seq: u16) -> Cdc {
        Cdc {
            seq,
            token: self.peer_token,
            prod: self.tx.produced.raw(),
            cons: self.tx.told.cursor.raw(),
            prod_flags: self.tx.prod_flags,
            state_flags: self.tx.state_flags,
        }
    }

    /// The ticket of a transmit that begins. It can be taken back to how things are now.
    fn next_ticket(&mut self) -> Ticket {
        self.ticket = Ticket(self.ticket.0.wrapping_add(1));
        self.undo = Some(self.ticket);
        self.before = self.tx;
        self.ticket
    }

    /// Notes a transmit until it is confirmed.
    fn record(&mut self, ticket: Ticket, seq: u16, urgent: Option<u64>, signal: bool) {
        self.flight.push(Record {
            ticket,
            end: self.tx.written,
            seq,
            fin: self.tx.sent,
            urgent,
            signal,
        });
    }

    /// Cuts the next `n` bytes at the ends of both rings.
    fn map_writes(&self, n: u32) -> ([Write; MAX_WRITES], u8) {
        let mut writes = [Write::default(); MAX_WRITES];
        let ends =
            (self.ring.to_end(self.tx.written.cursor)).min(self.peer.to_end(self.tx.produced));
        if n <= ends {
            // Most often in one piece.
            let [first, ..] = &mut writes;
            *first = Write {
                from: self.tx.written.cursor.offset(),
                to: self.tx.produced.offset(),
                len: n,
            };
            return (writes, 1);
        }
        let mut count = 0u8;
        let mut left = n;
        let mut from = self.tx.written;
        let mut to = Position {
            total: from.total,
            cursor: self.tx.produced,
        };
        for write in writes.iter_mut() {
            let len = left
                .min(self.ring.to_end(from.cursor))
                .min(self.peer.to_end(to.cursor));
            if len == 0 {
                break;
            }
            *write = Write {
                from: from.cursor.offset(),
                to: to.cursor.offset(),
                len,
            };
            count = count.saturating_add(1);
            left = left.saturating_sub(len);
            from = from.advance(self.ring, len);
            to = to.advance(self.peer, len);
        }
        (writes, count)
    }
}
