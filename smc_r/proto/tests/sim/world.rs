// SPDX-License-Identifier: GPL-2.0

//! Two hosts with their memories, and the fabric between them.
//!
//! The fabric is a pair of reliable-connected queue pairs: what one host posts is carried out in
//! order, one write at a time, at some later moment; messages wait in the receiver's queue and
//! completions in the sender's, each for its own time. The bytes of a stream are a function of
//! their place, so that every byte can be checked wherever it turns up.
//!
//! Each host also keeps in mind what a reader has a right to: what was announced to it until its
//! connection ended, in whatever way, and an error if that is not all.

use std::collections::{
    BTreeSet,
    VecDeque, //
};

use smc_proto::{
    cdc::Cdc,
    conn::{
        Conn,
        ConnError,
        Events,
        Params,
        SendFlags,
        State,
        Ticket,
        Timer,
        Transmit,
        UrgentError,
        MAX_IN_FLIGHT, //
    },
    group::{
        LinkIx,
        MAX_LINKS, //
    },
    ring::Spans,
    wire::AlertToken, //
};

use crate::rng::Rng;

/// What may happen in a run.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub ring: [u32; 2],
    pub element: [u32; 2],
    pub base: u32,
    pub inline: [bool; 2],
    pub max_transmit: u32,
    /// Percentage of posts that find no slot.
    pub no_slot: u32,
    /// Completions come for every transmit, asked for or not.
    pub signal_all: bool,
    pub urgent: bool,
    pub cork: bool,
    /// Applications shut down and close while data flows.
    pub early_close: bool,
    /// Applications abort, and TCP connections are reset.
    pub abort: bool,
    /// Links die, and the connection moves to another one.
    pub failover: bool,
    /// Each direction has a link of its own, and what came over old links may be handled late.
    pub several: bool,
    /// The last link dies.
    pub death: bool,
    /// Timers may run out while there is still something under way.
    pub hasty_timers: bool,
    /// Applications change how much they want to have unread.
    pub limits: bool,
    /// Free send rings are exchanged for smaller ones and back.
    pub ring_changes: bool,
    /// Applications move as much as they can at a time.
    pub greedy: bool,
    pub steps: u32,
}

impl Config {
    pub fn plain(rng: &mut Rng) -> Config {
        let sizes = [16, 17, 20, 31, 64, 100, 256, 1000, 4096, 16384, 65536];
        let top = rng.pick(&[5, 8, 11]);
        let base = rng.pick(&[0, 0, 4]);
        Config {
            ring: [rng.pick(&sizes[..top]), rng.pick(&sizes[..top])],
            element: [rng.pick(&sizes[..top]), rng.pick(&sizes[..top])],
            base,
            inline: [rng.percent(30), rng.percent(30)],
            max_transmit: rng.pick(&[0, 0, 0, 1, 100]),
            no_slot: rng.pick(&[0, 0, 10, 60]),
            signal_all: rng.percent(30),
            urgent: rng.percent(50),
            cork: rng.percent(30),
            early_close: false,
            abort: false,
            failover: false,
            several: false,
            death: false,
            hasty_timers: false,
            limits: false,
            ring_changes: false,
            greedy: false,
            steps: rng.size(20, 600),
        }
    }
}

/// The byte at a place of the stream that `host` sends.
pub fn byte(host: usize, place: u64) -> u8 {
    let x = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((host as u64) << 33);
    (x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8
}

struct Posted {
    transmit: Transmit,
    /// Place in the stream of the first byte.
    start: u64,
    writes_done: usize,
    /// Place of the urgent byte, if it carries one.
    mark: Option<u64>,
}

#[derive(Clone, Copy)]
struct Message {
    link: LinkIx,
    cdc: Cdc,
    /// Place of the urgent byte, if it carries one.
    mark: Option<u64>,
    /// Place in the stream that it announces, or 0.
    end: u64,
}

#[derive(Default)]
struct Wire {
    /// Place of the link.
    link: usize,
    posted: VecDeque<Posted>,
    inbox: VecDeque<Message>,
    /// What came over links that are gone, the oldest link first.
    late: Vec<VecDeque<Message>>,
    completions: VecDeque<Posted>,
}

pub struct Host {
    pub conn: Conn,
    ring: Vec<u8>,
    /// The place whose byte is the first of the ring.
    ring_base: u64,
    element: Vec<u8>,
    no_slot: bool,
    timer: Option<(Timer, u64)>,
    link_down: bool,
    /// Messages that were handed over and have no effect yet.
    held: Vec<Message>,

    /// Bytes accepted from the application.
    pub accepted: u64,
    to_send: u32,
    urgent_at_end: bool,
    writing: Option<Spans>,
    urgent_commits: BTreeSet<u64>,
    /// End of the last urgent data posted.
    urgent_posted: u64,
    /// End of all data posted so far.
    posted: u64,

    /// Place up to which the application has read, without an urgent byte it skips next.
    pub read: u64,
    reading: Option<(Spans, u32)>,
    /// Place up to which the peer announced its data before the connection ended.
    announced: u64,
    marks: BTreeSet<u64>,
    mark: Option<u64>,
    oob_read: bool,

    /// What the application and the world did.
    pub shut: bool,
    shut_both: bool,
    pub closed: bool,
    aborted: bool,
    tcp_reset_seen: bool,
    tcp_reset_sent: bool,
    timed_out: bool,
    /// C of the peer was handled; our C is known to have arrived.
    peer_closed: bool,
    close_confirmed: bool,
    /// The connection ended before its time: it may say A, with what was posted before over a link that failed, and nothing
    /// else.
    ended: bool,
    /// The peer's application has taken data since the drain timer was looked at.
    peer_reads: bool,
    pub messages: u64,
    pub signals: u64,
}

pub struct World {
    pub hosts: [Host; 2],
    wires: [Wire; 2],
    /// TCP resets under way to a host.
    resets: [bool; 2],
    pub now: u64,
    pub config: Config,
    pub rng: Rng,
    died: bool,
    /// A link has failed.
    failed: bool,
    /// Number of the last message which each host handled.
    last_seq: [u16; 2],
    pub seen: Seen,
}

/// What runs have come across, to know that they reach everything.
#[derive(Debug, Default)]
pub struct Seen {
    pub states: BTreeSet<State>,
    pub errors: BTreeSet<String>,
    pub timers: BTreeSet<String>,
    pub flags: BTreeSet<&'static str>,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.states.extend(&other.states);
        self.errors.extend(other.errors.iter().cloned());
        self.timers.extend(other.timers.iter().cloned());
        self.flags.extend(&other.flags);
    }
}

