// SPDX-License-Identifier: GPL-2.0

//! LLC messages of version 2, for links of SMC-Rv2.
//!
//! Messages of 44 bytes are those of version 1 except that the length takes bytes 1 and 2. The
//! longer ones carry lists which a received [`Llc`] borrows from the buffer.
//!
//! Linux sends the length, and the number of keys of ADD LINK, in the byte order of its machine.
//! So the caller remembers the [`ByteOrder`] in which the peer's CONFIRM LINK came and emits in the
//! same.

use super::{
    AddLink,
    ConfirmLink,
    ConfirmRkey,
    DeleteLink,
    TestLink,
    LEN,
    REPLY, //
};
use crate::{
    cdc::flag,
    clc::Out,
    wire::{
        ByteOrder,
        Gid,
        ParseError, //
    },
};
use zerocopy::{
    big_endian::U32,
    FromBytes, //
};
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

pub use super::link::RTokenPairWire;

/// Longest message in bytes; receive buffers have to take this much.
pub const MAX_LEN: usize = 8192;

super::llc_types! {
    /// CONFIRM LINK.
    ConfirmLink = 0x21, "CONFIRM LINK v2";
    /// ADD LINK, with the keys which version 1 has in continuations.
    AddLink = 0x22, "ADD LINK v2";
    /// DELETE LINK.
    DeleteLink = 0x24, "DELETE LINK v2";
    /// REQUEST ADD LINK.
    RequestAddLink = 0x25, "REQUEST ADD LINK";
    /// CONFIRM RKEY.
    ConfirmRkey = 0x26, "CONFIRM RKEY v2";
    /// TEST LINK.
    TestLink = 0x27, "TEST LINK v2";
    /// DELETE RKEY.
    DeleteRkey = 0x29, "DELETE RKEY v2";
}

/// A version 2 LLC message; `'a` is the received or the prepared list inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Llc<'a> {
    /// CONFIRM LINK: the first message on a new link.
    ConfirmLink(ConfirmLink),
    /// ADD LINK: offers another link.
    AddLink(AddLinkV2<'a>),
    /// DELETE LINK: takes down one link or all.
    DeleteLink(DeleteLink),
    /// REQUEST ADD LINK: the client asks for another link.
    RequestAddLink(RequestAddLink<'a>),
    /// CONFIRM RKEY: announces a new buffer.
    ConfirmRkey(ConfirmRkey),
    /// TEST LINK: asks for a sign of life.
    TestLink(TestLink),
    /// DELETE RKEY: withdraws buffers.
    DeleteRkey(DeleteRkeyV2<'a>),
}

/// ADD LINK of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLinkV2<'a> {
    /// The fields shared with version 1.
    pub base: AddLink,
    /// What a rejection does not have.
    pub ext: Option<AddLinkExt<'a>>,
}

/// Second part of [`AddLinkV2`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLinkExt<'a> {
    /// The peers are on the same subnet.
    pub direct: bool,
    /// The GID of the client that the link shall use; Linux puts the sender's there.
    pub target_gid: Gid,
    /// Keys of the sender's buffers.
    pub pairs: &'a [RTokenPairWire],
}

/// REQUEST ADD LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestAddLink<'a> {
    /// Tells the server's refusal from the client's request.
    pub reply: bool,
    /// GIDs of the client's ports; none in a refusal.
    pub gids: &'a [Gid],
}

/// A key as it is sent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct RKeyWire(pub U32);

impl From<crate::wire::RKey> for RKeyWire {
    fn from(rkey: crate::wire::RKey) -> Self {
        Self(rkey.0.into())
    }
}

impl From<RKeyWire> for crate::wire::RKey {
    fn from(wire: RKeyWire) -> Self {
        Self(wire.0.get())
    }
}

