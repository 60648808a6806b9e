// SPDX-License-Identifier: GPL-2.0

//! The Decline: either side carries on over TCP (RFC 7609 A.2.5).

use super::{
    Header,
    HeaderWire,
    Kind,
    Out,
    Raw,
    FLAG,
    HEADER_LEN,
    OS_LINUX, //
};
use crate::{
    cdc::flag,
    wire::{
        Diagnosis,
        EyeCatcher,
        ParseError,
        PeerId, //
    },
};
use core::fmt;
use zerocopy::big_endian::U32;
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

pub(super) const LEN_V1: usize = 28;
pub(super) const LEN_V2: usize = 44;

/// The Decline message. What follows it on the stream belongs to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decline {
    /// Version of the layout: 1 with 28 bytes, or 2 with 44.
    pub version: u8,
    /// S: the receiver has to drop the link group which the connection was about to use.
    pub out_of_sync: bool,
    /// The sender; may be zero.
    pub peer_id: PeerId,
    /// Why.
    pub diagnosis: Diagnosis,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeclineWire {
    peer_id: PeerId,
    diagnosis: U32,
    os: u8,
    reserved: [u8; 3],
}

impl Decline {
    /// Reads a message; `bytes` has nothing but it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw = Raw::new(bytes)?;
        match raw.header.kind {
            Kind::Decline => Self::from_raw(&raw),
            other => Err(ParseError::ClcType(other.to_byte())),
        }
    }

    pub(super) fn from_raw(raw: &Raw<'_>) -> Result<Self, ParseError> {
        let wire: &DeclineWire = raw.at(HEADER_LEN).ok_or(ParseError::Truncated)?;
        Ok(Self {
            version: raw.header.version,
            out_of_sync: raw.header.flag(),
            peer_id: wire.peer_id,
            diagnosis: Diagnosis(wire.diagnosis.get()),
        })
    }

    /// Writes the message to `out` and returns its length, or none if `out` is too short.
    ///
    /// A `version` other than 1 is written as version 2.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let (version, len, os) = match self.version {
            1 => (1, LEN_V1, 0),
            _ => (2, LEN_V2, OS_LINUX << 4),
        };
        let mut out = Out::new(out);
        let header: HeaderWire =
            Header::wire(Kind::Decline, len, version, flag(self.out_of_sync, FLAG))?;
        out.put(&header)?;
        out.put(&DeclineWire {
            peer_id: self.peer_id,
            diagnosis: self.diagnosis.0.into(),
            os,
            reserved: [0; 3],
        })?;
        if version == 2 {
            // Room for four more codes.
            out.put(&[0u8; 16])?;
        }
        out.put(&EyeCatcher::SmcR.to_bytes())?;
        Some(out.written())
    }
}

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sync = if self.out_of_sync {
            ", out of sync"
        } else {
            ""
        };
        write!(f, "peer {} {}{sync}", self.peer_id, self.diagnosis)
    }
}
