// SPDX-License-Identifier: GPL-2.0

//! Requests of the other side, RKEY exchanges of its own, and whose turn it is.

use std::collections::BTreeMap;

use smc_proto::group::Role;

use super::{
    delete_link,
    key,
    long,
    message,
    word,
    Change,
    Job,
    Peer,
    RkeyExchange,
    Shape,
    Stack,
    Stage,
    Waiting,
    ADD_LINK,
    ADD_LINK_CONT,
    ALL,
    CONFIRM_LINK,
    CONFIRM_RKEY,
    DELETE_LINK,
    DELETE_RKEY,
    LEN,
    MAX_LINKS,
    NEGATIVE,
    NO_SUCH_LINK,
    ORDERLY,
    PATH_LOST,
    REPLY,
    REQUEST_ADD_LINK,
    RETRY,
    RETRY_LINK,
    RETRY_RKEY, //
};
use crate::world::end;

// Requests of the other side.
impl Peer {
    pub(super) fn handle(&mut self, qp: u32, bytes: Vec<u8>) {
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
    pub(super) fn does_not_fit(&mut self, bytes: &[u8]) {
        let kind = bytes[0];
        self.dropped.push(kind);
        match (self.stack, &self.change) {
            (Stack::Rfc, _) => self.breaches.push(format!("type {kind} at this time")),
            (Stack::Linux, Some((Change::Leave { .. } | Change::Asked, _)) | None) => {}
            (Stack::Linux, Some(_)) => self.change_failed(),
        }
    }

    pub(super) fn confirm_asked(&mut self, qp: u32, bytes: &[u8]) {
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
    pub(super) fn add_asked(&mut self, qp: u32, bytes: Vec<u8>) {
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
    pub(super) fn hinted(&mut self, qp: u32, mut bytes: Vec<u8>) {
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
    pub(super) fn keep(&mut self, qp: u32, bytes: Vec<u8>) {
        if self.stack == Stack::Rfc || self.kept.is_empty() {
            self.kept.push_back((qp, bytes));
        } else {
            self.dropped.push(bytes[0]);
        }
    }

    pub(super) fn delete_asked(&mut self, qp: u32, bytes: Vec<u8>) {
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

    pub(super) fn delete_now(&mut self, qp: u32, mut bytes: Vec<u8>) {
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
    pub(super) fn rkey_announced(&mut self, qp: u32, mut bytes: Vec<u8>) {
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
        // It may be announced again, with more keys or over another link.
        let same = |other: &BTreeMap<u32, (u32, u64)>| {
            keys.iter().any(|(qp, key)| other.get(qp) == Some(key))
        };
        self.known.retain(|other| !same(other));
        self.known.push(keys);
        self.post(qp, bytes);
    }

    pub(super) fn rkey_withdrawn(&mut self, qp: u32, mut bytes: Vec<u8>) {
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
    pub(super) fn queue(&mut self, job: Job) {
        self.jobs.push_back(Waiting {
            job,
            from: self.now,
            until: self.now + self.patience().slot,
        });
    }

    pub(super) fn go_on(&mut self) {
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
    pub(super) fn leave(&mut self) -> bool {
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
    pub(super) fn take_up(&mut self) -> bool {
        // A client of the RFC serves its server while an RKEY exchange of its own is under way.
        let serves = (self.stack, self.role) == (Stack::Rfc, Role::Client);
        if self.change.is_some() || (self.rkey.is_some() && !serves) {
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

    pub(super) fn take_turn(&mut self) -> bool {
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

    pub(super) fn set_retry(&mut self) {
        let lacks = matches!(self.shape(), Shape::Single | Shape::Asymmetric(_));
        if lacks && (self.stack, self.role) == (Stack::Rfc, Role::Server) {
            let at = self.now + RETRY_LINK;
            self.retry_at.get_or_insert(at);
        }
    }

    pub(super) fn hint(&mut self, via: u32) {
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

    pub(super) fn ask_rkey(&mut self, kind: u8, id: u16) {
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

    pub(super) fn rkey_answered(&mut self, bytes: &[u8]) {
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
    pub(super) fn rkey_failed(&mut self, exchange: RkeyExchange) {
        if self.stack == Stack::Rfc {
            self.again(exchange, 0);
            return self.lose(exchange.via);
        }
        if exchange.kind == CONFIRM_RKEY {
            self.refused += 1;
        }
    }

    pub(super) fn again(&mut self, exchange: RkeyExchange, pause: u64) {
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
