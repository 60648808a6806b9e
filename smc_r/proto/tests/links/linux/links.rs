// SPDX-License-Identifier: GPL-2.0

//! Its links: what they look like, how they are added, lost and deleted.

use std::collections::VecDeque;

use smc_proto::group::Role;

use super::{
    delete_link,
    message,
    word,
    Change,
    Far,
    Job,
    Link,
    Peer,
    Shape,
    Stack,
    Stage,
    Waiting,
    ADD_LINK,
    ADD_LINK_CONT,
    ALL,
    ASYMMETRIC,
    CONFIRM_LINK,
    DELETE_LINK,
    LAST_SEND,
    LEN,
    LEN_ADD_V2,
    MAX_LINKS,
    PATH_LOST,
    REJECTED,
    REPLY,
    REQUEST_ADD_LINK,
    SILENCE,
    TEST_LINK,
    TURN, //
};

// Which links there are.
impl Peer {
    pub fn up(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.stage == Stage::Up)
    }

    pub(super) fn carrier(&self) -> Option<u32> {
        self.up().find(|link| !link.failed).map(|link| link.qp)
    }

    pub(super) fn by_number(&self, number: u8) -> Option<u32> {
        let found = self.links.iter().find(|link| link.number == number);
        found.map(|link| link.qp)
    }

    pub(super) fn shape(&self) -> Shape {
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
    pub(super) fn free_port(&self) -> Option<usize> {
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

    pub(super) fn make(&mut self, port: usize, number: u8, far: Option<Far>) -> u32 {
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

    pub(super) fn remove(&mut self, qp: u32) {
        self.gone.extend(self.link(qp).map(|link| link.number));
        self.links.retain(|link| link.qp != qp);
        for keys in &mut self.known {
            keys.remove(&qp);
        }
        // Its answer will not come. Linux finds that out by time.
        let lost = self.rkey.filter(|(exchange, _)| exchange.via == qp);
        if let Some((exchange, _)) = lost.filter(|_| self.stack == Stack::Rfc) {
            self.rkey = None;
            self.again(exchange, 0);
        }
    }

    pub(super) fn set_up(&mut self, qp: u32) {
        let now = self.now;
        if let Some(link) = self.link_mut(qp) {
            link.stage = Stage::Up;
            link.heard = now;
        }
    }

    /// A link has failed.
    pub(super) fn lose(&mut self, qp: u32) {
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
    pub(super) fn start_over(&mut self, lost: u32) {
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

    pub(super) fn fail_first(&mut self) {
        self.reset = true;
        self.release();
    }

    pub(super) fn release(&mut self) {
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
    pub(super) fn end(&mut self, words: Option<(u32, u8)>) {
        self.is_over = true;
        match words.zip(self.carrier()) {
            Some(((reason, flags), via)) => {
                self.post(via, delete_link(ALL | flags, 0, reason));
                self.ending = Some((self.now + LAST_SEND, via));
            }
            None => self.release(),
        }
    }

    pub(super) fn test_links(&mut self) {
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

    pub(super) fn tested(&mut self, qp: u32, bytes: &[u8]) {
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
    pub(super) fn begin(&mut self, change: Change, patience: u64) {
        self.change = Some((change, self.now + patience));
    }

    /// Server: adds a link, or lets the client know that it cannot.
    pub(super) fn offer(&mut self) {
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
    pub(super) fn offered(&mut self, via: u32, bytes: &[u8]) {
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
    pub(super) fn answered(&mut self, qp: u32, bytes: &[u8]) {
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

    pub(super) fn delete_asymmetric(&mut self, odd: u32) {
        if let Some(link) = self.link_mut(odd) {
            link.stage = Stage::Going;
            let number = link.number;
            self.queue(Job::Delete {
                number,
                reason: ASYMMETRIC,
            });
        }
    }

    pub(super) fn offer_answered(&mut self, new: u32, via: u32, bytes: &[u8]) {
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
    pub(super) fn present(&mut self, new: u32, via: u32) {
        self.confirm_link(new, 0);
        self.begin(
            Change::Confirm { new, via },
            self.patience().confirm_further,
        );
    }

    /// ADD LINK CONTINUATION of either side.
    pub(super) fn keys(
        &mut self,
        new: u32,
        via: u32,
        mut own: VecDeque<u16>,
        left: Option<u8>,
        bytes: &[u8],
    ) {
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
    pub(super) fn change_failed(&mut self) {
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
    pub(super) fn delete(&mut self, number: u8, via: u32, words: Vec<u8>) {
        match self.by_number(number) {
            Some(link) => {
                self.link_mut(link).unwrap().stage = Stage::Going;
                let words = Some((via, words));
                self.begin(Change::Leave { link, words }, u64::MAX / 2);
            }
            None => self.tell(number, via, words),
        }
    }

    pub(super) fn tell(&mut self, number: u8, via: u32, words: Vec<u8>) {
        self.post(via, words);
        let delete = Change::Delete { number, via };
        self.begin(delete, self.patience().reply);
    }

    /// Server: a link is history, and another one wanted.
    pub(super) fn deleted(&mut self, number: u8) {
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
    pub(super) fn want_link(&mut self) {
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

    pub(super) fn shares_own_port(&self, odd: u32) -> bool {
        let port = self.link(odd).map(|link| link.port);
        self.up()
            .any(|link| link.qp != odd && Some(link.port) == port)
    }
}
