// SPDX-License-Identifier: GPL-2.0

//! The sending side of a connection: slots for chains, credits for work requests, mappings.

use super::{
    memory::{
        Mapping,
        Pages, //
    },
    region::Region,
    verbs::{
        Cqe,
        Qp, //
    },
};
use crate::bindings;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The largest number of RDMA writes in one chain.
pub const MAX_WRITES: usize = 4;

/// The data is copied into the work request, for which the device need not read memory.
const INLINE: c_int = bindings::ib_send_flags_IB_SEND_INLINE as c_int;

/// Names mapped pages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingId(pub(super) u32);

/// One RDMA write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Where the data starts in the chain's source.
    pub offset: u32,
    /// Its length.
    pub len: u32,
    /// Where it goes.
    pub remote_addr: u64,
    /// The key of the peer's region.
    pub remote_key: u32,
}

/// What is posted at once: writes from one source, then a message. They arrive in this order.
#[derive(Clone, Copy)]
pub struct Chain<'a> {
    /// Where the data of the writes is.
    pub source: Option<MappingId>,
    /// At most [`MAX_WRITES`].
    pub writes: &'a [Write],
    /// At most as long as [`Config::message_len`](super::Config::message_len), or, one at a time, as
    /// [`Config::long_message_len`](super::Config::long_message_len). Copied.
    pub message: &'a [u8],
    /// Comes back when all of it has been done.
    pub cookie: u64,
    /// Fail rather than use one of the last slots, see
    /// [`Config::reserved`](super::Config::reserved).
    pub spare: bool,
    /// Nobody waits for it: that it has been done need not be told, and hardly ever is.
    pub quiet: bool,
}

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No slot is free.
    Busy,
    /// The connection cannot send, or not any more.
    Down,
    /// Too many writes, too long a message, or data outside of the source.
    Invalid,
}

/// A posted chain.
#[derive(Clone, Copy)]
struct Slot {
    /// None if it has no completion of its own, and nobody is told of its end.
    cookie: Option<u64>,
    source: Option<MappingId>,
    requests: u32,
    /// Its message is in the place for long ones.
    long: bool,
}

/// The places of sources, by their names.
pub(super) type Sources = KVec<Option<Source>>;

/// Mapped pages, and the chains in flight that read from them.
pub(super) struct Source {
    mapping: Mapping,
    chains: u32,
    /// Goes with the last chain.
    released: bool,
}

impl Source {
    /// See [`Mapping::stay`].
    pub(super) fn stay(&mut self) {
        self.mapping.stay();
    }
}

/// What the spin lock of a connection protects.
///
/// # Invariants
///
/// - `qp` and `local_qp` are valid and may be posted to while they are `Some`.
/// - The slots from `first`, `used` of them, wrapping, are posted and not yet completed; each
///   counts in `chains` of its source, and a source with chains is there.
/// - `credits` work requests can be posted without overflow of the send or completion queue.
/// - At most `most_quiet` of the work requests posted last have no completion of their own, so that
///   one comes whenever somebody was turned away.
/// - All of these numbers are far below what their types hold: no sum of some wraps around.
pub(super) struct SendQueue {
    qp: Option<NonNull<bindings::ib_qp>>,
    /// For what the peer does not hear of: registrations.
    local_qp: Option<NonNull<bindings::ib_qp>>,
    sending: bool,
    failed: bool,
    closed: bool,
    inline: u32,
    local_key: u32,
    slots: KVec<Slot>,
    first: usize,
    used: usize,
    /// Chains that have completed, wrapping.
    completed: u32,
    credits: u32,
    reserved: usize,
    /// Work requests posted since the last one that is going to be completed, and the most of them.
    quiet: u32,
    most_quiet: u32,
    /// Somebody was turned away with `Busy`.
    wanted: bool,
    /// A chain in flight has its message in the place for long ones.
    long: bool,
    sources: Sources,
    /// The region being registered, or the one registered last: kept because the device uses it.
    registering: Option<Arc<Region>>,
    /// The registration has not completed.
    registration_pending: bool,
}

