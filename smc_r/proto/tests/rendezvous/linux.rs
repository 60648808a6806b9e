// SPDX-License-Identifier: GPL-2.0

//! Link groups whose peer does what Linux does.
//!
//! The peer is written after its habits: one exchange of its own and one of ours at a time, and whatever does
//! not fit is dropped without a word; an announcement for each connection and a withdrawal at its end, never
//! repeated; lengths in its own order of bytes; tests of the link with zeros, at any time; a wish to delete is
//! sent back as it came; the end of the group is answered by an end of its own. None of our requests may be
//! one that it drops.

use crate::facts::{
    end,
    token, //
};
use proptest::prelude::*;
use smc_proto::{
    group::{
        LinkIx,
        PeerRmb,
        PeerTable,
        Role, //
    },
    handshake::LinkResult,
    llc_flow::{
        Event,
        Flow,
        FlowParams,
        RmbId,
        ShutDown,
        Version, //
    },
    timer::{
        FlowTiming,
        Time, //
    },
    wire::RKey, //
};
use std::collections::{
    BTreeSet,
    VecDeque, //
};

const CONFIRM_LINK: u8 = 1;
const ADD_LINK: u8 = 2;
const DELETE_LINK: u8 = 4;
const CONFIRM_RKEY: u8 = 6;
const TEST_LINK: u8 = 7;
const DELETE_RKEY: u8 = 9;

const REPLY: u8 = 0x80;
const REJECTED: u8 = 0x40;
const NEGATIVE: u8 = 0x20;
const RETRY: u8 = 0x10;
const ALL: u8 = 0x40;

/// What differs in the headers of version 2.
const V2: u8 = 0x20;
const LEN: usize = 44;
/// Most buffers that it stores.
const MAX_RKEYS: usize = 254;

fn message(kind: u8, flags: u8) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[0] = kind;
    bytes[3] = flags;
    bytes
}

