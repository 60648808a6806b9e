// SPDX-License-Identifier: GPL-2.0

//! CLC messages, by which client and server agree on SMC-R over their TCP connection (RFC 7609
//! A.2): Proposal, Accept, Confirm and Decline, in versions 1 and 2.
//!
//! [`Assembler`] reads one of them from the stream and nothing of what follows it.

mod accept;
mod assembler;
mod decline;
mod out;
mod proposal;

pub use self::{
    accept::{
        AcceptConfirm,
        AcceptV2,
        FirstContact, //
    },
    assembler::Assembler,
    decline::Decline,
    proposal::{
        Ipv4Subnet,
        Ipv6Prefix,
        OfferV1,
        OfferV2,
        Prefixes,
        Proposal, //
    },
};
use crate::wire::{
    EyeCatcher,
    ParseError, //
};
use core::fmt;
use zerocopy::{
    big_endian::U16,
    FromBytes, //
};
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

pub(crate) use out::Out;

/// Length in bytes of the header of every message.
pub const HEADER_LEN: usize = 8;

/// Length in bytes of the trailer of every message, a repeated eye catcher.
pub const TRAILER_LEN: usize = 4;

/// How much of a message is kept. What is longer is read, but nothing behind is looked at.
pub const MAX_KEEP: usize = 652;

/// Longest message in bytes that we emit.
pub const MAX_EMIT: usize = 524;

/// OS type of Linux in version 2 messages.
pub const OS_LINUX: u8 = 2;

/// Values of the two bits for a path.
mod path {
    pub(super) const SMC_R: u8 = 0;
    pub(super) const SMC_D: u8 = 1;
    pub(super) const NONE: u8 = 2;
    pub(super) const BOTH: u8 = 3;

    /// The bits in byte 7 for the path chosen, or the version 1 path of a Proposal.
    pub(super) const MASK: u8 = 0x03;
}

/// F in Accept and Confirm, S in Decline.
const FLAG: u8 = 0x08;

/// Types of CLC messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The client offers its port.
    Proposal,
    /// The server names link and buffer.
    Accept,
    /// The client names its own.
    Confirm,
    /// Either side prefers TCP.
    Decline,
}

impl Kind {
    /// Recognises a type byte.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Proposal),
            2 => Some(Self::Accept),
            3 => Some(Self::Confirm),
            4 => Some(Self::Decline),
            _ => None,
        }
    }

    /// Returns the byte on the wire.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Proposal => 1,
            Self::Accept => 2,
            Self::Confirm => 3,
            Self::Decline => 4,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proposal => "Proposal",
            Self::Accept => "Accept",
            Self::Confirm => "Confirm",
            Self::Decline => "Decline",
        })
    }
}

/// The first eight bytes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Type of the message.
    pub kind: Kind,
    /// Length of the whole message in bytes, possible for the type.
    pub len: u16,
    /// Version, 1 to 15.
    pub version: u8,
    /// The four low bits of byte 7: flags and paths.
    pub low: u8,
    /// Kind of the eye catcher.
    pub eye_catcher: EyeCatcher,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderWire {
    eye_catcher: [u8; 4],
    kind: u8,
    len: U16,
    version: u8,
}

impl Header {
    /// Reads a header, and checks all that can be known without the rest of the message.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, ParseError> {
        let wire: &HeaderWire = zerocopy::transmute_ref!(bytes);
        let eye_catcher = EyeCatcher::from_bytes(wire.eye_catcher).ok_or(ParseError::EyeCatcher)?;
        let kind = Kind::from_byte(wire.kind).ok_or(ParseError::ClcType(wire.kind))?;
        let header = Self {
            kind,
            len: wire.len.get(),
            version: wire.version >> 4,
            low: wire.version & 0xf,
            eye_catcher,
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), ParseError> {
        let len = usize::from(self.len);
        let possible = match (self.kind, self.version) {
            (_, 0) => return Err(ParseError::ClcVersion(0)),
            (Kind::Accept | Kind::Confirm, version) => match (self.path(), version) {
                (path::SMC_R, _) if self.eye_catcher == EyeCatcher::SmcD => {
                    return Err(ParseError::EyeCatcher)
                }
                (path::SMC_R, 1) => len == accept::LEN_V1,
                (path::SMC_R, 2) => len >= accept::MIN_LEN_V2,
                // To be read and then declined.
                (path::SMC_R | path::SMC_D, _) => len >= accept::MIN_LEN_SMC_D,
                (other, _) => return Err(ParseError::Path(other)),
            },
            _ if self.eye_catcher == EyeCatcher::SmcD => return Err(ParseError::EyeCatcher),
            (Kind::Proposal, 1) => len >= proposal::MIN_LEN_V1,
            (Kind::Proposal, _) => len >= proposal::MIN_LEN_V2,
            (Kind::Decline, 1) => len == decline::LEN_V1,
            (Kind::Decline, 2) => len == decline::LEN_V2,
            (Kind::Decline, version) => return Err(ParseError::ClcVersion(version)),
        };
        if possible {
            Ok(())
        } else {
            Err(ParseError::ClcLength(self.len))
        }
    }