/// DELETE RKEY of version 2, with up to 255 keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteRkeyV2<'a> {
    /// Tells a reply from a request.
    pub reply: bool,
    /// Z: some of the keys were not known.
    pub negative: bool,
    /// With `negative`: how many were not known.
    pub errors: u8,
    /// The keys on the link the message travels on; may be missing in a reply.
    pub rkeys: &'a [RKeyWire],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddLinkExtWire {
    attachment: u8,
    reserved: u8,
    target_gid: Gid,
    reserved2: [u8; 8],
    count: [u8; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestAddLinkWire {
    header: [u8; 3],
    flags: u8,
    reserved: [u8; 20],
    count: u8,
    reserved2: [u8; 3],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeleteRkeyWire {
    header: [u8; 3],
    flags: u8,
    count: u8,
    errors: u8,
    reserved: [u8; 2],
}

/// Sender is on the same subnet.
const DIRECT: u8 = 0x80;
/// Z of DELETE RKEY.
const NEGATIVE: u8 = 0x20;

/// Finds the byte order in which a length field fits a message of `actual` bytes.
fn byte_order(field: [u8; 2], actual: usize) -> Option<ByteOrder> {
    let orders = [ByteOrder::Big, ByteOrder::Little];
    let len = |order: &ByteOrder| usize::from(order.u16(field));
    let exact = orders.iter().find(|order| len(order) == actual);
    exact
        .or_else(|| {
            orders
                .iter()
                .find(|order| (LEN..=actual).contains(&len(order)))
        })
        .copied()
}

impl<'a> Llc<'a> {
    /// Reads a message received on a version 2 link, and tells the byte order of its length.
    ///
    /// `bytes` is exactly what the SEND carried.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, ByteOrder), ParseError> {
        let Some((fixed, rest)) = bytes.split_first_chunk::<LEN>() else {
            return Err(ParseError::Short(bytes.len()));
        };
        let [first, a, b, ..] = *fixed;
        let Some(kind) = LlcType::from_byte(first) else {
            return Err(match super::LlcType::from_byte(first) {
                Some(_) => ParseError::LlcVersion(first),
                None => ParseError::LlcType(first),
            });
        };
        let Some(order) = byte_order([a, b], bytes.len()) else {
            return Err(ParseError::Length(u16::from_be_bytes([a, b])));
        };
        let message = match kind {
            LlcType::ConfirmLink => Self::ConfirmLink(ConfirmLink::from_wire(fixed, true)?),
            LlcType::AddLink => Self::AddLink(AddLinkV2::from_wire(fixed, rest, order)),
            LlcType::DeleteLink => Self::DeleteLink(DeleteLink::from_wire(fixed)),
            LlcType::RequestAddLink => Self::RequestAddLink(RequestAddLink::from_wire(bytes)?),
            LlcType::ConfirmRkey => Self::ConfirmRkey(ConfirmRkey::from_wire(fixed)),
            LlcType::TestLink => Self::TestLink(TestLink::from_wire(fixed, true)),
            LlcType::DeleteRkey => Self::DeleteRkey(DeleteRkeyV2::from_wire(bytes)?),
        };
        Ok((message, order))
    }

    /// Writes the message to `out` and returns its length, or none if `out` is too short or a list
    /// too long for its counter or for [`MAX_LEN`].
    pub fn emit(&self, order: ByteOrder, out: &mut [u8]) -> Option<usize> {
        let mut writer = Out::new(out);
        match self {
            Self::ConfirmLink(llc) => writer.put(&llc.to_wire())?,
            Self::AddLink(llc) => llc.write(order, &mut writer)?,
            Self::DeleteLink(llc) => writer.put(&llc.to_wire())?,
            Self::RequestAddLink(llc) => llc.write(&mut writer)?,
            Self::ConfirmRkey(llc) => writer.put(&llc.to_wire())?,
            Self::TestLink(llc) => writer.put(&llc.to_wire())?,
            Self::DeleteRkey(llc) => llc.write(&mut writer)?,
        }
        writer.fill(LEN)?;
        let written = writer.written();
        if written > MAX_LEN {
            return None;
        }
        let len = order.bytes(u16::try_from(written).ok()?);
        let (header, _) = out.split_first_chunk_mut::<3>()?;
        let [a, b] = len;
        *header = [self.kind().to_byte(), a, b];
        Some(written)
    }

    /// Returns the type of the message.
    pub const fn kind(&self) -> LlcType {
        match self {
            Self::ConfirmLink(_) => LlcType::ConfirmLink,
            Self::AddLink(_) => LlcType::AddLink,
            Self::DeleteLink(_) => LlcType::DeleteLink,
            Self::RequestAddLink(_) => LlcType::RequestAddLink,
            Self::ConfirmRkey(_) => LlcType::ConfirmRkey,
            Self::TestLink(_) => LlcType::TestLink,
            Self::DeleteRkey(_) => LlcType::DeleteRkey,
        }
    }

    /// Tells a reply from a request.
    pub const fn is_reply(&self) -> bool {
        match self {
            Self::ConfirmLink(llc) => llc.reply,
            Self::AddLink(llc) => llc.base.reply,
            Self::DeleteLink(llc) => llc.reply,
            Self::RequestAddLink(llc) => llc.reply,
            Self::ConfirmRkey(llc) => llc.reply,
            Self::TestLink(llc) => llc.reply,
            Self::DeleteRkey(llc) => llc.reply,
        }
    }
}

impl<'a> AddLinkV2<'a> {
    fn from_wire(fixed: &[u8; LEN], rest: &'a [u8], order: ByteOrder) -> Self {
        let base = AddLink::from_wire_v2(fixed);
        let ext = match AddLinkExtWire::ref_from_prefix(rest) {
            Ok((wire, rest)) if base.reject.is_none() => Some(AddLinkExt {
                direct: wire.attachment & DIRECT != 0,
                target_gid: wire.target_gid,
                pairs: up_to(rest, order.u16(wire.count).into()),
            }),
            _ => None,
        };
        Self { base, ext }
    }

    fn write(&self, order: ByteOrder, out: &mut Out<'_>) -> Option<()> {
        let base = AddLink {
            layout: super::AddLinkLayout::Deployed,
            ..self.base
        };
        let reject = if base.reply { base.reject } else { None };
        let mut fixed = base.to_wire();
        // The reason moves from its own byte, now part of the length, into that of the flags.
        let [_, _, _, flags, ..] = &mut fixed;
        *flags |= reject.map_or(0, super::Reject::code);
        out.put(&fixed)?;
        if let (Some(ext), None) = (&self.ext, reject) {
            let count = u16::try_from(ext.pairs.len()).ok()?;
            out.put(&AddLinkExtWire {
                attachment: flag(ext.direct, DIRECT),
                reserved: 0,
                target_gid: ext.target_gid,
                reserved2: [0; 8],
                count: order.bytes(count),
            })?;
            out.put(ext.pairs)?;
        }
        Some(())
    }
}

impl<'a> RequestAddLink<'a> {
    fn from_wire(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Ok((wire, rest)) = RequestAddLinkWire::ref_from_prefix(bytes) else {
            return Err(ParseError::Short(bytes.len()));
        };
        Ok(Self {
            reply: wire.flags & REPLY != 0,
            gids: exactly(rest, wire.count)?,
        })
    }

    fn write(&self, out: &mut Out<'_>) -> Option<()> {
        out.put(&RequestAddLinkWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY),
            reserved: [0; 20],
            count: u8::try_from(self.gids.len()).ok()?,
            reserved2: [0; 3],
        })?;
        out.put(self.gids)
    }
}