// SAFETY: The queue pair may be used from any thread, see `verbs::Qp`.
unsafe impl Send for SendQueue {}

/// What the constant parts of a connection give to a post.
pub(super) struct Context<'a> {
    pub(super) send_cqes: &'a [Cqe],
    pub(super) write_cqe: &'a Cqe,
    pub(super) register_cqe: &'a Cqe,
    /// Where messages are copied to: a piece of `stride` bytes for each slot, from `start`.
    pub(super) messages: &'a Mapping,
    pub(super) start: usize,
    pub(super) stride: usize,
    /// Where a long message is copied to, and how long it may be.
    pub(super) long: (usize, usize),
}

/// What comes out of a completion.
pub(super) struct Completed {
    pub(super) cookie: Option<u64>,
    /// To be dropped without the lock held.
    pub(super) source: Option<Mapping>,
}

impl Completed {
    /// Whether there is anything to be done about it.
    #[inline]
    pub(super) fn concerns(&self) -> bool {
        self.cookie.is_some() || self.source.is_some()
    }
}

impl SendQueue {
    pub(super) fn new(slots: usize, credits: u32, reserved: usize) -> Result<Self> {
        let slot = Slot {
            cookie: None,
            source: None,
            requests: 0,
            long: false,
        };
        let list = KVec::from_elem(slot, slots, GFP_KERNEL)?;
        // INVARIANT: No queue pair, nothing posted.
        Ok(Self {
            qp: None,
            local_qp: None,
            sending: false,
            failed: false,
            closed: false,
            inline: 0,
            local_key: 0,
            slots: list,
            first: 0,
            used: 0,
            completed: 0,
            credits,
            reserved,
            quiet: 0,
            // With no more than these under way `take_wanted` finds enough.
            most_quiet: (credits.min(slots as u32) / 4)
                .min(credits.saturating_sub(reserved.saturating_add(MAX_WRITES + 2) as u32)),
            wanted: false,
            long: false,
            sources: KVec::new(),
            registering: None,
            registration_pending: false,
        })
    }

    /// # Safety
    ///
    /// `qp` must stay valid, with room for the credits and slots given to [`SendQueue::new`],
    /// until [`Self::close`]; so must `local_qp`, with room for one work request.
    pub(super) unsafe fn open(&mut self, qp: &Qp, local_qp: &Qp, local_key: u32) {
        // What has been closed stays that.
        if self.closed {
            return;
        }
        // INVARIANT: The caller guarantees it.
        self.qp = Some(qp.as_raw());
        self.local_qp = Some(local_qp.as_raw());
        self.inline = qp.inline();
        self.local_key = local_key;
    }

    /// The queue pair, while it may be posted to.
    #[inline]
    pub(super) fn qp(&self) -> Option<NonNull<bindings::ib_qp>> {
        self.qp
    }

    /// The key of local memory.
    #[inline]
    pub(super) fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The queue pair is in a state to send.
    pub(super) fn start(&mut self) {
        self.sending = true;
    }

    /// No chain is posted any more.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// Nothing at all is posted any more.
    pub(super) fn close(&mut self) {
        self.failed = true;
        self.closed = true;
        self.qp = None;
        self.local_qp = None;
    }

    #[inline]
    fn is_sending(&self) -> bool {
        self.sending && !self.failed
    }

    /// Posts a chain.
    ///
    /// # Safety
    ///
    /// `context` must be the one of the connection that the queue belongs to, and live until the
    /// queue pair is destroyed.
    pub(super) unsafe fn post(
        &mut self,
        chain: &Chain<'_>,
        context: &Context<'_>,
    ) -> Result<(), PostError> {
        // SAFETY: As for this function.
        unsafe {
            match chain.writes.len() {
                0 | 1 => self.post_up_to::<1>(chain, context),
                _ => self.post_up_to::<MAX_WRITES>(chain, context),
            }
        }
    }

