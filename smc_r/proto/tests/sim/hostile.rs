// SPDX-License-Identifier: GPL-2.0

//! A connection whose peer sends what it likes.
//!
//! Nothing may go wrong on our side: no panic, no access outside of the buffers, no write beyond
//! what the peer granted, and an end of the connection within the time of its timers.

use smc_proto::{
    cdc::{
        Cdc,
        ProdFlags,
        RawCursor,
        StateFlags, //
    },
    conn::{
        Conn,
        Params,
        SendFlags,
        State,
        Ticket,
        Violation, //
    },
    cursor::Cursor,
    group::{
        LinkIx,
        MAX_LINKS, //
    },
    wire::AlertToken, //
};

use super::rng::Rng;

struct Attack {
    conn: Conn,
    params: Params,
    rng: Rng,
    tickets: Vec<Ticket>,
    violation: Option<Violation>,
    seq: u16,
    writing: u32,
    reading: bool,
    closed: bool,
    /// The connection ended before its time, having this producer cursor.
    ended: Option<Cursor>,
    /// What we wrote, and what the peer granted: its capacity beyond what it said it consumed.
    written: u64,
    consumed: u64,
    last_cons: RawCursor,
}

impl Attack {
    fn new(mut rng: Rng) -> Attack {
        let sizes = [5, 6, 16, 64, 4096, 1 << 29];
        let send_ring = rng.pick(&sizes);
        // Large rings in small steps would take for ever.
        let transmits: &[u32] = if send_ring > 4096 { &[0] } else { &[0, 1, 50] };
        let params = Params {
            send_ring,
            element: rng.pick(&sizes),
            peer_element: rng.pick(&sizes),
            base: rng.pick(&[0, 4]),
            peer_token: AlertToken(1),
            max_transmit: rng.pick(transmits),
        };
        let mut conn = Conn::new(&params).unwrap();
        conn.set_oob_inline(rng.percent(50));
        Attack {
            last_cons: RawCursor {
                wrap: 0,
                count: params.base,
            },
            conn,
            params,
            rng,
            tickets: Vec::new(),
            violation: None,
            seq: 0,
            writing: 0,
            reading: false,
            closed: false,
            ended: None,
            written: 0,
            consumed: 0,
        }
    }

    fn capacity(&self, size: u32) -> u64 {
        u64::from(size - self.params.base)
    }

    /// A cursor near the one known, or anywhere.
    fn cursor(&mut self, near: RawCursor, size: u32) -> RawCursor {
        let count = match self.rng.below(8) {
            0 => self.rng.next() as u32,
            1 => self.rng.below(8) as u32,
            2 => size.wrapping_sub(self.rng.below(4) as u32),
            3..=4 => near.count,
            _ => near.count.wrapping_add(self.rng.size(0, size)) % size,
        };
        let wrap = match self.rng.below(6) {
            0 => near.wrap.wrapping_add(self.rng.below(4) as u16),
            1 => near.wrap.wrapping_sub(1),
            _ => near.wrap.wrapping_add(u16::from(count < near.count)),
        };
        RawCursor { wrap, count }
    }

    fn message(&mut self) {
        let d = self.conn.diag();
        let prod = self.cursor(d.rx_producer.raw(), self.params.element);
        let cons = match self.rng.below(4) {
            0 => d.tx_producer.raw(),
            1 => d.rx_consumer.raw(),
            _ => self.cursor(d.rx_consumer.raw(), self.params.peer_element),
        };
        let mut bit = |p| self.rng.percent(p);
        let prod_flags = ProdFlags {
            blocked: bit(30),
            urgent_pending: bit(20),
            urgent_present: bit(20),
            update_requested: bit(20),
            failover: bit(2),
        };
        let state_flags = StateFlags {
            done: bit(3),
            closed: bit(2),
            aborted: bit(1),
        };
        self.seq = match self.rng.below(10) {
            0 => self.rng.next() as u16,
            1 => self.seq,
            _ => self.seq.wrapping_add(1),
        };
        let cdc = Cdc {
            seq: self.seq,
            token: AlertToken(9),
            prod,
            cons,
            prod_flags,
            state_flags,
        };
        let (low, high) = (self.params.base, self.params.element);
        let link = LinkIx::new(self.rng.below(MAX_LINKS as u64) as usize).unwrap();
        let events = self.conn.handle_cdc(link, &cdc, |offset| {
            assert!(
                offset >= low && offset < high,
                "byte outside of the element"
            );
            7
        });
        if let Some(v) = events.violation {
            self.violation = Some(v);
        }
        // What the connection believes, it must have been told.
        let now = self.conn.diag().rx_consumer.raw();
        if now != self.last_cons {
            assert_eq!(now, cons);
            let capacity = self.capacity(self.params.peer_element);
            let place =
                |c: RawCursor| u64::from(c.wrap) * capacity + u64::from(c.count - self.params.base);
            let step = place(now).wrapping_sub(place(self.last_cons)) % (65536 * capacity);
            self.consumed += step;
            self.last_cons = now;
            assert!(
                self.consumed <= self.written,
                "consumed what was not written"
            );
        }
    }

