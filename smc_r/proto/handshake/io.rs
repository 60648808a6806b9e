// SPDX-License-Identifier: GPL-2.0

//! What client and server share: the reader of the stream, the message to send, the list of
//! actions, and the ways in which a rendezvous ends.

use super::{
    Action,
    Failure,
    Fallback,
    LinkRefusal, //
};
use crate::{
    clc::{
        self,
        Assembler,
        Decline,
        Header,
        Kind,
        Message, //
    },
    timer::{
        HandshakeTiming,
        Millis,
        Time, //
    },
    wire::{
        Diagnosis,
        ParseError,
        PeerId,
        Reaction, //
    },
};

/// Longest CLC message that we send.
pub const OUTGOING_MAX: usize = clc::MAX_EMIT;

/// Most actions that one input leads to.
const ACTIONS_MAX: usize = 4;

/// Reader, writer and to-do list of one rendezvous.
pub(super) struct Io {
    own: PeerId,
    assembler: Assembler,
    /// Highest CLC version that the peer has shown so far.
    peer_version: u8,
    outgoing: [u8; OUTGOING_MAX],
    outgoing_len: usize,
    actions: [Option<Action>; ACTIONS_MAX],
    deadline: Option<Time>,
    eof: bool,
    heard: bool,
}

/// What the stream brought.
#[allow(clippy::large_enum_variant, reason = "passed on at once, never stored")]
pub(super) enum Incoming {
    /// No complete message yet.
    Nothing,
    /// A message that is valid in itself.
    Message(Message),
    /// A message that cannot be accepted, but whose end is known: the stream is still in order.
    Refused(Diagnosis, ParseError),
    /// Anything else.
    Damaged(ParseError),
}

impl Io {
    pub(super) fn new(own: PeerId) -> Self {
        Self {
            own,
            assembler: Assembler::new(),
            peer_version: 1,
            outgoing: [0; OUTGOING_MAX],
            outgoing_len: 0,
            actions: [None; ACTIONS_MAX],
            deadline: None,
            eof: false,
            heard: false,
        }
    }

    pub(super) fn want(&self) -> usize {
        if self.eof {
            0
        } else {
            self.assembler.want()
        }
    }

    pub(super) fn read(&mut self, bytes: &[u8]) -> Incoming {
        let result = self.assembler.push(bytes);
        if let Some(header) = self.assembler.header() {
            self.peer_version = self.peer_version.max(header.version);
        }
        match result {
            Ok(None) => Incoming::Nothing,
            Ok(Some(message)) => {
                self.assembler = Assembler::new();
                self.heard = true;
                Incoming::Message(message)
            }
            Err(error) => match error.reaction() {
                Reaction::Decline(diagnosis) => Incoming::Refused(diagnosis, error),
                _ => Incoming::Damaged(error),
            },
        }
    }

    /// Whether a valid message has come.
    pub(super) fn heard(&self) -> bool {
        self.heard
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        self.outgoing.get(..self.outgoing_len).unwrap_or_default()
    }

    pub(super) fn set_eof(&mut self) {
        self.eof = true;
    }

    pub(super) fn arm(&mut self, now: Time, span: Millis) {
        self.deadline = Some(now.after(span));
    }

