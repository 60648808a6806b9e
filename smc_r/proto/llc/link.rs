// SPDX-License-Identifier: GPL-2.0

//! LLC messages about links: CONFIRM LINK, ADD LINK and its continuation, DELETE LINK, TEST LINK.
//!
//! The functions of these types leave the first two bytes, type and length, to the caller, as they
//! serve both protocol versions. In version 2 the third byte belongs to the length, too.

use super::{
    LEN,
    REPLY, //
};
use crate::{
    cdc::flag,
    wire::{
        Gid,
        LinkNum,
        Mac,
        MtuCode,
        ParseError,
        Psn,
        QpNum,
        RKey,
        RToken,
        U24, //
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

/// Writes a link number, or a hyphen in place of none.
pub(super) struct ShowLink(pub(super) Option<LinkNum>);

impl fmt::Display for ShowLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(link) => write!(f, "link {link}"),
            None => f.write_str("link -"),
        }
    }
}

/// CONFIRM LINK: the server presents a new link over itself, the client answers (RFC A.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmLink {
    /// Tells the client's reply from the server's request.
    pub reply: bool,
    /// The sender keeps no eye catcher in its RMB elements, so that cursors start at 0.
    pub no_eye_catcher: bool,
    /// Address of the sender's port.
    pub mac: Mac,
    /// GID of the sender's port.
    pub gid: Gid,
    /// The sender's queue pair.
    pub qp: QpNum,
    /// Number of the link, chosen by the server.
    pub link: LinkNum,
    /// The sender's own name for the link, for display.
    pub user_id: [u8; 4],
    /// Most links that the sender can handle in the group, 2 to 8; in version 2 also 1. 0 in a
    /// reply accepts the number of the request. A received number out of range is put in range.
    pub max_links: u8,
    /// Version 2.1: most connections in the group. Zero in version 1.
    pub max_connections: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ConfirmLinkWire {
    header: [u8; 3],
    flags: u8,
    mac: Mac,
    gid: Gid,
    qp: U24,
    link: u8,
    user_id: [u8; 4],
    max_links: u8,
    max_connections: u8,
    reserved: [u8; 8],
}

impl ConfirmLink {
    const NO_EYE_CATCHER: u8 = 0x03;

    pub(super) fn from_wire(bytes: &[u8; LEN], version2: bool) -> Result<Self, ParseError> {
        let wire: &ConfirmLinkWire = zerocopy::transmute_ref!(bytes);
        let least = if version2 { 1 } else { 2 };
        Ok(Self {
            reply: wire.flags & REPLY != 0,
            no_eye_catcher: wire.flags & Self::NO_EYE_CATCHER != 0,
            mac: wire.mac,
            gid: wire.gid,
            qp: wire.qp.into(),
            link: LinkNum::new(wire.link).ok_or(ParseError::LinkNum)?,
            user_id: wire.user_id,
            max_links: match wire.max_links {
                0 => 0,
                links => links.max(least).min(8),
            },
            max_connections: if version2 { wire.max_connections } else { 0 },
        })
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        zerocopy::transmute!(ConfirmLinkWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY) | flag(self.no_eye_catcher, Self::NO_EYE_CATCHER),
            mac: self.mac,
            gid: self.gid,
            qp: self.qp.into(),
            link: self.link.get(),
            user_id: self.user_id,
            max_links: self.max_links,
            max_connections: self.max_connections,
            reserved: [0; 8],
        })
    }
}

impl fmt::Display for ConfirmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            link,
            mac,
            gid,
            qp,
            max_links,
            ..
        } = self;
        write!(f, "link {link} mac {mac} gid {gid} qp {qp} max {max_links}")
    }
}

/// Why a client refuses an ADD LINK request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// 1: there is no alternate path.
    NoPath,
    /// 2: the MTU code is invalid.
    Mtu,
    /// Any other value of four bits; 0 if no reason was given.
    Other(u8),
}

impl Reject {
    pub(super) const fn from_nibble(code: u8) -> Self {
        match code & 0xf {
            1 => Self::NoPath,
            2 => Self::Mtu,
            other => Self::Other(other),
        }
    }

    /// Returns the code, 0 to 15.
    pub const fn code(self) -> u8 {
        match self {
            Self::NoPath => 1,
            Self::Mtu => 2,
            Self::Other(code) => code & 0xf,
        }
    }
}