impl World {
    pub fn new(config: Config, rng: Rng) -> World {
        let host = |i: usize| {
            let mut conn = Conn::new(&Params {
                send_ring: config.ring[i],
                element: config.element[i],
                peer_element: config.element[1 - i],
                base: config.base,
                peer_token: AlertToken(7 + i as u32),
                max_transmit: config.max_transmit,
            })
            .unwrap();
            conn.set_oob_inline(config.inline[i]);
            conn.set_several_links(config.several);
            conn.set_spare(config.several);
            Host {
                conn,
                ring: vec![0; config.ring[i] as usize],
                ring_base: 0,
                element: vec![0; config.element[i] as usize],
                no_slot: false,
                timer: None,
                link_down: false,
                held: Vec::new(),
                accepted: 0,
                to_send: 0,
                urgent_at_end: false,
                writing: None,
                urgent_commits: BTreeSet::new(),
                urgent_posted: 0,
                posted: 0,
                read: 0,
                reading: None,
                announced: 0,
                marks: BTreeSet::new(),
                mark: None,
                oob_read: false,
                shut: false,
                shut_both: false,
                closed: false,
                aborted: false,
                tcp_reset_seen: false,
                tcp_reset_sent: false,
                timed_out: false,
                peer_closed: false,
                close_confirmed: false,
                ended: false,
                peer_reads: false,
                messages: 0,
                signals: 0,
            }
        };
        World {
            hosts: [host(0), host(1)],
            wires: Default::default(),
            resets: [false; 2],
            now: 0,
            config,
            rng,
            died: false,
            failed: false,
            last_seq: [0; 2],
            seen: Seen::default(),
        }
    }

    /// Whether anything happened that may cost data.
    fn is_rough(&self) -> bool {
        self.died
            || self
                .hosts
                .iter()
                .any(|h| h.aborted || h.timed_out || h.tcp_reset_seen || h.conn.reset_tcp())
    }

    // ----- what a driver does after each call

    fn after(&mut self, i: usize, events: Events) {
        assert_eq!(events.violation, None, "host {i} accuses an honest peer");
        self.post(i);
        let host = &mut self.hosts[i];
        self.seen.states.insert(host.conn.state());
        if let Some(error) = host.conn.error() {
            self.seen.errors.insert(error.to_string());
        }
        let timer = host.conn.timer();
        if timer != host.timer.map(|(t, _)| t) {
            host.timer = timer.map(|t| (t, self.now + u64::from(t.millis())));
        }
        host.ended |= host.conn.error().is_some();
        if host.conn.is_done() {
            // The memory is given back.
            host.element.fill(0xdd);
        }
        if host.conn.is_ring_free() && host.accepted > 0 {
            // Another ring takes its place, at times of another size, as where memory is short.
            host.ring.fill(0xdd);
            self.seen.flags.insert("another ring");
            if self.config.ring_changes && self.rng.percent(20) {
                let size = (self.config.ring[i] >> self.rng.below(3)).max(1);
                assert!(host.conn.set_ring_size(size));
                if size as usize != host.ring.len() {
                    host.ring = vec![0xdd; size as usize];
                    host.ring_base = host.accepted;
                    self.seen.flags.insert("a ring of another size");
                }
            }
        }
        if host.conn.reset_tcp() && !host.tcp_reset_sent {
            host.tcp_reset_sent = true;
            if !matches!(host.conn.error(), Some(ConnError::TcpReset)) && self.rng.percent(50) {
                self.resets[1 - i] = true;
            }
        }
        self.check(i);
    }

    /// Posts all that is due.
    fn post(&mut self, i: usize) {
        if self.hosts[i].no_slot || self.hosts[i].link_down {
            return;
        }
        while let Some(t) = self.hosts[i].conn.poll_transmit() {
            if self.rng.percent(self.config.no_slot) {
                self.hosts[i].conn.unpost(t.ticket);
                if self.rng.percent(50) {
                    self.hosts[i].no_slot = true;
                    return;
                }
                let again = self.hosts[i].conn.poll_transmit();
                let again = again.expect("a transmit taken back is offered again");
                assert_eq!(again.writes(), t.writes());
                assert_eq!(again.cdc, t.cdc);
                self.transmit(i, again);
            } else {
                self.transmit(i, t);
            }
        }
    }

