// SPDX-License-Identifier: GPL-2.0

//! Our LLC engine on one host, and a [`Peer`] on the other.
//!
//! Each queue pair has a queue of messages to the one that it is connected to: their order is kept on one link, and
//! not between links. What is on its way on a queue pair that fails is lost, or arrives without being confirmed.

use std::collections::{
    BTreeMap,
    BTreeSet,
    VecDeque, //
};

use smc_proto::{
    group::{
        Element,
        LinkIx,
        OwnRmb,
        OwnTable,
        PeerRmb,
        PeerTable,
        Role,
        Tokens, //
    },
    handshake::LinkResult,
    llc_flow::{
        Attempt,
        DownReason,
        Event,
        Flow,
        FlowParams,
        Note,
        RmbId,
        ShutDown,
        Version, //
    },
    timer::{
        FlowTiming,
        Time, //
    },
    wire::{
        AlertToken,
        RKey,
        RmbeIndex,
        RmbeSize, //
    },
};

use crate::{
    linux::{
        Link,
        Peer,
        Stack,
        Stage, //
    },
    world::{
        end,
        token,
        Log,
        Stimulus, //
    },
};

/// Our host, and the peer's.
pub const WE: usize = 0;
pub const PEER: usize = 1;

/// What the two are like.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub stack: Stack,
    /// Whether the peer is the server.
    pub server: bool,
    pub v2: bool,
    /// Ports of ours and of the peer, all up at the start, and further ones, which are down.
    pub ports: [usize; 2],
    pub spare: [usize; 2],
    /// Buffers that either has from the start.
    pub rmbs: [u16; 2],
}

/// One thing that may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Deliver(usize, u32),
    Notice(usize, u32),
    /// Our driver does what it was asked for, the peer looks at a request.
    Task(usize),
    Time,
}

#[derive(Debug)]
struct Qp {
    port: usize,
    link: LinkIx,
    peer: Option<u32>,
    failed: bool,
    up: bool,
    queue: VecDeque<(Vec<u8>, Option<Note>)>,
}

#[derive(Debug, Clone, Copy)]
enum Task {
    Make(Attempt, bool),
    Connect(Attempt),
}

pub struct Pair {
    pub setup: Setup,
    pub flow: Flow,
    slots: Vec<PeerRmb>,
    own: Vec<Option<OwnRmb>>,
    pub ports: Vec<bool>,
    qps: BTreeMap<u32, Qp>,
    tasks: VecDeque<Task>,
    notices: BTreeSet<(usize, u32)>,
    waiting: BTreeSet<u16>,
    pub confirmed: BTreeSet<u16>,
    deleted: BTreeSet<u16>,
    pub refused: usize,
    next_rmb: u16,
    next_qp: u32,
    pub first: Option<bool>,
    pub down: Option<DownReason>,
    pub released: bool,
    pub ups: usize,
    pub downs: usize,
    pub peer: Peer,
    pub now: u64,
    pub steps: usize,
    pub log: Log,
}

impl Pair {
    pub fn new(setup: Setup) -> Self {
        let role = if setup.server {
            Role::Client
        } else {
            Role::Server
        };
        let flow = Flow::new(FlowParams {
            role,
            version: match setup.v2 {
                false => Version::One,
                true => Version::Two { direct: true },
            },
            max_links: 2,
            max_connections: 255,
            user_id: 0x0a0b_0c01,
            seed: 7,
            timing: FlowTiming::DEFAULT,
        });
        let ports = |h: usize| {
            let mut ports = vec![true; setup.ports[h]];
            ports.extend(vec![false; setup.spare[h]]);
            ports
        };
        let hosts = [host(role), host(role.peer())];
        // Queue pairs of ours have even numbers.
        let ends = [end(hosts[WE], 0, 0x10), end(hosts[PEER], 0, 0x11)];
        let mut pair = Self {
            setup,
            flow: flow.with_further_links(),
            slots: vec![PeerRmb::EMPTY; 255],
            own: Vec::new(),
            ports: ports(WE),
            qps: BTreeMap::new(),
            tasks: VecDeque::new(),
            notices: BTreeSet::new(),
            waiting: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            deleted: BTreeSet::new(),
            refused: 0,
            next_rmb: 0,
            next_qp: 0x10,
            first: None,
            down: None,
            released: false,
            ups: 1,
            downs: 0,
            peer: Peer::new(
                setup.stack,
                role.peer(),
                setup.v2,
                ports(PEER),
                [ends[PEER], ends[WE]],
            ),
            now: 1_000,
            steps: 0,
            log: Log::default(),
        };
        pair.begin(ends);
        pair
    }

