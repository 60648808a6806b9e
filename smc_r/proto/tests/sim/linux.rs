// SPDX-License-Identifier: GPL-2.0

//! A connection whose peer does what Linux does.
//!
//! The peer is written after its habits, not after the RFC: it says B when the rest just fits, reports
//! what it has consumed late and in large pieces, announces no urgent data while the window is closed,
//! sends D and C after its last completion or when that takes too long, runs no other timer, answers an A when its application
//! closes, takes no notice of a TCP reset, and goes back behind what it has announced after a failover,
//! with a validation that is one too low or missing. Then it does not say again what it has consumed, unless
//! it has data to send, or is asked to and consumes more. What came over a link that has failed may be looked at
//! any time later, when the next one has failed as well.

use std::collections::VecDeque;

use smc_proto::{
    cdc::{
        Cdc,
        ProdFlags,
        RawCursor,
        StateFlags, //
    },
    conn::{
        Conn,
        ConnError,
        Events,
        Params,
        SendFlags,
        State,
        Timer,
        Transmit, //
    },
    group::LinkIx,
    wire::AlertToken, //
};

use crate::{
    rng::Rng,
    world::byte, //
};

/// Hosts, as far as bytes are concerned.
const OURS: usize = 0;
const LINUX: usize = 1;

/// The smallest amount that Linux reports as consumed without being asked in some way: half of the
/// smallest send buffer of a socket on x86-64.
const SMALLEST_REPORT: u64 = 2304;

/// What is on its way to us.
enum Item {
    Write { place: u64, len: u64 },
    Message(Cdc),
}

/// How a direction ends, in the order in which it can come to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Open,
    Done,
    Closed,
    Aborted,
}

/// The peer. Places are counted from the beginning of the streams.
struct Linux {
    element: Vec<u8>,
    send_buffer: u64,
    /// Size of our element.
    room: u64,

    accepted: u64,
    written: u64,
    /// The most that was ever written; more than `written` after a failover.
    furthest: u64,
    confirmed: u64,
    granted: u64,
    seq: u16,
    confirmed_seq: u16,
    /// Messages that have arrived without a completion: number, and place written by then.
    flying: VecDeque<(u16, u64)>,
    /// End of urgent data that is not written, and that is not consumed.
    urgent: Option<u64>,
    stalled: Option<u64>,
    says_blocked: bool,

    seen: u16,
    announced: u64,
    read: u64,
    told: u64,
    blocked: bool,
    asked: bool,
    urgent_end: u64,

    want: End,
    sent: End,
    heard: End,
    has_closed: bool,
    /// It waits no longer for what it still had to send when its application closed.
    gave_up: bool,
}

fn cursor(place: u64, size: u64) -> RawCursor {
    RawCursor {
        wrap: (place / size) as u16,
        count: (place % size) as u32,
    }
}

/// The streams of a run are short: no counter of wraps goes over.
fn place(cursor: RawCursor, size: u64) -> u64 {
    u64::from(cursor.wrap) * size + u64::from(cursor.count)
}

impl Linux {
    fn size(&self) -> u64 {
        self.element.len() as u64
    }

    fn message(&mut self, mut prod_flags: ProdFlags) -> Item {
        self.seq = self.seq.wrapping_add(1);
        self.told = self.read;
        prod_flags.blocked = self.says_blocked;
        Item::Message(Cdc {
            seq: self.seq,
            token: AlertToken(1),
            prod: cursor(self.written, self.room),
            cons: cursor(self.read, self.size()),
            prod_flags,
            state_flags: StateFlags {
                done: self.sent >= End::Done,
                closed: self.sent == End::Closed,
                aborted: self.sent == End::Aborted,
            },
        })
    }

    /// Whether it may still say something.
    fn is_open(&self) -> bool {
        self.sent < End::Closed && self.heard != End::Aborted
    }

