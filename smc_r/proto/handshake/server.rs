// SPDX-License-Identifier: GPL-2.0

//! The server's end of the rendezvous (RFC 7609 sections 3.5.1.2 to 3.5.1.5 and 3.5.2).

use super::{
    far_end,
    io::{
        Incoming,
        Io, //
    },
    near_end,
    v2::check_confirm,
    Action,
    Contact,
    Failure,
    Late,
    LinkRefusal,
    LinkResult,
    Peer,
    Rendezvous,
    Waiting, //
};
use crate::{
    clc::{
        AcceptConfirm,
        AcceptV2,
        Kind,
        Message,
        Proposal, //
    },
    timer::{
        HandshakeTiming,
        Time, //
    },
    wire::{
        Diagnosis,
        MtuCode,
        PeerId, //
    },
};

/// The server's end of the rendezvous of one connection.
///
/// ```text
/// Proposal ──► [Contact] ──► Accept ──► Confirm ──► Established          (subsequent contact)
///                                          └──► [ConnectLink] ──► [StartLink] ──► Established
/// ```
///
/// A value of about two and a half kilobytes; it belongs on the heap.
pub struct Server {
    state: State,
    own: PeerId,
    timing: HandshakeTiming,
    io: Io,
}

#[allow(clippy::large_enum_variant, reason = "one per handshake, on the heap")]
enum State {
    /// S1: the Proposal has to come.
    AwaitProposal,
    /// The driver looks for a link group.
    Choosing(Proposal),
    /// S2: the Confirm has to come.
    AwaitConfirm {
        peer: PeerId,
        first_contact: bool,
        /// That of our port.
        mtu: MtuCode,
        /// What we said about version 2.
        v2: Option<AcceptV2>,
    },
    /// First contact: the driver connects the queue pair.
    Connecting(Peer),
    /// S3 to S5: the link group runs its LLC exchange.
    AwaitLink(Peer),
    /// There is no link; the peer may say so itself.
    AwaitDecline(LinkRefusal),
    /// Decided.
    Over,
}

impl Server {
    /// A rendezvous that waits for the Proposal of a client whose SYN carried the option. `own` is
    /// our peer ID.
    pub fn new(own: PeerId, timing: HandshakeTiming, now: Time) -> Self {
        let mut io = Io::new(own);
        io.arm(now, timing.clc);
        Self {
            state: State::AwaitProposal,
            own,
            timing,
            io,
        }
    }

    /// The Proposal, while [`Action::Contact`] awaits its answer.
    pub fn proposal(&self) -> Option<&Proposal> {
        match &self.state {
            State::Choosing(proposal) => Some(proposal),
            _ => None,
        }
    }

    /// Whether the client may use the connection already, and we do not know it: in a subsequent contact it does as
    /// soon as its Confirm is sent (RFC 7609 section 3.5.2.3), and no end of TCP means anything to it from then on.
    pub fn may_be_in_use(&self) -> bool {
        matches!(
            self.state,
            State::AwaitConfirm {
                first_contact: false,
                ..
            }
        )
    }

    /// Answers [`Action::Contact`].
    ///
    /// [`Contact::Wait`] keeps the question open, until another answer comes or the wait becomes
    /// too long for the client; then the connection falls back to TCP.
    pub fn handle_contact(&mut self, contact: Contact, now: Time) -> Result<(), Late> {
        let State::Choosing(proposal) = &self.state else {
            return Err(Late);
        };
        let (local, first_contact) = match contact {
            Contact::Wait => return Ok(()),
            Contact::First(local) => (local, true),
            Contact::Subsequent(local) => (local, false),
            Contact::Refuse(reason) => {
                self.decline(reason, false, false);
                return Ok(());
            }
            Contact::OutOfSync => {
                self.decline(Diagnosis::OUT_OF_SYNC, true, false);
                return Ok(());
            }
        };
        let peer = proposal.peer_id;
        let accept = near_end(self.own, first_contact, &local);
        let fits = match (&accept.v2, proposal.smcr_v1(), proposal.smcr_v2()) {
            (None, Ok(_), _) => true,
            // First contact is what the Accept has an extension for.
            (Some(v2), _, Ok(_)) => v2.first.is_some() == first_contact,
            _ => false,
        };
        if fits && self.io.send(|buffer| accept.emit_accept(buffer)) {
            self.io.arm(now, self.timing.clc);
            self.state = State::AwaitConfirm {
                peer,
                first_contact,
                mtu: local.link.mtu,
                v2: accept.v2,
            };
        } else {
            self.decline(Diagnosis::INTERNAL, false, false);
        }
        Ok(())
    }

    /// Answers [`Action::ConnectLink`]: the queue pair is in RTS.
    pub fn handle_link_connected(&mut self, now: Time) -> Result<(), Late> {
        let State::Connecting(peer) = self.state else {
            return Err(Late);
        };
        self.state = State::AwaitLink(peer);
        self.io.arm(now, self.timing.link);
        self.io.act(Action::StartLink(peer));
        Ok(())
    }

    /// Answers [`Action::ConnectLink`]: it did not work.
    pub fn handle_link_refused(&mut self, reason: Diagnosis) -> Result<(), Late> {
        let State::Connecting(_) = self.state else {
            return Err(Late);
        };
        self.decline(reason, false, true);
        Ok(())
    }

