// SPDX-License-Identifier: GPL-2.0

//! A link: a queue pair, an RMB, and the LLC messages that a well-behaved peer answers.

use crate::verbs::{Domain, FarEnd, Memory, Port, QueuePair, State, Work};
use smc_proto::cdc::{self, Cdc};
use smc_proto::llc;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Requests under way, each way.
const DEPTH: u32 = 128;
/// Room of a message, those of version 2 included.
const SLOT: usize = 8192;
/// Room of a message of version 1 that comes: ours are no longer than 44 bytes, and there may be a thousand links.
const SLOT_V1: usize = 512;
/// Slots for messages that are sent.
const SEND_SLOTS: usize = 64;
/// Room for data of one write.
const DATA: usize = 1 << 20;
/// What the numbers of receive requests have in common.
const RECEIVE: u64 = 1 << 63;

/// In all LLC messages: a reply.
const REPLY: u8 = 0x80;

/// Types of LLC messages, without the bit of version 2.
pub(crate) mod kind {
    pub(crate) const CONFIRM_LINK: u8 = 1;
    pub(crate) const ADD_LINK: u8 = 2;
    pub(crate) const ADD_LINK_CONT: u8 = 3;
    pub(crate) const DELETE_LINK: u8 = 4;
    pub(crate) const REQUEST_ADD_LINK: u8 = 5;
    pub(crate) const CONFIRM_RKEY: u8 = 6;
    pub(crate) const TEST_LINK: u8 = 7;
    pub(crate) const CONFIRM_RKEY_CONT: u8 = 8;
    pub(crate) const DELETE_RKEY: u8 = 9;

    /// All of them by name.
    pub(crate) const NAMES: [(&str, u8); 9] = [
        ("confirm-link", CONFIRM_LINK),
        ("add-link", ADD_LINK),
        ("add-link-cont", ADD_LINK_CONT),
        ("delete-link", DELETE_LINK),
        ("request-add-link", REQUEST_ADD_LINK),
        ("confirm-rkey", CONFIRM_RKEY),
        ("test-link", TEST_LINK),
        ("confirm-rkey-cont", CONFIRM_RKEY_CONT),
        ("delete-rkey", DELETE_RKEY),
    ];
}

/// Whether requests of a kind are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// At once.
    Now,
    /// Later.
    After(Duration),
    /// Not at all.
    Never,
    /// At once, with these flags as well.
    With(u8),
    /// At once, with these bytes at these places.
    Set(Vec<(usize, Vec<u8>)>),
}