fn rkey(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// The peer.
struct Linux {
    role: Role,
    v2: bool,
    out: VecDeque<Vec<u8>>,
    /// Its own exchange that is under way.
    awaits: Option<u8>,
    /// Our request that it is busy with.
    serves: Option<[u8; LEN]>,
    tested: bool,
    own: Vec<u32>,
    next: u32,
    peers: BTreeSet<u32>,
    is_up: bool,
    is_over: bool,
    refused: usize,
    /// What it dropped of ours.
    dropped: Vec<u8>,
}

impl Linux {
    fn new(role: Role, v2: bool) -> Self {
        let mut linux = Self {
            role,
            v2,
            out: VecDeque::new(),
            awaits: None,
            serves: None,
            tested: false,
            own: Vec::new(),
            next: 0x100,
            peers: BTreeSet::new(),
            is_up: false,
            is_over: false,
            refused: 0,
            dropped: Vec::new(),
        };
        if role == Role::Server {
            linux.ask(linux.confirm_link(0));
        }
        linux
    }

    fn confirm_link(&self, flags: u8) -> [u8; LEN] {
        let own = end(self.role);
        let mut bytes = message(CONFIRM_LINK, flags | 3);
        bytes[4..10].copy_from_slice(&own.mac.0);
        bytes[10..26].copy_from_slice(&own.gid.0);
        bytes[26..29].copy_from_slice(&own.qp.get().to_be_bytes()[1..]);
        bytes[29] = 1;
        bytes[34] = 2;
        bytes[35] = if self.v2 { 255 } else { 0 };
        bytes
    }

    /// A second link of its server, over the same port as the first one.
    fn add_link(&self) -> Vec<u8> {
        let own = end(self.role);
        let mut bytes = message(ADD_LINK, 0).to_vec();
        bytes[4..10].copy_from_slice(&own.mac.0);
        bytes[12..28].copy_from_slice(&own.gid.0);
        bytes[30] = 77;
        bytes[31] = 2;
        bytes[32] = 3;
        if self.v2 {
            bytes.resize(72, 0);
            bytes[44] = 0x80;
            bytes[46..62].copy_from_slice(&own.gid.0);
        }
        bytes
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if self.v2 {
            bytes[0] |= V2;
            let len = bytes.len() as u16;
            bytes[1..3].copy_from_slice(&len.to_le_bytes());
        } else {
            bytes[1] = LEN as u8;
        }
        self.out.push_back(bytes);
    }

    fn ask(&mut self, bytes: [u8; LEN]) {
        self.awaits = Some(bytes[0]);
        self.send(&bytes);
    }

    fn can_ask(&self) -> bool {
        self.is_up && !self.is_over && self.awaits.is_none()
    }

    /// A connection begins, with a buffer of its own.
    fn open(&mut self) {
        if self.can_ask() {
            self.next += 1;
            let mut bytes = message(CONFIRM_RKEY, 0);
            bytes[5..9].copy_from_slice(&self.next.to_be_bytes());
            bytes[9..17].copy_from_slice(&(u64::from(self.next) << 20).to_be_bytes());
            self.own.push(self.next);
            self.ask(bytes);
        }
    }

    /// A connection ends, and its buffer is withdrawn.
    fn close(&mut self, which: usize) {
        if self.can_ask() && !self.own.is_empty() {
            let key = self.own.remove(which % self.own.len());
            let mut bytes = message(DELETE_RKEY, 0);
            bytes[4] = 1;
            bytes[8..12].copy_from_slice(&key.to_be_bytes());
            self.ask(bytes);
        }
    }

    fn test(&mut self) {
        if self.is_up && !self.is_over && !self.tested {
            self.tested = true;
            self.send(&message(TEST_LINK, 0));
        }
    }

    fn shut_down(&mut self) {
        if self.is_up && !self.is_over {
            self.is_over = true;
            let mut bytes = message(DELETE_LINK, ALL | 0x20);
            bytes[5..9].copy_from_slice(&0x0003_0000u32.to_be_bytes());
            self.send(&bytes);
        }
    }

    /// Answers the request that it is busy with.
    fn serve(&mut self) {
        let Some(mut bytes) = self.serves.take() else {
            return;
        };
        bytes[3] |= REPLY;
        if bytes[0] == CONFIRM_RKEY {
            if self.peers.len() < MAX_RKEYS {
                self.peers.insert(rkey(&bytes[5..]));
            } else {
                bytes[3] |= NEGATIVE | RETRY;
            }
        } else {
            let count = usize::from(bytes[4]).min(8);
            for n in 0..count {
                assert!(
                    self.peers.remove(&rkey(&bytes[8 + 4 * n..])),
                    "never announced"
                );
            }
            if self.v2 {
                bytes[8..].fill(0);
            }
        }
        self.send(&bytes);
    }

    fn receive(&mut self, raw: &[u8]) {
        let mut bytes: [u8; LEN] = raw[..LEN].try_into().unwrap();
        if self.v2 {
            assert_eq!(bytes[0] & 0xf0, V2);
            // It would not take another order from us for shorter than 44 bytes only by luck.
            let len = u16::from_le_bytes([bytes[1], bytes[2]]);
            assert!(len >= LEN as u16, "a length that it takes for too short");
            bytes[0] &= !V2;
            bytes[2] = 0;
        } else {
            assert_eq!((raw.len(), bytes[1]), (LEN, LEN as u8));
        }
        let (kind, is_reply) = (bytes[0], bytes[3] & REPLY != 0);
        if self.is_over {
            return;
        }
        match (kind, is_reply) {
            (TEST_LINK, false) => {
                bytes[3] |= REPLY;
                self.send(&bytes);
            }
            (TEST_LINK, true) => {
                assert!(
                    self.tested && bytes[4..20] == [0; 16],
                    "an answer to nothing"
                );
                self.tested = false;
            }
            (CONFIRM_RKEY | DELETE_RKEY, false) => match self.serves {
                None => self.serves = Some(bytes),
                Some(_) => self.dropped.push(kind),
            },
            (DELETE_LINK, false) => {
                // A client's wish goes back as it came; the end of a group is answered by one.
                self.is_over = true;
                self.send(&bytes);
            }
            (CONFIRM_LINK, false) => {
                self.send(&self.confirm_link(REPLY));
            }
            (ADD_LINK, false) => {
                bytes[2] = 1;
                bytes[3] |= REPLY | REJECTED;
                self.send(&bytes);
                self.is_up = true;
            }
            (kind, true) if self.awaits == Some(kind) => {
                self.awaits = None;
                match kind {
                    CONFIRM_LINK => {
                        self.awaits = Some(ADD_LINK);
                        let offer = self.add_link();
                        self.send(&offer);
                    }
                    ADD_LINK => {
                        assert_ne!(bytes[3] & REJECTED, 0, "there is no other port");
                        self.is_up = true;
                    }
                    CONFIRM_RKEY if bytes[3] & NEGATIVE != 0 => {
                        // That connection is TCP then.
                        self.own.pop();
                        self.refused += 1;
                    }
                    _ => {}
                }
            }
            _ => {
                // And the exchange under way counts as failed.
                self.dropped.push(kind);
                self.awaits = None;
            }
        }
    }
}

/// What happens.
#[derive(Debug, Clone, Copy)]
enum Op {
    Announce,
    Withdraw(u8),
    Open,
    Close(u8),
    Test,
    Serve,
    ToUs,
    ToLinux,
    Pass(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Announce),
        3 => any::<u8>().prop_map(Op::Withdraw),
        4 => Just(Op::Open),
        3 => any::<u8>().prop_map(Op::Close),
        1 => Just(Op::Test),
        4 => Just(Op::Serve),
        6 => Just(Op::ToUs),
        6 => Just(Op::ToLinux),
        1 => prop::sample::select(vec![100u32, 2_000, 31_000]).prop_map(Op::Pass),
    ]
}

