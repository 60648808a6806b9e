// SPDX-License-Identifier: GPL-2.0

//! Peers that send anything at any time, and pairs of engines whose messages meet in any order.

use super::{
    facts::{
        end,
        proposal,
        token, //
    },
    rng::Rng,
    talk::{
        accept,
        both,
        confirm,
        describe,
        eid,
        local,
        local_v2,
        wire,
        with_v2,
        CLIENT,
        COMMON,
        SERVER, //
    },
};
use smc_proto::{
    clc::{
        Decline,
        Message, //
    },
    group::{
        LinkIx,
        PeerRmb,
        PeerTable,
        Role,
        MAX_PEER_RMBS, //
    },
    handshake::{
        accept_subsequent,
        Action,
        Client,
        Contact,
        Late,
        LinkRefusal,
        LinkResult,
        Rendezvous,
        Server, //
    },
    llc::{
        v2,
        DeleteReason,
        Llc, //
    },
    llc_flow::{
        DownReason,
        Event,
        Flow,
        FlowParams,
        Frame,
        Note,
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
        ByteOrder,
        Diagnosis,
        PeerId,
        RKey, //
    },
};
use std::collections::{
    BTreeMap,
    VecDeque, //
};

const ROLES: [Role; 2] = [Role::Client, Role::Server];

fn flow(role: Role, version: Version) -> Flow {
    let mut flow = Flow::new(FlowParams {
        role,
        version,
        max_links: 2,
        max_connections: 255,
        user_id: 1,
        seed: 2,
        timing: FlowTiming::DEFAULT,
    });
    assert!(flow.add_connection());
    flow
}

fn version(rng: &mut Rng) -> Version {
    match rng.below(4) {
        0 | 1 => Version::One,
        other => Version::Two { direct: other == 2 },
    }
}

fn some_bytes(rng: &mut Rng, limit: u64) -> Vec<u8> {
    (0..rng.below(limit))
        .map(|_| rng.below(256) as u8)
        .collect()
}

/// The peer's end in a message that fits, so that not all stops at the first check.
fn plausible(rng: &mut Rng, role: Role, version: Version) -> Vec<u8> {
    let kind = match rng.below(9) {
        8 => rng.below(256) as u8,
        kind => [1, 2, 3, 4, 6, 7, 8, 9][kind as usize],
    };
    let mut bytes = vec![0u8; 44];
    bytes[0] = kind;
    bytes[1] = 44;
    if version != Version::One {
        bytes[0] |= 0x20;
        // Some are longer.
        bytes.resize(44 + rng.size(0, 255) as usize * 3, rng.below(256) as u8);
        let len = bytes.len() as u16;
        bytes[1..3].copy_from_slice(&len.to_le_bytes());
    }
    bytes[3] = rng.below(256) as u8;
    for byte in &mut bytes[4..12] {
        *byte = match rng.below(4) {
            3 => rng.below(256) as u8,
            small => small as u8,
        };
    }
    if kind == 1 {
        let peer = end(role.peer());
        bytes[29] = bytes[4];
        bytes[3] |= 3;
        bytes[4..10].copy_from_slice(&peer.mac.0);
        bytes[10..26].copy_from_slice(&peer.gid.0);
        bytes[26..29].copy_from_slice(&peer.qp.get().to_be_bytes()[1..]);
    }
    bytes
}

