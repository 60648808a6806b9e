// SPDX-License-Identifier: GPL-2.0

//! Peers that nobody here wrote: what the LLC layer of Linux does with a link group of up to two links, and what
//! RFC 7609 asks for.
//!
//! A peer reads and writes bytes, and shares no code with the core. It never does what a correct peer does not.

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
        bytes[5] = own.len() as u8;
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

// Which links there are.
impl Peer {
    pub fn up(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.stage == Stage::Up)
    }

    fn carrier(&self) -> Option<u32> {
        self.up().find(|link| !link.failed).map(|link| link.qp)
    }

    fn by_number(&self, number: u8) -> Option<u32> {
        let found = self.links.iter().find(|link| link.number == number);
        found.map(|link| link.qp)
    }

    fn shape(&self) -> Shape {
        let up: Vec<&Link> = self.up().collect();
        let shares = |one: &Link, other: &Link| {
            one.port == other.port || one.far.map(|far| far.port) == other.far.map(|far| far.port)
        };
        let odd = up.iter().enumerate().find(|(at, link)| {
            *at > 0
                && up
                    .iter()
                    .any(|other| other.qp != link.qp && shares(link, other))
        });
        match (up.len(), odd) {
            (0, _) => Shape::None,
            (1, _) => Shape::Single,
            (_, Some((_, link))) => Shape::Asymmetric(link.qp),
            (_, None) => Shape::Symmetric,
        }
    }

    /// A port for a further link: one on which there is none, or only the asymmetric one.
    fn free_port(&self) -> Option<usize> {
        let odd = match self.shape() {
            Shape::Asymmetric(qp) => Some(qp),
            _ => None,
        };
        (0..self.ports.len()).find(|port| {
            let used = self
                .up()
                .any(|link| link.port == *port && Some(link.qp) != odd);
            self.ports[*port] && !used
        })
    }

    fn make(&mut self, port: usize, number: u8, far: Option<Far>) -> u32 {
        self.next_qp += 2;
        self.links.push(Link {
            qp: self.next_qp,
            port,
            number,
            far,
            stage: Stage::New,
            failed: false,
            queue: VecDeque::new(),
            heard: self.now,
            test: None,
        });
        self.next_qp
    }

    fn remove(&mut self, qp: u32) {
        self.gone.extend(self.link(qp).map(|link| link.number));
        self.links.retain(|link| link.qp != qp);
        for keys in &mut self.known {
            keys.remove(&qp);
        }
    }

    fn set_up(&mut self, qp: u32) {
        let now = self.now;
        if let Some(link) = self.link_mut(qp) {
            link.stage = Stage::Up;
            link.heard = now;
        }
    }

    /// A link has failed.
    fn lose(&mut self, qp: u32) {
        let Some(link) = self.link_mut(qp) else {
            return;
        };
        link.stage = Stage::Going;
        link.failed = true;
        link.queue.clear();
        let number = link.number;
        if !self.is_up {
            return self.fail_first();
        }
        if self.carrier().is_none() {
            return self.end(None);
        }
        let turn = match (self.role, self.stack) {
            (Role::Client, Stack::Linux) => TURN,
            (Role::Client, Stack::Rfc) => 0,
            (Role::Server, _) => u64::MAX / 2,
        };
        self.jobs.push_front(Waiting {
            job: Job::Delete {
                number,
                reason: PATH_LOST,
            },
            from: self.now,
            until: self.now + turn,
        });
        if self.stack == Stack::Rfc {
            self.start_over(qp);
        }
    }

    /// Exchanges whose link is lost begin anew.
    fn start_over(&mut self, lost: u32) {
        if let Some((exchange, _)) = self.rkey.filter(|(exchange, _)| exchange.via == lost) {
            self.rkey = None;
            self.again(exchange, 0);
        }
        let change = self.change.take();
        match change {
            Some((
                Change::Offer { new, via }
                | Change::Keys { new, via, .. }
                | Change::Confirm { new, via },
                _,
            )) if via == lost => {
                let number = self.link(new).map_or(0, |link| link.number);
                self.remove(new);
                self.queue(Job::Delete {
                    number,
                    reason: PATH_LOST,
                });
                self.want_link();
            }
            Some((Change::Delete { number, via }, _)) if via == lost => {
                self.queue(Job::Delete {
                    number,
                    reason: PATH_LOST,
                });
            }
            other => self.change = other,
        }
    }

    fn fail_first(&mut self) {
        self.reset = true;
        self.release();
    }

    fn release(&mut self) {
        self.is_over = true;
        self.ending = None;
        self.links.clear();
        self.jobs.clear();
        self.kept.clear();
        self.requests.clear();
        self.change = None;
        self.rkey = None;
    }

    /// The group ends, with a last message or without.
    fn end(&mut self, words: Option<(u32, u8)>) {
        self.is_over = true;
        match words.zip(self.carrier()) {
            Some(((reason, flags), via)) => {
                self.post(via, delete_link(ALL | flags, 0, reason));
                self.ending = Some((self.now + LAST_SEND, via));
            }
            None => self.release(),
        }
    }

    fn test_links(&mut self) {
        let now = self.now;
        let late: Vec<u32> = self
            .up()
            .filter(|link| link.test.is_some_and(|until| until <= now))
            .map(|link| link.qp)
            .collect();
        for qp in late {
            self.lose(qp);
        }
        let silent: Vec<u32> = self
            .up()
            .filter(|link| link.test.is_none() && link.heard + SILENCE <= now)
            .map(|link| link.qp)
            .collect();
        for qp in silent {
            let mut bytes = message(TEST_LINK, 0);
            if self.stack == Stack::Rfc {
                bytes[4..8].copy_from_slice(&qp.to_be_bytes());
            }
            let until = now + self.patience().test;
            self.link_mut(qp).unwrap().test = Some(until);
            self.post(qp, bytes);
        }
    }

    fn tested(&mut self, qp: u32, bytes: &[u8]) {
        let stack = self.stack;
        let Some(link) = self.link_mut(qp) else {
            return;
        };
        if link.test.take().is_none() {
            self.breaches.push("an answer to no TEST LINK".into());
        } else if stack == Stack::Rfc && word(&bytes[4..]) != qp {
            self.breaches.push("other data in TEST LINK".into());
        }
    }
}