    fn transmit(&mut self, i: usize, t: Transmit) {
        let ring = self.hosts[i].ring.len() as u64;
        let base = self.hosts[i].ring_base;
        let element = self.config.element[1 - i];
        let capacity = u64::from(element - self.config.base);
        let len = u64::from(t.data_len());
        assert!(t.writes().iter().all(|w| w.len > 0));
        let mut start = 0;
        if let Some(w) = t.writes().first() {
            // The only place within the last ring full of accepted bytes that has this offset.
            let h = &self.hosts[i];
            let low = h.accepted.saturating_sub(ring).max(base);
            let behind = (u64::from(w.from) + ring - (low - base) % ring) % ring;
            start = low + behind;
            assert!(start + len <= h.accepted, "bytes posted that nobody gave");
        }
        let mut place = start;
        for w in t.writes() {
            assert_eq!(u64::from(w.from), (place - base) % ring);
            assert_eq!(
                u64::from(w.to),
                u64::from(self.config.base) + place % capacity
            );
            assert!(w.to + w.len <= element && u64::from(w.from + w.len) <= ring);
            place += u64::from(w.len);
        }
        if len > 0 {
            // Flow control: nothing unread is overwritten.
            let read = self.consumed(1 - i);
            assert!(place <= read + capacity, "window overrun");
            let end = self.hosts[i].urgent_posted;
            assert!(
                place <= end || end <= read,
                "data posted behind urgent data that is not consumed"
            );
        }
        let p = t.cdc.prod_flags;
        let s = t.cdc.state_flags;
        assert!(!p.update_requested || self.failed, "R");
        if self.hosts[i].ended && !p.failover {
            let again = self.failed && place <= self.hosts[i].posted;
            assert!(
                s.aborted && (len == 0 || again),
                "host {i} goes on after the end"
            );
        }
        self.hosts[i].posted = self.hosts[i].posted.max(place);
        for (set, name) in [
            (p.blocked, "B"),
            (p.urgent_pending && !p.urgent_present, "P"),
            (p.urgent_present, "U"),
            (p.failover, "F"),
            (s.done && !s.closed && !s.aborted, "D"),
            (s.closed, "C"),
            (s.aborted, "A"),
            (len > 0 && s.done, "data+D"),
            (len > 0 && s.closed, "data+C"),
            (t.writes().len() == 3, "3 writes"),
            (!t.signal, "unsignalled"),
        ] {
            // A peer whose data was not read hears of it.
            let d = self.hosts[i].conn.diag();
            assert!(name != "C" || !set || d.rx_producer == d.tx_consumer);
            if set {
                self.seen.flags.insert(name);
            }
        }
        let mut mark = None;
        if t.cdc.prod_flags.urgent_present {
            assert!(t.cdc.prod_flags.urgent_pending && len > 0);
            assert!(self.hosts[i].urgent_commits.contains(&place), "urgent mark");
            self.hosts[i].urgent_posted = place;
            mark = Some(place - 1);
        }
        let w = &mut self.wires[i];
        w.posted.push_back(Posted {
            transmit: t,
            start,
            writes_done: 0,
            mark,
        });
        let outstanding = w.posted.len() + w.completions.len();
        assert!(outstanding <= MAX_IN_FLIGHT, "more in flight than promised");
        self.hosts[i].messages += 1;
        self.hosts[i].signals += u64::from(t.signal);
    }

    /// Place of the next byte that the application of `i` can read, behind urgent bytes which are
    /// taken out of the stream.
    fn consumed(&self, i: usize) -> u64 {
        let h = &self.hosts[i];
        let mut place = h.read;
        while !self.config.inline[i] && h.marks.contains(&place) {
            place += 1;
        }
        place
    }

    /// What holds between any two steps.
    fn check(&self, i: usize) {
        let h = &self.hosts[i];
        let c = &h.conn;
        assert!(c.readable() <= self.config.element[i] - self.config.base);
        assert!(c.send_unsent() as usize <= h.ring.len());
        assert!(c.send_space() as usize <= h.ring.len());
        let next = self.consumed(i);
        if h.reading.is_none() && !h.closed {
            let at_mark = |p| p == h.read || (p > h.read && p < next);
            assert_eq!(c.at_mark(), h.mark.is_some_and(at_mark), "at mark");
            // What was announced is there, however the connection ended, and nothing else.
            let ahead = |&p: &u64| p >= next && !self.config.inline[i];
            let unread = h.announced - next - u64::from(h.mark.filter(ahead).is_some());
            assert_eq!(u64::from(c.readable()), unread, "host {i} may read");
            assert_eq!(c.eof(), c.read_shut() && unread == 0);
        }
        // An end of the stream is never a truncation.
        if c.eof() && c.error().is_none() && !h.closed && !h.shut_both {
            assert_eq!(
                self.consumed(i),
                self.hosts[1 - i].accepted,
                "stream cut off"
            );
        }
        match c.error() {
            None => {}
            Some(ConnError::Reset) => {
                let d = c.diag().rx_state_flags;
                assert!(d.aborted || d.closed, "reset without a reason");
            }
            Some(ConnError::TcpReset) => assert!(h.tcp_reset_seen),
            Some(ConnError::Aborted) => assert!(h.aborted),
            Some(ConnError::LinkFailed) => assert!(self.died),
            Some(ConnError::TimedOut) => assert!(h.timed_out),
            Some(ConnError::ProtocolViolation(v)) => panic!("violation {v} among honest peers"),
        }
        if c.is_done() {
            assert_eq!(c.state(), State::Closed);
            assert_eq!(c.timer(), None, "timer after the end");
            assert!(h.closed || next == h.announced, "gone with unread data");
        }
    }