    /// Sends what there is, if there is room. Whether it did.
    fn transmit(&mut self, out: &mut VecDeque<Item>) -> bool {
        let free = self.room - (self.written - self.granted);
        if !self.is_open() || free == 0 || self.stalled.is_some_and(|end| self.granted < end) {
            return false;
        }
        self.stalled = None;
        let left = self.urgent.unwrap_or(self.accepted) - self.written;
        if left == 0 {
            return false;
        }
        let amount = left.min(free);
        self.says_blocked = left >= free;
        let first = amount.min(self.room - self.written % self.room);
        for (place, len) in [
            (self.written, first),
            (self.written + first, amount - first),
        ] {
            if len > 0 {
                out.push_back(Item::Write { place, len });
            }
        }
        self.written += amount;
        self.furthest = self.furthest.max(self.written);
        let present = self.urgent == Some(self.written);
        let flags = ProdFlags {
            urgent_pending: self.urgent.is_some(),
            urgent_present: present,
            ..ProdFlags::default()
        };
        let message = self.message(flags);
        out.push_back(message);
        if present {
            self.stalled = self.urgent.take();
        }
        true
    }

    /// Reports what it has consumed, if that is worth it. Whether it did.
    fn report(&mut self, out: &mut VecDeque<Item>) -> bool {
        let size = self.size();
        let since = self.read - self.told;
        let window = size - (self.announced - self.told);
        let enough = since > (size / 10).max(SMALLEST_REPORT);
        let urgent = self.told < self.urgent_end && self.urgent_end <= self.read;
        let due =
            enough && (window <= size / 2 || self.blocked) || self.asked && since > 0 || urgent;
        if due && self.is_open() {
            let message = self.message(ProdFlags::default());
            out.push_back(message);
        }
        due && self.is_open()
    }

    /// Says the end, once all that was sent is confirmed. Whether it did.
    fn end(&mut self, out: &mut VecDeque<Item>) -> bool {
        if self.sent >= End::Closed || self.sent >= self.want {
            return false;
        }
        let unsent = self.confirmed < self.accepted && !self.gave_up;
        if self.want == End::Aborted || self.heard == End::Aborted {
            // An abort of ours is answered when the application closes.
            if !self.has_closed && self.want != End::Aborted {
                return false;
            }
            self.sent = End::Aborted;
        } else if unsent && self.heard == End::Closed {
            self.sent = End::Aborted;
        } else if unsent {
            return false;
        } else if self.want == End::Closed && self.read < self.announced {
            self.sent = End::Aborted;
        } else {
            self.sent = self.want;
        }
        let message = self.message(ProdFlags::default());
        out.push_back(message);
        true
    }

    fn hear(&mut self, cdc: &Cdc) {
        if self.heard == End::Aborted {
            return;
        }
        let old = (cdc.seq.wrapping_sub(self.seen) as i16) < 0;
        if cdc.prod_flags.failover {
            let lost = (self.seen.wrapping_sub(cdc.seq) as i16) < 0;
            assert!(!lost, "a validation of what has not arrived");
            return;
        }
        if old {
            return;
        }
        self.seen = cdc.seq;
        let size = self.size();
        // A cursor that stands back it takes for data in some rounds, also with A. When it has closed, nobody reads that.
        let named = place(cdc.prod, size);
        assert!(
            named >= self.announced || self.sent >= End::Closed,
            "place {named} behind {}, which was named before",
            self.announced
        );
        self.announced = self.announced.max(named);
        assert!(
            self.announced - self.read <= size,
            "more than there is room for"
        );
        self.granted = self.granted.max(place(cdc.cons, self.room));
        assert!(self.granted <= self.furthest, "read what was not written");
        // After a failover: this had arrived.
        self.written = self.written.max(self.granted);
        self.blocked = cdc.prod_flags.blocked;
        self.asked = cdc.prod_flags.update_requested;
        if cdc.prod_flags.urgent_present {
            self.urgent_end = self.announced;
        }
        let state = cdc.state_flags;
        for (said, end) in [
            (state.done, End::Done),
            (state.closed, End::Closed),
            (state.aborted, End::Aborted),
        ] {
            if said {
                self.heard = self.heard.max(end);
            }
        }
    }

