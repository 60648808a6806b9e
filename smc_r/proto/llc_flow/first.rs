// SPDX-License-Identifier: GPL-2.0

//! The first contact: CONFIRM LINK and ADD LINK (RFC 7609 section 3.5.1.6, appendices C.2 to C.8).

use super::{
    links::{
        Link,
        Stage,
        Wish, //
    },
    Event,
    Flow,
    LinkFailure,
    Note,
    Phase,
    Version, //
};
use crate::{
    group::{
        LinkEnd,
        LinkIx,
        PeerTable,
        Role,
        MAX_LINKS, //
    },
    handshake::{
        LinkRefusal,
        LinkResult, //
    },
    llc::{
        v2::RTokenPairWire,
        AddLink,
        AddLinkLayout,
        ConfirmLink,
        DeleteReason,
        Llc,
        Reject, //
    },
    timer::Time,
    wire::{
        Diagnosis,
        LinkNum, //
    },
};

/// The link that a server offers with ADD LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offered {
    end: LinkEnd,
    pub(super) number: Option<LinkNum>,
    /// The driver keeps a queue pair for it.
    reserved: bool,
}

/// A client's reasons to take an offered link or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLinkView {
    /// The offered link ends at the server's port of an existing link.
    pub same_server_port: bool,
    /// We have a usable port that no link of the group uses.
    pub spare_client_port: bool,
    /// The group has an asymmetric link.
    pub has_asymmetric: bool,
    /// The group takes another link.
    pub room: bool,
    /// The offered MTU is not reserved.
    pub mtu_valid: bool,
}

/// A client's answer to an offered link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddLinkAnswer {
    /// Both ends of the new link are new.
    Symmetric,
    /// The new link shares a port with an existing one.
    Asymmetric,
    /// No alternate path: reason 1.
    NoAlternatePath,
    /// Reserved MTU code: reason 2.
    InvalidMtu,
}

impl AddLinkView {
    /// What RFC 7609 section 3.5.1.6.1 says.
    pub const fn answer(self) -> AddLinkAnswer {
        if !self.mtu_valid {
            return AddLinkAnswer::InvalidMtu;
        }
        if !self.room {
            return AddLinkAnswer::NoAlternatePath;
        }
        match (self.same_server_port, self.spare_client_port) {
            (false, true) => AddLinkAnswer::Symmetric,
            // It would be a parallel link.
            (true, false) => AddLinkAnswer::NoAlternatePath,
            _ if self.has_asymmetric => AddLinkAnswer::NoAlternatePath,
            _ => AddLinkAnswer::Asymmetric,
        }
    }
}

impl Flow {
    /// Starts the first contact. Client: before its Confirm is sent. Server: when its queue pair is
    /// in RTS. `spare` is a queue pair that the server offers in ADD LINK; it has to exist until
    /// [`Event::SpareFree`] or the end of the group, but nothing is ever connected to it. Without
    /// one, the offer names the queue pair of the link itself.
    ///
    /// The peer's buffer that CLC has named is in the [`PeerTable`](crate::group::PeerTable) by then
    /// ([`PeerTable::add`](crate::group::PeerTable::add)): a second link may be added before its
    /// connection is established, and brings the key of the buffer there.
    pub fn start(&mut self, local: LinkEnd, peer: LinkEnd, spare: Option<LinkEnd>, now: Time) {
        if self.phase != Phase::New {
            return;
        }
        self.clock = now;
        let mut link = Link::new(Stage::Active, None, Some(peer), now);
        link.local = Some(local);
        let until = match self.params.role {
            Role::Client => now.after(self.params.timing.confirm_link_request),
            Role::Server => {
                link.number = self.numbers.next(|_| false);
                self.offered = Some(Offered {
                    end: spare.unwrap_or(local),
                    number: None,
                    reserved: spare.is_some(),
                });
                now.after(self.params.timing.confirm_link_reply)
            }
        };
        self.phase = Phase::Confirming {
            until,
            delivered: false,
        };
        let request = self.confirm_link(&link, false);
        if let Some(place) = self.links.get_mut(LinkIx::FIRST.get()) {
            *place = Some(link);
        }
        if let (Role::Server, Some(request)) = (self.params.role, request) {
            self.send(LinkIx::FIRST, &request, Some(Note::ConfirmLink));
        }
    }

    /// Gives the group up without a word to the peer, who learns it on another way: a Decline or a
    /// reset of the first contact's TCP connection. Nothing is polled any more; the driver destroys
    /// the links.
    ///
    /// False, and nothing has happened, if the first contact is over: the group belongs to all its
    /// connections then, and what becomes of the first one does not concern the others. Unless that is
    /// agreed: the peer has said that the group is of no use.
    pub fn abandon(&mut self, agreed: bool) -> bool {
        if !agreed && matches!(self.phase, Phase::Active | Phase::Ending { .. }) {
            return false;
        }
        self.give_up();
        true
    }

