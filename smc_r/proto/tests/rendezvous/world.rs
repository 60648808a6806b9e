// SPDX-License-Identifier: GPL-2.0

//! Two hosts, a TCP connection and a link between them, in virtual time.
//!
//! A [`Host`] is a small driver written after the rules of the handshake and flow modules: it
//! carries out every action and event the way a kernel would, and can be told to fail at it.

use crate::facts::{
    element,
    end,
    own_v2,
    proposal, //
};
use smc_proto::{
    group::{
        LinkEnd,
        LinkIx,
        PeerElement,
        PeerRmb,
        PeerTable,
        Role, //
    },
    handshake::{
        accept_subsequent,
        crossed_decline,
        Action,
        Client,
        Contact,
        Crossed,
        Failure,
        Fallback,
        Local,
        Peer,
        Rendezvous,
        Server, //
    },
    llc_flow::{
        DownReason,
        Event,
        Flow,
        FlowParams,
        Frame,
        Note,
        Outgoing,
        RmbId,
        ShutDown,
        Version, //
    },
    timer::{
        FlowTiming,
        HandshakeTiming,
        Time, //
    },
    wire::{
        Diagnosis,
        MtuCode,
        PeerId, //
    },
};
use std::collections::VecDeque;

/// One-way delay of TCP, in milliseconds.
const TCP_DELAY: u64 = 3;
/// One-way delay of the link.
const LINK_DELAY: u64 = 1;
/// How long a queue pair tries before it gives up on a SEND.
const RETRIES: u64 = 1_500;

/// How a connection stands on one host.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The rendezvous is under way.
    Pending,
    /// RDMA.
    Smc(Peer),
    /// Plain TCP.
    Tcp(Fallback),
    /// The rendezvous failed, TCP was reset by us.
    Failed(Failure),
    /// It had an outcome, and was reset later.
    Aborted,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing gets through on the link any more; senders notice after a while.
    LinkBreaks,
    /// As before, and both ends are told at once.
    PortsDown,
    /// TCP stands still for so long, in both directions.
    TcpStalls(u64),
    /// TCP is reset by something in the middle.
    TcpResets,
    /// This host does nothing at all for so long.
    Sleeps(Role, u64),
    /// This host's next answer to a question of its rendezvous is a refusal.
    Refuses(Role),
    /// This host's LLC messages get lost from now on, while its queue pair believes otherwise.
    GoesDumb(Role),
}

/// How a host behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// As we do.
    Ours,
    /// As far as the peer sees it, like Linux on a little-endian machine.
    Linux,
}

impl Stack {
    fn handshake(self) -> HandshakeTiming {
        match self {
            Self::Ours => HandshakeTiming::DEFAULT,
            Self::Linux => HandshakeTiming {
                clc: 6_000,
                decline: 1_000,
                ..HandshakeTiming::DEFAULT
            },
        }
    }

    fn flow(self) -> FlowTiming {
        match self {
            Self::Ours => FlowTiming::DEFAULT,
            Self::Linux => FlowTiming {
                confirm_link_reply: 2_000,
                confirm_link_request: 4_000,
                add_link_request: 2_000,
                reply: 2_000,
                test_link_reply: 2_000,
                ..FlowTiming::DEFAULT
            },
        }
    }
}

/// What the two hosts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Most links that they agree on in version 2; none for version 1.
    pub v2: Option<u8>,
    pub client: Stack,
    pub server: Stack,
}

impl Setup {
    pub const V1: Self = Self {
        v2: None,
        client: Stack::Ours,
        server: Stack::Ours,
    };

    pub const V2: Self = Self {
        v2: Some(2),
        ..Self::V1
    };

    fn stack(&self, role: Role) -> Stack {
        match role {
            Role::Client => self.client,
            Role::Server => self.server,
        }
    }
}

/// Something on its way.
#[derive(Debug, Clone)]
enum Happening {
    Tcp {
        to: Role,
        bytes: Vec<u8>,
    },
    Reset {
        to: Role,
    },
    Llc {
        to: Role,
        message: Frame,
    },
    Sent {
        to: Role,
        note: Option<Note>,
        ok: bool,
    },
    Wake {
        to: Role,
    },
}

