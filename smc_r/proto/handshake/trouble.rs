// SPDX-License-Identifier: GPL-2.0

//! What an unhappy end says about the peer and the way to it.
//!
//! Some hosts show the option and mean nothing by it: a middlebox has put it there, echoed it, or
//! taken it off the answer. Others speak CLC, but nothing of RDMA gets through to them. Each try
//! with them costs seconds or the connection. A peer that declines with a reason is not one of them:
//! that costs a round trip, and it may think better of it any moment.

use super::{Failure, Fallback};
use crate::{group::Role, wire::Diagnosis};

/// Why SMC should not be tried again at once with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It has shown the option, and does not speak CLC.
    NotClc,
    /// It speaks CLC, and the first link with it does not carry anything.
    NoRdma,
}

impl Failure {
    /// What the failure says about the peer. `role` is ours; `heard`: the peer had sent a valid
    /// message.
    pub fn trouble(self, role: Role, heard: bool) -> Option<Trouble> {
        match self {
            Self::Damaged(_) | Self::Unexpected(_) => Some(Trouble::NotClc),
            Self::LinkFailed(Diagnosis::TIMEOUT_CONFIRM_LINK) => Some(Trouble::NoRdma),
            Self::TimedOut(_) if !heard => Some(Trouble::NotClc),
            // A server of something else may not like our Proposal. A client may have its reasons.
            Self::Closed | Self::Reset if !heard && role == Role::Client => Some(Trouble::NotClc),
            _ => None,
        }
    }

    /// The reason that stands for it.
    pub const fn diagnosis(self) -> Diagnosis {
        match self {
            Self::LinkFailed(diagnosis) => diagnosis,
            _ => Diagnosis::PEER_NOT_CAPABLE,
        }
    }
}

impl Fallback {
    /// What the fallback says about the peer. `first_contact`: it was that of a link group.
    pub fn trouble(&self, first_contact: bool) -> Option<Trouble> {
        let timeout = Diagnosis::TIMEOUT_CONFIRM_LINK;
        // Others wait for their turn behind a first contact, and tire of it for the same reason.
        let lost = self.reason == timeout || self.peer_diagnosis == Some(timeout);
        (first_contact && lost).then_some(Trouble::NoRdma)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{handshake::Waiting, wire::ParseError};

    #[test]
    fn who_does_not_speak_clc() {
        let damaged = Failure::Damaged(ParseError::EyeCatcher);
        for role in [Role::Client, Role::Server] {
            assert_eq!(damaged.trouble(role, false), Some(Trouble::NotClc));
        }
        let late = Failure::TimedOut(Waiting::Accept);
        assert_eq!(late.trouble(Role::Client, false), Some(Trouble::NotClc));
        let late = Failure::TimedOut(Waiting::Proposal);
        assert_eq!(late.trouble(Role::Server, false), Some(Trouble::NotClc));
        for failure in [Failure::Closed, Failure::Reset] {
            let trouble = failure.trouble(Role::Client, false);
            assert_eq!(trouble, Some(Trouble::NotClc));
        }
        assert_eq!(damaged.diagnosis(), Diagnosis::PEER_NOT_CAPABLE);
    }

    #[test]
    fn who_is_not_reached_by_rdma() {
        let timeout = Diagnosis::TIMEOUT_CONFIRM_LINK;
        let failure = Failure::LinkFailed(timeout);
        assert_eq!(failure.trouble(Role::Client, true), Some(Trouble::NoRdma));
        assert_eq!(failure.diagnosis(), timeout);
        let ours = Fallback {
            reason: timeout,
            peer_diagnosis: None,
            out_of_sync: false,
            may_cross: true,
        };
        let theirs = Fallback {
            reason: Diagnosis::PEER_DECLINED,
            peer_diagnosis: Some(timeout),
            ..ours
        };
        for fallback in [ours, theirs] {
            assert_eq!(fallback.trouble(true), Some(Trouble::NoRdma));
            assert_eq!(fallback.trouble(false), None);
        }
    }

    #[test]
    fn who_has_only_had_bad_luck() {
        for failure in [
            Failure::Reset,
            Failure::Closed,
            Failure::PeerChanged,
            Failure::TimedOut(Waiting::Confirm),
            // CONFIRM LINK is not waited for as long as that.
            Failure::TimedOut(Waiting::Link),
            Failure::LinkFailed(Diagnosis::EYE_CATCHER),
            Failure::LinkFailed(Diagnosis::NO_ACTIVE_LINK),
        ] {
            assert_eq!(failure.trouble(Role::Server, true), None, "{failure}");
        }
        for failure in [Failure::Closed, Failure::Reset] {
            assert_eq!(failure.trouble(Role::Server, false), None);
        }
        for peer in [Diagnosis::SUBNET_MISMATCH, Diagnosis::MEMORY] {
            let declined = Fallback {
                reason: Diagnosis::PEER_DECLINED,
                peer_diagnosis: Some(peer),
                out_of_sync: false,
                may_cross: false,
            };
            assert_eq!(declined.trouble(true), None);
        }
    }
}