    fn begin(&mut self, ends: [smc_proto::group::LinkEnd; 2]) {
        self.make_qp(0, LinkIx::FIRST);
        let first = self.qps.get_mut(&0x10).unwrap();
        (first.peer, first.up) = (Some(0x11), true);
        assert!(self.flow.add_connection());
        for _ in 0..self.setup.rmbs[WE] {
            let id = self.new_rmb();
            self.confirmed.insert(id);
            let token = token(0x10, id);
            self.peer
                .known
                .push(BTreeMap::from([(0x11, (token.rkey.0, token.addr))]));
        }
        for _ in 0..self.setup.rmbs[PEER] {
            let id = self.peer.first_rmb();
            let element = Element {
                token: token(0x11, id),
                index: RmbeIndex::FIRST,
                size: RmbeSize::MIN,
                alert: AlertToken(1),
            };
            let mut table = PeerTable::new(&mut self.slots);
            table.claim(LinkIx::FIRST, &element).unwrap();
        }
        let now = self.time();
        self.flow.start(ends[WE], ends[PEER], None, now);
        self.settle();
        self.peer.start(self.now);
    }

    pub fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn host(&self) -> usize {
        host(self.flow.role())
    }

    fn make_qp(&mut self, port: usize, link: LinkIx) -> u32 {
        let number = self.next_qp;
        self.next_qp += 2;
        let qp = Qp {
            port,
            link,
            peer: None,
            failed: false,
            up: false,
            queue: VecDeque::new(),
        };
        self.qps.insert(number, qp);
        for rmb in self.own.iter_mut().flatten() {
            rmb.tokens.set(link, token(number, rmb.id.0));
        }
        number
    }

