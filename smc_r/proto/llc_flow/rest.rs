// SPDX-License-Identifier: GPL-2.0

//! Coming to rest: what the peer has under way over a link that works and is to be deleted.
//!
//! Whoever moves a connection to another link sends again what is not confirmed (RFC 7609 section
//! 4.6.1). Linux does so while its queue pair still works: confirmations that come in afterwards free
//! parts of its send buffer which it has yet to send again, and the program overwrites them. And it takes
//! a message for lost that our failover validation overtakes on the other link. Therefore the connections
//! that either side sends for over the link are held: they write nothing and make no room, so that the
//! peer soon has nothing to write either. The link is at rest when nothing comes any more, and
//! a TEST LINK goes there and back: what came before is confirmed then. That may not happen, and is not
//! waited for long.
//!
//! A program of the peer may send again at the next moment, as long as there is room. Therefore the link is
//! sealed then: our device confirms no write that comes over it any more, but breaks the link, which the peer
//! moves its connections from as from any other that failed. Another TEST LINK shows that all confirmations
//! from before have come to the peer, and the link is deleted. From a link that failed, Linux goes to none that its
//! own same port has: where there is no other, the link is not sealed. If the one that stays fails just then, the
//! peer may write before we know, and the group ends.

use super::{
    links::Wish,
    Event,
    Flow,
    LAST_EVENTS, //
};
use crate::{
    group::LinkIx,
    llc::DeleteReason,
    timer::{
        earlier,
        Millis,
        Time, //
    },
};

/// How long to wait for it.
const PATIENCE: Millis = 500;

/// How long to wait for the TEST LINK over a link that is sealed.
const SEALED: Millis = 250;

/// How long nothing came before a TEST LINK that shows the link at rest.
const QUIET: Millis = 20;

/// Between one TEST LINK and the next.
const PAUSE: Millis = 5;

/// How long connections stay held when the last of the links is gone. A client of Linux moves its
/// connections just after its answer to DELETE LINK.
const AFTERWARDS: Millis = 200;

/// How long they are held at most, if the exchange does not come to its end.
const HELD_MAX: Millis = 3_000;

/// The links that were to be sealed when the driver looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealing(u16);

/// Links that are deleted in this way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rest {
    /// Those that come to rest.
    links: u16,
    /// Those that are at rest, or were not waited for any longer: what came over them is waited for to be
    /// confirmed.
    sealing: u16,
    /// Those about which nothing is waited for any longer.
    going: u16,
    /// Server: those that are out of use here, while the client has yet to say so.
    leaving: u16,
    /// Since when the driver holds the connections.
    held: Option<Time>,
    /// Since when the links are sealed.
    sealed: Option<Time>,
    /// Nothing is waited for any longer.
    until: Time,
    /// When to test next.
    test_at: Time,
    /// When connections go on.
    free_at: Time,
}

impl Rest {
    fn all(&self) -> u16 {
        self.links | self.sealed() | self.leaving
    }

    fn sealed(&self) -> u16 {
        self.sealing | self.going
    }

    /// The link is out of it. Connections are held no longer than until then if it was the last one.
    fn remove(&mut self, link: LinkIx, free_at: Time) {
        let before = self.all();
        self.links &= !link.bit();
        self.sealing &= !link.bit();
        self.going &= !link.bit();
        self.leaving &= !link.bit();
        if before != 0 && self.all() == 0 && free_at < self.free_at {
            self.free_at = free_at;
        }
    }
}

impl Flow {
    /// These links are going to be deleted.
    pub(super) fn begin_rest(&mut self, links: u16, now: Time) {
        let before = self.rest;
        let known = before.map_or(0, |rest| rest.all());
        let active = self.active().fold(0, |set, link| set | link.bit());
        let new = links & active & !known;
        if new == 0 {
            return;
        }
        self.rest = Some(Rest {
            links: new | before.map_or(0, |rest| rest.links),
            sealing: before.map_or(0, |rest| rest.sealing),
            going: before.map_or(0, |rest| rest.going),
            leaving: before.map_or(0, |rest| rest.leaving),
            held: None,
            sealed: before.and_then(|rest| rest.sealed),
            until: now.after(PATIENCE),
            test_at: now,
            free_at: now.after(HELD_MAX),
        });
        self.event(Event::Hold);
    }

    /// Whether the link is on its way out, at rest or not yet.
    pub fn is_resting(&self, link: LinkIx) -> bool {
        self.rest.is_some_and(|rest| rest.all() & link.bit() != 0)
    }

    /// Whether the device is to take no write over the link any more.
    pub fn is_sealed(&self, link: LinkIx) -> bool {
        let sealed = self.rest.map_or(0, |rest| rest.sealed());
        sealed & link.bit() != 0 && self.is_other_peer_port(link)
    }

    /// Whether a link that stays ends at another port of the peer than this one.
    fn is_other_peer_port(&self, link: LinkIx) -> bool {
        let peer = self.peer_end(link);
        peer.is_some_and(|peer| {
            self.active()
                .filter(|other| !self.is_resting(*other))
                .filter_map(|other| self.peer_end(other))
                .any(|other| !other.same_port(peer.mac, peer.gid))
        })
    }

    /// What the answer to [`Event::Seal`] is about.
    pub fn sealing(&self) -> Sealing {
        Sealing(self.rest.map_or(0, |rest| rest.sealing))
    }

    /// The answer to [`Event::Hold`].
    pub fn connections_held(&mut self, now: Time) {
        self.clock = now;
        if let Some(rest) = &mut self.rest {
            rest.held = Some(now);
        }
        self.test_rest(now);
    }

