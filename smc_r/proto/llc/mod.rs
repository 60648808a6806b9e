// SPDX-License-Identifier: GPL-2.0

//! LLC messages, by which two peers manage the links and buffers of a link group (RFC 7609 A.3).
//!
//! This module has the messages of version 1, all of 44 bytes; those of version 2 are in [`v2`].
//! The first byte of a received SEND tells what it is: see [`kind`].

mod link;
mod rkey;
pub mod v2;

pub use self::{
    link::{
        AddLink,
        AddLinkCont,
        AddLinkLayout,
        ConfirmLink,
        DeleteLink,
        DeleteReason,
        RTokenPair,
        Reject,
        TestLink,
        Unused, //
    },
    rkey::{
        ConfirmRkey,
        ConfirmRkeyCont,
        DeleteRkey,
        LinkRToken, //
    },
};
use crate::{
    cdc,
    wire::{
        ParseError,
        Reaction, //
    },
};
use core::fmt;

/// Length of a version 1 LLC message, and of a CDC message, in bytes.
pub const LEN: usize = 44;

/// The length as it appears in the second byte.
pub(crate) const LEN_BYTE: u8 = 44;

/// R: the message is a reply.
pub(crate) const REPLY: u8 = 0x80;

/// What a received SEND is, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A CDC message.
    Cdc,
    /// An LLC message of version 1.
    Llc(LlcType),
    /// An LLC message of version 2.
    LlcV2(v2::LlcType),
    /// Nothing known; carries what has to be done.
    Unknown(Reaction),
}

/// Tells what a received SEND is by its first byte.
pub fn kind(first: u8) -> Kind {
    if first == cdc::TYPE {
        return Kind::Cdc;
    }
    if let Some(kind) = LlcType::from_byte(first) {
        return Kind::Llc(kind);
    }
    match v2::LlcType::from_byte(first) {
        Some(kind) => Kind::LlcV2(kind),
        None => Kind::Unknown(ParseError::LlcType(first).reaction()),
    }
}