    // ----- the fabric

    /// Carries out the next write or message which host `i` posted.
    fn execute(&mut self, i: usize) -> bool {
        let wire = &mut self.wires[i];
        let Some(p) = wire.posted.front_mut() else {
            return false;
        };
        if let Some(&w) = p.transmit.writes().get(p.writes_done) {
            let before: u32 = p.transmit.writes()[..p.writes_done]
                .iter()
                .map(|w| w.len)
                .sum();
            for k in 0..w.len {
                let b = self.hosts[i].ring[(w.from + k) as usize];
                let place = p.start + u64::from(before + k);
                assert_eq!(b, byte(i, place), "send ring changed under a posted write");
                self.hosts[1 - i].element[(w.to + k) as usize] = b;
            }
            p.writes_done += 1;
        } else if let Some(p) = wire.posted.pop_front() {
            let cdc = p.transmit.cdc;
            // The only place within the last round of the counters that has this cursor.
            let capacity = u64::from(self.config.element[1 - i] - self.config.base);
            let round = capacity << 16;
            let count = cdc.prod.count.saturating_sub(self.config.base);
            let cursor = u64::from(cdc.prod.wrap) * capacity + u64::from(count);
            let accepted = self.hosts[i].accepted;
            let behind = (accepted % round + round - cursor) % round;
            wire.inbox.push_back(Message {
                link: LinkIx::new(wire.link).unwrap(),
                cdc,
                mark: p.mark,
                end: if cdc.prod_flags.failover {
                    0
                } else {
                    accepted - behind
                },
            });
            wire.completions.push_back(p);
        }
        true
    }

    /// Host `1 - i` handles the next message from `i`, from any of its links.
    fn deliver(&mut self, i: usize) -> bool {
        let queues = self.wires[i].late.len() as u64 + 1;
        let queue = self.rng.below(queues) as usize;
        let wire = &mut self.wires[i];
        let next = match wire.late.get_mut(queue) {
            Some(late) => late.pop_front(),
            None => wire.inbox.pop_front(),
        };
        wire.late.retain(|late| !late.is_empty());
        let late = !wire.late.is_empty();
        let Some(message) = next else {
            // The choice fell on nothing, while there is something left.
            return late;
        };
        let r = 1 - i;
        let cdc = message.cdc;
        let Host { conn, element, .. } = &mut self.hosts[r];
        assert_eq!(cdc.token, AlertToken(7 + i as u32));
        let sent = conn.diag().tx_state_flags;
        let over = conn.error().is_some() || sent.aborted || conn.state() == State::Closed;
        let old = (cdc.seq.wrapping_sub(self.last_seq[r]) as i16) < 0;
        let lost = conn.send_unsent() > 0 && cdc.state_flags.closed && !over && !old;
        let before = conn.diag().rx_consumer;
        let holding = conn.is_holding();
        let events = conn.handle_cdc(message.link, &cdc, |o| element[o as usize]);
        let reads = conn.diag().rx_consumer != before;
        if events.held {
            self.seen.flags.insert("held");
            self.hosts[r].held.push(message);
            self.after(r, events);
            return true;
        }
        let released = holding && !conn.is_holding();
        self.hosts[r].peer_reads |= reads;
        if !events.dropped {
            self.took(r, &message);
        }
        if released {
            // The newest of those that waited for this one counts now: it carries the whole state, and
            // what others announced beyond that is sent again.
            let held = std::mem::take(&mut self.hosts[r].held);
            let newest = self.newest(r, &held).expect("something was held");
            self.last_seq[r] = newest.cdc.seq;
            // A connection that ended meanwhile takes neither this one nor those.
            if !events.dropped {
                self.took(r, &newest);
                for message in held.iter().filter(|m| m.cdc.prod == newest.cdc.prod) {
                    self.mark(r, message);
                }
            }
        }
        let conn = &self.hosts[r].conn;
        if cdc.state_flags.aborted && !over && !self.hosts[r].closed && !events.dropped {
            assert_eq!(self.hosts[r].conn.error(), Some(ConnError::Reset));
            assert!(events.changed && events.readable && events.writable);
        }
        if lost && !released {
            assert!(conn.reset_tcp(), "unsent data lost without a word");
            assert!(self.hosts[r].closed || conn.error().is_some());
        }
        if !cdc.prod_flags.failover {
            assert!(events.dropped || !old);
            if !old && !released {
                self.last_seq[r] = cdc.seq;
            }
        }
        if !events.dropped {
            // Of two messages that say the same place, only one has the mark.
            let held = &self.hosts[r].held;
            let newest = self.newest(r, held).map(|m| m.cdc.prod);
            let marked = held.iter().find(|m| m.mark.is_some()).copied();
            let same = marked.filter(|m| m.cdc.prod == cdc.prod && newest == Some(cdc.prod));
            self.mark(r, &same.unwrap_or(message));
        }
        self.after(r, events);
        true
    }