    /// The answer to [`Event::Seal`]; `which` is what [`Flow::sealing`] gave before.
    pub fn links_sealed(&mut self, which: Sealing, now: Time) {
        self.clock = now;
        match &mut self.rest {
            // Otherwise there is another event, for those that are not among these.
            Some(rest) if rest.sealing & !which.0 == 0 => {
                rest.sealed = Some(now);
                // Others that come to rest may take longer.
                if rest.links == 0 {
                    rest.until = now.after(SEALED);
                }
            }
            _ => return,
        }
        self.test_rest(now);
    }

    fn test_rest(&mut self, now: Time) {
        let Some(rest) = &mut self.rest else {
            return;
        };
        rest.test_at = now.after(PAUSE);
        for link in LinkIx::of(rest.links | rest.sealing) {
            self.probe(link, now);
        }
    }

    /// The answer to a TEST LINK came, which was sent at that time.
    pub(super) fn rest_tested(&mut self, at: LinkIx, since: Time, now: Time) {
        let last_data = self.link(at).map_or(now, |link| link.last_data);
        let Some(rest) = &mut self.rest else {
            return;
        };
        let was_after = |event: Option<Time>| event.is_some_and(|event| event <= since);
        if rest.links & at.bit() != 0 && was_after(rest.held) && last_data.after(QUIET) <= since {
            self.seal(at.bit(), now);
        } else if rest.sealing & at.bit() != 0 && was_after(rest.sealed) {
            self.delete_rested(at.bit(), now);
        } else {
            rest.test_at = now.after(PAUSE);
        }
    }

    pub(super) fn check_rest(&mut self, now: Time) {
        self.review_rest(now);
        let Some(rest) = self.rest else {
            return;
        };
        if rest.until <= now && rest.links != 0 {
            self.seal(rest.links, now);
        } else if rest.until <= now && rest.sealing != 0 {
            self.delete_rested(rest.sealing, now);
        } else if self.is_rest_test_due() && rest.test_at <= now {
            self.test_rest(now);
        }
        // It may have changed.
        let is_over = self.rest.is_some_and(|rest| rest.free_at <= now);
        // With less room it would be dropped.
        if is_over && self.events.room() > LAST_EVENTS {
            self.rest = None;
            self.event(Event::Resume);
        }
    }

    pub(super) fn rest_deadline(&self) -> Option<Time> {
        let rest = self.rest?;
        let waits = rest.links | rest.sealing != 0;
        let first = earlier(Some(rest.free_at), waits.then_some(rest.until));
        earlier(first, self.is_rest_test_due().then_some(rest.test_at))
    }

    /// Whether a TEST LINK is to be sent that has not been yet.
    fn is_rest_test_due(&self) -> bool {
        let Some(rest) = self.rest else {
            return false;
        };
        let held = if rest.held.is_some() { rest.links } else { 0 };
        let sealed = if rest.sealed.is_some() {
            rest.sealing
        } else {
            0
        };
        LinkIx::of(held | sealed)
            .any(|link| self.link(link).is_some_and(|link| link.probe.is_none()))
    }

    /// The link carries nothing any more, because it has failed or the peer has deleted it.
    pub(super) fn end_rest(&mut self, link: LinkIx) {
        let free_at = self.clock.after(AFTERWARDS);
        if let Some(rest) = &mut self.rest {
            rest.remove(link, free_at);
        }
    }

    /// Server: the link carries nothing any more, and the client has yet to hear of it.
    pub(super) fn leave_rest(&mut self, link: LinkIx) {
        if let Some(rest) = &mut self.rest {
            let left = link.bit() & (rest.links | rest.sealed());
            rest.links &= !left;
            rest.sealing &= !left;
            rest.going &= !left;
            rest.leaving |= left;
        }
    }

    /// Links that nothing can take the place of stay after all.
    pub(super) fn review_rest(&mut self, now: Time) {
        for link in LinkIx::all() {
            let stays = self.is_active(link) && self.other_carrier(link).is_none();
            if stays && self.is_resting(link) {
                self.keep(link, now);
            }
        }
    }

    fn keep(&mut self, link: LinkIx, now: Time) {
        if let Some(rest) = &mut self.rest {
            rest.remove(link, now);
            if rest.all() != 0 {
                // Those that still go stay held.
                rest.held = None;
                self.event(Event::Hold);
            }
        }
    }

    /// Nothing comes over these links any more, or that is not waited for any longer.
    fn seal(&mut self, links: u16, now: Time) {
        if let Some(rest) = &mut self.rest {
            rest.links &= !links;
            rest.sealing |= links;
            rest.sealed = None;
            // As soon as the driver answers, less.
            rest.until = rest.until.max(now.after(PATIENCE));
        }
        self.event(Event::Seal);
    }

    fn delete_rested(&mut self, links: u16, now: Time) {
        if let Some(rest) = &mut self.rest {
            rest.sealing &= !links;
            rest.going |= links;
        }
        for link in LinkIx::of(links) {
            let Some(number) = self.link_number(link).filter(|_| self.is_active(link)) else {
                continue;
            };
            let wish = Wish {
                number,
                orderly: true,
                reason: DeleteReason::OPERATOR,
                asked: false,
            };
            if self.is_server() {
                self.wishes.push(wish);
            } else {
                self.ask(wish, false, now);
            }
        }
        self.review_rest(now);
        self.go_on(now);
    }
}