    /// The link has failed, and there is another one.
    fn fail_over(&mut self, out: &mut VecDeque<Item>) {
        self.flying.clear();
        if self.sent >= End::Closed {
            // It does not say again what may not have arrived, nor validate.
            return;
        }
        self.written = self.confirmed.max(self.granted);
        self.stalled = None;
        if self.sent == End::Open {
            out.push_back(Item::Message(Cdc {
                seq: self.confirmed_seq.wrapping_sub(1),
                token: AlertToken(1),
                prod: cursor(0, self.room),
                cons: cursor(0, self.size()),
                prod_flags: ProdFlags {
                    failover: true,
                    ..ProdFlags::default()
                },
                state_flags: StateFlags::default(),
            }));
        }
    }
}

/// What may happen besides data.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    pub ends: bool,
    pub aborts: bool,
    pub failover: bool,
    pub urgent: bool,
    /// Linux has nothing to say but what it has consumed.
    pub quiet: bool,
    /// Our application changes how much it wants to have unread.
    pub limits: bool,
}

/// What runs have come across.
#[derive(Debug, Clone, Copy, Default)]
pub struct Met {
    pub late_reports: u64,
    pub exact_fits: u64,
    pub steps_back: u64,
    pub resets: u64,
    pub timeouts: u64,
    /// Messages that waited for others, of a link that had failed.
    pub held: u64,
    /// Failures of a link before all that came over an older one was looked at.
    pub overlapping: u64,
    /// Moves to another link after our application had closed.
    pub closing: u64,
    /// Messages of ours that ask for reports, which may have been lost.
    pub asked: u64,
    /// Urgent bytes that were read, by us and by the peer.
    pub urgent: [u64; 2],
}

impl Met {
    pub fn add(&mut self, other: &Met) {
        self.late_reports += other.late_reports;
        self.exact_fits += other.exact_fits;
        self.steps_back += other.steps_back;
        self.resets += other.resets;
        self.timeouts += other.timeouts;
        self.held += other.held;
        self.overlapping += other.overlapping;
        self.closing += other.closing;
        self.asked += other.asked;
        for host in [OURS, LINUX] {
            self.urgent[host] += other.urgent[host];
        }
    }

    /// Whether nothing is missing.
    pub fn all(&self) -> bool {
        [
            self.late_reports,
            self.exact_fits,
            self.steps_back,
            self.resets,
            self.timeouts,
            self.held,
            self.overlapping,
            self.closing,
            self.asked,
            self.urgent[OURS],
            self.urgent[LINUX],
        ]
        .iter()
        .all(|count| *count > 0)
    }
}

/// Our connection, the peer, and what is between them.
pub struct Talk {
    conn: Conn,
    ring: Vec<u8>,
    element: Vec<u8>,
    accepted: u64,
    read: u64,
    posted: VecDeque<Transmit>,
    completions: VecDeque<Transmit>,
    linux: Linux,
    to_us: VecDeque<Item>,
    /// Messages that came over links which have failed, and that nobody has looked at: one queue for
    /// each link, none of them empty.
    late: Vec<(LinkIx, VecDeque<Cdc>)>,
    link: LinkIx,
    rules: Rules,
    rng: Rng,
    /// A link has failed.
    failed: bool,
    /// How many have since we knew that all was consumed.
    unheard: u32,
    /// We have moved to another link, and not said anything over it.
    moved: bool,
    /// Places of urgent bytes that the hosts have sent, and of those that arrived as such.
    urgent: [Vec<u64>; 2],
    marks: [Vec<u64>; 2],
    /// Something happened that may cost data.
    rough: bool,
    closed: bool,
    pub met: Met,
}

