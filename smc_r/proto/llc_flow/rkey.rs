// SPDX-License-Identifier: GPL-2.0

//! RKEY exchanges: our own, one after the other, and the peer's (RFC 7609 section 3.5.5.2).

use super::{
    Event,
    Exchange,
    Flow,
    LinkFailure,
    Phase,
    RmbId,
    Unavailable,
    CONFIRM_RKEY_TRIES, //
};
use crate::{
    group::{
        LinkIx,
        PeerTable, //
    },
    llc::{
        ConfirmRkey,
        DeleteRkey,
        Llc, //
    },
    timer::Time,
    wire::{
        RKey,
        RToken, //
    },
};

/// An RKEY exchange of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnExchange {
    id: RmbId,
    kind: Kind,
    progress: Progress,
    tries: u8,
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

impl Flow {
    /// Announces a buffer to the peer (CONFIRM RKEY), before CLC may name it. The end is an
    /// [`Event::RkeyConfirmed`] or [`Event::RkeyRefused`], or that of the group. The buffer of the
    /// first contact needs no announcement.
    pub fn announce(&mut self, id: RmbId, token: RToken, now: Time) -> Result<(), Unavailable> {
        self.enqueue(id, Kind::Confirm(token), now)
    }

    /// Takes a buffer back (DELETE RKEY) that no connection uses. The end is an
    /// [`Event::RkeyDeleted`], or that of the group; until then the peer may write to the buffer.
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
            tries: 0,
        };
        if !self.own.push(exchange) {
            return Err(Unavailable::Full);
        }
        self.start_own(now);
        Ok(())
    }

    /// True if nothing is going on that keeps RKEYs from changing.
    fn rkeys_may_change(&self) -> bool {
        self.phase == Phase::Active && self.deleting.is_none()
    }

    /// True while an own request awaits its reply.
    pub(super) fn own_under_way(&self) -> bool {
        self.own
            .iter()
            .next()
            .is_some_and(|own| matches!(own.progress, Progress::Sent(_)))
    }

    /// Sends the request of the first exchange in line, if it is time.
    pub(super) fn start_own(&mut self, now: Time) {
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
        own.tries = own.tries.saturating_add(1);
        let request = match own.kind {
            Kind::Confirm(token) => Llc::ConfirmRkey(ConfirmRkey::request(token)),
            Kind::Delete(rkey) => Llc::DeleteRkey(DeleteRkey::request(rkey)),
        };
        self.send(link, &request, None);
    }

    /// Ends the exchange that is under way, and starts the next.
    fn finish_own(&mut self, event: Event, now: Time) {
        self.own.pop();
        self.event(event);
        self.start_delete(now);
        self.start_own(now);
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
        let Some(own) = self.own.first_mut().copied() else {
            return;
        };
        match (own.progress, own.kind) {
            (Progress::Sent(until), Kind::Confirm(_)) if until <= now => {
                self.fail_link(
                    LinkIx::FIRST,
                    LinkFailure::Timeout(Exchange::ConfirmRkey),
                    now,
                );
            }
            (Progress::Sent(until), Kind::Delete(_)) if until <= now => {
                self.fail_link(
                    LinkIx::FIRST,
                    LinkFailure::Timeout(Exchange::DeleteRkey),
                    now,
                );
            }
            _ => {}
        }
    }

    /// The peer's answer to our CONFIRM RKEY.
    pub(super) fn handle_rkey_confirmed(&mut self, message: &ConfirmRkey, now: Time) {
        let pause = now.after(self.params.timing.rkey_retry);
        let Some(own) = self.own.first_mut() else {
            return self.drop_message();
        };
        let answered =
            own.kind == Kind::Confirm(message.rtoken) && matches!(own.progress, Progress::Sent(_));
        if !answered {
            return self.drop_message();
        }
        let id = own.id;
        if !message.negative {
            self.finish_own(Event::RkeyConfirmed(id), now);
        } else if message.retry && own.tries < CONFIRM_RKEY_TRIES {
            own.progress = Progress::Again(pause);
            self.start_delete(now);
        } else {
            self.finish_own(Event::RkeyRefused(id), now);
        }
    }

    /// The peer's answer to our DELETE RKEY. An RKey that it does not know is as good as deleted.
    pub(super) fn handle_rkey_deleted(&mut self, message: &DeleteRkey, now: Time) {
        let answered = self.own.first_mut().copied().filter(|own| {
            matches!((own.kind, own.progress), (Kind::Delete(rkey), Progress::Sent(_))
                if message.rkeys.as_slice().first() == Some(&rkey))
        });
        match answered {
            Some(own) => self.finish_own(Event::RkeyDeleted(own.id), now),
            None => self.drop_message(),
        }
    }

    /// The peer's answer to our DELETE RKEY, which does not say which.
    pub(super) fn rkey_deleted(&mut self, now: Time) {
        let own = self.own.first_mut().copied();
        match own.map(|own| (own.kind, own.progress, own.id)) {
            Some((Kind::Delete(_), Progress::Sent(_), id)) => {
                self.finish_own(Event::RkeyDeleted(id), now);
            }
            _ => self.drop_message(),
        }
    }

    /// The peer announces a buffer.
    pub(super) fn handle_confirm_rkey(
        &mut self,
        at: LinkIx,
        message: &ConfirmRkey,
        peers: &mut PeerTable<'_>,
    ) {
        let changing = !self.rkeys_may_change();
        // With one link, an entry for another one names a link that does not exist.
        let taken = !changing && message.others == 0 && peers.add(at, message.rtoken).is_ok();
        let reply = if taken {
            message.accepted()
        } else {
            self.counters.refused = self.counters.refused.saturating_add(1);
            message.refused(changing)
        };
        self.send(at, &Llc::ConfirmRkey(reply), None);
    }

    /// The peer takes buffers back.
    pub(super) fn handle_delete_rkey(
        &mut self,
        at: LinkIx,
        message: &DeleteRkey,
        peers: &mut PeerTable<'_>,
    ) {
        let mut errors = 0u8;
        let mut bit = 0x80u8;
        for rkey in message.rkeys.iter() {
            match peers.remove(at, *rkey) {
                Some((slot, true)) => self.event(Event::PeerRmbGone(slot)),
                Some((_, false)) => {}
                None => errors |= bit,
            }
            bit = bit.wrapping_shr(1);
        }
        self.send(at, &Llc::DeleteRkey(message.answered(errors)), None);
    }
}
