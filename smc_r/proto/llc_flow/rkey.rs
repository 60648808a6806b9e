// SPDX-License-Identifier: GPL-2.0

//! RKEY exchanges: our own, one after the other, and the peer's (RFC 7609 section 3.5.5.2).

use super::{
    change::Adding,
    Event,
    Exchange,
    Flow,
    Frame,
    LinkFailure,
    Phase,
    RmbId,
    Stage,
    Text,
    Unavailable,
    CONFIRM_RKEY_TRIES, //
};
use crate::{
    group::{
        LinkIx,
        OwnTable,
        PeerSlot,
        PeerTable,
        Role,
        Tokens, //
    },
    llc::{
        ConfirmRkey,
        ConfirmRkeyCont,
        DeleteRkey,
        LinkRToken,
        Llc, //
    },
    timer::Time,
    wire::{
        LinkNum,
        RKey,
        RToken, //
    },
};

/// Most other links that CONFIRM RKEY can name.
const OTHERS_MAX: u8 = 7;

/// How many of them the request itself has room for, and each continuation.
const IN_REQUEST: u8 = 2;
const IN_CONTINUATION: u8 = 3;

/// An RKEY exchange of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnExchange {
    pub(super) id: RmbId,
    kind: Kind,
    progress: Progress,
    /// The reply was due, and the link is asked whether it works.
    doubted: bool,
    tries: u8,
    /// The link that carries the request.
    via: LinkIx,
    /// The buffer's token there, as it was sent.
    sent: RToken,
    /// The links whose tokens the request conveys, `via` left out, and how many it has yet to.
    others: u16,
    left: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Confirm(RToken),
    Delete(RKey),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// In line.
    Waiting,
    /// The request is on its way, the reply due by then.
    Sent(Time),
    /// The peer wants the request repeated, not before then.
    Again(Time),
}

/// An RKEY exchange of the peer whose continuations are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Incoming {
    at: LinkIx,
    tokens: Tokens,
    left: u8,
    until: Time,
}

/// The answer to the peer's DELETE RKEY, while connections use what it takes back: the peer may use
/// the memory for something else as soon as it has the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Withheld {
    at: LinkIx,
    answer: Frame,
}

impl Flow {
    /// Announces a buffer to the peer (CONFIRM RKEY), before CLC may name it. The end is an
    /// [`Event::RkeyConfirmed`] or [`Event::RkeyRefused`], or that of the group. The buffer of the
    /// first contact needs no announcement.
    ///
    /// `token` is the one on the first link. In groups with further links the [`OwnTable`] has the
    /// buffer, and its tokens on all links that are up.
    pub fn announce(&mut self, id: RmbId, token: RToken, now: Time) -> Result<(), Unavailable> {
        self.enqueue(id, Kind::Confirm(token), now)
    }

    /// Takes a buffer back (DELETE RKEY) that no connection uses. The end is an
    /// [`Event::RkeyDeleted`], or that of the group; until then the peer may write to the buffer.
    /// `rkey` is the key on the first link; see [`Flow::announce`].
    pub fn withdraw(&mut self, id: RmbId, rkey: RKey, now: Time) -> Result<(), Unavailable> {
        self.enqueue(id, Kind::Delete(rkey), now)
    }

    fn enqueue(&mut self, id: RmbId, kind: Kind, now: Time) -> Result<(), Unavailable> {
        if self.phase != Phase::Active {
            return Err(Unavailable::Down);
        }
        let exchange = OwnExchange {
            id,
            kind,
            progress: Progress::Waiting,
            doubted: false,
            tries: 0,
            via: LinkIx::FIRST,
            sent: RToken {
                rkey: RKey(0),
                addr: 0,
            },
            others: 0,
            left: 0,
        };
        if !self.own.push(exchange) {
            return Err(Unavailable::Full);
        }
        self.start_own(now);
        Ok(())
    }

    /// True if nothing is going on that keeps our RKEYs from changing. A client that waits for the
    /// server to delete a link is part of that change already, and so is a server that waits for the end
    /// of the client's exchange to do so.
    fn rkeys_may_change(&self) -> bool {
        self.phase == Phase::Active
            && self.change.is_none()
            && !self.asks_pending()
            && self.wishes.len() == 0
    }

    /// True while an own request awaits its reply.
    pub(super) fn own_under_way(&self) -> bool {
        self.own
            .iter()
            .next()
            .is_some_and(|own| matches!(own.progress, Progress::Sent(_)))
    }

