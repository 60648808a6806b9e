// SPDX-License-Identifier: GPL-2.0

//! Links in use: TEST LINK, DELETE LINK, failures, and the end of the group (RFC 7609 sections
//! 3.5.4, 3.5.5.1 and 4.5.3, appendix C.7.1).

use super::{
    change::{
        Adding,
        Change,
        Step, //
    },
    DownReason,
    Event,
    Exchange,
    Flow,
    LinkFailure,
    Note,
    Phase,
    ShutDown,
    WISHES_MAX, //
};
use crate::{
    group::{
        LinkEnd,
        LinkIx,
        Role,
        MAX_LINKS, //
    },
    llc::{
        DeleteLink,
        DeleteReason,
        Llc,
        TestLink, //
    },
    timer::{
        earlier,
        Millis,
        Time, //
    },
    wire::LinkNum, //
};

/// One link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) stage: Stage,
    /// It shares a port with another link.
    pub(super) asymmetric: bool,
    /// None until the server's CONFIRM LINK request arrived.
    pub(super) number: Option<LinkNum>,
    /// None until our driver has named it.
    pub(super) local: Option<LinkEnd>,
    /// None until the peer has named it.
    pub(super) peer: Option<LinkEnd>,
    /// None until the peer's CONFIRM LINK arrived.
    pub(super) peer_user_id: Option<[u8; 4]>,
    /// When it came to carry messages, or to be added.
    pub(super) since: Time,
    /// When something was received last.
    pub(super) last_received: Time,
    /// The same of what the flow is not told of: CDC messages.
    pub(super) last_data: Time,
    /// The TEST LINK request that awaits its reply.
    pub(super) probe: Option<Probe>,
    /// See [`Flow::confirm_writes`].
    writes: Writes,
}

/// Where a link is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is being added.
    New,
    /// It carries messages.
    Active,
    /// It carries nothing any more, and waits for the peer to delete it, too.
    Leaving,
}

/// A TEST LINK request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) data: [u8; 16],
    since: Time,
    until: Time,
}

/// Whether somebody wants to know that what was written over a link has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// Nobody does.
    NotAsked,
    /// The next TEST LINK request will tell.
    Asked,
    /// The one that is under way will.
    Tested,
}

/// A link that has to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) number: LinkNum,
    pub(super) orderly: bool,
    pub(super) reason: DeleteReason,
    /// Server: the client has asked for it.
    pub(super) asked: bool,
}

/// Client: a wish that the server was told, and has not fulfilled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    wish: Wish,
    /// The link that carried it.
    via: LinkIx,
    /// The server has to know the link: without an answer there is something wrong with `via`.
    hard: bool,
    /// It waits for the end of the addition of a link.
    waits: bool,
    /// There is no answer, and `via` is being tested.
    doubted: bool,
    until: Time,
}

impl Link {
    pub(super) const fn new(
        stage: Stage,
        number: Option<LinkNum>,
        peer: Option<LinkEnd>,
        now: Time,
    ) -> Self {
        Self {
            stage,
            asymmetric: false,
            number,
            local: None,
            peer,
            peer_user_id: None,
            since: now,
            last_received: now,
            last_data: now,
            probe: None,
            writes: Writes::NotAsked,
        }
    }

    /// Whether it is time for a TEST LINK request, if it may be silent for so long.
    fn is_test_due(&self, span: Option<Millis>, now: Time) -> bool {
        self.writes == Writes::Asked
            || span.is_some_and(|span| self.last_received.after(span) <= now)
    }
}

/// Sends that have to be possible for a message that can wait.
const SPARE_SENDS: usize = 6;

impl Flow {
    // TEST LINK

    pub(super) fn check_links(&mut self, now: Time) {
        for link in LinkIx::all() {
            self.check_link(link, now);
        }
    }

    fn check_link(&mut self, at: LinkIx, now: Time) {
        let Some(link) = self.link(at).copied() else {
            return;
        };
        if link.stage != Stage::Active {
            return;
        }
        match link.probe {
            Some(probe) if probe.until <= now => {
                self.fail_link(at, LinkFailure::Timeout(Exchange::TestLink), now);
            }
            None if link.is_test_due(self.test_after(), now) && self.may_test() => {
                self.probe(at, now);
            }
            _ => {}
        }
    }