    fn handle_proposal(&mut self, proposal: Proposal, now: Time) {
        match proposal.choose(|_| Ok(()), || Ok(())) {
            Err(reason) => self.decline(reason, false, false),
            Ok(()) => {
                self.state = State::Choosing(proposal);
                self.io.arm(now, self.timing.contact);
                self.io.act(Action::Contact);
            }
        }
    }

    fn handle_confirm(&mut self, confirm: &AcceptConfirm, now: Time) {
        let State::AwaitConfirm {
            peer,
            first_contact,
            mtu,
            v2,
        } = self.state
        else {
            return;
        };
        if confirm.peer_id != peer && !peer.is_zero() {
            return self.fail(Failure::PeerChanged);
        }
        if let Err(reason) = check_confirm(v2.as_ref(), confirm.v2.as_ref()) {
            let failure = Failure::Unexpected(Kind::Confirm);
            return self.handle_refused(reason, failure);
        }
        if let (true, Err(error)) = (first_contact, confirm.first_contact_mtu()) {
            return self.handle_refused(Diagnosis::CONFIGURATION, Failure::Damaged(error));
        }
        let (mut link, element) = far_end(confirm);
        link.mtu = mtu.agreed(link.mtu);
        let peer = Peer {
            id: confirm.peer_id,
            first_contact,
            link,
            element,
            v2: confirm.v2,
        };
        if first_contact {
            self.state = State::Connecting(peer);
            self.io.arm(now, self.timing.contact);
            self.io.act(Action::ConnectLink(link));
        } else {
            self.establish(peer);
        }
    }

    fn handle_message(&mut self, message: Message, now: Time) {
        match (message, &self.state) {
            (Message::Decline(decline), _) => {
                self.state = State::Over;
                self.io.declined(&decline);
            }
            (Message::Proposal(proposal), State::AwaitProposal) => {
                self.handle_proposal(proposal, now);
            }
            (Message::Confirm(confirm), State::AwaitConfirm { .. }) => {
                self.handle_confirm(&confirm, now);
            }
            (message, _) => self.fail(Failure::Unexpected(message.kind())),
        }
    }

    /// A message came that we would decline, if it is for us to decline now.
    fn handle_refused(&mut self, reason: Diagnosis, failure: Failure) {
        match self.state {
            State::AwaitProposal => self.decline(reason, false, false),
            State::AwaitConfirm {
                first_contact: true,
                ..
            } => self.decline(reason, false, true),
            // The client of a subsequent contact uses RDMA as soon as its Confirm is sent.
            _ => self.fail(failure),
        }
    }

    fn establish(&mut self, peer: Peer) {
        self.state = State::Over;
        self.io.disarm();
        self.io.act(Action::Established(peer));
    }

    fn decline(&mut self, reason: Diagnosis, out_of_sync: bool, may_cross: bool) {
        self.state = State::Over;
        self.io.decline(reason, out_of_sync, may_cross);
    }

    fn fail(&mut self, failure: Failure) {
        self.state = State::Over;
        self.io.fail(failure);
    }
}

impl Rendezvous for Server {
    fn want(&self) -> usize {
        match self.state {
            State::Over => 0,
            _ => self.io.want(),
        }
    }

    fn handle_bytes(&mut self, bytes: &[u8], now: Time) {
        if self.is_over() {
            return;
        }
        match self.io.read(bytes) {
            Incoming::Nothing => {}
            Incoming::Message(message) => self.handle_message(message, now),
            Incoming::Refused(reason, error) => {
                self.handle_refused(reason, Failure::Damaged(error));
            }
            Incoming::Damaged(error) => self.fail(Failure::Damaged(error)),
        }
    }

    fn handle_eof(&mut self) {
        self.io.set_eof();
        match self.state {
            // The client may be through already, have used and closed the connection: its FIN says
            // nothing about the link (RFC 7609 section 4.8.1).
            State::AwaitLink(_) | State::Over => {}
            _ => self.fail(Failure::Closed),
        }
    }

    fn handle_reset(&mut self) {
        if !self.is_over() {
            self.fail(Failure::Reset);
        }
    }

    fn handle_link(&mut self, result: LinkResult, now: Time) -> Result<(), Late> {
        let State::AwaitLink(peer) = self.state else {
            return Err(Late);
        };
        match result {
            LinkResult::Up => self.establish(peer),
            LinkResult::Failed(refusal) => {
                self.state = if self.io.link_failed(refusal, &self.timing, now) {
                    State::AwaitDecline(refusal)
                } else {
                    State::Over
                };
            }
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Time) {
        if !self.io.expired(now) {
            return;
        }
        match self.state {
            State::AwaitProposal => self.fail(Failure::TimedOut(Waiting::Proposal)),
            State::AwaitConfirm { .. } => self.fail(Failure::TimedOut(Waiting::Confirm)),
            // The client waits for our Accept, or for CONFIRM LINK: it still takes a Decline.
            State::Choosing(_) => self.decline(Diagnosis::TIMEOUT_CONFIRM_LINK, false, false),
            State::Connecting(_) => self.decline(Diagnosis::READY_LINK, false, true),
            State::AwaitLink(_) => self.fail(Failure::TimedOut(Waiting::Link)),
            State::AwaitDecline(refusal) => {
                self.state = State::Over;
                self.io.give_up(refusal);
            }
            State::Over => {}
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.io.deadline()
    }

    fn poll(&mut self) -> Option<Action> {
        self.io.poll()
    }

    fn outgoing(&self) -> &[u8] {
        self.io.outgoing()
    }

    fn heard(&self) -> bool {
        self.io.heard()
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }
}
