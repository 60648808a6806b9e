// SPDX-License-Identifier: GPL-2.0

//! Links that are added: ADD LINK, its continuations, and CONFIRM LINK on the new link (RFC 7609
//! sections 3.5.1.6 and 3.5.5.1, appendices C.7 and C.8).

use super::{
    links::Wish,
    AddLinkAnswer,
    AddLinkView,
    Attempt,
    DownReason,
    Event,
    Exchange,
    Flow,
    Frame,
    Link,
    LinkFailure,
    Note,
    Phase,
    Redundancy,
    Stage,
    Text,
    Version,
    LINKS_V2, //
};
use crate::{
    group::{
        LinkEnd,
        LinkIx,
        OwnTable,
        PeerTable,
        Role,
        MAX_LINKS, //
    },
    llc::{
        v2::{
            self,
            RTokenPairWire,
            RequestAddLink, //
        },
        AddLink,
        AddLinkCont,
        AddLinkLayout,
        ConfirmLink,
        DeleteReason,
        Llc,
        RTokenPair,
        Reject, //
    },
    timer::{Millis, Time},
    wire::{
        Gid,
        LinkNum,
        Mac,
        Psn,
        QpNum, //
    },
};

/// An exchange that changes the links. There is one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// The link that is added or deleted. Nothing if the peer may have a link which we do not.
    pub(super) link: Option<LinkIx>,
    pub(super) number: LinkNum,
    /// The attempt to add it.
    pub(super) attempt: u32,
    /// The link that carries the exchange.
    pub(super) via: LinkIx,
    pub(super) step: Step,
    pub(super) until: Time,
    /// There is no answer, and the link that carries the exchange is being tested.
    pub(super) doubted: bool,
}

/// What the exchange waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A link is added.
    Add(Adding),
    /// Server: the client deletes its side of a link.
    Delete(DeleteReason),
}

/// What the addition of a link waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adding {
    /// Our driver makes a queue pair: the server before it offers it, the client before it answers.
    Make,
    /// Server: the client answers the offer.
    Offer,
    /// Server: our driver connects the queue pair.
    Connect,
    /// Both sides exchange their keys.
    Keys(Keys),
    /// CONFIRM LINK on the new link, the server for the reply, the client for the request.
    Confirm,
}

impl Adding {
    /// True if what we announce from now on is not among the keys that the peer gets for the new
    /// link.
    pub(super) const fn keys_are_sent(self) -> bool {
        match self {
            Self::Make => false,
            Self::Keys(keys) => keys.left.is_some(),
            Self::Offer | Self::Connect | Self::Confirm => true,
        }
    }

    const fn exchange(self) -> Exchange {
        match self {
            Self::Confirm => Exchange::ConfirmLink,
            _ => Exchange::AddLink,
        }
    }
}

/// How far the exchange of keys is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keys {
    /// Place in the table of our buffers where the next one is looked for.
    next: usize,
    /// How many of our keys are left to be sent. None before the first message.
    left: Option<u8>,
    /// How many of the peer's keys are still to come. None before its first message.
    peer_left: Option<u8>,
    /// The pair sent last.
    last: RTokenPair,
    /// Our message is in the queue, or the peer's is to come.
    our_turn: bool,
}

impl Keys {
    const fn new(our_turn: bool) -> Self {
        Self {
            next: 0,
            left: None,
            peer_left: None,
            last: RTokenPair {
                reference: crate::wire::RKey(0),
                new: crate::wire::RToken {
                    rkey: crate::wire::RKey(0),
                    addr: 0,
                },
            },
            our_turn,
        }
    }

    /// True if we have said all, and the peer has the last word.
    fn is_said(&self) -> bool {
        self.left == Some(0) && !self.our_turn
    }

    /// True if both sides have said all.
    fn is_complete(&self) -> bool {
        self.left == Some(0) && self.peer_left == Some(0)
    }
}

/// Keys in one continuation.
const PAIRS: u8 = 2;

/// How many queue pairs are made one after the other because the peer asks for links, or offers them, and how many
/// milliseconds it takes until it may have another one.
const PACE_MOST: u32 = 16;
const PACE: Millis = 1_000;

/// How often the pause before a further link is tried again is doubled.
const MOST_DOUBLINGS: u32 = 4;

impl From<&AddLink> for Option<LinkEnd> {
    /// None if nothing can be there, as in CLC.
    fn from(message: &AddLink) -> Self {
        if message.gid.is_zero() || !message.qp.is_usable() {
            return None;
        }
        Some(LinkEnd {
            mac: message.mac,
            gid: message.gid,
            qp: message.qp,
            mtu: message.mtu?,
            psn: message.psn,
        })
    }
}

// What the driver asks and tells.
impl Flow {
    /// True if a symmetric link of the group uses this port of ours, so that a further link on it
    /// would be asymmetric at best.
    pub fn is_port_taken(&self, mac: Mac, gid: Gid) -> bool {
        self.is_taken(|link| link.local, mac, gid)
    }

