// SPDX-License-Identifier: GPL-2.0

//! Two hosts with several ports each, and a small driver on both that makes links.
//!
//! A queue pair is a queue of messages to the one it is connected to. What reaches a port that is
//! down, or a queue pair that is gone, fails at its sender.

use crate::{
    order::Order,
    streams::{
        Arrival,
        Post,
        Stream, //
    },
};
use std::collections::{
    BTreeMap,
    BTreeSet,
    VecDeque, //
};

use smc_proto::{
    conn::Ticket,
    group::{
        Element,
        LinkEnd,
        LinkIx,
        OwnRmb,
        OwnTable,
        PeerRmb,
        PeerTable,
        Role,
        Tokens, //
    },
    llc_flow::{
        Attempt,
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
        Gid,
        Mac,
        MtuCode,
        Psn,
        QpNum,
        RKey,
        RToken,
        RmbeIndex,
        RmbeSize, //
    },
};

/// The server comes first.
pub const ROLES: [Role; 2] = [Role::Server, Role::Client];

/// What the hosts are like.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub v2: bool,
    pub max_links: [u8; 2],
    /// Ports of either host, all up at the start.
    pub ports: [usize; 2],
    /// Further ports, down at the start.
    pub spare: [usize; 2],
    /// Silence after which a link is tested, or zero.
    pub test_link: u32,
    /// Buffers that either host has from the start.
    pub rmbs: [u16; 2],
    /// Connections, each with a buffer of its own at either end; not more than there are buffers.
    pub streams: usize,
}

impl Setup {
    pub const TWO: Self = Self {
        v2: false,
        max_links: [2; 2],
        ports: [2; 2],
        spare: [0; 2],
        test_link: 30_000,
        rmbs: [1, 1],
        streams: 0,
    };
}

/// Something that is asked for, or happens, from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stimulus {
    Announce(usize),
    Withdraw(usize),
    /// A port goes down, and its host knows.
    Cut(usize, usize),
    /// A port is back, or there for the first time.
    Restore(usize, usize),
    /// The second link is taken out of use.
    Drain(usize),
    ShutDown(usize),
    /// The next message that is delivered gets lost, though its sender believes otherwise.
    Lose,
    /// Either side's queue pairs on the first ports fail, and only it knows.
    Fail(usize),
    /// The next LLC message finds no free send slot, nor does what comes after it, for a while.
    Busy(usize),
}

/// One thing that may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    Deliver(usize, u32),
    Task(usize),
    Notice(usize, u32),
    /// A CDC message that has arrived on a queue pair is handled.
    Receive(usize, u32),
    /// A completion of a queue pair is handled.
    Complete(usize, u32),
    /// A host finds out what has arrived of connections that are to move.
    Confirm(usize),
    /// Send slots are free again.
    Room(usize),
    Time,
}

#[derive(Debug)]
enum Message {
    Llc { bytes: Vec<u8>, note: Option<Note> },
    Data(Post),
}

#[derive(Debug)]
pub struct Qp {
    pub port: usize,
    pub link: LinkIx,
    pub peer: Option<u32>,
    pub failed: bool,
    pub up: bool,
    /// It has been up.
    used: bool,
    /// Of messages that it has not sent.
    notes: Vec<Note>,
    /// A write that comes breaks it, at both ends.
    pub sealed: bool,
    queue: VecDeque<Message>,
    /// Messages for connections, and completions of theirs, that nobody has looked at.
    pub arrived: VecDeque<Arrival>,
    pub completed: VecDeque<(usize, Ticket)>,
}

#[derive(Debug, Clone, Copy)]
enum Task {
    Make { attempt: Attempt, spare_only: bool },
    Accept { attempt: Attempt, spare_only: bool },
    Connect(Attempt),
}

pub struct Host {
    pub flow: Flow,
    order: Order,
    pub peers: Vec<PeerRmb>,
    pub own: Vec<Option<OwnRmb>>,
    pub ports: Vec<bool>,
    pub qps: BTreeMap<u32, Qp>,
    tasks: VecDeque<Task>,
    /// Failed queue pairs of which the flow has not been told.
    notices: BTreeSet<u32>,
    pub confirmed: BTreeSet<u16>,
    pub refused: BTreeSet<u16>,
    /// No send slot is free for LLC messages.
    full: bool,
    /// Its connections are held.
    pub held: bool,
    /// How many messages that brought keys were put back.
    pub put_back: usize,
    pub waiting: BTreeSet<u16>,
    pub deleted: BTreeSet<u16>,
    next_rmb: u16,
    pub first: Option<bool>,
    pub down: bool,
    pub released: bool,
    pub ups: usize,
    pub downs: usize,
    pub streams: Vec<Stream>,
    /// The links of which it finds out whether all has arrived.
    pub asked: Vec<LinkIx>,
    /// Makes no further link, though there is a port.
    pub cannot_make: bool,
    last_number: u8,
}