    /// The message of these that was sent last.
    fn newest(&self, r: usize, held: &[Message]) -> Option<Message> {
        let ahead = |m: &&Message| m.cdc.seq.wrapping_sub(self.last_seq[r]) as i16;
        held.iter().max_by_key(ahead).copied()
    }

    /// What a message said counts from now on.
    fn took(&mut self, r: usize, message: &Message) {
        let host = &mut self.hosts[r];
        if !host.ended {
            host.announced = host.announced.max(message.end);
        }
        host.peer_closed |= message.cdc.state_flags.closed;
        host.ended |= message.cdc.state_flags.aborted;
    }

    /// A message brought an urgent byte.
    fn mark(&mut self, r: usize, message: &Message) {
        if let Some(mark) = message.mark {
            if self.hosts[r].marks.insert(mark) {
                self.hosts[r].mark = Some(mark);
                self.hosts[r].oob_read = false;
                assert!(mark >= self.hosts[r].read, "urgent byte read before");
            }
        }
    }

    /// The driver of host `i` has handed over all that came over old links.
    fn drained(&mut self, i: usize) -> bool {
        let wire = &self.wires[1 - i];
        if !wire.late.is_empty() || !self.hosts[i].conn.is_awaiting() {
            return false;
        }
        let events = self.hosts[i].conn.handle_drained();
        self.after(i, events);
        true
    }

    /// Host `i` gets a completion, which may speak for several transmits.
    fn complete(&mut self, i: usize) -> bool {
        let all = self.config.signal_all;
        let usable: Vec<usize> = self.wires[i]
            .completions
            .iter()
            .enumerate()
            .filter(|(_, p)| all || p.transmit.signal)
            .map(|(k, _)| k)
            .collect();
        if usable.is_empty() {
            return false;
        }
        let last = self.rng.pick(&usable);
        let mut ticket = Ticket::from_number(0);
        for p in self.wires[i].completions.drain(..=last) {
            ticket = p.transmit.ticket;
            self.hosts[i].close_confirmed |= p.transmit.cdc.state_flags.closed;
            for w in 0..u64::from(p.transmit.data_len()) {
                let place = p.start + w;
                let h = &self.hosts[i];
                let offset = ((place - h.ring_base) % h.ring.len() as u64) as usize;
                assert_eq!(
                    self.hosts[i].ring[offset],
                    byte(i, place),
                    "send ring reused before the completion"
                );
            }
        }
        let ticket = Ticket::from_number(ticket.number());
        let events = self.hosts[i].conn.handle_sent(ticket, true);
        self.after(i, events);
        true
    }

    /// The link dies at some moment of what is under way.
    fn kill_link(&mut self) {
        self.failed = true;
        // With links of their own, one direction may go on.
        let only = match self.rng.below(3) {
            2 => None,
            only => Some(only as usize).filter(|_| self.config.several),
        };
        for i in (0..2).filter(|i| only.is_none_or(|only| only == *i)) {
            for _ in 0..self.rng.below(6) {
                self.execute(i);
            }
            for _ in 0..self.rng.below(3) {
                self.complete(i);
            }
            self.wires[i].posted.clear();
            let failed = self.wires[i].completions.drain(..).next();
            if let Some(p) = failed {
                let events = self.hosts[i].conn.handle_sent(p.transmit.ticket, false);
                self.hosts[i].link_down = true;
                self.after(i, events);
                assert!(self.hosts[i].conn.poll_transmit().is_none());
            }
            self.hosts[i].link_down = true;
        }
        if !self.config.failover {
            self.died = true;
        }
    }

    fn recover(&mut self, i: usize) -> bool {
        if !self.hosts[i].link_down {
            return false;
        }
        if self.died {
            let error = self.hosts[i].conn.error();
            let events = self.hosts[i].conn.handle_link_failed();
            if self.hosts[i].peer_closed {
                assert_eq!(self.hosts[i].conn.error(), error, "no news after C");
            }
            self.after(i, events);
            assert_eq!(self.hosts[i].conn.state(), State::Closed);
            return false;
        }
        if self.config.several {
            let arrived = std::mem::take(&mut self.wires[i].inbox);
            if !arrived.is_empty() {
                self.wires[i].late.push(arrived);
            }
            // The lowest place that is free.
            let wire = &self.wires[i];
            let is_free = |place: &usize| {
                let mut all = wire.late.iter().flatten();
                *place != wire.link && !all.any(|message| message.link.get() == *place)
            };
            let free = (0..MAX_LINKS).find(is_free);
            self.wires[i].link = free.expect("not so many links fail at a time");
        } else {
            // All messages that arrived over the old link are handled before the new one is used.
            while self.deliver(1 - i) {}
            while self.deliver(i) {}
        }
        self.hosts[i].link_down = false;
        self.hosts[i].urgent_posted = 0;
        let events = self.hosts[i].conn.handle_failover();
        self.after(i, events);
        true
    }

    // ----- the applications

    /// How much an application wants to move at once.
    fn amount(&mut self) -> u32 {
        let low = if self.config.greedy { 1 << 17 } else { 1 };
        self.rng.size(low, 1 << 17)
    }