/// The machine of a host.
pub enum Machine {
    Client(Box<Client>),
    Server(Box<Server>),
}

impl Machine {
    pub fn common(&mut self) -> &mut dyn Rendezvous {
        match self {
            Self::Client(client) => client.as_mut(),
            Self::Server(server) => server.as_mut(),
        }
    }

    pub fn shared(&self) -> &dyn Rendezvous {
        match self {
            Self::Client(client) => client.as_ref(),
            Self::Server(server) => server.as_ref(),
        }
    }
}

/// One host: a driver in miniature.
pub struct Host {
    setup: Setup,
    role: Role,
    id: PeerId,
    machine: Machine,
    pub flow: Option<Flow>,
    pub rmbs: Vec<PeerRmb>,
    pub fate: Fate,
    /// Bytes of the stream that nobody has read.
    stream: VecDeque<u8>,
    reset: bool,
    /// What the application read from TCP after a fallback.
    pub data: Vec<u8>,
    may_cross: bool,
    /// The queue pair can receive, and send.
    qp_up: bool,
    refuse: bool,
    dumb: bool,
    asleep_until: u64,
    pub claimed: Option<PeerElement>,
    pub events: Vec<Event>,
    /// CONFIRM LINK has come.
    pub confirmed: bool,
    /// What was sent over TCP by the rendezvous.
    pub clc: Vec<Vec<u8>>,
    pub spare_held: bool,
    /// Serve the next contact from the existing group.
    pub subsequent: bool,
}

/// What hosts do to the world.
enum Deed {
    Tcp(Vec<u8>),
    Reset,
    Post(Outgoing),
}

impl Host {
    fn new(setup: Setup, role: Role, now: Time) -> Self {
        let timing = setup.stack(role).handshake();
        let id = PeerId([role as u8 + 1; 8]);
        let machine = match role {
            Role::Client => Machine::Client(Box::new(Client::new(id, timing))),
            Role::Server => Machine::Server(Box::new(Server::new(id, timing, now))),
        };
        Self {
            setup,
            role,
            id,
            machine,
            flow: None,
            rmbs: vec![PeerRmb::EMPTY; 16],
            fate: Fate::Pending,
            stream: VecDeque::new(),
            reset: false,
            data: Vec::new(),
            may_cross: false,
            qp_up: false,
            refuse: false,
            dumb: false,
            asleep_until: 0,
            claimed: None,
            events: Vec::new(),
            confirmed: false,
            clc: Vec::new(),
            spare_held: false,
            subsequent: false,
        }
    }

    fn local(&self) -> Local {
        let link = port(self.role);
        let own = own_v2(self.role, self.setup.v2.unwrap_or(1));
        let v2 = match &self.machine {
            Machine::Client(client) => {
                let offer = client.offer().expect("an offer");
                offer.v2.map(|v2| own.confirm(&v2, link.gid, true))
            }
            Machine::Server(server) => {
                let proposal = server.proposal().expect("a Proposal");
                let chosen = proposal.choose(
                    |offer| {
                        let eid = own.common_eid(offer)?;
                        Ok(Some(if self.subsequent {
                            accept_subsequent(eid)
                        } else {
                            own.accept_first(offer, eid, true)
                        }))
                    },
                    || Ok(None),
                );
                chosen.expect("an offer that fits")
            }
        };
        Local {
            link,
            element: element(self.role),
            v2,
        }
    }

    fn new_flow(&self) -> Flow {
        let mut flow = Flow::new(FlowParams {
            role: self.role,
            version: match self.setup.v2 {
                None => Version::One,
                Some(_) => Version::Two { direct: true },
            },
            max_links: self.setup.v2.unwrap_or(2),
            max_connections: 255,
            user_id: 7,
            seed: 99,
            timing: self.setup.stack(self.role).flow(),
        });
        assert!(flow.add_connection());
        flow
    }