pub struct World {
    pub setup: Setup,
    pub hosts: [Host; 2],
    pub now: u64,
    next_qp: u32,
    lose: usize,
    /// A port whose cable carries nothing, of which nobody is told.
    pub silent: Option<usize>,
    /// What is done to each LLC message on its way.
    pub change: fn(&mut [u8]),
    pub steps: usize,
    /// Writes that came over links which were sealed.
    pub broken_seals: usize,
    pub log: Log,
}

/// What has happened; shown are the last lines, or as many as `SMC_LOG` says.
#[derive(Default)]
pub struct Log(Vec<String>);

impl Log {
    pub fn push(&mut self, line: String) {
        self.0.push(line);
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = std::env::var("SMC_LOG")
            .ok()
            .and_then(|lines| lines.parse().ok());
        let from = self.0.len().saturating_sub(lines.unwrap_or(60));
        self.0[from..]
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// One end of a link.
pub fn end(host: usize, port: usize, qp: u32) -> LinkEnd {
    let (h, p) = (host as u8 + 1, port as u8 + 1);
    LinkEnd {
        mac: Mac([2, 0, 0, 0, h, p]),
        gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, h, p]),
        qp: QpNum::new(qp).unwrap(),
        mtu: MtuCode::new(3).unwrap(),
        psn: Psn::truncate(qp),
    }
}