/// Where the fields of ADD LINK are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddLinkLayout {
    /// As in use: two reserved bytes follow the MAC address.
    #[default]
    Deployed,
    /// As in figure 32 of RFC 7609: the GID follows the MAC address.
    ///
    /// A receiver can only tell the two apart if the GID does not start with two zero bytes.
    Rfc,
}

/// ADD LINK: the server offers another link, the client answers; a client hints at a port of its
/// own (RFC A.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLink {
    /// Tells the client's reply from a request or a hint.
    pub reply: bool,
    /// In a reply: the link is refused.
    pub reject: Option<Reject>,
    /// Address of the sender's port for the new link.
    pub mac: Mac,
    /// GID of the sender's port for the new link.
    pub gid: Gid,
    /// The sender's queue pair for the new link; 0 in a hint.
    pub qp: QpNum,
    /// Number of the new link; none in a hint.
    pub link: Option<LinkNum>,
    /// MTU of the sender's port; none in a hint, or if the code is reserved.
    pub mtu: Option<MtuCode>,
    /// First packet sequence number of the sender.
    pub psn: Psn,
    /// Where the fields are. Version 2 knows the deployed layout only.
    pub layout: AddLinkLayout,
}

/// What both layouts have in the same order.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddLinkPart {
    gid: Gid,
    qp: U24,
    link: u8,
    mtu: u8,
    psn: U24,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddLinkWire {
    header: [u8; 2],
    reason: u8,
    flags: u8,
    mac: Mac,
    reserved: [u8; 2],
    part: AddLinkPart,
    reserved_end: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddLinkRfcWire {
    header: [u8; 2],
    reason: u8,
    flags: u8,
    mac: Mac,
    part: AddLinkPart,
    reserved: [u8; 10],
}

impl AddLink {
    /// Z: the link is refused.
    pub(super) const REJECTED: u8 = 0x40;

    /// Turns a request into the reply which refuses it.
    pub fn rejection(&self, reason: Reject) -> Self {
        Self {
            reply: true,
            reject: Some(reason),
            ..*self
        }
    }

    /// Reads the version 1 form in either layout.
    pub(super) fn from_wire(bytes: &[u8; LEN]) -> Self {
        let wire: &AddLinkWire = zerocopy::transmute_ref!(bytes);
        let rfc: &AddLinkRfcWire = zerocopy::transmute_ref!(bytes);
        if wire.reserved == [0; 2] {
            Self::from_part(wire, wire.reason, &wire.part, AddLinkLayout::Deployed)
        } else {
            Self::from_part(wire, wire.reason, &rfc.part, AddLinkLayout::Rfc)
        }
    }

    /// Reads the version 2 form, in which the reason shares a byte with the flags.
    pub(super) fn from_wire_v2(bytes: &[u8; LEN]) -> Self {
        let wire: &AddLinkWire = zerocopy::transmute_ref!(bytes);
        Self::from_part(wire, wire.flags, &wire.part, AddLinkLayout::Deployed)
    }

    fn from_part(
        wire: &AddLinkWire,
        reason: u8,
        part: &AddLinkPart,
        layout: AddLinkLayout,
    ) -> Self {
        let reply = wire.flags & REPLY != 0;
        let rejected = reply && wire.flags & Self::REJECTED != 0;
        Self {
            reply,
            reject: rejected.then(|| Reject::from_nibble(reason)),
            mac: wire.mac,
            gid: part.gid,
            qp: part.qp.into(),
            link: LinkNum::new(part.link),
            mtu: MtuCode::new(part.mtu & 0xf),
            psn: part.psn.into(),
            layout,
        }
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        // Z belongs to replies only.
        let reject = if self.reply { self.reject } else { None };
        let reason = reject.map_or(0, Reject::code);
        let flags = flag(self.reply, REPLY) | flag(reject.is_some(), Self::REJECTED);
        let part = AddLinkPart {
            gid: self.gid,
            qp: self.qp.into(),
            link: LinkNum::to_wire(self.link),
            mtu: MtuCode::to_wire(self.mtu),
            psn: self.psn.into(),
        };
        match self.layout {
            AddLinkLayout::Deployed => zerocopy::transmute!(AddLinkWire {
                header: [0; 2],
                reason,
                flags,
                mac: self.mac,
                reserved: [0; 2],
                part,
                reserved_end: [0; 8],
            }),
            AddLinkLayout::Rfc => zerocopy::transmute!(AddLinkRfcWire {
                header: [0; 2],
                reason,
                flags,
                mac: self.mac,
                part,
                reserved: [0; 10],
            }),
        }
    }
}

impl fmt::Display for AddLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mac, gid, qp, .. } = self;
        write!(f, "{} mac {mac} gid {gid} qp {qp}", ShowLink(self.link))?;
        match self.reject {
            Some(reject) => write!(f, " rejected, reason {}", reject.code()),
            None => Ok(()),
        }
    }
}