    /// One run of the work item: what has come in first, then the clock.
    fn work(&mut self, now: Time, deeds: &mut Vec<Deed>) {
        self.drain_flow(now, deeds);
        while self.fate == Fate::Pending {
            let want = self.machine.shared().want();
            let n = want.min(self.stream.len());
            if n == 0 {
                break;
            }
            let bytes: Vec<u8> = self.stream.drain(..n).collect();
            self.machine.common().handle_bytes(&bytes, now);
            self.act(now, deeds);
        }
        if self.fate == Fate::Pending {
            if self.reset {
                self.machine.common().handle_reset();
            }
            self.machine.common().handle_timeout(now);
            self.act(now, deeds);
        }
        if let Some(flow) = self.flow.as_mut() {
            flow.handle_timeout(now);
        }
        self.drain_flow(now, deeds);
        self.after(deeds);
    }

    /// What a decided connection does with TCP.
    fn after(&mut self, deeds: &mut Vec<Deed>) {
        match self.fate {
            Fate::Tcp(_) if self.reset => self.fate = Fate::Aborted,
            Fate::Tcp(_) => self.read_data(),
            Fate::Smc(_) if self.reset => self.abort(),
            Fate::Smc(_) if !self.stream.is_empty() => {
                // A Decline that comes too late, or whatever: nothing is expected on TCP.
                deeds.push(Deed::Reset);
                self.abort();
            }
            _ => {}
        }
    }

    fn abort(&mut self) {
        self.fate = Fate::Aborted;
        self.drop_group();
    }

    fn drop_group(&mut self) {
        if let Some(flow) = self.flow.as_mut() {
            flow.abandon(true);
        }
        self.flow = None;
        self.qp_up = false;
        self.spare_held = false;
    }

    fn read_data(&mut self) {
        if self.may_cross {
            let peeked: Vec<u8> = self.stream.iter().copied().collect();
            match crossed_decline(&peeked) {
                Crossed::NeedMore => return,
                Crossed::No => {}
                Crossed::Decline(n) => {
                    self.stream.drain(..n);
                }
            }
            self.may_cross = false;
        }
        self.data.extend(self.stream.drain(..));
    }

    fn contact(&mut self, now: Time) {
        let refuse = core::mem::take(&mut self.refuse);
        let local = self.local();
        assert_eq!(local.v2.is_some(), self.setup.v2.is_some());
        let contact = match (&self.machine, refuse) {
            (_, true) => Contact::Refuse(Diagnosis::MEMORY),
            (Machine::Server(_), _) if self.subsequent => {
                let flow = self.flow.as_mut().expect("a group");
                let client = end(Role::Client);
                match flow.find_port(client.mac, client.gid) {
                    Some(link) if flow.add_connection() => {
                        assert_eq!(link, LinkIx::FIRST);
                        Contact::Subsequent(local)
                    }
                    _ => Contact::Refuse(Diagnosis::NO_ACTIVE_LINK),
                }
            }
            (Machine::Server(_), _) => {
                self.flow = Some(self.new_flow());
                Contact::First(local)
            }
            (Machine::Client(client), _) => {
                let offer = *client.offer().expect("an offer");
                if offer.first_contact {
                    self.qp_up = true;
                    let mut flow = self.new_flow();
                    flow.start(local.link, offer.link, None, now);
                    self.flow = Some(flow);
                    Contact::First(local)
                } else {
                    match self.flow.as_mut() {
                        None => Contact::OutOfSync,
                        Some(flow) if flow.find_link(&offer.link).is_none() => {
                            Contact::Refuse(Diagnosis::UNKNOWN_LINK)
                        }
                        Some(flow) => {
                            assert!(flow.add_connection());
                            Contact::Subsequent(local)
                        }
                    }
                }
            }
        };
        let answer = match &mut self.machine {
            Machine::Client(client) => client.handle_contact(contact, now),
            Machine::Server(server) => server.handle_contact(contact, now),
        };
        assert_eq!(answer, Ok(()));
    }

