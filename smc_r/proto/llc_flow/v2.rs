// SPDX-License-Identifier: GPL-2.0

//! The forms that messages have on links of version 2.
//!
//! Most are those of version 1 under another type. What is longer is ADD LINK, which brings keys,
//! and DELETE RKEY, which may name many; and a client asks for a link with REQUEST ADD LINK.

use core::{
    mem::size_of,
    ops::Deref, //
};

use zerocopy::IntoBytes;

use super::{
    change::Adding,
    Flow,
    Phase,
    Text,
    Version,
    RMBS_GONE_MAX, //
};
use crate::{
    group::{
        LinkIx,
        OwnTable,
        PeerTable,
        Role, //
    },
    llc::{
        self,
        v2::{
            self,
            AddLinkExt,
            AddLinkV2,
            DeleteRkeyV2,
            RKeyWire,
            RTokenPairWire,
            RequestAddLink, //
        },
        Llc, //
    },
    timer::Time,
    wire::{
        ByteOrder,
        Gid,
        RKey,
        Reaction, //
    },
};

/// Longest message that we send: ADD LINK of version 2 without keys.
pub const FRAME_MAX: usize = 72;

/// A message as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    bytes: [u8; FRAME_MAX],
    len: u8,
}

impl Frame {
    /// Copies a message; what is beyond [`FRAME_MAX`] is left out.
    pub fn new(message: &[u8]) -> Self {
        let mut bytes = [0; FRAME_MAX];
        let mut len = 0u8;
        for (to, from) in bytes.iter_mut().zip(message) {
            *to = *from;
            len = len.saturating_add(1);
        }
        Self { bytes, len }
    }