    fn send_begin(&mut self, i: usize) -> bool {
        let max = self.amount();
        let h = &mut self.hosts[i];
        if h.to_send == 0 || h.writing.is_some() {
            return false;
        }
        let spans = h.conn.send_spans(max.min(h.to_send));
        if spans.is_empty() {
            let shut = h.conn.write_shut();
            if shut {
                h.to_send = 0;
            }
            return false;
        }
        for s in spans.iter() {
            // Whatever is there must not be needed any more.
            h.ring[s.offset as usize..(s.offset + s.len) as usize].fill(0xee);
        }
        h.writing = Some(spans);
        true
    }

    fn send_finish(&mut self, i: usize) -> bool {
        let cut = self.rng.percent(20) && !self.config.greedy;
        let n = self.rng.size(0, 1 << 17);
        let more = self.config.cork && self.rng.percent(50);
        let goes_on = self.rng.percent(50);
        let h = &mut self.hosts[i];
        let Some(spans) = h.writing.take() else {
            return false;
        };
        let mut place = h.accepted;
        for s in spans.iter() {
            for k in 0..s.len {
                h.ring[(s.offset + k) as usize] = byte(i, place);
                place += 1;
            }
        }
        let n = if cut { spans.len().min(n) } else { spans.len() };
        let urgent = h.urgent_at_end && n == h.to_send;
        let shut = h.conn.write_shut();
        let partial = goes_on && n < h.to_send;
        let flags = SendFlags {
            urgent,
            more,
            partial,
        };
        let taken = h.conn.send_commit(n, flags);
        assert_eq!(taken, if shut { 0 } else { n });
        h.accepted += u64::from(taken);
        h.to_send = h.to_send.saturating_sub(taken);
        if shut {
            h.to_send = 0;
        }
        if taken > 0 && urgent {
            h.urgent_commits.insert(h.accepted);
        }
        self.after(i, Events::default());
        true
    }

    fn recv_begin(&mut self, i: usize, eager: bool) -> bool {
        let max = self.amount();
        let skip = if self.rng.percent(20) && !eager {
            self.rng.size(0, 64)
        } else {
            0
        };
        let h = &mut self.hosts[i];
        if h.reading.is_some() || h.closed {
            return false;
        }
        let spans = h.conn.recv_spans(skip, max);
        assert!(spans.len() <= h.conn.readable());
        if spans.is_empty() {
            return false;
        }
        h.reading = Some((spans, skip));
        true
    }

    fn recv_finish(&mut self, i: usize, eager: bool) -> bool {
        let peek = self.rng.percent(20) && !eager;
        let cut = self.rng.percent(20) && !eager;
        let n = self.rng.size(0, 1 << 17);
        let next = self.consumed(i);
        let h = &mut self.hosts[i];
        let Some((spans, skip)) = h.reading.take() else {
            return false;
        };
        let from = next + u64::from(skip);
        let mut place = from;
        for s in spans.iter() {
            assert!(s.offset >= self.config.base && s.offset + s.len <= self.config.element[i]);
            for k in 0..s.len {
                let b = h.element[(s.offset + k) as usize];
                assert_eq!(b, byte(1 - i, place), "host {i} reads the byte at {place}");
                place += 1;
            }
        }
        assert!(place <= self.hosts[1 - i].accepted, "bytes out of nothing");
        let h = &mut self.hosts[i];
        let n = if peek || skip > 0 {
            0
        } else if cut {
            spans.len().min(n)
        } else {
            spans.len()
        };
        h.conn.recv_commit(n);
        if n > 0 {
            if h.conn.error().is_some() {
                self.seen.flags.insert("read before the error");
            }
            let crossed = h.marks.range(from + 1..from + u64::from(n)).next();
            assert_eq!(crossed, None, "read across the urgent mark");
            h.read = from + u64::from(n);
        }
        self.after(i, Events::default());
        true
    }

    fn recv_urgent(&mut self, i: usize) -> bool {
        let peek = self.rng.percent(30);
        let inline = self.config.inline[i];
        let h = &mut self.hosts[i];
        if h.closed || h.reading.is_some() {
            return false;
        }
        let expected = h.mark.filter(|&p| p >= h.read && !h.oob_read && !inline);
        match (h.conn.recv_urgent(peek), expected) {
            (Ok(b), Some(p)) => {
                assert_eq!(b, byte(1 - i, p), "urgent byte");
                h.oob_read = !peek;
            }
            (Err(UrgentError::Invalid), None) => {}
            (Err(UrgentError::NotYet), None) => assert!(!h.conn.read_shut()),
            (Err(UrgentError::End), None) => {
                assert!(h.conn.read_shut() && h.conn.error().is_none());
            }
            (got, want) => panic!("urgent: got {got:?}, mark {want:?}"),
        }
        self.after(i, Events::default());
        false
    }

    fn close(&mut self, i: usize) {
        let h = &mut self.hosts[i];
        h.to_send = 0;
        if h.writing.is_some() || h.reading.is_some() || h.closed {
            return;
        }
        h.closed = true;
        h.peer_reads = false;
        let events = h.conn.close();
        self.after(i, events);
    }