    /// Whether there is room for a message that can wait.
    fn may_test(&self) -> bool {
        self.sends.room() > SPARE_SENDS
    }

    /// How long a link may be silent before it is tested.
    fn test_after(&self) -> Option<Millis> {
        match (self.params.timing.test_link, self.keepalive) {
            (0, 0) => None,
            (0, span) | (span, 0) => Some(span),
            (one, other) => Some(one.min(other)),
        }
    }

    /// Sends TEST LINK, unless there is one under way.
    pub(super) fn probe(&mut self, at: LinkIx, now: Time) {
        let until = now.after(self.params.timing.test_link_reply);
        let number = self.counters.probes.saturating_add(1);
        let data = ((u128::from(self.params.seed) << 64) | u128::from(number)).to_be_bytes();
        let Some(link) = self.link_mut(at).filter(|link| link.probe.is_none()) else {
            return;
        };
        link.probe = Some(Probe {
            data,
            since: now,
            until,
        });
        if link.writes == Writes::Asked {
            link.writes = Writes::Tested;
        }
        self.counters.probes = number;
        let request = TestLink {
            data,
            ..TestLink::default()
        };
        self.send(at, &Llc::TestLink(request), None);
    }

    pub(super) fn links_deadline(&self) -> Option<Time> {
        let may_test = self.may_test();
        let span = self.test_after();
        let active = self.links.iter().flatten();
        let active = active.filter(|link| link.stage == Stage::Active);
        active.fold(None, |first, link| {
            let deadline = match link.probe {
                Some(probe) => Some(probe.until),
                None if !may_test => None,
                None if link.writes == Writes::Asked => Some(self.clock),
                None => span.map(|span| link.last_received.after(span)),
            };
            earlier(first, deadline)
        })
    }

    /// Asks for [`Event::WritesArrived`], which tells that all that was posted on this link before now is in the peer's
    /// memory, and the messages are handled.
    ///
    /// A completion alone does not: the peer's device confirms what it has received, and may yet have to put it into
    /// memory, while another device puts there what comes over another link. Nothing overtakes an answer to TEST
    /// LINK, which the peer gives when it has looked at all messages before.
    ///
    /// False if connections may not use the link, and nothing comes. Where it is lost meanwhile, [`Event::LinkDown`]
    /// comes alone.
    #[must_use]
    pub fn confirm_writes(&mut self, at: LinkIx, now: Time) -> bool {
        self.clock = now;
        if !self.is_link_up(at) {
            return false;
        }
        if let Some(link) = self.link_mut(at) {
            link.writes = Writes::Asked;
        }
        self.check_link(at, now);
        true
    }

    /// TEST LINK was answered: so much is known to have arrived.
    fn writes_tested(&mut self, at: LinkIx, now: Time) {
        match self.link(at).map(|link| link.writes) {
            Some(Writes::Tested) => {
                if let Some(link) = self.link_mut(at) {
                    link.writes = Writes::NotAsked;
                }
                self.event(Event::WritesArrived(at));
            }
            Some(Writes::Asked) => self.check_link(at, now),
            Some(Writes::NotAsked) | None => {}
        }
    }

    pub(super) fn handle_test_link(&mut self, at: LinkIx, message: &TestLink, now: Time) {
        if !message.reply {
            let reply = TestLink {
                reply: true,
                ..*message
            };
            return self.send(at, &Llc::TestLink(reply), None);
        }
        match self.link(at).and_then(|link| link.probe) {
            Some(probe) if probe.data == message.data => {
                if let Some(link) = self.link_mut(at) {
                    link.probe = None;
                }
                // First: the others may have the link end.
                self.writes_tested(at, now);
                self.rest_tested(at, probe.since, now);
                self.carrier_tested(at, now);
                self.drain_in_favour_of(at, now);
            }
            Some(_) => self.violation(at, now),
            None => self.drop_message(),
        }
    }

