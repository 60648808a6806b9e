// SPDX-License-Identifier: GPL-2.0

//! What both ends of a link group remember of each other: the facts that describe a link and a
//! connection's buffer, link numbers, and the RTokens of the peer's buffers (RFC 7609 sections
//! 2.2.4, 3.5.5.2 and 4.4.2).

use crate::{
    rmb::IndexSet,
    wire::{
        AlertToken,
        Gid,
        LinkNum,
        Mac,
        MtuCode,
        Psn,
        QpNum,
        RKey,
        RToken,
        RmbeIndex,
        RmbeSize, //
    },
};

/// Most links that one link group has room for: two, and one more while a link is replaced.
pub const MAX_LINKS: usize = 3;

/// Most buffers (RMBs) of the peer that a link group remembers.
pub const MAX_PEER_RMBS: usize = 255;

/// Which side of the TCP connections of a link group we are. It never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side that opened the TCP connections.
    Client,
    /// The side that accepted them.
    Server,
}

impl Role {
    /// The role of the peer.
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// One end of a link, as CLC and ADD LINK describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEnd {
    /// MAC address of the RNIC port.
    pub mac: Mac,
    /// GID of the RNIC port.
    pub gid: Gid,
    /// Queue pair number.
    pub qp: QpNum,
    /// Largest path MTU of the port.
    pub mtu: MtuCode,
    /// Sequence number of the first packet that the queue pair sends.
    pub psn: Psn,
}

impl LinkEnd {
    /// True if both describe the same queue pair of the same port. MTU and PSN do not matter: they
    /// mean nothing but on first contact.
    pub fn same_queue_pair(&self, other: &Self) -> bool {
        self.mac == other.mac && self.gid == other.gid && self.qp == other.qp
    }

    /// True if both are on the same RNIC port.
    pub fn same_port(&self, mac: Mac, gid: Gid) -> bool {
        self.mac == mac && self.gid == gid
    }
}

/// The buffer of one connection, as CLC describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// The RMB: its RKey on the link and the address of its start.
    pub token: RToken,
    /// Which element of the RMB.
    pub index: RmbeIndex,
    /// Size of each element of the RMB.
    pub size: RmbeSize,
    /// What the other side puts into its CDC messages for the connection.
    pub alert: AlertToken,
}

impl Element {
    /// Address of the element's first byte. None if the element does not end within 64 bits.
    pub fn address(&self) -> Option<u64> {
        let start = self.token.addr.checked_add(self.index.offset(self.size))?;
        start.checked_add(u64::from(self.size.bytes()))?;
        Some(start)
    }
}

/// The place of a link in its link group. A small number of ours, unlike [`LinkNum`], which the
/// server chooses and both sides put on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkIx(u8);

impl LinkIx {
    /// The link of a first contact.
    pub const FIRST: Self = Self(0);

    /// The place with this number, below [`MAX_LINKS`].
    pub const fn new(place: usize) -> Option<Self> {
        if place < MAX_LINKS {
            Some(Self(place as u8))
        } else {
            None
        }
    }

    /// All places.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_LINKS).filter_map(Self::new)
    }

    /// The number of the place, below [`MAX_LINKS`].
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

/// Hands out link numbers: upwards from 1, wrapping past 255, never one in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkNums {
    last: u8,
}

impl LinkNums {
    /// The first number handed out will be 1.
    pub const fn new() -> Self {
        Self { last: 0 }
    }

    /// The next number for which `in_use` is false.
    pub fn next(&mut self, in_use: impl Fn(LinkNum) -> bool) -> Option<LinkNum> {
        for step in 1..=u8::MAX {
            if let Some(number) = LinkNum::new(self.last.wrapping_add(step)) {
                if !in_use(number) {
                    self.last = number.get();
                    return Some(number);
                }
            }
        }
        None
    }
}

impl Default for LinkNums {
    fn default() -> Self {
        Self::new()
    }
}

/// One buffer of the peer. What it is, only [`PeerTable`] knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRmb {
    rkeys: [RKey; MAX_LINKS],
    addrs: [u64; MAX_LINKS],
    /// One bit for each link on which the buffer has an RToken.
    live: u8,
    /// The elements that connections use.
    used: IndexSet,
}

impl PeerRmb {
    /// An unused entry.
    pub const EMPTY: Self = Self {
        rkeys: [RKey(0); MAX_LINKS],
        addrs: [0; MAX_LINKS],
        live: 0,
        used: IndexSet::EMPTY,
    };

    fn is_empty(&self) -> bool {
        self.live == 0 && self.used.is_empty()
    }

    const fn bit(link: LinkIx) -> u8 {
        1u8.wrapping_shl(link.0 as u32)
    }

    fn token(&self, link: LinkIx) -> Option<RToken> {
        if self.live & Self::bit(link) == 0 {
            return None;
        }
        Some(RToken {
            rkey: *self.rkeys.get(link.get())?,
            addr: *self.addrs.get(link.get())?,
        })
    }

    fn set_token(&mut self, link: LinkIx, token: RToken) {
        let places = (
            self.rkeys.get_mut(link.get()),
            self.addrs.get_mut(link.get()),
        );
        if let (Some(rkey), Some(addr)) = places {
            *rkey = token.rkey;
            *addr = token.addr;
            self.live |= Self::bit(link);
        }
    }

    fn forget(&mut self, link: LinkIx) {
        self.live &= !Self::bit(link);
    }
}

/// The place of a buffer in the [`PeerTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSlot(u8);

