// SPDX-License-Identifier: GPL-2.0

//! What arrives on a link.

use super::{
    Flow,
    Phase,
    Version,
    EVENTS_PER_CALL,
    REPLIES_MAX, //
};
use crate::{
    group::{
        LinkIx,
        PeerTable, //
    },
    llc::Llc,
    timer::Time,
    wire::Reaction, //
};

impl Flow {
    /// A SEND arrived that is not a CDC message (its first byte is not 0xFE). `peers` are the
    /// group's buffers of the peer.
    pub fn handle_received(
        &mut self,
        link: LinkIx,
        message: &[u8],
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        self.counters.received = self.counters.received.saturating_add(1);
        self.note_activity(link, now);
        // A group that is over does not talk any more. A driver that does not take events would
        // lose some, and a peer that makes us reply faster than the link sends has to wait.
        if self.is_deaf()
            || self.link(link).is_none()
            || self.events.room() < EVENTS_PER_CALL
            || self.sends.len() >= REPLIES_MAX
        {
            return self.drop_message();
        }
        if let Version::Two { .. } = self.params.version {
            return self.receive_v2(link, message, peers, now);
        }
        match Llc::parse(message) {
            Ok(message) => self.dispatch(link, &message, peers, now),
            Err(error) => match error.reaction() {
                Reaction::Drop => self.drop_message(),
                _ => self.violation(link, now),
            },
        }
    }

    fn dispatch(&mut self, link: LinkIx, message: &Llc, peers: &mut PeerTable<'_>, now: Time) {
        match message {
            Llc::ConfirmLink(message) => self.handle_confirm_link(link, message, now),
            Llc::AddLink(message) => self.handle_add_link(link, message, now),
            Llc::DeleteLink(message) => self.handle_delete_link(link, message, now),
            Llc::TestLink(message) => self.handle_test_link(link, message, now),
            Llc::ConfirmRkey(message) if message.reply => {
                self.handle_rkey_confirmed(message, now);
            }
            Llc::ConfirmRkey(message) => self.handle_confirm_rkey(link, message, peers),
            Llc::DeleteRkey(message) if message.reply => {
                self.handle_rkey_deleted(message, now);
            }
            Llc::DeleteRkey(message) => self.handle_delete_rkey(link, message, peers),
            // Continuations belong to exchanges between groups of more links.
            Llc::AddLinkCont(_) | Llc::ConfirmRkeyCont(_) => self.drop_message(),
        }
    }

    fn is_deaf(&self) -> bool {
        matches!(self.phase, Phase::New | Phase::Ending { .. } | Phase::Down)
    }

    pub(super) fn drop_message(&mut self) {
        self.counters.dropped = self.counters.dropped.saturating_add(1);
    }
}