    fn is_taken(&self, end: impl Fn(&Link) -> Option<LinkEnd>, mac: Mac, gid: Gid) -> bool {
        self.links.iter().flatten().any(|link| {
            link.stage == Stage::Active
                && !link.asymmetric
                && end(link).is_some_and(|end| end.same_port(mac, gid))
        })
    }

    /// The answer to [`Event::MakeLink`] and [`Event::AcceptLink`]: our end of the link, or nothing
    /// if there is no port for it. False if nobody waits for it any more: then the driver destroys
    /// what it has made.
    #[must_use]
    pub fn link_made(&mut self, attempt: Attempt, end: Option<LinkEnd>, now: Time) -> bool {
        self.clock = now;
        let Some(mut change) = self
            .change_of(attempt)
            .filter(|change| matches!(change.step, Step::Add(Adding::Make)))
        else {
            return false;
        };
        let link = attempt.link;
        if let Some(place) = self.link_mut(link) {
            place.local = end;
        }
        match (self.params.role, end) {
            (Role::Server, Some(end)) => {
                change.step = Step::Add(Adding::Offer);
                change.until = now.after(self.params.timing.reply);
                self.change = Some(change);
                self.send_add_link(change, end, false);
            }
            (Role::Server, None) => {
                self.drop_new(change, false);
                if self.phase == Phase::Joining {
                    // The client waits for an offer.
                    self.offer_link(change.via, now);
                } else {
                    self.go_on(now);
                }
            }
            (Role::Client, _) => self.answer_offer(change, end, now),
        }
        true
    }

    /// As [`Flow::link_made`] without an end, but there is a port, on which no link could be made this time: that is
    /// tried again later.
    #[must_use]
    pub fn link_not_made(&mut self, attempt: Attempt, now: Time) -> bool {
        if self.change_of(attempt).is_some() {
            self.note_failure();
        }
        self.link_made(attempt, None, now)
    }

    fn note_failure(&mut self) {
        self.unfinished = true;
        self.failures = self.failures.saturating_add(1);
    }

    /// The change under way, if this attempt is what it is about.
    fn change_of(&self, attempt: Attempt) -> Option<Change> {
        self.change
            .filter(|change| change.link == Some(attempt.link) && change.attempt == attempt.number)
    }

    /// Begins to count another attempt to add a link.
    fn next_attempt(&mut self, link: LinkIx) -> Attempt {
        self.attempts = self.attempts.wrapping_add(1);
        Attempt {
            link,
            number: self.attempts,
        }
    }

    /// The answer to [`Event::ConnectLink`].
    pub fn link_connected(&mut self, attempt: Attempt, ok: bool, now: Time) {
        self.clock = now;
        let Some(mut change) = self
            .change_of(attempt)
            .filter(|change| matches!(change.step, Step::Add(Adding::Connect)))
        else {
            return;
        };
        if !ok {
            return self.abort_add(DeleteReason::PATH_LOST, now);
        }
        change.until = now.after(self.params.timing.reply);
        match self.params.version {
            Version::One => {
                change.step = Step::Add(Adding::Keys(Keys::new(true)));
                self.change = Some(change);
                self.send_text(change.via, Text::Pairs, None);
            }
            Version::Two { .. } => self.confirm_new(change, now),
        }
    }

    /// Whether a further port would be of use, now or when what is under way is over: if not, none has to be looked for.
    pub fn could_use_port(&self) -> bool {
        let is_over = matches!(self.phase, Phase::Ending { .. } | Phase::Down);
        let is_settled = self.phase == Phase::Active && self.change.is_none();
        self.several && !is_over && (!is_settled || self.has_room())
    }

    /// A port of ours has appeared that the group may use for a further link. A client tells the
    /// server, with the GID of another port of the group behind it in version 2.
    pub fn hint(&mut self, mac: Mac, gid: Gid, now: Time) {
        if !self.could_use_port() {
            return;
        }
        // During a first contact as well: it has been made known which ports there are.
        if self.phase != Phase::Active || self.change.is_some() {
            self.port_came = true;
            return;
        }
        let Some(via) = self.carrier().filter(|_| self.has_room()) else {
            return;
        };
        if self.is_server() {
            self.want_add_now();
            return self.go_on(now);
        }
        let other = self.local_end(via).map_or(gid, |end| end.gid);
        let hint = match self.params.version {
            Version::One => {
                let hint = AddLink {
                    reply: false,
                    reject: None,
                    mac,
                    gid,
                    qp: QpNum::default(),
                    link: None,
                    mtu: None,
                    psn: Psn::default(),
                    layout: AddLinkLayout::Deployed,
                };
                self.frame(via, &Llc::AddLink(hint))
            }
            Version::Two { .. } => {
                let request = RequestAddLink {
                    reply: false,
                    gids: &[gid, other],
                };
                self.hinted = true;
                self.frame_v2(&v2::Llc::RequestAddLink(request))
            }
        };
        self.sends
            .retain(|queued| !matches!(queued.text, Text::Hint(_)));
        self.send_text(via, Text::Hint(hint), None);
    }
}