    fn act(&mut self, now: Time, deeds: &mut Vec<Deed>) {
        while let Some(action) = self.machine.common().poll() {
            match action {
                Action::Send => {
                    let mut bytes = self.machine.shared().outgoing().to_vec();
                    if self.setup.stack(self.role) == Stack::Linux {
                        as_linux_says_it(&mut bytes);
                    }
                    self.clc.push(bytes.clone());
                    deeds.push(Deed::Tcp(bytes));
                }
                Action::Contact => self.contact(now),
                Action::ConnectLink(peer) => {
                    let Machine::Server(server) = &mut self.machine else {
                        panic!("a client connects its link before it answers");
                    };
                    // The smaller MTU of both.
                    assert_eq!(peer, end(Role::Client));
                    let answer = if core::mem::take(&mut self.refuse) {
                        server.handle_link_refused(Diagnosis::READY_LINK)
                    } else {
                        self.qp_up = true;
                        server.handle_link_connected(now)
                    };
                    assert_eq!(answer, Ok(()));
                }
                Action::StartLink(_) => {
                    let flow = self.flow.as_mut().expect("a group");
                    let spare = LinkEnd {
                        qp: smc_proto::wire::QpNum::new(0x999).unwrap(),
                        ..end(self.role)
                    };
                    self.spare_held = true;
                    flow.start(end(self.role), end(self.role.peer()), Some(spare), now);
                    self.drain_flow(now, deeds);
                }
                Action::Established(peer) => {
                    assert_eq!(peer.id, PeerId([self.role.peer() as u8 + 1; 8]));
                    assert_eq!(peer.element, element(self.role.peer()));
                    self.fate = Fate::Smc(peer);
                    let mut table = PeerTable::new(&mut self.rmbs);
                    let claim = table.claim(LinkIx::FIRST, &peer.element).expect("room");
                    self.claimed = Some(claim.element());
                    let flow = self.flow.as_ref().expect("a group");
                    if !flow.is_usable() {
                        // It ended in the same moment.
                        deeds.push(Deed::Reset);
                        self.abort();
                    }
                }
                Action::Fallback(fallback) => {
                    self.fate = Fate::Tcp(fallback);
                    self.may_cross = fallback.may_cross;
                    if !self.subsequent {
                        self.drop_group();
                    } else if let Some(flow) = self.flow.as_mut() {
                        flow.remove_connection(now);
                        if fallback.out_of_sync {
                            flow.shut_down(ShutDown::OutOfSync, now);
                        }
                    }
                    deeds.push(Deed::Tcp(hello(self.role)));
                }
                Action::Fail(failure) => {
                    self.fate = Fate::Failed(failure);
                    if !self.subsequent {
                        self.drop_group();
                    }
                    deeds.push(Deed::Reset);
                }
            }
        }
    }

    fn drain_flow(&mut self, now: Time, deeds: &mut Vec<Deed>) {
        while let Some(event) = self.flow.as_mut().and_then(Flow::poll_event) {
            self.events.push(event);
            match event {
                Event::FirstContact(result) => {
                    let _ = self.machine.common().handle_link(result, now);
                    self.act(now, deeds);
                }
                Event::SpareFree => {
                    assert!(self.spare_held);
                    self.spare_held = false;
                }
                Event::Down(_) => {
                    if let Fate::Smc(_) = self.fate {
                        deeds.push(Deed::Reset);
                        self.fate = Fate::Aborted;
                    }
                }
                Event::Release => {
                    self.qp_up = false;
                }
                _ => {}
            }
        }
        while let Some(send) = self.flow.as_mut().and_then(Flow::poll_send) {
            deeds.push(Deed::Post(send));
        }
    }

    fn deadline(&self) -> Option<Time> {
        let flow = self.flow.as_ref().and_then(Flow::next_deadline);
        let machine = match self.fate {
            Fate::Pending => self.machine.shared().next_deadline(),
            _ => None,
        };
        smc_proto::timer::earlier(flow, machine)
    }
}

/// What the application of one side writes after a fallback.
pub fn hello(role: Role) -> Vec<u8> {
    match role {
        Role::Client => b"hello from the client".to_vec(),
        Role::Server => b"hi, this is the server speaking".to_vec(),
    }
}

/// A host's end of the link. The client's port has a larger MTU than the server's.
fn port(role: Role) -> LinkEnd {
    let mtu = match role {
        Role::Client => MtuCode::new(5).unwrap(),
        Role::Server => end(role).mtu,
    };
    LinkEnd { mtu, ..end(role) }
}