    fn application(&mut self, i: usize) {
        if self.config.limits && self.rng.percent(5) {
            let element = self.config.element[i];
            let limit = self.rng.size(1 + element / 50, element * 2);
            self.hosts[i].conn.set_receive_limit(limit);
            self.after(i, Events::default());
        }
        match self.rng.below(14) {
            0..=2 => {
                let element = self.config.element[1 - i];
                let mut top = (self.config.ring[i] * 3).min(element * 50);
                if self.config.max_transmit > 0 {
                    top = top.min(self.config.max_transmit * 2000);
                }
                let n = self.rng.size(1, top);
                let urgent = self.config.urgent && self.rng.percent(20);
                let h = &mut self.hosts[i];
                if h.to_send == 0 && h.writing.is_none() {
                    h.to_send = n;
                    h.urgent_at_end = urgent;
                }
                self.send_begin(i);
            }
            3..=5 => {
                self.send_finish(i);
            }
            6..=7 => {
                self.recv_begin(i, false);
            }
            8..=9 => {
                self.recv_finish(i, false);
            }
            10 => {
                self.recv_urgent(i);
            }
            11 if self.config.cork => {
                let on = self.rng.percent(50);
                match self.rng.below(3) {
                    0 => self.hosts[i].conn.set_cork(on),
                    1 => self.hosts[i].conn.set_nodelay(on),
                    _ => self.hosts[i].conn.sync_sent(),
                }
                self.after(i, Events::default());
            }
            12 if self.config.early_close && self.rng.percent(10) => match self.rng.below(4) {
                0 | 1 => {
                    self.hosts[i].shut = true;
                    let events = self.hosts[i].conn.shutdown_write();
                    // What the application still wanted to send is refused.
                    self.after(i, events);
                }
                2 => {
                    self.hosts[i].shut = true;
                    self.hosts[i].shut_both = true;
                    let events = self.hosts[i].conn.shutdown_both();
                    self.after(i, events);
                }
                _ => self.close(i),
            },
            13 if self.config.abort && self.rng.percent(4) => {
                if self.rng.percent(50) {
                    let h = &mut self.hosts[i];
                    if h.writing.is_none() && h.reading.is_none() {
                        h.aborted = true;
                        h.closed = true;
                        h.ended = true;
                        let events = h.conn.abort();
                        assert_eq!(h.conn.readable(), 0);
                        self.after(i, events);
                    }
                } else {
                    self.resets[i] = true;
                }
            }
            _ => {}
        }
    }

    fn tcp_reset(&mut self, i: usize) -> bool {
        if !self.resets[i] {
            return false;
        }
        self.resets[i] = false;
        let h = &mut self.hosts[i];
        let before = (h.conn.state(), h.conn.error(), h.conn.reset_tcp());
        let events = h.conn.handle_tcp_reset();
        if h.peer_closed {
            let now = (h.conn.state(), h.conn.error(), h.conn.reset_tcp());
            assert_eq!(
                (now, events),
                (before, Events::default()),
                "no news after C"
            );
            self.seen.flags.insert("RST after C");
        } else {
            h.tcp_reset_seen = true;
        }
        self.after(i, events);
        true
    }

    fn free_slots(&mut self, i: usize) -> bool {
        let was = self.hosts[i].no_slot;
        self.hosts[i].no_slot = false;
        self.after(i, Events::default());
        was
    }

    fn expire(&mut self, i: usize, timer: Timer) {
        self.hosts[i].timer = None;
        self.seen.timers.insert(format!("{timer:?}"));
        let before = self.hosts[i].conn.state();
        let reset = self.hosts[i].conn.reset_tcp();
        let events = self.hosts[i].conn.handle_timeout(timer);
        let h = &mut self.hosts[i];
        let c = &h.conn;
        let quiet = c.reset_tcp() == reset && c.error().is_none();
        match timer {
            Timer::Drain if h.peer_reads => {
                assert!(quiet, "a slow reader is given up");
                self.seen.flags.insert("slow reader");
            }
            Timer::CloseWait if h.close_confirmed => {
                assert!(quiet && c.state() == State::Closed, "all had arrived");
                self.seen.flags.insert("quiet end");
            }
            Timer::Cork => assert!(quiet && c.state() == before),
            _ => h.timed_out |= c.state() != before || !quiet,
        }
        h.ended |= h.timed_out;
        h.peer_reads = false;
        self.after(i, events);
    }

    // ----- the run

    /// One random step.
    pub fn step(&mut self) {
        let i = self.rng.below(2) as usize;
        match self.rng.below(16) {
            0..=4 => self.application(i),
            5..=7 => {
                self.execute(i);
            }
            8..=9 => {
                self.deliver(i);
            }
            10..=11 => {
                self.complete(i);
            }
            12 => {
                self.free_slots(i);
                self.drained(i);
            }
            13 => {
                if self.hosts[i].link_down {
                    self.recover(i);
                } else if (self.config.failover || self.config.death)
                    && (self.config.several || !self.hosts[1 - i].link_down)
                    && self.rng.percent(4)
                {
                    self.kill_link();
                }
            }
            14 => {
                if self.rng.percent(20) {
                    self.tcp_reset(i);
                }
            }
            _ => {
                if let Some((timer, at)) = self.hosts[i].timer {
                    if self.config.hasty_timers && self.rng.percent(15) {
                        self.now = self.now.max(at);
                        self.expire(i, timer);
                    }
                }
            }
        }
    }