    pub(super) fn disarm(&mut self) {
        self.deadline = None;
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// True if a deadline has passed; it is then cleared.
    pub(super) fn expired(&mut self, now: Time) -> bool {
        let passed = self.deadline.is_some_and(|deadline| deadline <= now);
        if passed {
            self.deadline = None;
        }
        passed
    }

    pub(super) fn act(&mut self, action: Action) {
        if let Some(place) = self.actions.iter_mut().find(|place| place.is_none()) {
            *place = Some(action);
        }
    }

    pub(super) fn poll(&mut self) -> Option<Action> {
        let first = self.actions.first_mut()?.take();
        self.actions.rotate_left(1);
        first
    }

    /// Puts a message into the outgoing buffer by way of `emit`, and asks for it to be sent. False
    /// if it does not fit.
    pub(super) fn send(&mut self, emit: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let Some(len) = emit(&mut self.outgoing) else {
            return false;
        };
        self.outgoing_len = len;
        self.act(Action::Send);
        true
    }

    /// Ends in a fallback that we ask for.
    pub(super) fn decline(&mut self, reason: Diagnosis, out_of_sync: bool, may_cross: bool) {
        self.actions = [None; ACTIONS_MAX];
        self.disarm();
        let decline = Decline {
            version: self.peer_version.min(2),
            out_of_sync,
            peer_id: self.own,
            diagnosis: reason,
        };
        if self.send(|buffer| decline.emit(buffer)) {
            self.act(Action::Fallback(Fallback {
                reason,
                peer_diagnosis: None,
                out_of_sync: false,
                may_cross,
            }));
        } else {
            self.fail(Failure::LinkFailed(reason));
        }
    }

    /// Ends in a fallback that the peer asks for.
    pub(super) fn declined(&mut self, decline: &Decline) {
        self.actions = [None; ACTIONS_MAX];
        self.disarm();
        self.act(Action::Fallback(Fallback {
            reason: Diagnosis::PEER_DECLINED,
            peer_diagnosis: Some(decline.diagnosis),
            out_of_sync: decline.out_of_sync,
            may_cross: false,
        }));
    }

    /// There is no link. True if the peer's Decline is awaited before anything is done about it.
    pub(super) fn link_failed(
        &mut self,
        mut refusal: LinkRefusal,
        timing: &HandshakeTiming,
        now: Time,
    ) -> bool {
        if self.eof && refusal.diagnosis == Diagnosis::TIMEOUT_CONFIRM_LINK {
            // A peer that has closed may have taken its queue pair along: that says nothing of the way to it.
            refusal.diagnosis = Diagnosis::NO_ACTIVE_LINK;
        }
        if self.eof || (refusal.may_decline && !refusal.peer_knows) {
            self.give_up(refusal);
            false
        } else {
            self.arm(now, timing.decline);
            true
        }
    }

    /// Ends for lack of a link, in a fallback if it is not too late for that.
    pub(super) fn give_up(&mut self, refusal: LinkRefusal) {
        if refusal.may_decline {
            self.decline(refusal.diagnosis, false, true);
        } else {
            self.fail(Failure::LinkFailed(refusal.diagnosis));
        }
    }

    /// Ends in a failure.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.actions = [None; ACTIONS_MAX];
        self.disarm();
        self.act(Action::Fail(failure));
    }
}

/// What [`crossed_decline`] says about the first bytes of a stream that fell back to TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossed {
    /// These bytes may be the start of a Decline: look again when there are more, or take them for
    /// data if the stream ends here.
    NeedMore,
    /// This is application data.
    No,
    /// The first so many bytes are a Decline that crossed ours. They are not data: discard them.
    Decline(usize),
}

/// Tells a Decline that crossed ours from application data, for [`Fallback::may_cross`].
///
/// Both ends may decline at the same moment in the LLC phase of a first contact. The Decline of
/// the peer then comes after the end of our rendezvous. The driver peeks at the start of the
/// stream, without consuming it, before it lets the application read.
pub fn crossed_decline(peeked: &[u8]) -> Crossed {
    let Some((start, _)) = peeked.split_first_chunk::<{ clc::HEADER_LEN }>() else {
        // Fewer bytes than a header: an SMC-R Decline starts with the eye catcher and its type.
        const START: [u8; 5] = [0xe2, 0xd4, 0xc3, 0xd9, 4];
        let same = peeked.iter().zip(START.iter()).all(|(a, b)| a == b);
        return if same { Crossed::NeedMore } else { Crossed::No };
    };
    let len = match Header::parse(start) {
        Ok(header) if header.kind == Kind::Decline => usize::from(header.len),
        _ => return Crossed::No,
    };
    match peeked.get(..len) {
        None => Crossed::NeedMore,
        Some(message) => match Decline::parse(message) {
            Ok(_) => Crossed::Decline(len),
            Err(_) => Crossed::No,
        },
    }
}