    fn new_rmb(&mut self) -> u16 {
        let id = self.next_rmb;
        self.next_rmb += 1;
        let mut tokens = Tokens::EMPTY;
        for (number, qp) in &self.qps {
            tokens.set(qp.link, token(*number, id));
        }
        let rmb = Some(OwnRmb {
            id: RmbId(id),
            tokens,
        });
        match self.own.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = rmb,
            None => self.own.push(rmb),
        }
        id
    }

    fn forget_rmb(&mut self, id: RmbId) {
        for place in &mut self.own {
            if place.is_some_and(|rmb| rmb.id == id) {
                *place = None;
            }
        }
    }

    fn qp_of(&self, link: LinkIx) -> Option<u32> {
        let found = self.qps.iter().find(|(_, qp)| qp.link == link);
        found.map(|(number, _)| *number)
    }

    /// What our driver does after each call.
    fn settle(&mut self) {
        loop {
            if let Some(event) = self.flow.poll_event() {
                self.log.push(format!("{} we: {event:?}", self.now));
                self.event(event);
                continue;
            }
            let table = OwnTable::new(&self.own);
            let Some(send) = self.flow.poll_send_with(&table) else {
                break;
            };
            let mut bytes = send.message.to_vec();
            if send.pairs > 0 {
                let mut more = vec![0; usize::from(send.pairs) * 16];
                assert_eq!(self.flow.write_pairs(&table, &mut more), more.len());
                bytes.extend(more);
            }
            assert!(self.setup.v2 || bytes.len() == 44, "{bytes:02x?}");
            let Some(number) = self.qp_of(send.link) else {
                continue;
            };
            let qp = self.qps.get_mut(&number).unwrap();
            if qp.failed || qp.peer.is_none() {
                self.fail(WE, number);
                continue;
            }
            qp.queue.push_back((bytes, send.note));
        }
    }

    fn event(&mut self, event: Event) {
        let of = |pair: &Self, link| pair.qp_of(link).expect("a queue pair");
        match event {
            Event::MakeLink {
                attempt,
                spare_only,
            } => {
                assert_eq!(self.flow.role(), Role::Server);
                self.tasks.push_back(Task::Make(attempt, spare_only));
            }
            Event::AcceptLink {
                attempt,
                spare_only,
            } => {
                assert_eq!(self.flow.role(), Role::Client);
                self.tasks.push_back(Task::Make(attempt, spare_only));
            }
            Event::ConnectLink(attempt) => self.tasks.push_back(Task::Connect(attempt)),
            Event::LinkUp(link) => {
                let number = of(self, link);
                let qp = self.qps.get_mut(&number).unwrap();
                assert!(!qp.up && qp.peer.is_some());
                qp.up = true;
                self.ups += 1;
            }
            Event::LinkDown(link, _) => {
                let number = of(self, link);
                let qp = self.qps.get_mut(&number).unwrap();
                assert!(qp.up, "down before it was up");
                qp.up = false;
                self.downs += 1;
            }
            Event::LinkGone(link) => self.destroy(of(self, link)),
            Event::LinkWanted => self.hint(),
            Event::FirstContact(result) => {
                let up = matches!(result, LinkResult::Up);
                self.first = Some(up);
                if !up {
                    self.release();
                }
            }
            Event::SpareFree => panic!("no spare was given"),
            Event::RkeyConfirmed(id) => {
                assert!(self.waiting.remove(&id.0));
                self.confirmed.insert(id.0);
            }
            Event::RkeyRefused(id) => {
                assert!(self.waiting.remove(&id.0));
                self.refused += 1;
                self.forget_rmb(id);
            }
            Event::RkeyDeleted(id) => {
                self.deleted.insert(id.0);
                self.forget_rmb(id);
            }
            Event::PeerRmbGone(_) => panic!("connections use it"),
            Event::Hold => {
                let now = self.time();
                self.flow.connections_held(now);
            }
            Event::Seal => {
                let now = self.time();
                let which = self.flow.sealing();
                self.flow.links_sealed(which, now);
            }
            Event::Resume => {}
            Event::WritesArrived(_) => panic!("nobody has asked"),
            Event::Down(reason) => self.down = Some(reason),
            Event::Release => self.release(),
        }
    }

    fn hint(&mut self) {
        if let Some(port) = self.free_port(false) {
            let end = end(self.host(), port, 1);
            let now = self.time();
            self.flow.hint(end.mac, end.gid, now);
        }
    }

    fn destroy(&mut self, number: u32) {
        let qp = self.qps.remove(&number).expect("destroyed once");
        assert!(!qp.up || self.down.is_some() || self.released);
        self.notices.remove(&(WE, number));
        for rmb in self.own.iter_mut().flatten() {
            rmb.tokens.forget(qp.link);
        }
    }

    fn release(&mut self) {
        self.released = true;
        let all: Vec<u32> = self.qps.keys().copied().collect();
        for number in all {
            self.destroy(number);
        }
        self.tasks.clear();
    }

    fn free_port(&self, or_used: bool) -> Option<usize> {
        let ports = || (0..self.ports.len()).filter(|port| self.ports[*port]);
        let free = ports().find(|port| {
            let end = end(self.host(), *port, 1);
            !self.flow.is_port_taken(end.mac, end.gid)
        });
        free.or_else(|| ports().next().filter(|_| or_used))
    }

    fn task(&mut self) {
        let Some(task) = self.tasks.pop_front() else {
            return;
        };
        let now = self.time();
        match task {
            Task::Make(attempt, spare_only) => {
                let link = attempt.link();
                let port = self.free_port(!spare_only);
                let made = port.map(|port| (port, self.make_qp(port, link)));
                let local = made.map(|(port, number)| {
                    // A client knows the other end already.
                    let peer = self.flow.peer_end(link).map(|end| end.qp.get());
                    self.qps.get_mut(&number).unwrap().peer = peer;
                    end(self.host(), port, number)
                });
                let wanted = self.flow.link_made(attempt, local, now);
                if let Some((_, number)) = made.filter(|_| !wanted) {
                    self.destroy(number);
                }
            }
            Task::Connect(attempt) => {
                let link = attempt.link();
                let peer = self.flow.peer_end(link);
                if let Some((peer, number)) = peer.zip(self.qp_of(link)) {
                    let qp = self.qps.get_mut(&number).unwrap();
                    qp.peer = Some(peer.qp.get());
                    let ok = !qp.failed;
                    self.flow.link_connected(attempt, ok, now);
                }
            }
        }
        self.settle();
    }
}

/// The number of a host in the names of its ports.
fn host(role: Role) -> usize {
    usize::from(role == Role::Client)
}

// The fabric.
impl Pair {
    /// The end of ours that a queue pair of the peer reaches.
    fn reached(&self, number: u32) -> Option<LinkIx> {
        let link = self.peer.link(number)?;
        let far = link.far.map(|far| far.qp)?;
        let qp = self.qps.get(&far).filter(|qp| !qp.failed)?;
        let open = self.peer.ports[link.port] && self.ports[qp.port];
        (open && qp.peer.is_none_or(|peer| peer == number)).then_some(qp.link)
    }

