// SPDX-License-Identifier: GPL-2.0

//! The client's end of the rendezvous (RFC 7609 sections 3.5.1.2 to 3.5.1.5 and 3.5.2).

use super::{
    far_end,
    io::{
        Incoming,
        Io, //
    },
    near_end,
    v2::Proposed,
    Action,
    Contact,
    Failure,
    Late,
    LinkRefusal,
    LinkResult,
    Local,
    Peer,
    Rendezvous,
    Waiting, //
};
use crate::{
    clc::{
        AcceptConfirm,
        Message,
        Proposal, //
    },
    timer::{
        HandshakeTiming,
        Time, //
    },
    wire::{
        Diagnosis,
        PeerId, //
    },
};

/// What the server offers in its Accept: the same facts that end up in
/// [`Action::Established`].
pub type Offer = Peer;

/// The client's end of the rendezvous of one connection.
///
/// ```text
/// propose() ──► Proposal ──► Accept ──► [Contact] ──► Confirm ──► Established    (subsequent)
///                                           └──► Confirm ──► link group ──► Established (first)
/// ```
///
/// A value of about two and a half kilobytes; it belongs on the heap.
pub struct Client {
    state: State,
    own: PeerId,
    proposed: Proposed,
    timing: HandshakeTiming,
    io: Io,
}

#[derive(Clone, Copy)]
enum State {
    /// C0: nothing has been sent.
    Start,
    /// C1: the Accept has to come.
    AwaitAccept,
    /// The driver finds or makes the link.
    Choosing(Peer),
    /// C2 to C4: the link group runs its LLC exchange.
    AwaitLink(Peer),
    /// There is no link; the peer may say so itself.
    AwaitDecline(LinkRefusal),
    /// Decided.
    Over,
}

impl Client {
    /// A rendezvous on a TCP connection that has just been established, and whose SYN-ACK carried
    /// the option. `own` is our peer ID.
    pub fn new(own: PeerId, timing: HandshakeTiming) -> Self {
        Self {
            state: State::Start,
            own,
            proposed: Proposed::NOTHING,
            timing,
            io: Io::new(own),
        }
    }

    /// The peer ID that its Proposal has to name, as its Confirm does.
    pub fn own(&self) -> PeerId {
        self.own
    }

    /// Sends the Proposal.
    pub fn propose(&mut self, proposal: &Proposal, now: Time) -> Result<(), Late> {
        let State::Start = self.state else {
            return Err(Late);
        };
        self.proposed = Proposed::new(proposal);
        if self.io.send(|buffer| proposal.emit(buffer)) {
            self.state = State::AwaitAccept;
            self.io.arm(now, self.timing.clc);
        } else {
            self.refuse(Diagnosis::INTERNAL, false, false);
        }
        Ok(())
    }

    /// Sends a Decline instead of the Proposal: something on this host is in the way of SMC.
    pub fn decline(&mut self, reason: Diagnosis) -> Result<(), Late> {
        let State::Start = self.state else {
            return Err(Late);
        };
        self.refuse(reason, false, false);
        Ok(())
    }

    /// The server's offer, while [`Action::Contact`] awaits its answer.
    pub fn offer(&self) -> Option<&Offer> {
        match &self.state {
            State::Choosing(offer) => Some(offer),
            _ => None,
        }
    }

