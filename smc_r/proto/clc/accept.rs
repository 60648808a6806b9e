// SPDX-License-Identifier: GPL-2.0

//! Accept and Confirm: server and client name their ends of the link and their buffers (RFC 7609
//! A.2.3 and A.2.4).

use super::{
    Header,
    Kind,
    Limits,
    Out,
    Raw,
    FLAG,
    HEADER_LEN,
    TRAILER_LEN, //
};
use crate::{
    cdc::flag,
    wire::{
        AlertToken,
        Eid,
        EyeCatcher,
        Gid,
        List,
        Mac,
        MtuCode,
        ParseError,
        PeerId,
        Psn,
        QpNum,
        RKey,
        RToken,
        RmbeIndex,
        RmbeSize,
        U24, //
    },
};
use core::fmt;
use zerocopy::big_endian::{
    U16,
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

pub(super) const LEN_V1: usize = 68;
/// Version 2 without first contact extension.
pub(super) const MIN_LEN_V2: usize = 108;
pub(super) const MIN_LEN_SMC_D: usize = 48;

const V2_AT: usize = 64;
const FIRST_AT: usize = 104;
const LIMITS_AT: usize = 140;
const GIDS_AT: usize = 156;
const GID_HEAD: usize = 4;
const GID_LEN: usize = 16;

/// What Accept and Confirm have in common, which is everything in version 1.
///
/// "Sender" is the server in an Accept and the client in a Confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptConfirm {
    /// F: a new link has to be set up. An RFC client does not set it in Confirm. In version 2 it is
    /// derived from [`AcceptV2::first`] when the message is emitted.
    pub first_contact: bool,
    /// The sender.
    pub peer_id: PeerId,
    /// GID of the sender's port.
    pub gid: Gid,
    /// Address of the sender's port.
    pub mac: Mac,
    /// The sender's queue pair, usable.
    pub qp: QpNum,
    /// Key and address of the RMB with the sender's element.
    pub rmb: RToken,
    /// Which element of the RMB. The RMB up to its end lies within the address space.
    pub index: RmbeIndex,
    /// Name of the connection for CDC messages to the sender.
    pub token: AlertToken,
    /// Size of the element.
    pub size: RmbeSize,
    /// MTU of the sender's port; none if the code is reserved, see
    /// [`first_contact_mtu`](Self::first_contact_mtu).
    pub mtu: Option<MtuCode>,
    /// First packet sequence number of the sender; matters on first contact only.
    pub psn: Psn,
    /// Present in a message of version 2.
    pub v2: Option<AcceptV2>,
}

/// Version 2 part of Accept and Confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptV2 {
    /// The enterprise ID that the server chose.
    pub eid: Eid,
    /// Present on first contact.
    pub first: Option<FirstContact>,
}