    /// The end of the peer's that a queue pair of ours reaches.
    fn reaches(&self, number: u32) -> Option<u32> {
        let qp = self.qps.get(&number)?;
        let link = self.peer.link(qp.peer?).filter(|link| !link.failed)?;
        let open = self.ports[qp.port] && self.peer.ports[link.port];
        let fits = link.far.is_none_or(|far| far.qp == number);
        (open && fits).then_some(link.qp)
    }

    fn peer_gets(&mut self, at: u32, bytes: &[u8]) {
        self.log
            .push(format!("{} we: {at}> {}", self.now, show(bytes)));
        self.peer.now = self.now;
        self.peer.receive(at, bytes);
    }

    fn we_get(&mut self, link: LinkIx, bytes: &[u8]) {
        let place = link.get();
        self.log
            .push(format!("{} peer: {place}> {}", self.now, show(bytes)));
        let now = self.time();
        let before = self.flow.counters().violations;
        let mut table = PeerTable::new(&mut self.slots);
        self.flow.handle_received(link, bytes, &mut table, now);
        let breach = self.flow.counters().violations != before;
        assert!(!breach, "a breach: {:?} {:#?}", self.setup, self.log);
        self.settle();
    }

    fn deliver(&mut self, h: usize, number: u32) {
        if h == WE {
            let qp = self.qps.get_mut(&number).unwrap();
            let link = qp.link;
            let Some((bytes, note)) = qp.queue.pop_front() else {
                return;
            };
            let to = self.reaches(number);
            if let Some(to) = to {
                self.peer_gets(to, &bytes);
            }
            if let Some(note) = note {
                let now = self.time();
                self.flow.handle_sent(link, note, to.is_some(), now);
                self.settle();
            }
            if to.is_none() {
                self.fail(WE, number);
            }
        } else {
            let to = self.reached(number);
            let link = self.peer.link_mut(number).unwrap();
            let Some(bytes) = link.queue.pop_front() else {
                return;
            };
            match to {
                Some(to) => {
                    self.we_get(to, &bytes);
                    self.peer.now = self.now;
                    self.peer.completed();
                }
                None => self.fail(PEER, number),
            }
        }
    }

    /// A queue pair has failed; its host will notice. Some of what was on its way may have got through.
    pub fn fail(&mut self, h: usize, number: u32) {
        let through = (self.steps * 7 + self.now as usize) % 3;
        if h == WE {
            let to = self.reaches(number);
            let Some(qp) = self.qps.get_mut(&number).filter(|qp| !qp.failed) else {
                return;
            };
            qp.failed = true;
            self.notices.insert((WE, number));
            let queue = std::mem::take(&mut qp.queue);
            let Some(to) = to else {
                return;
            };
            for (bytes, _) in queue.iter().take(through) {
                self.peer_gets(to, bytes);
            }
        } else {
            let to = self.reached(number);
            let Some(link) = self.peer.link_mut(number).filter(|link| !link.failed) else {
                return;
            };
            link.failed = true;
            self.notices.insert((PEER, number));
            let queue = std::mem::take(&mut link.queue);
            let Some(to) = to else {
                return;
            };
            for bytes in queue.iter().take(through) {
                self.we_get(to, bytes);
            }
        }
    }

    fn fail_port(&mut self, h: usize, port: usize) {
        let on_port: Vec<u32> = match h {
            WE => {
                let all = self.qps.iter().filter(|(_, qp)| qp.port == port);
                all.map(|(number, _)| *number).collect()
            }
            _ => {
                let all = self.peer.links.iter().filter(|link| link.port == port);
                all.map(|link| link.qp).collect()
            }
        };
        for number in on_port {
            self.fail(h, number);
        }
    }

    /// The peer's end of the first link is gone, and nobody knows.
    pub fn vanish(&mut self) {
        self.peer.links[0].failed = true;
    }

    fn notice(&mut self, h: usize, number: u32) {
        self.notices.remove(&(h, number));
        let now = self.time();
        if h == PEER {
            self.log.push(format!("{} peer: lost {number}", self.now));
            self.peer.now = self.now;
            self.peer.notice(number);
        } else if let Some(qp) = self.qps.get(&number) {
            self.flow.handle_link_failed(qp.link, now);
            self.settle();
        }
    }