impl Talk {
    pub fn new(rules: Rules, mut rng: Rng) -> Talk {
        // Linux has elements of 16 KiB and up, and send buffers of any size.
        let sizes = [16384, 32768, 65536];
        let (own, theirs) = (rng.pick(&sizes), rng.pick(&sizes));
        let send_ring = rng.pick(&[1000, 4096, 16384, 65536]);
        let mut conn = Conn::new(&Params {
            send_ring,
            element: own,
            peer_element: theirs,
            base: 0,
            peer_token: AlertToken(2),
            max_transmit: rng.pick(&[0, 0, 1500]),
        })
        .unwrap();
        conn.set_oob_inline(true);
        conn.set_several_links(true);
        conn.set_spare(rules.failover);
        Talk {
            conn,
            ring: vec![0; send_ring as usize],
            element: vec![0; own as usize],
            accepted: 0,
            read: 0,
            posted: VecDeque::new(),
            completions: VecDeque::new(),
            linux: Linux {
                element: vec![0; theirs as usize],
                send_buffer: rng.pick(&[4608, 16384, 65536]),
                room: u64::from(own),
                accepted: 0,
                written: 0,
                furthest: 0,
                confirmed: 0,
                granted: 0,
                seq: 0,
                confirmed_seq: 0,
                flying: VecDeque::new(),
                urgent: None,
                stalled: None,
                says_blocked: false,
                seen: 0,
                announced: 0,
                read: 0,
                told: 0,
                blocked: false,
                asked: false,
                urgent_end: 0,
                want: End::Open,
                sent: End::Open,
                heard: End::Open,
                has_closed: false,
                gave_up: false,
            },
            to_us: VecDeque::new(),
            late: Vec::new(),
            link: LinkIx::FIRST,
            rules,
            rng,
            failed: false,
            unheard: 0,
            moved: false,
            urgent: [Vec::new(), Vec::new()],
            marks: [Vec::new(), Vec::new()],
            rough: false,
            closed: false,
            met: Met::default(),
        }
    }

    // ----- our side

    fn after(&mut self, events: Events) {
        assert_eq!(events.violation, None, "what Linux does is no violation");
        while let Some(transmit) = self.conn.poll_transmit() {
            if self.rng.percent(10) {
                self.conn.unpost(transmit.ticket);
                break;
            }
            self.posted.push_back(transmit);
        }
        if let Some(error) = self.conn.error() {
            // A C is one for what we have not sent yet.
            let reset = error == ConnError::Reset;
            assert!(
                self.rough || reset && self.linux.sent >= End::Closed,
                "{error}"
            );
            self.met.resets += u64::from(reset);
            self.rough = true;
        }
    }

    /// Carries out the next thing that we have posted.
    fn execute(&mut self) -> bool {
        let Some(transmit) = self.posted.pop_front() else {
            return false;
        };
        let size = self.linux.size();
        let end = place(transmit.cdc.prod, size);
        if std::mem::take(&mut self.moved) {
            // Whatever state it is in.
            assert!(transmit.cdc.prod_flags.failover, "no validation");
            self.met.closing += u64::from(self.closed);
        }
        if transmit.cdc.prod_flags.urgent_present {
            self.mark(LINUX, end);
        }
        let mut at = end - u64::from(transmit.data_len());
        for write in transmit.writes() {
            assert_eq!(u64::from(write.to), at % size);
            at += u64::from(write.len);
            let from = &self.ring[write.from as usize..][..write.len as usize];
            self.linux.element[write.to as usize..][..from.len()].copy_from_slice(from);
        }
        if transmit.data_len() > 0 {
            assert!(end <= self.linux.read + size, "window overrun");
            self.met.exact_fits += u64::from(end == self.linux.read + size);
        }
        let asks = transmit.cdc.prod_flags.update_requested;
        assert!(!asks || self.failed, "R");
        self.met.asked += u64::from(asks);
        self.linux.hear(&transmit.cdc);
        self.rough |= transmit.cdc.state_flags.aborted;
        self.completions.push_back(transmit);
        true
    }

    /// Urgent data that one host is told of ends there.
    fn mark(&mut self, host: usize, end: u64) {
        let (urgent, marks) = (&self.urgent[1 - host], &mut self.marks[host]);
        assert!(urgent.contains(&end), "a mark at {end}: {urgent:?}");
        if marks.last() != Some(&end) {
            marks.push(end);
            self.met.urgent[host] += 1;
        }
    }

    fn complete(&mut self) -> bool {
        let signalled = self
            .completions
            .iter()
            .rposition(|transmit| transmit.signal);
        let Some(last) = signalled else {
            return false;
        };
        let mut done = self.completions.drain(..=last);
        let ticket = done.next_back().expect("at least one").ticket;
        drop(done);
        let events = self.conn.handle_sent(ticket, true);
        self.after(events);
        true
    }