// Whether a link is wanted.
impl Flow {
    /// The step of the addition that is under way.
    pub(super) fn adding(&self) -> Option<Adding> {
        match self.change?.step {
            Step::Add(adding) => Some(adding),
            Step::Delete(_) => None,
        }
    }

    fn count(&self, matches: impl Fn(&Link) -> bool) -> usize {
        self.links
            .iter()
            .flatten()
            .filter(|link| link.stage == Stage::Active && matches(link))
            .fold(0, |n, _| n.saturating_add(1))
    }

    fn asymmetric(&self) -> Option<LinkIx> {
        self.active()
            .find(|link| self.link(*link).is_some_and(|link| link.asymmetric))
    }

    /// True if the group may have another symmetric link.
    fn has_room(&self) -> bool {
        let all = self.count(|_| true);
        self.count(|link| !link.asymmetric) < usize::from(self.max_links)
            && self.free_place().is_some()
            && (self.params.version == Version::One || all < LINKS_V2)
    }

    /// How much of the group may fail before it ends, for display.
    pub fn redundancy(&self) -> Redundancy {
        if !self.is_usable() {
            return Redundancy::None;
        }
        let odd = self.asymmetric().and_then(|link| self.link(link)).copied();
        let own_port_shared = odd
            .and_then(|link| link.local)
            .is_some_and(|end| self.is_port_taken(end.mac, end.gid));
        match (self.count(|_| true), odd) {
            (0, _) => Redundancy::None,
            (1, _) => Redundancy::Single,
            (2, Some(_)) if own_port_shared => Redundancy::OwnPort,
            (2, Some(_)) => Redundancy::PeerPort,
            _ => Redundancy::Full,
        }
    }

    /// A place for a new link: of the free ones that which has been so for longest, as a rule. Of links that are
    /// gone, something may have to be known yet.
    fn free_place(&self) -> Option<LinkIx> {
        let newest = self.newest.get();
        (1..=MAX_LINKS)
            .filter_map(|step| LinkIx::new(newest.wrapping_add(step) % MAX_LINKS))
            .find(|link| self.link(*link).is_none())
    }

    /// True if the failure of one port could be the end of the group, so that the RFC wants a link
    /// to be added as soon as possible.
    fn lacks_redundancy(&self) -> bool {
        self.count(|link| !link.asymmetric) < 2
    }

    /// Server: adds a link if one is wanted and nothing else is going on.
    pub(super) fn start_add(&mut self, now: Time) {
        if !self.add_wanted
            || self.add_after.is_some_and(|at| at > now)
            || self.phase != Phase::Active
            || self.change.is_some()
            || self.own_under_way()
            || self.incoming_under_way(now)
        {
            return;
        }
        self.add_wanted = false;
        self.add_after = None;
        if self.several && self.has_room() {
            self.begin_add(now);
        }
    }

    /// Server: adds a link as soon as it can, on whichever port.
    fn want_add(&mut self) {
        self.add_wanted = true;
        self.add_on_spare = false;
    }

    /// The same, however the last link ended.
    fn want_add_now(&mut self) {
        self.want_add();
        self.add_after = None;
    }

    /// The same, since the peer asks for it: one is put off if it has asked too often.
    fn want_add_for_peer(&mut self, now: Time) {
        self.want_add();
        self.put_off = self.put_off.filter(|at| *at > now);
        if self.put_off.is_none() && !self.pace(now) {
            self.paced = self.paced.map(|at| at.after(PACE));
            self.put_off = Some(now.after(PACE));
        }
        self.add_after = self.put_off;
    }

    /// Whether a queue pair may be made now because the peer wants it, which counts it. Each keeps a device busy, which
    /// others use, too; what comes of it is up to the peer.
    fn pace(&mut self, now: Time) -> bool {
        let paced = self.paced.filter(|at| *at > now).unwrap_or(now);
        let may = paced.since(now) < u64::from(PACE_MOST).saturating_mul(PACE.into());
        if may {
            self.paced = Some(paced.after(PACE));
        }
        may
    }

    /// Server: the first step of an addition.
    pub(super) fn begin_add(&mut self, now: Time) {
        let Some((link, via)) = self.free_place().zip(self.carrier()) else {
            return;
        };
        let Some(number) = self.next_number() else {
            return;
        };
        self.set_link(link, Link::new(Stage::New, Some(number), None, now));
        let on_spare = core::mem::take(&mut self.add_on_spare);
        let spare_only = on_spare || self.asymmetric().is_some() || !self.lacks_redundancy();
        let attempt = self.next_attempt(link);
        self.change = Some(Change {
            link: Some(link),
            number,
            attempt: attempt.number,
            via,
            step: Step::Add(Adding::Make),
            until: now.after(self.params.timing.reply),
            doubted: false,
        });
        self.event(Event::MakeLink {
            attempt,
            spare_only,
        });
    }

    fn next_number(&mut self) -> Option<LinkNum> {
        let Self {
            numbers,
            links,
            wishes,
            ..
        } = self;
        numbers.next(|number| {
            links
                .iter()
                .flatten()
                .any(|link| link.number == Some(number))
                || wishes.iter().any(|wish| wish.number == number)
        })
    }