/// An engine with one link survives any peer, and whoever drives it.
pub fn engine(mut rng: Rng) {
    let rng = &mut rng;
    let role = rng.pick(&ROLES);
    let version = version(rng);
    // A driver may never look.
    let drain = rng.percent(75);
    let mut flow = flow(role, version);
    let mut slots = vec![PeerRmb::EMPTY; 300];
    let mut now = Time::from_millis(0);
    flow.start(end(role), end(role.peer()), None, now);
    let (mut downs, mut releases, mut firsts) = (0, 0, 0);
    // Our last request.
    let mut said = Vec::new();
    for _ in 0..200 {
        if rng.is_over() {
            break;
        }
        let mut table = PeerTable::new(&mut slots);
        let mut hear = |bytes: &[u8]| flow.handle_received(LinkIx::FIRST, bytes, &mut table, now);
        match rng.below(32) {
            0 => hear(&some_bytes(rng, 60)),
            1..=5 if !said.is_empty() => hear(&said),
            6..=9 => {
                now = now.after(rng.size(0, 40_000));
                flow.handle_timeout(now);
            }
            10..=12 => {
                let id = rng.below(20) as u16;
                let _ = flow.announce(RmbId(id), token(id.into()), now);
            }
            13 => {
                let id = rng.below(20) as u16;
                let _ = flow.withdraw(RmbId(id), RKey(id.into()), now);
            }
            14..=15 => {
                let note = rng.pick(&[Note::ConfirmLink, Note::ConfirmLinkReply, Note::Last]);
                flow.handle_sent(LinkIx::FIRST, note, rng.percent(90), now);
            }
            16 if rng.percent(30) => flow.handle_link_failed(LinkIx::FIRST, now),
            17 if rng.percent(30) => flow.shut_down(ShutDown::Operator, now),
            _ => hear(&plausible(rng, role, version)),
        }
        assert!(table.len() <= MAX_PEER_RMBS);
        if drain {
            while let Some(send) = flow.poll_send() {
                match version {
                    Version::One => assert!(Llc::parse(&send.message).is_ok()),
                    Version::Two { .. } => assert!(v2::Llc::parse(&send.message).is_ok()),
                }
                if send.message[3] & 0x80 == 0 {
                    said = send.message.to_vec();
                    said[3] |= 0x80;
                }
            }
            while let Some(event) = flow.poll_event() {
                match event {
                    Event::FirstContact(_) => firsts += 1,
                    Event::Down(_) => downs += 1,
                    Event::Release => releases += 1,
                    _ => {}
                }
            }
        }
    }
    // A driver that never looks gets at most what fits into the queues.
    let sends = std::iter::from_fn(|| flow.poll_send()).count();
    let events = std::iter::from_fn(|| flow.poll_event()).count();
    assert!(sends <= 16 && events <= 20, "{sends} {events}");
    if drain {
        assert!(firsts <= 1 && downs <= 1 && releases <= downs);
        assert!(downs == 0 || flow.is_over());
        if releases == 1 {
            assert_eq!(flow.next_deadline(), None);
        }
    }
}

/// What both kinds of rendezvous can be asked here.
trait Machine: Rendezvous {
    fn contact(&mut self, contact: Contact, now: Time) -> Result<(), Late>;
    fn connected(&mut self, ok: bool, now: Time) -> Result<(), Late>;
    fn has_question(&self) -> bool;
}

impl Machine for Client {
    fn contact(&mut self, contact: Contact, now: Time) -> Result<(), Late> {
        self.handle_contact(contact, now)
    }
    fn connected(&mut self, _: bool, _: Time) -> Result<(), Late> {
        Err(Late)
    }
    fn has_question(&self) -> bool {
        self.offer().is_some()
    }
}

impl Machine for Server {
    fn contact(&mut self, contact: Contact, now: Time) -> Result<(), Late> {
        self.handle_contact(contact, now)
    }
    fn connected(&mut self, ok: bool, now: Time) -> Result<(), Late> {
        match ok {
            true => self.handle_link_connected(now),
            false => self.handle_link_refused(Diagnosis::MEMORY),
        }
    }
    fn has_question(&self) -> bool {
        self.proposal().is_some()
    }
}

/// Carries out what is to be done, or leaves it for later; returns the number of outcomes among it.
fn actions(machine: &mut dyn Machine, rng: &mut Rng, now: Time) -> usize {
    let mut outcomes = 0;
    while let Some(action) = machine.poll() {
        match action {
            Action::Send => assert!(Message::parse(machine.outgoing()).is_ok()),
            Action::ConnectLink(_) if rng.percent(70) => machine.connected(true, now).unwrap(),
            Action::Contact => assert!(machine.has_question()),
            Action::ConnectLink(_) | Action::StartLink(_) => {}
            Action::Established(_) | Action::Fallback(_) | Action::Fail(_) => outcomes += 1,
        }
    }
    outcomes
}