    // DELETE LINK

    pub(super) fn handle_delete_link(&mut self, at: LinkIx, message: &DeleteLink, now: Time) {
        let given_up = !self.is_server() && self.is_leaving(at);
        if given_up && !message.all {
            // There would be no way to answer. The server learns from our request, or from silence.
            return self.drop_message();
        }
        match (message.reply, message.all, message.link) {
            (true, false, Some(number)) => self.handle_deleted(number, message.reason, now),
            (true, ..) => self.drop_message(),
            (false, true, _) => self.handle_delete_all(message, now),
            (false, false, number) => match self.params.role {
                Role::Client => self.handle_delete_order(at, message, number, now),
                Role::Server => self.handle_delete_wish(at, message, number, now),
            },
        }
    }

    /// The peer ends the group.
    fn handle_delete_all(&mut self, message: &DeleteLink, now: Time) {
        match (self.phase, self.params.role) {
            (Phase::Active, Role::Server) => {
                let reason = message.reason;
                let down = DownReason::PeerDeleted(reason);
                let words = Some((reason, message.orderly));
                let via = self.carrier().unwrap_or(LinkIx::FIRST);
                self.end(down, words, via, now);
            }
            (Phase::Active, Role::Client) => {
                let down = DownReason::PeerDeleted(message.reason);
                self.end(down, None, LinkIx::FIRST, now);
            }
            _ => self.first_contact_failed(LinkFailure::Violation, true),
        }
    }

    /// Client: the server deletes one link.
    fn handle_delete_order(
        &mut self,
        at: LinkIx,
        message: &DeleteLink,
        number: Option<LinkNum>,
        now: Time,
    ) {
        let asked = number.is_some_and(|number| self.fulfil(number));
        let link = number.and_then(|number| self.by_number(number));
        let reply = |reason| {
            Llc::DeleteLink(DeleteLink {
                reply: true,
                reason,
                ..*message
            })
        };
        let Some(link) = link else {
            // One that we have given up ourselves, or none.
            let reason = if asked {
                DeleteReason::DONE
            } else {
                DeleteReason::NO_SUCH_LINK
            };
            self.send(at, &reply(reason), None);
            return self.go_on(now);
        };
        let down = DownReason::PeerDeleted(message.reason);
        let last = self.is_active(link) && self.other_carrier(link).is_none();
        match self.phase {
            Phase::Active | Phase::Joining if !last => {
                // What waits to be sent over the link goes with it.
                let via = self.other_carrier(link).filter(|_| at == link);
                self.send(via.unwrap_or(at), &reply(DeleteReason::DONE), None);
                self.drop_link(link, down, now);
                self.go_on(now);
            }
            Phase::Active => {
                self.clear();
                self.send(at, &reply(DeleteReason::DONE), Some(Note::Last));
                self.event(Event::Down(down));
                self.phase = Phase::Ending {
                    until: now.after(self.params.timing.last_send),
                    via: at,
                    words: None,
                };
            }
            _ => self.first_contact_failed(LinkFailure::Violation, true),
        }
    }

    /// Client: a link that the server has deleted, whatever it was.
    fn drop_link(&mut self, link: LinkIx, down: DownReason, now: Time) {
        match self.link(link).map(|link| link.stage) {
            Some(Stage::Active) => {
                self.take_down(link, down);
                self.lose_exchanges(link, now);
                self.remove_link(link);
                self.event(Event::LinkGone(link));
                self.others_stand_in(now);
            }
            Some(Stage::New) => {
                let made = self.adding() != Some(Adding::Make);
                self.change = None;
                self.remove_link(link);
                if made {
                    self.note_unmade();
                    self.event(Event::LinkGone(link));
                }
            }
            Some(Stage::Leaving) => self.remove_link(link),
            None => {}
        }
    }