    /// Posts a chain of at most `N` writes: most have one, and room for more would have to be cleared
    /// each time.
    ///
    /// # Safety
    ///
    /// As for [`Self::post`].
    unsafe fn post_up_to<const N: usize>(
        &mut self,
        chain: &Chain<'_>,
        context: &Context<'_>,
    ) -> Result<(), PostError> {
        let count = chain.writes.len();
        let long = chain.message.len() > context.stride;
        if count > N || (long && chain.message.len() > context.long.1) {
            return Err(PostError::Invalid);
        }
        let qp = self
            .qp
            .filter(|_| self.is_sending())
            .ok_or(PostError::Down)?;
        let requests = (count as u32).wrapping_add(1);
        let (slots, credits) = if chain.spare {
            (self.reserved, self.reserved as u32)
        } else {
            (0, 0)
        };
        if self.free() <= slots
            || self.credits < requests.wrapping_add(credits)
            || (long && self.long)
        {
            self.wanted |= chain.spare;
            return Err(PostError::Busy);
        }

        let mut next = self.first.wrapping_add(self.used);
        if next >= self.slots.len() {
            next = next.wrapping_sub(self.slots.len());
        }
        let cqe = context.send_cqes.get(next).ok_or(PostError::Invalid)?;
        let offset = if long {
            context.long.0
        } else {
            (context.start).wrapping_add(next.wrapping_mul(context.stride))
        };
        let length = chain.message.len() as u32;
        let mut send = pin_init::zeroed::<bindings::ib_send_wr>();
        send.opcode = bindings::ib_wr_opcode_IB_WR_SEND;
        send.send_flags = bindings::ib_send_flags_IB_SEND_SOLICITED as c_int;
        let in_a_row = self.quiet.wrapping_add(requests);
        let quiet = chain.quiet && in_a_row <= self.most_quiet;
        if !quiet {
            send.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED as c_int;
        }
        let addr = if length <= self.inline {
            // The CPU reads inline data while it posts, so that it can be anywhere, and the address is
            // the CPU's.
            send.send_flags |= INLINE;
            chain.message.as_ptr().addr() as u64
        } else {
            let pages: &Pages = context.messages.pages();
            pages
                .write(offset, chain.message)
                .map_err(|_| PostError::Invalid)?;
            context
                .messages
                .sync_for_device(offset, chain.message.len())
                .map_err(|_| PostError::Invalid)?
        };
        let mut message = bindings::ib_sge {
            addr,
            length,
            lkey: self.local_key,
        };
        send.__bindgen_anon_1.wr_cqe = cqe.as_raw();
        send.sg_list = &mut message;
        send.num_sge = 1;

        let mut data = pin_init::zeroed::<[bindings::ib_sge; N]>();
        let mut writes = pin_init::zeroed::<[bindings::ib_rdma_wr; N]>();
        let mut head: *mut bindings::ib_send_wr = &mut send;
        if count > 0 {
            let source = chain.source.ok_or(PostError::Invalid)?;
            let source = self.source(source).ok_or(PostError::Invalid)?;
            let (mut data, mut writes) = (data.iter_mut(), writes.iter_mut());
            // From the last to the first, since each points to the next.
            for write in chain.writes.iter().rev() {
                let (Some(sge), Some(wr)) = (data.next(), writes.next()) else {
                    return Err(PostError::Invalid);
                };
                let (offset, len) = (write.offset as usize, write.len as usize);
                sge.addr = if write.len <= self.inline {
                    wr.wr.send_flags = INLINE;
                    let piece = source.mapping.pages().piece(offset, len);
                    piece.map_err(|_| PostError::Invalid)?.addr() as u64
                } else {
                    let piece = source.mapping.sync_for_device(offset, len);
                    piece.map_err(|_| PostError::Invalid)?
                };
                sge.length = write.len;
                sge.lkey = self.local_key;
                wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE;
                wr.wr.__bindgen_anon_1.wr_cqe = context.write_cqe.as_raw();
                wr.wr.sg_list = sge;
                wr.wr.num_sge = 1;
                wr.wr.next = head;
                wr.remote_addr = write.remote_addr;
                wr.rkey = write.remote_key;
                head = &mut wr.wr;
            }
        }

        let mut bad = ptr::null();
        // SAFETY: The queue pair is valid by the invariant, and has room by that of `credits`.
        // The list of work requests is on the stack and copied by the callee. What completions
        // need is in `context`; what the device reads later are the slot, in `context` too, and
        // the source, which is counted below and kept while it has chains; inline data, which is
        // the chain's or the source's, is read by the callee.
        let result = unsafe { bindings::ib_post_send(qp.as_ptr(), head, &mut bad) };
        if result != 0 {
            // Writes may be on their way, but no message will follow them.
            self.failed = true;
            // The source stays until the queue pair is gone.
            if let Some(source) = chain.source.and_then(|id| self.source_mut(id)) {
                source.chains = source.chains.wrapping_add(1);
            }
            return Err(PostError::Down);
        }
        let source = chain.source.filter(|_| count > 0);
        if let Some(source) = source.and_then(|id| self.source_mut(id)) {
            source.chains = source.chains.wrapping_add(1);
        }
        // INVARIANT: The slot is posted, its source and its work requests are counted.
        if let Some(slot) = self.slots.get_mut(next) {
            *slot = Slot {
                cookie: (!quiet).then_some(chain.cookie),
                source,
                requests,
                long,
            };
        }
        self.long |= long;
        self.used = self.used.wrapping_add(1);
        self.credits = self.credits.wrapping_sub(requests);
        // INVARIANT: Checked above, or it is completed.
        self.quiet = if quiet { in_a_row } else { 0 };
        Ok(())
    }