/// A message of a peer, of which one in four is damaged.
fn piece(rng: &mut Rng) -> Vec<u8> {
    let (accept, confirm) = (accept(), confirm());
    let later = accept_subsequent(eid(COMMON));
    let decline = Decline {
        version: 1,
        out_of_sync: true,
        peer_id: PeerId([0; 8]),
        diagnosis: Diagnosis::MEMORY,
    };
    let (server, client) = (
        |first| describe(Role::Server, first),
        |first| describe(Role::Client, first),
    );
    let mut bytes = wire(&match rng.below(12) {
        0 => Message::Proposal(proposal(CLIENT)),
        1 => Message::Proposal(both()),
        2 => Message::Accept(server(true)),
        3 => Message::Accept(server(false)),
        4 => Message::Accept(with_v2(accept, server(true))),
        5 => Message::Accept(with_v2(later, server(false))),
        6 => Message::Confirm(client(true)),
        7 => Message::Confirm(client(false)),
        8 => Message::Confirm(with_v2(confirm, client(true))),
        9 => Message::Confirm(with_v2(later, client(false))),
        10 => Message::Decline(decline),
        _ => Message::Decline(Decline {
            version: 2,
            ..decline
        }),
    });
    if rng.percent(25) {
        let place = rng.below(bytes.len() as u64) as usize;
        bytes[place] = rng.below(256) as u8;
    }
    bytes
}

/// The driver's answer to the question for a link, the right one or not.
fn contact(rng: &mut Rng, server: bool) -> Contact {
    let role = match server ^ rng.percent(5) {
        true => Role::Server,
        false => Role::Client,
    };
    let first = match role {
        Role::Server => accept(),
        Role::Client => confirm(),
    };
    match rng.below(8) {
        0 | 1 => Contact::First(local(role)),
        2 => Contact::Subsequent(local(role)),
        3 => Contact::First(local_v2(role, first)),
        4 => Contact::Subsequent(local_v2(role, accept_subsequent(eid(COMMON)))),
        5 => Contact::Refuse(Diagnosis::MEMORY),
        6 => Contact::OutOfSync,
        _ => Contact::Wait,
    }
}

/// A rendezvous survives any peer, and comes to one end at most.
pub fn rendezvous(mut rng: Rng) {
    let rng = &mut rng;
    let mut now = Time::from_millis(0);
    let server = rng.percent(50);
    let mut machine: Box<dyn Machine> = if server {
        Box::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now))
    } else {
        let mut client = Client::new(CLIENT, HandshakeTiming::DEFAULT);
        let proposal = match rng.percent(50) {
            true => proposal(CLIENT),
            false => both(),
        };
        client.propose(&proposal, now).unwrap();
        Box::new(client)
    };
    let mut outcomes = 0;
    for _ in 0..16 {
        if rng.is_over() {
            break;
        }
        match rng.below(16) {
            kind @ 0..=6 => {
                let bytes = match kind {
                    0 => some_bytes(rng, 100),
                    _ => piece(rng),
                };
                let mut rest = bytes.as_slice();
                while !rest.is_empty() && machine.want() != 0 {
                    let (first, later) = rest.split_at(machine.want().min(rest.len()));
                    machine.handle_bytes(first, now);
                    rest = later;
                    outcomes += actions(machine.as_mut(), rng, now);
                }
            }
            // More than was wanted.
            7 => machine.handle_bytes(&some_bytes(rng, 100), now),
            8 => match rng.percent(70) {
                true => machine.handle_eof(),
                false => machine.handle_reset(),
            },
            9 => {
                now = match machine.next_deadline().filter(|_| rng.percent(60)) {
                    Some(deadline) => deadline.max(now),
                    None => now.after(rng.size(0, 30_000)),
                };
                machine.handle_timeout(now);
            }
            10 => {
                let _ = machine.handle_link(LinkResult::Up, now);
            }
            11 => {
                let refusal = LinkRefusal {
                    diagnosis: Diagnosis::INTERNAL,
                    may_decline: rng.percent(50),
                    peer_knows: rng.percent(50),
                };
                let _ = machine.handle_link(LinkResult::Failed(refusal), now);
            }
            12 => {
                let _ = machine.connected(rng.percent(60), now);
            }
            _ => {
                let _ = machine.contact(contact(rng, server), now);
            }
        }
        outcomes += actions(machine.as_mut(), rng, now);
        assert!(outcomes <= 1);
        assert_eq!(outcomes == 1, machine.is_over());
        assert!(!machine.is_over() || machine.want() == 0 && machine.next_deadline().is_none());
    }
}

