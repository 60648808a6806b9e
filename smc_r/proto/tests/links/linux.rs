// SPDX-License-Identifier: GPL-2.0

//! Peers that nobody here wrote: what the LLC layer of Linux does with a link group of up to two links, and what
//! RFC 7609 asks for.
//!
//! A peer reads and writes bytes, and shares no code with the core. It never does what a correct peer does not.

mod links;
mod requests;

use std::collections::{
    BTreeMap,
    BTreeSet,
    VecDeque, //
};

use smc_proto::group::{
    LinkEnd,
    Role, //
};

use crate::world::{
    end,
    token, //
};

/// Whose habits a peer has.
///
/// | | Linux | RFC 7609 |
/// |---|---|---|
/// | first contact | goes on without ADD LINK, or a reply to it | ends |
/// | ADD LINK | GID at offset 12 | GID at offset 10, as in figure 32 |
/// | second exchange of its own | waits for its turn, then gives up | waits |
/// | ADD LINK or DELETE LINK during an exchange | one of another kind is kept, others are dropped | kept |
/// | something else during an exchange | dropped, and the exchange fails | a breach |
/// | server's request during an own RKEY exchange | kept | served |
/// | CONFIRM RKEY while links change | taken | refused for now |
/// | CONFIRM RKEY that was refused | not repeated | repeated if for now |
/// | no answer | that exchange has failed | that link has failed |
/// | client's wish to delete | sent back | answered by a request of its own |
/// | the same for an unknown link | silence | a reply |
/// | DELETE LINK for all, as client | answered by another one | not answered |
/// | TEST LINK | zeros, not compared | numbers, compared |
/// | link that was lost | one attempt, then when a port comes | by a timer as well |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    Linux,
    Rfc,
}

pub const CONFIRM_LINK: u8 = 1;
pub const ADD_LINK: u8 = 2;
pub const ADD_LINK_CONT: u8 = 3;
pub const DELETE_LINK: u8 = 4;
const REQUEST_ADD_LINK: u8 = 5;
pub const CONFIRM_RKEY: u8 = 6;
pub const TEST_LINK: u8 = 7;
pub const DELETE_RKEY: u8 = 9;

pub const REPLY: u8 = 0x80;
const REJECTED: u8 = 0x40;
const NEGATIVE: u8 = 0x20;
const RETRY: u8 = 0x10;
const ALL: u8 = 0x40;
const ORDERLY: u8 = 0x20;

const PATH_LOST: u32 = 0x0001_0000;
const OPERATOR: u32 = 0x0002_0000;
const ASYMMETRIC: u32 = 0x0005_0000;
const NO_SUCH_LINK: u32 = 0x0010_0000;

/// What differs in the types of version 2, and how long its ADD LINK is without keys.
const V2: u8 = 0x20;
const LEN: usize = 44;
const LEN_ADD_V2: usize = 72;

/// Most links that count.
const MAX_LINKS: usize = 2;

/// How long the peer waits for what, in milliseconds.
struct Patience {
    confirm_request: u64,
    confirm_reply: u64,
    add_request: u64,
    reply: u64,
    confirm_further: u64,
    /// For its own turn.
    slot: u64,
    test: u64,
}

const LINUX: Patience = Patience {
    confirm_request: 4_000,
    confirm_reply: 2_000,
    add_request: 2_000,
    reply: 2_000,
    confirm_further: 5_000,
    slot: 20_000,
    test: 2_000,
};

const RFC: Patience = Patience {
    confirm_request: 10_000,
    confirm_reply: 10_000,
    add_request: 10_000,
    reply: 5_000,
    confirm_further: 5_000,
    slot: u64::MAX / 2,
    test: 5_000,
};

/// Silence on a link before it is tested.
const SILENCE: u64 = 30_000;
/// How long a client of Linux waits for its turn before it tells of a lost link.
const TURN: u64 = 2_000;
/// Before the RFC's server tries again to get a link, and either repeats a CONFIRM RKEY.
const RETRY_LINK: u64 = 60_000;
const RETRY_RKEY: u64 = 200;
/// Completion of the group's last message.
const LAST_SEND: u64 = 2_000;