/// Who ends the group.
#[derive(Debug, Clone, Copy)]
enum Who {
    We,
    Linux,
    Both,
}

struct Pair {
    flow: Flow,
    slots: Vec<PeerRmb>,
    linux: Linux,
    to_linux: VecDeque<Vec<u8>>,
    now: Time,
    /// Buffers of ours: announced and not withdrawn.
    own: BTreeSet<u16>,
    under_way: usize,
    next: u16,
    is_up: bool,
    is_down: bool,
    released: bool,
}

impl Pair {
    fn new(linux: Role, v2: bool) -> Self {
        let role = linux.peer();
        let mut flow = Flow::new(FlowParams {
            role,
            version: if v2 {
                Version::Two { direct: true }
            } else {
                Version::One
            },
            max_links: 2,
            max_connections: 255,
            user_id: 1,
            seed: 2,
            timing: FlowTiming::DEFAULT,
        });
        assert!(flow.add_connection());
        let now = Time::from_millis(0);
        flow.start(end(role), end(linux), None, now);
        let mut pair = Self {
            flow,
            slots: vec![PeerRmb::EMPTY; 255],
            linux: Linux::new(linux, v2),
            to_linux: VecDeque::new(),
            now,
            own: BTreeSet::new(),
            under_way: 0,
            next: 1,
            is_up: false,
            is_down: false,
            released: false,
        };
        pair.settle();
        assert!(pair.is_up && pair.linux.is_up);
        pair
    }

    fn drain(&mut self) {
        loop {
            while let Some(event) = self.flow.poll_event() {
                match event {
                    Event::FirstContact(LinkResult::Up) => self.is_up = true,
                    Event::RkeyConfirmed(RmbId(id)) => {
                        self.own.insert(id);
                        self.under_way -= 1;
                    }
                    Event::RkeyDeleted(_) => self.under_way -= 1,
                    Event::Down(_) => self.is_down = true,
                    Event::Release => self.released = true,
                    other => panic!("{other:?}"),
                }
            }
            let Some(send) = self.flow.poll_send() else {
                break;
            };
            self.to_linux.push_back(send.message.to_vec());
            if let Some(note) = send.note {
                self.flow.handle_sent(LinkIx::FIRST, note, true, self.now);
            }
        }
    }