impl<'a> DeleteRkeyV2<'a> {
    fn from_wire(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Ok((wire, rest)) = DeleteRkeyWire::ref_from_prefix(bytes) else {
            return Err(ParseError::Short(bytes.len()));
        };
        let reply = wire.flags & REPLY != 0;
        let negative = wire.flags & NEGATIVE != 0;
        Ok(Self {
            reply,
            negative,
            errors: if negative { wire.errors } else { 0 },
            // Linux replies with 44 bytes to any number of keys.
            rkeys: if reply {
                up_to(rest, wire.count.into())
            } else {
                exactly(rest, wire.count)?
            },
        })
    }

    fn write(&self, out: &mut Out<'_>) -> Option<()> {
        out.put(&DeleteRkeyWire {
            header: [0; 3],
            flags: flag(self.reply, REPLY) | flag(self.negative, NEGATIVE),
            count: u8::try_from(self.rkeys.len()).ok()?,
            errors: if self.negative { self.errors } else { 0 },
            reserved: [0; 2],
        })?;
        out.put(self.rkeys)
    }
}

/// Returns as many values as `bytes` has room for, at most `count`.
fn up_to<T>(bytes: &[u8], count: usize) -> &[T]
where
    T: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
{
    let room = bytes
        .len()
        .checked_div(core::mem::size_of::<T>())
        .unwrap_or(0);
    match <[T]>::ref_from_prefix_with_elems(bytes, count.min(room)) {
        Ok((values, _)) => values,
        Err(_) => &[],
    }
}

/// Returns `count` values, or an error if there is no room for them.
fn exactly<T>(bytes: &[u8], count: u8) -> Result<&[T], ParseError>
where
    T: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
{
    match <[T]>::ref_from_prefix_with_elems(bytes, count.into()) {
        Ok((values, _)) => Ok(values),
        Err(_) => Err(ParseError::EntryCount(count)),
    }
}