/// One of its links.
#[derive(Debug)]
pub struct Link {
    pub qp: u32,
    pub port: usize,
    pub number: u8,
    pub far: Option<Far>,
    pub stage: Stage,
    pub failed: bool,
    /// What was posted and is not confirmed.
    pub queue: VecDeque<Vec<u8>>,
    heard: u64,
    /// A TEST LINK is under way until then.
    test: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    New,
    Up,
    /// Its connections have moved, or are about to.
    Going,
}

/// The other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Far {
    port: ([u8; 6], [u8; 16]),
    pub qp: u32,
}

/// An exchange that is about links.
#[derive(Debug)]
enum Change {
    /// Server: its first CONFIRM LINK has to be answered.
    Greeting,
    /// Client: waits for the first CONFIRM LINK, and then for ADD LINK.
    Greeted,
    AwaitOffer,
    /// Server: its offer has to be answered.
    Offer {
        new: u32,
        via: u32,
    },
    /// Keys go to and fro: those that are left of its own, and of ours.
    Keys {
        new: u32,
        via: u32,
        own: VecDeque<u16>,
        left: Option<u8>,
    },
    /// CONFIRM LINK on the new link.
    Confirm {
        new: u32,
        via: u32,
    },
    /// What it has under way on a link comes to its end. Then a server sends this.
    Leave {
        link: u32,
        words: Option<(u32, Vec<u8>)>,
    },
    /// Server: the client has to delete its side.
    Delete {
        number: u8,
        via: u32,
    },
    /// Client of version 2: it has asked for a link.
    Asked,
}

/// An RKEY exchange of its own.
#[derive(Debug, Clone, Copy)]
struct RkeyExchange {
    kind: u8,
    id: u16,
    via: u32,
}

/// Something that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Delete { number: u8, reason: u32 },
    Add,
    Hint,
    Announce(u16),
    Withdraw(u16),
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    job: Job,
    from: u64,
    until: u64,
}

pub struct Peer {
    stack: Stack,
    role: Role,
    v2: bool,
    pub now: u64,
    pub ports: Vec<bool>,
    pub links: Vec<Link>,
    next_qp: u32,
    next_number: u8,
    requests: VecDeque<(u32, Vec<u8>)>,
    /// Requests that wait until an exchange is over.
    kept: VecDeque<(u32, Vec<u8>)>,
    change: Option<(Change, u64)>,
    rkey: Option<(RkeyExchange, u64)>,
    jobs: VecDeque<Waiting>,
    retry_at: Option<u64>,
    /// When the end has been told, and on which link.
    ending: Option<(u64, u32)>,
    /// The first contact is complete.
    pub is_up: bool,
    /// It is over, or about to be.
    pub is_over: bool,
    /// The first contact has failed: its TCP connection is reset or declined.
    pub reset: bool,
    /// Its buffers that the other side knows, and those that it has forgotten.
    pub own: BTreeSet<u16>,
    pub forgotten: BTreeSet<u16>,
    next_rmb: u16,
    /// Buffers of the other side: keys and addresses by queue pairs.
    pub known: Vec<BTreeMap<u32, (u32, u64)>>,
    /// Numbers of links that were.
    gone: BTreeSet<u8>,
    pub refused: usize,
    pub asked_again: usize,
    /// Types of what it dropped, and what it must never get.
    pub dropped: Vec<u8>,
    pub breaches: Vec<String>,
}

fn message(kind: u8, flags: u8) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    bytes[0] = kind;
    bytes[3] = flags;
    bytes
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

fn long(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// A key of a buffer of its own, with its address behind it.
fn key(qp: u32, id: u16) -> [u8; 12] {
    let token = token(qp, id);
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&token.rkey.0.to_be_bytes());
    bytes[4..].copy_from_slice(&token.addr.to_be_bytes());
    bytes
}

fn delete_link(flags: u8, number: u8, reason: u32) -> Vec<u8> {
    let mut bytes = message(DELETE_LINK, flags);
    bytes[4] = number;
    bytes[5..9].copy_from_slice(&reason.to_be_bytes());
    bytes
}

impl Far {
    fn of(end: &LinkEnd) -> Self {
        Self {
            port: (end.mac.0, end.gid.0),
            qp: end.qp.get(),
        }
    }

