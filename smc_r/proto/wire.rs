// SPDX-License-Identifier: GPL-2.0

//! The basic types of all messages.
//!
//! Numbers are host integers; only the message formats know about byte order. A type which covers
//! fewer values than its integer can only be made from a valid one.

use core::{
    fmt,
    num::NonZeroU8, //
};
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

pub use crate::{
    diagnosis::Diagnosis,
    error::{
        ParseError,
        Reaction, //
    },
    list::List, //
};

/// A 24-bit number as it is sent.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub(crate) struct U24([u8; 3]);

impl U24 {
    const MAX: u32 = 0x00ff_ffff;

    fn new(value: u32) -> Self {
        let [_, a, b, c] = value.to_be_bytes();
        Self([a, b, c])
    }

    fn get(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

/// Kinds of eye catchers, which start and end every CLC message: four letters in EBCDIC (RFC A.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EyeCatcher {
    /// "SMCR".
    SmcR,
    /// "SMCD", used by SMC-D in Accept and Confirm.
    SmcD,
}

impl EyeCatcher {
    /// Recognises an eye catcher.
    pub const fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        match bytes {
            [0xe2, 0xd4, 0xc3, 0xd9] => Some(Self::SmcR),
            [0xe2, 0xd4, 0xc3, 0xc4] => Some(Self::SmcD),
            _ => None,
        }
    }

    /// Returns the bytes on the wire.
    pub const fn to_bytes(self) -> [u8; 4] {
        match self {
            Self::SmcR => [0xe2, 0xd4, 0xc3, 0xd9],
            Self::SmcD => [0xe2, 0xd4, 0xc3, 0xc4],
        }
    }
}

/// Identity of one instance of a stack: two instance bytes and a MAC of the host (RFC A.2.1).
///
/// Compared as a whole; says nothing about which port is used.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct PeerId(pub [u8; 8]);

impl PeerId {
    /// Composes the ID from the two instance bytes and a MAC address.
    pub const fn new(instance: [u8; 2], mac: Mac) -> Self {
        let [i, j] = instance;
        let [a, b, c, d, e, f] = mac.0;
        Self([i, j, a, b, c, d, e, f])
    }

    /// Tells whether all bytes are zero, as in a Decline of a host without devices.
    pub const fn is_zero(&self) -> bool {
        u64::from_be_bytes(self.0) == 0
    }

    /// Returns the instance part.
    pub const fn instance(&self) -> [u8; 2] {
        let [i, j, ..] = self.0;
        [i, j]
    }

    /// Returns the MAC part.
    pub const fn mac(&self) -> Mac {
        let [_, _, a, b, c, d, e, f] = self.0;
        Mac([a, b, c, d, e, f])
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [i, j] = self.instance();
        write!(f, "{i:02x}{j:02x}@{}", self.mac())
    }
}