    /// The application of host `i` has `n` bytes to send.
    pub fn give(&mut self, i: usize, n: u32) {
        self.hosts[i].to_send = n;
    }

    /// Lets everything under way happen, with applications that read all and finish what they
    /// began to send, and timers of the kinds in `timers`.
    pub fn settle(&mut self, timers: &[Timer]) {
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < 200_000, "no end: {:?}", self.report());
            let mut busy = false;
            for i in 0..2 {
                for _ in 0..1 + self.rng.below(4) {
                    busy |= self.execute(i);
                }
                busy |= self.deliver(i);
                busy |= self.complete(i);
                busy |= self.free_slots(i);
                busy |= self.recover(i);
                busy |= self.drained(i);
                busy |= self.tcp_reset(i);
                busy |= self.send_finish(i);
                busy |= self.send_begin(i);
                busy |= self.recv_finish(i, true);
                busy |= self.recv_begin(i, true);
            }
            if busy {
                continue;
            }
            let due = (0..2)
                .filter_map(|i| self.hosts[i].timer.map(|(t, at)| (at, i, t)))
                .filter(|(_, _, t)| timers.contains(t))
                .min_by_key(|&(at, i, _)| (at, i));
            let Some((at, i, timer)) = due else {
                break;
            };
            self.now = self.now.max(at);
            self.expire(i, timer);
        }
    }

    /// Host 0 closes on a full send ring. Host 1 reads so rarely that the timers run out again
    /// and again meanwhile, and closes only long after the end.
    pub fn close_on_a_slow_reader(&mut self) {
        self.give(0, self.config.ring[0]);
        while self.send_begin(0) {
            self.send_finish(0);
        }
        self.close(0);
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < 200_000, "no end: {:?}", self.report());
            let mut busy = true;
            while busy {
                busy = false;
                for i in 0..2 {
                    busy |= self.execute(i) | self.deliver(i);
                    busy |= self.complete(i) | self.free_slots(i);
                }
            }
            match self.hosts[0].timer {
                Some((Timer::Drain, at)) if self.hosts[0].peer_reads => {
                    self.now = self.now.max(at);
                    self.expire(0, Timer::Drain);
                }
                Some((Timer::CloseWait, at)) => {
                    self.now = self.now.max(at);
                    self.expire(0, Timer::CloseWait);
                }
                _ if self.hosts[0].conn.is_done() => break,
                _ => {
                    self.recv_begin(1, false);
                    self.recv_finish(1, false);
                }
            }
        }
        // The reader takes what is left, though its peer is gone, and a reset comes.
        self.resets[1] = self.rng.percent(50);
        self.settle(&[]);
    }

    /// Everything sent has to be there, if nothing happened that may cost data.
    pub fn expect_all_delivered(&mut self) {
        if self.is_rough() {
            return;
        }
        for i in 0..2 {
            let sender = &self.hosts[i];
            let reader = &self.hosts[1 - i];
            if reader.closed || reader.shut_both {
                // It said that it reads nothing more.
                continue;
            }
            assert_eq!(sender.conn.error(), None);
            assert_eq!(
                self.consumed(1 - i),
                sender.accepted,
                "host {} misses data: {:?}",
                1 - i,
                self.report()
            );
            assert_eq!(sender.conn.send_unsent(), 0, "{:?}", self.report());
            assert_eq!(sender.to_send, 0, "a writer is stuck");
            let ended = sender.shut || sender.closed;
            assert_eq!(
                reader.conn.eof(),
                ended || reader.conn.state() == State::Closed
            );
            if let Some(last) = sender.urgent_commits.last() {
                assert_eq!(reader.marks.last(), Some(&(last - 1)), "last urgent mark");
            }
        }
    }

    /// Both applications close; both connections have to come to their end.
    pub fn finish(&mut self) {
        let start = self.now;
        let order = self.rng.below(2) as usize;
        for i in [order, 1 - order] {
            self.close(i);
            for _ in 0..self.rng.below(10) {
                self.execute(order);
                self.deliver(1 - order);
            }
        }
        let all = [
            Timer::Cork,
            Timer::Drain,
            Timer::CloseWait,
            Timer::AbortWait,
        ];
        self.settle(&all);
        for h in &self.hosts {
            assert!(h.closed);
            assert!(h.conn.is_done(), "not done: {:?}", self.report());
            assert!(h.conn.timer().is_none());
        }
        let took = self.now - start;
        assert!(took < 200_000, "the end took {took} ms");
    }

    pub fn both_ended_well(&self) -> bool {
        !self.is_rough() && self.hosts.iter().all(|h| h.conn.error().is_none())
    }

    fn report(&self) -> Vec<String> {
        (0..2)
            .map(|i| {
                let h = &self.hosts[i];
                let w = &self.wires[i];
                format!(
                    "host {i}: {} timer {:?} error {:?} accepted {} read {} to_send {} unsent {} space {} readable {} posted {} inbox {} completions {} link_down {} shut {} closed {} {:?}",
                    h.conn.state(), h.timer, h.conn.error(), h.accepted, h.read, h.to_send,
                    h.conn.send_unsent(), h.conn.send_space(), h.conn.readable(),
                    w.posted.len(), w.inbox.len(), w.completions.len(), h.link_down, h.shut,
                    h.closed, h.conn.diag()
                )
            })
            .collect()
    }
}