    /// What ADD LINK says, in either layout.
    fn read(bytes: &[u8]) -> Self {
        let at = if bytes[10..12] == [0; 2] { 12 } else { 10 };
        let qp = [0, bytes[at + 16], bytes[at + 17], bytes[at + 18]];
        Self {
            port: (
                bytes[4..10].try_into().unwrap(),
                bytes[at..at + 16].try_into().unwrap(),
            ),
            qp: u32::from_be_bytes(qp),
        }
    }
}

/// What a link group looks like from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    None,
    Single,
    /// This link shares a port with another one: the port here, or there.
    Asymmetric(u32),
    Symmetric,
}

// What the world tells, and asks for.
impl Peer {
    /// A peer whose first queue pair is connected already, and which knows these buffers of the other side by CLC.
    pub fn new(stack: Stack, role: Role, v2: bool, ports: Vec<bool>, ends: [LinkEnd; 2]) -> Self {
        let [own, far] = ends;
        let first = Link {
            qp: own.qp.get(),
            port: 0,
            number: u8::from(role == Role::Server),
            far: Some(Far::of(&far)),
            stage: Stage::Up,
            failed: false,
            queue: VecDeque::new(),
            heard: 0,
            test: None,
        };
        Self {
            stack,
            role,
            v2,
            now: 0,
            ports,
            next_qp: first.qp,
            links: vec![first],
            next_number: 2,
            requests: VecDeque::new(),
            kept: VecDeque::new(),
            change: None,
            rkey: None,
            jobs: VecDeque::new(),
            retry_at: None,
            ending: None,
            is_up: false,
            is_over: false,
            reset: false,
            own: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            next_rmb: 0,
            known: Vec::new(),
            gone: BTreeSet::new(),
            refused: 0,
            asked_again: 0,
            dropped: Vec::new(),
            breaches: Vec::new(),
        }
    }

    pub fn start(&mut self, now: u64) {
        self.now = now;
        let first = self.links[0].qp;
        self.links[0].heard = now;
        if self.role == Role::Server {
            self.confirm_link(first, 0);
            self.begin(Change::Greeting, self.patience().confirm_reply);
        } else {
            self.begin(Change::Greeted, self.patience().confirm_request);
        }
    }

    /// A buffer that CLC names.
    pub fn first_rmb(&mut self) -> u16 {
        let id = self.next_rmb;
        self.next_rmb += 1;
        self.own.insert(id);
        id
    }

