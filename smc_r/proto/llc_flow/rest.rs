// SPDX-License-Identifier: GPL-2.0

//! Coming to rest: what the peer has under way over a link that works and is to be deleted.
//!
//! Whoever moves a connection to another link sends again what is not confirmed (RFC 7609 section
//! 4.6.1). Linux does so while its queue pair still works: confirmations that come in afterwards free
//! parts of its send buffer which it has yet to send again, and the program overwrites them. Therefore
//! the connections that the peer sends for over the link are held: they write nothing and make no room,
//! so that the peer soon has nothing to write either. The link is at rest when nothing comes any more, and
//! a TEST LINK goes there and back: what came before is confirmed then. That may not happen, and is not
//! waited for long.

use super::{
    links::Wish,
    Event,
    Flow, //
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

/// How long nothing came before a TEST LINK that shows the link at rest.
const QUIET: Millis = 20;

/// Between one TEST LINK and the next.
const PAUSE: Millis = 5;

/// How long connections stay held when the peer has heard that the link is deleted: it moves them then.
const AFTERWARDS: Millis = 200;

/// How long they are held at most.
const HELD_MAX: Millis = 3_000;

/// Links that come to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rest {
    /// They are deleted as soon as they are at rest, and at this time anyway.
    links: u16,
    until: Time,
    /// The driver has done its part.
    held: bool,
    /// When to test next.
    test_at: Time,
    /// When connections go on.
    free_at: Time,
}

impl Rest {
    fn has(&self, link: LinkIx) -> bool {
        self.links & link.bit() != 0
    }
}

impl Flow {
    /// Links that are going to be deleted.
    pub(super) fn begin_rest(&mut self, links: u16, now: Time) {
        let links = links | self.rest.map_or(0, |rest| rest.links);
        if links == 0 {
            return;
        }
        self.rest = Some(Rest {
            links,
            until: now.after(PATIENCE),
            held: false,
            test_at: now,
            free_at: now.after(HELD_MAX),
        });
        self.event(Event::Hold);
    }

    /// Whether the link is waited for to come to rest.
    pub fn is_coming_to_rest(&self, link: LinkIx) -> bool {
        self.rest.is_some_and(|rest| rest.has(link))
    }

    /// The answer to [`Event::Hold`].
    pub fn connections_held(&mut self, now: Time) {
        self.clock = now;
        if let Some(rest) = &mut self.rest {
            rest.held = true;
        }
        self.test_rest(now);
    }

    fn test_rest(&mut self, now: Time) {
        let Some(rest) = &mut self.rest else {
            return;
        };
        rest.test_at = now.after(PAUSE);
        let rest = *rest;
        for link in LinkIx::all().filter(|link| rest.has(*link)) {
            self.probe(link, now);
        }
    }

    /// The answer to a TEST LINK came, which was sent at that time.
    pub(super) fn rest_tested(&mut self, at: LinkIx, since: Time, now: Time) {
        let last_data = self.link(at).map_or(now, |link| link.last_data);
        match &mut self.rest {
            Some(rest) if rest.has(at) && rest.held => {
                if last_data.after(QUIET) <= since {
                    self.delete_rested(at.bit(), now);
                } else {
                    rest.test_at = now.after(PAUSE);
                }
            }
            _ => {}
        }
    }

    pub(super) fn check_rest(&mut self, now: Time) {
        let Some(rest) = self.rest else {
            return;
        };
        if rest.until <= now {
            self.delete_rested(rest.links, now);
        } else if rest.held && rest.test_at <= now {
            self.test_rest(now);
        }
        if rest.free_at <= now {
            self.rest = None;
            self.event(Event::Resume);
        }
    }

    pub(super) fn rest_deadline(&self) -> Option<Time> {
        let rest = self.rest?;
        let waits = rest.links != 0;
        let probed = |link: LinkIx| self.link(link).is_some_and(|link| link.probe.is_some());
        let tests = LinkIx::all().any(|link| rest.has(link) && !probed(link));
        let first = earlier(Some(rest.free_at), waits.then_some(rest.until));
        earlier(first, (rest.held && tests).then_some(rest.test_at))
    }

    /// The link carries nothing any more.
    pub(super) fn end_rest(&mut self, link: LinkIx) {
        let free_at = self.clock.after(AFTERWARDS);
        if let Some(rest) = &mut self.rest {
            rest.links &= !link.bit();
            if rest.links == 0 && free_at < rest.free_at {
                rest.free_at = free_at;
            }
        }
    }

    fn delete_rested(&mut self, links: u16, now: Time) {
        if let Some(rest) = &mut self.rest {
            rest.links &= !links;
        }
        for link in LinkIx::all().filter(|link| links & link.bit() != 0) {
            let Some(number) = self.link_number(link).filter(|_| self.is_active(link)) else {
                continue;
            };
            let wish = Wish {
                number,
                orderly: true,
                reason: DeleteReason::OPERATOR,
            };
            if self.is_server() {
                self.wishes.push(wish);
            } else {
                self.ask(wish, false, now);
            }
        }
        self.go_on(now);
    }
}
