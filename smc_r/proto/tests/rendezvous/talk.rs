// SPDX-License-Identifier: GPL-2.0

//! Dialogues with one end of the rendezvous.

use super::facts::{
    element,
    end,
    own_v2,
    proposal, //
};
use smc_proto::{
    clc::{
        AcceptConfirm,
        AcceptV2,
        Decline,
        Message,
        OfferV2,
        Proposal, //
    },
    group::Role,
    handshake::{
        Action,
        Failure,
        Fallback,
        Local,
        Rendezvous, //
    },
    timer::Time,
    wire::{
        Diagnosis,
        Eid,
        PeerId, //
    },
};

pub const CLIENT: PeerId = PeerId([1; 8]);
pub const SERVER: PeerId = PeerId([2; 8]);

/// One end of the rendezvous, and the time.
pub struct Talk<M> {
    pub machine: M,
    pub now: Time,
}

impl<M: Rendezvous> Talk<M> {
    pub fn new(machine: M) -> Self {
        Self {
            machine,
            now: Time::from_millis(0),
        }
    }

    /// The peer's bytes arrive, and are read in portions of what is wanted.
    pub fn bytes(&mut self, mut bytes: &[u8]) -> usize {
        let all = bytes.len();
        while !bytes.is_empty() {
            let n = self.machine.want().min(bytes.len());
            if n == 0 {
                break;
            }
            let (now, later) = bytes.split_at(n);
            self.machine.handle_bytes(now, self.now);
            bytes = later;
        }
        all - bytes.len()
    }

    pub fn message(&mut self, message: Message) {
        let bytes = wire(&message);
        assert_eq!(self.bytes(&bytes), bytes.len());
    }

    /// All that is to be done, with the message where one is to be sent.
    pub fn actions(&mut self) -> Vec<Todo> {
        let mut all = Vec::new();
        while let Some(action) = self.machine.poll() {
            all.push(match action {
                Action::Send => {
                    Todo::Send(Message::parse(self.machine.outgoing()).expect("a message"))
                }
                other => Todo::Do(other),
            });
        }
        all
    }

    /// Lets the next deadline pass; tells how long that took.
    pub fn expire(&mut self) -> u64 {
        let deadline = self.machine.next_deadline().expect("a deadline");
        self.machine
            .handle_timeout(Time::from_millis(deadline.as_millis() - 1));
        assert_eq!(self.actions(), [], "too early is harmless");
        let span = deadline.since(self.now);
        self.now = deadline;
        self.machine.handle_timeout(deadline);
        span
    }

    pub fn expect_over(&mut self) {
        assert!(self.machine.is_over());
        assert_eq!(self.machine.want(), 0, "the stream is not ours any more");
        assert_eq!(self.machine.next_deadline(), None);
        assert_eq!(self.actions(), []);
        // Nothing that happens later matters.
        self.machine.handle_eof();
        self.machine.handle_reset();
        self.machine.handle_bytes(b"x", self.now);
        self.machine.handle_timeout(self.now.after(1_000_000));
        assert_eq!(self.actions(), []);
    }

    pub fn expect_failure(&mut self, failure: Failure) {
        assert_eq!(self.actions(), [Todo::Do(Action::Fail(failure))]);
        self.expect_over();
    }

    /// We decline.
    pub fn expect_decline(&mut self, own: PeerId, reason: Diagnosis) -> Fallback {
        self.expect_decline_with(own, reason, 1, false)
    }

    pub fn expect_decline_with(
        &mut self,
        own: PeerId,
        reason: Diagnosis,
        version: u8,
        out_of_sync: bool,
    ) -> Fallback {
        let actions = self.actions();
        let [Todo::Send(Message::Decline(sent)), Todo::Do(Action::Fallback(fallback))] =
            actions.as_slice()
        else {
            panic!("{actions:?}");
        };
        let decline = Decline {
            version,
            out_of_sync,
            peer_id: own,
            diagnosis: reason,
        };
        assert_eq!(*sent, decline);
        assert_eq!(fallback.reason, reason);
        assert_eq!(fallback.peer_diagnosis, None);
        let fallback = *fallback;
        self.expect_over();
        fallback
    }

    /// The peer has declined.
    pub fn expect_declined(&mut self, peer_diagnosis: Diagnosis, out_of_sync: bool) {
        let fallback = Fallback {
            reason: Diagnosis::PEER_DECLINED,
            peer_diagnosis: Some(peer_diagnosis),
            out_of_sync,
            may_cross: false,
        };
        assert_eq!(self.actions(), [Todo::Do(Action::Fallback(fallback))]);
        self.expect_over();
    }

    /// In this state, a Decline in either layout means fallback, and the bytes behind it are left.
    pub fn takes_declines(mut make: impl FnMut() -> Self) {
        for version in [1, 2] {
            for out_of_sync in [false, true] {
                let mut talk = make();
                let decline = Decline {
                    version,
                    out_of_sync,
                    peer_id: PeerId([0; 8]),
                    diagnosis: Diagnosis(0x12345678),
                };
                let mut bytes = wire(&Message::Decline(decline));
                let length = bytes.len();
                bytes.extend(b"application data");
                assert_eq!(talk.bytes(&bytes), length);
                talk.expect_declined(Diagnosis(0x12345678), out_of_sync);
            }
        }
    }
}

#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant)]
pub enum Todo {
    Send(Message),
    Do(Action),
}

pub fn wire(message: &Message) -> Vec<u8> {
    let mut buffer = [0; 652];
    let n = message.emit(&mut buffer).unwrap();
    buffer[..n].to_vec()
}

/// One host's Accept or Confirm.
pub fn describe(role: Role, first_contact: bool) -> AcceptConfirm {
    let (link, element) = (end(role), element(role));
    AcceptConfirm {
        first_contact,
        peer_id: match role {
            Role::Client => CLIENT,
            Role::Server => SERVER,
        },
        gid: link.gid,
        mac: link.mac,
        qp: link.qp,
        rmb: element.token,
        index: element.index,
        token: element.alert,
        size: element.size,
        mtu: Some(link.mtu),
        psn: link.psn,
        v2: None,
    }
}

pub fn local(role: Role) -> Local {
    Local {
        link: end(role),
        element: element(role),
        v2: None,
    }
}

/// An ID that both hosts have.
pub const COMMON: &[u8] = b"LAB-EID-1";

pub fn eid(name: &[u8]) -> Eid {
    Eid::new(name).unwrap()
}

/// The client's offer of version 2.
pub fn offer() -> OfferV2 {
    let gid = end(Role::Client).gid;
    own_v2(Role::Client, 2).offer(gid).unwrap()
}

/// A Proposal of both versions.
pub fn both() -> Proposal {
    Proposal {
        version: 2,
        v2: Ok(offer()),
        ..proposal(CLIENT)
    }
}

pub fn with_v2(v2: AcceptV2, base: AcceptConfirm) -> AcceptConfirm {
    AcceptConfirm {
        v2: Some(v2),
        ..base
    }
}

/// What the server says about version 2 on a first contact, and the client to that.
pub fn accept() -> AcceptV2 {
    own_v2(Role::Server, 2).accept_first(&offer(), eid(COMMON), true)
}

pub fn confirm() -> AcceptV2 {
    let gid = end(Role::Client).gid;
    own_v2(Role::Client, 2).confirm(&accept(), gid, true)
}

pub fn local_v2(role: Role, v2: AcceptV2) -> Local {
    Local {
        v2: Some(v2),
        ..local(role)
    }
}