    pub fn link(&self, qp: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.qp == qp)
    }

    pub fn link_mut(&mut self, qp: u32) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.qp == qp)
    }

    /// A SEND has arrived.
    pub fn receive(&mut self, qp: u32, raw: &[u8]) {
        let now = self.now;
        if let Some(link) = self.link_mut(qp) {
            link.heard = now;
        }
        if self.is_over {
            return;
        }
        let mut bytes = raw.to_vec();
        if self.v2 {
            let length = u16::from_le_bytes([bytes[1], bytes[2]]);
            if bytes.len() < LEN || usize::from(length) < LEN {
                return self.dropped.push(bytes[0]);
            }
            if bytes[0] & 0xf0 != V2 {
                return self.dropped.push(bytes[0]);
            }
            bytes[0] &= !V2;
            bytes[1] = 0;
            bytes[2] = 0;
        } else if (bytes.len(), bytes[1]) != (LEN, LEN as u8) {
            return self.dropped.push(bytes[0]);
        }
        match (bytes[0], bytes[3] & REPLY != 0) {
            (TEST_LINK, false) => {
                bytes[3] |= REPLY;
                self.post(qp, bytes);
            }
            (TEST_LINK, true) => self.tested(qp, &bytes),
            (CONFIRM_RKEY | DELETE_RKEY, true) => self.rkey_answered(&bytes),
            (_, true) => self.answered(qp, &bytes),
            (_, false) => self.requests.push_back((qp, bytes)),
        }
        self.go_on();
    }

    /// Whether it has something to look at.
    pub fn has_work(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Looks at the next request.
    pub fn work(&mut self) {
        if let Some((qp, bytes)) = self.requests.pop_front() {
            // A link that is gone takes its requests along.
            if !self.is_over && self.link(qp).is_some() {
                self.handle(qp, bytes);
            }
        }
        self.go_on();
    }

    /// Something that it posted was confirmed.
    pub fn completed(&mut self) {
        self.go_on();
    }

    /// It notices that a queue pair has failed.
    pub fn notice(&mut self, qp: u32) {
        let stage = self.link(qp).map(|link| link.stage);
        // Nobody looks after one that is being added: its exchange comes to an end by time.
        if !self.is_over && stage == Some(Stage::Up) {
            self.lose(qp);
        }
        self.go_on();
    }

    pub fn deadline(&self) -> Option<u64> {
        let tests = self.links.iter().filter(|link| link.stage == Stage::Up);
        let tests = tests.map(|link| link.test.unwrap_or(link.heard.saturating_add(SILENCE)));
        let jobs = self.jobs.iter().flat_map(|waiting| {
            let from = Some(waiting.from).filter(|from| *from > self.now);
            [from, Some(waiting.until)].into_iter().flatten()
        });
        let exchanges = [
            self.change.as_ref().map(|(_, until)| *until),
            self.rkey.map(|(_, until)| until),
            self.retry_at,
        ];
        let end = self.ending.map(|(until, _)| until);
        let all = tests.chain(jobs).chain(exchanges.into_iter().flatten());
        match self.is_over {
            true => end,
            false => all.min().filter(|at| *at < u64::MAX / 4),
        }
    }

    pub fn timeout(&mut self) {
        let now = self.now;
        if self.ending.is_some_and(|(until, _)| until <= now) {
            self.release();
        }
        if self.is_over {
            return;
        }
        if self.change.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.change_failed();
        }
        if let Some((exchange, _)) = self.rkey.filter(|(_, until)| *until <= now) {
            self.rkey = None;
            self.rkey_failed(exchange);
        }
        self.test_links();
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.want_link();
        }
        self.go_on();
    }

    /// Whether an exchange is under way, or something waits for one.
    pub fn is_busy(&self) -> bool {
        !self.is_over
            && (self.change.is_some()
                || self.rkey.is_some()
                || !self.jobs.is_empty()
                || !self.kept.is_empty()
                || !self.requests.is_empty())
    }

    /// A connection begins, with a buffer of its own.
    pub fn announce(&mut self) {
        if self.is_up && !self.is_over {
            let id = self.next_rmb;
            self.next_rmb += 1;
            self.queue(Job::Announce(id));
            self.go_on();
        }
    }

    /// A connection ends, and takes its buffer along. Not the first ones.
    pub fn withdraw(&mut self, given: u16) {
        let id = self.own.range(given..).next().copied();
        if let Some(id) = id.filter(|_| !self.is_over) {
            self.own.remove(&id);
            self.queue(Job::Withdraw(id));
            self.go_on();
        }
    }

    /// A port is there.
    pub fn port_came(&mut self, port: usize) {
        self.ports[port] = true;
        self.want_link();
        self.go_on();
    }

    /// An operator takes a link out of use.
    pub fn drain(&mut self) {
        let last = self.up().last().map(|link| (link.qp, link.number));
        if let Some((qp, number)) = last.filter(|_| self.up().count() > 1) {
            // A client goes on using it until the server says so.
            if self.role == Role::Server {
                self.link_mut(qp).unwrap().stage = Stage::Going;
            }
            self.queue(Job::Delete {
                number,
                reason: OPERATOR,
            });
            self.go_on();
        }
    }

    pub fn shut_down(&mut self) {
        if self.is_up && !self.is_over {
            self.end(Some((OPERATOR, ORDERLY)));
        }
    }
}

// Messages.
impl Peer {
    fn host(&self) -> usize {
        usize::from(self.role == Role::Client)
    }