    pub(super) fn set_link(&mut self, link: LinkIx, value: Link) {
        if let Some(place) = self.links.get_mut(link.get()) {
            *place = Some(value);
        }
    }

    /// Server: the client has said that it has another port. False if nothing is done about it.
    pub(super) fn take_hint(&mut self, now: Time) -> bool {
        if !self.several || !self.has_room() {
            return false;
        }
        if self.change.is_some() {
            self.port_came = true;
        } else {
            self.want_add_for_peer(now);
            self.go_on(now);
        }
        true
    }

    /// The change that was under way when a port appeared is over.
    fn use_new_port(&mut self, now: Time) {
        if self.phase != Phase::Active || self.change.is_some() {
            return;
        }
        if !core::mem::take(&mut self.port_came) || !self.has_room() {
            return;
        }
        if self.is_server() {
            self.want_add_for_peer(now);
        } else {
            self.event(Event::LinkWanted);
        }
    }

    /// Server: wants another link in place of one that is lost. Not at once if that one did not last,
    /// or an operator took it out of use: it would be no better the next time.
    pub(super) fn replace(&mut self, lost: Option<&Link>, reason: DeleteReason, now: Time) {
        let timing = &self.params.timing;
        let pause = if reason == DeleteReason::OPERATOR {
            timing.link_retry
        } else if lost.is_some_and(|link| now < link.since.after(timing.link_steady)) {
            timing.link_pause
        } else {
            0
        };
        let after = now.after(pause);
        self.add_after = Some(self.add_after.map_or(after, |at| at.max(after)));
        self.want_add();
    }

    /// When to add the link that is wanted, if that has to wait.
    pub(super) fn add_deadline(&self) -> Option<Time> {
        self.add_after
            .filter(|_| self.add_wanted && self.change.is_none())
    }

    pub(super) fn check_retry(&mut self, now: Time) {
        if self.add_deadline().is_some_and(|at| at <= now) {
            self.add_after = None;
            self.go_on(now);
        }
        if self.retry_at.is_none_or(|at| at > now) {
            return;
        }
        self.retry_at = None;
        if self.is_server() {
            // On a port that has a link already, only a client with another one can take up the offer,
            // and says so (`take_hint`). Without need, a peer that announces a buffer is not disturbed.
            self.add_on_spare |= !self.add_wanted;
            self.add_wanted = true;
        } else if self.change.is_none() {
            // Whether there is to be another try, this one tells.
            self.unfinished = false;
            self.event(Event::LinkWanted);
        }
        self.go_on(now);
    }

    /// What comes next when an exchange has ended: deletions first, then a new link, then keys.
    pub(super) fn go_on(&mut self, now: Time) {
        self.start_delete(now);
        self.ask_on(now);
        if self.phase == Phase::Joining && self.change.is_none() && !self.asks_pending() {
            self.complete(now);
        }
        self.use_new_port(now);
        self.start_add(now);
        self.answer_request();
        self.start_own(now);
        if self.phase != Phase::Active || !self.several || self.max_links < 2 {
            return;
        }
        match self.retry_pause() {
            None => self.retry_at = None,
            Some(pause) if self.adding().is_none() => {
                let at = now.after(pause);
                // It may have become more urgent.
                self.retry_at = Some(self.retry_at.map_or(at, |before| before.min(at)));
            }
            Some(_) => {}
        }
    }

    /// When to look for another link again. With two of them, one more is worth less than it costs: connections
    /// wait while it is tried. So what fails again and again is tried less and less often.
    fn retry_pause(&self) -> Option<Millis> {
        let pause = self.params.timing.link_retry;
        if self.lacks_redundancy() {
            return Some(pause);
        }
        let again = u32::from(self.failures.saturating_sub(1)).min(MOST_DOUBLINGS);
        (self.unfinished && self.has_room()).then(|| pause.saturating_mul(1 << again))
    }
}

// The exchange.
impl Flow {
    fn send_add_link(&mut self, change: Change, end: LinkEnd, reply: bool) {
        self.requested = None;
        let message = Llc::AddLink(AddLink {
            reply,
            reject: None,
            mac: end.mac,
            gid: end.gid,
            qp: end.qp,
            link: Some(change.number),
            mtu: Some(end.mtu),
            psn: end.psn,
            layout: AddLinkLayout::Deployed,
        });
        let frame = self.frame(change.via, &message);
        let text = match self.params.version {
            Version::One => Text::Ready(frame),
            Version::Two { .. } => Text::AddLink(frame, change.attempt),
        };
        self.send_text(change.via, text, None);
    }