    /// Server: the client wants one link deleted.
    fn handle_delete_wish(
        &mut self,
        at: LinkIx,
        message: &DeleteLink,
        number: Option<LinkNum>,
        now: Time,
    ) {
        let being_deleted = number.is_some_and(|number| {
            self.change.is_some_and(|change| {
                change.number == number && matches!(change.step, Step::Delete(_))
            }) || self.wishes.iter().any(|wish| wish.number == number)
        });
        let found = number.and_then(|number| Some((number, self.by_number(number)?)));
        match found {
            // Just being cleaned up (RFC 7609 appendix C.7.1).
            _ if being_deleted => self.drop_message(),
            Some((_, link)) if self.change.is_some_and(|change| change.link == Some(link)) => {
                // The client could not complete what we are adding.
                self.abort_add(message.reason, now);
            }
            Some((number, link)) => {
                self.wishes.push(Wish {
                    number,
                    orderly: message.orderly,
                    reason: message.reason,
                    asked: true,
                });
                // It is dead on the other side: what goes over it is lost. Linux says that all is in order
                // even then, and gives the reason.
                let dead = !message.orderly || message.reason == DeleteReason::PATH_LOST;
                let usable = matches!(self.phase, Phase::Active) && self.is_active(link);
                if usable && dead && self.other_carrier(link).is_some() {
                    self.take_down(link, DownReason::PeerDeleted(message.reason));
                    self.lose_exchanges(link, now);
                    self.others_stand_in(now);
                }
                self.go_on(now);
            }
            None => {
                let reply = DeleteLink {
                    reply: true,
                    reason: DeleteReason::NO_SUCH_LINK,
                    ..*message
                };
                self.send(at, &Llc::DeleteLink(reply), None);
            }
        }
    }

    /// Server: deletes what has to be deleted, if nothing else is going on. Nothing that is goes on for longer than
    /// its timer, and what a link took along that has failed is not waited for.
    pub(super) fn start_delete(&mut self, now: Time) {
        if !matches!(self.phase, Phase::Active | Phase::Joining)
            || self.change.is_some()
            || self.own_under_way()
            || self.incoming_under_way(now)
        {
            return;
        }
        let Some(wish) = self.wishes.pop() else {
            return;
        };
        let link = self.by_number(wish.number);
        let is_last = link.is_some_and(|link| self.other_carrier(link).is_none());
        if is_last && wish.orderly && wish.reason == DeleteReason::OPERATOR {
            // The one that was to take its place has failed meanwhile. A client without any answer would take its link for
            // lost: it gets the only reply that a server has.
            if let Some(via) = link.filter(|_| wish.asked) {
                let reply = DeleteLink {
                    reply: true,
                    all: false,
                    orderly: wish.orderly,
                    link: Some(wish.number),
                    reason: DeleteReason::NO_SUCH_LINK,
                };
                self.send(via, &Llc::DeleteLink(reply), None);
            }
            return self.start_delete(now);
        }
        let via = match link {
            Some(link) => self.other_carrier(link).or(Some(link)),
            None => self.carrier(),
        };
        let Some(via) = via else {
            return;
        };
        if let Some(link) = link.filter(|link| *link != via && self.is_active(*link)) {
            self.take_down(link, DownReason::Local);
            self.forget_incoming(link);
            self.others_stand_in(now);
        }
        self.send_delete(wish, link, via, now);
    }

    /// Server: tells the client to delete a link, or an offered one that is not wanted.
    pub(super) fn send_delete(&mut self, wish: Wish, link: Option<LinkIx>, via: LinkIx, now: Time) {
        self.change = Some(Change {
            link,
            number: wish.number,
            attempt: 0,
            via,
            step: Step::Delete(wish.reason),
            until: now.after(self.params.timing.reply),
            doubted: false,
        });
        self.send_wish(wish, via);
    }

    fn send_wish(&mut self, wish: Wish, via: LinkIx) {
        let request = Llc::DeleteLink(DeleteLink {
            reply: false,
            all: false,
            orderly: wish.orderly,
            link: Some(wish.number),
            reason: wish.reason,
        });
        self.send(via, &request, None);
    }

