// SPDX-License-Identifier: GPL-2.0

//! What can be wrong with a received message, and what the protocol does about it.

use crate::diagnosis::Diagnosis;
use core::fmt;

/// What the receiver of an invalid message has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Reset the TCP connection and fail the socket: the byte stream can no longer be trusted
    /// (RFC C.6).
    Reset,
    /// Send a Decline with this diagnosis in place of the message owed and carry on over TCP;
    /// abort the connection if it is too late for that (RFC C.1, C.6).
    Decline(Diagnosis),
    /// Discard the message, count it, keep the link.
    Drop,
    /// The link is out of sync: treat it like a failed one (RFC C.7.1).
    Link,
}

/// What is wrong with a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseError {
    /// CLC: fewer bytes than the message announces.
    Truncated,
    /// CLC: more bytes than the message announces.
    Overrun,
    /// CLC: no SMC message starts here.
    EyeCatcher,
    /// CLC: the message does not end with the eye catcher.
    Trailer,
    /// CLC: unknown type.
    ClcType(u8),
    /// CLC: version 0, or a Decline of an unknown layout.
    ClcVersion(u8),
    /// CLC: a length that the type of the message cannot have.
    ClcLength(u16),
    /// CLC Proposal: the prefix area reaches beyond the message.
    PrefixArea,
    /// CLC Proposal: more than eight IPv6 prefixes.
    PrefixCount(u8),
    /// CLC Proposal: the version 2 extension reaches beyond the message.
    ExtensionArea,
    /// CLC Proposal: more than eight enterprise IDs.
    EidCount(u8),
    /// CLC Proposal: more than eight ISM entries.
    IsmCount(u8),
    /// CLC: a selected path which has no meaning.
    Path(u8),
    /// CLC: RMBE index 0.
    RmbeIndex,
    /// CLC: the RMB would reach beyond the end of the address space.
    RmbRange,
    /// CLC: the peer ID is zero.
    PeerId,
    /// CLC: the GID is zero.
    Gid,
    /// CLC: the MAC address is zero or a group address.
    Mac,
    /// CLC: a queue pair number reserved by InfiniBand.
    QpNum(u32),
    /// CLC: a reserved MTU code on first contact.
    Mtu(u8),
    /// CLC Proposal: a mask of more than 32 bits.
    MaskLength(u8),
    /// CLC Proposal: SMC-R is not among the offered paths of this version.
    NotOffered,
    /// CLC Proposal: there is no version 2 extension.
    NoExtension,
    /// CLC Proposal: version 2 without an enterprise ID.
    NoEid,
    /// CLC Proposal: version 2 without a GID.
    NoGidV2,
    /// CLC: the maximum of connections is below 16.
    MaxConnections(u8),
    /// CLC: the maximum of links is out of range.
    MaxLinks(u8),
    /// CLC Accept, Confirm: SMC-D or a version which was never offered is selected.
    ModeNotOffered,
    /// LLC or CDC: fewer bytes than a message has.
    Short(usize),
    /// LLC or CDC: a wrong length field.
    Length(u16),
    /// LLC: link number 0 in a message about a link.
    LinkNum,
    /// LLC: unknown type.
    LlcType(u8),
    /// LLC: a type of the other protocol version.
    LlcVersion(u8),
    /// LLC: more entries announced than the message has room for.
    EntryCount(u8),
}