    /// Takes the oldest chain, which has completed.
    #[inline(always)]
    pub(super) fn complete(&mut self) -> Option<Completed> {
        if self.used == 0 {
            return None;
        }
        let slot = *self.slots.get(self.first)?;
        self.first = self.first.wrapping_add(1);
        if self.first == self.slots.len() {
            self.first = 0;
        }
        self.used = self.used.wrapping_sub(1);
        self.completed = self.completed.wrapping_add(1);
        self.long &= !slot.long;
        self.credits = self.credits.wrapping_add(slot.requests);
        let source = slot.source.and_then(|id| {
            let place = self.sources.get_mut(id.0 as usize)?;
            let source = place.as_mut()?;
            source.chains = source.chains.wrapping_sub(1);
            if source.released && source.chains == 0 {
                place.take().map(|source| source.mapping)
            } else {
                None
            }
        });
        Some(Completed {
            cookie: slot.cookie,
            source,
        })
    }

    /// While the completion of a chain is to come: a number that is another one after it.
    pub(super) fn awaited(&self) -> Option<u32> {
        let (newer, older) = self.slots.split_at_checked(self.first)?;
        let mut posted = Iterator::chain(older.iter(), newer).take(self.used);
        let waits = posted.any(|slot| slot.cookie.is_some());
        waits.then_some(self.completed)
    }

    /// The number of posted slots from the oldest up to and including `slot`.
    #[inline]
    pub(super) fn age(&self, slot: usize) -> usize {
        let behind = if slot >= self.first {
            slot
        } else {
            slot.wrapping_add(self.slots.len())
        };
        let age = behind.wrapping_sub(self.first);
        if age < self.used {
            age.wrapping_add(1)
        } else {
            0
        }
    }

    /// How many slots are not posted.
    #[inline]
    fn free(&self) -> usize {
        self.slots.len().wrapping_sub(self.used)
    }

    /// True once, when somebody was turned away and a good part of the slots is free again.
    #[inline]
    pub(super) fn take_wanted(&mut self) -> bool {
        if !self.wanted {
            return false;
        }
        let part = self.slots.len().div_ceil(4);
        let enough = self.free() >= self.reserved.wrapping_add(part)
            && self.credits as usize > self.reserved.wrapping_add(MAX_WRITES);
        let wanted = !self.failed && (enough || self.used == 0);
        if wanted {
            self.wanted = false;
        }
        wanted
    }