// Links that change.
impl Peer {
    fn begin(&mut self, change: Change, patience: u64) {
        self.change = Some((change, self.now + patience));
    }

    /// Server: adds a link, or lets the client know that it cannot.
    fn offer(&mut self) {
        let Some(via) = self.carrier() else {
            return;
        };
        let shape = self.shape();
        let used = self.link(via).map(|link| link.port);
        let port = self.free_port().or(used.filter(|_| shape == Shape::Single));
        let (Some(port), Shape::Single | Shape::Asymmetric(_)) = (port, shape) else {
            return;
        };
        while self.next_number == 0 || self.by_number(self.next_number).is_some() {
            self.next_number = self.next_number.wrapping_add(1);
        }
        let new = self.make(port, self.next_number, None);
        self.next_number = self.next_number.wrapping_add(1);
        self.add_link(via, new, 0);
        self.begin(Change::Offer { new, via }, self.patience().reply);
    }

    /// Client: takes an offer or not.
    fn offered(&mut self, via: u32, bytes: &[u8]) {
        let far = Far::read(bytes);
        let at = if bytes[10..12] == [0; 2] { 12 } else { 10 };
        let (number, mtu) = (bytes[at + 19], bytes[at + 20] & 0xf);
        if self.by_number(number).is_some() {
            self.breaches.push(format!("link {number} is in use"));
        }
        let shape = self.shape();
        let odd = match shape {
            Shape::Asymmetric(qp) => Some(qp),
            _ => None,
        };
        let same_far = self
            .up()
            .any(|link| Some(link.qp) != odd && link.far.map(|far| far.port) == Some(far.port));
        let free = self.free_port();
        let asymmetric = same_far || free.is_none();
        let port = match shape {
            Shape::None | Shape::Symmetric => None,
            Shape::Asymmetric(_) if asymmetric => None,
            _ if same_far => free,
            _ => free.or(self.link(via).map(|link| link.port)),
        };
        let Some(port) = port.filter(|_| mtu != 0) else {
            let mut reply = bytes[..LEN].to_vec();
            reply[3] |= REPLY | REJECTED;
            reply[2] = 1;
            self.post(via, reply);
            self.is_up = true;
            return;
        };
        let new = self.make(port, number, Some(far));
        if self.v2 {
            let count = usize::from(u16::from_le_bytes([bytes[70], bytes[71]]));
            let pairs = &bytes[LEN_ADD_V2..];
            if count * 16 != pairs.len() {
                self.breaches
                    .push(format!("{count} pairs in {}", pairs.len()));
            }
            self.take_pairs(via, new, pairs);
        }
        self.add_link(via, new, REPLY);
        if self.v2 {
            self.begin(
                Change::Confirm { new, via },
                self.patience().confirm_further,
            );
        } else {
            let own = self.ids();
            let left = None;
            self.begin(
                Change::Keys {
                    new,
                    via,
                    own,
                    left,
                },
                self.patience().reply,
            );
        }
    }