/// Changes bytes at these places, beyond the end of the message too.
pub(crate) fn patch(message: &mut Vec<u8>, patches: &[(usize, Vec<u8>)]) {
    for (at, bytes) in patches {
        if message.len() < at + bytes.len() {
            message.resize(at + bytes.len(), 0);
        }
        message[*at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Who we are on this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// We connect.
    Client,
    /// We listen.
    Server,
}

/// Length of an ADD LINK of version 2 with one key.
const ADD_LINK_V2: usize = 88;

/// What is fixed when a link is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Who we are.
    pub(crate) role: Role,
    /// 1 or 2.
    pub(crate) version: u8,
    /// Elements of our RMB.
    pub(crate) elements: u8,
    /// Bytes of one.
    pub(crate) element_len: u32,
    /// MAC address of our port.
    pub(crate) mac: [u8; 6],
    /// Tells the peers apart that we pretend to be.
    pub(crate) instance: u16,
}

/// A link. The queue pair goes before the memory that it uses.
pub(crate) struct Link {
    qp: QueuePair,
    /// Our RMB.
    pub(crate) rmb: Memory,
    outbound: Memory,
    inbound: Memory,
    /// Of those links alone that have written or read data.
    data: Option<Memory>,
    domain: Rc<Domain>,
    gid: [u8; 16],
    /// What it was made with.
    pub(crate) terms: Terms,
    /// The number of our first packet.
    pub(crate) psn: u32,
    /// The far end, once it is connected.
    pub(crate) far: Option<FarEnd>,
    /// Number of the link; 0 until it is known.
    pub(crate) number: u8,
    /// The peer of version 2 writes lengths with the low byte first.
    little: bool,
    next_element: u8,
    next_send: u64,
    /// No place for a message is given back any more.
    pub(crate) is_deaf: bool,
    /// Places for messages that the device has.
    pub(crate) places: usize,
    under_way: usize,
    statuses: BTreeMap<u64, u32>,
    /// The first error that a send ended with.
    pub(crate) broken: Option<u32>,
    /// What requests of a kind get.
    pub(crate) answers: BTreeMap<u8, Answer>,
    due: Vec<(Instant, Vec<u8>)>,
    /// LLC messages that came just now.
    pub(crate) fresh: Vec<Vec<u8>>,
    /// LLC messages that came.
    pub(crate) inbox: Vec<Vec<u8>>,
    /// CDC messages that came.
    pub(crate) news: Vec<Cdc>,
    /// We have taken the queue pair out of use.
    pub(crate) is_off: bool,
    /// There is a further queue pair for the ADD LINK of a server.
    pub(crate) has_further: bool,
    /// A further link: how many keys the other side is told of. The first is ours, and of the others nobody knows.
    pub(crate) keys: u8,
    /// How many of them it has not been told of yet.
    pub(crate) keys_left: u8,
    /// The answer to the last request of a kind, whether it was sent or not.
    pub(crate) answered: BTreeMap<u8, Vec<u8>>,
    /// What the group has to hear of: requests about further links, which are not answered yet, and keys.
    pub(crate) asked: Vec<Vec<u8>>,
}

/// Bytes of a place for a message that comes.
fn slot_len(terms: &Terms) -> usize {
    match terms.version {
        1 => SLOT_V1,
        _ => SLOT,
    }
}

impl Link {
    /// A link that is not connected, with an RMB of its own or that of the first one of its group.
    pub(crate) fn new(port: &Rc<Port>, terms: Terms, rmb: Option<&Memory>) -> io::Result<Self> {
        let domain = Domain::new(port)?;
        let qp = QueuePair::new(&domain, DEPTH)?;
        // One more, which nobody is told of, behind those that connections may get.
        let rmb_len = (usize::from(terms.elements) + 1) * terms.element_len as usize;
        let link = Self {
            rmb: match rmb {
                Some(rmb) => rmb.again(&domain)?,
                None => Memory::new(&domain, rmb_len)?,
            },
            outbound: Memory::new(&domain, SEND_SLOTS * SLOT)?,
            inbound: Memory::new(&domain, DEPTH as usize * slot_len(&terms))?,
            data: None,
            gid: port.gid(),
            psn: 0x1000 + u32::from(terms.instance),
            qp,
            domain,
            terms,
            far: None,
            number: match terms.role {
                Role::Server if rmb.is_none() => 1,
                _ => 0,
            },
            little: false,
            next_element: 0,
            next_send: 0,
            is_deaf: false,
            places: DEPTH as usize,
            under_way: 0,
            statuses: BTreeMap::new(),
            broken: None,
            answers: BTreeMap::new(),
            due: Vec::new(),
            fresh: Vec::new(),
            inbox: Vec::new(),
            news: Vec::new(),
            is_off: false,
            has_further: false,
            keys: 1,
            keys_left: 1,
            answered: BTreeMap::new(),
            asked: Vec::new(),
        };
        for slot in 0..DEPTH as usize {
            link.listen(slot)?;
        }
        Ok(link)
    }

    fn listen(&self, slot: usize) -> io::Result<()> {
        let len = slot_len(&self.terms);
        self.qp
            .receive(RECEIVE | slot as u64, &self.inbound, slot * len, len)
    }

    /// The number of our queue pair.
    pub(crate) fn qpn(&self) -> u32 {
        self.qp.number()
    }

    /// Our GID.
    pub(crate) fn gid(&self) -> [u8; 16] {
        self.gid
    }

    /// An element that no connection has, 1 and up.
    pub(crate) fn take_element(&mut self) -> Result<u8, String> {
        if self.next_element >= self.terms.elements {
            return Err("no element is left".into());
        }
        self.next_element += 1;
        Ok(self.next_element)
    }

    /// Connects the queue pair to a far end.
    pub(crate) fn connect(&mut self, far: FarEnd) -> Result<(), String> {
        self.far = Some(far);
        self.qp
            .connect(&far, self.psn)
            .map_err(|error| error.to_string())
    }

    /// Brings the queue pair to a state.
    pub(crate) fn set(&mut self, state: State) -> Result<(), String> {
        self.is_off = true;
        self.qp.set(state).map_err(|error| error.to_string())
    }

    /// Takes the queue pair away.
    pub(crate) fn destroy(&mut self) {
        self.is_off = true;
        self.qp.destroy();
    }

    /// Takes in what was completed, and answers what has to be.
    pub(crate) fn poll(&mut self) {
        while let Some(done) = self.qp.poll() {
            if done.id & RECEIVE == 0 {
                self.under_way = self.under_way.saturating_sub(1);
                self.statuses.insert(done.id, done.status);
                if done.status != 0 {
                    self.broken.get_or_insert(done.status);
                }
            } else if done.status == 0 {
                let slot = (done.id & !RECEIVE) as usize;
                let start = slot * slot_len(&self.terms);
                let message = self.inbound.read(start, done.len as usize);
                if self.is_deaf {
                    self.places -= 1;
                } else {
                    let _ = self.listen(slot);
                }
                self.received(message);
            }
        }
        let now = Instant::now();
        while let Some(place) = self.due.iter().position(|(at, _)| *at <= now) {
            let (_, reply) = self.due.remove(place);
            let _ = self.post(&reply);
        }
    }

    fn received(&mut self, message: Vec<u8>) {
        if message.first() == Some(&cdc::TYPE) {
            self.news.extend(Cdc::parse(&message).ok());
            return;
        }
        if let Some(reply) = self.reply(&message) {
            self.answer(reply);
        }
        self.fresh.push(message.clone());
        self.inbox.push(message);
    }

    /// Answers as it was said for requests of this kind.
    pub(crate) fn answer(&mut self, mut reply: Vec<u8>) {
        let kind = reply[0] & 0x1f;
        self.answered.insert(kind, reply.clone());
        match self.answers.get(&kind).cloned().unwrap_or(Answer::Now) {
            Answer::Now => {}
            Answer::After(time) => {
                self.due.push((Instant::now() + time, reply));
                return;
            }
            Answer::Never => return,
            Answer::With(flags) => reply[3] |= flags,
            Answer::Set(patches) => patch(&mut reply, &patches),
        }
        let _ = self.post(&reply);
    }

    /// The answer of a peer with one link and no other port.
    fn reply(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let fixed: [u8; llc::LEN] = *message.first_chunk()?;
        if fixed[3] & REPLY != 0 {
            if fixed[0] & 0x1f == kind::ADD_LINK_CONT {
                self.asked.push(message.to_vec());
            }
            return None;
        }
        if self.terms.version == 2 {
            let big = u16::from_be_bytes([fixed[1], fixed[2]]);
            self.little = usize::from(big) != message.len();
        }
        let mut reply = fixed;
        reply[3] |= REPLY;
        match (fixed[0] & 0x1f, self.terms.role) {
            (kind::CONFIRM_LINK, Role::Client) => {
                self.number = fixed[29];
                return Some(self.confirm_link(true));
            }
            (kind::ADD_LINK | kind::ADD_LINK_CONT, Role::Client) if self.has_further => {
                self.asked.push(message.to_vec());
                return None;
            }
            (kind::ADD_LINK, Role::Client) => return Some(self.rejection(message)),
            (kind::DELETE_LINK, Role::Client) if fixed[3] & 0x40 == 0 => {}
            // The client asks for it: our request follows.
            (kind::DELETE_LINK, Role::Server) => reply[3] &= !REPLY,
            (kind::CONFIRM_RKEY, _) => self.asked.push(message.to_vec()),
            (kind::TEST_LINK | kind::CONFIRM_RKEY_CONT, _) => {}
            (kind::DELETE_RKEY, _) => {
                let mut reply = message.to_vec();
                reply[3] |= REPLY;
                return Some(reply);
            }
            _ => return None,
        }
        Some(reply.to_vec())
    }

    /// The answer to ADD LINK of who has no other path.
    pub(crate) fn rejection(&self, message: &[u8]) -> Vec<u8> {
        let mut reply = message.to_vec();
        reply.resize(llc::LEN, 0);
        reply[3] |= REPLY | 0x40;
        if self.terms.version == 1 {
            reply[2] = 1;
        } else {
            reply[3] |= 1;
            [reply[1], reply[2]] = self.length(llc::LEN);
        }
        reply
    }

    fn length(&self, len: usize) -> [u8; 2] {
        let len = len as u16;
        if self.little {
            len.to_le_bytes()
        } else {
            len.to_be_bytes()
        }
    }

    /// A message of this kind with everything zero but the header.
    pub(crate) fn blank(&self, kind: u8) -> Vec<u8> {
        let mut message = vec![0; llc::LEN];
        if self.terms.version == 1 {
            message[0] = kind;
            message[1] = llc::LEN as u8;
        } else {
            message[0] = kind | 0x20;
            message[1..3].copy_from_slice(&self.length(llc::LEN));
        }
        message
    }

    /// CONFIRM LINK as it should be.
    pub(crate) fn confirm_link(&self, reply: bool) -> Vec<u8> {
        let mut message = self.blank(kind::CONFIRM_LINK);
        message[3] = 3 | if reply { REPLY } else { 0 };
        message[4..10].copy_from_slice(&self.terms.mac);
        message[10..26].copy_from_slice(&self.gid);
        let [_, a, b, c] = self.qpn().to_be_bytes();
        message[26..29].copy_from_slice(&[a, b, c]);
        message[29] = self.number;
        message[30..34].copy_from_slice(&[0, 0, 0x11, self.number]);
        message[34] = 2;
        message[35] = if self.terms.version == 2 { 255 } else { 0 };
        message
    }

    /// ADD LINK for this queue pair, by this number.
    pub(crate) fn add_link(&self, number: u8) -> Vec<u8> {
        let mut message = self.blank(kind::ADD_LINK);
        message[4..10].copy_from_slice(&self.terms.mac);
        message[12..28].copy_from_slice(&self.gid);
        let [_, a, b, c] = self.qpn().to_be_bytes();
        message[28..31].copy_from_slice(&[a, b, c]);
        message[31] = number;
        message[32] = 3;
        message[33..36].copy_from_slice(&self.psn.to_be_bytes()[1..]);
        message
    }

    /// ADD LINK of version 2 for a further link, by this number, with the key of our RMB on it.
    pub(crate) fn add_link_v2(&self, further: &Link, number: u8) -> Vec<u8> {
        let mut message = further.add_link(number);
        message.resize(ADD_LINK_V2, 0);
        [message[1], message[2]] = self.length(ADD_LINK_V2);
        message[44] = 0x80;
        message[46..62].copy_from_slice(&further.gid);
        [message[70], message[71]] = self.length(1);
        message[72..76].copy_from_slice(&self.rmb.rkey().to_be_bytes());
        message[76..80].copy_from_slice(&further.rmb.rkey().to_be_bytes());
        message[80..88].copy_from_slice(&further.rmb.address().to_be_bytes());
        message
    }

    /// ADD LINK CONTINUATION: how many keys are left to be told on a further link, and in the first one that of our RMB.
    pub(crate) fn add_link_cont(&self, further: &Link) -> Vec<u8> {
        let mut message = self.blank(kind::ADD_LINK_CONT);
        message[4] = further.number;
        message[5] = further.keys_left;
        if further.keys_left < further.keys {
            return message;
        }
        message[8..12].copy_from_slice(&self.rmb.rkey().to_be_bytes());
        message[12..16].copy_from_slice(&further.rmb.rkey().to_be_bytes());
        message[16..24].copy_from_slice(&further.rmb.address().to_be_bytes());
        message
    }

    /// A message of this kind as a well-behaved peer could send it.
    pub(crate) fn sample(&self, kind: u8) -> Vec<u8> {
        let mut message = self.blank(kind);
        match kind {
            kind::CONFIRM_LINK => return self.confirm_link(false),
            kind::ADD_LINK if self.terms.version == 2 => {
                return self.add_link_v2(self, self.number.wrapping_add(1))
            }
            kind::ADD_LINK => return self.add_link(self.number.wrapping_add(1)),
            kind::ADD_LINK_CONT => message[4] = self.number.wrapping_add(1),
            kind::DELETE_LINK => message[4] = self.number,
            kind::CONFIRM_RKEY => {
                message[5..9].copy_from_slice(&self.rmb.rkey().to_be_bytes());
                message[9..17].copy_from_slice(&self.rmb.address().to_be_bytes());
            }
            kind::DELETE_RKEY => {
                message[4] = 1;
                message[8..12].copy_from_slice(&self.rmb.rkey().to_be_bytes());
            }
            _ => {}
        }
        message
    }

    /// The end of the group: DELETE LINK for all of its links.
    pub(crate) fn farewell(&self) -> Vec<u8> {
        const ALL_ORDERLY: u8 = 0x60;
        const PROGRAM: [u8; 4] = [0, 3, 0, 0];
        let mut message = self.blank(kind::DELETE_LINK);
        message[3] = ALL_ORDERLY;
        message[5..9].copy_from_slice(&PROGRAM);
        message
    }

    /// It is connected, and nothing is known of its end.
    pub(crate) fn works(&self) -> bool {
        self.far.is_some() && self.broken.is_none() && !self.is_off
    }

    /// The end of the group has come.
    pub(crate) fn has_farewell(&self) -> bool {
        let is_end = |message: &Vec<u8>| {
            message[0] & 0x1f == kind::DELETE_LINK && message[3] & (REPLY | 0x40) == 0x40
        };
        self.inbox.iter().any(is_end)
    }

    /// Posts a message. Waits for nothing: there must be a free slot.
    pub(crate) fn post(&mut self, message: &[u8]) -> Result<u64, String> {
        let id = self.next_send;
        let slot = (id as usize % SEND_SLOTS) * SLOT;
        let len = message.len().min(SLOT);
        self.outbound.write(slot, &message[..len]);
        self.qp
            .send(id, &self.outbound, slot, len, Work::Message)
            .map_err(|error| error.to_string())?;
        Ok(self.posted())
    }

    /// Posts a write of at most a megabyte, or a read of as much. One at a time.
    pub(crate) fn post_data(&mut self, bytes: &[u8], work: Work) -> Result<u64, String> {
        let len = bytes.len().min(DATA);
        self.send_data(&bytes[..len], work)
            .map_err(|error| error.to_string())?;
        Ok(self.posted())
    }

    fn send_data(&mut self, bytes: &[u8], work: Work) -> io::Result<()> {
        let data = match self.data.take() {
            Some(data) => data,
            None => Memory::new(&self.domain, DATA)?,
        };
        data.write(0, bytes);
        let data = self.data.insert(data);
        self.qp.send(self.next_send, data, 0, bytes.len(), work)
    }

    fn posted(&mut self) -> u64 {
        let id = self.next_send;
        self.next_send += 1;
        self.under_way += 1;
        id
    }

    /// Another message can be posted.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way < SEND_SLOTS - 2
    }

    /// Nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way == 0
    }

    /// How a request ended, once it has.
    pub(crate) fn status(&self, id: u64) -> Option<u32> {
        self.statuses.get(&id).copied()
    }
}