/// What one side does by itself.
#[derive(Debug, Clone, Copy)]
enum Op {
    Announce(Role),
    Withdraw(Role, u8),
    Pass(u32),
    ShutDown(Role),
    /// The client asks for the deletion of the only link.
    Wish,
}

fn op(rng: &mut Rng) -> Op {
    let role = rng.pick(&ROLES);
    match rng.below(64) {
        0..=29 => Op::Announce(role),
        30..=49 => Op::Withdraw(role, rng.below(256) as u8),
        50 => Op::ShutDown(role),
        51 => Op::Wish,
        _ => Op::Pass(rng.pick(&[1, 100, 1_000, 31_000])),
    }
}

/// Two engines agree, in whichever order their messages arrive.
pub fn two(mut rng: Rng) {
    let mut pair = Pair::up(version(&mut rng));
    for _ in 0..80 {
        if rng.is_over() {
            break;
        }
        pair.operate(op(&mut rng));
        // Some messages arrive before the next operation.
        for _ in 0..3 {
            match rng.below(4) {
                0 => pair.deliver(Role::Client),
                1 => pair.deliver(Role::Server),
                _ => false,
            };
        }
    }
    pair.settle();
    pair.check();
}

/// What became of a buffer, as its owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Announcing,
    Yes,
    Withdrawing,
    No,
}

struct Side {
    flow: Flow,
    slots: Vec<PeerRmb>,
    /// On their way to this side.
    inbox: VecDeque<Frame>,
    own: BTreeMap<u16, Known>,
    next: u16,
    down: Option<DownReason>,
    released: bool,
}

/// Two engines on one link that loses nothing and keeps the order.
struct Pair {
    sides: [Side; 2],
    now: Time,
}

impl Side {
    fn new(role: Role, version: Version) -> Self {
        Self {
            flow: flow(role, version),
            slots: vec![PeerRmb::EMPTY; 255],
            inbox: VecDeque::new(),
            own: BTreeMap::new(),
            next: 1,
            down: None,
            released: false,
        }
    }
}

impl Pair {
    /// A pair whose first contact is over.
    fn up(version: Version) -> Self {
        let mut pair = Self {
            sides: ROLES.map(|role| Side::new(role, version)),
            now: Time::from_millis(0),
        };
        for role in ROLES {
            let now = pair.now;
            let side = pair.side(role);
            side.flow.start(end(role), end(role.peer()), None, now);
        }
        pair.settle();
        for side in &pair.sides {
            assert!(side.flow.is_usable());
        }
        pair
    }

    fn side(&mut self, role: Role) -> &mut Side {
        &mut self.sides[role as usize]
    }