    /// A reply that is about links.
    fn answered(&mut self, qp: u32, bytes: &[u8]) {
        let kind = bytes[0];
        let Some((change, until)) = self.change.take() else {
            // To something that it did not wait for any more.
            return;
        };
        match (change, kind) {
            (Change::Greeting, CONFIRM_LINK) => {
                self.offer();
                if self.change.is_none() {
                    self.is_up = true;
                }
            }
            (Change::Offer { new, via }, ADD_LINK) => self.offer_answered(new, via, bytes),
            (
                Change::Keys {
                    new,
                    via,
                    own,
                    left,
                },
                ADD_LINK_CONT,
            ) => {
                self.keys(new, via, own, left, bytes);
            }
            (Change::Confirm { new, .. }, CONFIRM_LINK) if qp == new => {
                self.set_up(new);
                self.is_up = true;
                if let Shape::Asymmetric(odd) = self.shape() {
                    if self.up().count() > MAX_LINKS {
                        self.delete_asymmetric(odd);
                    }
                } else if self.up().count() > MAX_LINKS {
                    self.breaches.push("too many links".into());
                }
            }
            (Change::Delete { number, .. }, DELETE_LINK) if bytes[4] == number => {
                self.deleted(number);
            }
            (Change::Asked, REQUEST_ADD_LINK) => {}
            (change, _) => {
                self.dropped.push(kind | REPLY);
                self.change = Some((change, until));
            }
        }
    }

    fn delete_asymmetric(&mut self, odd: u32) {
        if let Some(link) = self.link_mut(odd) {
            link.stage = Stage::Going;
            let number = link.number;
            self.queue(Job::Delete {
                number,
                reason: ASYMMETRIC,
            });
        }
    }

    fn offer_answered(&mut self, new: u32, via: u32, bytes: &[u8]) {
        if bytes[3] & REJECTED != 0 {
            self.remove(new);
            self.is_up = true;
            return;
        }
        let far = Far::read(bytes);
        let Some(link) = self.link_mut(new) else {
            return;
        };
        link.far = Some(far);
        let port = link.port;
        let parallel = self
            .up()
            .any(|link| link.port == port && link.far.map(|far| far.port) == Some(far.port));
        if parallel {
            self.breaches.push("a parallel link".into());
        }
        if self.v2 {
            self.take_pairs(via, new, &bytes[LEN_ADD_V2..]);
            return self.present(new, via);
        }
        let mut own = self.ids();
        self.send_keys(via, new, &mut own);
        let left = None;
        self.begin(
            Change::Keys {
                new,
                via,
                own,
                left,
            },
            self.patience().reply,
        );
    }

