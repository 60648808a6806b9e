// SPDX-License-Identifier: GPL-2.0

//! The Proposal: the client offers SMC-R (RFC 7609 A.2.2).

use super::{
    path,
    Header,
    Kind,
    Limits,
    Out,
    Raw,
    HEADER_LEN,
    TRAILER_LEN, //
};
use crate::wire::{
    Diagnosis,
    Eid,
    EyeCatcher,
    Gid,
    List,
    Mac,
    ParseError,
    PeerId,
    Reaction, //
};
use core::{
    fmt,
    net::Ipv6Addr, //
};
use zerocopy::big_endian::U16;
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

/// Most IPv6 prefixes, and most enterprise IDs, in a Proposal.
const MAX_LIST: usize = 8;

/// Where the growth area starts, which version 1 does not have.
const GROWTH_AT: usize = 40;
const GROWTH_LEN: usize = 40;
const PREFIX_HEAD: usize = 8;
const PREFIX_LEN: usize = 17;
/// From where the offset of the version 2 extension counts.
const EXTENSION_BASE: usize = 52;
const EXTENSION_HEAD: usize = 40;
const EID_LEN: usize = 32;
/// Larger offsets of the version 2 extension are refused.
const EXTENSION_OFFSET_MAX: u16 = 172;

pub(super) const MIN_LEN_V1: usize = 52;
pub(super) const MIN_LEN_V2: usize = 44;

/// The Proposal message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// Highest version of the sender, 1 to 15; 2 and above are laid out alike.
    pub version: u8,
    /// The sender. Zero if it offers SMC-Rv2 alone and does not say; its Confirm will.
    pub peer_id: PeerId,
    /// The offer of SMC-Rv1, or why there is none.
    ///
    /// At least one of the two offers must be good for the message to be worth sending.
    pub v1: Result<OfferV1, ParseError>,
    /// The offer of SMC-Rv2, or why there is none.
    pub v2: Result<OfferV2, ParseError>,
}

/// The client's offer of SMC-Rv1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferV1 {
    /// GID of the port the client wants to use, not zero.
    pub gid: Gid,
    /// Address of that port, a unicast address.
    pub mac: Mac,
    /// The subnet of the TCP connection.
    pub prefixes: Prefixes,
}

/// The client's offer of SMC-Rv2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferV2 {
    /// The client's enterprise IDs, at least one.
    pub eids: List<Eid, MAX_LIST>,
    /// Release of version 2 that the client knows, 0 to 15.
    pub release: u8,
    /// GID of the port the client wants to use, not zero. Linux takes IPv4 addresses only.
    pub gid: Gid,
    /// Present from release 1 on.
    pub limits: Option<Limits>,
}

/// Subnet of the interface which the client's TCP connection runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefixes {
    /// IPv4: its network.
    V4(Ipv4Subnet),
    /// IPv6: one to eight of its prefixes.
    V6(List<Ipv6Prefix, MAX_LIST>),
}

impl Prefixes {
    /// Tells whether an interface with this IPv4 address and mask length is on the same subnet.
    pub fn matches_ipv4(&self, addr: [u8; 4], len: u8) -> bool {
        match self {
            Self::V4(subnet) => Ipv4Subnet::of(addr, len) == Some(*subnet),
            Self::V6(_) => false,
        }
    }

    /// Tells whether an interface with this IPv6 address and prefix length has a prefix in common.
    ///
    /// Link-local addresses do not count: all interfaces have that prefix.
    pub fn matches_ipv6(&self, addr: [u8; 16], len: u8) -> bool {
        match self {
            Self::V4(_) => false,
            Self::V6(_) if Ipv6Addr::from(addr).is_unicast_link_local() => false,
            Self::V6(prefixes) => match Ipv6Prefix::of(addr, len) {
                Some(own) => prefixes.iter().any(|prefix| *prefix == own),
                None => false,
            },
        }
    }
}

/// An IPv4 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Subnet {
    network: [u8; 4],
    len: u8,
}

impl Ipv4Subnet {
    /// Returns the network of an address, `len` being its mask length of 0 to 32.
    pub fn of(addr: [u8; 4], len: u8) -> Option<Self> {
        let host_bits = 32u32.checked_sub(len.into())?;
        let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
        Some(Self {
            network: (u32::from_be_bytes(addr) & mask).to_be_bytes(),
            len,
        })
    }

    /// Returns the network number as it was sent.
    pub const fn network(&self) -> [u8; 4] {
        self.network
    }

    /// Returns the mask length, 0 to 32.
    #[allow(clippy::len_without_is_empty, reason = "a length in bits")]
    pub const fn len(&self) -> u8 {
        self.len
    }
}

/// An IPv6 prefix. One with a length above 128, or with bits below its length, matches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipv6Prefix {
    prefix: [u8; 16],
    len: u8,
}