    fn we_get(&mut self) -> bool {
        let Some(bytes) = self.linux.out.pop_front() else {
            return false;
        };
        let mut table = PeerTable::new(&mut self.slots);
        self.flow
            .handle_received(LinkIx::FIRST, &bytes, &mut table, self.now);
        self.drain();
        true
    }

    fn linux_gets(&mut self) -> bool {
        self.drain();
        let Some(bytes) = self.to_linux.pop_front() else {
            return false;
        };
        self.linux.receive(&bytes);
        true
    }

    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "they never stop");
            self.linux.serve();
            let ours = self.linux_gets();
            if !self.we_get() && !ours && self.linux.serves.is_none() {
                break;
            }
        }
    }

    fn pass(&mut self, span: u32) {
        self.settle();
        self.now = self.now.after(span);
        self.flow.handle_timeout(self.now);
        self.drain();
    }

    fn operate(&mut self, op: Op) {
        match op {
            Op::Announce => {
                let (id, now) = (self.next, self.now);
                if self.flow.announce(RmbId(id), token(id.into()), now).is_ok() {
                    self.next += 1;
                    self.under_way += 1;
                }
                self.drain();
            }
            Op::Withdraw(n) => {
                let known = self.own.iter().nth(usize::from(n) % self.own.len().max(1));
                if let Some(id) = known.copied() {
                    let key = RKey(id.into());
                    if self.flow.withdraw(RmbId(id), key, self.now).is_ok() {
                        self.own.remove(&id);
                        self.under_way += 1;
                    }
                }
                self.drain();
            }
            Op::Open => self.linux.open(),
            Op::Close(n) => self.linux.close(n.into()),
            Op::Test => self.linux.test(),
            Op::Serve => self.linux.serve(),
            Op::ToUs => {
                self.we_get();
            }
            Op::ToLinux => {
                self.linux_gets();
            }
            Op::Pass(span) => self.pass(span),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_group_with_linux(
        linux_is_server in any::<bool>(),
        v2 in any::<bool>(),
        ops in prop::collection::vec(op(), 0..300),
        who in prop::sample::select(vec![Who::We, Who::Linux, Who::Both]),
    ) {
        let role = if linux_is_server { Role::Server } else { Role::Client };
        let mut pair = Pair::new(role, v2);
        for op in ops {
            pair.operate(op);
            prop_assert!(!pair.is_down, "it ended");
        }
        for _ in 0..20 {
            pair.pass(100);
        }
        prop_assert_eq!(&pair.linux.dropped, &[] as &[u8], "requests that it dropped");
        prop_assert_eq!(pair.flow.counters().violations, 0);
        prop_assert_eq!((pair.under_way, pair.linux.awaits, pair.linux.tested), (0, None, false));
        // Each knows what the other has.
        let own: BTreeSet<u32> = pair.own.iter().map(|id| u32::from(*id)).collect();
        prop_assert_eq!(&pair.linux.peers, &own);
        prop_assert_eq!(PeerTable::new(&mut pair.slots).len(), pair.linux.own.len());
        prop_assert_eq!(pair.linux.refused, 0);

        let now = pair.now;
        match who {
            Who::We => pair.flow.shut_down(ShutDown::Program, now),
            Who::Linux => pair.linux.shut_down(),
            Who::Both => {
                pair.linux.shut_down();
                pair.flow.shut_down(ShutDown::Operator, now);
            }
        }
        pair.drain();
        pair.settle();
        for _ in 0..3 {
            pair.pass(5_000);
        }
        prop_assert!(pair.linux.is_over && pair.is_down && pair.released);
    }
}
