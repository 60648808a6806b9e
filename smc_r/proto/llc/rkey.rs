// SPDX-License-Identifier: GPL-2.0

//! LLC messages about buffers: CONFIRM RKEY and its continuation, DELETE RKEY.
//!
//! As in [`link`](super::link), the first two or three bytes are left to the caller.

use super::{
    link::ShowLink,
    LEN,
    REPLY, //
};
use crate::{
    cdc::flag,
    wire::{
        LinkNum,
        List,
        RKey,
        RToken, //
    },
};
use core::fmt;
use zerocopy::big_endian::{
    U32,
    U64, //
};
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

/// Z: the request was refused.
const NEGATIVE: u8 = 0x20;

/// Key and address of an RMB on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkRToken {
    /// The link; none if the peer sent 0, which is no link of the group.
    pub link: Option<LinkNum>,
    /// Key and address there.
    pub rtoken: RToken,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RTokenWire {
    rkey: U32,
    addr: U64,
}

impl From<RTokenWire> for RToken {
    fn from(wire: RTokenWire) -> Self {
        Self {
            rkey: RKey(wire.rkey.get()),
            addr: wire.addr.get(),
        }
    }
}

impl From<RToken> for RTokenWire {
    fn from(rtoken: RToken) -> Self {
        Self {
            rkey: rtoken.rkey.0.into(),
            addr: rtoken.addr.into(),
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LinkRTokenWire {
    link: u8,
    rtoken: RTokenWire,
}

impl From<LinkRTokenWire> for LinkRToken {
    fn from(wire: LinkRTokenWire) -> Self {
        Self {
            link: LinkNum::new(wire.link),
            rtoken: wire.rtoken.into(),
        }
    }
}

impl From<LinkRToken> for LinkRTokenWire {
    fn from(entry: LinkRToken) -> Self {
        Self {
            link: LinkNum::to_wire(entry.link),
            rtoken: entry.rtoken.into(),
        }
    }
}

/// Returns `entry` if it is among the first `count`, a cleared one otherwise.
fn valid(index: u8, count: u8, entry: LinkRToken) -> LinkRToken {
    if index < count {
        entry
    } else {
        LinkRToken::default()
    }
}

/// CONFIRM RKEY: announces a new buffer on all links (RFC A.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConfirmRkey {
    /// Tells a reply, which repeats the request, from a request.
    pub reply: bool,
    /// Z: refused.
    pub negative: bool,
    /// C: together with `negative`, the request may be repeated soon.
    pub retry: bool,
    /// Key and address on the link the message travels on.
    pub rtoken: RToken,
    /// Number of other links covered, those in continuations included. More than 7 has to be
    /// refused; more than 2 needs continuations.
    pub others: u8,
    /// Keys on other links; only the first `others` of them are valid.
    pub entries: [LinkRToken; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ConfirmRkeyWire {
    header: [u8; 3],
    flags: u8,
    others: u8,
    rtoken: RTokenWire,
    entries: [LinkRTokenWire; 2],
    reserved: u8,
}

impl ConfirmRkey {
    const RETRY: u8 = 0x10;

    /// Makes the request for a buffer in a group with a single link.
    pub fn request(rtoken: RToken) -> Self {
        Self {
            rtoken,
            ..Self::default()
        }
    }

    /// Makes the positive reply to this request.
    pub fn accepted(&self) -> Self {
        Self {
            reply: true,
            negative: false,
            retry: false,
            ..*self
        }
    }

    /// Makes the negative reply to this request; `retry` if it may be repeated soon.
    pub fn refused(&self, retry: bool) -> Self {
        Self {
            reply: true,
            negative: true,
            retry,
            ..*self
        }
    }

    /// Returns the valid entries of this message.
    pub fn entries(&self) -> &[LinkRToken] {
        self.entries
            .get(..usize::from(self.others))
            .unwrap_or(&self.entries)
    }

    pub(super) fn from_wire(bytes: &[u8; LEN]) -> Self {
        let wire: &ConfirmRkeyWire = zerocopy::transmute_ref!(bytes);
        let [first, second] = wire.entries;
        let negative = wire.flags & NEGATIVE != 0;
        Self {
            reply: wire.flags & REPLY != 0,
            negative,
            retry: negative && wire.flags & Self::RETRY != 0,
            rtoken: wire.rtoken.into(),
            others: wire.others,
            entries: Self::valid(wire.others, [first.into(), second.into()]),
        }
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        let [first, second] = Self::valid(self.others, self.entries);
        zerocopy::transmute!(ConfirmRkeyWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY)
                | flag(self.negative, NEGATIVE)
                | flag(self.negative && self.retry, Self::RETRY),
            others: self.others,
            rtoken: self.rtoken.into(),
            entries: [first.into(), second.into()],
            reserved: 0,
        })
    }

    fn valid(count: u8, [first, second]: [LinkRToken; 2]) -> [LinkRToken; 2] {
        [valid(0, count, first), valid(1, count, second)]
    }
}

impl fmt::Display for ConfirmRkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} others {}", self.rtoken, self.others)?;
        for entry in self.entries() {
            write!(f, ", {} {}", ShowLink(entry.link), entry.rtoken)?;
        }
        f.write_str(match (self.negative, self.retry) {
            (false, _) => "",
            (true, false) => ", refused",
            (true, true) => ", refused for now",
        })
    }
}

