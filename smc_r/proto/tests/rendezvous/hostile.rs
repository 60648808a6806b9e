// SPDX-License-Identifier: GPL-2.0

//! Peers that send anything at any time, and pairs of engines whose messages meet in any order.

use crate::{
    facts::{
        end,
        proposal,
        token, //
    },
    talk::{
        describe,
        local,
        wire,
        CLIENT,
        SERVER, //
    },
};
use proptest::prelude::*;
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
        Action,
        Client,
        Contact,
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

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![
        Just(Version::One),
        any::<bool>().prop_map(|direct| Version::Two { direct }),
    ]
}

/// Something that happens to an engine whose peer is hostile.
#[derive(Debug, Clone)]
enum Blow {
    Bytes(Vec<u8>),
    Plausible { kind: u8, flags: u8, body: [u8; 8] },
    Time(u32),
    Announce(u16),
    Withdraw(u16),
    Sent(u8, bool),
    LinkFails,
    ShutDown,
}

fn blow() -> impl Strategy<Value = Blow> {
    let types = prop_oneof![
        8 => prop::sample::select(vec![1u8, 2, 3, 4, 5, 6, 7, 8, 9]),
        1 => any::<u8>(),
    ];
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Blow::Bytes),
        30 => (types, any::<u8>(), prop::array::uniform8(prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()]))
            .prop_map(|(kind, flags, body)| Blow::Plausible { kind, flags, body }),
        6 => (0u32..40_000).prop_map(Blow::Time),
        4 => (0u16..20).prop_map(Blow::Announce),
        2 => (0u16..20).prop_map(Blow::Withdraw),
        4 => (0u8..3, prop::bool::weighted(0.9)).prop_map(|(note, ok)| Blow::Sent(note, ok)),
        1 => Just(Blow::LinkFails),
        1 => Just(Blow::ShutDown),
    ]
}

