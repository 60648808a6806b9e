// SPDX-License-Identifier: GPL-2.0

//! RMBs of a link group, kept registered and cut into elements. A connection that ends gives its element back
//! here, and the next one needs neither memory registration nor an exchange with the peer.

use kapi::{
    errno::{ENOBUFS, ENOTCONN},
    grow::{self, Grow}, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc,
        Mutex, //
    },
};
use smc_proto::{
    group::{LinkIx, Tokens, MAX_LINKS},
    llc_flow::RmbId,
    rmb::Elements,
    wire::{RToken, RmbeIndex, RmbeSize}, //
};

use crate::{
    buffers::{Rmb, RmbMr},
    group::Group,
    link::Link,
    netns::Netns, //
};

/// RMBs of one group at most, ours and the peer's each (RFC 7609 section 2.1).
const MAX_RMBS: usize = 255;

/// So many places for RMBs are kept free where others can go that no connection uses.
const ROOM: usize = 16;

/// Memory that the first RMB of a group aims at, in bytes; cut into as many elements as fit.
const RMB_BYTES: u32 = 128 * 1024;

/// How often that is doubled, as a group that grows needs more and more of them.
const RMB_DOUBLINGS: usize = 3;

/// What the peer knows of an RMB.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Known {
    /// CONFIRM RKEY is under way.
    Announced = 0,
    /// CLC may name it.
    Yes = 1,
    /// The peer refused it, or the group is over.
    Refused = 2,
    /// The peer is to forget it, or has: it gets no connections any more.
    Withdrawn = 3,
}

/// One of our RMBs, with its keys on the group's links.
#[pin_data]
pub(crate) struct GroupRmb {
    pub(crate) id: RmbId,
    memory: Arc<Rmb>,
    #[pin]
    keys: Mutex<[Option<RmbMr>; MAX_LINKS]>,
    size: RmbeSize,
    known: Atomic<u32>,
    /// Somebody has begun to announce it.
    begun: Atomic<u32>,
    /// A connection has got an element of it.
    used: Atomic<u32>,
}

impl GroupRmb {
    /// Key and address on a link, as the peer has to name them.
    pub(crate) fn token(&self, link: LinkIx) -> Option<RToken> {
        let keys = self.keys.lock();
        Some(keys.get(link.get())?.as_ref()?.token())
    }

    /// Its keys on all links that it has one for.
    pub(super) fn tokens(&self) -> Tokens {
        let mut tokens = Tokens::EMPTY;
        for link in LinkIx::all() {
            if let Some(token) = self.token(link) {
                tokens.set(link, token);
            }
        }
        tokens
    }

    /// Gets a key on a link. Sleeps.
    fn add_key(&self, link: &Link) -> Result {
        let key = link.alloc_key(&self.memory)?;
        let old = self
            .keys
            .lock()
            .get_mut(link.place.get())
            .and_then(|place| place.replace(key));
        drop(old);
        Ok(())
    }

    /// Gives up the key on a link. Sleeps.
    fn drop_key(&self, link: LinkIx) {
        let key = self.keys.lock().get_mut(link.get()).and_then(Option::take);
        drop(key);
    }

    /// What the peer knows of it.
    pub(crate) fn known(&self) -> Known {
        match self.known.load(Acquire) {
            0 => Known::Announced,
            1 => Known::Yes,
            3 => Known::Withdrawn,
            _ => Known::Refused,
        }
    }

    pub(super) fn set_known(&self, known: Known) {
        self.known.store(known as u32, Release);
    }

    /// Notes that a connection uses it; true the first time.
    pub(super) fn first_use(&self) -> bool {
        self.used.xchg(1, Relaxed) == 0
    }

    /// Lets the peer write over a link, whose queue pair has to be able to send. Sleeps.
    pub(crate) fn register(&self, link: LinkIx) -> Result {
        let registration = {
            let keys = self.keys.lock();
            let key = keys.get(link.get()).and_then(Option::as_ref);
            key.ok_or(ENOTCONN)?.registration()
        };
        registration.run()
    }
}

/// An element of one of our RMBs, owned by a connection.
pub(crate) struct OwnElement {
    rmb: Arc<GroupRmb>,
    index: RmbeIndex,
    offset: usize,
}

