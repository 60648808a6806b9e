// SPDX-License-Identifier: GPL-2.0

//! The CDC message, which carries cursors and flags of one connection (RFC 7609 A.4).

use crate::{
    llc,
    wire::{
        AlertToken,
        ParseError, //
    },
};
use core::fmt;
use zerocopy::{
    big_endian::{
        U16,
        U32, //
    },
    FromBytes, //
};
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

/// Type byte of a CDC message.
pub const TYPE: u8 = 0xfe;

/// Length of a CDC message in bytes.
pub const LEN: usize = llc::LEN;

/// A cursor as the peer sends it; nothing is known yet about its relation to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawCursor {
    /// How often the cursor wrapped around its buffer, modulo 65536.
    pub wrap: u16,
    /// Offset in the buffer in bytes.
    pub count: u32,
}

impl fmt::Display for RawCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.wrap, self.count)
    }
}

/// Flags about the data which the sender of the message produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProdFlags {
    /// B: the sender has more data than the receiver has room.
    pub blocked: bool,
    /// P: urgent data waits to be sent.
    pub urgent_pending: bool,
    /// U: the producer cursor points one past the last urgent byte.
    pub urgent_present: bool,
    /// R: a consumer cursor is wanted as soon as there is news.
    pub update_requested: bool,
    /// F: first message on another link; only the sequence number counts (RFC 4.6.1).
    pub failover: bool,
}

impl ProdFlags {
    const B: u8 = 0x80;
    const P: u8 = 0x40;
    const U: u8 = 0x20;
    const R: u8 = 0x10;
    const F: u8 = 0x08;

    #[inline]
    fn parse(byte: u8) -> Self {
        Self {
            blocked: byte & Self::B != 0,
            urgent_pending: byte & Self::P != 0,
            urgent_present: byte & Self::U != 0,
            update_requested: byte & Self::R != 0,
            failover: byte & Self::F != 0,
        }
    }

    /// The flags as they are on the wire.
    #[inline]
    pub fn bits(self) -> u8 {
        flag(self.blocked, Self::B)
            | flag(self.urgent_pending, Self::P)
            | flag(self.urgent_present, Self::U)
            | flag(self.update_requested, Self::R)
            | flag(self.failover, Self::F)
    }
}

/// Flags about the state of the sender of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateFlags {
    /// D: nothing follows the data up to the producer cursor.
    pub done: bool,
    /// C: the connection is closed; neither data nor messages follow.
    pub closed: bool,
    /// A: the connection is aborted; neither data nor messages follow.
    pub aborted: bool,
}

impl StateFlags {
    const D: u8 = 0x80;
    const C: u8 = 0x40;
    const A: u8 = 0x20;

    #[inline]
    fn parse(byte: u8) -> Self {
        Self {
            done: byte & Self::D != 0,
            closed: byte & Self::C != 0,
            aborted: byte & Self::A != 0,
        }
    }

    /// The flags as they are on the wire.
    #[inline]
    pub fn bits(self) -> u8 {
        flag(self.done, Self::D) | flag(self.closed, Self::C) | flag(self.aborted, Self::A)
    }
}

/// Returns `bit` if `set`.
#[inline]
pub(crate) fn flag(set: bool, bit: u8) -> u8 {
    if set {
        bit
    } else {
        0
    }
}

/// The CDC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cdc {
    /// Number of the message on its connection and in its direction; the first one is 1.
    pub seq: u16,
    /// The token which the receiver gave to the connection.
    pub token: AlertToken,
    /// Where the sender writes next, in the receiver's element.
    pub prod: RawCursor,
    /// Where the sender reads next, in its own element.
    pub cons: RawCursor,
    /// Flags about the sender's data.
    pub prod_flags: ProdFlags,
    /// Flags about the sender's state.
    pub state_flags: StateFlags,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CursorWire {
    reserved: [u8; 2],
    wrap: U16,
    count: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CdcWire {
    kind: u8,
    len: u8,
    seq: U16,
    token: U32,
    prod: CursorWire,
    cons: CursorWire,
    prod_flags: u8,
    state_flags: u8,
    reserved: [u8; 18],
}

impl From<&CursorWire> for RawCursor {
    fn from(wire: &CursorWire) -> Self {
        Self {
            wrap: wire.wrap.get(),
            count: wire.count.get(),
        }
    }
}

impl From<RawCursor> for CursorWire {
    fn from(cursor: RawCursor) -> Self {
        Self {
            reserved: [0; 2],
            wrap: cursor.wrap.into(),
            count: cursor.count.into(),
        }
    }
}

impl Cdc {
    /// Whether it takes the place of another message of the same connection where only one is kept: the
    /// one that was sent last says all, and a validation says nothing beyond what it is about.
    pub const fn supersedes(&self, other: &Self) -> bool {
        if self.prod_flags.failover || other.prod_flags.failover {
            return !self.prod_flags.failover;
        }
        self.seq.wrapping_sub(other.seq) < 0x8000
    }

    /// Makes the message by which the peer checks, after a change of links, that it lost nothing.
    ///
    /// `seq` is the number of the last message known to have arrived (RFC 4.6.1).
    pub fn failover_validation(token: AlertToken, seq: u16) -> Self {
        Self {
            seq,
            token,
            prod_flags: ProdFlags {
                failover: true,
                ..ProdFlags::default()
            },
            ..Self::default()
        }
    }

    /// Reads a received message whose first byte is [`TYPE`].
    ///
    /// Bytes beyond [`LEN`] are not looked at.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Ok((wire, _)) = CdcWire::ref_from_prefix(bytes) else {
            return Err(ParseError::Short(bytes.len()));
        };
        if wire.kind != TYPE {
            return Err(ParseError::LlcType(wire.kind));
        }
        if usize::from(wire.len) != LEN {
            return Err(ParseError::Length(wire.len.into()));
        }
        Ok(Self {
            seq: wire.seq.get(),
            token: AlertToken(wire.token.get()),
            prod: (&wire.prod).into(),
            cons: (&wire.cons).into(),
            prod_flags: ProdFlags::parse(wire.prod_flags),
            state_flags: StateFlags::parse(wire.state_flags),
        })
    }

    /// Returns the message as it is sent.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let wire = CdcWire {
            kind: TYPE,
            len: llc::LEN_BYTE,
            seq: self.seq.into(),
            token: self.token.0.into(),
            prod: self.prod.into(),
            cons: self.cons.into(),
            prod_flags: self.prod_flags.bits(),
            state_flags: self.state_flags.bits(),
            reserved: [0; 18],
        };
        zerocopy::transmute!(wire)
    }
}

impl fmt::Display for Cdc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CDC {} token {} prod {} cons {}",
            self.seq, self.token, self.prod, self.cons
        )?;
        let flags = [
            (self.prod_flags.blocked, " B"),
            (self.prod_flags.urgent_pending, " P"),
            (self.prod_flags.urgent_present, " U"),
            (self.prod_flags.update_requested, " R"),
            (self.prod_flags.failover, " F"),
            (self.state_flags.done, " D"),
            (self.state_flags.closed, " C"),
            (self.state_flags.aborted, " A"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            f.write_str(name)?;
        }
        Ok(())
    }
}