    /// Client: an offer. True if the answer to it is up to our driver.
    pub(super) fn take_offer(
        &mut self,
        at: LinkIx,
        message: &AddLink,
        pairs: &[RTokenPairWire],
        peers: &mut PeerTable<'_>,
        now: Time,
    ) -> bool {
        if !self.several {
            return false;
        }
        // The server has given the other one up.
        if let Some(change) = self.change {
            let made = self.adding() != Some(Adding::Make);
            self.drop_new(change, made);
        }
        let same_server_port = self.is_taken(|link| link.peer, message.mac, message.gid);
        let has_asymmetric = self.asymmetric().is_some();
        let view = AddLinkView {
            same_server_port,
            spare_client_port: true,
            has_asymmetric,
            room: self.has_room(),
            mtu_valid: message.mtu.is_some(),
        };
        let hopeless = matches!(
            view.answer(),
            AddLinkAnswer::NoAlternatePath | AddLinkAnswer::InvalidMtu
        );
        let place = self.free_place().zip(message.link).filter(|_| !hopeless);
        let peer: Option<LinkEnd> = message.into();
        let found = place.zip(peer).filter(|_| self.pace(now));
        let Some(((link, number), peer)) = found else {
            return false;
        };
        self.set_link(link, Link::new(Stage::New, Some(number), Some(peer), now));
        // What follows brings keys for it.
        self.forget_links(peers);
        let attempt = self.next_attempt(link);
        self.change = Some(Change {
            link: Some(link),
            number,
            attempt: attempt.number,
            via: at,
            step: Step::Add(Adding::Make),
            until: now.after(self.params.timing.accept_link),
            doubted: false,
        });
        self.take_pairs(at, link, pairs.iter().map(|pair| (*pair).into()), peers);
        self.event(Event::AcceptLink {
            attempt,
            spare_only: same_server_port || has_asymmetric,
        });
        true
    }

    /// Client: what our driver makes of the offer.
    fn answer_offer(&mut self, mut change: Change, end: Option<LinkEnd>, now: Time) {
        let peer = change.link.and_then(|link| self.peer_end(link));
        // Our timer may be late as well as our driver: by then the server has given up.
        let peer = peer.filter(|_| now < change.until);
        let (Some(own), Some(peer)) = (end, peer) else {
            return self.refuse_offer(change, end.is_some(), now);
        };
        let view = AddLinkView {
            same_server_port: self.is_taken(|link| link.peer, peer.mac, peer.gid),
            spare_client_port: !self.is_taken(|link| link.local, own.mac, own.gid),
            has_asymmetric: self.asymmetric().is_some(),
            room: true,
            mtu_valid: true,
        };
        let asymmetric = match view.answer() {
            AddLinkAnswer::Symmetric => false,
            AddLinkAnswer::Asymmetric => true,
            AddLinkAnswer::NoAlternatePath | AddLinkAnswer::InvalidMtu => {
                return self.refuse_offer(change, true, now);
            }
        };
        if let Some(link) = change.link.and_then(|link| self.link_mut(link)) {
            link.asymmetric = asymmetric;
        }
        change.step = Step::Add(match self.params.version {
            Version::One => Adding::Keys(Keys::new(false)),
            Version::Two { .. } => Adding::Confirm,
        });
        change.until = now.after(self.params.timing.reply);
        self.change = Some(change);
        self.send_add_link(change, own, true);
    }

    fn refuse_offer(&mut self, change: Change, made: bool, now: Time) {
        let peer = change.link.and_then(|link| self.peer_end(link));
        self.drop_new(change, made);
        if let Some(peer) = peer {
            let offer = AddLink {
                reply: false,
                reject: None,
                mac: peer.mac,
                gid: peer.gid,
                qp: peer.qp,
                link: Some(change.number),
                mtu: Some(peer.mtu),
                psn: peer.psn,
                layout: AddLinkLayout::Deployed,
            };
            self.counters.refused = self.counters.refused.saturating_add(1);
            let refusal = Llc::AddLink(offer.rejection(Reject::NoPath));
            self.send(change.via, &refusal, None);
        }
        self.go_on(now);
    }