/// CONFIRM RKEY CONTINUATION: keys of a new buffer on further links (RFC A.3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConfirmRkeyCont {
    /// Tells a reply, which repeats the request, from a request.
    pub reply: bool,
    /// Z: refused.
    pub negative: bool,
    /// Number of keys yet to be conveyed, those of this message included.
    pub left: u8,
    /// Keys on other links; only the first `left` of them are valid.
    pub entries: [LinkRToken; 3],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ConfirmRkeyContWire {
    header: [u8; 3],
    flags: u8,
    left: u8,
    entries: [LinkRTokenWire; 3],
}

impl ConfirmRkeyCont {
    /// Returns the valid entries of this message.
    pub fn entries(&self) -> &[LinkRToken] {
        self.entries
            .get(..usize::from(self.left))
            .unwrap_or(&self.entries)
    }

    pub(super) fn from_wire(bytes: &[u8; LEN]) -> Self {
        let wire: &ConfirmRkeyContWire = zerocopy::transmute_ref!(bytes);
        let [first, second, third] = wire.entries;
        Self {
            reply: wire.flags & REPLY != 0,
            negative: wire.flags & NEGATIVE != 0,
            left: wire.left,
            entries: Self::valid(wire.left, [first.into(), second.into(), third.into()]),
        }
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        let [first, second, third] = Self::valid(self.left, self.entries);
        zerocopy::transmute!(ConfirmRkeyContWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY) | flag(self.negative, NEGATIVE),
            left: self.left,
            entries: [first.into(), second.into(), third.into()],
        })
    }

    fn valid(count: u8, [first, second, third]: [LinkRToken; 3]) -> [LinkRToken; 3] {
        [
            valid(0, count, first),
            valid(1, count, second),
            valid(2, count, third),
        ]
    }
}

impl fmt::Display for ConfirmRkeyCont {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys left {}", self.left)?;
        for entry in self.entries() {
            write!(f, ", {} {}", ShowLink(entry.link), entry.rtoken)?;
        }
        f.write_str(if self.negative { ", refused" } else { "" })
    }
}

/// DELETE RKEY: withdraws buffers on all links (RFC A.3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteRkey {
    /// Tells a reply, which repeats the request, from a request.
    pub reply: bool,
    /// Z: some of the keys were not known.
    pub negative: bool,
    /// With `negative`: 0x80 if the first key was not known, 0x40 for the second, and so on.
    pub error_mask: u8,
    /// The keys on the link the message travels on. Of more than eight, eight are read.
    pub rkeys: List<RKey, 8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeleteRkeyWire {
    header: [u8; 3],
    flags: u8,
    count: u8,
    error_mask: u8,
    reserved: [u8; 2],
    rkeys: [U32; 8],
    reserved_end: [u8; 4],
}

impl DeleteRkey {
    /// Makes the request for one buffer.
    pub fn request(rkey: RKey) -> Self {
        Self {
            rkeys: List::from_slice(&[rkey]),
            ..Self::default()
        }
    }

    /// Makes the reply to this request. `error_mask` has a bit for each key that was not known.
    pub fn answered(&self, error_mask: u8) -> Self {
        Self {
            reply: true,
            negative: error_mask != 0,
            error_mask,
            ..*self
        }
    }

    pub(super) fn from_wire(bytes: &[u8; LEN]) -> Self {
        let wire: &DeleteRkeyWire = zerocopy::transmute_ref!(bytes);
        let negative = wire.flags & NEGATIVE != 0;
        let rkeys = wire.rkeys.iter().take(wire.count.into());
        Self {
            reply: wire.flags & REPLY != 0,
            negative,
            error_mask: if negative { wire.error_mask } else { 0 },
            rkeys: List::take_from(rkeys.map(|rkey| RKey(rkey.get()))),
        }
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        let mut rkeys = [U32::ZERO; 8];
        let mut count = 0u8;
        for (slot, rkey) in rkeys.iter_mut().zip(&self.rkeys) {
            *slot = rkey.0.into();
            count = count.saturating_add(1);
        }
        zerocopy::transmute!(DeleteRkeyWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY) | flag(self.negative, NEGATIVE),
            count,
            error_mask: if self.negative { self.error_mask } else { 0 },
            reserved: [0; 2],
            rkeys,
            reserved_end: [0; 4],
        })
    }
}

impl fmt::Display for DeleteRkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for rkey in &self.rkeys {
            write!(f, "{comma}{rkey}")?;
            comma = ", ";
        }
        if self.negative {
            write!(f, ", unknown {:#010b}", self.error_mask)?;
        }
        Ok(())
    }
}