    /// Answers [`Action::Contact`]. On a first contact, the group's flow has to be started before:
    /// the server's CONFIRM LINK may arrive as soon as our Confirm is sent.
    pub fn handle_contact(&mut self, contact: Contact, now: Time) -> Result<(), Late> {
        let State::Choosing(peer) = self.state else {
            return Err(Late);
        };
        let local = match contact {
            Contact::Wait => return Ok(()),
            Contact::First(local) if peer.first_contact && fits(&local, &peer) => local,
            Contact::Subsequent(local) if !peer.first_contact && fits(&local, &peer) => local,
            // It is the server's choice alone.
            Contact::First(_) | Contact::Subsequent(_) => {
                self.refuse(Diagnosis::INTERNAL, false, false);
                return Ok(());
            }
            Contact::Refuse(reason) => {
                self.refuse(reason, false, false);
                return Ok(());
            }
            Contact::OutOfSync => {
                self.refuse(Diagnosis::OUT_OF_SYNC, true, false);
                return Ok(());
            }
        };
        let confirm = near_end(self.own, peer.first_contact, &local);
        if !self.io.send(|buffer| confirm.emit_confirm(buffer)) {
            self.refuse(Diagnosis::INTERNAL, false, false);
        } else if peer.first_contact {
            self.state = State::AwaitLink(peer);
            self.io.arm(now, self.timing.link);
        } else {
            self.establish(peer);
        }
        Ok(())
    }

    fn handle_accept(&mut self, accept: &AcceptConfirm, now: Time) {
        if let Err(reason) = self.proposed.check(accept) {
            return self.refuse(reason, false, false);
        }
        let (link, element) = far_end(accept);
        self.state = State::Choosing(Peer {
            id: accept.peer_id,
            first_contact: accept.first_contact,
            link,
            element,
            v2: accept.v2,
        });
        self.io.arm(now, self.timing.contact);
        self.io.act(Action::Contact);
    }

    fn handle_message(&mut self, message: Message, now: Time) {
        match (message, self.state) {
            (Message::Decline(decline), _) => {
                self.state = State::Over;
                self.io.declined(&decline);
            }
            (Message::Accept(accept), State::AwaitAccept) => self.handle_accept(&accept, now),
            (message, _) => self.fail(Failure::Unexpected(message.kind())),
        }
    }

    fn establish(&mut self, peer: Peer) {
        self.state = State::Over;
        self.io.disarm();
        self.io.act(Action::Established(peer));
    }

    fn refuse(&mut self, reason: Diagnosis, out_of_sync: bool, may_cross: bool) {
        self.state = State::Over;
        self.io.decline(reason, out_of_sync, may_cross);
    }

    fn fail(&mut self, failure: Failure) {
        self.state = State::Over;
        self.io.fail(failure);
    }
}

/// The answer is of the server's version, with an extension where the server's has one.
fn fits(local: &Local, peer: &Peer) -> bool {
    match (&local.v2, &peer.v2) {
        (None, None) => true,
        (Some(ours), Some(theirs)) => ours.first.is_some() == theirs.first.is_some(),
        _ => false,
    }
}

impl Rendezvous for Client {
    fn want(&self) -> usize {
        match self.state {
            State::Start | State::Over => 0,
            _ => self.io.want(),
        }
    }

    fn handle_bytes(&mut self, bytes: &[u8], now: Time) {
        if matches!(self.state, State::Start | State::Over) {
            return;
        }
        match (self.io.read(bytes), self.state) {
            (Incoming::Nothing, _) => {}
            (Incoming::Message(message), _) => self.handle_message(message, now),
            (Incoming::Refused(reason, _), State::AwaitAccept) => {
                self.refuse(reason, false, false);
            }
            (Incoming::Refused(_, error) | Incoming::Damaged(error), _) => {
                self.fail(Failure::Damaged(error));
            }
        }
    }

    fn handle_eof(&mut self) {
        self.io.set_eof();
        match self.state {
            // The server may be through already, have used and closed the connection.
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
            State::AwaitAccept => self.fail(Failure::TimedOut(Waiting::Accept)),
            // The server waits for our Confirm: it still takes a Decline.
            State::Choosing(_) => self.refuse(Diagnosis::TIMEOUT_CONFIRM_LINK, false, false),
            State::AwaitLink(_) => self.fail(Failure::TimedOut(Waiting::Link)),
            State::AwaitDecline(refusal) => {
                self.state = State::Over;
                self.io.give_up(refusal);
            }
            State::Start | State::Over => {}
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