impl PeerSlot {
    /// The number of the place, below [`MAX_PEER_RMBS`].
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

/// A connection's hold on its buffer at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerElement {
    /// The RMB.
    pub slot: PeerSlot,
    /// The element.
    pub index: RmbeIndex,
}

/// Why the table did not take an RToken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableError {
    /// No entry is free.
    Full,
    /// The RKey belongs to another buffer, which connections still use.
    RKeyInUse,
}

/// What [`PeerTable::claim`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The element was free and now belongs to the new connection.
    New(PeerElement),
    /// Another connection used the element. The peer must have ended that one, or it would not
    /// name its element again: the driver aborts it at once, without another write to the buffer
    /// and *without* releasing the element, which now belongs to the new connection.
    TakenOver(PeerElement),
}

impl Claim {
    /// The element, whoever had it before.
    pub const fn element(self) -> PeerElement {
        match self {
            Self::New(element) | Self::TakenOver(element) => element,
        }
    }
}

/// The RTokens of the peer's buffers, on whichever links they have one.
///
/// A view of entries that the driver owns, so that it decides how many there are and where they
/// live; entries beyond [`MAX_PEER_RMBS`] are never used. Growing the storage (with
/// [`PeerRmb::EMPTY`]) is allowed at any time, shrinking is not.
pub struct PeerTable<'a> {
    slots: &'a mut [PeerRmb],
}

impl<'a> PeerTable<'a> {
    /// The table in `slots`.
    pub fn new(slots: &'a mut [PeerRmb]) -> Self {
        let count = slots.len().min(MAX_PEER_RMBS);
        Self {
            slots: slots.get_mut(..count).unwrap_or_default(),
        }
    }

    /// Number of entries that are not free.
    pub fn len(&self) -> usize {
        self.slots.len().saturating_sub(self.room())
    }

    /// True if the table remembers nothing.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(PeerRmb::is_empty)
    }

    /// Number of free entries.
    pub fn room(&self) -> usize {
        // `count()` would check for an overflow, and thus have a way to panic.
        let free = self.slots.iter().filter(|rmb| rmb.is_empty());
        free.fold(0, |n, _| n.saturating_add(1))
    }

    /// The RToken of a buffer on one link. None if it has none there, in particular if the peer
    /// has deleted the buffer: then nothing may be written to it any more.
    pub fn token(&self, slot: PeerSlot, link: LinkIx) -> Option<RToken> {
        self.slots.get(slot.get())?.token(link)
    }

    /// The buffer with this RKey on this link.
    pub fn find(&self, link: LinkIx, rkey: RKey) -> Option<PeerSlot> {
        self.first(|rmb| rmb.token(link).is_some_and(|token| token.rkey == rkey))
    }

    fn first(&self, matches: impl Fn(&PeerRmb) -> bool) -> Option<PeerSlot> {
        let mut places = (0..=u8::MAX).zip(self.slots.iter());
        let (place, _) = places.find(|(_, rmb)| matches(rmb))?;
        Some(PeerSlot(place))
    }

    /// Remembers a buffer. What is known already is not stored twice. An RKey that belonged to a
    /// buffer which no connection uses any more moves over to the new one.
    pub fn add(&mut self, link: LinkIx, token: RToken) -> Result<PeerSlot, TableError> {
        let known = self.find(link, token.rkey);
        let slot = known.or_else(|| self.first(PeerRmb::is_empty));
        let slot = slot.ok_or(TableError::Full)?;
        let rmb = self.slots.get_mut(slot.get()).ok_or(TableError::Full)?;
        if rmb.token(link) == Some(token) {
            return Ok(slot);
        }
        if !rmb.used.is_empty() {
            return Err(TableError::RKeyInUse);
        }
        *rmb = PeerRmb::EMPTY;
        rmb.set_token(link, token);
        Ok(slot)
    }

    /// Forgets the buffer with this RKey on this link, on all links. The entry stays taken, but
    /// without tokens, until the last connection releases its element. The result says whether
    /// there are such connections; None if there is no such buffer.
    pub fn remove(&mut self, link: LinkIx, rkey: RKey) -> Option<(PeerSlot, bool)> {
        let slot = self.find(link, rkey)?;
        let rmb = self.slots.get_mut(slot.get())?;
        rmb.live = 0;
        Some((slot, !rmb.used.is_empty()))
    }

    /// Forgets all tokens of one link.
    pub fn forget_link(&mut self, link: LinkIx) {
        for rmb in self.slots.iter_mut() {
            rmb.forget(link);
        }
    }

    /// Takes hold of the element which CLC named for a new connection, and remembers its RMB.
    pub fn claim(&mut self, link: LinkIx, element: &Element) -> Result<Claim, TableError> {
        let slot = self.add(link, element.token)?;
        let rmb = self.slots.get_mut(slot.get()).ok_or(TableError::Full)?;
        let index = element.index;
        Ok(if rmb.used.insert(index) {
            Claim::New(PeerElement { slot, index })
        } else {
            Claim::TakenOver(PeerElement { slot, index })
        })
    }

    /// Gives an element up when its connection is over. False if it was not claimed.
    pub fn release(&mut self, element: PeerElement) -> bool {
        self.slots
            .get_mut(element.slot.get())
            .is_some_and(|rmb| rmb.used.remove(element.index))
    }

    /// True if a connection uses the element.
    pub fn is_claimed(&self, element: PeerElement) -> bool {
        self.slots
            .get(element.slot.get())
            .is_some_and(|rmb| rmb.used.contains(element.index))
    }
}