    /// True if it answers a message of the peer.
    pub(super) fn is_reply(&self) -> bool {
        self.get(3).is_some_and(|flags| flags & llc::REPLY != 0)
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

impl Flow {
    /// The bytes of a message in the form of the group's version.
    pub(super) fn frame(&self, link: LinkIx, message: &Llc) -> Frame {
        let Version::Two { direct } = self.params.version else {
            return Frame::new(&message.emit());
        };
        let mut rkeys = [RKeyWire::from(RKey(0)); 8];
        let message = match message {
            Llc::ConfirmLink(llc) => v2::Llc::ConfirmLink(*llc),
            Llc::AddLink(llc) => v2::Llc::AddLink(AddLinkV2 {
                base: *llc,
                ext: match llc.reject {
                    Some(_) => None,
                    None => Some(AddLinkExt {
                        direct,
                        target_gid: self.peer_end(link).map_or(Gid::default(), |end| end.gid),
                        // They are put in when the message is posted.
                        pairs: &[],
                    }),
                },
            }),
            Llc::DeleteLink(llc) => v2::Llc::DeleteLink(*llc),
            Llc::ConfirmRkey(llc) => v2::Llc::ConfirmRkey(*llc),
            Llc::TestLink(llc) => v2::Llc::TestLink(*llc),
            Llc::DeleteRkey(llc) => {
                let places = rkeys.iter_mut().zip(llc.rkeys.iter());
                places.for_each(|(place, rkey)| *place = (*rkey).into());
                v2::Llc::DeleteRkey(DeleteRkeyV2 {
                    reply: llc.reply,
                    negative: llc.negative,
                    errors: u8::try_from(llc.error_mask.count_ones()).unwrap_or(0),
                    rkeys: rkeys.get(..llc.rkeys.len()).unwrap_or_default(),
                })
            }
            // Version 2 has neither, and nobody here asks for them.
            Llc::AddLinkCont(_) | Llc::ConfirmRkeyCont(_) => return Frame::new(&[]),
        };
        self.frame_v2(&message)
    }

    pub(super) fn frame_v2(&self, message: &v2::Llc<'_>) -> Frame {
        let mut bytes = [0; FRAME_MAX];
        let len = message.emit(self.order, &mut bytes).unwrap_or(0);
        Frame::new(bytes.get(..len).unwrap_or_default())
    }

    /// A message came on a link of version 2.
    pub(super) fn receive_v2(
        &mut self,
        link: LinkIx,
        message: &[u8],
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        let (message, order) = match v2::Llc::parse(message) {
            Ok(parsed) => parsed,
            Err(error) if error.reaction() == Reaction::Drop => return self.drop_message(),
            Err(_) => return self.violation(link, now),
        };
        match message {
            v2::Llc::ConfirmLink(llc) => {
                self.order = order;
                self.handle_confirm_link(link, &llc, now);
            }
            v2::Llc::AddLink(llc) => {
                let pairs = llc.ext.map_or(&[][..], |ext| ext.pairs);
                self.handle_add_link(link, &llc.base, pairs, peers, now);
            }
            v2::Llc::DeleteLink(llc) => self.handle_delete_link(link, &llc, now),
            v2::Llc::TestLink(llc) => self.handle_test_link(link, &llc, now),
            v2::Llc::ConfirmRkey(llc) if llc.reply => self.handle_rkey_confirmed(&llc, now),
            v2::Llc::ConfirmRkey(llc) => self.handle_confirm_rkey(link, &llc, peers, now),
            // Linux does not repeat the key. There is never more than one request of ours.
            v2::Llc::DeleteRkey(llc) if llc.reply => self.rkey_deleted(now),
            v2::Llc::DeleteRkey(llc) => self.handle_delete_rkey_v2(link, &llc, peers, now),
            v2::Llc::RequestAddLink(llc) => self.handle_request_add_link(link, &llc, now),
        }
    }

    /// The client asks for another link.
    fn handle_request_add_link(&mut self, link: LinkIx, message: &RequestAddLink<'_>, now: Time) {
        let talks = !matches!(self.phase, Phase::New | Phase::Ending { .. } | Phase::Down);
        if message.reply && talks && core::mem::take(&mut self.hinted) {
            // The server has no other link for us now. It is asked again when there may be one.
            return;
        }
        if message.reply || self.params.role == Role::Client || !talks {
            return self.drop_message();
        }
        // The ADD LINK that it crosses is an answer, too.
        if self.adding() != Some(Adding::Offer) {
            self.requested = Some(link);
        }
        if self.phase != Phase::Active {
            // The first contact is over for the client, which has a port more.
            self.port_came = self.several;
            return self.refuse_request();
        }
        if self.take_hint(now) {
            self.answer_request();
        } else {
            self.refuse_request();
        }
    }

    /// Server: the client need not wait for a link if none is going to be offered now. Nor before one is deleted: until
    /// it has an answer, Linux does not hear DELETE LINK.
    pub(super) fn answer_request(&mut self) {
        let comes = match self.change {
            Some(_) => self.adding().is_some(),
            None => self.add_wanted && self.add_after.is_none(),
        };
        if !comes {
            self.refuse_request();
        }
    }

    fn refuse_request(&mut self) {
        let Some(link) = self.requested.take() else {
            return;
        };
        let via = if self.is_active(link) {
            Some(link)
        } else {
            self.carrier()
        };
        let Some(via) = via else {
            return;
        };
        self.counters.refused = self.counters.refused.saturating_add(1);
        self.send_v2(
            via,
            &v2::Llc::RequestAddLink(RequestAddLink {
                reply: true,
                gids: &[],
            }),
        );
    }

    fn send_v2(&mut self, link: LinkIx, message: &v2::Llc<'_>) {
        let frame = self.frame_v2(message);
        self.send_text(link, Text::Ready(frame), None);
    }

    /// Puts the number of pairs into ADD LINK, and counts them into its length.
    pub(super) fn with_pairs(&self, mut frame: Frame, own: &OwnTable<'_>) -> (Frame, u8) {
        let count = self.count_pairs(own);
        let pairs = usize::from(count).saturating_mul(size_of::<RTokenPairWire>());
        let len = usize::from(frame.len).saturating_add(pairs);
        let [a, b] = self.order.bytes(u16::try_from(len).unwrap_or(u16::MAX));
        let [c, d] = self.order.bytes(count.into());
        for (place, byte) in [(1, a), (2, b), (PAIR_COUNT, c), (PAIR_COUNT + 1, d)] {
            if let Some(to) = frame.bytes.get_mut(place) {
                *to = byte;
            }
        }
        (frame, count)
    }

    /// Writes the pairs of keys that follow a message whose [`Outgoing::pairs`](super::Outgoing)
    /// says so, and returns their length. To be called before anything else happens.
    pub fn write_pairs(&self, own: &OwnTable<'_>, out: &mut [u8]) -> usize {
        let mut written = 0usize;
        let mut from = 0;
        for place in out.chunks_exact_mut(size_of::<RTokenPairWire>()) {
            let Some((next, pair)) = self.pair_from(own, from) else {
                break;
            };
            from = next;
            let wire = RTokenPairWire::from(pair);
            for (to, byte) in place.iter_mut().zip(wire.as_bytes()) {
                *to = *byte;
            }
            written = written.saturating_add(place.len());
        }
        written
    }

    /// The peer takes buffers back, any number of them. The reply repeats as many keys as fit.
    fn handle_delete_rkey_v2(
        &mut self,
        link: LinkIx,
        message: &DeleteRkeyV2<'_>,
        peers: &mut PeerTable<'_>,
        now: Time,
    ) {
        // One at a time (RFC 7609 section 3.5.5.3).
        if self.withheld.is_some() {
            return self.drop_message();
        }
        let mut unknown = 0u8;
        let mut in_use = 0u8;
        for rkey in message.rkeys {
            match peers.remove(link, RKey::from(*rkey)) {
                Some((slot, true)) => {
                    in_use = in_use.saturating_add(1);
                    if usize::from(in_use) > RMBS_GONE_MAX {
                        // A peer that takes away so much that is in use is not sane any more.
                        return self.violation(link, now);
                    }
                    self.peer_rmb_gone(slot);
                }
                Some((_, false)) => {}
                None => {
                    unknown = unknown.saturating_add(1);
                    if usize::from(unknown) > UNKNOWN_MAX {
                        // Each has been looked for among all, and the peer may send the next ones at once.
                        return self.violation(link, now);
                    }
                }
            }
        }
        let repeated = message.rkeys.len().min(REPEATED_RKEYS);
        let answer = self.frame_v2(&v2::Llc::DeleteRkey(DeleteRkeyV2 {
            reply: true,
            negative: unknown != 0,
            errors: unknown,
            rkeys: message.rkeys.get(..repeated).unwrap_or_default(),
        }));
        self.answer_delete(link, answer);
    }
}

/// Most keys of one DELETE RKEY that nobody knows.
const UNKNOWN_MAX: usize = 16;

/// Keys of DELETE RKEY for which a message of the ordinary length has room.
const REPEATED_RKEYS: usize = (llc::LEN - 8) / 4;

/// Where the number of pairs is in ADD LINK.
const PAIR_COUNT: usize = 70;

/// The byte order of lengths until the peer has shown its own.
pub(super) const FIRST_ORDER: ByteOrder = ByteOrder::Big;