    /// Nobody wants the connection of the first contact any more. Gives the group up as above, but for a client that has
    /// answered CONFIRM LINK: the server may take the connection for established, whatever becomes of what was to
    /// follow, and has to be told of its end over the link. So the first contact is over, and false comes back.
    pub fn settle(&mut self) -> bool {
        let confirmed = matches!(self.phase, Phase::Adding { .. } | Phase::Joining);
        if confirmed && self.params.role == Role::Client {
            self.complete(self.clock);
            return false;
        }
        self.abandon(false)
    }

    fn give_up(&mut self) {
        self.phase = Phase::Down;
        self.clear();
        self.links = [None; MAX_LINKS];
    }

    /// Our side of CONFIRM LINK.
    pub(super) fn confirm_link(&self, link: &Link, reply: bool) -> Option<Llc> {
        let local = link.local?;
        let number = link.number?;
        // The names of further links differ in the last byte.
        let [a, b, c, d] = self.params.user_id.to_be_bytes();
        let further = number.get().saturating_sub(1);
        let user_id = [a, b, c, d.wrapping_add(further)];
        Some(Llc::ConfirmLink(ConfirmLink {
            reply,
            no_eye_catcher: true,
            mac: local.mac,
            gid: local.gid,
            qp: local.qp,
            link: number,
            user_id,
            max_links: self.max_links,
            max_connections: match self.params.version {
                Version::One => 0,
                Version::Two { .. } => u8::try_from(self.params.max_connections).unwrap_or(u8::MAX),
            },
        }))
    }

    pub(super) fn handle_confirm_link(&mut self, at: LinkIx, message: &ConfirmLink, now: Time) {
        match (message.reply, self.params.role, self.phase) {
            (false, Role::Client, Phase::Confirming { .. }) => {
                self.handle_confirm_link_request(at, message, now);
            }
            (true, Role::Server, Phase::Confirming { .. }) => {
                self.handle_confirm_link_reply(at, message, now);
            }
            (_, _, Phase::Active | Phase::Joining) => {
                self.handle_confirm_further(at, message, now);
            }
            _ => self.drop_message(),
        }
    }

    /// What must be true of the peer's side of CONFIRM LINK.
    pub(super) fn check_confirm_link(
        &self,
        at: LinkIx,
        message: &ConfirmLink,
    ) -> Result<(), Diagnosis> {
        if !message.no_eye_catcher {
            return Err(Diagnosis::EYE_CATCHER);
        }
        let same = self.link(at).is_some_and(|link| {
            link.peer
                .is_some_and(|end| end.same_port(message.mac, message.gid) && end.qp == message.qp)
        });
        if same {
            Ok(())
        } else {
            Err(Diagnosis::INTERNAL)
        }
    }

    /// Client: the server's CONFIRM LINK request.
    fn handle_confirm_link_request(&mut self, at: LinkIx, message: &ConfirmLink, now: Time) {
        if let Err(diagnosis) = self.check_confirm_link(at, message) {
            return self.refuse_link(diagnosis, true, false);
        }
        let least = match self.params.version {
            Version::One => 2,
            Version::Two { .. } => 1,
        };
        self.max_links = self.params.max_links.min(message.max_links.max(least));
        let Some(link) = self.link_mut(at) else {
            return;
        };
        link.number = Some(message.link);
        link.peer_user_id = Some(message.user_id);
        let link = *link;
        if let Some(reply) = self.confirm_link(&link, true) {
            self.send(at, &reply, Some(Note::ConfirmLinkReply));
        }
        if self.max_links < 2 {
            return self.complete(now);
        }
        self.phase = Phase::Adding {
            until: now.after(self.params.timing.add_link_request),
            delivered: false,
        };
    }

    /// Server: the client's CONFIRM LINK reply.
    fn handle_confirm_link_reply(&mut self, at: LinkIx, message: &ConfirmLink, now: Time) {
        if let Err(diagnosis) = self.check_confirm_link(at, message) {
            return self.refuse_link(diagnosis, true, false);
        }
        if self.link_number(at) != Some(message.link) {
            return self.violation(at, now);
        }
        if let Some(link) = self.link_mut(at) {
            link.peer_user_id = Some(message.user_id);
        }
        if message.max_links != 0 {
            self.max_links = self.max_links.min(message.max_links);
        }
        if self.max_links < 2 {
            return self.complete(now);
        }
        if !self.several {
            return self.offer_link(at, now);
        }
        self.phase = Phase::Joining;
        self.begin_add(now);
    }

    /// Server: sends ADD LINK, which the client waits for even if there is nothing to offer.
    pub(super) fn offer_link(&mut self, at: LinkIx, now: Time) {
        let taken = self.link_number(at);
        let number = self.numbers.next(|number| Some(number) == taken);
        let Some(offered) = self.offered.as_mut() else {
            return self.complete(now);
        };
        offered.number = number;
        let end = offered.end;
        let request = Llc::AddLink(AddLink {
            reply: false,
            reject: None,
            mac: end.mac,
            gid: end.gid,
            qp: end.qp,
            link: number,
            mtu: Some(end.mtu),
            psn: end.psn,
            layout: AddLinkLayout::Deployed,
        });
        self.send(at, &request, None);
        self.phase = Phase::Adding {
            until: now.after(self.params.timing.reply),
            delivered: true,
        };
    }