    /// The path chosen, or the version 1 path of a Proposal.
    fn path(&self) -> u8 {
        self.low & path::MASK
    }

    fn flag(&self) -> bool {
        self.low & FLAG != 0
    }

    /// Makes the header of a message of ours.
    fn wire(kind: Kind, len: usize, version: u8, low: u8) -> Option<HeaderWire> {
        Some(HeaderWire {
            eye_catcher: EyeCatcher::SmcR.to_bytes(),
            kind: kind.to_byte(),
            len: u16::try_from(len).ok()?.into(),
            version: (version << 4) | (low & 0xf),
        })
    }
}

/// A message of which the header is read and the trailer checked.
#[derive(Clone, Copy)]
struct Raw<'a> {
    header: Header,
    /// The message from its first byte on, without the trailer, and at most [`MAX_KEEP`] bytes.
    body: &'a [u8],
}

impl<'a> Raw<'a> {
    /// Takes a whole message.
    fn new(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Some((first, _)) = bytes.split_first_chunk() else {
            return Err(ParseError::Truncated);
        };
        let header = Header::parse(first)?;
        match bytes.len().cmp(&usize::from(header.len)) {
            core::cmp::Ordering::Less => Err(ParseError::Truncated),
            core::cmp::Ordering::Greater => Err(ParseError::Overrun),
            core::cmp::Ordering::Equal => {
                let Some((body, trailer)) = bytes.split_last_chunk() else {
                    return Err(ParseError::Truncated);
                };
                let body = body.get(..MAX_KEEP).unwrap_or(body);
                Self::from_parts(header, body, *trailer)
            }
        }
    }

    fn from_parts(
        header: Header,
        body: &'a [u8],
        trailer: [u8; TRAILER_LEN],
    ) -> Result<Self, ParseError> {
        if trailer == header.eye_catcher.to_bytes() {
            Ok(Self { header, body })
        } else {
            Err(ParseError::Trailer)
        }
    }

    /// Returns the structure at `offset` from the start of the message, if it lies inside.
    fn at<T>(&self, offset: usize) -> Option<&'a T>
    where
        T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
    {
        let (value, _) = T::ref_from_prefix(self.body.get(offset..)?).ok()?;
        Some(value)
    }

    /// Returns up to `count` structures from `offset` on, as many as are kept.
    fn list_at<T>(&self, offset: usize, count: usize) -> &'a [T]
    where
        T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
    {
        let bytes = self.body.get(offset..).unwrap_or_default();
        let room = bytes
            .len()
            .checked_div(core::mem::size_of::<T>())
            .unwrap_or(0);
        match <[T]>::ref_from_prefix_with_elems(bytes, count.min(room)) {
            Ok((values, _)) => values,
            Err(_) => &[],
        }
    }
}

/// A CLC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is no heap to put the large ones on"
)]
pub enum Message {
    /// The client offers its port.
    Proposal(Proposal),
    /// The server names link and buffer.
    Accept(AcceptConfirm),
    /// The client names its own.
    Confirm(AcceptConfirm),
    /// Either side prefers TCP.
    Decline(Decline),
}

impl Message {
    /// Reads a message; `bytes` has nothing but it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::from_raw(&Raw::new(bytes)?)
    }

    fn from_raw(raw: &Raw<'_>) -> Result<Self, ParseError> {
        Ok(match raw.header.kind {
            Kind::Proposal => Self::Proposal(Proposal::from_raw(raw)?),
            Kind::Accept => Self::Accept(AcceptConfirm::from_raw(raw)?),
            Kind::Confirm => Self::Confirm(AcceptConfirm::from_raw(raw)?),
            Kind::Decline => Self::Decline(Decline::from_raw(raw)?),
        })
    }

    /// Writes the message to `out` and returns its length, or none if `out` is too short.
    /// [`MAX_EMIT`] bytes are always enough.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Proposal(message) => message.emit(out),
            Self::Accept(message) => message.emit_accept(out),
            Self::Confirm(message) => message.emit_confirm(out),
            Self::Decline(message) => message.emit(out),
        }
    }

    /// Returns the type of the message.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Proposal(_) => Kind::Proposal,
            Self::Accept(_) => Kind::Accept,
            Self::Confirm(_) => Kind::Confirm,
            Self::Decline(_) => Kind::Decline,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind())?;
        match self {
            Self::Proposal(message) => message.fmt(f),
            Self::Accept(message) | Self::Confirm(message) => message.fmt(f),
            Self::Decline(message) => message.fmt(f),
        }
    }
}

/// Limits of a link group that release 1 of version 2 negotiates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most connections, 16 to 255.
    pub max_connections: u8,
    /// Most links, at least 1; in Accept and Confirm at most 2.
    pub max_links: u8,
    /// Feature mask; unknown bits mean nothing.
    pub features: u16,
}

impl Limits {
    fn parse(max_connections: u8, max_links: u8, features: u16) -> Result<Self, ParseError> {
        if max_connections < 16 {
            return Err(ParseError::MaxConnections(max_connections));
        }
        if max_links == 0 {
            return Err(ParseError::MaxLinks(0));
        }
        Ok(Self {
            max_connections,
            max_links,
            features,
        })
    }
}
