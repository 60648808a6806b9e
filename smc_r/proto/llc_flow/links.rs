// SPDX-License-Identifier: GPL-2.0

//! Links in use: TEST LINK, DELETE LINK, failures, and the end of the group (RFC 7609 sections
//! 3.5.4, 3.5.5.1 and 4.5.3, appendix C.7.1).

use super::{
    DownReason,
    Event,
    Exchange,
    Flow,
    LinkFailure,
    Note,
    Phase,
    ShutDown, //
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
        Time, //
    },
    wire::LinkNum, //
};

/// One link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    /// None until the server's CONFIRM LINK request arrived.
    pub(super) number: Option<LinkNum>,
    pub(super) local: LinkEnd,
    pub(super) peer: LinkEnd,
    /// None until the peer's CONFIRM LINK arrived.
    pub(super) peer_user_id: Option<[u8; 4]>,
    /// When something was received last.
    pub(super) last_received: Time,
    /// The TEST LINK request that awaits its reply.
    pub(super) probe: Option<Probe>,
}

/// A TEST LINK request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) data: [u8; 16],
    until: Time,
}

/// Server: a DELETE LINK exchange under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deleting {
    number: LinkNum,
    /// The link, or nothing if the client accepted an offer of ours that we do not want any more.
    link: Option<LinkIx>,
    reason: DeleteReason,
    until: Time,
}

/// Server: a client's request to delete a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    number: LinkNum,
    orderly: bool,
    reason: DeleteReason,
}

impl Link {
    pub(super) const fn new(local: LinkEnd, peer: LinkEnd, now: Time) -> Self {
        Self {
            number: None,
            local,
            peer,
            peer_user_id: None,
            last_received: now,
            probe: None,
        }
    }
}

impl Flow {
    // TEST LINK

    pub(super) fn check_links(&mut self, now: Time) {
        for link in LinkIx::all() {
            self.check_link(link, now);
        }
    }

    fn check_link(&mut self, at: LinkIx, now: Time) {
        let timing = self.params.timing;
        let Some(link) = self.link(at).copied() else {
            return;
        };
        match link.probe {
            Some(probe) if probe.until <= now => {
                self.fail_link(at, LinkFailure::Timeout(Exchange::TestLink), now);
            }
            None if timing.test_link != 0 && link.last_received.after(timing.test_link) <= now => {
                self.probes = self.probes.wrapping_add(1);
                let data =
                    ((u128::from(self.params.seed) << 64) | u128::from(self.probes)).to_be_bytes();
                let until = now.after(timing.test_link_reply);
                if let Some(link) = self.link_mut(at) {
                    link.probe = Some(Probe { data, until });
                }
                self.counters.probes = self.counters.probes.saturating_add(1);
                self.send(at, &Llc::TestLink(TestLink { reply: false, data }), None);
            }
            _ => {}
        }
    }