    /// Server: CONFIRM LINK on a new link.
    fn present(&mut self, new: u32, via: u32) {
        self.confirm_link(new, 0);
        self.begin(
            Change::Confirm { new, via },
            self.patience().confirm_further,
        );
    }

    /// ADD LINK CONTINUATION of either side.
    fn keys(&mut self, new: u32, via: u32, mut own: VecDeque<u16>, left: Option<u8>, bytes: &[u8]) {
        let count = bytes[5];
        if left.is_some_and(|left| left != count) {
            self.breaches
                .push(format!("{count} keys in place of {left:?}"));
        }
        let here = usize::from(count.min(2));
        self.take_pairs(via, new, &bytes[8..8 + 16 * here]);
        let left = Some(count.saturating_sub(2));
        if self.role == Role::Server && left == Some(0) && own.is_empty() {
            return self.present(new, via);
        }
        let all = self.send_keys(via, new, &mut own);
        if self.role == Role::Client && left == Some(0) && all {
            let patience = self.patience().confirm_further;
            return self.begin(Change::Confirm { new, via }, patience);
        }
        self.begin(
            Change::Keys {
                new,
                via,
                own,
                left,
            },
            self.patience().reply,
        );
    }

    /// What was waited for did not come, or something else in its place.
    fn change_failed(&mut self) {
        let Some((change, _)) = self.change.take() else {
            return;
        };
        let first = !self.is_up;
        match change {
            Change::Greeting | Change::Greeted => self.fail_first(),
            Change::AwaitOffer if self.stack == Stack::Rfc => self.fail_first(),
            Change::AwaitOffer => self.is_up = true,
            Change::Offer { .. } if first && self.stack == Stack::Rfc => self.fail_first(),
            Change::Offer { new, via } | Change::Keys { new, via, .. } => {
                self.remove(new);
                self.is_up = true;
                if self.stack == Stack::Rfc {
                    self.lose(via);
                }
            }
            Change::Confirm { new, via } => {
                let number = self.link(new).map_or(0, |link| link.number);
                self.remove(new);
                self.is_up = true;
                let words = delete_link(0, number, PATH_LOST);
                if (self.role, self.stack) == (Role::Server, Stack::Rfc) {
                    self.tell(number, via, words);
                } else {
                    self.post(via, words);
                }
            }
            Change::Delete { number, via } => {
                if self.stack == Stack::Rfc {
                    self.lose(via);
                }
                self.deleted(number);
            }
            Change::Leave { .. } | Change::Asked => {}
        }
    }

    /// Server: a link is to go, and the client is told when it has nothing more under way there.
    fn delete(&mut self, number: u8, via: u32, words: Vec<u8>) {
        match self.by_number(number) {
            Some(link) => {
                self.link_mut(link).unwrap().stage = Stage::Going;
                let words = Some((via, words));
                self.begin(Change::Leave { link, words }, u64::MAX / 2);
            }
            None => self.tell(number, via, words),
        }
    }

    fn tell(&mut self, number: u8, via: u32, words: Vec<u8>) {
        self.post(via, words);
        let delete = Change::Delete { number, via };
        self.begin(delete, self.patience().reply);
    }

    /// Server: a link is history, and another one wanted.
    fn deleted(&mut self, number: u8) {
        let was_odd = self.by_number(number).is_none();
        if let Some(qp) = self.by_number(number) {
            self.remove(qp);
        }
        match self.shape() {
            Shape::None => self.end(None),
            Shape::Single if !was_odd => self.want_link(),
            _ => {}
        }
    }

    /// Either side lacks a link, and may have a port for it.
    fn want_link(&mut self) {
        if !self.is_up || self.is_over {
            return;
        }
        let wanted = match (self.shape(), self.role) {
            (Shape::None | Shape::Symmetric, _) => false,
            (Shape::Single, Role::Server) => true,
            (Shape::Asymmetric(odd), Role::Server) => self.shares_own_port(odd),
            (Shape::Single, Role::Client) => self.free_port().is_some(),
            (Shape::Asymmetric(odd), Role::Client) => {
                self.shares_own_port(odd) && self.free_port().is_some()
            }
        };
        let job = match self.role {
            Role::Server => Job::Add,
            Role::Client => Job::Hint,
        };
        if wanted && self.jobs.iter().all(|waiting| waiting.job != job) {
            self.queue(job);
        }
    }