    /// Posts the request that makes the key of `region` work. Gives back what may be dropped,
    /// without the lock held.
    ///
    /// It goes to a queue pair on which nothing is sent. Behind messages it would wait for the peer's acknowledgements; and
    /// the software RoCE of Linux, when it sends those again, does again what it has done since, which for a registration
    /// is an error and the end of the queue pair.
    ///
    /// # Safety
    ///
    /// As for [`Self::post`]. The one before must have completed.
    pub(super) unsafe fn register(
        &mut self,
        region: Arc<Region>,
        context: &Context<'_>,
    ) -> Result<Option<Arc<Region>>, PostError> {
        let qp = self
            .local_qp
            .filter(|_| self.is_sending())
            .ok_or(PostError::Down)?;
        let mut wr = pin_init::zeroed::<bindings::ib_reg_wr>();
        wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
        wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED as c_int;
        wr.wr.__bindgen_anon_1.wr_cqe = context.register_cqe.as_raw();
        wr.mr = region.as_raw();
        wr.key = region.remote_key();
        wr.access = (bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE) as c_int;
        let mut bad = ptr::null();
        // SAFETY: The queue pair is valid by the invariant, and has room, as nothing else is posted to it. The region is
        // kept by `registering` until the next registration, before which this one completes, or until the queue pair
        // is gone.
        if unsafe { bindings::ib_post_send(qp.as_ptr(), &wr.wr, &mut bad) } != 0 {
            self.failed = true;
            return Err(PostError::Down);
        }
        // The caller, who may sleep, has both now, should one be the last of its kind.
        let old = self.registering.replace(region);
        self.registration_pending = true;
        Ok(old)
    }

    /// A registration completed.
    pub(super) fn registered(&mut self) {
        self.registration_pending = false;
    }

    /// Lets go of `region`, if it is the one registered last and the device is done with it.
    pub(super) fn forget(&mut self, region: &Arc<Region>) -> Option<Arc<Region>> {
        let last = self.registering.as_ref()?;
        if Arc::ptr_eq(last, region) && !self.registration_pending {
            self.registering.take()
        } else {
            None
        }
    }

    #[inline]
    fn source(&self, id: MappingId) -> Option<&Source> {
        let source = self.sources.get(id.0 as usize)?.as_ref()?;
        (!source.released).then_some(source)
    }

    #[inline]
    fn source_mut(&mut self, id: MappingId) -> Option<&mut Source> {
        self.sources.get_mut(id.0 as usize)?.as_mut()
    }

    /// Takes in mapped pages. Gives them back when there is no room, see [`Self::grow`].
    pub(super) fn add_source(&mut self, mapping: Mapping) -> Result<MappingId, Mapping> {
        let len = self.sources.len();
        let free = self.sources.iter().position(Option::is_none);
        let index = match free {
            Some(index) => index,
            None if len < self.sources.capacity() => len,
            None => return Err(mapping),
        };
        let source = Some(Source {
            mapping,
            chains: 0,
            released: false,
        });
        match self.sources.get_mut(index) {
            Some(place) => *place = source,
            // There is room, so this cannot fail.
            None => drop(self.sources.push_within_capacity(source)),
        }
        Ok(MappingId(index as u32))
    }

    /// How many sources there is room for.
    pub(super) fn source_room(&self) -> usize {
        self.sources.capacity()
    }

    /// Moves the sources to a longer list, if it is one; gives back the other, to be dropped
    /// without the lock held.
    pub(super) fn grow(&mut self, mut list: Sources) -> Sources {
        if list.capacity() <= self.sources.capacity() {
            return list;
        }
        for source in self.sources.drain_all() {
            // There is room, so this cannot fail.
            if list.push_within_capacity(source).is_err() {
                break;
            }
        }
        core::mem::replace(&mut self.sources, list)
    }

    /// A source is not used any more, and goes now or with its last chain. To be dropped without
    /// the lock held.
    pub(super) fn release_source(&mut self, id: MappingId) -> Option<Mapping> {
        let place = self.sources.get_mut(id.0 as usize)?;
        let source = place.as_mut()?;
        source.released = true;
        if source.chains == 0 {
            place.take().map(|source| source.mapping)
        } else {
            None
        }
    }

    /// All that the queue keeps for the device, once the queue pair is gone. To be dropped
    /// without the lock held.
    pub(super) fn take_rest(&mut self) -> (Sources, Option<Arc<Region>>) {
        (core::mem::take(&mut self.sources), self.registering.take())
    }
}