    fn patience(&self) -> &'static Patience {
        match self.stack {
            Stack::Linux => &LINUX,
            Stack::Rfc => &RFC,
        }
    }

    fn post(&mut self, qp: u32, mut bytes: Vec<u8>) {
        if self.v2 {
            bytes[0] |= V2;
            let [a, b] = (bytes.len() as u16).to_le_bytes();
            (bytes[1], bytes[2]) = (a, b);
        } else {
            bytes[1] = LEN as u8;
        }
        if let Some(link) = self.link_mut(qp).filter(|link| !link.failed) {
            link.queue.push_back(bytes);
        }
    }

    fn confirm_link(&mut self, qp: u32, flags: u8) {
        let Some(link) = self.link(qp) else {
            return;
        };
        let own = end(self.host(), link.port, qp);
        // Whose RMBEs begin with an eye catcher is declined.
        let mut bytes = message(CONFIRM_LINK, flags | 3);
        bytes[4..10].copy_from_slice(&own.mac.0);
        bytes[10..26].copy_from_slice(&own.gid.0);
        bytes[26..29].copy_from_slice(&qp.to_be_bytes()[1..]);
        bytes[29] = link.number;
        bytes[33] = link.number;
        bytes[34] = MAX_LINKS as u8;
        bytes[35] = if self.v2 { 255 } else { 0 };
        self.post(qp, bytes);
    }

    /// ADD LINK for a link, with the keys of all buffers in version 2.
    fn add_link(&mut self, via: u32, new: u32, flags: u8) {
        let Some(link) = self.link(new) else {
            return;
        };
        let own = end(self.host(), link.port, new);
        let mut bytes = message(ADD_LINK, flags);
        bytes[4..10].copy_from_slice(&own.mac.0);
        let at = match self.stack {
            Stack::Linux => 12,
            Stack::Rfc => 10,
        };
        bytes[at..at + 16].copy_from_slice(&own.gid.0);
        bytes[at + 16..at + 19].copy_from_slice(&new.to_be_bytes()[1..]);
        bytes[at + 19] = link.number;
        bytes[at + 20] = 3;
        bytes[at + 21..at + 24].copy_from_slice(&new.to_be_bytes()[1..]);
        if self.v2 {
            bytes.resize(LEN_ADD_V2, 0);
            bytes[44] = 0x80;
            bytes[46..62].copy_from_slice(&own.gid.0);
            let ids = self.ids();
            bytes[70..72].copy_from_slice(&(ids.len() as u16).to_le_bytes());
            for id in ids {
                bytes.extend(&key(via, id)[..4]);
                bytes.extend(key(new, id));
            }
        }
        self.post(via, bytes);
    }

    /// The buffers that there are, announced or not yet, or about to be withdrawn.
    fn ids(&self) -> VecDeque<u16> {
        let waiting = self.jobs.iter().filter_map(|waiting| match waiting.job {
            Job::Announce(id) | Job::Withdraw(id) => Some(id),
            _ => None,
        });
        // With the answer to an announcement that is under way, the other side may know it.
        let under_way = self.rkey.map(|(exchange, _)| exchange.id);
        let all = self.own.iter().copied().chain(waiting).chain(under_way);
        all.collect()
    }

    /// The next ADD LINK CONTINUATION. True if all keys have been named then.
    fn send_keys(&mut self, via: u32, new: u32, own: &mut VecDeque<u16>) -> bool {
        let flags = if self.role == Role::Client { REPLY } else { 0 };
        let mut bytes = message(ADD_LINK_CONT, flags);
        bytes[4] = self.link(new).map_or(0, |link| link.number);
        // What Linux counts are connections, here one whose buffer is still to be made; it says so when it has no more
        // buffers. A client of it that is asked for more then gives up the link.
        let unmade = self.stack == Stack::Linux && self.role == Role::Server && !own.is_empty();
        bytes[5] = own.len() as u8 + u8::from(unmade);
        for at in [8, 24] {
            if let Some(id) = own.pop_front() {
                bytes[at..at + 4].copy_from_slice(&key(via, id)[..4]);
                bytes[at + 4..at + 16].copy_from_slice(&key(new, id));
            }
        }
        self.post(via, bytes);
        own.is_empty()
    }

    fn take_pairs(&mut self, via: u32, new: u32, pairs: &[u8]) {
        for pair in pairs.chunks_exact(16) {
            let reference = word(pair);
            let found = self
                .known
                .iter_mut()
                .find(|keys| keys.get(&via).is_some_and(|key| key.0 == reference));
            if let Some(keys) = found {
                keys.insert(new, (word(&pair[4..]), long(&pair[8..])));
            }
        }
    }
}