    /// The peer's reply to DELETE LINK.
    fn handle_deleted(&mut self, number: LinkNum, reason: DeleteReason, now: Time) {
        if !self.is_server() {
            // It does not know the link that we asked it to delete.
            if reason == DeleteReason::NO_SUCH_LINK && self.fulfil(number) {
                self.forget_leaving(number);
                return self.go_on(now);
            }
            return self.drop_message();
        }
        let change = self.change.filter(|change| change.number == number);
        match change.map(|change| (change, change.step)) {
            Some((change, Step::Delete(reason))) => self.finish_delete(change, reason, now),
            _ => self.drop_message(),
        }
    }

    /// Client: nobody else is going to end a link that is gone already.
    fn forget_leaving(&mut self, number: LinkNum) {
        if let Some(link) = self.by_number(number).filter(|link| self.is_leaving(*link)) {
            self.remove_link(link);
        }
    }

    /// Server: a deleted link is history, whether the client said so or did not.
    pub(super) fn finish_delete(&mut self, change: Change, reason: DeleteReason, now: Time) {
        self.change = None;
        if let Some(link) = change.link {
            let last = self.other_carrier(link).is_none();
            if last && self.phase == Phase::Joining {
                return self.first_contact_failed(LinkFailure::Violation, true);
            }
            if last {
                let down = DownReason::PeerDeleted(reason);
                return self.end(down, None, link, now);
            }
            let lost = self.link(link).copied();
            self.remove_link(link);
            self.event(Event::LinkGone(link));
            if reason != DeleteReason::ASYMMETRIC {
                self.replace(lost.as_ref(), reason, now);
            }
        }
        self.go_on(now);
    }

    /// Server: the client does not delete its side.
    pub(super) fn delete_timed_out(&mut self, change: Change, now: Time) {
        let Step::Delete(reason) = change.step else {
            return;
        };
        if !self.several || change.link == Some(change.via) {
            return self.finish_delete(change, reason, now);
        }
        // RFC 7609 appendix C.7.1: the link that carried the request is not usable, either. Unless a TEST LINK
        // says that it is: Linux drops requests while it waits for something else, or keeps them for long.
        if change.doubted {
            let failure = LinkFailure::Timeout(Exchange::DeleteLink);
            return self.fail_link(change.via, failure, now);
        }
        self.change = Some(Change {
            until: now.after(self.params.timing.test_link_reply),
            doubted: true,
            ..change
        });
        self.probe(change.via, now);
    }

    /// The link that carries a change works, though nobody answers there. A client asks once more for a deletion, and
    /// a new link comes to nothing.
    fn carrier_tested(&mut self, at: LinkIx, now: Time) {
        let asks = self.asks;
        let doubted = |ask: &&Ask| ask.doubted && ask.via == at;
        for ask in asks.iter().flatten().filter(doubted) {
            self.ask(ask.wish, false, now);
        }
        let change = self
            .change
            .filter(|change| change.doubted && change.via == at);
        match change.map(|change| (change, change.step)) {
            Some((change, Step::Delete(reason))) => self.finish_delete(change, reason, now),
            Some((_, Step::Add(_))) => self.abort_add(DeleteReason::PATH_LOST, now),
            None => {}
        }
    }

    // A client's wishes

    /// Wants a link deleted that still works: its connections move, then it goes. First another link
    /// has to show that it works. False if there is none for them: all others are to be deleted too.
    pub fn delete_link(&mut self, link: LinkIx, now: Time) -> bool {
        self.clock = now;
        if !self.is_link_up(link) {
            return false;
        }
        if self.is_doomed(link) {
            return true;
        }
        if self.stand_in(link).is_none() {
            return false;
        }
        self.drains |= link.bit();
        self.go_on_draining(now);
        true
    }

    /// A link that stays, while this one goes.
    fn stand_in(&self, link: LinkIx) -> Option<LinkIx> {
        self.active()
            .find(|other| *other != link && !self.is_doomed(*other))
    }

