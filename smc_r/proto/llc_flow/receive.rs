// SPDX-License-Identifier: GPL-2.0

//! What arrives on a link.

use super::{
    Flow,
    Phase,
    Stage,
    Version,
    EVENTS_PER_CALL,
    REPLIES_MAX, //
};
use crate::{
    group::{
        LinkIx,
        PeerTable, //
    },
    llc::{
        v2,
        Llc,
        LlcType, //
    },
    timer::Time,
    wire::Reaction, //
};

impl Flow {
    /// A SEND arrived that is not a CDC message (its first byte is not 0xFE), or a write with immediate
    /// data, which is empty. `peers` are the group's buffers of the peer.
    pub fn handle_received(
        &mut self,
        link: LinkIx,
        message: &[u8],
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        self.counters.received = self.counters.received.saturating_add(1);
        if let Some(link) = self.link_mut(link) {
            link.last_received = now;
        }
        self.clock = now;
        // A group that is over does not talk any more. What comes then was under way before its end, or answers that:
        // no fault of the peer's.
        if self.is_over() {
            return;
        }
        // A write with immediate data, which brings no message.
        if message.is_empty() {
            return self.drop_message();
        }
        self.forget_links(peers);
        // A driver that does not take events would lose some, and a peer that makes us reply faster than the link
        // sends has to wait.
        if self.phase == Phase::New
            || self.is_deaf_on(link, message)
            || self.events.room() < EVENTS_PER_CALL
            || self.replies() >= REPLIES_MAX
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
            Llc::AddLink(message) => self.handle_add_link(link, message, &[], peers, now),
            Llc::AddLinkCont(message) => self.handle_add_link_cont(link, message, peers, now),
            Llc::DeleteLink(message) => self.handle_delete_link(link, message, now),
            Llc::TestLink(message) => self.handle_test_link(link, message, now),
            Llc::ConfirmRkey(message) if message.reply => {
                self.handle_rkey_confirmed(message, now);
            }
            Llc::ConfirmRkey(message) => self.handle_confirm_rkey(link, message, peers, now),
            Llc::ConfirmRkeyCont(message) if message.reply => {
                self.handle_continued(link, message, now);
            }
            Llc::ConfirmRkeyCont(message) => {
                self.handle_confirm_rkey_cont(link, message, peers, now);
            }
            Llc::DeleteRkey(message) if message.reply => {
                self.handle_rkey_deleted(message, now);
            }
            Llc::DeleteRkey(message) => self.handle_delete_rkey(link, message, peers),
        }
    }

    /// On a link that is on its way out nothing but DELETE LINK is heard, and of that a client takes the end of
    /// the whole group alone (RFC 7609 appendix C.7.1); on one that is not there, nothing at all. On one that is
    /// being added, nothing comes before CONFIRM LINK.
    fn is_deaf_on(&self, link: LinkIx, message: &[u8]) -> bool {
        let Some(link) = self.link(link) else {
            return true;
        };
        let heard = match link.stage {
            Stage::Active => return false,
            Stage::New => [
                LlcType::ConfirmLink.to_byte(),
                v2::LlcType::ConfirmLink.to_byte(),
            ],
            Stage::Leaving => [
                LlcType::DeleteLink.to_byte(),
                v2::LlcType::DeleteLink.to_byte(),
            ],
        };
        !message.first().is_some_and(|first| heard.contains(first))
    }

    /// Where there is a new link, the keys that the peer's buffers had on the one before it are forgotten.
    /// To be called before keys are entered, or looked up, for the new one.
    pub(super) fn forget_links(&mut self, peers: &mut PeerTable<'_>) {
        if self.forget == 0 {
            return;
        }
        for link in LinkIx::of(self.forget) {
            if self.link(link).is_some() {
                peers.forget_link(link);
                self.forget &= !link.bit();
            }
        }
    }

    pub(super) fn drop_message(&mut self) {
        self.counters.dropped = self.counters.dropped.saturating_add(1);
    }
}