impl OwnElement {
    /// The memory it is part of.
    pub(crate) fn rmb(&self) -> &Arc<Rmb> {
        &self.rmb.memory
    }

    /// The RMB it is part of.
    pub(crate) fn group_rmb(&self) -> &Arc<GroupRmb> {
        &self.rmb
    }

    /// Where it starts in the RMB, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Its number, as CLC names it.
    pub(crate) fn index(&self) -> RmbeIndex {
        self.index
    }

    /// Its size.
    pub(crate) fn size(&self) -> RmbeSize {
        self.rmb.size
    }
}

struct Entry {
    rmb: Arc<GroupRmb>,
    /// The size that was asked for; its elements are smaller if memory was short.
    wanted: RmbeSize,
    elements: Elements,
    mark: Mark,
}

/// Whether an RMB that no connection uses is going to be given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    No,
    /// The next time, if it has not been used until then: whoever had it announced may be about to.
    Unused,
    /// Now.
    Due,
}

/// The pools of one link group. Process context: under a mutex.
pub(crate) struct Pools {
    rmbs: KVec<Entry>,
    next_id: u16,
    /// The RMB that the peer is being asked to forget, one of those that are given back.
    trimming: Option<RmbId>,
}

/// What became of the wish for an element.
pub(crate) enum Taken {
    Element(OwnElement),
    /// An RMB of this size has been announced: wait for what the peer says.
    Pending(Arc<GroupRmb>),
    /// There is none, and a new RMB is needed.
    NeedRmb,
}

impl Pools {
    pub(super) fn new() -> Self {
        Self {
            rmbs: KVec::new(),
            next_id: 1,
            trimming: None,
        }
    }

    /// A free element of this size in an RMB that the peer knows.
    pub(super) fn take(&mut self, size: RmbeSize) -> Taken {
        let mut pending = None;
        for entry in self.rmbs.iter_mut().filter(|entry| entry.wanted == size) {
            match entry.rmb.known() {
                Known::Yes => {
                    if let Some(element) = entry.alloc() {
                        return Taken::Element(element);
                    }
                }
                Known::Announced => pending = Some(entry.rmb.clone()),
                Known::Refused | Known::Withdrawn => {}
            }
        }
        pending.map_or(Taken::NeedRmb, Taken::Pending)
    }