    /// True if the link is going to be deleted, whoever wanted it.
    pub fn is_doomed(&self, link: LinkIx) -> bool {
        let number = self.link_number(link);
        let is_it = |wanted: LinkNum| Some(wanted) == number;
        let change = self
            .change
            .filter(|change| matches!(change.step, Step::Delete(_)));
        self.drains & link.bit() != 0
            || self.is_resting(link)
            || self.wishes.iter().any(|wish| is_it(wish.number))
            || self.asks.iter().flatten().any(|ask| is_it(ask.wish.number))
            || change.is_some_and(|change| is_it(change.number))
    }

    /// Asks a link that stays whether it works, for each one that is to be deleted.
    pub(super) fn go_on_draining(&mut self, now: Time) {
        for link in LinkIx::of(self.drains) {
            match self.stand_in(link).filter(|_| self.is_link_up(link)) {
                Some(other) => self.probe(other, now),
                // The last one stays.
                None => self.drains &= !link.bit(),
            }
        }
    }

    /// A link works: those which it can stand in for go, as soon as they are at rest.
    fn drain_in_favour_of(&mut self, works: LinkIx, now: Time) {
        if self.is_doomed(works) {
            return;
        }
        let drains = core::mem::take(&mut self.drains);
        self.begin_rest(drains, now);
    }

    /// Client: asks the server to delete a link.
    ///
    /// While a link is added, that can wait: a server of Linux that expects something else has its exchange fail.
    pub(super) fn ask(&mut self, wish: Wish, hard: bool, now: Time) {
        let known = self.by_number(wish.number);
        let via = match known {
            Some(link) => self.other_carrier(link),
            None => self.carrier(),
        };
        let Some(via) = via else {
            return;
        };
        self.fulfil(wish.number);
        let until = now.after(self.params.timing.reply);
        let waits = self.adding().is_some();
        if let Some(place) = self.asks.iter_mut().find(|place| place.is_none()) {
            *place = Some(Ask {
                wish,
                via,
                hard,
                waits,
                doubted: false,
                until,
            });
        }
        if !waits {
            self.send_wish(wish, via);
        }
    }

    /// Client: asks for what had to wait.
    pub(super) fn ask_on(&mut self, now: Time) {
        if self.adding().is_some() {
            return;
        }
        let asks = self.asks;
        for ask in asks.iter().flatten().filter(|ask| ask.waits) {
            self.fulfil(ask.wish.number);
            self.ask(ask.wish, ask.hard, now);
        }
    }

    /// Client: forgets a wish for this link. True if there was one.
    fn fulfil(&mut self, number: LinkNum) -> bool {
        let mut found = false;
        for place in &mut self.asks {
            if place.is_some_and(|ask| ask.wish.number == number) {
                *place = None;
                found = true;
            }
        }
        found
    }

    /// True while the server has been asked to delete a link and has not done so.
    pub(super) fn asks_pending(&self) -> bool {
        self.asks.iter().any(Option::is_some)
    }

    pub(super) fn asks_deadline(&self) -> Option<Time> {
        let sent = self.asks.iter().flatten().filter(|ask| !ask.waits);
        sent.fold(None, |first, ask| earlier(first, Some(ask.until)))
    }

    pub(super) fn check_asks(&mut self, now: Time) {
        let mut dropped = false;
        for _ in 0..WISHES_MAX {
            let mut sent = self.asks.iter().flatten().filter(|ask| !ask.waits);
            let late = sent.find(|ask| ask.until <= now);
            let Some(ask) = late.copied() else {
                break;
            };
            if ask.hard && !ask.doubted {
                self.doubt(ask, now);
            } else if ask.hard {
                let failure = LinkFailure::Timeout(Exchange::DeleteLink);
                self.fail_link(ask.via, failure, now);
                if self.is_over() {
                    return;
                }
            } else {
                // The server may not know it, or keep it. What is left of it here must not keep its place for ever.
                self.fulfil(ask.wish.number);
                self.forget_leaving(ask.wish.number);
                dropped = true;
            }
        }
        if dropped {
            self.go_on(now);
        }
    }