/// First contact extension of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstContact {
    /// The sender sees its peer on its own subnet.
    pub direct: bool,
    /// Operating system, 0 to 15; see [`OS_LINUX`](super::OS_LINUX).
    pub os: u8,
    /// Release of the protocol, 0 to 15.
    pub release: u8,
    /// Name of the sender's host, padded with blanks; for display.
    pub host: [u8; 32],
    /// Present from release 1 on.
    pub limits: Option<Limits>,
    /// Confirm only: GIDs which the client could use for links, that of this link first. Eight are
    /// kept.
    pub gids: List<Gid, 8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AcceptWire {
    peer_id: PeerId,
    gid: Gid,
    mac: Mac,
    qp: U24,
    rkey: U32,
    index: u8,
    token: U32,
    sizes: u8,
    reserved: u8,
    addr: U64,
    reserved2: u8,
    psn: U24,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AcceptV2Wire {
    eid: Eid,
    reserved: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FirstContactWire {
    attachment: u8,
    os_release: u8,
    reserved: [u8; 2],
    host: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LimitsWire {
    max_connections: u8,
    max_links: u8,
    features: U16,
    vendor: [u8; 4],
    reserved: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GidsWire {
    count: u8,
    reserved: [u8; 3],
}

impl AcceptConfirm {
    /// Reads a message of either type; `bytes` has nothing but it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw = Raw::new(bytes)?;
        match raw.header.kind {
            Kind::Accept | Kind::Confirm => Self::from_raw(&raw),
            other => Err(ParseError::ClcType(other.to_byte())),
        }
    }

    /// Returns the MTU of a first contact, where a reserved code is to be declined.
    ///
    /// For an Accept with F set this has been checked.
    pub fn first_contact_mtu(&self) -> Result<MtuCode, ParseError> {
        self.mtu.ok_or(ParseError::Mtu(0))
    }

    /// Writes an Accept to `out` and returns its length, or none if `out` is too short.
    pub fn emit_accept(&self, out: &mut [u8]) -> Option<usize> {
        self.emit(Kind::Accept, out)
    }

    /// Writes a Confirm to `out` and returns its length, or none if `out` is too short.
    pub fn emit_confirm(&self, out: &mut [u8]) -> Option<usize> {
        self.emit(Kind::Confirm, out)
    }

    pub(super) fn from_raw(raw: &Raw<'_>) -> Result<Self, ParseError> {
        let Header { kind, version, .. } = raw.header;
        if raw.header.path() != super::path::SMC_R || version > 2 {
            return Err(ParseError::ModeNotOffered);
        }
        let wire: &AcceptWire = raw.at(HEADER_LEN).ok_or(ParseError::Truncated)?;
        let first_contact = raw.header.flag();
        let index = RmbeIndex::new(wire.index).ok_or(ParseError::RmbeIndex)?;
        let size = RmbeSize::from_nibble(wire.sizes >> 4);
        let addr = wire.addr.get();
        // The last byte of the element must have an address.
        let last = index
            .offset(size)
            .saturating_add(u64::from(size.bytes()).saturating_sub(1));
        addr.checked_add(last).ok_or(ParseError::RmbRange)?;
        // Whatever leads to a reset comes first.
        let gid_list = match (version, first_contact) {
            (2, true) => Some(GidList::find(raw, kind)?),
            _ => None,
        };

        let mtu = MtuCode::new(wire.sizes & 0xf);
        let qp = QpNum::from(wire.qp);
        if wire.peer_id.is_zero() {
            return Err(ParseError::PeerId);
        }
        if wire.gid.is_zero() {
            return Err(ParseError::Gid);
        }
        if !wire.mac.is_unicast() {
            return Err(ParseError::Mac);
        }
        if !qp.is_usable() {
            return Err(ParseError::QpNum(qp.get()));
        }
        if kind == Kind::Accept && first_contact && mtu.is_none() {
            return Err(ParseError::Mtu(wire.sizes & 0xf));
        }
        Ok(Self {
            first_contact,
            peer_id: wire.peer_id,
            gid: wire.gid,
            mac: wire.mac,
            qp,
            rmb: RToken {
                rkey: RKey(wire.rkey.get()),
                addr,
            },
            index,
            token: AlertToken(wire.token.get()),
            size,
            mtu,
            psn: wire.psn.into(),
            v2: match version {
                1 => None,
                _ => Some(AcceptV2::from_raw(raw, gid_list)?),
            },
        })
    }

    fn emit(&self, kind: Kind, out: &mut [u8]) -> Option<usize> {
        let (version, first, len) = match &self.v2 {
            None => (1, self.first_contact, LEN_V1),
            Some(v2) => match &v2.first {
                None => (2, false, MIN_LEN_V2),
                Some(first) => (2, true, first.message_len(kind)),
            },
        };
        let mut out = Out::new(out);
        out.put(&Header::wire(kind, len, version, flag(first, FLAG))?)?;
        out.put(&AcceptWire {
            peer_id: self.peer_id,
            gid: self.gid,
            mac: self.mac,
            qp: self.qp.into(),
            rkey: self.rmb.rkey.0.into(),
            index: self.index.get(),
            token: self.token.0.into(),
            sizes: (self.size.code() << 4) | MtuCode::to_wire(self.mtu),
            reserved: 0,
            addr: self.rmb.addr.into(),
            reserved2: 0,
            psn: self.psn.into(),
        })?;
        if let Some(v2) = &self.v2 {
            out.put(&AcceptV2Wire {
                eid: v2.eid,
                reserved: [0; 8],
            })?;
            if let Some(first) = &v2.first {
                first.write(kind, &mut out)?;
            }
        }
        out.put(&EyeCatcher::SmcR.to_bytes())?;
        Some(out.written())
    }
}

/// Where the GIDs of a Confirm are, which depends on the form of the first contact extension.
struct GidList {
    /// The extension has its last 16 bytes.
    long: bool,
    at: usize,
    count: u8,
}

impl GidList {
    /// Tells the two forms of the extension apart by the length of the message.
    fn find(raw: &Raw<'_>, kind: Kind) -> Result<Self, ParseError> {
        let len = usize::from(raw.header.len);
        let first: &FirstContactWire = raw
            .at(FIRST_AT)
            .ok_or(ParseError::ClcLength(raw.header.len))?;
        // A peer of release 0 may leave out the part which came with release 1.
        let short_permitted = first.os_release & 0xf == 0;
        let no_list = Self::at(LIMITS_AT, 0, false);
        let list = if kind == Kind::Accept {
            if len >= GIDS_AT.saturating_add(TRAILER_LEN) {
                Some(Self::at(GIDS_AT, 0, true))
            } else {
                (short_permitted && len >= no_list.end()).then_some(no_list)
            }
        } else {
            let long = Self::head(raw, GIDS_AT, true).filter(|list| list.end() <= len);
            let short = Self::head(raw, LIMITS_AT, false)
                .filter(|list| short_permitted && list.end() <= len);
            match (long, short) {
                (Some(long), Some(short)) if long.end() != len && short.end() == len => Some(short),
                (long, short) => long.or(short),
            }
        };
        list.ok_or(ParseError::ClcLength(raw.header.len))
    }

    fn at(at: usize, count: u8, long: bool) -> Self {
        Self { long, at, count }
    }

    fn head(raw: &Raw<'_>, at: usize, long: bool) -> Option<Self> {
        let wire: &GidsWire = raw.at(at)?;
        Some(Self::at(at.saturating_add(GID_HEAD), wire.count, long))
    }

    /// Length of a message which ends with the list.
    fn end(&self) -> usize {
        let gids = usize::from(self.count).saturating_mul(GID_LEN);
        self.at.saturating_add(gids).saturating_add(TRAILER_LEN)
    }
}

impl AcceptV2 {
    fn from_raw(raw: &Raw<'_>, gid_list: Option<GidList>) -> Result<Self, ParseError> {
        let wire: &AcceptV2Wire = raw.at(V2_AT).ok_or(ParseError::Truncated)?;
        let first = match gid_list {
            Some(list) => Some(FirstContact::from_raw(raw, &list)?),
            None => None,
        };
        Ok(Self {
            eid: wire.eid,
            first,
        })
    }
}

impl FirstContact {
    /// Most links that Accept and Confirm may name.
    const MAX_LINKS: u8 = 2;

    fn from_raw(raw: &Raw<'_>, list: &GidList) -> Result<Self, ParseError> {
        let wire: &FirstContactWire = raw.at(FIRST_AT).ok_or(ParseError::Truncated)?;
        let release = wire.os_release & 0xf;
        let limits = match raw.at::<LimitsWire>(LIMITS_AT) {
            Some(limits) if list.long && release > 0 => {
                if limits.max_links > Self::MAX_LINKS {
                    return Err(ParseError::MaxLinks(limits.max_links));
                }
                Some(Limits::parse(
                    limits.max_connections,
                    limits.max_links,
                    limits.features.get(),
                )?)
            }
            _ => None,
        };
        Ok(Self {
            direct: wire.attachment & 0x80 != 0,
            os: wire.os_release >> 4,
            release,
            host: wire.host,
            limits,
            gids: List::from_slice(raw.list_at(list.at, list.count.into())),
        })
    }

    /// Length of a message with this extension.
    fn message_len(&self, kind: Kind) -> usize {
        let gids = match kind {
            Kind::Confirm => GID_LEN
                .saturating_mul(self.gids.len())
                .saturating_add(GID_HEAD),
            _ => 0,
        };
        GIDS_AT.saturating_add(gids).saturating_add(TRAILER_LEN)
    }

    fn write(&self, kind: Kind, out: &mut Out<'_>) -> Option<()> {
        out.put(&FirstContactWire {
            attachment: flag(self.direct, 0x80),
            os_release: (self.os << 4) | (self.release & 0xf),
            reserved: [0; 2],
            host: self.host,
        })?;
        let limits = self.limits.as_ref();
        out.put(&LimitsWire {
            max_connections: limits.map_or(0, |limits| limits.max_connections),
            max_links: limits.map_or(0, |limits| limits.max_links),
            features: limits.map_or(0, |limits| limits.features).into(),
            vendor: [0; 4],
            reserved: [0; 8],
        })?;
        if kind == Kind::Confirm {
            out.put(&GidsWire {
                count: u8::try_from(self.gids.len()).ok()?,
                reserved: [0; 3],
            })?;
            out.put(self.gids.as_slice())?;
        }
        Some(())
    }
}

impl fmt::Display for AcceptConfirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "v{}{} peer {} gid {} mac {} qp {} rmb {} index {} token {} size {}",
            if self.v2.is_some() { 2 } else { 1 },
            if self.first_contact {
                " first contact"
            } else {
                ""
            },
            self.peer_id,
            self.gid,
            self.mac,
            self.qp,
            self.rmb,
            self.index,
            self.token,
            self.size.bytes(),
        )
    }
}