    fn posts(&mut self) {
        while let Some(t) = self.conn.poll_transmit() {
            for w in t.writes() {
                assert!(w.len > 0 && w.to >= self.params.base);
                assert!(w.to + w.len <= self.params.peer_element);
                assert!(w.from + w.len <= self.params.send_ring);
            }
            if self.rng.percent(10) {
                self.conn.unpost(t.ticket);
                break;
            }
            assert!(
                self.ended.is_none() || t.data_len() == 0,
                "a write after the end"
            );
            self.written += u64::from(t.data_len());
            let capacity = self.capacity(self.params.peer_element);
            assert!(self.written - self.consumed <= capacity, "window overrun");
            self.tickets.push(t.ticket);
            assert!(self.tickets.len() <= smc_proto::conn::MAX_IN_FLIGHT);
        }
    }

    fn application(&mut self) {
        let max = self.rng.size(1, 1 << 20);
        match self.rng.below(9) {
            0..=1 if self.writing == 0 && !self.closed => {
                let spans = self.conn.send_spans(max);
                assert!(spans
                    .iter()
                    .all(|s| s.offset + s.len <= self.params.send_ring));
                self.writing = spans.len();
            }
            2 => {
                let flags = SendFlags {
                    urgent: self.rng.percent(10),
                    more: self.rng.percent(10),
                    partial: self.rng.percent(30),
                };
                let n = self.conn.send_commit(self.writing, flags);
                assert!(n == 0 || n == self.writing);
                self.writing = 0;
            }
            3..=4 if !self.reading && !self.closed => {
                let skip = self.rng.below(4) as u32;
                let spans = self.conn.recv_spans(skip, max);
                let (low, high) = (self.params.base, self.params.element);
                assert!(spans
                    .iter()
                    .all(|s| s.offset >= low && s.offset + s.len <= high));
                self.reading = !spans.is_empty();
            }
            5 => {
                self.conn.recv_commit(max);
                self.reading = false;
            }
            6 => {
                let _ = self.conn.recv_urgent(self.rng.percent(50));
            }
            7 => {
                let on = self.rng.percent(50);
                match self.rng.below(4) {
                    0 => self.conn.set_oob_inline(on),
                    1 => self.conn.set_cork(on),
                    2 => self.conn.set_nodelay(on),
                    _ => self.conn.sync_sent(),
                }
            }
            8 if self.rng.percent(3) => {
                let _ = match self.rng.below(5) {
                    0 => self.conn.shutdown_write(),
                    1 => self.conn.shutdown_both(),
                    2 => self.conn.handle_tcp_reset(),
                    _ if self.writing == 0 && !self.reading => {
                        self.closed = true;
                        self.conn.close()
                    }
                    _ => self.conn.shutdown_write(),
                };
            }
            _ => {}
        }
    }

    fn complete(&mut self) {
        if !self.tickets.is_empty() {
            let n = self.rng.below(self.tickets.len() as u64) as usize;
            let ticket = self.tickets.drain(..=n).next_back().unwrap();
            let _ = self.conn.handle_sent(ticket, true);
        }
    }

    fn check(&mut self) {
        let c = &self.conn;
        let producer = c.diag().rx_producer;
        if self.violation.is_some() || c.error().is_some() {
            assert_eq!(
                *self.ended.get_or_insert(producer),
                producer,
                "data after the end"
            );
        }
        assert!(u64::from(c.readable()) <= self.capacity(self.params.element));
        assert!(c.send_unsent() <= self.params.send_ring);
        assert!(c.send_queued() <= self.params.send_ring);
        assert!(c.send_space() <= self.params.send_ring);
    }

    /// Whatever happened, what is said to be readable is.
    fn read_all(&mut self) {
        self.conn.set_oob_inline(true);
        let mut left = self.conn.readable();
        while left > 0 {
            let spans = self.conn.recv_spans(0, left);
            assert!(!spans.is_empty());
            self.conn.recv_commit(spans.len());
            left -= spans.len();
            assert_eq!(self.conn.readable(), left);
        }
        assert_eq!(self.conn.eof(), self.conn.read_shut());
    }

    fn run(&mut self) {
        for _ in 0..400 {
            if self.rng.is_over() {
                break;
            }
            match self.rng.below(5) {
                0 => self.message(),
                1..=2 => self.application(),
                3 => self.complete(),
                _ => self.posts(),
            }
            self.check();
        }
        // The end: nobody answers any more.
        self.conn.send_commit(0, SendFlags::default());
        self.conn.recv_commit(0);
        if !self.closed && self.rng.percent(50) {
            self.read_all();
        }
        let _ = self.conn.close();
        // Enough to send all of a ring, should the peer have room for it.
        for _ in 0..2000 {
            if self.conn.is_done() {
                break;
            }
            self.posts();
            while !self.tickets.is_empty() {
                self.complete();
            }
            if let Some(timer) = self.conn.timer() {
                let _ = self.conn.handle_timeout(timer);
            }
            self.check();
        }
        assert_eq!(self.conn.state(), State::Closed);
        assert!(self.conn.is_done());
    }
}

/// One attack; the violation which the connection noticed, if it did.
pub fn attack(rng: Rng) -> Option<Violation> {
    let mut attack = Attack::new(rng);
    attack.run();
    attack.violation
}