impl ParseError {
    /// Returns what has to be done about a message with this error.
    pub const fn reaction(self) -> Reaction {
        match self {
            Self::Truncated
            | Self::Overrun
            | Self::EyeCatcher
            | Self::Trailer
            | Self::ClcType(_)
            | Self::ClcVersion(_)
            | Self::ClcLength(_)
            | Self::PrefixArea
            | Self::PrefixCount(_)
            | Self::ExtensionArea
            | Self::EidCount(_)
            | Self::IsmCount(_)
            | Self::Path(_)
            | Self::RmbeIndex
            | Self::RmbRange => Reaction::Reset,
            Self::PeerId | Self::QpNum(_) | Self::Mtu(_) => {
                Reaction::Decline(Diagnosis::CONFIGURATION)
            }
            Self::Gid | Self::Mac => Reaction::Decline(Diagnosis::NO_SMC_R_DEVICE),
            Self::MaskLength(_) => Reaction::Decline(Diagnosis::SUBNET_MISMATCH),
            Self::NotOffered => Reaction::Decline(Diagnosis::NO_DEVICE),
            Self::NoExtension => Reaction::Decline(Diagnosis::NO_V2_EXTENSION),
            Self::NoEid => Reaction::Decline(Diagnosis::NO_USER_EID),
            Self::NoGidV2 => Reaction::Decline(Diagnosis::NO_ROUTE),
            Self::MaxConnections(_) => Reaction::Decline(Diagnosis::MAX_CONNECTIONS),
            Self::MaxLinks(_) => Reaction::Decline(Diagnosis::MAX_LINKS),
            Self::ModeNotOffered => Reaction::Decline(Diagnosis::MODE_NOT_OFFERED),
            Self::Short(_) | Self::Length(_) | Self::LinkNum | Self::EntryCount(_) => {
                Reaction::Link
            }
            Self::LlcType(kind) => unknown_llc(kind),
            Self::LlcVersion(_) => Reaction::Drop,
        }
    }
}

/// What to do about a type byte without a meaning (RFC A.3, C.7.1): its top bits tell.
const fn unknown_llc(kind: u8) -> Reaction {
    if kind & 0xc0 == 0x80 {
        Reaction::Drop
    } else {
        Reaction::Link
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated => f.write_str("message is cut off"),
            Self::Overrun => f.write_str("bytes after the end of the message"),
            Self::EyeCatcher => f.write_str("no eye catcher"),
            Self::Trailer => f.write_str("no eye catcher at the end"),
            Self::ClcType(kind) => write!(f, "unknown CLC type {kind}"),
            Self::ClcVersion(version) => write!(f, "impossible version {version}"),
            Self::ClcLength(len) => write!(f, "impossible length {len}"),
            Self::PrefixArea => f.write_str("prefix area outside the message"),
            Self::PrefixCount(n) => write!(f, "{n} IPv6 prefixes"),
            Self::ExtensionArea => f.write_str("version 2 extension outside the message"),
            Self::EidCount(n) => write!(f, "{n} enterprise IDs"),
            Self::IsmCount(n) => write!(f, "{n} ISM entries"),
            Self::Path(path) => write!(f, "path {path} selected"),
            Self::RmbeIndex => f.write_str("RMBE index 0"),
            Self::RmbRange => f.write_str("RMB wraps around the address space"),
            Self::PeerId => f.write_str("peer ID is zero"),
            Self::Gid => f.write_str("GID is zero"),
            Self::Mac => f.write_str("MAC address is not a unicast address"),
            Self::QpNum(n) => write!(f, "reserved queue pair number {n}"),
            Self::Mtu(code) => write!(f, "reserved MTU code {code}"),
            Self::MaskLength(n) => write!(f, "IPv4 mask of {n} bits"),
            Self::NotOffered => f.write_str("SMC-R is not offered"),
            Self::NoExtension => f.write_str("no version 2 extension"),
            Self::NoEid => f.write_str("no enterprise ID"),
            Self::NoGidV2 => f.write_str("no GID for version 2"),
            Self::MaxConnections(n) => write!(f, "maximum of {n} connections"),
            Self::MaxLinks(n) => write!(f, "maximum of {n} links"),
            Self::ModeNotOffered => f.write_str("path or version was not offered"),
            Self::Short(n) => write!(f, "message of {n} bytes"),
            Self::Length(n) => write!(f, "length field {n}"),
            Self::LinkNum => f.write_str("link number 0"),
            Self::LlcType(kind) => write!(f, "unknown message type {kind:#04x}"),
            Self::LlcVersion(kind) => {
                write!(f, "message type {kind:#04x} of the other version")
            }
            Self::EntryCount(n) => write!(f, "{n} entries in too short a message"),
        }
    }
}

impl core::error::Error for ParseError {}