/// Ethernet address of an RNIC port.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Tells whether all bytes are zero.
    pub const fn is_zero(&self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// Tells whether the address can be that of a port: neither zero nor a group address.
    pub const fn is_unicast(&self) -> bool {
        let [first, ..] = self.0;
        !self.is_zero() && first & 1 == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// RoCE address of an RNIC port.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID of an IPv4 address in RoCE version 2 (`::ffff:a.b.c.d`).
    pub const fn from_ipv4(addr: [u8; 4]) -> Self {
        let [a, b, c, d] = addr;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// Returns the IPv4 address inside, if the GID is IPv4-mapped (`::ffff:a.b.c.d`) or
    /// IPv4-compatible (`::a.b.c.d`, not `::`).
    pub const fn ipv4(&self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => None,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
            | [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Tells whether all bytes are zero.
    pub const fn is_zero(&self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// Returns the text that `Display` writes.
    pub fn text(&self) -> [u8; 39] {
        let mut text = [b':'; 39];
        let mut rest = u128::from_be_bytes(self.0);
        for group in text.chunks_mut(5) {
            for digit in group.iter_mut().take(4) {
                rest = rest.rotate_left(4);
                let value = (rest & 0xf) as usize;
                *digit = b"0123456789abcdef".get(value).copied().unwrap_or(b'0');
            }
        }
        text
    }
}

impl fmt::Display for Gid {
    /// Eight groups of four digits, none left out: `fe80:0000:0000:0000:0000:00ff:fe00:0a01`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let colon = if i != 0 && i & 1 == 0 { ":" } else { "" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Queue pair number, 24 bits.
///
/// 0 and 1 are reserved by InfiniBand; 0 appears where a message has no queue pair to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QpNum(u32);

impl QpNum {
    /// Makes a number of 24 bits or less.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= U24::MAX {
            Some(Self(value))
        } else {
            None
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Tells whether a connection can use the number, which is not so for 0 and 1.
    pub const fn is_usable(self) -> bool {
        self.0 > 1
    }
}

impl From<U24> for QpNum {
    fn from(wire: U24) -> Self {
        Self(wire.get())
    }
}

impl From<QpNum> for U24 {
    fn from(value: QpNum) -> Self {
        Self::new(value.0)
    }
}

impl fmt::Display for QpNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Packet sequence number, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Makes a number of 24 bits or less.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= U24::MAX {
            Some(Self(value))
        } else {
            None
        }
    }

    /// Keeps the low 24 bits, for example of a random number.
    pub const fn truncate(value: u32) -> Self {
        Self(value & U24::MAX)
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl From<U24> for Psn {
    fn from(wire: U24) -> Self {
        Self(wire.get())
    }
}

impl From<Psn> for U24 {
    fn from(value: Psn) -> Self {
        Self::new(value.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Remote access key of a memory region on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RKey(pub u32);

impl fmt::Display for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// What a peer needs to write into an RMB over one link: key and address of its start (RFC 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RToken {
    /// The key.
    pub rkey: RKey,
    /// The RDMA address of the start of the RMB.
    pub addr: u64,
}

impl fmt::Display for RToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#018x}", self.rkey, self.addr)
    }
}

/// Number of a link within its link group, 1 to 255 (RFC 2.2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkNum(NonZeroU8);

impl LinkNum {
    /// The first number of a link group.
    pub const FIRST: Self = Self(NonZeroU8::MIN);

    /// Makes a number other than 0.
    pub const fn new(value: u8) -> Option<Self> {
        match NonZeroU8::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Returns the number, 1 to 255.
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// Returns the byte on the wire, where 0 stands for no link.
    pub(crate) fn to_wire(link: Option<Self>) -> u8 {
        link.map_or(0, Self::get)
    }
}

impl fmt::Display for LinkNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an element within its RMB, 1 to 255 (RFC 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmbeIndex(NonZeroU8);

impl RmbeIndex {
    /// The element at the start of the RMB.
    pub const FIRST: Self = Self(NonZeroU8::MIN);

    /// Makes a number other than 0.
    pub const fn new(value: u8) -> Option<Self> {
        match NonZeroU8::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Returns the number, 1 to 255.
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// Returns the distance in bytes of the element from the start of its RMB.
    pub fn offset(self, size: RmbeSize) -> u64 {
        // At most 254 times 512 MiB.
        u64::from(self.get().saturating_sub(1)).saturating_mul(u64::from(size.bytes()))
    }
}

impl fmt::Display for RmbeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Name of a connection, chosen by the receiver of its CDC messages (RFC 1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AlertToken(pub u32);

impl fmt::Display for AlertToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Size of an RMB element as a code of 0 to 15: 16 KiB shifted left by it (RFC A.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RmbeSize(u8);

impl RmbeSize {
    /// 16 KiB.
    pub const MIN: Self = Self(0);
    /// The largest size of RFC 7609, 512 KiB, and the largest to be sent unless configured.
    pub const MAX_SEND: Self = Self(5);
    /// The largest size that can be expressed, 512 MiB.
    pub const MAX: Self = Self(15);

    /// Makes a size from its code.
    pub const fn new(code: u8) -> Option<Self> {
        if code <= Self::MAX.0 {
            Some(Self(code))
        } else {
            None
        }
    }

    /// Returns the smallest size with room for `bytes`, or the largest size if there is none.
    pub fn for_bytes(bytes: u32) -> Self {
        let blocks = bytes.div_ceil(1 << 14).max(1);
        // The number of bits in `blocks - 1` is the exponent of the next power of two.
        let code = blocks
            .saturating_sub(1)
            .checked_ilog2()
            .map_or(0, |log| log.saturating_add(1));
        u8::try_from(code).map_or(Self::MAX, |code| Self(code).min(Self::MAX))
    }

    /// Returns the size of a buffer of ours for `bytes`: no larger than [`Self::MAX_SEND`].
    pub fn for_buffer(bytes: u32) -> Self {
        Self::for_bytes(bytes).min(Self::MAX_SEND)
    }

    /// Returns the code, 0 to 15.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the size in bytes, 16 Ki to 512 Mi.
    pub const fn bytes(self) -> u32 {
        // The shift is at most 15.
        (1u32 << 14).wrapping_shl(self.0 as u32)
    }

    /// Returns the next smaller size.
    pub const fn smaller(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(code) => Some(Self(code)),
            None => None,
        }
    }

    pub(crate) const fn from_nibble(code: u8) -> Self {
        Self(code & 0xf)
    }
}

/// Path MTU of a queue pair as a code of 1 to 5: 128 bytes shifted left by it (RFC A.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MtuCode(NonZeroU8);

impl MtuCode {
    /// 256 bytes, which every port can do.
    pub const MIN: Self = Self(NonZeroU8::MIN);

    /// Makes an MTU from its code; 0 and 6 to 255 are reserved.
    pub const fn new(code: u8) -> Option<Self> {
        match NonZeroU8::new(code) {
            Some(nonzero) if code <= 5 => Some(Self(nonzero)),
            _ => None,
        }
    }

    /// Returns the code, 1 to 5.
    pub const fn code(self) -> u8 {
        self.0.get()
    }

    /// Returns the size in bytes: 256, 512, 1024, 2048 or 4096.
    pub const fn bytes(self) -> u32 {
        // The shift is at most 5.
        128u32.wrapping_shl(self.0.get() as u32)
    }

    /// Returns what a queue pair is set to: the smaller of the two peers' values. It makes no
    /// difference whether the peer has taken that already, as Linux does for its Confirm.
    pub fn agreed(self, peers: Self) -> Self {
        self.min(peers)
    }

    /// Returns the nibble on the wire, where 0 stands for no MTU.
    pub(crate) fn to_wire(mtu: Option<Self>) -> u8 {
        mtu.map_or(0, Self::code)
    }
}

/// Order of bytes in the lengths and counts of version 2 LLC messages.
///
/// Big-endian by the rule of all other fields; Linux sends its own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ByteOrder {
    /// Most significant byte first.
    #[default]
    Big,
    /// Least significant byte first.
    Little,
}

impl ByteOrder {
    pub(crate) const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        }
    }

    pub(crate) const fn bytes(self, value: u16) -> [u8; 2] {
        match self {
            Self::Big => value.to_be_bytes(),
            Self::Little => value.to_le_bytes(),
        }
    }
}

/// Enterprise ID of version 2: up to 32 characters, padded with blanks.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Eid(pub [u8; 32]);

impl Eid {
    /// Makes an ID of 1 to 32 upper-case letters, digits, dots and hyphens, of which the first is
    /// a letter or a digit.
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut padded = [b' '; 32];
        padded
            .get_mut(..name.len())?
            .iter_mut()
            .zip(name)
            .for_each(|(to, from)| *to = *from);
        let eid = Self(padded);
        (eid.is_valid() && eid.name().len() == name.len()).then_some(eid)
    }

    /// Returns the name without the padding.
    pub fn name(&self) -> &[u8] {
        self.0.trim_ascii_end()
    }

    /// Tells whether the name is made of the permitted characters.
    pub fn is_valid(&self) -> bool {
        let outer = |c: &u8| c.is_ascii_uppercase() || c.is_ascii_digit();
        let name = self.name();
        name.first().is_some_and(outer) && name.iter().all(|c| outer(c) || matches!(c, b'.' | b'-'))
    }
}

impl Default for Eid {
    fn default() -> Self {
        Self([b' '; 32])
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name().escape_ascii())
    }
}

impl fmt::Debug for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eid({self})")
    }
}