    pub(super) fn links_deadline(&self) -> Option<Time> {
        let span = self.params.timing.test_link;
        self.links.iter().flatten().fold(None, |first, link| {
            let deadline = match link.probe {
                Some(probe) => Some(probe.until),
                None if span != 0 => Some(link.last_received.after(span)),
                None => None,
            };
            earlier(first, deadline)
        })
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
            }
            Some(_) => self.violation(at, now),
            None => self.drop_message(),
        }
    }

    // DELETE LINK

    pub(super) fn handle_delete_link(&mut self, at: LinkIx, message: &DeleteLink, now: Time) {
        match (message.reply, message.all, message.link) {
            (true, false, Some(number)) => self.handle_deleted(number, now),
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
                self.end(
                    DownReason::PeerDeleted(reason),
                    Some(reason),
                    message.orderly,
                    now,
                );
            }
            (Phase::Active, Role::Client) => {
                self.end(DownReason::PeerDeleted(message.reason), None, false, now);
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
        let known = number.is_some_and(|number| self.by_number(number).is_some());
        let reason = if known {
            DeleteReason::DONE
        } else {
            DeleteReason::NO_SUCH_LINK
        };
        let reply = Llc::DeleteLink(DeleteLink {
            reply: true,
            reason,
            ..*message
        });
        match (known, self.phase) {
            (false, _) => self.send(at, &reply, None),
            (true, Phase::Active) => {
                // It is the last one.
                self.sends.clear();
                self.own.clear();
                self.send(at, &reply, Some(Note::Last));
                self.event(Event::Down(DownReason::PeerDeleted(message.reason)));
                self.phase = Phase::Ending {
                    until: now.after(self.params.timing.last_send),
                };
            }
            (true, _) => self.first_contact_failed(LinkFailure::Violation, true),
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
        let being_deleted = self
            .deleting
            .is_some_and(|deleting| Some(deleting.number) == number);
        match number {
            // Just being cleaned up (RFC 7609 appendix C.7.1).
            Some(_) if being_deleted => self.drop_message(),
            Some(number) if self.by_number(number).is_some() => {
                self.waiting_delete = Some(Wish {
                    number,
                    orderly: message.orderly,
                    reason: message.reason,
                });
                self.start_delete(now);
            }
            _ => {
                let reply = DeleteLink {
                    reply: true,
                    reason: DeleteReason::NO_SUCH_LINK,
                    ..*message
                };
                self.send(at, &Llc::DeleteLink(reply), None);
            }
        }
    }

    /// Server: does what the client wished, if nothing else is going on.
    pub(super) fn start_delete(&mut self, now: Time) {
        if self.phase != Phase::Active || self.deleting.is_some() || self.own_under_way() {
            return;
        }
        if let Some(wish) = self.waiting_delete.take() {
            let link = self.by_number(wish.number);
            self.delete_link(wish.number, link, wish.orderly, wish.reason, now);
        }
    }

    /// Server: deletes a link, or an offered one that is not wanted.
    pub(super) fn delete_link(
        &mut self,
        number: LinkNum,
        link: Option<LinkIx>,
        orderly: bool,
        reason: DeleteReason,
        now: Time,
    ) {
        self.deleting = Some(Deleting {
            number,
            link,
            reason,
            until: now.after(self.params.timing.reply),
        });
        let request = Llc::DeleteLink(DeleteLink {
            reply: false,
            all: false,
            orderly,
            link: Some(number),
            reason,
        });
        self.send(LinkIx::FIRST, &request, None);
    }

    /// Server: the client has deleted its side of a link.
    fn handle_deleted(&mut self, number: LinkNum, now: Time) {
        match self.deleting {
            Some(deleting) if deleting.number == number => self.finish_delete(deleting, now),
            _ => self.drop_message(),
        }
    }

    /// Server: a deleted link is history, whether the client said so or did not.
    fn finish_delete(&mut self, deleting: Deleting, now: Time) {
        self.deleting = None;
        if deleting.link.is_some() {
            // It was the last one.
            self.end(DownReason::PeerDeleted(deleting.reason), None, false, now);
        } else {
            self.start_delete(now);
            self.start_own(now);
        }
    }

    pub(super) fn deleting_deadline(&self) -> Option<Time> {
        self.deleting.map(|deleting| deleting.until)
    }

    pub(super) fn check_deleting(&mut self, now: Time) {
        match self.deleting {
            Some(deleting) if deleting.until <= now => self.finish_delete(deleting, now),
            _ => {}
        }
    }

    fn by_number(&self, number: LinkNum) -> Option<LinkIx> {
        LinkIx::all().find(|link| self.link_number(*link) == Some(number))
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
        if self.link(link).is_none() {
            return;
        }
        match self.phase {
            Phase::Active => {
                // The link may still carry a message unless the transport itself failed.
                let last_words = match failure {
                    LinkFailure::Transport => None,
                    LinkFailure::Timeout(_) => Some(DeleteReason::PATH_LOST),
                    LinkFailure::Violation => Some(DeleteReason::PROTOCOL),
                };
                self.end(DownReason::LinkFailed(failure), last_words, false, now);
            }
            Phase::Ending { .. } if failure == LinkFailure::Transport => self.release(),
            Phase::Confirming { .. } | Phase::Adding { .. } => {
                self.first_contact_failed(failure, false);
            }
            _ => {}
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
                self.end(DownReason::Local, Some(reason), orderly, now);
            }
            Phase::Confirming { .. } | Phase::Adding { .. } => {
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
            self.end(DownReason::Idle, Some(DeleteReason::PROGRAM), true, now);
        }
    }

    /// Ends an active group, with a DELETE LINK for all links if there is a reason to put into it.
    fn end(
        &mut self,
        down: DownReason,
        last_words: Option<DeleteReason>,
        orderly: bool,
        now: Time,
    ) {
        self.clear();
        self.event(Event::Down(down));
        let Some(reason) = last_words else {
            return self.release();
        };
        let request = Llc::DeleteLink(DeleteLink {
            reply: false,
            all: true,
            orderly,
            link: None,
            reason,
        });
        self.send(LinkIx::FIRST, &request, Some(Note::Last));
        self.phase = Phase::Ending {
            until: now.after(self.params.timing.last_send),
        };
    }

    /// Forgets all that was going on.
    pub(super) fn clear(&mut self) {
        self.sends.clear();
        self.own.clear();
        self.deleting = None;
        self.waiting_delete = None;
        self.idle_since = None;
    }

    pub(super) fn release(&mut self) {
        self.phase = Phase::Down;
        self.sends.clear();
        self.links = [None; MAX_LINKS];
        self.event(Event::Release);
    }
}