/// The peer's end in a message that fits, so that not all stops at the first check.
fn plausible(role: Role, version: Version, kind: u8, flags: u8, body: [u8; 8]) -> Vec<u8> {
    let mut bytes = vec![0u8; 44];
    bytes[0] = kind;
    bytes[1] = 44;
    if version != Version::One {
        bytes[0] |= 0x20;
        // Some are longer.
        bytes.resize(44 + usize::from(body[7]) * 3, body[6]);
        let len = bytes.len() as u16;
        bytes[1..3].copy_from_slice(&len.to_le_bytes());
    }
    bytes[3] = flags;
    bytes[4..12].copy_from_slice(&body);
    if kind == 1 {
        let peer = end(role.peer());
        bytes[3] |= 3;
        bytes[4..10].copy_from_slice(&peer.mac.0);
        bytes[10..26].copy_from_slice(&peer.gid.0);
        bytes[26..29].copy_from_slice(&peer.qp.get().to_be_bytes()[1..]);
        bytes[29] = body[0];
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_engine_survives_any_peer(
        server in any::<bool>(),
        version in version(),
        blows in prop::collection::vec(blow(), 0..200),
        drain in any::<bool>(),
    ) {
        let role = if server { Role::Server } else { Role::Client };
        let mut flow = flow(role, version);
        let mut slots = vec![PeerRmb::EMPTY; 300];
        let mut now = Time::from_millis(0);
        flow.start(end(role), end(role.peer()), None, now);
        let (mut downs, mut releases, mut firsts) = (0, 0, 0);
        for blow in blows {
            let mut table = PeerTable::new(&mut slots);
            match blow {
                Blow::Bytes(bytes) => {
                    flow.handle_received(LinkIx::FIRST, &bytes, &mut table, now);
                }
                Blow::Plausible { kind, flags, body } => {
                    let bytes = plausible(role, version, kind, flags, body);
                    flow.handle_received(LinkIx::FIRST, &bytes, &mut table, now);
                }
                Blow::Time(span) => {
                    now = now.after(span);
                    flow.handle_timeout(now);
                }
                Blow::Announce(id) => {
                    let _ = flow.announce(RmbId(id), token(id.into()), now);
                }
                Blow::Withdraw(id) => {
                    let _ = flow.withdraw(RmbId(id), RKey(id.into()), now);
                }
                Blow::Sent(note, ok) => {
                    let note = [Note::ConfirmLink, Note::ConfirmLinkReply, Note::Last][usize::from(note)];
                    flow.handle_sent(LinkIx::FIRST, note, ok, now);
                }
                Blow::LinkFails => flow.handle_link_failed(LinkIx::FIRST, now),
                Blow::ShutDown => flow.shut_down(ShutDown::Operator, now),
            }
            prop_assert!(table.len() <= MAX_PEER_RMBS);
            if drain {
                while let Some(send) = flow.poll_send() {
                    match version {
                        Version::One => prop_assert!(Llc::parse(&send.message).is_ok()),
                        Version::Two { .. } => prop_assert!(v2::Llc::parse(&send.message).is_ok()),
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
        prop_assert!(sends <= 16 && events <= 20, "{sends} {events}");
        if drain {
            prop_assert!(firsts <= 1 && downs <= 1 && releases <= downs);
prop_assert_eq!(downs == 1, flow.is_over() && firsts < 2 && downs == 1);
            if releases == 1 {
                prop_assert_eq!(flow.next_deadline(), None);
            }
        }
    }

    #[test]
    fn a_rendezvous_survives_any_peer(
        server in any::<bool>(),
        pieces in prop::collection::vec(piece(), 0..12),
    ) {
        let now = Time::from_millis(0);
        let mut machine: Box<dyn Machine> = if server {
            Box::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now))
        } else {
            let mut client = Client::new(CLIENT, HandshakeTiming::DEFAULT);
            client.propose(&proposal(CLIENT), now).unwrap();
            Box::new(client)
        };
        let mut outcomes = 0;
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => {
                    let mut rest = bytes.as_slice();
                    while !rest.is_empty() && machine.want() != 0 {
                        let (first, later) = rest.split_at(machine.want().min(rest.len()));
                        machine.handle_bytes(first, now);
                        rest = later;
                        outcomes += actions(machine.as_mut(), now);
                    }
                }
                // More than was wanted.
                Piece::Flood(bytes) => machine.handle_bytes(&bytes, now),
                Piece::Eof => machine.handle_eof(),
                Piece::Time(span) => machine.handle_timeout(now.after(span)),
                Piece::Link(result) => {
                    let _ = machine.handle_link(result, now);
                }
                Piece::Contact(contact) => {
                    let _ = machine.contact(contact, now);
                }
            }
            outcomes += actions(machine.as_mut(), now);
            prop_assert!(outcomes <= 1);
            prop_assert_eq!(outcomes == 1, machine.is_over());
        }
    }

    #[test]
    fn two_engines_agree_in_any_order(
        version in version(),
        ops in prop::collection::vec(op(), 1..80),
        schedule in prop::collection::vec(any::<bool>(), 400),
    ) {
        let mut pair = Pair::up(version);
        let mut turns = schedule.into_iter().cycle();
        for op in ops {
            pair.operate(op);
            // Some messages arrive before the next operation.
            for _ in 0..3 {
                let client = turns.next().unwrap();
                if turns.next().unwrap() {
                    pair.deliver(if client { Role::Client } else { Role::Server });
                }
            }
        }
        pair.settle();
        pair.check()?;
    }
}

/// What both kinds of rendezvous can be asked here.
trait Machine: Rendezvous {
    fn contact(&mut self, contact: Contact, now: Time) -> Result<(), smc_proto::handshake::Late>;
    fn connected(&mut self, now: Time);
}

impl Machine for Client {
    fn contact(&mut self, contact: Contact, now: Time) -> Result<(), smc_proto::handshake::Late> {
        self.handle_contact(contact, now)
    }
    fn connected(&mut self, _: Time) {
        panic!("a client is not asked to connect");
    }
}

impl Machine for Server {
    fn contact(&mut self, contact: Contact, now: Time) -> Result<(), smc_proto::handshake::Late> {
        self.handle_contact(contact, now)
    }
    fn connected(&mut self, now: Time) {
        self.handle_link_connected(now).unwrap();
    }
}

/// Carries out what is to be done; returns the number of outcomes among it.
fn actions(machine: &mut dyn Machine, now: Time) -> usize {
    let mut outcomes = 0;
    while let Some(action) = machine.poll() {
        match action {
            Action::Send => assert!(Message::parse(machine.outgoing()).is_ok()),
            Action::ConnectLink(_) => machine.connected(now),
            Action::Contact | Action::StartLink(_) => {}
            Action::Established(_) | Action::Fallback(_) | Action::Fail(_) => outcomes += 1,
        }
    }
    outcomes
}

#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone)]
enum Piece {
    Bytes(Vec<u8>),
    Flood(Vec<u8>),
    Eof,
    Time(u32),
    Link(LinkResult),
    Contact(Contact),
}

fn piece() -> impl Strategy<Value = Piece> {
    let messages = vec![
        wire(&Message::Proposal(proposal(CLIENT))),
        wire(&Message::Accept(describe(Role::Server, true))),
        wire(&Message::Accept(describe(Role::Server, false))),
        wire(&Message::Confirm(describe(Role::Client, true))),
        wire(&Message::Decline(Decline {
            version: 1,
            out_of_sync: true,
            peer_id: PeerId([0; 8]),
            diagnosis: Diagnosis::MEMORY,
        })),
    ];
    let message = (
        prop::sample::select(messages),
        any::<prop::sample::Index>(),
        any::<u8>(),
        0u8..4,
    )
        .prop_map(|(mut bytes, at, value, damage)| {
            if damage == 0 {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        });
    let refusal = (any::<bool>(), any::<bool>()).prop_map(|(may_decline, peer_knows)| {
        LinkResult::Failed(LinkRefusal {
            diagnosis: Diagnosis::INTERNAL,
            may_decline,
            peer_knows,
        })
    });
    prop_oneof![
        8 => message.prop_map(Piece::Bytes),
        1 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Piece::Bytes),
        1 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Piece::Flood),
        1 => Just(Piece::Eof),
        2 => (0u32..30_000).prop_map(Piece::Time),
        2 => Just(Piece::Link(LinkResult::Up)),
        1 => refusal.prop_map(Piece::Link),
        4 => prop::sample::select(vec![
            Contact::First(local(Role::Client)),
            Contact::Subsequent(local(Role::Server)),
            Contact::Refuse(Diagnosis::MEMORY),
            Contact::OutOfSync,
            Contact::Wait,
        ]).prop_map(Piece::Contact),
    ]
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

fn op() -> impl Strategy<Value = Op> {
    let role = prop::sample::select(vec![Role::Client, Role::Server]);
    prop_oneof![
        30 => role.clone().prop_map(Op::Announce),
        20 => (role.clone(), any::<u8>()).prop_map(|(role, n)| Op::Withdraw(role, n)),
        10 => prop::sample::select(vec![1u32, 100, 1_000, 31_000]).prop_map(Op::Pass),
        1 => role.prop_map(Op::ShutDown),
        1 => Just(Op::Wish),
    ]
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
            sides: [Role::Client, Role::Server].map(|role| Side::new(role, version)),
            now: Time::from_millis(0),
        };
        for role in [Role::Client, Role::Server] {
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
                for role in [Role::Client, Role::Server] {
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
                    | Event::Resume => panic!("there is one link only"),
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

    fn check(&mut self) -> Result<(), TestCaseError> {
        // Requests to be repeated are due after a moment; a side that saw the end of the group
        // tells the other.
        for _ in 0..80 {
            self.operate(Op::Pass(100));
        }
        let over = [0, 1].map(|n| self.sides[n].flow.is_over());
        prop_assert_eq!(over[0], over[1]);
        for role in [Role::Client, Role::Server] {
            let own = self.side(role).own.clone();
            let over = self.side(role).flow.is_over();
            let side = self.side(role.peer());
            if over {
                prop_assert!(side.down.is_some() && side.released);
                continue;
            }
            let table = PeerTable::new(&mut side.slots);
            for (id, known) in &own {
                let found = table.find(LinkIx::FIRST, RKey((*id).into())).is_some();
                prop_assert_eq!(found, *known == Known::Yes, "{} is {:?}", id, known);
            }
        }
        Ok(())
    }
}