    fn shares_own_port(&self, odd: u32) -> bool {
        let port = self.link(odd).map(|link| link.port);
        self.up()
            .any(|link| link.qp != odd && Some(link.port) == port)
    }
}

// Requests of the other side.
impl Peer {
    fn handle(&mut self, qp: u32, bytes: Vec<u8>) {
        match (bytes[0], self.role) {
            (CONFIRM_LINK, Role::Client) => self.confirm_asked(qp, &bytes),
            (ADD_LINK_CONT, Role::Client) => match self.change.take() {
                Some((
                    Change::Keys {
                        new,
                        via,
                        own,
                        left,
                    },
                    _,
                )) if via == qp => {
                    self.keys(new, via, own, left, &bytes);
                }
                other => {
                    self.change = other;
                    self.does_not_fit(&bytes);
                }
            },
            (ADD_LINK, Role::Client) => self.add_asked(qp, bytes),
            (ADD_LINK | REQUEST_ADD_LINK, Role::Server) => self.hinted(qp, bytes),
            (DELETE_LINK, _) => self.delete_asked(qp, bytes),
            (CONFIRM_RKEY, _) => self.rkey_announced(qp, bytes),
            (DELETE_RKEY, _) => self.rkey_withdrawn(qp, bytes),
            (kind, _) => self.dropped.push(kind),
        }
    }

    /// A request that nobody waits for.
    fn does_not_fit(&mut self, bytes: &[u8]) {
        let kind = bytes[0];
        self.dropped.push(kind);
        match (self.stack, &self.change) {
            (Stack::Rfc, _) => self.breaches.push(format!("type {kind} at this time")),
            (Stack::Linux, Some((Change::Leave { .. } | Change::Asked, _)) | None) => {}
            (Stack::Linux, Some(_)) => self.change_failed(),
        }
    }

    fn confirm_asked(&mut self, qp: u32, bytes: &[u8]) {
        match self.change {
            Some((Change::Greeted, _)) => {
                self.link_mut(qp).unwrap().number = bytes[29];
                self.confirm_link(qp, REPLY);
                let max = bytes[34].min(MAX_LINKS as u8);
                if max < 2 {
                    self.change = None;
                    self.is_up = true;
                } else {
                    self.begin(Change::AwaitOffer, self.patience().add_request);
                }
            }
            Some((Change::Confirm { new, .. }, _)) if new == qp => {
                self.change = None;
                self.confirm_link(qp, REPLY);
                self.set_up(qp);
                self.is_up = true;
            }
            _ => self.does_not_fit(bytes),
        }
    }

    /// Client: the server offers a link.
    fn add_asked(&mut self, qp: u32, bytes: Vec<u8>) {
        match &self.change {
            Some((Change::AwaitOffer | Change::Asked, _)) => {
                self.change = None;
                self.offered(qp, &bytes);
            }
            None if self.rkey.is_none() || self.stack == Stack::Rfc => self.offered(qp, &bytes),
            Some((Change::Offer { .. } | Change::Keys { .. } | Change::Confirm { .. }, _)) => {
                self.dropped.push(ADD_LINK);
            }
            _ => self.keep(qp, bytes),
        }
    }

    /// Server: the client has another port, so it says.
    fn hinted(&mut self, qp: u32, mut bytes: Vec<u8>) {
        let adding = matches!(
            self.change,
            Some((
                Change::Offer { .. } | Change::Keys { .. } | Change::Confirm { .. },
                _
            ))
        );
        if adding {
            return self.dropped.push(bytes[0]);
        }
        if self.change.is_some() || self.rkey.is_some() {
            return self.keep(qp, bytes);
        }
        self.offer();
        if self.v2 && self.change.is_none() {
            bytes.truncate(LEN);
            bytes.resize(LEN, 0);
            bytes[4..].fill(0);
            bytes[3] = REPLY;
            self.post(qp, bytes);
        }
    }