    /// RFC 7609 appendix C.7.1: the link that carried the request is not usable, either. Unless a TEST LINK says
    /// that it is: a server may have to wait for the end of something else, and Linux drops requests at times.
    fn doubt(&mut self, ask: Ask, now: Time) {
        for place in self.asks.iter_mut().filter(|place| **place == Some(ask)) {
            *place = Some(Ask {
                doubted: true,
                until: now.after(self.params.timing.test_link_reply),
                ..ask
            });
        }
        self.probe(ask.via, now);
    }

    // Failures and the end

    /// A link failed: a completion with an error, an event of its queue pair or port.
    pub fn handle_link_failed(&mut self, link: LinkIx, now: Time) {
        self.fail_link(link, LinkFailure::Transport, now);
    }

    /// The peer broke the protocol (RFC 7609 appendix C.7.1).
    pub(super) fn violation(&mut self, link: LinkIx, now: Time) {
        self.counters.violations = self.counters.violations.saturating_add(1);
        self.fail_link(link, LinkFailure::Violation, now);
    }

    pub(super) fn fail_link(&mut self, link: LinkIx, failure: LinkFailure, now: Time) {
        self.clock = now;
        let Some(stage) = self.link(link).map(|link| link.stage) else {
            return;
        };
        match (self.phase, stage) {
            (Phase::Active | Phase::Joining, Stage::Leaving) => {}
            (Phase::Active | Phase::Joining, Stage::New) => {
                self.abort_add(DeleteReason::PATH_LOST, now);
            }
            (Phase::Active, Stage::Active) => {
                if self.other_carrier(link).is_some() {
                    return self.lose_link(link, failure, now);
                }
                // The link may still carry a message unless the transport itself failed.
                let last_words = match failure {
                    LinkFailure::Transport => None,
                    LinkFailure::Timeout(_) | LinkFailure::NoRkey => {
                        Some((DeleteReason::PATH_LOST, false))
                    }
                    LinkFailure::Violation => Some((DeleteReason::PROTOCOL, false)),
                };
                self.end(DownReason::LinkFailed(failure), last_words, link, now);
            }
            (Phase::Ending { via, .. }, _) if failure == LinkFailure::Transport => {
                if via == link {
                    self.repeat_last_words(link, now);
                } else if let Some(link) = self.link_mut(link) {
                    link.stage = Stage::Leaving;
                }
            }
            (Phase::Confirming { .. } | Phase::Adding { .. } | Phase::Joining, _) => {
                self.first_contact_failed(failure, false);
            }
            _ => {}
        }
    }

    /// A link has failed, and others are left (RFC 7609 sections 2.3 and 3.5.5.1).
    fn lose_link(&mut self, link: LinkIx, failure: LinkFailure, now: Time) {
        let meant = self.is_resting(link);
        self.take_down(link, DownReason::LinkFailed(failure));
        let reason = match failure {
            LinkFailure::Violation => DeleteReason::PROTOCOL,
            _ => DeleteReason::PATH_LOST,
        };
        let wish = self.link_number(link).map(|number| Wish {
            number,
            orderly: false,
            reason,
            asked: false,
        });
        if let Some(wish) = wish {
            if self.is_server() {
                let lost = self.link(link).copied();
                self.wishes.push(wish);
                // One that was to go anyway is not missed, though the peer broke it.
                let why = if meant {
                    DeleteReason::OPERATOR
                } else {
                    reason
                };
                self.replace(lost.as_ref(), why, now);
            } else {
                self.ask(wish, true, now);
                self.event(Event::LinkGone(link));
            }
        }
        self.lose_exchanges(link, now);
        self.others_stand_in(now);
        self.go_on(now);
    }

    /// A link is down. It may have been the one that was to stand in for others: another one does, or they stay.
    fn others_stand_in(&mut self, now: Time) {
        self.review_rest(now);
        self.go_on_draining(now);
    }

    /// LLC messages are not replayed on another link: whoever began an exchange begins anew.
    fn lose_exchanges(&mut self, link: LinkIx, now: Time) {
        self.restart_own(link);
        self.forget_incoming(link);
        self.add_lost(link, now);
        let lost = self.asks;
        for ask in lost.iter().flatten().filter(|ask| ask.via == link) {
            self.fulfil(ask.wish.number);
            self.ask(ask.wish, ask.hard, now);
        }
    }