    /// What may happen now.
    pub fn actions(&self) -> Vec<Action> {
        let mut all = Vec::new();
        if !self.tasks.is_empty() {
            all.push(Action::Task(WE));
        }
        if self.peer.has_work() {
            all.push(Action::Task(PEER));
        }
        let ours = self.qps.iter().filter(|(_, qp)| !qp.queue.is_empty());
        all.extend(ours.map(|(number, _)| Action::Deliver(WE, *number)));
        let theirs = self.peer.links.iter().filter(|link| !link.queue.is_empty());
        all.extend(theirs.map(|link| Action::Deliver(PEER, link.qp)));
        all.extend(
            self.notices
                .iter()
                .map(|(h, number)| Action::Notice(*h, *number)),
        );
        all
    }

    pub fn act(&mut self, action: Action) {
        self.steps += 1;
        match action {
            Action::Task(WE) => self.task(),
            Action::Task(_) => {
                self.peer.now = self.now;
                self.peer.work();
            }
            Action::Deliver(h, number) => self.deliver(h, number),
            Action::Notice(h, number) => self.notice(h, number),
            Action::Time => {
                if let Some(deadline) = self.deadline() {
                    self.now = self.now.max(deadline);
                    let now = self.time();
                    self.flow.handle_timeout(now);
                    self.settle();
                    self.peer.now = self.now;
                    self.peer.timeout();
                }
            }
        }
    }

    fn deadline(&self) -> Option<u64> {
        let ours = self.flow.next_deadline().map(|time| time.as_millis());
        [ours, self.peer.deadline()].into_iter().flatten().min()
    }

    /// Carries out what is under way, and lets time pass up to a moment.
    pub fn run_until(&mut self, until: u64) {
        for step in 0.. {
            assert!(step < 100_000, "it does not end: {:#?}", self.log);
            if let Some(action) = self.actions().first() {
                self.act(*action);
            } else if self.deadline().is_some_and(|deadline| deadline <= until) {
                self.act(Action::Time);
            } else {
                break;
            }
        }
        self.now = self.now.max(until);
    }

    pub fn stimulate(&mut self, stimulus: Stimulus) {
        self.log.push(format!("{} {stimulus:?}", self.now));
        let now = self.time();
        self.peer.now = self.now;
        match stimulus {
            Stimulus::Announce(WE) => self.announce(),
            Stimulus::Announce(_) => self.peer.announce(),
            Stimulus::Withdraw(WE) => self.withdraw(),
            Stimulus::Withdraw(_) => self.peer.withdraw(self.setup.rmbs[PEER]),
            Stimulus::Cut(h, port) => {
                match h {
                    WE => self.ports[port] = false,
                    _ => self.peer.ports[port] = false,
                }
                self.fail_port(h, port);
            }
            Stimulus::Fail(h) => self.fail_port(h, 0),
            Stimulus::Restore(WE, port) => {
                self.ports[port] = true;
                let end = end(self.host(), port, 1);
                self.flow.hint(end.mac, end.gid, now);
            }
            Stimulus::Restore(_, port) => self.peer.port_came(port),
            Stimulus::Drain(WE) => {
                let last = self
                    .qps
                    .values()
                    .filter(|qp| qp.up)
                    .map(|qp| qp.link)
                    .last();
                if let Some(link) = last {
                    self.flow.delete_link(link, now);
                }
            }
            Stimulus::Drain(_) => self.peer.drain(),
            Stimulus::ShutDown(WE) => self.flow.shut_down(ShutDown::Operator, now),
            Stimulus::ShutDown(_) => self.peer.shut_down(),
            Stimulus::Busy(_) | Stimulus::Lose => panic!("not here"),
        }
        self.settle();
    }

    fn announce(&mut self) {
        if self.flow.is_usable() {
            let id = self.new_rmb();
            let now = self.time();
            if self.flow.announce(RmbId(id), token(1, id), now).is_ok() {
                self.waiting.insert(id);
            } else {
                self.forget_rmb(RmbId(id));
            }
        }
    }

    fn withdraw(&mut self) {
        let id = self.confirmed.range(self.setup.rmbs[WE]..).next().copied();
        let now = self.time();
        if let Some(id) = id {
            if self.flow.withdraw(RmbId(id), RKey(1), now).is_ok() {
                self.confirmed.remove(&id);
            }
        }
    }
}

/// A message for the log.
fn show(bytes: &[u8]) -> String {
    match smc_proto::llc::Llc::parse(bytes) {
        Ok(message) => message.to_string(),
        Err(_) => match smc_proto::llc::v2::Llc::parse(bytes) {
            Ok((message, _)) => format!("{message:?}"),
            Err(_) => format!("{bytes:x?}"),
        },
    }
}