    /// For later, if it can be.
    fn keep(&mut self, qp: u32, bytes: Vec<u8>) {
        if self.stack == Stack::Rfc || self.kept.is_empty() {
            self.kept.push_back((qp, bytes));
        } else {
            self.dropped.push(bytes[0]);
        }
    }

    fn delete_asked(&mut self, qp: u32, bytes: Vec<u8>) {
        if bytes[3] & ALL != 0 {
            // Linux has a last word, whoever it is.
            let answers = self.role == Role::Server || self.stack == Stack::Linux;
            let reason = word(&bytes[5..]);
            return self.end(answers.then_some((reason, bytes[3] & ORDERLY)));
        }
        let same = matches!(
            self.change,
            Some((Change::Delete { .. } | Change::Leave { .. }, _))
        );
        match (self.stack, self.role) {
            (Stack::Linux, _) => match &self.change {
                _ if same => self.dropped.push(DELETE_LINK),
                Some((Change::AwaitOffer | Change::Offer { .. } | Change::Asked, _)) => {
                    self.keep(qp, bytes);
                }
                Some(_) => self.does_not_fit(&bytes),
                None if self.rkey.is_some() => self.keep(qp, bytes),
                None => self.delete_now(qp, bytes),
            },
            (Stack::Rfc, Role::Server) if self.change.is_some() || self.rkey.is_some() => {
                self.keep(qp, bytes);
            }
            (Stack::Rfc, Role::Client) if same => self.keep(qp, bytes),
            (Stack::Rfc, _) => self.delete_now(qp, bytes),
        }
    }

    fn delete_now(&mut self, qp: u32, mut bytes: Vec<u8>) {
        let number = bytes[4];
        let link = self.by_number(number);
        if self.role == Role::Server {
            return match link {
                Some(_) if self.stack == Stack::Linux => self.delete(number, qp, bytes),
                Some(_) => {
                    let words = delete_link(bytes[3] & ORDERLY, number, word(&bytes[5..]));
                    self.delete(number, qp, words);
                }
                None if self.stack == Stack::Linux => {}
                None if self.gone.contains(&number) => {}
                None => {
                    bytes[3] |= REPLY;
                    bytes[5..9].copy_from_slice(&NO_SUCH_LINK.to_be_bytes());
                    self.post(qp, bytes);
                }
            };
        }
        let reason = match link {
            None if self.stack == Stack::Linux || !self.gone.contains(&number) => NO_SUCH_LINK,
            _ => 0,
        };
        bytes[3] |= REPLY;
        bytes[5..9].copy_from_slice(&reason.to_be_bytes());
        self.post(qp, bytes);
        let Some(link) = link else {
            return;
        };
        // The server has given up what it was adding.
        let adding = matches!(&self.change, Some((Change::Keys { new, .. } | Change::Confirm { new, .. }, _)) if *new == link);
        if adding {
            self.change = None;
            self.is_up = true;
        }
        // It answers first and moves its connections then.
        self.link_mut(link).unwrap().stage = Stage::Going;
        self.begin(Change::Leave { link, words: None }, u64::MAX / 2);
    }

    /// A buffer of the other side.
    fn rkey_announced(&mut self, qp: u32, mut bytes: Vec<u8>) {
        bytes[3] |= REPLY;
        let changes = self.change.is_some() && self.stack == Stack::Rfc;
        if changes || bytes[4] > 3 {
            bytes[3] |= NEGATIVE | RETRY;
            self.asked_again += 1;
            return self.post(qp, bytes);
        }
        let mut keys = BTreeMap::from([(qp, (word(&bytes[5..]), long(&bytes[9..])))]);
        for entry in 0..usize::from(bytes[4].min(2)) {
            let at = 17 + 13 * entry;
            match self.by_number(bytes[at]) {
                Some(link) => {
                    keys.insert(link, (word(&bytes[at + 1..]), long(&bytes[at + 5..])));
                }
                None if self.stack == Stack::Linux => {}
                None => {
                    bytes[3] |= NEGATIVE;
                    return self.post(qp, bytes);
                }
            }
        }
        let first = keys[&qp];
        self.known.retain(|other| other.get(&qp) != Some(&first));
        self.known.push(keys);
        self.post(qp, bytes);
    }