/// Changes a message of the rendezvous to what Linux sends.
fn as_linux_says_it(bytes: &mut Vec<u8>) {
    match (bytes[4], bytes.len()) {
        // The smaller MTU of both, in the lower half.
        (3, _) => bytes[50] = (bytes[50] & 0xf0) | port(Role::Server).mtu.code(),
        // The layout of version 2, whatever the peer speaks.
        (4, 28) => {
            bytes.splice(24..24, [0; 16]);
            bytes[6] = 44;
            bytes[7] = (2 << 4) | (bytes[7] & 0xf);
        }
        _ => {}
    }
}

/// The bytes in which a host sends a message.
fn on_the_wire(stack: Stack, version: Version, frame: Frame) -> Frame {
    if stack == Stack::Ours || version == Version::One {
        return frame;
    }
    let mut bytes = frame.to_vec();
    let len = bytes.len() as u16;
    bytes[1..3].copy_from_slice(&len.to_le_bytes());
    match (bytes[0], bytes[3] & 0x80 != 0) {
        // The keys of the request are not repeated.
        (0x29, true) => bytes[8..].fill(0),
        // The number of keys is in the same order as the length. A peer that does not know the
        // order yet would have sent zero.
        (0x22, false) => assert_eq!(bytes[70..72], [0, 0]),
        _ => {}
    }
    Frame::new(&bytes)
}

/// Both hosts and all that is between them.
pub struct World {
    setup: Setup,
    pub now: u64,
    pub client: Host,
    pub server: Host,
    queue: Vec<(u64, u64, Happening)>,
    sequence: u64,
    link_broken: bool,
    tcp_stalled_until: u64,
    tcp_dead: bool,
    /// Number of things that have happened.
    pub steps: usize,
    faults: Vec<(usize, Fault)>,
}

impl World {
    /// Two hosts with a TCP connection, the client about to propose. At the steps with the given
    /// numbers something goes wrong.
    pub fn new(faults: &[(usize, Fault)]) -> Self {
        Self::with(Setup::V1, faults)
    }

    /// The same between hosts of any kind.
    pub fn with(setup: Setup, faults: &[(usize, Fault)]) -> Self {
        let start = Time::from_millis(1_000);
        let mut world = Self {
            setup,
            now: 1_000,
            client: Host::new(setup, Role::Client, start),
            server: Host::new(setup, Role::Server, start),
            queue: Vec::new(),
            sequence: 0,
            link_broken: false,
            tcp_stalled_until: 0,
            tcp_dead: false,
            steps: 0,
            faults: faults.to_vec(),
        };
        world.propose();
        world
    }