macro_rules! llc_types {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Types of LLC messages.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum LlcType {
            $($(#[$doc])* $name = $code,)*
        }

        impl LlcType {
            /// All types in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Recognises a type byte.
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the byte on the wire.
            pub const fn to_byte(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                }
            }
        }

        impl core::fmt::Display for LlcType {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}
pub(crate) use llc_types;

llc_types! {
    /// CONFIRM LINK.
    ConfirmLink = 0x01, "CONFIRM LINK";
    /// ADD LINK.
    AddLink = 0x02, "ADD LINK";
    /// ADD LINK CONTINUATION.
    AddLinkCont = 0x03, "ADD LINK CONTINUATION";
    /// DELETE LINK.
    DeleteLink = 0x04, "DELETE LINK";
    /// CONFIRM RKEY.
    ConfirmRkey = 0x06, "CONFIRM RKEY";
    /// TEST LINK.
    TestLink = 0x07, "TEST LINK";
    /// CONFIRM RKEY CONTINUATION.
    ConfirmRkeyCont = 0x08, "CONFIRM RKEY CONTINUATION";
    /// DELETE RKEY.
    DeleteRkey = 0x09, "DELETE RKEY";
}

/// A version 1 LLC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Llc {
    /// CONFIRM LINK: the first message on a new link.
    ConfirmLink(ConfirmLink),
    /// ADD LINK: offers another link.
    AddLink(AddLink),
    /// ADD LINK CONTINUATION: keys of existing buffers on the link being added.
    AddLinkCont(AddLinkCont),
    /// DELETE LINK: takes down one link or all.
    DeleteLink(DeleteLink),
    /// CONFIRM RKEY: announces a new buffer.
    ConfirmRkey(ConfirmRkey),
    /// CONFIRM RKEY CONTINUATION: its keys on further links.
    ConfirmRkeyCont(ConfirmRkeyCont),
    /// DELETE RKEY: withdraws buffers.
    DeleteRkey(DeleteRkey),
    /// TEST LINK: asks for a sign of life.
    TestLink(TestLink),
}

impl Llc {
    /// Reads a message received on a version 1 link.
    ///
    /// Bytes beyond [`LEN`] are not looked at.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(message) = bytes.first_chunk::<LEN>() else {
            return Err(ParseError::Short(bytes.len()));
        };
        let [first, len, ..] = *message;
        let Some(kind) = LlcType::from_byte(first) else {
            return Err(match v2::LlcType::from_byte(first) {
                Some(_) => ParseError::LlcVersion(first),
                None => ParseError::LlcType(first),
            });
        };
        if len != LEN_BYTE {
            return Err(ParseError::Length(len.into()));
        }
        Ok(match kind {
            LlcType::ConfirmLink => Self::ConfirmLink(ConfirmLink::from_wire(message, false)?),
            LlcType::AddLink => Self::AddLink(AddLink::from_wire(message)),
            LlcType::AddLinkCont => Self::AddLinkCont(AddLinkCont::from_wire(message)?),
            LlcType::DeleteLink => Self::DeleteLink(DeleteLink::from_wire(message)),
            LlcType::ConfirmRkey => Self::ConfirmRkey(ConfirmRkey::from_wire(message)),
            LlcType::ConfirmRkeyCont => Self::ConfirmRkeyCont(ConfirmRkeyCont::from_wire(message)),
            LlcType::DeleteRkey => Self::DeleteRkey(DeleteRkey::from_wire(message)),
            LlcType::TestLink => Self::TestLink(TestLink::from_wire(message, false)),
        })
    }

    /// Returns the message as it is sent.
    pub fn emit(&self) -> [u8; LEN] {
        let mut message = match self {
            Self::ConfirmLink(llc) => llc.to_wire(),
            Self::AddLink(llc) => llc.to_wire(),
            Self::AddLinkCont(llc) => llc.to_wire(),
            Self::DeleteLink(llc) => llc.to_wire(),
            Self::ConfirmRkey(llc) => llc.to_wire(),
            Self::ConfirmRkeyCont(llc) => llc.to_wire(),
            Self::DeleteRkey(llc) => llc.to_wire(),
            Self::TestLink(llc) => llc.to_wire(),
        };
        let [kind, len, ..] = &mut message;
        *kind = self.kind().to_byte();
        *len = LEN_BYTE;
        message
    }

    /// Returns the type of the message.
    pub const fn kind(&self) -> LlcType {
        match self {
            Self::ConfirmLink(_) => LlcType::ConfirmLink,
            Self::AddLink(_) => LlcType::AddLink,
            Self::AddLinkCont(_) => LlcType::AddLinkCont,
            Self::DeleteLink(_) => LlcType::DeleteLink,
            Self::ConfirmRkey(_) => LlcType::ConfirmRkey,
            Self::ConfirmRkeyCont(_) => LlcType::ConfirmRkeyCont,
            Self::DeleteRkey(_) => LlcType::DeleteRkey,
            Self::TestLink(_) => LlcType::TestLink,
        }
    }

    /// Tells a reply from a request.
    pub const fn is_reply(&self) -> bool {
        match self {
            Self::ConfirmLink(llc) => llc.reply,
            Self::AddLink(llc) => llc.reply,
            Self::AddLinkCont(llc) => llc.reply,
            Self::DeleteLink(llc) => llc.reply,
            Self::ConfirmRkey(llc) => llc.reply,
            Self::ConfirmRkeyCont(llc) => llc.reply,
            Self::DeleteRkey(llc) => llc.reply,
            Self::TestLink(llc) => llc.reply,
        }
    }
}

impl fmt::Display for Llc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = if self.is_reply() { "reply" } else { "request" };
        write!(f, "{} {which}", self.kind())?;
        match self {
            Self::ConfirmLink(llc) => write!(f, " {llc}"),
            Self::AddLink(llc) => write!(f, " {llc}"),
            Self::AddLinkCont(llc) => write!(f, " {llc}"),
            Self::DeleteLink(llc) => write!(f, " {llc}"),
            Self::ConfirmRkey(llc) => write!(f, " {llc}"),
            Self::ConfirmRkeyCont(llc) => write!(f, " {llc}"),
            Self::DeleteRkey(llc) => write!(f, " {llc}"),
            Self::TestLink(_) => Ok(()),
        }
    }
}