    /// True if the peer does not know the buffer yet: its announcement is in line, or was refused
    /// and nobody has heard of it.
    pub(super) fn is_unannounced(&self, id: RmbId) -> bool {
        self.own
            .iter()
            .any(|own| own.id == id && matches!(own.kind, Kind::Confirm(_)))
            || self
                .events
                .iter()
                .any(|event| *event == Event::RkeyRefused(id))
    }

    /// Our exchange, if the peer has been asked. While its message waits to be posted, what the peer says is no
    /// answer to it.
    fn own_asked(&self) -> Option<OwnExchange> {
        let mut waiting = self.sends.iter();
        let posted = !waiting.any(|queued| matches!(queued.text, Text::Own | Text::OwnCont));
        let own = self.own.iter().next().copied();
        own.filter(|own| posted && matches!(own.progress, Progress::Sent(_)))
    }

    /// Sends the request of the first exchange in line, if it is time.
    pub(super) fn start_own(&mut self, now: Time) {
        self.clock = now;
        let Some(link) = self.carrier() else {
            return;
        };
        if !self.rkeys_may_change() {
            return;
        }
        let until = now.after(self.params.timing.reply);
        let Some(own) = self.own.first_mut() else {
            return;
        };
        match own.progress {
            Progress::Waiting => {}
            Progress::Again(at) if at <= now => {}
            Progress::Again(_) | Progress::Sent(_) => return,
        }
        own.progress = Progress::Sent(until);
        own.doubted = false;
        own.tries = own.tries.saturating_add(1);
        own.via = link;
        own.left = 0;
        self.send_text(link, Text::Own, None);
    }

    /// The request of the exchange that is under way. None if the driver has no token for one of
    /// the links: then the buffer cannot be announced.
    pub(super) fn own_request(&mut self, via: LinkIx, table: &OwnTable<'_>) -> Option<Frame> {
        if self.change.is_some() {
            // It has waited for a send slot, while the server has begun to change the links.
            self.restart_own(via);
            return None;
        }
        let own = self.own.first_mut().copied()?;
        let known = table.token(own.id, via);
        let message = match own.kind {
            Kind::Delete(rkey) => {
                let first = (via == LinkIx::FIRST).then_some(rkey);
                let Some(rkey) = known.map(|token| token.rkey).or(first) else {
                    return self.delete_elsewhere(own.id, table);
                };
                let sent = RToken { rkey, addr: 0 };
                self.own.first_mut()?.sent = sent;
                Llc::DeleteRkey(DeleteRkey::request(rkey))
            }
            Kind::Confirm(token) => {
                let sent = known.or((via == LinkIx::FIRST).then_some(token));
                let mut others = 0u16;
                let mut count = 0u8;
                let mut complete = sent.is_some();
                for link in self.active().filter(|link| *link != via) {
                    complete &= table.token(own.id, link).is_some();
                    others |= link.bit();
                    count = count.saturating_add(1);
                }
                let Some(sent) = sent.filter(|_| complete) else {
                    self.finish_own(Event::RkeyRefused(own.id), self.clock);
                    return None;
                };
                let mut request = ConfirmRkey {
                    others: count,
                    ..ConfirmRkey::request(sent)
                };
                let tokens = self.tokens_of(own.id, others, 0, table);
                for (to, from) in request.entries.iter_mut().zip(tokens) {
                    *to = from;
                }
                let own = self.own.first_mut()?;
                own.sent = sent;
                own.others = others;
                own.left = count.saturating_sub(IN_REQUEST);
                Llc::ConfirmRkey(request)
            }
        };
        Some(self.frame(via, &message))
    }

    /// A buffer has no key on the link that was to carry its deletion: another one does it. If there is
    /// none, the peer has no way to write to it.
    fn delete_elsewhere(&mut self, id: RmbId, table: &OwnTable<'_>) -> Option<Frame> {
        let other = self.active().find(|link| table.token(id, *link).is_some());
        match other {
            Some(link) => {
                self.own.first_mut()?.via = link;
                self.send_text(link, Text::Own, None);
            }
            None => self.finish_own(Event::RkeyDeleted(id), self.clock),
        }
        None
    }

    /// Three of a buffer's tokens, those on the links of a set from the `skip`th on.
    fn tokens_of(
        &self,
        id: RmbId,
        links: u16,
        skip: u8,
        table: &OwnTable<'_>,
    ) -> [LinkRToken; IN_CONTINUATION as usize] {
        let mut tokens = [LinkRToken::default(); IN_CONTINUATION as usize];
        let all = LinkIx::of(links);
        for (to, link) in tokens.iter_mut().zip(all.skip(skip.into())) {
            *to = LinkRToken {
                link: self.link_number(link),
                rtoken: table.token(id, link).unwrap_or_default(),
            };
        }
        tokens
    }