    pub(super) fn handle_add_link(
        &mut self,
        at: LinkIx,
        message: &AddLink,
        pairs: &[RTokenPairWire],
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        match (message.reply, self.params.role, self.phase) {
            (false, Role::Client, Phase::Adding { .. } | Phase::Joining | Phase::Active) => {
                if message.link.is_some_and(|link| self.is_in_use(link)) {
                    return self.violation(at, now);
                }
                let first = matches!(self.phase, Phase::Adding { .. });
                if first {
                    self.phase = Phase::Joining;
                }
                if !self.take_offer(at, message, pairs, peers, now) {
                    // In an active group, the server tries again later.
                    self.reject_add_link(at, message);
                    self.go_on(now);
                }
            }
            (true, Role::Server, Phase::Adding { .. }) => {
                self.handle_add_link_reply(at, message, now);
            }
            (true, Role::Server, Phase::Active | Phase::Joining) => {
                self.offer_answered(at, message, pairs, peers, now);
            }
            // A client's hint.
            (false, Role::Server, Phase::Active) if self.take_hint(now) => {}
            _ => self.drop_message(),
        }
    }

    /// True if a link has this number, other than the one that is just being added.
    fn is_in_use(&self, number: LinkNum) -> bool {
        self.by_number(number)
            .and_then(|link| self.link(link))
            .is_some_and(|link| link.stage == Stage::Active)
    }

    /// Client: rejects an offer.
    fn reject_add_link(&mut self, at: LinkIx, message: &AddLink) {
        let reason = if message.mtu.is_none() {
            Reject::Mtu
        } else {
            Reject::NoPath
        };
        self.counters.refused = self.counters.refused.saturating_add(1);
        self.send(at, &Llc::AddLink(message.rejection(reason)), None);
    }

    /// Server: the client's answer to the offer.
    fn handle_add_link_reply(&mut self, at: LinkIx, message: &AddLink, now: Time) {
        let number = self.offered.and_then(|offered| offered.number);
        if message.reject.is_some() {
            return self.complete(now);
        }
        match number {
            Some(number) if message.link == Some(number) => {
                // The client has connected a queue pair to nothing, and waits for us to go on.
                self.accepted = Some(number);
                let wish = Wish {
                    number,
                    orderly: true,
                    reason: DeleteReason::PROGRAM,
                    asked: false,
                };
                self.send_delete(wish, None, at, now);
                self.complete(now);
            }
            _ => self.violation(at, now),
        }
    }

    /// The first contact has succeeded.
    pub(super) fn complete(&mut self, now: Time) {
        self.phase = Phase::Active;
        if let Some(Offered { reserved: true, .. }) = self.offered.take() {
            self.event(Event::SpareFree);
        }
        self.event(Event::FirstContact(LinkResult::Up));
        self.go_on(now);
    }

    pub(super) fn confirm_link_timed_out(&mut self, delivered: bool) {
        // A server whose request got through must not decline: the client may have answered.
        self.refuse_link(Diagnosis::TIMEOUT_CONFIRM_LINK, !delivered, false);
    }

    pub(super) fn add_link_timed_out(&mut self, delivered: bool, now: Time) {
        if delivered {
            // Data can flow all the same, over the one link that there is.
            self.complete(now);
        } else {
            self.refuse_link(Diagnosis::TIMEOUT_CONFIRM_LINK, true, false);
        }
    }

    /// The link failed before the first contact was complete.
    pub(super) fn first_contact_failed(&mut self, failure: LinkFailure, peer_knows: bool) {
        let may_decline = match (self.phase, self.params.role) {
            // An answer, even a bad one, shows that the client still listens for a Decline.
            (Phase::Confirming { delivered, .. }, Role::Server) => {
                !delivered || failure == LinkFailure::Violation
            }
            (Phase::Confirming { .. }, Role::Client) => true,
            (Phase::Adding { delivered, .. }, Role::Client) => !delivered,
            _ => false,
        };
        // Once CONFIRM LINK has come through, RDMA gets to the peer, and it is not remembered as one without.
        let confirmed = matches!(
            self.phase,
            Phase::Adding {
                delivered: true,
                ..
            } | Phase::Joining
        );
        let diagnosis = match failure {
            LinkFailure::Violation => Diagnosis::INTERNAL,
            _ if confirmed => Diagnosis::NO_ACTIVE_LINK,
            _ => Diagnosis::TIMEOUT_CONFIRM_LINK,
        };
        self.refuse_link(diagnosis, may_decline, peer_knows);
    }

    fn refuse_link(&mut self, diagnosis: Diagnosis, may_decline: bool, peer_knows: bool) {
        self.give_up();
        self.event(Event::FirstContact(LinkResult::Failed(LinkRefusal {
            diagnosis,
            may_decline,
            peer_knows,
        })));
    }
}