    fn operate(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Announce(role) => {
                let side = self.side(role);
                let id = side.next;
                if side.flow.announce(RmbId(id), token(id.into()), now).is_ok() {
                    side.next += 1;
                    side.own.insert(id, Known::Announcing);
                }
                self.drain(role);
            }
            Op::Withdraw(role, n) => {
                let side = self.side(role);
                let known: Vec<u16> = side
                    .own
                    .iter()
                    .filter(|(_, known)| **known == Known::Yes)
                    .map(|(id, _)| *id)
                    .collect();
                if let Some(id) = known.get(usize::from(n) % known.len().max(1)) {
                    if side
                        .flow
                        .withdraw(RmbId(*id), RKey((*id).into()), now)
                        .is_ok()
                    {
                        side.own.insert(*id, Known::Withdrawing);
                    }
                }
                self.drain(role);
            }
            Op::Pass(span) => {
                // Nothing takes longer on this link than a moment.
                self.settle();
                self.now = self.now.after(span);
                for role in ROLES {
                    let now = self.now;
                    self.side(role).flow.handle_timeout(now);
                    self.drain(role);
                }
            }
            Op::ShutDown(role) => {
                self.side(role).flow.shut_down(ShutDown::Program, now);
                self.drain(role);
            }
            Op::Wish => {
                let wish = smc_proto::llc::DeleteLink {
                    reply: false,
                    all: false,
                    orderly: true,
                    link: smc_proto::wire::LinkNum::new(1),
                    reason: DeleteReason::OPERATOR,
                };
                let mut bytes = [0; 44];
                let message = match self.sides[0].flow.version() {
                    Version::One => Llc::DeleteLink(wish).emit(),
                    Version::Two { .. } => {
                        let order = ByteOrder::Little;
                        v2::Llc::DeleteLink(wish).emit(order, &mut bytes).unwrap();
                        bytes
                    }
                };
                let inbox = &mut self.side(Role::Server).inbox;
                inbox.push_back(Frame::new(&message));
            }
        }
    }

    /// Carries out what a side wants.
    fn drain(&mut self, role: Role) {
        let now = self.now;
        loop {
            let side = self.side(role);
            while let Some(event) = side.flow.poll_event() {
                match event {
                    Event::RkeyConfirmed(RmbId(id)) => {
                        assert_eq!(side.own.insert(id, Known::Yes), Some(Known::Announcing));
                    }
                    Event::RkeyRefused(RmbId(id)) => {
                        assert_eq!(side.own.insert(id, Known::No), Some(Known::Announcing));
                    }
                    Event::RkeyDeleted(RmbId(id)) => {
                        assert_eq!(side.own.insert(id, Known::No), Some(Known::Withdrawing));
                    }
                    Event::Down(reason) => assert_eq!(side.down.replace(reason), None),
                    Event::Release => side.released = true,
                    Event::FirstContact(result) => assert_eq!(result, LinkResult::Up),
                    Event::SpareFree => panic!("there was none"),
                    Event::PeerRmbGone(_) => panic!("no connection uses any"),
                    Event::MakeLink { .. }
                    | Event::AcceptLink { .. }
                    | Event::ConnectLink(_)
                    | Event::LinkUp(_)
                    | Event::LinkDown(..)
                    | Event::LinkGone(_)
                    | Event::LinkWanted
                    | Event::Hold
                    | Event::Seal
                    | Event::Resume
                    | Event::WritesArrived(_) => panic!("there is one link only"),
                }
            }
            let Some(send) = side.flow.poll_send() else {
                break;
            };
            self.side(role.peer()).inbox.push_back(send.message);
            if let Some(note) = send.note {
                self.side(role)
                    .flow
                    .handle_sent(LinkIx::FIRST, note, true, now);
            }
        }
    }

    /// One message arrives at `role`.
    fn deliver(&mut self, role: Role) -> bool {
        let now = self.now;
        self.drain(role.peer());
        let side = self.side(role);
        let Some(message) = side.inbox.pop_front() else {
            return false;
        };
        let mut table = PeerTable::new(&mut side.slots);
        side.flow
            .handle_received(LinkIx::FIRST, &message, &mut table, now);
        self.drain(role);
        true
    }

    /// All messages arrive.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "they never stop");
            self.drain(Role::Client);
            self.drain(Role::Server);
            let client = self.deliver(Role::Client);
            let server = self.deliver(Role::Server);
            if !client && !server {
                break;
            }
        }
    }

    fn check(&mut self) {
        // Requests to be repeated are due after a moment; a side that saw the end of the group
        // tells the other.
        for _ in 0..80 {
            self.operate(Op::Pass(100));
        }
        let over = [0, 1].map(|n| self.sides[n].flow.is_over());
        assert_eq!(over[0], over[1]);
        for role in ROLES {
            let own = self.side(role).own.clone();
            let over = self.side(role).flow.is_over();
            let side = self.side(role.peer());
            if over {
                assert!(side.down.is_some() && side.released);
                continue;
            }
            let table = PeerTable::new(&mut side.slots);
            for (id, known) in &own {
                let found = table.find(LinkIx::FIRST, RKey((*id).into())).is_some();
                assert_eq!(found, *known == Known::Yes, "{} is {:?}", id, known);
            }
        }
    }
}