/// The keys of one RMB on the link in use and on the one being added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RTokenPair {
    /// Its key on the link the message travels on.
    pub reference: RKey,
    /// Its key and address on the new link.
    pub new: RToken,
}

/// A [`RTokenPair`] as it is sent.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RTokenPairWire {
    reference: U32,
    rkey: U32,
    addr: U64,
}

impl From<RTokenPairWire> for RTokenPair {
    fn from(wire: RTokenPairWire) -> Self {
        Self {
            reference: RKey(wire.reference.get()),
            new: RToken {
                rkey: RKey(wire.rkey.get()),
                addr: wire.addr.get(),
            },
        }
    }
}

impl From<RTokenPair> for RTokenPairWire {
    fn from(pair: RTokenPair) -> Self {
        Self {
            reference: pair.reference.0.into(),
            rkey: pair.new.rkey.0.into(),
            addr: pair.new.addr.into(),
        }
    }
}

impl fmt::Debug for RTokenPairWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RTokenPair::from(*self).fmt(f)
    }
}

/// ADD LINK CONTINUATION: keys of existing buffers on the link being added (RFC A.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLinkCont {
    /// Tells the client's reply from the server's request.
    pub reply: bool,
    /// The link being added.
    pub link: LinkNum,
    /// How many keys the sender has yet to convey, those of this message included.
    pub left: u8,
    /// The keys of this message; only the first `left` of them are valid.
    pub pairs: [RTokenPair; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddLinkContWire {
    header: [u8; 3],
    flags: u8,
    link: u8,
    left: u8,
    reserved: [u8; 2],
    pairs: [RTokenPairWire; 2],
    reserved_end: [u8; 4],
}

impl AddLinkCont {
    /// Returns the valid pairs of this message.
    pub fn pairs(&self) -> &[RTokenPair] {
        self.pairs
            .get(..usize::from(self.left))
            .unwrap_or(&self.pairs)
    }

    pub(super) fn from_wire(bytes: &[u8; LEN]) -> Result<Self, ParseError> {
        let wire: &AddLinkContWire = zerocopy::transmute_ref!(bytes);
        let [first, second] = wire.pairs;
        Ok(Self {
            reply: wire.flags & REPLY != 0,
            link: LinkNum::new(wire.link).ok_or(ParseError::LinkNum)?,
            left: wire.left,
            pairs: Self::valid(wire.left, [first.into(), second.into()]),
        })
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        let [first, second] = Self::valid(self.left, self.pairs);
        zerocopy::transmute!(AddLinkContWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY),
            link: self.link.get(),
            left: self.left,
            reserved: [0; 2],
            pairs: [first.into(), second.into()],
            reserved_end: [0; 4],
        })
    }

    /// Clears the pairs which are not in use.
    fn valid(left: u8, [first, second]: [RTokenPair; 2]) -> [RTokenPair; 2] {
        let none = RTokenPair::default();
        [
            if left >= 1 { first } else { none },
            if left >= 2 { second } else { none },
        ]
    }
}

impl fmt::Display for AddLinkCont {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {} keys left {}", self.link, self.left)
    }
}

/// Why a link is deleted, or was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteReason(pub u32);