    /// The next continuation of the exchange that is under way.
    pub(super) fn own_continuation(&mut self, table: &OwnTable<'_>) -> Option<Frame> {
        let own = self.own.first_mut().copied()?;
        let count = u8::try_from(own.others.count_ones()).unwrap_or(OTHERS_MAX);
        let message = ConfirmRkeyCont {
            left: own.left,
            entries: self.tokens_of(own.id, own.others, count.saturating_sub(own.left), table),
            ..ConfirmRkeyCont::default()
        };
        Some(self.frame(own.via, &Llc::ConfirmRkeyCont(message)))
    }

    /// Ends the exchange that is under way, and starts the next.
    fn finish_own(&mut self, event: Event, now: Time) {
        self.own.pop();
        self.event(event);
        self.go_on(now);
    }

    /// The link that carries our request has failed, or the links change: it is sent anew.
    pub(super) fn restart_own(&mut self, failed: LinkIx) {
        if let Some(own) = self.own.first_mut() {
            if own.via == failed && matches!(own.progress, Progress::Sent(_)) {
                own.progress = Progress::Waiting;
                own.tries = own.tries.saturating_sub(1);
            }
        }
    }

    pub(super) fn own_deadline(&self) -> Option<Time> {
        self.own.iter().next().and_then(|own| match own.progress {
            Progress::Sent(until) => Some(until),
            // While links change, the end of that change starts the exchange.
            Progress::Again(at) => self.rkeys_may_change().then_some(at),
            Progress::Waiting => None,
        })
    }

    pub(super) fn check_own(&mut self, now: Time) {
        self.start_own(now);
        let again = now.after(self.params.timing.reply);
        let Some(own) = self.own.first_mut() else {
            return;
        };
        if !matches!(own.progress, Progress::Sent(until) if until <= now) {
            return;
        }
        let via = own.via;
        let exchange = match own.kind {
            // The peer may have to find out first what came over another link, which can take it as long as our
            // patience: that other link is the one that has failed then, if this one works.
            Kind::Delete(_) if !own.doubted => {
                own.doubted = true;
                own.progress = Progress::Sent(again);
                return self.probe(via, now);
            }
            Kind::Delete(_) => Exchange::DeleteRkey,
            Kind::Confirm(_) => Exchange::ConfirmRkey,
        };
        self.fail_link(via, LinkFailure::Timeout(exchange), now);
    }

    /// The peer's answer to our CONFIRM RKEY.
    pub(super) fn handle_rkey_confirmed(&mut self, message: &ConfirmRkey, now: Time) {
        let answered = self
            .own_asked()
            .filter(|own| matches!(own.kind, Kind::Confirm(_)) && own.sent == message.rtoken);
        let Some(own) = answered else {
            return self.drop_message();
        };
        if message.negative {
            return self.own_refused(message.retry, now);
        }
        if own.left > 0 {
            return self.send_text(own.via, Text::OwnCont, None);
        }
        self.own_accepted(now);
    }

    /// The peer's answer to a continuation.
    pub(super) fn handle_continued(&mut self, at: LinkIx, message: &ConfirmRkeyCont, now: Time) {
        let answered = self.own_asked().is_some_and(|own| {
            matches!(own.kind, Kind::Confirm(_))
                && (own.via, own.left) == (at, message.left)
                && own.left > 0
        });
        let Some(own) = self.own.first_mut().filter(|_| answered) else {
            return self.drop_message();
        };
        if message.negative {
            // There is no flag to say why: most likely, the links have changed since the request.
            return self.own_refused(true, now);
        }
        own.left = own.left.saturating_sub(IN_CONTINUATION);
        if own.left > 0 {
            return self.send_text(at, Text::OwnCont, None);
        }
        self.own_accepted(now);
    }

    fn own_refused(&mut self, retry: bool, now: Time) {
        let pause = now.after(self.params.timing.rkey_retry);
        let Some(own) = self.own.first_mut() else {
            return;
        };
        if retry && own.tries < CONFIRM_RKEY_TRIES {
            own.progress = Progress::Again(pause);
            return self.go_on(now);
        }
        let id = own.id;
        self.finish_own(Event::RkeyRefused(id), now);
    }