    pub fn host(&mut self, role: Role) -> &mut Host {
        match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        }
    }

    fn push(&mut self, at: u64, event: Happening) {
        self.sequence += 1;
        self.queue.push((at, self.sequence, event));
    }

    fn tcp_time(&self) -> u64 {
        (self.now + TCP_DELAY).max(self.tcp_stalled_until)
    }

    fn run_host(&mut self, role: Role) {
        let now = self.now;
        let host = self.host(role);
        if host.asleep_until > now {
            let at = host.asleep_until;
            self.push(at, Happening::Wake { to: role });
            return;
        }
        let mut deeds = Vec::new();
        host.work(Time::from_millis(now), &mut deeds);
        self.carry_out(role, deeds);
    }

    fn carry_out(&mut self, role: Role, deeds: Vec<Deed>) {
        let to = role.peer();
        for deed in deeds {
            match deed {
                Deed::Tcp(bytes) if !self.tcp_dead => {
                    let at = self.tcp_time();
                    self.push(at, Happening::Tcp { to, bytes });
                }
                Deed::Tcp(_) => {}
                Deed::Reset => {
                    let at = self.tcp_time();
                    self.push(at, Happening::Reset { to });
                }
                Deed::Post(send) => self.post(role, send),
            }
        }
    }

    fn post(&mut self, role: Role, send: Outgoing) {
        let to = role.peer();
        let dumb = self.host(role).dumb;
        let sender_up = self.host(role).qp_up;
        let receiver_up = self.host(to).qp_up;
        let note = send.note;
        if sender_up && receiver_up && !self.link_broken {
            if !dumb {
                let at = self.now + LINK_DELAY;
                let version = match self.setup.v2 {
                    None => Version::One,
                    Some(_) => Version::Two { direct: true },
                };
                let message = on_the_wire(self.setup.stack(role), version, send.message);
                self.push(at, Happening::Llc { to, message });
            }
            let at = self.now + 2 * LINK_DELAY;
            self.push(
                at,
                Happening::Sent {
                    to: role,
                    note,
                    ok: true,
                },
            );
        } else {
            let at = self.now + RETRIES;
            self.push(
                at,
                Happening::Sent {
                    to: role,
                    note,
                    ok: false,
                },
            );
        }
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::LinkBreaks => self.link_broken = true,
            Fault::PortsDown => {
                self.link_broken = true;
                for role in [Role::Client, Role::Server] {
                    let now = Time::from_millis(self.now);
                    if let Some(flow) = self.host(role).flow.as_mut() {
                        flow.handle_link_failed(LinkIx::FIRST, now);
                    }
                    self.run_host(role);
                }
            }
            Fault::TcpStalls(span) => {
                self.tcp_stalled_until = self.tcp_stalled_until.max(self.now + span);
                let until = self.tcp_stalled_until;
                for (at, _, event) in &mut self.queue {
                    if matches!(event, Happening::Tcp { .. } | Happening::Reset { .. }) {
                        *at = (*at).max(until);
                    }
                }
            }
            Fault::TcpResets => {
                self.tcp_dead = true;
                for to in [Role::Client, Role::Server] {
                    self.push(self.now, Happening::Reset { to });
                }
            }
            Fault::Sleeps(role, span) => {
                let until = self.now + span;
                let host = self.host(role);
                host.asleep_until = host.asleep_until.max(until);
            }
            Fault::Refuses(role) => self.host(role).refuse = true,
            Fault::GoesDumb(role) => self.host(role).dumb = true,
        }
    }

    /// The next thing happens. False if there is none before the given moment.
    pub fn step(&mut self, until: u64) -> bool {
        let due = |(step, _): &(usize, Fault)| *step == self.steps;
        if let Some(place) = self.faults.iter().position(due) {
            let (_, fault) = self.faults.remove(place);
            self.strike(fault);
        }
        let next = self
            .queue
            .iter()
            .enumerate()
            .min_by_key(|(_, (at, sequence, _))| (*at, *sequence))
            .map(|(place, (at, ..))| (place, *at));
        let timer = [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| {
                let asleep = self.host(role).asleep_until;
                let at = self.host(role).deadline()?.as_millis().max(asleep);
                Some((at, role))
            })
            .min_by_key(|(at, _)| *at);
        let event = match (next, timer) {
            (Some((place, at)), Some((due, _))) if at <= due => Ok((place, at)),
            (Some((place, at)), None) => Ok((place, at)),
            (_, Some((due, role))) => Err((due, role)),
            (None, None) => return false,
        };
        let at = match event {
            Ok((_, at)) | Err((at, _)) => at,
        };
        if at > until {
            return false;
        }
        self.now = self.now.max(at);
        self.steps += 1;
        match event {
            Ok((place, _)) => {
                let (_, sequence, event) = self.queue.remove(place);
                self.happen(sequence, event);
            }
            Err((_, role)) => self.run_host(role),
        }
        true
    }

    fn happen(&mut self, sequence: u64, event: Happening) {
        let now = Time::from_millis(self.now);
        let to = match &event {
            Happening::Tcp { to, .. }
            | Happening::Reset { to }
            | Happening::Llc { to, .. }
            | Happening::Sent { to, .. }
            | Happening::Wake { to } => *to,
        };
        if self.host(to).asleep_until > self.now && !matches!(event, Happening::Wake { .. }) {
            // Whatever comes waits until the host wakes up; the order stays.
            let at = self.host(to).asleep_until;
            self.queue.push((at, sequence, event));
            return;
        }
        let host = self.host(to);
        match event {
            Happening::Tcp { bytes, .. } => host.stream.extend(bytes),
            Happening::Reset { .. } => host.reset = true,
            Happening::Llc { message, .. } => {
                if host.qp_up {
                    host.confirmed |= message[0] & 0xf == 1;
                    if let Some(flow) = host.flow.as_mut() {
                        let mut table = PeerTable::new(&mut host.rmbs);
                        flow.handle_received(LinkIx::FIRST, &message, &mut table, now);
                    }
                }
            }
            Happening::Sent { note, ok, .. } => {
                if let Some(flow) = host.flow.as_mut() {
                    match note {
                        Some(note) => flow.handle_sent(LinkIx::FIRST, note, ok, now),
                        None if !ok => flow.handle_link_failed(LinkIx::FIRST, now),
                        None => {}
                    }
                }
            }
            Happening::Wake { .. } => {}
        }
        self.run_host(to);
    }

    /// Lets things happen for so long.
    pub fn run(&mut self, span: u64) {
        let until = self.now + span;
        let mut budget = 10_000;
        while self.step(until) {
            budget -= 1;
            assert_ne!(budget, 0, "the hosts keep each other busy");
        }
        self.now = until;
    }

    /// Another TCP connection between the same hosts, which have a link group.
    pub fn reconnect(&mut self) {
        let now = Time::from_millis(self.now);
        assert!(self.queue.is_empty(), "the first connection is at rest");
        for role in [Role::Client, Role::Server] {
            let fresh = Host::new(self.setup, role, now);
            let host = self.host(role);
            host.machine = fresh.machine;
            host.fate = Fate::Pending;
            host.subsequent = true;
            host.events.clear();
        }
        self.propose();
    }

    /// Something goes wrong that many steps from now.
    pub fn later(&mut self, steps: usize, fault: Fault) {
        self.faults.push((self.steps + steps, fault));
    }

    fn propose(&mut self) {
        let id = self.client.id;
        let now = Time::from_millis(self.now);
        let Machine::Client(client) = &mut self.client.machine else {
            unreachable!();
        };
        let mut offers = proposal(id);
        if self.setup.client == Stack::Linux {
            // With the room for an offer of version 2, even if there is none.
            offers.version = 2;
        }
        if let Some(max_links) = self.setup.v2 {
            offers.version = 2;
            let own = own_v2(Role::Client, max_links);
            offers.v2 = Ok(own.offer(end(Role::Client).gid).unwrap());
        }
        client.propose(&offers, now).unwrap();
        self.run_host(Role::Client);
    }

    /// One side announces a further buffer on the link that is up.
    pub fn announce(&mut self, role: Role, id: RmbId) {
        let now = Time::from_millis(self.now);
        let token = smc_proto::wire::RToken {
            rkey: smc_proto::wire::RKey(0x1000 + u32::from(id.0)),
            addr: 0x10_0000 * u64::from(id.0 + 1),
        };
        let host = self.host(role);
        host.flow
            .as_mut()
            .unwrap()
            .announce(id, token, now)
            .unwrap();
        self.run_host(role);
    }

    /// One side ends the group.
    pub fn shut_down(&mut self, role: Role) {
        let now = Time::from_millis(self.now);
        let flow = self.host(role).flow.as_mut().unwrap();
        flow.shut_down(ShutDown::Operator, now);
        self.run_host(role);
    }
}

/// True if both applications see the same world.
pub fn consistent(world: &World) -> Result<(), String> {
    let (client, server) = (&world.client, &world.server);
    let agree = match (client.fate, server.fate) {
        (Fate::Smc(_), Fate::Smc(_)) => true,
        (Fate::Tcp(_), Fate::Tcp(_)) => {
            client.data == hello(Role::Server) && server.data == hello(Role::Client)
        }
        (Fate::Failed(_) | Fate::Aborted, Fate::Failed(_) | Fate::Aborted) => true,
        _ => false,
    };
    if agree {
        Ok(())
    } else {
        Err(format!(
            "client {:?} {:?}, server {:?} {:?}",
            client.fate,
            String::from_utf8_lossy(&client.data),
            server.fate,
            String::from_utf8_lossy(&server.data),
        ))
    }
}

/// True if the group of a host ended like this.
pub fn went_down(host: &Host, reason: DownReason) -> bool {
    host.events.contains(&Event::Down(reason)) && host.events.last() == Some(&Event::Release)
}