    fn rkey_withdrawn(&mut self, qp: u32, mut bytes: Vec<u8>) {
        bytes[3] |= REPLY;
        for n in 0..usize::from(bytes[4].min(8)) {
            let rkey = word(&bytes[8 + 4 * n..]);
            let before = self.known.len();
            self.known
                .retain(|keys| keys.get(&qp).is_none_or(|key| key.0 != rkey));
            if self.known.len() == before {
                bytes[3] |= NEGATIVE;
                bytes[5] |= 0x80 >> n;
            }
        }
        if self.v2 {
            bytes[8..].fill(0);
        }
        self.post(qp, bytes);
    }
}

// Its own RKEY exchanges, and whose turn it is.
impl Peer {
    fn queue(&mut self, job: Job) {
        self.jobs.push_back(Waiting {
            job,
            from: self.now,
            until: self.now + self.patience().slot,
        });
    }

    fn go_on(&mut self) {
        if let Some((_, via)) = self.ending {
            if self.link(via).is_none_or(|link| link.queue.is_empty()) {
                self.release();
            }
        }
        while !self.is_over && (self.leave() || self.take_up() || self.take_turn()) {}
        // Without a link, there is no group, once the last one has come to its end.
        let leaves = matches!(self.change, Some((Change::Leave { .. }, _)));
        if self.is_up && !self.is_over && !leaves && self.up().next().is_none() {
            self.end(None);
        }
    }

    /// A link on which nothing is under way any more goes.
    fn leave(&mut self) -> bool {
        let Some((Change::Leave { link, .. }, _)) = &self.change else {
            return false;
        };
        let link = *link;
        if self.link(link).is_some_and(|link| !link.queue.is_empty()) {
            return false;
        }
        let Some((Change::Leave { words, .. }, _)) = self.change.take() else {
            return false;
        };
        match words {
            Some((via, words)) => {
                // The link that was to carry it may have gone meanwhile.
                let gone = self.link(via).is_none_or(|link| link.failed);
                let via = self.carrier().filter(|_| gone).unwrap_or(via);
                self.tell(words[4], via, words);
            }
            None => self.remove(link),
        }
        true
    }

    /// A request that had to wait.
    fn take_up(&mut self) -> bool {
        if self.change.is_some() || self.rkey.is_some() {
            return false;
        }
        let Some((qp, bytes)) = self.kept.pop_front() else {
            return false;
        };
        if self.link(qp).is_some() {
            self.handle(qp, bytes);
        }
        true
    }

    fn take_turn(&mut self) -> bool {
        let now = self.now;
        let idle = self.change.is_none() && self.rkey.is_none();
        let due = |waiting: &Waiting| waiting.until <= now || (idle && waiting.from <= now);
        let Some(at) = self.jobs.iter().position(due) else {
            return false;
        };
        let waiting = self.jobs.remove(at).unwrap();
        match (waiting.job, self.carrier()) {
            (Job::Delete { number, reason }, Some(via)) => {
                let words = delete_link(ORDERLY, number, reason);
                if self.role == Role::Server {
                    if idle {
                        self.delete(number, via, words);
                    }
                } else {
                    // The link is as good as gone.
                    self.post(via, words);
                    let link = self.by_number(number);
                    if let Some(link) = link.filter(|_| reason == PATH_LOST) {
                        self.remove(link);
                    }
                }
            }
            (Job::Add, _) if idle => self.offer(),
            (Job::Hint, Some(via)) if idle => self.hint(via),
            (Job::Announce(id), Some(_)) if idle => self.ask_rkey(CONFIRM_RKEY, id),
            (Job::Withdraw(id), Some(_)) if idle => self.ask_rkey(DELETE_RKEY, id),
            // It did not get its turn.
            (Job::Announce(_), _) => self.refused += 1,
            _ => {}
        }
        self.set_retry();
        true
    }