    /// Ends the group for a reason of our own. The peer is told if there is a link to do it.
    pub fn shut_down(&mut self, why: ShutDown, now: Time) {
        match self.phase {
            Phase::Active => {
                // Orderly means that nothing is broken.
                let (reason, orderly) = match why {
                    ShutDown::LostPath => (DeleteReason::PATH_LOST, false),
                    ShutDown::Operator => (DeleteReason::OPERATOR, true),
                    ShutDown::Program => (DeleteReason::PROGRAM, true),
                    ShutDown::OutOfSync => (DeleteReason::PROTOCOL, false),
                };
                let via = self.carrier().unwrap_or(LinkIx::FIRST);
                self.end(DownReason::Local, Some((reason, orderly)), via, now);
            }
            Phase::Confirming { .. } | Phase::Adding { .. } | Phase::Joining => {
                self.first_contact_failed(LinkFailure::Transport, false);
            }
            Phase::New => self.phase = Phase::Down,
            Phase::Ending { .. } | Phase::Down => {}
        }
    }

    pub(super) fn idle_deadline(&self) -> Option<Time> {
        let timing = &self.params.timing;
        let span = match self.params.role {
            Role::Server => timing.idle_server,
            Role::Client => timing.idle_client,
        };
        self.idle_since.map(|since| since.after(span))
    }

    pub(super) fn check_idle(&mut self, now: Time) {
        let over = self.idle_deadline().is_some_and(|deadline| deadline <= now);
        if over && self.phase == Phase::Active {
            let via = self.carrier().unwrap_or(LinkIx::FIRST);
            let words = Some((DeleteReason::PROGRAM, true));
            self.end(DownReason::Idle, words, via, now);
        }
    }

    /// Ends an active group, with a DELETE LINK for all links if there is a reason to put into it.
    fn end(
        &mut self,
        down: DownReason,
        last_words: Option<(DeleteReason, bool)>,
        via: LinkIx,
        now: Time,
    ) {
        self.clear();
        self.event(Event::Down(down));
        let Some((reason, orderly)) = last_words else {
            return self.release();
        };
        let words = DeleteLink {
            reply: false,
            all: true,
            orderly,
            link: None,
            reason,
        };
        self.send(via, &Llc::DeleteLink(words), Some(Note::Last));
        self.phase = Phase::Ending {
            until: now.after(self.params.timing.last_send),
            via,
            words: Some(words),
        };
    }

    /// Forgets all that was going on.
    pub(super) fn clear(&mut self) {
        self.sends.clear();
        self.own.clear();
        self.change = None;
        self.wishes.clear();
        self.asks = [None; WISHES_MAX];
        self.incoming = None;
        self.withheld = None;
        self.add_wanted = false;
        self.add_after = None;
        self.drains = 0;
        self.rest = None;
        self.retry_at = None;
        self.unfinished = false;
        self.port_came = false;
        self.requested = None;
        self.idle_since = None;
    }

    /// The peer knows of the end. What it has sent until then, and sends because of it, is acknowledged still, if nothing is
    /// broken: it may wait for that. Linux does, with a socket locked, and for ever where its queue pairs repeat without end.
    /// As server it also answers by a DELETE LINK of its own, and goes on to use the group as long as that is not acknowledged.
    pub(super) fn last_words_arrived(&mut self, now: Time) {
        let linger = self.params.timing.linger;
        match &mut self.phase {
            Phase::Ending { until, words, .. } if words.is_none_or(|words| words.orderly) => {
                *until = (*until).min(now.after(linger));
                // Should the link fail meanwhile, they need not be repeated.
                *words = None;
            }
            _ => self.release(),
        }
    }

    pub(super) fn release(&mut self) {
        self.phase = Phase::Down;
        self.sends.clear();
        self.links = [None; MAX_LINKS];
        self.event(Event::Release);
    }
}