    /// The next thing of the peer arrives, or we look at one that came over an old link.
    fn arrive(&mut self) -> bool {
        // Not often: the next link may fail before they are gone.
        let choice = self.rng.below(4 * self.late.len() as u64 + 1) as usize;
        let choice = choice.wrapping_sub(3 * self.late.len());
        if let Some((link, old)) = self.late.get_mut(choice) {
            let link = *link;
            let cdc = old.pop_front().expect("none is empty");
            self.late.retain(|(_, old)| !old.is_empty());
            self.take(link, &cdc);
            return true;
        }
        match self.to_us.pop_front() {
            None => return !self.late.is_empty(),
            Some(Item::Write { place, len }) => self.write(place, len),
            Some(Item::Message(cdc)) => {
                self.land(&cdc);
                self.take(self.link, &cdc);
            }
        }
        true
    }

    /// The peer writes into our element.
    fn write(&mut self, place: u64, len: u64) {
        assert!(place + len <= self.linux.granted.max(self.read) + self.linux.room);
        let size = self.element.len() as u64;
        for place in place..place + len {
            self.element[(place % size) as usize] = byte(LINUX, place);
        }
    }

    /// A message of the peer has reached our device.
    fn land(&mut self, cdc: &Cdc) {
        if !cdc.prod_flags.failover {
            let written = place(cdc.prod, self.linux.room);
            self.linux.flying.push_back((cdc.seq, written));
        }
    }

    /// We look at a message of the peer.
    fn take(&mut self, link: LinkIx, cdc: &Cdc) {
        let known = place(self.conn.diag().rx_producer.raw(), self.linux.room);
        let element = &self.element;
        let events = self
            .conn
            .handle_cdc(link, cdc, |offset| element[offset as usize]);
        let diag = self.conn.diag();
        if diag.rx_consumer == diag.tx_producer {
            self.unheard = 0;
        }
        let back = !cdc.prod_flags.failover && place(cdc.prod, self.linux.room) < known;
        self.met.steps_back += u64::from(back && !events.dropped);
        self.met.held += u64::from(events.held);
        self.after(events);
    }

    /// Time has passed: what came over old links has been looked at.
    fn drained(&mut self) -> bool {
        let lost = self.late.is_empty() && self.conn.is_awaiting();
        if lost {
            let events = self.conn.handle_drained();
            self.after(events);
        }
        lost
    }

    fn send(&mut self, amount: u32, urgent: bool) -> bool {
        if self.closed {
            return false;
        }
        let spans = self.conn.send_spans(amount);
        let mut place = self.accepted;
        for span in spans.iter() {
            for offset in span.offset..span.offset + span.len {
                self.ring[offset as usize] = byte(OURS, place);
                place += 1;
            }
        }
        let flags = SendFlags {
            urgent,
            ..SendFlags::default()
        };
        let taken = self.conn.send_commit(spans.len(), flags);
        self.accepted += u64::from(taken);
        if urgent && taken > 0 {
            self.urgent[OURS].push(self.accepted);
        }
        self.after(Events::default());
        taken > 0
    }

    fn receive(&mut self, amount: u32) -> bool {
        if self.closed {
            return false;
        }
        if self.conn.at_mark() && self.conn.readable() > 0 {
            self.mark(OURS, self.read + 1);
        }
        let spans = self.conn.recv_spans(0, amount);
        for span in spans.iter() {
            for offset in span.offset..span.offset + span.len {
                let got = self.element[offset as usize];
                assert_eq!(got, byte(LINUX, self.read), "byte {}", self.read);
                self.read += 1;
            }
        }
        self.conn.recv_commit(spans.len());
        self.after(Events::default());
        !spans.is_empty()
    }

    fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            self.rough |= self.conn.readable() > 0;
            let events = self.conn.close();
            self.after(events);
        }
    }

    // ----- the peer

    fn linux_sends(&mut self, amount: u64, urgent: bool) -> bool {
        let linux = &mut self.linux;
        // While urgent data is not consumed, its sender sleeps.
        if self.rules.quiet || linux.want > End::Open || linux.urgent.or(linux.stalled).is_some() {
            return false;
        }
        let free = linux.send_buffer - (linux.accepted - linux.confirmed).min(linux.send_buffer);
        let amount = amount.min(free);
        linux.accepted += amount;
        if urgent && amount > 0 {
            linux.urgent = Some(linux.accepted);
            self.urgent[LINUX].push(linux.accepted);
        }
        amount > 0
    }

    fn linux_reads(&mut self, amount: u64) -> bool {
        let linux = &mut self.linux;
        // After A, too: it looks for data before it looks for why there is none.
        if linux.has_closed {
            return false;
        }
        let amount = amount.min(linux.announced - linux.read);
        let size = linux.size();
        for place in linux.read..linux.read + amount {
            let got = linux.element[(place % size) as usize];
            assert_eq!(got, byte(OURS, place), "byte {place} at the peer");
        }
        linux.read += amount;
        let told = amount > 0 && linux.report(&mut self.to_us);
        self.met.late_reports += u64::from(amount > 0 && !told);
        amount > 0
    }

    fn linux_works(&mut self) -> bool {
        if self
            .linux
            .stalled
            .is_some_and(|end| self.linux.granted >= end)
        {
            self.linux.stalled = None;
        }
        // What is small may wait for what is under way.
        let waits = !self.linux.flying.is_empty() && self.rng.percent(50);
        let sent = !waits && self.linux.transmit(&mut self.to_us);
        let ended = self.linux.end(&mut self.to_us);
        self.rough |= self.linux.sent == End::Aborted;
        sent || ended
    }

    fn linux_completes(&mut self) -> bool {
        let Some((seq, written)) = self.linux.flying.pop_front() else {
            return false;
        };
        self.linux.confirmed_seq = seq;
        // What was written again after a failover counts from there.
        self.linux.confirmed = self.linux.confirmed.max(written);
        true
    }

    fn linux_closes(&mut self) {
        self.linux.has_closed = true;
        self.linux.want = self.linux.want.max(End::Closed);
    }

    // ----- both

    /// The link fails with what is under way; both go on over another one, if there is one.
    fn fail_over(&mut self) {
        // Each failure in a row costs two bytes of those that are kept for that.
        if self.unheard == 4 {
            return;
        }
        // A place is free when nothing that came over its link is left.
        let is_free = |place: &LinkIx| {
            let mut late = self.late.iter();
            *place != self.link && !late.any(|(link, _)| link == place)
        };
        let Some(next) = LinkIx::all().find(is_free) else {
            return;
        };
        for _ in 0..self.rng.below(4) {
            self.execute();
            self.arrive();
        }
        self.posted.clear();
        self.met.overlapping += u64::from(!self.late.is_empty());
        // What has reached our device is written, and its messages are looked at any time later.
        let there = self.rng.below(2 * self.to_us.len() as u64 + 1) as usize;
        let mut old = VecDeque::new();
        for item in std::mem::take(&mut self.to_us).into_iter().take(there) {
            match item {
                Item::Write { place, len } => self.write(place, len),
                Item::Message(cdc) => {
                    self.land(&cdc);
                    old.push_back(cdc);
                }
            }
        }
        if !old.is_empty() {
            self.late.push((self.link, old));
        }
        self.link = next;
        for _ in 0..self.rng.below(4) {
            self.linux_completes();
        }
        let first = self.completions.drain(..).next();
        if let Some(transmit) = first {
            let events = self.conn.handle_sent(transmit.ticket, false);
            self.after(events);
        }
        // A close that may not have arrived is not said again: what becomes of it is up to our timers.
        self.rough |= self.linux.sent >= End::Closed;
        // It says once that it has consumed urgent data, before which we write nothing more.
        let known = place(self.conn.diag().rx_consumer.raw(), self.linux.size());
        self.rough |= known < self.linux.urgent_end;
        let events = self.conn.handle_failover();
        self.moved = true;
        self.failed = true;
        self.unheard += 1;
        self.after(events);
        self.linux.fail_over(&mut self.to_us);
    }

    pub fn step(&mut self) {
        let likely = if self.late.is_empty() { 1 } else { 5 };
        if self.rules.failover && self.rng.percent(likely) {
            self.fail_over();
        }
        let amount = self.rng.size(1, 60_000);
        if self.rules.limits && self.rng.percent(3) {
            // No less than the least that a program can set.
            self.conn.set_receive_limit(amount.max(1152));
            self.after(Events::default());
        }
        match self.rng.below(12) {
            0 => {
                let urgent = self.rules.urgent && self.rng.percent(10);
                self.send(amount, urgent);
            }
            1 => {
                let urgent = self.rules.urgent && self.rng.percent(10);
                self.linux_sends(u64::from(amount), urgent);
            }
            2 => {
                self.receive(amount);
            }
            3 => {
                self.linux_reads(u64::from(amount));
            }
            4..=5 => {
                self.execute();
            }
            6..=7 => {
                self.arrive();
                if self.rng.percent(20) {
                    self.drained();
                }
            }
            8 => {
                self.complete();
            }
            9 => {
                self.linux_completes();
            }
            10 => {
                self.linux_works();
            }
            _ if self.rng.percent(10) => match self.rng.below(5) {
                0 if self.rules.ends => {
                    let events = self.conn.shutdown_write();
                    self.after(events);
                }
                1 if self.rules.ends => self.linux.want = self.linux.want.max(End::Done),
                2 if self.rules.aborts => self.close(),
                3 if self.rules.aborts => self.linux_closes(),
                4 if self.rules.aborts && !self.closed => {
                    self.rough = true;
                    self.closed = true;
                    let events = self.conn.abort();
                    self.after(events);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Lets everything under way happen; both read all there is.
    fn settle(&mut self) {
        let mut rounds = 0;
        // A message may have found no slot, more than once.
        let mut quiet = 0;
        while quiet < 10 {
            rounds += 1;
            assert!(rounds < 100_000, "no end");
            let mut busy = self.execute();
            busy |= self.arrive();
            busy |= self.complete();
            busy |= self.linux_completes();
            busy |= self.linux_works();
            busy |= self.receive(1 << 20);
            busy |= self.linux_reads(1 << 20);
            busy |= self.drained();
            self.after(Events::default());
            busy |= !self.posted.is_empty();
            quiet = if busy { 0 } else { quiet + 1 };
            let linux = &mut self.linux;
            if quiet == 10 && linux.has_closed && linux.is_open() && !linux.gave_up {
                // Two seconds have passed. If we have closed as well, neither reads what the other owes.
                linux.gave_up = true;
                quiet = 0;
            }
        }
    }

    /// All has arrived: so have the marks of urgent data.
    fn expect_marks(&self) {
        // While urgent data is not consumed its sender has no other. Linux does not repeat the mark of
        // what is sent again over another link.
        if !self.rules.failover && !self.closed {
            assert_eq!(self.marks[OURS], self.urgent[LINUX]);
        }
        // Of ours the last one counts, as with TCP.
        assert_eq!(self.marks[LINUX].last(), self.urgent[OURS].last());
    }

    /// All of it: some steps, quiet, and the end. Whether it ended well.
    pub fn run(&mut self, steps: u32) -> bool {
        for _ in 0..steps {
            self.step();
        }
        self.settle();
        if !self.rough {
            assert!(
                self.closed || self.read == self.linux.accepted,
                "we miss data"
            );
            assert!(
                self.linux.has_closed || self.linux.read == self.accepted,
                "the peer misses data"
            );
            assert_eq!(self.conn.send_unsent(), 0);
            self.expect_marks();
        }
        let well = !self.rough;
        // Its application may not think of closing.
        let lingers = self.rng.percent(20);
        let first = self.rng.percent(50);
        if first && !lingers {
            self.linux_closes();
        }
        self.close();
        if !first && !lingers {
            self.linux_closes();
        }
        self.settle();
        let mut time = 0;
        while let Some(timer) = self.conn.timer() {
            assert!(
                lingers || self.rough,
                "an end without a reason to wait: {timer:?}"
            );
            time += u64::from(timer.millis());
            assert!(time < 200_000, "the end takes too long");
            self.met.timeouts += u64::from(timer != Timer::Cork);
            let events = self.conn.handle_timeout(timer);
            self.rough |= self.conn.reset_tcp();
            self.after(events);
            self.settle();
        }
        assert_eq!(self.conn.state(), State::Closed);
        assert!(self.conn.is_done());
        well
    }
}