    /// Server: the client's answer to an offer of a real link.
    pub(super) fn offer_answered(
        &mut self,
        at: LinkIx,
        message: &AddLink,
        pairs: &[RTokenPairWire],
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        if message.reject.is_none() {
            self.accepted = message.link;
        }
        let Some(mut change) = self.change.filter(|change| change.via == at) else {
            return self.drop_message();
        };
        match change.step {
            Step::Add(Adding::Offer) => {}
            // A client of Linux that has accepted the link waits 2 s for what follows, and then takes that back.
            Step::Add(Adding::Connect | Adding::Keys(_) | Adding::Confirm)
                if message.reject.is_some() && message.link == Some(change.number) =>
            {
                return self.abort_add(DeleteReason::PATH_LOST, now);
            }
            // It drops DELETE LINK while it waits for that, and this is all that it says. One that has not accepted the link
            // answers both.
            Step::Delete(reason)
                if message.reject.is_some()
                    && message.link == Some(change.number)
                    && message.link == self.accepted =>
            {
                return self.finish_delete(change, reason, now);
            }
            _ => return self.drop_message(),
        }
        let Some(link) = change.link else {
            return self.drop_message();
        };
        if message.reject.is_some() {
            // Of an offer before this one, which we have given up. A yes is a breach: the client expects what does not come.
            if message.link.is_some_and(|link| link != change.number) {
                return self.drop_message();
            }
            self.unfinished = false;
            self.drop_new(change, true);
            return self.go_on(now);
        }
        if message.link != Some(change.number) {
            return self.violation(at, now);
        }
        let (Some(peer), Some(own)) = (message.into(), self.local_end(link)) else {
            return self.break_add(now);
        };
        let peer: LinkEnd = peer;
        let same_server_port = self.is_taken(|link| link.local, own.mac, own.gid);
        let same_client_port = self.is_taken(|link| link.peer, peer.mac, peer.gid);
        let asymmetric = same_server_port || same_client_port;
        let parallel = self.links.iter().flatten().any(|other| {
            other.stage == Stage::Active
                && other
                    .local
                    .is_some_and(|end| end.same_port(own.mac, own.gid))
                && other
                    .peer
                    .is_some_and(|end| end.same_port(peer.mac, peer.gid))
        });
        // Parallel links do not exist, and there is one asymmetric link at most.
        if parallel || (asymmetric && self.asymmetric().is_some()) {
            return self.break_add(now);
        }
        if let Some(place) = self.link_mut(link) {
            place.peer = Some(peer);
            place.asymmetric = asymmetric;
        }
        self.take_pairs(at, link, pairs.iter().map(|pair| (*pair).into()), peers);
        change.step = Step::Add(Adding::Connect);
        change.until = now.after(self.params.timing.reply);
        change.doubted = false;
        self.change = Some(change);
        self.event(Event::ConnectLink(Attempt {
            link,
            number: change.attempt,
        }));
    }

    /// Remembers the keys of the peer's buffers on a new link.
    fn take_pairs(
        &mut self,
        at: LinkIx,
        link: LinkIx,
        pairs: impl Iterator<Item = RTokenPair>,
        peers: &mut PeerTable<'_>,
    ) {
        for pair in pairs {
            // A buffer that is not known, or whose key is taken, cannot be written over the link.
            let _ = peers.extend(at, pair.reference, link, pair.new);
        }
    }

    /// ADD LINK CONTINUATION.
    pub(super) fn handle_add_link_cont(
        &mut self,
        at: LinkIx,
        message: &AddLinkCont,
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        let found = self
            .change
            .filter(|change| change.via == at)
            .and_then(|change| match (change.step, change.link) {
                (Step::Add(Adding::Keys(keys)), Some(link)) => Some((change, keys, link)),
                _ => None,
            });
        let Some((mut change, mut keys, link)) =
            found.filter(|(_, keys, _)| message.reply == self.is_server() && !keys.our_turn)
        else {
            return self.drop_message();
        };
        // Linux begins with its connections, and ends with the buffers that they have by then: there may be fewer.
        let expected = keys.peer_left.is_none_or(|left| message.left <= left);
        if message.link != change.number || !expected {
            return self.violation(at, now);
        }
        self.take_pairs(at, link, message.pairs().iter().copied(), peers);
        keys.peer_left = Some(message.left.saturating_sub(PAIRS));
        change.until = now.after(self.params.timing.reply);
        change.doubted = false;
        if self.is_server() && keys.is_complete() {
            return self.confirm_new(change, now);
        }
        keys.our_turn = true;
        change.step = Step::Add(Adding::Keys(keys));
        self.change = Some(change);
        self.send_text(at, Text::Pairs, None);
    }

    /// How many of our buffers the peer gets to know on the new link.
    pub(super) fn count_pairs(&self, own: &OwnTable<'_>) -> u8 {
        let mut count = 0u8;
        let mut from = 0;
        while let Some((next, _)) = self.pair_from(own, from) {
            from = next;
            count = count.saturating_add(1);
        }
        count
    }

    /// The keys of the first buffer from a place on, and the next place.
    pub(super) fn pair_from(&self, own: &OwnTable<'_>, from: usize) -> Option<(usize, RTokenPair)> {
        let change = self.change?;
        let links = (change.via, change.link?);
        let (place, known, new) = own.next_pair(from, links, |id| !self.is_unannounced(id))?;
        let pair = RTokenPair {
            reference: known.rkey,
            new,
        };
        Some((place.saturating_add(1), pair))
    }

    /// Our next ADD LINK CONTINUATION.
    pub(super) fn next_pairs(&mut self, own: &OwnTable<'_>) -> Option<Frame> {
        let mut change = self.change?;
        let Step::Add(Adding::Keys(mut keys)) = change.step else {
            return None;
        };
        let left = keys.left.unwrap_or_else(|| self.count_pairs(own));
        let mut pairs = [RTokenPair::default(); PAIRS as usize];
        for pair in pairs.iter_mut().take(left.into()) {
            if let Some((next, found)) = self.pair_from(own, keys.next) {
                keys.next = next;
                keys.last = found;
            }
            // A buffer that is deleted meanwhile leaves a gap, since the count was told. A pair
            // that the peer has got already fills it.
            *pair = keys.last;
        }
        keys.left = Some(left.saturating_sub(PAIRS));
        keys.our_turn = false;
        let message = AddLinkCont {
            reply: !self.is_server(),
            link: change.number,
            left,
            pairs,
        };
        // A client that has answered the last of them waits for CONFIRM LINK.
        let over = !self.is_server() && keys.is_complete();
        change.step = Step::Add(if over {
            change.until = self.clock.after(self.params.timing.confirm_further);
            Adding::Confirm
        } else {
            Adding::Keys(keys)
        });
        self.change = Some(change);
        Some(self.frame(change.via, &Llc::AddLinkCont(message)))
    }