/// The key of a buffer on a queue pair.
pub fn token(qp: u32, id: u16) -> RToken {
    RToken {
        rkey: RKey(qp * 1000 + u32::from(id)),
        addr: (u64::from(qp) << 32) | (u64::from(id) << 16),
    }
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let host = |h: usize| {
            let flow = Flow::new(FlowParams {
                role: ROLES[h],
                version: match setup.v2 {
                    false => Version::One,
                    true => Version::Two { direct: true },
                },
                max_links: setup.max_links[h],
                max_connections: 50,
                user_id: 0x0a0b_0c01,
                seed: h as u64,
                timing: FlowTiming {
                    test_link: setup.test_link,
                    ..FlowTiming::DEFAULT
                },
            });
            let mut ports = vec![true; setup.ports[h]];
            ports.extend(vec![false; setup.spare[h]]);
            Host {
                flow: flow.with_further_links(),
                order: Order::default(),
                peers: vec![PeerRmb::EMPTY; 255],
                own: vec![],
                ports,
                qps: BTreeMap::new(),
                tasks: VecDeque::new(),
                notices: BTreeSet::new(),
                confirmed: BTreeSet::new(),
                refused: BTreeSet::new(),
                full: false,
                held: false,
                put_back: 0,
                waiting: BTreeSet::new(),
                deleted: BTreeSet::new(),
                next_rmb: 0,
                first: None,
                down: false,
                released: false,
                ups: 0,
                downs: 0,
                streams: (0..setup.streams).map(Stream::new).collect(),
                asked: Vec::new(),
                cannot_make: false,
                last_number: 1,
            }
        };
        let mut world = Self {
            setup,
            hosts: [host(0), host(1)],
            now: 1_000,
            next_qp: 0x10,
            lose: 0,
            silent: None,
            change: |_| (),
            steps: 0,
            broken_seals: 0,
            log: Log(Vec::new()),
        };
        for h in 0..2 {
            let qp = world.make_qp(h, 0, LinkIx::FIRST);
            assert_eq!(qp, 0x10 + h as u32);
        }
        for h in 0..2 {
            let (own, peer) = (0x10 + h as u32, 0x10 + (1 - h) as u32);
            world.hosts[h].qps.get_mut(&own).unwrap().peer = Some(peer);
            world.hosts[h].qps.get_mut(&own).unwrap().up = true;
            world.hosts[h].qps.get_mut(&own).unwrap().used = true;
            world.hosts[h].ups = 1;
            assert!(world.hosts[h].flow.add_connection());
            for _ in 0..setup.rmbs[h] {
                let id = world.new_rmb(h);
                world.hosts[h].confirmed.insert(id);
                // As if CLC, or CONFIRM RKEY, had said so.
                let element = Element {
                    token: token(own, id),
                    index: RmbeIndex::FIRST,
                    size: RmbeSize::MIN,
                    alert: AlertToken(1),
                };
                let mut table = PeerTable::new(&mut world.hosts[1 - h].peers);
                let claim = table.claim(LinkIx::FIRST, &element).unwrap();
                if let Some(stream) = world.hosts[1 - h].streams.get_mut(usize::from(id)) {
                    stream.peer = Some(claim.element());
                }
            }
        }
        // The client starts before its Confirm is sent.
        for h in [1, 0] {
            let (own, peer) = (0x10 + h as u32, 0x10 + (1 - h) as u32);
            let (own, peer) = (end(h, 0, own), end(1 - h, 0, peer));
            let now = world.time();
            world.hosts[h].flow.start(own, peer, None, now);
            world.settle(h);
        }
        world
    }

    pub fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn make_qp(&mut self, h: usize, port: usize, link: LinkIx) -> u32 {
        let number = self.next_qp;
        self.next_qp += 1;
        let qp = Qp {
            port,
            link,
            peer: None,
            failed: false,
            up: false,
            used: false,
            notes: Vec::new(),
            sealed: false,
            queue: VecDeque::new(),
            arrived: VecDeque::new(),
            completed: VecDeque::new(),
        };
        self.hosts[h].qps.insert(number, qp);
        for rmb in self.hosts[h].own.iter_mut().flatten() {
            rmb.tokens.set(link, token(number, rmb.id.0));
        }
        number
    }

    fn new_rmb(&mut self, h: usize) -> u16 {
        let host = &mut self.hosts[h];
        let id = host.next_rmb;
        host.next_rmb += 1;
        let mut tokens = Tokens::EMPTY;
        for (number, qp) in &host.qps {
            tokens.set(qp.link, token(*number, id));
        }
        let rmb = Some(OwnRmb {
            id: RmbId(id),
            tokens,
        });
        match host.own.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = rmb,
            None => host.own.push(rmb),
        }
        id
    }

    pub fn qp_of(&self, h: usize, link: LinkIx) -> Option<u32> {
        self.hosts[h]
            .qps
            .iter()
            .find(|(_, qp)| qp.link == link)
            .map(|(number, _)| *number)
    }

    /// What a driver does after each call.
    pub fn settle(&mut self, h: usize) {
        loop {
            let host = &mut self.hosts[h];
            if let Some(event) = host.flow.poll_event() {
                self.log
                    .push(format!("{} {:?}: {event:?}", self.now, ROLES[h]));
                self.event(h, event);
                continue;
            }
            let table = OwnTable::new(&host.own);
            let Some(send) = host.flow.poll_send_with(&table) else {
                break;
            };
            if host.full {
                host.put_back += usize::from(send.pairs > 0);
                host.flow.put_back();
                break;
            }
            let mut bytes = send.message.to_vec();
            if send.pairs > 0 {
                let mut more = vec![0; usize::from(send.pairs) * 16];
                assert_eq!(host.flow.write_pairs(&table, &mut more), more.len());
                bytes.extend(more);
            }
            // Linux has no more room for one.
            assert!(self.setup.v2 || bytes.len() == 44, "{bytes:02x?}");
            let text = match smc_proto::llc::Llc::parse(&bytes) {
                Ok(message) => message.to_string(),
                Err(_) => {
                    let (message, _) = smc_proto::llc::v2::Llc::parse(&bytes).unwrap();
                    // What stands before the keys has to fit them.
                    let count = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                    assert!(send.pairs == 0 || usize::from(count(1)) == bytes.len());
                    assert!(send.pairs == 0 || count(70) == u16::from(send.pairs));
                    format!("{message:?}")
                }
            };
            let place = send.link.get();
            self.log
                .push(format!("{} {:?}: {place}> {text}", self.now, ROLES[h]));
            let server = ROLES[h] == Role::Server;
            let order = &mut self.hosts[h].order;
            if let Err(error) = order.sent(server, send.link, &bytes, self.now) {
                panic!("{:?}: {error}\n{:#?}", ROLES[h], self.log);
            }
            let Some(number) = self.qp_of(h, send.link) else {
                continue;
            };
            let qp = self.hosts[h].qps.get_mut(&number).unwrap();
            if qp.failed || qp.peer.is_none() {
                self.fail(h, number);
                continue;
            }
            qp.queue.push_back(Message::Llc {
                bytes,
                note: send.note,
            });
        }
        self.post_streams(h);
    }

    fn event(&mut self, h: usize, event: Event) {
        let number = |world: &Self, link| world.qp_of(h, link).expect("a queue pair");
        match event {
            Event::MakeLink {
                attempt,
                spare_only,
            } => {
                assert_eq!(ROLES[h], Role::Server);
                self.hosts[h].tasks.push_back(Task::Make {
                    attempt,
                    spare_only,
                });
            }
            Event::AcceptLink {
                attempt,
                spare_only,
            } => {
                assert_eq!(ROLES[h], Role::Client);
                self.hosts[h].order.accept();
                self.hosts[h].tasks.push_back(Task::Accept {
                    attempt,
                    spare_only,
                });
            }
            Event::ConnectLink(attempt) => self.hosts[h].tasks.push_back(Task::Connect(attempt)),
            Event::LinkUp(link) => {
                let qp = number(self, link);
                let qp = self.hosts[h].qps.get_mut(&qp).unwrap();
                assert!(!qp.up && qp.peer.is_some());
                qp.up = true;
                qp.used = true;
                self.hosts[h].ups += 1;
                self.rebalance(h);
                let wire = self.hosts[h].flow.link_number(link).unwrap().get();
                let before = std::mem::replace(&mut self.hosts[h].last_number, wire);
                assert!(
                    wire > before || before > 200,
                    "link number {wire} used again after {before}"
                );
            }
            Event::WritesArrived(link) => self.writes_arrived(h, link),
            Event::LinkDown(link, _) => {
                self.hosts[h].order.lost(link);
                self.hosts[h].asked.retain(|asked| *asked != link);
                self.seal(h);
                let qp = number(self, link);
                let qp = self.hosts[h].qps.get_mut(&qp).unwrap();
                assert!(qp.up, "down before it was up");
                qp.up = false;
                self.hosts[h].downs += 1;
                self.move_streams(h, link);
            }
            Event::LinkGone(link) => {
                let qp = number(self, link);
                if !self.hosts[h].qps[&qp].used {
                    self.hosts[h].order.dropped();
                }
                self.destroy(h, qp);
            }
            Event::LinkWanted => {
                if let Some(port) = self.free_port(h, false) {
                    let end = end(h, port, 1);
                    let now = self.time();
                    self.hosts[h].flow.hint(end.mac, end.gid, now);
                }
            }
            Event::FirstContact(result) => {
                let up = matches!(result, smc_proto::handshake::LinkResult::Up);
                self.hosts[h].first = Some(up);
                if !up {
                    self.release(h);
                }
            }
            Event::SpareFree => panic!("no spare was given"),
            Event::RkeyConfirmed(id) => {
                assert!(self.hosts[h].waiting.remove(&id.0));
                self.hosts[h].confirmed.insert(id.0);
            }
            Event::RkeyRefused(id) => {
                assert!(self.hosts[h].waiting.remove(&id.0));
                self.hosts[h].refused.insert(id.0);
                self.forget_rmb(h, id);
            }
            Event::RkeyDeleted(id) => {
                self.hosts[h].deleted.insert(id.0);
                self.forget_rmb(h, id);
            }
            Event::PeerRmbGone(_) => self.hosts[h].flow.rmb_abandoned(),
            Event::Hold => {
                self.seal(h);
                self.hold_streams(h, true);
                let now = self.time();
                self.hosts[h].flow.connections_held(now);
            }
            Event::Seal => {
                self.seal(h);
                let now = self.time();
                let which = self.hosts[h].flow.sealing();
                self.hosts[h].flow.links_sealed(which, now);
            }
            Event::Resume => {
                self.seal(h);
                self.hold_streams(h, false);
                self.post_streams(h);
            }
            Event::Down(_) => {
                self.hosts[h].down = true;
                for stream in &mut self.hosts[h].streams {
                    let _ = stream.conn.handle_link_failed();
                }
            }
            Event::Release => self.release(h),
        }
    }

    fn seal(&mut self, h: usize) {
        let Host { qps, flow, .. } = &mut self.hosts[h];
        for qp in qps.values_mut() {
            qp.sealed = flow.is_sealed(qp.link);
        }
    }

    /// Whether a queue pair takes what was posted.
    fn takes(&self, h: usize, number: u32, post: &Post) -> bool {
        let writes = post.transmit.data_len() != 0;
        let qp = self.hosts[h].qps.get(&number);
        qp.is_some_and(|qp| !(qp.failed || qp.sealed && writes))
    }

    fn hold_streams(&mut self, h: usize, on: bool) {
        self.hosts[h].held = on;
        for stream in &mut self.hosts[h].streams {
            stream.conn.set_held(on, on);
        }
    }

    fn forget_rmb(&mut self, h: usize, id: RmbId) {
        for place in &mut self.hosts[h].own {
            if place.is_some_and(|rmb| rmb.id == id) {
                *place = None;
            }
        }
    }

    fn destroy(&mut self, h: usize, number: u32) {
        // What has arrived is handled before the queue goes.
        while self.hosts[h].qps[&number].arrived.front().is_some() {
            self.receive(h, number);
        }
        let host = &mut self.hosts[h];
        let qp = host.qps.remove(&number).expect("destroyed once");
        assert!(!qp.up || host.down || host.released);
        host.notices.remove(&number);
        for rmb in host.own.iter_mut().flatten() {
            rmb.tokens.forget(qp.link);
        }
    }

    fn release(&mut self, h: usize) {
        self.hosts[h].released = true;
        let all: Vec<u32> = self.hosts[h].qps.keys().copied().collect();
        for number in all {
            self.destroy(h, number);
        }
        self.hosts[h].tasks.clear();
    }

    /// A queue pair has failed; its host will notice.
    pub fn fail(&mut self, h: usize, number: u32) {
        if let Some(qp) = self.hosts[h].qps.get_mut(&number) {
            if !qp.failed {
                qp.failed = true;
                self.flush(h, number);
                self.hosts[h].notices.insert(number);
            }
        }
    }

    /// What was posted on a queue pair is not confirmed any more, though some of it may have got
    /// through.
    pub fn flush(&mut self, h: usize, number: u32) {
        let qp = self.hosts[h].qps.get_mut(&number).unwrap();
        let peer = qp.peer.unwrap_or(0);
        let queue = std::mem::take(&mut qp.queue);
        let note = |message: &Message| match message {
            Message::Llc { note, .. } => *note,
            Message::Data(_) => None,
        };
        qp.notes.extend(queue.iter().filter_map(note));
        // Any number will do, as long as it differs from time to time.
        let through = (self.steps * 7 + self.now as usize) % 4;
        for message in queue.into_iter().take(through) {
            let Message::Data(post) = message else {
                continue;
            };
            if !self.takes(1 - h, peer, &post) {
                break;
            }
            self.execute(h, number, peer, &post);
        }
        // Time enough passes before connections go on elsewhere.
        self.put_into_memory(1 - h, peer);
    }

    fn free_port(&self, h: usize, or_used: bool) -> Option<usize> {
        let host = &self.hosts[h];
        let ports = || (0..host.ports.len()).filter(|port| host.ports[*port]);
        let free = ports().find(|port| {
            let end = end(h, *port, 1);
            !host.flow.is_port_taken(end.mac, end.gid)
        });
        free.or_else(|| ports().next().filter(|_| or_used))
    }

    fn task(&mut self, h: usize) {
        let Some(task) = self.hosts[h].tasks.pop_front() else {
            return;
        };
        let now = self.time();
        let attempt = match task {
            Task::Make { attempt, .. } | Task::Accept { attempt, .. } => Some(attempt),
            Task::Connect(_) => None,
        };
        if let Some(attempt) = attempt.filter(|_| self.hosts[h].cannot_make) {
            if matches!(task, Task::Accept { .. }) {
                self.hosts[h].order.dropped();
            }
            let _ = self.hosts[h].flow.link_not_made(attempt, now);
            return self.settle(h);
        }
        match task {
            Task::Make {
                attempt,
                spare_only,
            } => {
                let link = attempt.link();
                let port = self.free_port(h, !spare_only);
                let made = port.map(|port| (port, self.make_qp(h, port, link)));
                let local = made.map(|(port, qp)| end(h, port, qp));
                let wanted = self.hosts[h].flow.link_made(attempt, local, now);
                if let Some((_, qp)) = made.filter(|_| !wanted) {
                    self.destroy(h, qp);
                }
            }
            Task::Accept {
                attempt,
                spare_only,
            } => {
                let link = attempt.link();
                let port = self.free_port(h, !spare_only);
                let peer = self.hosts[h].flow.peer_end(link);
                if port.is_none() {
                    self.hosts[h].order.dropped();
                }
                let made = port
                    .zip(peer)
                    .map(|(port, peer)| (port, peer, self.make_qp(h, port, link)));
                let local = made.map(|(port, peer, qp)| {
                    self.hosts[h].qps.get_mut(&qp).unwrap().peer = Some(peer.qp.get());
                    end(h, port, qp)
                });
                let wanted = self.hosts[h].flow.link_made(attempt, local, now);
                if let Some((_, _, qp)) = made.filter(|_| !wanted) {
                    self.destroy(h, qp);
                }
            }
            Task::Connect(attempt) => {
                let link = attempt.link();
                let peer = self.hosts[h].flow.peer_end(link);
                let qp = self.qp_of(h, link);
                if let Some((peer, qp)) = peer.zip(qp) {
                    let qp = self.hosts[h].qps.get_mut(&qp).unwrap();
                    qp.peer = Some(peer.qp.get());
                    let ok = !qp.failed;
                    self.hosts[h].flow.link_connected(attempt, ok, now);
                }
            }
        }
        self.settle(h);
    }

    fn deliver(&mut self, h: usize, number: u32) {
        let Some(qp) = self.hosts[h].qps.get_mut(&number) else {
            return;
        };
        let Some(message) = qp.queue.pop_front() else {
            return;
        };
        let (port, from, peer) = (qp.port, qp.link, qp.peer.unwrap_or(0));
        let r = 1 - h;
        let open = self.hosts[h].ports[port];
        let target = self.hosts[r]
            .qps
            .get(&peer)
            .filter(|qp| open && !qp.failed && qp.peer.is_none_or(|peer| peer == number))
            .filter(|qp| self.hosts[r].ports[qp.port])
            .map(|qp| qp.link);
        let now = self.time();
        let ok = target.is_some();
        let (mut bytes, note) = match message {
            Message::Llc { bytes, note } => (bytes, note),
            Message::Data(post) => {
                if ok && self.takes(r, peer, &post) {
                    self.execute(h, number, peer, &post);
                    let qp = self.hosts[h].qps.get_mut(&number).unwrap();
                    if post.transmit.signal {
                        qp.completed.push_back((post.stream, post.transmit.ticket));
                    }
                } else {
                    if ok {
                        self.broken_seals += 1;
                        self.fail(r, peer);
                    }
                    self.fail(h, number);
                }
                return;
            }
        };
        if let Some(link) = target {
            if self.silent == Some(port) {
                // Its sender believes otherwise.
            } else if self.lose > 0 {
                self.lose -= 1;
            } else {
                // Nothing overtakes another message on the same link.
                while !self.hosts[r].qps[&peer].arrived.is_empty() {
                    self.receive(r, peer);
                }
                (self.change)(&mut bytes);
                let host = &mut self.hosts[r];
                let server = ROLES[r] == Role::Server;
                let qp = &host.qps[&peer];
                if qp.up || !qp.used {
                    host.order.received(server, link, &bytes, self.now);
                }
                let mut table = PeerTable::new(&mut host.peers);
                host.flow.handle_received(link, &bytes, &mut table, now);
                self.settle(r);
            }
        }
        if let Some(note) = note {
            self.hosts[h].flow.handle_sent(from, note, ok, now);
            self.settle(h);
        }
        if !ok {
            self.fail(h, number);
        }
    }

    fn notice(&mut self, h: usize, number: u32) {
        self.hosts[h].notices.remove(&number);
        if let Some(qp) = self.hosts[h].qps.get_mut(&number) {
            let (link, notes) = (qp.link, std::mem::take(&mut qp.notes));
            let now = self.time();
            self.hosts[h].flow.handle_link_failed(link, now);
            self.settle(h);
            // Their completions come after the event that the link has failed.
            for note in notes {
                self.hosts[h].flow.handle_sent(link, note, false, now);
                self.settle(h);
            }
        }
    }

    fn deadline(&self) -> Option<u64> {
        self.hosts
            .iter()
            .filter_map(|host| host.flow.next_deadline())
            .map(|time| time.as_millis())
            .min()
    }

    /// What may happen now.
    pub fn actions(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (h, host) in self.hosts.iter().enumerate() {
            if !host.tasks.is_empty() {
                all.push(Action::Task(h));
            }
            if self.waits_for_arrival(h) {
                all.push(Action::Confirm(h));
            }
            if host.full && host.flow.has_sends() {
                all.push(Action::Room(h));
            }
            for (number, qp) in &host.qps {
                if !qp.queue.is_empty() {
                    all.push(Action::Deliver(h, *number));
                }
            }
            all.extend(host.notices.iter().map(|qp| Action::Notice(h, *qp)));
            for (number, qp) in &host.qps {
                if !qp.arrived.is_empty() {
                    all.push(Action::Receive(h, *number));
                }
                if !qp.completed.is_empty() {
                    all.push(Action::Complete(h, *number));
                }
            }
        }
        all
    }

    pub fn act(&mut self, action: Action) {
        self.steps += 1;
        match action {
            Action::Task(h) => self.task(h),
            Action::Deliver(h, qp) => self.deliver(h, qp),
            Action::Notice(h, qp) => self.notice(h, qp),
            Action::Receive(h, qp) => self.receive(h, qp),
            Action::Complete(h, qp) => self.complete(h, qp),
            Action::Confirm(h) => self.confirm_writes(h),
            Action::Room(h) => {
                self.hosts[h].full = false;
                self.settle(h);
            }
            Action::Time => {
                if let Some(deadline) = self.deadline() {
                    self.now = self.now.max(deadline);
                    for h in 0..2 {
                        let now = self.time();
                        self.hosts[h].flow.handle_timeout(now);
                        self.settle(h);
                    }
                }
            }
        }
    }

    /// Carries out the next thing that is under way, or lets time pass up to a deadline.
    pub fn step(&mut self) {
        let action = self.actions().first().copied();
        self.act(action.unwrap_or(Action::Time));
    }

    /// Carries out what is under way, and lets time pass up to a moment.
    pub fn run_until(&mut self, until: u64) {
        loop {
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
        let now = self.time();
        self.log.push(format!("{} {stimulus:?}", self.now));
        let h = match stimulus {
            Stimulus::Announce(h) => {
                if self.hosts[h].flow.is_usable() {
                    let id = self.new_rmb(h);
                    let flow = &mut self.hosts[h].flow;
                    if flow.announce(RmbId(id), token(1, id), now).is_ok() {
                        self.hosts[h].waiting.insert(id);
                    } else {
                        self.forget_rmb(h, RmbId(id));
                    }
                }
                h
            }
            Stimulus::Withdraw(h) => {
                // Not those that connections use.
                let given = self.setup.rmbs[h];
                let id = self.hosts[h].confirmed.range(given..).next().copied();
                if let Some(id) = id {
                    let flow = &mut self.hosts[h].flow;
                    if flow.withdraw(RmbId(id), RKey(1), now).is_ok() {
                        self.hosts[h].confirmed.remove(&id);
                    }
                }
                h
            }
            Stimulus::Cut(h, port) => {
                self.hosts[h].ports[port] = false;
                self.fail_port(h, port);
                h
            }
            Stimulus::Fail(h) => {
                self.fail_port(h, 0);
                h
            }
            Stimulus::Restore(h, port) => {
                self.hosts[h].ports[port] = true;
                let end = end(h, port, 1);
                self.hosts[h].flow.hint(end.mac, end.gid, now);
                h
            }
            Stimulus::Drain(h) => {
                let link = LinkIx::new(1).unwrap();
                self.hosts[h].flow.delete_link(link, now);
                h
            }
            Stimulus::ShutDown(h) => {
                self.hosts[h].flow.shut_down(ShutDown::Operator, now);
                h
            }
            Stimulus::Busy(h) => {
                self.hosts[h].full = true;
                h
            }
            Stimulus::Lose => {
                self.lose += 1;
                0
            }
        };
        self.settle(h);
    }

    fn fail_port(&mut self, h: usize, port: usize) {
        let on_port: Vec<u32> = self.hosts[h]
            .qps
            .iter()
            .filter(|(_, qp)| qp.port == port)
            .map(|(number, _)| *number)
            .collect();
        for number in on_port {
            self.fail(h, number);
        }
    }

    /// The links of a host that are up: number on the wire, port, and queue pairs of both ends.
    pub fn up(&self, h: usize) -> BTreeSet<(u8, usize, u32, u32)> {
        let host = &self.hosts[h];
        let all = host.qps.iter().filter(|(_, qp)| qp.up);
        all.map(|(number, qp)| {
            assert!(host.flow.is_link_up(qp.link) || !host.flow.is_usable());
            let wire = host.flow.link_number(qp.link).unwrap().get();
            (wire, qp.port, *number, qp.peer.unwrap())
        })
        .collect()
    }

    /// Whether a link is left if this port goes: one that works at both ends, and that nobody means to end.
    pub fn survives(&self, h: usize, port: usize) -> bool {
        let works = |h: usize, qp: &Qp| {
            let Host { ports, flow, .. } = &self.hosts[h];
            qp.up && !qp.failed && !qp.sealed && ports[qp.port] && !flow.is_doomed(qp.link)
        };
        self.hosts[h].qps.values().any(|qp| {
            let far = qp.peer.and_then(|peer| self.hosts[1 - h].qps.get(&peer));
            qp.port != port && works(h, qp) && far.is_some_and(|far| works(1 - h, far))
        })
    }

    /// Posts a chain of a connection.
    pub fn post(&mut self, h: usize, number: u32, post: Post) {
        assert_eq!(post.transmit.cdc.emit().len(), 44);
        let qp = self.hosts[h].qps.get_mut(&number).unwrap();
        if qp.failed {
            return;
        }
        qp.queue.push_back(Message::Data(post));
    }

    /// Whether nothing is under way but the data of connections.
    pub fn is_quiet(&self) -> bool {
        self.hosts.iter().all(|host| {
            let mut queued = host.qps.values().flat_map(|qp| &qp.queue);
            host.tasks.is_empty()
                && host.notices.is_empty()
                && !host.flow.has_sends()
                && !queued.any(|message| matches!(message, Message::Llc { .. }))
        })
    }

    /// What has to be true when nothing is under way.
    pub fn check(&mut self) -> Result<(), String> {
        let over = [0, 1].map(|h| self.hosts[h].flow.is_over());
        if over[0] != over[1] {
            return Err(format!("over: {over:?}"));
        }
        if over[0] {
            for (host, role) in self.hosts.iter().zip(ROLES) {
                if !host.qps.is_empty() {
                    return Err(format!("{role:?} keeps queue pairs"));
                }
            }
            return Ok(());
        }
        let up = [0, 1].map(|h| self.up(h));
        let links = |h: usize| -> BTreeSet<(u8, u32, u32)> {
            let all = up[h].iter();
            match h {
                0 => all.map(|(n, _, own, peer)| (*n, *own, *peer)).collect(),
                _ => all.map(|(n, _, own, peer)| (*n, *peer, *own)).collect(),
            }
        };
        if links(0) != links(1) {
            return Err(format!("links differ: {up:?}"));
        }
        for h in 0..2 {
            let host = &self.hosts[h];
            if host.qps.len() != up[h].len() || !host.tasks.is_empty() {
                return Err(format!(
                    "{:?} has more than its links: {:?}",
                    ROLES[h], host.qps
                ));
            }
            if !host.refused.is_empty() || !host.waiting.is_empty() {
                return Err(format!(
                    "{:?}: {:?} refused, {:?} wait",
                    ROLES[h], host.refused, host.waiting
                ));
            }
        }
        // No two links between the same ports, and one that shares a port at most.
        let mut pairs = BTreeSet::new();
        let mut shared = 0;
        let mut used = [BTreeSet::new(), BTreeSet::new()];
        for (_, port, own, _) in &up[0] {
            let far = up[1].iter().find(|link| link.3 == *own).unwrap().1;
            if !pairs.insert((*port, far)) {
                return Err(format!("parallel links: {up:?}"));
            }
            let fresh = [used[0].insert(*port), used[1].insert(far)];
            shared += usize::from(fresh != [true; 2]);
        }
        if shared > 1 {
            return Err(format!("{shared} asymmetric links: {up:?}"));
        }
        let max = self.setup.max_links.into_iter().min().unwrap();
        if up[0].len() - shared > usize::from(max) {
            return Err(format!("too many links: {up:?}"));
        }
        self.check_keys()
    }

    /// The group goes on, with links on all ports that have a counterpart. Where a message was lost, it may have been
    /// that of a third one, and in version 2 an asymmetric one leaves no room for it: then there are two at least.
    pub fn check_redundancy(&self, lossy: bool) -> Result<(), String> {
        if !self.hosts[0].flow.is_usable() {
            return Err("the group ended".into());
        }
        let ports = [0, 1].map(|h| self.hosts[h].ports.iter().filter(|up| **up).count());
        let used =
            [0, 1].map(|h| -> BTreeSet<usize> { self.up(h).iter().map(|link| link.1).collect() });
        let max = usize::from(self.setup.max_links.into_iter().min().unwrap());
        let most = if lossy || self.setup.v2 {
            max.min(2)
        } else {
            max
        };
        let wanted = ports.into_iter().min().unwrap().min(most);
        let any = ports.into_iter().max().unwrap().min(2);
        if used.iter().any(|used| used.len() < wanted) || self.up(0).len() < any {
            return Err(format!("{used:?} are in use of {ports:?} ports"));
        }
        Ok(())
    }

    /// Each buffer that the peer was told of has the right key on each link.
    fn check_keys(&mut self) -> Result<(), String> {
        for h in 0..2 {
            let up = self.up(h);
            let confirmed = self.hosts[h].confirmed.clone();
            let gone = self.hosts[h].deleted.clone();
            for (wire, _, own, peer) in up {
                let link = self.hosts[1 - h].qps[&peer].link;
                let table = PeerTable::new(&mut self.hosts[1 - h].peers);
                let mut slots = BTreeSet::new();
                for id in &confirmed {
                    let Some(slot) = table.find(link, token(own, *id).rkey) else {
                        return Err(format!(
                            "{:?} has no key for {id} on link {wire}",
                            ROLES[1 - h]
                        ));
                    };
                    if table.token(slot, link) != Some(token(own, *id)) {
                        return Err(format!("wrong key for {id} on link {wire}"));
                    }
                    if !slots.insert(slot.get()) {
                        return Err("two buffers in one place".into());
                    }
                }
                for id in &gone {
                    if table.find(link, token(own, *id).rkey).is_some() {
                        return Err(format!("{id} lives on"));
                    }
                }
            }
        }
        Ok(())
    }
}