// What has to be true when nothing is under way.
impl Pair {
    /// Our links that are up: number, our queue pair and the peer's.
    pub fn up(&self) -> BTreeSet<(u8, u32, u32)> {
        let all = self.qps.iter().filter(|(_, qp)| qp.up);
        all.map(|(number, qp)| {
            let wire = self.flow.link_number(qp.link).unwrap().get();
            (wire, *number, qp.peer.unwrap())
        })
        .collect()
    }

    /// The ports of either side on which there are links.
    pub fn used(&self) -> [BTreeSet<usize>; 2] {
        let ours = self.qps.values().filter(|qp| qp.up);
        [
            ours.map(|qp| qp.port).collect(),
            self.peer.up().map(|link| link.port).collect(),
        ]
    }

    pub fn is_quiet(&self) -> bool {
        self.actions().is_empty() && !self.peer.is_busy() && !self.flow.has_sends()
    }

    pub fn check(&mut self) -> Result<(), String> {
        if self.peer.reset {
            return Err("the first contact failed".into());
        }
        if !self.peer.breaches.is_empty() {
            return Err(format!("breaches: {:?}", self.peer.breaches));
        }
        let over = [self.flow.is_over(), self.peer.is_over];
        if over[WE] != over[PEER] {
            return Err(format!("over: {over:?}"));
        }
        if over[WE] {
            let rest = !self.qps.is_empty() || !self.peer.links.is_empty();
            return if rest || (self.first == Some(true) && !self.released) {
                Err("something is left".into())
            } else {
                Ok(())
            };
        }
        let theirs = self.peer.up();
        let theirs: BTreeSet<_> = theirs
            .map(|link| (link.number, link.far.map_or(0, |far| far.qp), link.qp))
            .collect();
        if theirs != self.up() {
            return Err(format!("we {:?}, the peer {theirs:?}", self.up()));
        }
        let more = self.qps.len() != theirs.len() || self.peer.links.len() != theirs.len();
        if more || !self.tasks.is_empty() {
            let links = self.peer.links.iter();
            let stages: Vec<(u8, Stage)> = links.map(|link| (link.number, link.stage)).collect();
            return Err(format!("more than the links: {:?}, {stages:?}", self.qps));
        }
        let ports = |link: &Link| (link.port, link.far.map(|far| self.qps[&far.qp].port));
        let pairs: BTreeSet<_> = self.peer.up().map(ports).collect();
        if pairs.len() != theirs.len() {
            return Err(format!("parallel links: {pairs:?}"));
        }
        if theirs.len() > 2 || self.peer.is_busy() || !self.waiting.is_empty() {
            return Err(format!(
                "{} links, {:?} wait, the peer is busy: {}",
                theirs.len(),
                self.waiting,
                self.peer.is_busy()
            ));
        }
        self.check_keys()
    }

    fn check_keys(&mut self) -> Result<(), String> {
        for (number, own, far) in self.up() {
            for id in &self.confirmed {
                let token = token(own, *id);
                let token = (token.rkey.0, token.addr);
                let all = self.peer.known.iter();
                let found = all.filter(|keys| keys.get(&far) == Some(&token)).count();
                if found != 1 {
                    return Err(format!("the peer has {id} {found} times on link {number}"));
                }
            }
            let gone = |keys: &BTreeMap<u32, (u32, u64)>| {
                let mut all = self.deleted.iter();
                all.any(|id| {
                    keys.get(&far)
                        .is_some_and(|key| key.0 == token(own, *id).rkey.0)
                })
            };
            if self.peer.known.iter().any(gone) {
                return Err("a buffer of ours lives on".into());
            }
            let link = self.qps[&own].link;
            let table = PeerTable::new(&mut self.slots);
            let mut places = BTreeSet::new();
            for id in &self.peer.own {
                let token = token(far, *id);
                let slot = table.find(link, token.rkey);
                let place = slot.filter(|slot| table.token(*slot, link) == Some(token));
                if !place.is_some_and(|slot| places.insert(slot.get())) {
                    return Err(format!("we do not have {id} on link {number}"));
                }
            }
            let mut gone = self.peer.forgotten.iter();
            let zombie = gone.find(|id| table.find(link, token(far, **id).rkey).is_some());
            if let Some(id) = zombie {
                return Err(format!("{id} of the peer lives on, on link {number}"));
            }
        }
        Ok(())
    }
}
