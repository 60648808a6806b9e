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

/// Most links that one link group has room for: eight symmetric ones, and an asymmetric one, which
/// does not count (RFC 7609 section 2.2.2).
pub const MAX_LINKS: usize = 9;

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

    /// The places in a set of links.
    pub(crate) fn of(set: u16) -> impl Iterator<Item = Self> {
        Self::all().filter(move |link| set & link.bit() != 0)
    }

    /// The bit of the place in a set of links.
    pub const fn bit(self) -> u16 {
        1u16.wrapping_shl(self.0 as u32)
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

/// The RTokens of one buffer, at most one for each link of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    rkeys: [RKey; MAX_LINKS],
    addrs: [u64; MAX_LINKS],
    /// One bit for each link on which the buffer has an RToken.
    live: u16,
}

impl Tokens {
    /// No token on any link.
    pub const EMPTY: Self = Self {
        rkeys: [RKey(0); MAX_LINKS],
        addrs: [0; MAX_LINKS],
        live: 0,
    };

    /// The token on one link, if there is one.
    pub fn get(&self, link: LinkIx) -> Option<RToken> {
        if self.live & link.bit() == 0 {
            return None;
        }
        Some(RToken {
            rkey: *self.rkeys.get(link.get())?,
            addr: *self.addrs.get(link.get())?,
        })
    }

    /// Remembers the token on one link.
    pub fn set(&mut self, link: LinkIx, token: RToken) {
        let places = (
            self.rkeys.get_mut(link.get()),
            self.addrs.get_mut(link.get()),
        );
        if let (Some(rkey), Some(addr)) = places {
            *rkey = token.rkey;
            *addr = token.addr;
            self.live |= link.bit();
        }
    }

    /// Forgets the token on one link.
    pub fn forget(&mut self, link: LinkIx) {
        self.live &= !link.bit();
    }

    /// True if there is no token on any link.
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }
}

/// One of our own buffers, as the LLC engine has to know it to tell the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRmb {
    /// The driver's name for it.
    pub id: RmbId,
    /// Its RTokens.
    pub tokens: Tokens,
}

/// Our name for one of our own buffers. The driver chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmbId(pub u16);

/// Our own buffers and their RTokens on all links: a view of entries that the driver owns.
///
/// An entry keeps its place for as long as the buffer exists; free places may be filled anew. A
/// buffer is entered before it is announced, and taken out when the peer has refused or forgotten
/// it. What CLC named on the first contact is entered from the start.
#[derive(Clone, Copy)]
pub struct OwnTable<'a> {
    rmbs: &'a [Option<OwnRmb>],
}

impl<'a> OwnTable<'a> {
    /// No buffers: enough for a group that never has more than one link.
    pub const EMPTY: Self = Self { rmbs: &[] };

    /// The table in `rmbs`.
    pub const fn new(rmbs: &'a [Option<OwnRmb>]) -> Self {
        Self { rmbs }
    }

    /// The RToken of a buffer on one link.
    pub fn token(&self, id: RmbId, link: LinkIx) -> Option<RToken> {
        let rmb = self.rmbs.iter().flatten().find(|rmb| rmb.id == id)?;
        rmb.tokens.get(link)
    }

    /// The first buffer from a place on which has a token on both links, and its place.
    pub(crate) fn next_pair(
        &self,
        from: usize,
        (known, new): (LinkIx, LinkIx),
        wanted: impl Fn(RmbId) -> bool,
    ) -> Option<(usize, RToken, RToken)> {
        let places = (0..MAX_PEER_RMBS).zip(self.rmbs).skip(from);
        places
            .filter_map(|(place, rmb)| Some((place, rmb.as_ref()?)))
            .filter(|(_, rmb)| wanted(rmb.id))
            .find_map(|(place, rmb)| Some((place, rmb.tokens.get(known)?, rmb.tokens.get(new)?)))
    }
}

/// One buffer of the peer. What it is, only [`PeerTable`] knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRmb {
    tokens: Tokens,
    /// The elements that connections use.
    used: IndexSet,
}

impl PeerRmb {
    /// An unused entry.
    pub const EMPTY: Self = Self {
        tokens: Tokens::EMPTY,
        used: IndexSet::EMPTY,
    };

    fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.used.is_empty()
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
    /// name its element again: the driver aborts it at once, without another write to the buffer.
    /// The element belongs to the new connection, too: it is released when both are through.
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
        self.slots.get(slot.get())?.tokens.get(link)
    }

    /// True if no key is known of what is at this place: the peer has deleted the buffer, and its connections have yet to
    /// go. Where there is a key, the place has been taken again.
    pub fn is_gone(&self, slot: PeerSlot) -> bool {
        self.slots
            .get(slot.get())
            .is_none_or(|rmb| rmb.tokens.is_empty())
    }

    /// The buffer with this RKey on this link.
    pub fn find(&self, link: LinkIx, rkey: RKey) -> Option<PeerSlot> {
        self.first(|rmb| rmb.tokens.get(link).is_some_and(|token| token.rkey == rkey))
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
        if rmb.tokens.get(link) == Some(token) {
            return Ok(slot);
        }
        if !rmb.used.is_empty() {
            return Err(TableError::RKeyInUse);
        }
        *rmb = PeerRmb::EMPTY;
        rmb.tokens.set(link, token);
        Ok(slot)
    }

    /// Remembers a buffer with its tokens on several links, all or none; `link` has one of them, by which it may
    /// be known already.
    pub fn add_all(&mut self, link: LinkIx, tokens: &Tokens) -> Result<PeerSlot, TableError> {
        let token = tokens.get(link).ok_or(TableError::Full)?;
        let others = || {
            let all = LinkIx::all().filter(|other| *other != link);
            all.filter_map(|other| Some((other, tokens.get(other)?)))
        };
        let known = self.find(link, token.rkey);
        if others().any(|(other, token)| self.is_taken(known, other, token)) {
            return Err(TableError::RKeyInUse);
        }
        let slot = self.add(link, token)?;
        for (other, token) in others() {
            self.set(slot, other, token)?;
        }
        Ok(slot)
    }

    /// True if connections use another buffer that has this key on this link.
    fn is_taken(&self, slot: Option<PeerSlot>, link: LinkIx, token: RToken) -> bool {
        let owner = self
            .find(link, token.rkey)
            .filter(|owner| Some(*owner) != slot);
        owner
            .and_then(|owner| self.slots.get(owner.get()))
            .is_some_and(|rmb| !rmb.used.is_empty())
    }

    /// Remembers the token on `link` of the buffer which has the key `rkey` on the link `known`.
    /// Without effect if there is no such buffer.
    pub fn extend(
        &mut self,
        known: LinkIx,
        rkey: RKey,
        link: LinkIx,
        token: RToken,
    ) -> Result<(), TableError> {
        match self.find(known, rkey) {
            Some(slot) => self.set(slot, link, token),
            None => Ok(()),
        }
    }

    /// Sets one token of a buffer. Another buffer that had the same key there has lost it, which it
    /// must not if connections use it.
    fn set(&mut self, slot: PeerSlot, link: LinkIx, token: RToken) -> Result<(), TableError> {
        let owner = self.find(link, token.rkey).filter(|owner| *owner != slot);
        if let Some(owner) = owner.and_then(|owner| self.slots.get_mut(owner.get())) {
            if !owner.used.is_empty() {
                return Err(TableError::RKeyInUse);
            }
            *owner = PeerRmb::EMPTY;
        }
        if let Some(rmb) = self.slots.get_mut(slot.get()) {
            rmb.tokens.set(link, token);
        }
        Ok(())
    }

    /// Forgets the buffer with this RKey on this link, on all links. The entry stays taken, but
    /// without tokens, until the last connection releases its element. The result says whether
    /// there are such connections; None if there is no such buffer.
    pub fn remove(&mut self, link: LinkIx, rkey: RKey) -> Option<(PeerSlot, bool)> {
        let slot = self.find(link, rkey)?;
        let rmb = self.slots.get_mut(slot.get())?;
        rmb.tokens = Tokens::EMPTY;
        Some((slot, !rmb.used.is_empty()))
    }

    /// Whether a buffer has this RToken on this link.
    pub fn has(&self, link: LinkIx, token: RToken) -> bool {
        self.slots
            .iter()
            .any(|rmb| rmb.tokens.get(link) == Some(token))
    }

    /// Forgets all tokens of one link.
    pub fn forget_link(&mut self, link: LinkIx) {
        for rmb in self.slots.iter_mut() {
            rmb.tokens.forget(link);
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