impl Ipv6Prefix {
    /// Returns the prefix of an address, `len` being its length of 0 to 128.
    pub fn of(addr: [u8; 16], len: u8) -> Option<Self> {
        let host_bits = 128u32.checked_sub(len.into())?;
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        Some(Self {
            prefix: (u128::from_be_bytes(addr) & mask).to_be_bytes(),
            len,
        })
    }

    /// Returns the prefix as it was sent.
    pub const fn prefix(&self) -> [u8; 16] {
        self.prefix
    }

    /// Returns the length as it was sent.
    #[allow(clippy::len_without_is_empty, reason = "a length in bits")]
    pub const fn len(&self) -> u8 {
        self.len
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ProposalWire {
    peer_id: PeerId,
    gid: Gid,
    mac: Mac,
    growth: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GrowthWire {
    ism: [u8; 10],
    extension: U16,
    vendor: [u8; 8],
    reserved: [u8; 20],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PrefixWire {
    network: [u8; 4],
    len: u8,
    reserved: [u8; 2],
    count: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Ipv6PrefixWire {
    prefix: [u8; 16],
    len: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ExtensionWire {
    eids: u8,
    isms: u8,
    reserved: u8,
    release: u8,
    reserved2: [u8; 2],
    smc_d: U16,
    gid: Gid,
    max_connections: u8,
    max_links: u8,
    features: U16,
    reserved3: [u8; 12],
}

/// Splits the low nibble of byte 7 into the paths of version 1 and version 2.
fn paths(header: &Header) -> (u8, u8) {
    let v2 = match header.version {
        1 => path::NONE,
        _ => header.low >> 2,
    };
    (header.path(), v2 & path::MASK)
}

fn has_smc_r(path: u8) -> bool {
    matches!(path, path::SMC_R | path::BOTH)
}

fn has_smc_d(path: u8) -> bool {
    matches!(path, path::SMC_D | path::BOTH)
}

impl Proposal {
    /// Reads a message; `bytes` has nothing but it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw = Raw::new(bytes)?;
        match raw.header.kind {
            Kind::Proposal => Self::from_raw(&raw),
            other => Err(ParseError::ClcType(other.to_byte())),
        }
    }

    /// Returns the offer of SMC-Rv1, or the diagnosis to decline with.
    pub fn smcr_v1(&self) -> Result<&OfferV1, Diagnosis> {
        self.v1.as_ref().map_err(diagnosis)
    }

    /// Returns the offer of SMC-Rv2, or the diagnosis to decline with.
    pub fn smcr_v2(&self) -> Result<&OfferV2, Diagnosis> {
        self.v2.as_ref().map_err(diagnosis)
    }

    /// Tells whether SMC-Rv2 is offered, well or badly.
    pub fn offers_v2(&self) -> bool {
        !matches!(self.v2, Err(ParseError::NotOffered))
    }

    pub(super) fn from_raw(raw: &Raw<'_>) -> Result<Self, ParseError> {
        let wire: &ProposalWire = raw.at(HEADER_LEN).ok_or(ParseError::Truncated)?;
        let (v1_path, v2_path) = paths(&raw.header);
        let prefix_at = GROWTH_AT.saturating_add(wire.growth.get().into());
        // What makes the message as a whole invalid comes first.
        let prefixes = if raw.header.version == 1 || has_smc_r(v1_path) {
            Some(Prefixes::from_raw(raw, prefix_at)?)
        } else {
            None
        };
        let extension = Extension::find(raw, prefix_at, v2_path)?;

        let v1 = match prefixes {
            Some(prefixes) if has_smc_r(v1_path) => OfferV1::new(wire, prefixes),
            _ => Err(ParseError::NotOffered),
        };
        let v2 = match (has_smc_r(v2_path), extension) {
            (true, Some(extension)) => OfferV2::new(&extension),
            (true, None) => Err(ParseError::NoExtension),
            (false, _) => Err(ParseError::NotOffered),
        };
        // Linux does not say who it is if it offers version 2 alone.
        if wire.peer_id.is_zero() && v1.is_ok() {
            return Err(ParseError::PeerId);
        }
        Ok(Self {
            version: raw.header.version,
            peer_id: wire.peer_id,
            v1,
            v2,
        })
    }

    /// Writes the message to `out` and returns its length, or none if `out` is too short.
    ///
    /// An offer that is an error is left out. A `version` of 0 is written as 1. Version 1 has no
    /// place for the offer of SMC-Rv2.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let version = self.version.clamp(1, 15);
        let v1 = self.v1.as_ref().ok();
        let v2 = self.v2.as_ref().ok().filter(|_| version > 1);
        let prefixes = match (v1, version) {
            (Some(offer), _) => Some(&offer.prefixes),
            // Version 1 always has the area.
            (None, 1) => Some(&Prefixes::V4(Ipv4Subnet {
                network: [0; 4],
                len: 0,
            })),
            (None, _) => None,
        };
        let growth_len = if version == 1 { 0 } else { GROWTH_LEN };
        let prefix_len = prefixes.map_or(0, Prefixes::wire_len);
        let len = GROWTH_AT
            .saturating_add(growth_len)
            .saturating_add(prefix_len)
            .saturating_add(v2.map_or(0, OfferV2::wire_len))
            .saturating_add(TRAILER_LEN);
        let mut out = Out::new(out);
        let path = |offered| if offered { path::SMC_R } else { path::NONE };
        let low = match version {
            1 => path(v1.is_some()),
            _ => (path(v2.is_some()) << 2) | path(v1.is_some()),
        };
        out.put(&Header::wire(Kind::Proposal, len, version, low)?)?;
        out.put(&ProposalWire {
            peer_id: self.peer_id,
            gid: v1.map_or(Gid::default(), |offer| offer.gid),
            mac: v1.map_or(Mac::default(), |offer| offer.mac),
            growth: match (version, v1) {
                (2.., Some(_)) => u16::try_from(GROWTH_LEN).ok()?.into(),
                _ => U16::ZERO,
            },
        })?;
        if version > 1 {
            // The extension follows the prefixes, which follow this area.
            let extension = GROWTH_AT
                .saturating_add(GROWTH_LEN)
                .saturating_add(prefix_len)
                .saturating_sub(EXTENSION_BASE);
            out.put(&GrowthWire {
                ism: [0; 10],
                extension: match v2 {
                    Some(_) => u16::try_from(extension).ok()?.into(),
                    None => U16::ZERO,
                },
                vendor: [0; 8],
                reserved: [0; 20],
            })?;
        }
        if let Some(prefixes) = prefixes {
            prefixes.write(&mut out)?;
        }
        if let Some(offer) = v2 {
            offer.write(&mut out)?;
        }
        out.put(&EyeCatcher::SmcR.to_bytes())?;
        Some(out.written())
    }
}

/// An error of an offer never leads to a reset, as that would have ended the parser.
fn diagnosis(error: &ParseError) -> Diagnosis {
    match error.reaction() {
        Reaction::Decline(diagnosis) => diagnosis,
        _ => Diagnosis::INTERNAL,
    }
}

impl Prefixes {
    fn from_raw(raw: &Raw<'_>, at: usize) -> Result<Self, ParseError> {
        let wire: &PrefixWire = raw.at(at).ok_or(ParseError::PrefixArea)?;
        let count = usize::from(wire.count);
        if count > MAX_LIST {
            return Err(ParseError::PrefixCount(wire.count));
        }
        let list_at = at.saturating_add(PREFIX_HEAD);
        let list: &[Ipv6PrefixWire] = raw.list_at(list_at, count);
        if list.len() != count {
            return Err(ParseError::PrefixArea);
        }
        let list_len = count.saturating_mul(PREFIX_LEN);
        let len = list_at.saturating_add(list_len).saturating_add(TRAILER_LEN);
        if raw.header.version == 1 && len != usize::from(raw.header.len) {
            return Err(ParseError::ClcLength(raw.header.len));
        }
        Ok(if list.is_empty() {
            Self::V4(Ipv4Subnet {
                network: wire.network,
                len: wire.len,
            })
        } else {
            Self::V6(List::take_from(list.iter().map(|wire| Ipv6Prefix {
                prefix: wire.prefix,
                len: wire.len,
            })))
        })
    }

    fn wire_len(&self) -> usize {
        let count = match self {
            Self::V4(_) => 0,
            Self::V6(prefixes) => prefixes.len(),
        };
        count.saturating_mul(PREFIX_LEN).saturating_add(PREFIX_HEAD)
    }

    fn write(&self, out: &mut Out<'_>) -> Option<()> {
        let (network, len, count) = match self {
            Self::V4(subnet) => (subnet.network, subnet.len, 0),
            Self::V6(prefixes) => ([0; 4], 0, u8::try_from(prefixes.len()).ok()?),
        };
        out.put(&PrefixWire {
            network,
            len,
            reserved: [0; 2],
            count,
        })?;
        if let Self::V6(prefixes) = self {
            for prefix in prefixes {
                out.put(&Ipv6PrefixWire {
                    prefix: prefix.prefix,
                    len: prefix.len,
                })?;
            }
        }
        Some(())
    }
}

impl OfferV1 {
    fn new(wire: &ProposalWire, prefixes: Prefixes) -> Result<Self, ParseError> {
        if wire.gid.is_zero() {
            return Err(ParseError::Gid);
        }
        if !wire.mac.is_unicast() {
            return Err(ParseError::Mac);
        }
        match prefixes {
            Prefixes::V4(subnet) if subnet.len > 32 => Err(ParseError::MaskLength(subnet.len)),
            _ => Ok(Self {
                gid: wire.gid,
                mac: wire.mac,
                prefixes,
            }),
        }
    }
}

/// The version 2 extension: its fixed part, and its enterprise IDs.
struct Extension<'a> {
    wire: &'a ExtensionWire,
    eids: &'a [Eid],
}

impl<'a> Extension<'a> {
    /// Finds the extension of a Proposal whose growth area ends at `growth_end`.
    fn find(raw: &Raw<'a>, growth_end: usize, v2_path: u8) -> Result<Option<Self>, ParseError> {
        // With a version 1 path of "none" a sender may announce no growth area but still have it.
        let growth_end = match has_smc_r(raw.header.path()) {
            true => growth_end,
            false => growth_end.max(GROWTH_AT.saturating_add(GROWTH_LEN)),
        };
        if v2_path == path::NONE || growth_end < EXTENSION_BASE {
            return Ok(None);
        }
        let offset = match raw.at::<GrowthWire>(GROWTH_AT) {
            Some(growth) => growth.extension.get(),
            None => 0,
        };
        if offset == 0 {
            return Ok(None);
        }
        if offset > EXTENSION_OFFSET_MAX {
            return Err(ParseError::ExtensionArea);
        }
        let at = EXTENSION_BASE.saturating_add(offset.into());
        let wire: &ExtensionWire = raw.at(at).ok_or(ParseError::ExtensionArea)?;
        let count = usize::from(wire.eids);
        if count > MAX_LIST {
            return Err(ParseError::EidCount(wire.eids));
        }
        if has_smc_d(v2_path) && usize::from(wire.isms) > MAX_LIST {
            return Err(ParseError::IsmCount(wire.isms));
        }
        let eids: &[Eid] = raw.list_at(at.saturating_add(EXTENSION_HEAD), count);
        if eids.len() != count {
            return Err(ParseError::ExtensionArea);
        }
        Ok(Some(Self { wire, eids }))
    }
}

impl OfferV2 {
    fn new(extension: &Extension<'_>) -> Result<Self, ParseError> {
        let wire = extension.wire;
        if extension.eids.is_empty() {
            return Err(ParseError::NoEid);
        }
        if wire.gid.is_zero() {
            return Err(ParseError::NoGidV2);
        }
        let release = wire.release >> 4;
        let limits = match release {
            0 => None,
            _ => Some(Limits::parse(
                wire.max_connections,
                wire.max_links,
                wire.features.get(),
            )?),
        };
        Ok(Self {
            eids: List::from_slice(extension.eids),
            release,
            gid: wire.gid,
            limits,
        })
    }

    fn wire_len(&self) -> usize {
        EID_LEN
            .saturating_mul(self.eids.len())
            .saturating_add(EXTENSION_HEAD)
    }

    fn write(&self, out: &mut Out<'_>) -> Option<()> {
        let limits = self.limits.as_ref();
        out.put(&ExtensionWire {
            eids: u8::try_from(self.eids.len()).ok()?,
            isms: 0,
            reserved: 0,
            release: self.release << 4,
            reserved2: [0; 2],
            smc_d: U16::ZERO,
            gid: self.gid,
            max_connections: limits.map_or(0, |limits| limits.max_connections),
            max_links: limits.map_or(0, |limits| limits.max_links),
            features: limits.map_or(0, |limits| limits.features).into(),
            reserved3: [0; 12],
        })?;
        out.put(self.eids.as_slice())
    }
}

impl fmt::Display for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(subnet) => {
                let [a, b, c, d] = subnet.network;
                write!(f, "{a}.{b}.{c}.{d}/{}", subnet.len)
            }
            Self::V6(prefixes) => {
                let mut comma = "";
                for prefix in prefixes {
                    write!(f, "{comma}{}/{}", Gid(prefix.prefix), prefix.len)?;
                    comma = ",";
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{} peer {}", self.version, self.peer_id)?;
        match &self.v1 {
            Ok(offer) => {
                let OfferV1 { gid, mac, prefixes } = offer;
                write!(f, ", SMC-Rv1 gid {gid} mac {mac} subnet {prefixes}")?;
            }
            Err(error) => write!(f, ", no SMC-Rv1: {error}")?,
        }
        match &self.v2 {
            Ok(offer) => {
                write!(f, ", SMC-Rv2 gid {} release {}", offer.gid, offer.release)?;
                offer
                    .eids
                    .iter()
                    .try_for_each(|eid| write!(f, " eid {eid}"))
            }
            Err(error) => write!(f, ", no SMC-Rv2: {error}"),
        }
    }
}