    /// Server: presents the new link over itself.
    fn confirm_new(&mut self, mut change: Change, now: Time) {
        change.step = Step::Add(Adding::Confirm);
        change.until = now.after(self.params.timing.confirm_further);
        self.change = Some(change);
        let request = change
            .link
            .and_then(|link| Some((link, self.confirm_link(self.link(link)?, false)?)));
        if let Some((link, request)) = request {
            self.send(link, &request, None);
        }
    }

    /// CONFIRM LINK on a further link.
    pub(super) fn handle_confirm_further(&mut self, at: LinkIx, message: &ConfirmLink, now: Time) {
        let change = self.change.filter(|change| change.link == Some(at));
        let Some(change) = change.filter(|_| message.reply == self.is_server()) else {
            return self.drop_message();
        };
        match change.step {
            Step::Add(Adding::Confirm) => {}
            // The server has no more keys, although it said so.
            Step::Add(Adding::Keys(keys)) if !message.reply && keys.is_said() => {}
            // Before it is time.
            Step::Add(_) if !message.reply => return self.break_add(now),
            _ => return self.drop_message(),
        }
        if message.link != change.number || self.check_confirm_link(at, message).is_err() {
            return self.break_add(now);
        }
        let Some(link) = self.link_mut(at) else {
            return;
        };
        link.stage = Stage::Active;
        link.since = now;
        link.peer_user_id = Some(message.user_id);
        link.last_received = now;
        let link = *link;
        self.newest = at;
        self.reassess_beside(at, &link);
        if let Some(reply) = self.confirm_link(&link, true).filter(|_| !message.reply) {
            self.send(at, &reply, None);
        }
        self.change = None;
        self.unfinished = false;
        self.failures = 0;
        self.event(Event::LinkUp(at));
        if self.is_server() {
            // Others may follow, as long as there are ports.
            self.want_add();
            if !link.asymmetric {
                self.replace_asymmetric();
            }
        }
        self.go_on(now);
    }

    /// Server: with a new symmetric link, the asymmetric one has done its duty.
    fn replace_asymmetric(&mut self) {
        let number = self.asymmetric().and_then(|link| self.link_number(link));
        if let Some(number) = number {
            self.wishes.push(Wish {
                number,
                orderly: true,
                reason: DeleteReason::ASYMMETRIC,
                asked: false,
            });
        }
    }

    /// Forgets the link that is being added, of which the driver has a queue pair or not.
    fn drop_new(&mut self, change: Change, made: bool) {
        self.change = None;
        let new = change
            .link
            .filter(|link| self.link(*link).is_some_and(|l| l.stage == Stage::New));
        if let Some(link) = new {
            self.remove_link(link);
            if made {
                self.event(Event::LinkGone(link));
            }
        }
    }

    /// The peer has broken the rules while a link was added, which is deleted there.
    fn break_add(&mut self, now: Time) {
        self.counters.violations = self.counters.violations.saturating_add(1);
        self.abort_add(DeleteReason::PROTOCOL, now);
    }

    /// The addition of a link has failed. If the peer may know the link, it is deleted there.
    pub(super) fn abort_add(&mut self, reason: DeleteReason, now: Time) {
        let Some(change) = self.change else {
            return;
        };
        let Step::Add(step) = change.step else {
            return;
        };
        self.drop_new(change, step != Adding::Make);
        if step != Adding::Make {
            self.unmake(change.number, reason, now);
        }
        if self.is_server() && reason == DeleteReason::PATH_LOST {
            self.note_failure();
        }
        self.go_on(now);
    }

    /// A link comes to nothing that the peer may know.
    pub(super) fn note_unmade(&mut self) {
        self.counters.unmade = self.counters.unmade.saturating_add(1);
    }

    /// Has the peer's side of a link deleted that was never complete.
    fn unmake(&mut self, number: LinkNum, reason: DeleteReason, now: Time) {
        self.note_unmade();
        let wish = Wish {
            number,
            orderly: false,
            reason,
            asked: false,
        };
        if self.is_server() {
            self.wishes.push(wish);
        } else {
            self.ask(wish, false, now);
        }
    }

    /// The link that carries the addition has failed, and the new link with it.
    pub(super) fn add_lost(&mut self, failed: LinkIx, now: Time) {
        let Some(change) = self.change.filter(|change| change.via == failed) else {
            return;
        };
        match change.step {
            Step::Add(step) => {
                self.drop_new(change, step != Adding::Make);
                if step != Adding::Make {
                    self.unmake(change.number, DeleteReason::PATH_LOST, now);
                }
                // RFC 7609 appendix C.7.1: once more, over another link.
                if self.is_server() {
                    self.want_add();
                }
            }
            Step::Delete(reason) => {
                self.change = None;
                self.wishes.push(Wish {
                    number: change.number,
                    orderly: false,
                    reason,
                    asked: false,
                });
            }
        }
    }