    /// Takes in an RMB for connections that want elements of `wanted` bytes; those of [`Memory`] may be smaller.
    /// Sleeps.
    pub(super) fn add(
        &mut self,
        group: &Group,
        wanted: RmbeSize,
        Memory { memory, size }: Memory,
        known: Known,
    ) -> Result<Arc<GroupRmb>> {
        self.rmbs.keep(|entry| !entry.is_refused());
        if self.rmbs.len() >= MAX_RMBS {
            return Err(ENOBUFS);
        }
        let id = self.next_id();
        let count = u8::try_from(memory.elements()).unwrap_or(u8::MAX);
        let rmb = Arc::pin_init(
            pin_init!(GroupRmb {
                id,
                memory,
                keys <- new_mutex!([const { None }; MAX_LINKS], "smc_keys"),
                size,
                known: Atomic::new(known as u32),
                begun: Atomic::new(0),
                used: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        for link in group.links() {
            // A link that is on its way out has none to give. One that is being set up needs it as well.
            if let Err(error) = rmb.add_key(&link) {
                if !link.is_broken() {
                    return Err(error);
                }
            }
        }
        let counters = &group.ns.stats.rx();
        counters.allocated();
        if size != wanted {
            counters.downgraded();
        }
        let entry = Entry {
            rmb: rmb.clone(),
            wanted,
            elements: Elements::new(size, count),
            mark: Mark::No,
        };
        self.rmbs.append(entry, GFP_KERNEL)?;
        Ok(rmb)
    }

    /// How many elements of `size` bytes the next RMB gets: no more than as many connections as the group takes
    /// can use.
    pub(super) fn elements_to_add(&self, size: RmbeSize, max_connections: u16) -> u32 {
        let same = self.rmbs.iter().filter(|entry| {
            entry.wanted == size && matches!(entry.rmb.known(), Known::Yes | Known::Announced)
        });
        let bytes = RMB_BYTES << grow::count(same.clone()).min(RMB_DOUBLINGS);
        let missing = same.fold(u32::from(max_connections), |missing, entry| {
            let elements = &entry.elements;
            missing
                .saturating_sub(elements.in_use())
                .saturating_sub(elements.available())
        });
        let fit = bytes.checked_div(size.bytes()).unwrap_or(1);
        fit.min(missing).max(1)
    }

    /// Makes all RMBs known to the device of another link. Sleeps.
    pub(super) fn add_link(&self, link: &Link) -> Result {
        self.rmbs
            .iter()
            .try_for_each(|entry| entry.rmb.add_key(link))
    }

    /// Lets the peer write to all RMBs over a link. Sleeps.
    pub(super) fn register(&self, link: LinkIx) -> Result {
        self.rmbs
            .iter()
            .try_for_each(|entry| entry.rmb.register(link))
    }

    /// Gives up the keys on a link. Sleeps.
    pub(super) fn drop_link(&self, link: LinkIx) {
        self.rmbs.iter().for_each(|entry| entry.rmb.drop_key(link));
    }

    /// The names of all RMBs that have a key on a link, and the keys.
    pub(super) fn tokens_on(&self, link: LinkIx) -> Result<KVec<(RmbId, RToken)>> {
        let mut tokens = KVec::with_capacity(self.rmbs.len(), GFP_KERNEL)?;
        for entry in &self.rmbs {
            if let Some(token) = entry.rmb.token(link) {
                tokens.append((entry.rmb.id, token), GFP_KERNEL)?;
            }
        }
        Ok(tokens)
    }

    /// A name that no RMB of the group has: there are fewer of them than names.
    fn next_id(&mut self) -> RmbId {
        loop {
            let id = RmbId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            if !self.rmbs.iter().any(|entry| entry.rmb.id == id) {
                return id;
            }
        }
    }

    /// An element of an RMB that was just made.
    pub(super) fn take_from(&mut self, rmb: &Arc<GroupRmb>) -> Option<OwnElement> {
        self.rmbs
            .iter_mut()
            .find(|entry| entry.rmb.id == rmb.id)?
            .alloc()
    }

    /// Notes what the peer said about an RMB.
    pub(super) fn set_known(&mut self, id: RmbId, known: Known) {
        for entry in self.rmbs.iter().filter(|entry| entry.rmb.id == id) {
            entry.rmb.set_known(known);
        }
    }

    /// An RMB that nobody has begun to announce: the caller does.
    pub(super) fn next_new(&self) -> Option<Arc<GroupRmb>> {
        let mut rmbs = self.rmbs.iter().map(|entry| &entry.rmb);
        let is_new = |rmb: &&Arc<GroupRmb>| {
            rmb.known() == Known::Announced && rmb.begun.xchg(1, Relaxed) == 0
        };
        rmbs.find(is_new).cloned()
    }

    /// The group is over: nothing more will be announced.
    pub(super) fn refuse_pending(&mut self) {
        for entry in self.rmbs.iter() {
            if entry.rmb.known() == Known::Announced {
                entry.rmb.set_known(Known::Refused);
            }
        }
    }

    /// Takes an element back; `reusable` if the peer will not write to it any more. Gives the RMB if
    /// it is of no use any more, and the peer should forget it.
    pub(super) fn give_back(
        &mut self,
        element: &OwnElement,
        reusable: bool,
    ) -> Option<Arc<GroupRmb>> {
        let len = element.size().bytes() as usize;
        if reusable {
            // In bounds: the element is part of the RMB.
            let _ = element.rmb().pages().zero(element.offset, len);
        }
        let entry = self
            .rmbs
            .iter_mut()
            .find(|entry| entry.rmb.id == element.rmb.id)?;
        if reusable {
            entry.elements.free(element.index);
        } else {
            entry.elements.retire(element.index);
        }
        if !entry.elements.is_spent() {
            return None;
        }
        entry.rmb.set_known(Known::Withdrawn);
        Some(entry.rmb.clone())
    }

    /// Bytes that no connection uses, and that could be given back.
    pub(super) fn idle_bytes(&self) -> usize {
        let idle = self
            .rmbs
            .iter()
            .filter(|entry| entry.is_idle() || entry.is_refused());
        grow::sum(idle.map(|entry| entry.rmb.memory.len()))
    }

    /// Begins to give back what no connection uses at the moment: marks the RMBs.
    pub(super) fn begin_trim(&mut self) {
        for entry in self.rmbs.iter_mut().filter(|entry| entry.is_idle()) {
            entry.mark = match entry.mark {
                Mark::No if entry.rmb.used.load(Relaxed) == 0 => Mark::Unused,
                _ => Mark::Due,
            };
        }
    }

    /// Begins to give back some of those that connections have used, and none uses now, where there is hardly room
    /// for more RMBs; not of the size that is wanted. Gives whether it did.
    pub(super) fn make_room(&mut self, wanted: RmbeSize) -> bool {
        if self.rmbs.len() <= MAX_RMBS - ROOM {
            return false;
        }
        let idle = self.rmbs.iter_mut().filter(|entry| {
            entry.wanted != wanted && entry.is_idle() && entry.rmb.used.load(Relaxed) != 0
        });
        idle.take(ROOM).for_each(|entry| entry.mark = Mark::Due);
        true
    }

    /// The next RMB of those for the peer to forget, which gets no connections from now on, if it has forgotten the one
    /// before: `forgotten` says which it has. Also one that is of no use any more. Sleeps.
    pub(super) fn next_trim(&mut self, forgotten: Option<RmbId>) -> Option<Arc<GroupRmb>> {
        if self.trimming.is_some() && self.trimming != forgotten {
            return None;
        }
        self.rmbs.keep(|entry| !entry.is_refused());
        let next = self.rmbs.iter().find(|entry| {
            entry.is_idle() && (entry.mark == Mark::Due || entry.elements.is_spent())
        });
        let next = next.map(|entry| entry.rmb.clone());
        self.trimming = next.as_ref().map(|rmb| rmb.id);
        if let Some(rmb) = &next {
            rmb.set_known(Known::Withdrawn);
        }
        next
    }

    /// The peer cannot be asked now.
    pub(super) fn stop_trim(&mut self) {
        self.trimming = None;
    }

    /// Frees an RMB that no connection uses and no peer can write to. Sleeps.
    pub(super) fn forget(&mut self, id: RmbId) {
        self.rmbs
            .keep(|entry| entry.rmb.id != id || !entry.elements.is_idle());
    }

    /// Frees all RMBs that no connection uses, where no peer can write to any; but those that somebody waits for, who has to
    /// be told. Sleeps.
    pub(super) fn forget_idle(&mut self) {
        self.rmbs
            .keep(|entry| !entry.elements.is_idle() || entry.rmb.known() == Known::Announced);
    }

    /// Bytes of all RMBs.
    pub(crate) fn bytes(&self) -> usize {
        grow::sum(self.rmbs.iter().map(|entry| entry.rmb.memory.len()))
    }
}

impl Entry {
    /// The peer knows it, and no connection uses it. What a peer may still write to counts where nothing else
    /// is left, so that its messages meet nobody else's key: Linux forgets an RMB without a look at who still uses it, and
    /// takes the next one that it is told of for the same.
    fn is_idle(&self) -> bool {
        let elements = &self.elements;
        self.rmb.known() == Known::Yes
            && elements.is_idle()
            && (elements.available() == u32::from(elements.count()) || elements.is_spent())
    }

    /// Nobody uses it, and nobody will.
    fn is_refused(&self) -> bool {
        self.rmb.known() == Known::Refused && self.elements.is_idle()
    }

    fn alloc(&mut self) -> Option<OwnElement> {
        let index = self.elements.alloc()?;
        self.mark = Mark::No;
        let offset = usize::try_from(self.elements.offset(index)?).ok()?;
        Some(OwnElement {
            rmb: self.rmb.clone(),
            index,
            offset,
        })
    }
}

/// Memory for an RMB, and the size of its elements.
pub(super) struct Memory {
    memory: Arc<Rmb>,
    size: RmbeSize,
}

impl Memory {
    /// For up to `count` elements, of a smaller size if need be. Not to be called under the lock of the pools: whom
    /// it is charged to may have to wait for long. Sleeps.
    pub(super) fn new(ns: &Arc<Netns>, mut size: RmbeSize, count: u32) -> Result<Self> {
        loop {
            match (Rmb::new(ns, size, count), size.smaller()) {
                (Ok(memory), _) => return Ok(Self { memory, size }),
                (Err(_), Some(smaller)) => size = smaller,
                (Err(error), None) => return Err(error),
            }
        }
    }
}