impl DeleteReason {
    /// In a reply: done.
    pub const DONE: Self = Self(0);
    /// The path is lost.
    pub const PATH_LOST: Self = Self(0x0001_0000);
    /// An operator wants it.
    pub const OPERATOR: Self = Self(0x0002_0000);
    /// A program wants it, for example because the link group is idle.
    pub const PROGRAM: Self = Self(0x0003_0000);
    /// The peer violated the LLC protocol.
    pub const PROTOCOL: Self = Self(0x0004_0000);
    /// An asymmetric link is no longer needed.
    pub const ASYMMETRIC: Self = Self(0x0005_0000);
    /// In a reply: there is no such link.
    pub const NO_SUCH_LINK: Self = Self(0x0010_0000);
    /// In a reply: there is no such link group.
    pub const NO_SUCH_GROUP: Self = Self(0x0020_0000);
}

impl fmt::Display for DeleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::DONE => "done",
            Self::PATH_LOST => "path lost",
            Self::OPERATOR => "operator",
            Self::PROGRAM => "program",
            Self::PROTOCOL => "protocol violation",
            Self::ASYMMETRIC => "asymmetric link no longer needed",
            Self::NO_SUCH_LINK => "no such link",
            Self::NO_SUCH_GROUP => "no such link group",
            Self(other) => return write!(f, "{other:#010x}"),
        };
        f.write_str(text)
    }
}

/// DELETE LINK: the server takes down one link or all, the client asks it to (RFC A.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteLink {
    /// Tells a reply from a request.
    pub reply: bool,
    /// A: all links, and with them the link group.
    pub all: bool,
    /// O: orderly, there is time to move connections.
    pub orderly: bool,
    /// The link; none together with `all`.
    pub link: Option<LinkNum>,
    /// Why.
    pub reason: DeleteReason,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeleteLinkWire {
    header: [u8; 3],
    flags: u8,
    link: u8,
    reason: U32,
    reserved: [u8; 35],
}

impl DeleteLink {
    const ALL: u8 = 0x40;
    const ORDERLY: u8 = 0x20;

    pub(super) fn from_wire(bytes: &[u8; LEN]) -> Self {
        let wire: &DeleteLinkWire = zerocopy::transmute_ref!(bytes);
        Self {
            reply: wire.flags & REPLY != 0,
            all: wire.flags & Self::ALL != 0,
            orderly: wire.flags & Self::ORDERLY != 0,
            link: LinkNum::new(wire.link),
            reason: DeleteReason(wire.reason.get()),
        }
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        zerocopy::transmute!(DeleteLinkWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY)
                | flag(self.all, Self::ALL)
                | flag(self.orderly, Self::ORDERLY),
            link: LinkNum::to_wire(self.link),
            reason: self.reason.0.into(),
            reserved: [0; 35],
        })
    }
}

impl fmt::Display for DeleteLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all {
            f.write_str("all links")?;
        } else {
            ShowLink(self.link).fmt(f)?;
        }
        let orderly = if self.orderly { ", orderly" } else { "" };
        write!(f, "{orderly}, {}", self.reason)
    }
}

/// TEST LINK: asks for a sign of life on an idle link (RFC A.3.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TestLink {
    /// Tells a reply from a request.
    pub reply: bool,
    /// Chosen by the sender of the request; the reply repeats it.
    pub data: [u8; 16],
    /// The reply repeats this as well.
    pub unused: Unused,
}

/// What has no meaning in TEST LINK: zeros, unless a peer knows better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unused {
    /// The third byte; always zero in version 2, where it belongs to the length.
    pub byte: u8,
    /// All flags but the one that makes a reply.
    pub flags: u8,
    /// What is behind the data.
    pub tail: [u8; 24],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TestLinkWire {
    header: [u8; 2],
    byte: u8,
    flags: u8,
    data: [u8; 16],
    tail: [u8; 24],
}

impl TestLink {
    pub(super) fn from_wire(bytes: &[u8; LEN], v2: bool) -> Self {
        let wire: &TestLinkWire = zerocopy::transmute_ref!(bytes);
        Self {
            reply: wire.flags & REPLY != 0,
            data: wire.data,
            unused: Unused {
                byte: if v2 { 0 } else { wire.byte },
                flags: wire.flags & !REPLY,
                tail: wire.tail,
            },
        }
    }

    pub(super) fn to_wire(self) -> [u8; LEN] {
        zerocopy::transmute!(TestLinkWire {
            header: [0; 2],
            byte: self.unused.byte,
            flags: flag(self.reply, REPLY) | (self.unused.flags & !REPLY),
            data: self.data,
            tail: self.unused.tail,
        })
    }
}