    pub(super) fn change_deadline(&self) -> Option<Time> {
        self.change.map(|change| change.until)
    }

    pub(super) fn check_change(&mut self, now: Time) {
        let Some(change) = self.change.filter(|change| change.until <= now) else {
            return;
        };
        let step = match change.step {
            Step::Add(step) => step,
            Step::Delete(_) => return self.delete_timed_out(change, now),
        };
        match (step, self.params.role) {
            // Our driver does not answer.
            (Adding::Make, Role::Client) => self.refuse_offer(change, false, now),
            (Adding::Make, Role::Server) => {
                if let Some(link) = change.link {
                    let number = change.attempt;
                    let _ = self.link_made(Attempt { link, number }, None, now);
                }
            }
            (Adding::Connect | Adding::Confirm, _) => {
                self.abort_add(DeleteReason::PATH_LOST, now);
            }
            (Adding::Offer, _) if self.phase == Phase::Joining => {
                // As with a single link: data can flow over it.
                self.drop_new(change, true);
                self.note_unmade();
                self.go_on(now);
            }
            // RFC 7609 appendix C.7.1: the link has failed. Unless a TEST LINK says that it works: Linux gives up silently
            // when something else comes in between.
            (Adding::Offer | Adding::Keys(_), _) if !change.doubted => {
                self.change = Some(Change {
                    until: now.after(self.params.timing.test_link_reply),
                    doubted: true,
                    ..change
                });
                self.probe(change.via, now);
            }
            (Adding::Offer | Adding::Keys(_), _) => {
                self.fail_link(change.via, LinkFailure::Timeout(step.exchange()), now);
            }
        }
    }

    /// Ends a link whose deletion is under way, and nothing but.
    pub(super) fn take_down(&mut self, link: LinkIx, reason: DownReason) {
        if let Some(place) = self.link_mut(link) {
            place.stage = Stage::Leaving;
            place.probe = None;
        }
        self.drop_sends(link);
        self.drains &= !link.bit();
        match reason {
            DownReason::Local => self.leave_rest(link),
            _ => self.end_rest(link),
        }
        self.reassess();
        self.event(Event::LinkDown(link, reason));
    }

    /// Frees the place of a link.
    pub(super) fn remove_link(&mut self, link: LinkIx) {
        if let Some(place) = self.links.get_mut(link.get()) {
            let gone = place.take();
            if let Some(past) = self.past.get_mut(link.get()) {
                let was_in_use = |link: &Link| link.stage != Stage::New;
                *past = gone.filter(was_in_use).and_then(|link| link.peer);
            }
        }
        self.drop_sends(link);
        self.drains &= !link.bit();
        self.end_rest(link);
        self.forget |= link.bit();
        self.reassess();
    }

    /// An asymmetric link that shares no port with another one any more counts like all others.
    fn reassess(&mut self) {
        let Some(at) = self.asymmetric() else {
            return;
        };
        let Some(link) = self.link(at).copied() else {
            return;
        };
        let local = link
            .local
            .is_some_and(|end| self.is_taken(|link| link.local, end.mac, end.gid));
        let peer = link
            .peer
            .is_some_and(|end| self.is_taken(|link| link.peer, end.mac, end.gid));
        if let Some(link) = self.link_mut(at) {
            link.asymmetric = local || peer;
        }
    }

    /// What was asymmetric when a new link was agreed on may have come to count like all others since then, by the end of a
    /// third one. If it shares a port with the new link, it is asymmetric again.
    fn reassess_beside(&mut self, at: LinkIx, new: &Link) {
        if self.asymmetric().is_some() {
            return;
        }
        let is_shared = |end: Option<LinkEnd>, other: Option<LinkEnd>| {
            end.zip(other)
                .is_some_and(|(end, other)| end.same_port(other.mac, other.gid))
        };
        let beside = self.active().filter(|other| *other != at).find(|other| {
            self.link(*other).is_some_and(|other| {
                is_shared(other.local, new.local) || is_shared(other.peer, new.peer)
            })
        });
        if let Some(link) = beside.and_then(|other| self.link_mut(other)) {
            link.asymmetric = true;
        }
    }

    /// Repeats the last message of the group on another link, or ends it.
    pub(super) fn repeat_last_words(&mut self, failed: LinkIx, now: Time) {
        let Phase::Ending { words, .. } = self.phase else {
            return;
        };
        if let Some(link) = self.link_mut(failed) {
            link.stage = Stage::Leaving;
        }
        match (words, self.carrier()) {
            (Some(words), Some(via)) => {
                self.phase = Phase::Ending {
                    until: now.after(self.params.timing.last_send),
                    via,
                    words: Some(words),
                };
                self.send(via, &Llc::DeleteLink(words), Some(Note::Last));
            }
            _ => self.release(),
        }
    }
}