    fn set_retry(&mut self) {
        let lacks = matches!(self.shape(), Shape::Single | Shape::Asymmetric(_));
        if lacks && (self.stack, self.role) == (Stack::Rfc, Role::Server) {
            let at = self.now + RETRY_LINK;
            self.retry_at.get_or_insert(at);
        }
    }

    fn hint(&mut self, via: u32) {
        let Some(port) = self.free_port() else {
            return;
        };
        let own = end(self.host(), port, 1);
        if self.v2 {
            let mut bytes = message(REQUEST_ADD_LINK, 0);
            bytes.truncate(28);
            bytes[24] = 2;
            let other = end(self.host(), self.link(via).map_or(0, |link| link.port), 1);
            bytes.extend(own.gid.0);
            bytes.extend(other.gid.0);
            self.post(via, bytes);
            return self.begin(Change::Asked, u64::MAX / 2);
        }
        let mut bytes = message(ADD_LINK, 0);
        bytes[4..10].copy_from_slice(&own.mac.0);
        let at = match self.stack {
            Stack::Linux => 12,
            Stack::Rfc => 10,
        };
        bytes[at..at + 16].copy_from_slice(&own.gid.0);
        self.post(via, bytes);
    }

    fn ask_rkey(&mut self, kind: u8, id: u16) {
        let up: Vec<(u32, u8)> = self
            .up()
            .filter(|link| !link.failed)
            .map(|link| (link.qp, link.number))
            .collect();
        // A connection's link is any of them.
        let via = up[usize::from(id) % up.len()].0;
        let mut bytes = message(kind, 0);
        if kind == CONFIRM_RKEY {
            bytes[5..17].copy_from_slice(&key(via, id));
            let others = up.iter().filter(|(qp, _)| *qp != via);
            for (n, (qp, number)) in others.enumerate() {
                let at = 17 + 13 * n;
                bytes[4] += 1;
                bytes[at] = *number;
                bytes[at + 1..at + 13].copy_from_slice(&key(*qp, id));
            }
        } else {
            bytes[4] = 1;
            bytes[8..12].copy_from_slice(&key(via, id)[..4]);
        }
        self.post(via, bytes);
        self.rkey = Some((
            RkeyExchange { kind, id, via },
            self.now + self.patience().reply,
        ));
    }

    fn rkey_answered(&mut self, bytes: &[u8]) {
        let Some((exchange, until)) = self.rkey.take() else {
            return self.dropped.push(bytes[0] | REPLY);
        };
        if exchange.kind != bytes[0] {
            self.rkey = Some((exchange, until));
            return self.dropped.push(bytes[0] | REPLY);
        }
        let negative = bytes[3] & NEGATIVE != 0;
        match exchange.kind {
            CONFIRM_RKEY if !negative => {
                self.own.insert(exchange.id);
            }
            CONFIRM_RKEY if self.stack == Stack::Rfc && bytes[3] & RETRY != 0 => {
                self.again(exchange, RETRY_RKEY);
            }
            CONFIRM_RKEY => self.refused += 1,
            _ => {
                self.forgotten.insert(exchange.id);
            }
        }
    }

    /// Nobody answers.
    fn rkey_failed(&mut self, exchange: RkeyExchange) {
        if self.stack == Stack::Rfc {
            self.again(exchange, 0);
            return self.lose(exchange.via);
        }
        if exchange.kind == CONFIRM_RKEY {
            self.refused += 1;
        }
    }

    fn again(&mut self, exchange: RkeyExchange, pause: u64) {
        let job = match exchange.kind {
            CONFIRM_RKEY => Job::Announce(exchange.id),
            _ => Job::Withdraw(exchange.id),
        };
        self.jobs.push_back(Waiting {
            job,
            from: self.now + pause,
            until: u64::MAX / 2,
        });
    }
}