    /// The peer has stored the buffer, with keys for all links that were up when it was asked to.
    fn own_accepted(&mut self, now: Time) {
        let mut missing = self.adding().is_some_and(Adding::keys_are_sent);
        let Some(own) = self.own.first_mut().copied() else {
            return;
        };
        for link in self.active().filter(|link| *link != own.via) {
            missing |= own.others & link.bit() == 0;
        }
        if missing {
            // A link was added meanwhile: once more, with its key (RFC 7609 section 3.5.5.3.1).
            if let Some(own) = self.own.first_mut() {
                own.progress = Progress::Waiting;
                own.tries = own.tries.saturating_sub(1);
            }
            return self.go_on(now);
        }
        self.finish_own(Event::RkeyConfirmed(own.id), now);
    }

    /// The peer's answer to our DELETE RKEY. An RKey that it does not know is as good as deleted.
    pub(super) fn handle_rkey_deleted(&mut self, message: &DeleteRkey, now: Time) {
        let answered = self.own_asked().filter(|own| {
            matches!(own.kind, Kind::Delete(_))
                && message.rkeys.as_slice().first() == Some(&own.sent.rkey)
        });
        match answered {
            Some(own) => self.finish_own(Event::RkeyDeleted(own.id), now),
            None => self.drop_message(),
        }
    }

    /// The peer's answer to our DELETE RKEY, which does not say which.
    pub(super) fn rkey_deleted(&mut self, now: Time) {
        let answered = self
            .own_asked()
            .filter(|own| matches!(own.kind, Kind::Delete(_)));
        match answered {
            Some(own) => self.finish_own(Event::RkeyDeleted(own.id), now),
            None => self.drop_message(),
        }
    }

    // The peer's

    /// True while the peer's exchange is under way.
    pub(super) fn incoming_under_way(&self, now: Time) -> bool {
        self.incoming.is_some_and(|incoming| incoming.until > now)
    }

    pub(super) fn incoming_deadline(&self) -> Option<Time> {
        self.incoming.map(|incoming| incoming.until)
    }

    /// The peer does not go on: nobody waits for it any longer.
    pub(super) fn check_incoming(&mut self, now: Time) {
        if self.incoming.is_some() && !self.incoming_under_way(now) {
            self.incoming = None;
            self.go_on(now);
        }
    }

    pub(super) fn forget_incoming(&mut self, failed: LinkIx) {
        self.incoming = self.incoming.filter(|incoming| incoming.at != failed);
        self.withheld = self.withheld.filter(|withheld| withheld.at != failed);
    }

    /// The peer announces a buffer.
    pub(super) fn handle_confirm_rkey(
        &mut self,
        at: LinkIx,
        message: &ConfirmRkey,
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        self.check_incoming(now);
        let left = message.others.saturating_sub(IN_REQUEST);
        let unheard = left == 0 && self.is_change_unheard();
        let changing = self.phase != Phase::Active || (self.change.is_some() && !unheard);
        let mut tokens = Tokens::EMPTY;
        tokens.set(at, message.rtoken);
        let known = !changing
            && message.others <= OTHERS_MAX
            && self.take_entries(at, message.entries(), &mut tokens);
        // Who begins anew all the time does not keep the links as they are for ever.
        let before = self.incoming.take().map(|incoming| incoming.until);
        let until = before.unwrap_or(now.after(self.params.timing.reply));
        let taken = if known && left > 0 {
            self.incoming = Some(Incoming {
                at,
                tokens,
                left,
                until,
            });
            true
        } else {
            known && peers.add_all(at, &tokens).is_ok()
        };
        let reply = if taken {
            message.accepted()
        } else {
            self.counters.refused = self.counters.refused.saturating_add(1);
            message.refused(changing)
        };
        self.send(at, &Llc::ConfirmRkey(reply), None);
        if taken && left == 0 {
            self.check_covered(&tokens, now);
        }
        if before.is_some() {
            self.go_on(now);
        }
    }

    /// The peer announces further keys of a buffer.
    pub(super) fn handle_confirm_rkey_cont(
        &mut self,
        at: LinkIx,
        message: &ConfirmRkeyCont,
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        let Some(mut incoming) = self.incoming.filter(|incoming| incoming.at == at) else {
            return self.drop_message();
        };
        self.incoming = None;
        if message.left != incoming.left {
            return self.violation(at, now);
        }
        let left = incoming.left.saturating_sub(IN_CONTINUATION);
        // The links may have changed since the request.
        let mut taken = self.phase == Phase::Active
            && self.change.is_none()
            && self.take_entries(at, message.entries(), &mut incoming.tokens);
        if taken && left == 0 {
            taken = peers.add_all(at, &incoming.tokens).is_ok();
        }
        let reply = ConfirmRkeyCont {
            reply: true,
            negative: !taken,
            ..*message
        };
        self.send(at, &Llc::ConfirmRkeyCont(reply), None);
        if !taken {
            self.counters.refused = self.counters.refused.saturating_add(1);
        } else if left == 0 {
            self.check_covered(&incoming.tokens, now);
        } else {
            self.incoming = Some(Incoming { left, ..incoming });
            return;
        }
        self.go_on(now);
    }

    /// Server: true if the client has not heard of the change that is under way. What it announces now
    /// is among the keys that it gives for the new link.
    fn is_change_unheard(&self) -> bool {
        self.is_server() && self.adding() == Some(Adding::Make)
    }

    /// Sorts the keys of the peer for other links than `at` by link. False if there is a link that nobody knows, or one that
    /// would have two: `at` itself, or any that was told of before.
    fn take_entries(&self, at: LinkIx, entries: &[LinkRToken], tokens: &mut Tokens) -> bool {
        entries.iter().all(|entry| {
            let link = entry.link.and_then(|number| self.by_number(number));
            let is_new =
                |link: &LinkIx| tokens.get(*link).is_none_or(|token| token == entry.rtoken);
            let link = link.filter(|link| *link != at && is_new(link));
            if let Some(link) = link {
                tokens.set(link, entry.rtoken);
            }
            link.is_some()
        })
    }

    /// A link for which the peer has no key counts as failed (RFC 7609 appendix C.7.1).
    fn check_covered(&mut self, tokens: &Tokens, now: Time) {
        for link in LinkIx::all() {
            if self.is_active(link) && tokens.get(link).is_none() {
                self.fail_link(link, LinkFailure::NoRkey, now);
            }
        }
    }

    /// The peer takes buffers back.
    pub(super) fn handle_delete_rkey(
        &mut self,
        at: LinkIx,
        message: &DeleteRkey,
        peers: &mut PeerTable<'_>,
    ) {
        // One at a time (RFC 7609 section 3.5.5.3).
        if self.withheld.is_some() {
            return self.drop_message();
        }
        let mut errors = 0u8;
        let mut bit = 0x80u8;
        for rkey in message.rkeys.iter() {
            match peers.remove(at, *rkey) {
                Some((slot, true)) => self.peer_rmb_gone(slot),
                Some((_, false)) => {}
                None => errors |= bit,
            }
            bit = bit.wrapping_shr(1);
        }
        let answer = self.frame(at, &Llc::DeleteRkey(message.answered(errors)));
        self.answer_delete(at, answer);
    }

    /// The peer has taken back a buffer that connections use.
    pub(super) fn peer_rmb_gone(&mut self, slot: PeerSlot) {
        self.abandoning = self.abandoning.saturating_add(1);
        self.event(Event::PeerRmbGone(slot));
    }

    /// Answers DELETE RKEY, once nothing uses any more what it takes back. That may be known to have gone: a request is
    /// repeated when its link has failed.
    pub(super) fn answer_delete(&mut self, at: LinkIx, answer: Frame) {
        self.withheld = Some(Withheld { at, answer });
        self.give_answer();
    }

    fn give_answer(&mut self) {
        if self.abandoning != 0 {
            return;
        }
        if let Some(Withheld { at, answer }) = self.withheld.take() {
            self.send_text(at, Text::Ready(answer), None);
        }
    }

    /// The link over which the peer will have the answer that waits for [`Flow::rmb_abandoned`], if there is one.
    pub fn answering(&self) -> Option<LinkIx> {
        self.withheld.as_ref().map(|withheld| withheld.at)
    }

    /// The connections of an [`Event::PeerRmbGone`] have been aborted: nothing more is posted that
    /// writes to the buffer, and what was posted over other links than that of the [answer](Flow::answering) has arrived.
    pub fn rmb_abandoned(&mut self) {
        self.abandoning = self.abandoning.saturating_sub(1);
        self.give_answer();
    }

    /// The link with this number, whatever becomes of it.
    pub(super) fn by_number(&self, number: LinkNum) -> Option<LinkIx> {
        LinkIx::all().find(|link| self.link_number(*link) == Some(number))
    }

    /// True if the role and the stage of the link let it carry a request of our own.
    pub(super) fn is_server(&self) -> bool {
        self.params.role == Role::Server
    }

    /// True if nobody uses the link any more.
    pub(super) fn is_leaving(&self, link: LinkIx) -> bool {
        self.link(link)
            .is_some_and(|link| link.stage == Stage::Leaving)
    }
}
