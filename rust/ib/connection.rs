// SPDX-License-Identifier: GPL-2.0

//! Reliable connections: a queue pair with all that it needs.

use super::{
    device::Device,
    memory::{
        Direction,
        Mapping,
        Pages, //
    },
    pd::Pd,
    queue::{
        Chain,
        Completed,
        Context,
        MappingId,
        PostError,
        SendQueue,
        Source,
        Sources, //
    },
    region::{
        Region,
        RegionId, //
    },
    verbs::{
        self,
        Cq,
        Cqe,
        LocalAddress,
        PeerAddress,
        Qp,
        QpSize,
        Receive,
        MAX_RECEIVES, //
    },
};
use crate::{
    bindings,
    grow::Grow,
    new_spinlock_bh,
    spinlock_bh::SpinLockBh, //
};
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    marker::PhantomPinned,
    slice,
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicUsize,
        Ordering, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::msecs_to_jiffies,
    types::Opaque, //
};

/// How long a registration may take. It waits for nothing but the device.
const REGISTRATION_MS: u32 = 20_000;

/// Who is told of what happens to a connection.
///
/// All methods run in softirq, one at a time, with no lock of the connection held: posting is allowed, whatever sleeps is not.
/// [`Connection::shutdown`] calls [`sent`](Self::sent) as well, for what is left.
pub trait Handler: Send + Sync + 'static {
    /// A message came. Empty if it is a write with immediate data.
    fn received(&self, message: &[u8]);

    /// A posted chain is done, or, unless `ok`, given up. Exactly once for each chain that was
    /// posted, in that order, but that some of those that are [`quiet`](Chain::quiet) are left out.
    fn sent(&self, cookie: u64, ok: bool);

    /// Somebody was turned away with [`PostError::Busy`], and there are slots again.
    fn room(&self);

    /// The connection broke. At most once, before the first [`sent`](Self::sent) that is not ok;
    /// not after [`Connection::fail`].
    fn failed(&self);
}

/// The size of a connection.
#[derive(Clone, Copy)]
pub struct Config {
    /// The name resource tracking shows.
    pub owner: &'static CStr,
    /// Chains in flight.
    pub slots: u32,
    /// How many of them a chain marked [`spare`](Chain::spare) does not get.
    pub reserved: u32,
    /// The longest message to send.
    pub message_len: u32,
    /// The longest message to send if there is one of them in flight at most; 0 for none that are
    /// longer than the others.
    pub long_message_len: u32,
    /// Messages that can be taken without the peer having to wait, up to an eighth less.
    pub receives: u32,
    /// The longest message to receive, if `receive_more` is zero.
    pub receive_len: u32,
    /// How much longer a message may be if the peer sends no other such one at the same time: what
    /// is beyond `receive_len` goes to one place for all. A peer that does not keep to this spoils
    /// its own messages.
    pub receive_more: u32,
}

/// What goes with a connection when it is shut down, in the order of the fields.
struct Objects {
    qp: Qp,
    /// For what the peer does not hear of: registrations. There is one once the other one is to be connected.
    local_qp: Option<Qp>,
    cq: Cq,
    regions: KVec<Option<Arc<Region>>>,
    pd: Arc<Pd>,
}

/// The size of the queue pair for registrations, of which there is one at a time. One more of each is for draining.
const LOCAL: QpSize = QpSize {
    sends: 2,
    receives: 1,
    receive_pieces: 1,
    inline: 0,
};

impl Objects {
    /// Makes them, for `credits` work requests at a time; `context` is what callbacks find. May sleep.
    fn new(device: &Device, config: &Config, credits: u32, context: *mut c_void) -> Result<Self> {
        // One more of each is for draining.
        let mut size = QpSize {
            sends: credits.saturating_add(1),
            receives: config.receives.saturating_add(1),
            receive_pieces: if config.receive_more == 0 { 1 } else { 2 },
            inline: config.message_len,
        };
        let entries = [&size, &LOCAL].iter().fold(0u32, |sum, of| {
            sum.saturating_add(of.sends).saturating_add(of.receives)
        });
        let pd = Arc::new(Pd::new(device, config.owner)?, GFP_KERNEL)?;
        let cq = Cq::new(device, entries, context, config.owner)?;
        // SAFETY: In `take_apart` queue pairs go before their completion queue.
        let make = |size: &QpSize| unsafe { Qp::new(&pd, &cq, size) };
        let qp = make(&size).or_else(|_| {
            size.inline = 0;
            make(&size)
        })?;
        Ok(Self {
            qp,
            local_qp: None,
            cq,
            regions: KVec::new(),
            pd,
        })
    }

    /// Makes the queue pair for registrations. May sleep.
    fn make_local_qp(&self) -> Result<Qp> {
        // SAFETY: In `take_apart` queue pairs go before their completion queue.
        unsafe { Qp::new(&self.pd, &self.cq, &LOCAL) }
    }
}

/// What completions need.
struct Live<H> {
    handler: H,
    /// Receive buffers, then slots for messages, then the place for ends of long messages, then the
    /// one for a long message to send.
    messages: Mapping,
}

/// A reliable connection.
///
/// [`shutdown`](Self::shutdown) takes all of it from the device and drops the handler, so an
/// owner that the handler refers to is no lasting cycle. A connection that is dropped in a
/// context where sleeping is not allowed must have been shut down before.
///
/// # Invariants
///
/// - While the queue pairs in `queue` are there, or a completion callback runs, `live` is `Some` and
///   only borrowed; else only [`Self::shutdown`] touches it, with `objects` locked.
/// - The address of `self` is the context of the completion queue in `objects`.
#[pin_data(PinnedDrop)]
pub struct Connection<H: Handler> {
    #[pin]
    queue: SpinLockBh<SendQueue>,
    #[pin]
    objects: Mutex<Option<Objects>>,
    /// One registration at a time; true when one was lost.
    #[pin]
    registration: Mutex<bool>,
    #[pin]
    registered: Opaque<bindings::completion>,
    registration_ok: AtomicBool,
    live: UnsafeCell<Option<Live<H>>>,
    failed: AtomicBool,
    closed: AtomicBool,
    /// The peer's packets have been taken: then there is something to drain.
    receiving: AtomicBool,
    /// What was posted has completed, and nothing is posted any more.
    stopped: AtomicBool,
    error: AtomicU32,
    number: AtomicU32,
    send_cqes: KVec<Cqe>,
    receive_cqes: KVec<Cqe>,
    /// Receives that have completed and are not posted again yet; with `batch` of them they are, in one
    /// go.
    received: AtomicUsize,
    batch: usize,
    write_cqe: Cqe,
    register_cqe: Cqe,
    /// Where a long message is put together. Taken out for the time of that.
    #[pin]
    long: SpinLockBh<KVec<u8>>,
    /// The place for the ends of long messages.
    long_at: usize,
    /// The place for a long message to send.
    long_send_at: usize,
    local: LocalAddress,
    psn: u32,
    config: Config,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: Everything inside is `Send`, or used as the invariants say; `H` is `Send` and `Sync`.
unsafe impl<H: Handler> Send for Connection<H> {}
// SAFETY: As above.
unsafe impl<H: Handler> Sync for Connection<H> {}

impl<H: Handler> Connection<H> {
    /// Makes a connection that sends from `local`, with a random first packet number. May sleep.
    pub fn new(
        device: &Device,
        local: LocalAddress,
        config: Config,
        handler: H,
    ) -> Result<Arc<Self>> {
        let receives = config.receives as usize;
        let slots = config.slots as usize;
        // All of it far below what a number holds; what does not fit is not there either.
        let receive_bytes = receives.saturating_mul(config.receive_len as usize);
        let send_bytes = slots.saturating_mul(config.message_len as usize);
        let long_at = receive_bytes.saturating_add(send_bytes);
        let long_send_at = long_at.saturating_add(config.receive_more as usize);
        let bytes = long_send_at.saturating_add(config.long_message_len as usize);
        let long = match config.receive_more {
            0 => 0,
            more => config.receive_len.saturating_add(more) as usize,
        };
        let long = KVec::from_elem(0, long, GFP_KERNEL)?;
        let pages = Arc::new(Pages::new(bytes)?, GFP_KERNEL)?;
        let messages = Mapping::new(device, pages, Direction::Both)?;

        // On average two writes for each chain; one request is left for draining.
        let most = device.max_work_requests().saturating_sub(1);
        let credits = config.slots.saturating_mul(3).min(most);
        let queue = SendQueue::new(slots, credits, config.reserved as usize)?;
        let psn = verbs::random_psn();
        let this = Arc::pin_init(
            try_pin_init!(Self {
                queue <- new_spinlock_bh!(queue, "ib::Connection::queue"),
                objects <- new_mutex!(None, "ib::Connection::objects"),
                registration <- new_mutex!(false, "ib::Connection::registration"),
                registered <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is room for a completion, and pinned.
                    unsafe { bindings::init_completion(slot) }
                }),
                registration_ok: AtomicBool::new(false),
                // INVARIANT: No queue pair and no completion queue yet.
                live: UnsafeCell::new(Some(Live { handler, messages })),
                failed: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                receiving: AtomicBool::new(false),
                stopped: AtomicBool::new(false),
                error: AtomicU32::new(0),
                number: AtomicU32::new(0),
                send_cqes: Cqe::list(slots, send_done::<H>)?,
                receive_cqes: Cqe::list(receives, receive_done::<H>)?,
                received: AtomicUsize::new(0),
                // Nearly all of them are there for the peer at any time.
                batch: (receives / 8).clamp(1, MAX_RECEIVES),
                write_cqe: Cqe::new(write_done::<H>),
                register_cqe: Cqe::new(register_done::<H>),
                long <- new_spinlock_bh!(long, "ib::Connection::long"),
                long_at,
                long_send_at,
                local,
                psn,
                config,
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        )?;

        let context = Arc::as_ptr(&this).cast_mut().cast();
        // INVARIANT: `this` never moves, and its drop frees the completion queue, or has it silent.
        let objects = Objects::new(device, &this.config, credits, context)?;
        this.number.store(objects.qp.number(), Ordering::Relaxed);
        *this.objects.lock() = Some(objects);
        Ok(this)
    }

    /// The number of the queue pair.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The number of the first packet we send.
    pub fn psn(&self) -> u32 {
        self.psn
    }

    /// The status of the first completion that failed, as in C; 0 if none did.
    pub fn error(&self) -> u32 {
        self.error.load(Ordering::Relaxed)
    }

    /// Whether it broke, or was told to fail.
    pub fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// Either a completion callback must be running, or the queue pairs in `queue` be there for as
    /// long as the result is used.
    unsafe fn live(&self) -> Option<&Live<H>> {
        // SAFETY: By the invariant it is only borrowed under these conditions.
        unsafe { (*self.live.get()).as_ref() }
    }

    fn context<'a>(&'a self, live: &'a Live<H>) -> Context<'a> {
        Context {
            send_cqes: &self.send_cqes,
            write_cqe: &self.write_cqe,
            register_cqe: &self.register_cqe,
            messages: &live.messages,
            start: (self.config.receives as usize).saturating_mul(self.config.receive_len as usize),
            stride: self.config.message_len as usize,
            long: (self.long_send_at, self.config.long_message_len as usize),
        }
    }

    /// Posts receives and takes the peer's packets from now on. May sleep.
    ///
    /// After an error the connection is of no use.
    pub fn ready_to_receive(&self, peer: &PeerAddress) -> Result {
        let mut objects = self.objects.lock();
        let objects = (*objects).as_mut().ok_or(ENODEV)?;
        // Fails if it has been done: the other queue pair is made once.
        objects.qp.init(&self.local, true)?;
        let local_qp = objects.make_local_qp()?;
        let local_qp = objects.local_qp.insert(local_qp);
        local_qp.ready_alone(&self.local)?;
        let (qp, key) = (&mut objects.qp, objects.pd.local_key());
        // SAFETY: `shutdown` closes the queue before it destroys the queue pairs, the first of which was made for as many
        // credits.
        unsafe { self.queue.lock().open(qp, local_qp, key) };
        let all = self.receive_cqes.len();
        for first in (0..all).step_by(MAX_RECEIVES) {
            let count = MAX_RECEIVES.min(all.saturating_sub(first));
            let last = first.saturating_add(count).saturating_sub(1);
            self.post_receives(last, count)?;
        }
        qp.ready_to_receive(&self.local, peer)?;
        self.receiving.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sends from now on. May sleep.
    pub fn ready_to_send(&self) -> Result {
        let mut objects = self.objects.lock();
        let objects = (*objects).as_mut().ok_or(ENODEV)?;
        objects.qp.ready_to_send(self.psn)?;
        self.queue.lock().start();
        Ok(())
    }

    /// Whether the peer may write to regions, as it may at first. If it does although it may not, the connection
    /// breaks on both sides. May sleep.
    pub fn take_writes(&self, on: bool) -> Result {
        let objects = self.objects.lock();
        objects.as_ref().ok_or(ENODEV)?.qp.take_writes(on)
    }

    /// Posts so many receives, [`MAX_RECEIVES`] at most: those up to the place `last`, and round the end of
    /// the list.
    fn post_receives(&self, last: usize, count: usize) -> Result {
        let queue = self.queue.lock();
        let qp = queue.qp().ok_or(ENODEV)?;
        // SAFETY: The queue pair is there, and stays while the lock is held.
        let live = unsafe { self.live() }.ok_or(ENODEV)?;
        let len = self.config.receive_len;
        let second = match self.config.receive_more {
            0 => None,
            more => Some((live.messages.piece(self.long_at, more as usize)?, more)),
        };
        let all = self.receive_cqes.len();
        let end = last.saturating_add(all).saturating_add(1);
        let receives = (end.saturating_sub(count)..end).map(|place| {
            let index = place.checked_sub(all).unwrap_or(place);
            let cqe = self.receive_cqes.get(index).ok_or(EINVAL)?;
            let addr = live
                .messages
                .sync_for_device(index.saturating_mul(len as usize), len as usize)?;
            Ok(Receive {
                cqe,
                first: (addr, len),
                second,
            })
        });
        // SAFETY: The queue pair is valid, see above. The buffers are mapped, and both they and
        // the entries stay until the completion queue is gone. None of them is posted already: these are
        // the first of all, or have completed since they were, because receives complete in order.
        unsafe { verbs::post_recv(qp, queue.local_key(), receives) }
    }

    /// Passes on a message of which the end is in the place for all.
    fn received_long(&self, live: &Live<H>, offset: usize, len: usize) -> Result {
        let head = self.config.receive_len as usize;
        let mut long = core::mem::take(&mut *self.long.lock());
        let result = (|| {
            let (first, second) = long
                .get_mut(..len)
                .and_then(|message| message.split_at_mut_checked(head))
                .ok_or(EINVAL)?;
            live.messages.sync_for_cpu(offset, head)?;
            live.messages.sync_for_cpu(self.long_at, second.len())?;
            // The peer may write to the second piece at this moment: a copy is what is looked at.
            live.messages.pages().read(offset, first)?;
            live.messages.pages().read(self.long_at, second)?;
            let rest = second.len();
            live.messages.sync_for_device(self.long_at, rest).map(drop)
        })();
        if let (Ok(()), Some(message)) = (&result, long.get(..len)) {
            live.handler.received(message);
        }
        *self.long.lock() = long;
        result
    }

    /// Posts a chain. Never sleeps; not for hardirq.
    pub fn post(&self, chain: &Chain<'_>) -> Result<(), PostError> {
        let mut queue = self.queue.lock();
        if queue.qp().is_none() {
            return Err(PostError::Down);
        }
        // SAFETY: The queue pair is there, and stays while the lock is held.
        let live = unsafe { self.live() }.ok_or(PostError::Down)?;
        // SAFETY: The context is that of this connection; all of it stays until `shutdown` has
        // destroyed the queue pair.
        unsafe { queue.post(chain, &self.context(live)) }
    }

    /// While the completion of a chain is to come: a number that is another one once more have completed.
    /// Never sleeps; not for hardirq.
    pub fn awaited(&self) -> Option<u32> {
        self.queue.lock().awaited()
    }

    /// Maps pages as a source of writes. May sleep. They stay mapped until [`Self::unmap`] or
    /// [`Self::shutdown`].
    pub fn map(&self, pages: Arc<Pages>) -> Result<MappingId> {
        let objects = self.objects.lock();
        let device = objects.as_ref().ok_or(ENODEV)?.pd.device();
        let mut mapping = Mapping::new(device, pages, Direction::ToDevice)?;
        loop {
            let room = {
                let mut queue = self.queue.lock();
                match queue.add_source(mapping) {
                    Ok(id) => return Ok(id),
                    Err(back) => mapping = back,
                }
                queue.source_room()
            };
            let longer = Sources::with_capacity(room.saturating_mul(2).max(16), GFP_KERNEL)?;
            let old = self.queue.lock().grow(longer);
            drop(old);
        }
    }

    /// Gives up a mapping, as soon as no chain in flight uses it. Does not sleep.
    pub fn unmap(&self, id: MappingId) {
        let mapping = self.queue.lock().release_source(id);
        drop(mapping);
    }

    /// Makes a region of pages, for the peer to write to once it is registered. Returns its name,
    /// the key and the address of the first byte. May sleep.
    pub fn add_region(&self, pages: &Arc<Pages>) -> Result<(RegionId, u32, u64)> {
        let mut objects = self.objects.lock();
        let objects = (*objects).as_mut().ok_or(ENODEV)?;
        let region = Arc::new(Region::new(&objects.pd, pages)?, GFP_KERNEL)?;
        let (key, address) = (region.remote_key(), region.address());
        let free = objects.regions.iter().position(Option::is_none);
        let index = free.unwrap_or(objects.regions.len());
        match objects.regions.get_mut(index) {
            Some(place) => *place = Some(region),
            None => objects.regions.append(Some(region), GFP_KERNEL)?,
        }
        Ok((RegionId(index as u32), key, address))
    }

    /// Makes the key of a region work, unless it does already. May sleep, but waits for nothing but the device:
    /// `ETIMEDOUT`, and the end of the connection, after 20 seconds.
    pub fn register(&self, id: RegionId) -> Result {
        let mut lost = self.registration.lock();
        if *lost {
            return Err(EIO);
        }
        let region = {
            let objects = self.objects.lock();
            let regions = &objects.as_ref().ok_or(ENODEV)?.regions;
            regions
                .get(id.0 as usize)
                .cloned()
                .flatten()
                .ok_or(ENOENT)?
        };
        if region.is_registered() {
            return Ok(());
        }
        self.registration_ok.store(false, Ordering::Relaxed);
        let old = {
            let mut queue = self.queue.lock();
            if queue.qp().is_none() {
                return Err(ENODEV);
            }
            // SAFETY: The queue pair is there, and stays while the lock is held.
            let live = unsafe { self.live() }.ok_or(ENODEV)?;
            // SAFETY: As in `post`. The one before has completed, or it was lost, which is looked at above.
            unsafe { queue.register(region.clone(), &self.context(live)) }
        };
        drop(old.map_err(|_| ENODEV)?);
        let timeout = msecs_to_jiffies(REGISTRATION_MS);
        // Each wait takes what completes one registration: none has been lost so far.
        // SAFETY: Initialised since the connection was made, and lives as long as it.
        if unsafe { bindings::wait_for_completion_timeout(self.registered.get(), timeout) } == 0 {
            *lost = true;
            self.fail();
            return Err(ETIMEDOUT);
        }
        if self.registration_ok.load(Ordering::Acquire) {
            region.set_registered();
            Ok(())
        } else {
            Err(EIO)
        }
    }

    /// Gives up a region; the peer cannot write to it any more. May sleep.
    pub fn remove_region(&self, id: RegionId) {
        let region = {
            let mut objects = self.objects.lock();
            let place = (*objects)
                .as_mut()
                .and_then(|o| o.regions.get_mut(id.0 as usize));
            place.and_then(Option::take)
        };
        if let Some(region) = region {
            let last = self.queue.lock().forget(&region);
            drop(last);
        }
    }

    /// Posts nothing any more. What is in flight completes, at the latest by
    /// [`Self::shutdown`]. Any context but hardirq.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        self.queue.lock().fail();
    }

    /// Has what is in flight complete. When this returns, nothing comes in any more, and of what was sent
    /// nothing is reported but, by [`Self::shutdown`], what has no completion of its own. That has to follow,
    /// and may take seconds: rxe lets go of a queue pair only when its packets are gone, of which some may
    /// wait for an address. But a queue pair that the device does not stop is destroyed here: it could send again what is in
    /// flight, from memory that is somebody else's by then. May sleep; not to be called by the handler.
    pub fn stop(&self) {
        // The objects are locked while they are destroyed.
        if self.stopped.load(Ordering::Acquire) {
            return;
        }
        self.queue.lock().close();
        let guard = self.objects.lock();
        let drained = match guard.as_ref() {
            // One of rxe for which there was no memory on its way there never gets done with its receives. Nothing
            // has come for it, nothing has been sent, and nothing registered.
            Some(objects) if self.receiving.load(Ordering::Relaxed) => {
                // First the one to which the peer can write. Both, whatever becomes of the first.
                let drained = objects.qp.drain();
                drained.and(objects.local_qp.as_ref().map_or(Ok(()), Qp::drain))
            }
            _ => Ok(()),
        };
        drop(guard);
        if drained.is_err() {
            self.take_apart();
        }
        self.stopped.store(true, Ordering::Release);
    }

    /// Ends the connection: what is in flight completes, then everything is taken from the
    /// device, and the handler is dropped. Nothing is called after this returns. May sleep; not
    /// to be called by the handler. When called again, waits until the first call has nothing of the device any more but
    /// the memory of messages.
    pub fn shutdown(&self) {
        self.stop();
        self.take_apart();
    }

    fn take_apart(&self) {
        let mut guard = self.objects.lock();
        let Some(objects) = guard.take() else {
            return;
        };
        let Objects {
            qp,
            local_qp,
            cq,
            regions,
            pd,
        } = objects;
        // What the device refuses to give back it may use for ever.
        let stays = !match local_qp {
            Some(local_qp) => Qp::destroy([qp, local_qp]),
            None => Qp::destroy([qp]),
        };
        if stays {
            cq.stay();
        } else {
            drop(cq);
        }
        // SAFETY: `queue` has no queue pairs, and the completion queue is gone or silent, its
        // callbacks have ended: by the invariant `live` is ours.
        let mut live = unsafe { (*self.live.get()).take() };
        if let Some(live) = &mut live {
            if stays {
                live.messages.stay();
            }
            // What has no completion of its own, and all of it if the device did not complete what it had.
            loop {
                let completed = self.queue.lock().complete();
                match completed {
                    Some(mut completed) => {
                        if let Some(source) = completed.source.as_mut().filter(|_| stays) {
                            source.stay();
                        }
                        if let Some(cookie) = completed.cookie {
                            live.handler.sent(cookie, false);
                        }
                    }
                    None => break,
                }
            }
        }
        // SAFETY: Initialised since the connection was made. A waiter finds that it failed.
        unsafe { bindings::complete(self.registered.get()) };
        let (mut sources, last) = self.queue.lock().take_rest();
        if stays {
            sources.iter_mut().flatten().for_each(Source::stay);
        }
        drop((sources, last));
        drop(regions);
        drop(pd);
        self.closed.store(true, Ordering::Release);
        // The handler's drop may end in giving up mappings and regions.
        drop(guard);
        drop(live);
    }

    /// A completion says that the connection is broken.
    fn broken(&self, live: &Live<H>, status: u32) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            self.error.store(status, Ordering::Relaxed);
            self.queue.lock().fail();
            live.handler.failed();
        }
    }

    fn on_send(&self, live: &Live<H>, wc: &bindings::ib_wc) {
        let ok = succeeded(wc);
        if !ok {
            self.broken(live, wc.status);
        }
        // SAFETY: Any bits are a pointer, which is compared only.
        let cqe = unsafe { wc.__bindgen_anon_1.wr_cqe };
        let Some(slot) = Cqe::index(&self.send_cqes, cqe) else {
            return;
        };
        let mut left = None;
        while left != Some(0) {
            let (completed, room) = {
                let mut queue = self.queue.lock();
                // Chains before it may have no completion of their own: the device goes by the order.
                let count = left.get_or_insert_with(|| queue.age(slot));
                let mut completed = None;
                while *count > 0 && completed.is_none() {
                    *count = count.saturating_sub(1);
                    // Those that concern nobody are done with at once.
                    completed = queue.complete().filter(Completed::concerns);
                }
                (completed, queue.take_wanted())
            };
            if let Some(Completed { cookie, source }) = completed {
                drop(source);
                if let Some(cookie) = cookie {
                    live.handler.sent(cookie, ok);
                }
            }
            if room {
                live.handler.room();
            }
        }
    }

    fn on_receive(&self, live: &Live<H>, wc: &bindings::ib_wc) {
        if !succeeded(wc) {
            return self.broken(live, wc.status);
        }
        // SAFETY: Any bits are a pointer, which is compared only.
        let cqe = unsafe { wc.__bindgen_anon_1.wr_cqe };
        let Some(index) = Cqe::index(&self.receive_cqes, cqe) else {
            return;
        };
        let stride = self.config.receive_len as usize;
        let (len, more) = if wc.opcode == bindings::ib_wc_opcode_IB_WC_RECV {
            let len = wc.byte_len as usize;
            (stride.min(len), len.saturating_sub(stride))
        } else {
            (0, 0)
        };
        // In bounds: `piece` and the like look themselves. No way from the wire leads to a panic.
        let offset = index.saturating_mul(stride);
        if more != 0 {
            // An error means that the device says more than there is room for.
            let _ = self.received_long(live, offset, len.saturating_add(more));
        } else if live.messages.sync_for_cpu(offset, len).is_ok() {
            if let Ok(start) = live.messages.pages().piece(offset, len) {
                // SAFETY: `piece` has checked the range. The device is done with this buffer until it is
                // posted again, below or when a later receive completes, and no other callback of this
                // queue runs before; the pages are used for nothing else.
                let message = unsafe { slice::from_raw_parts(start, len) };
                live.handler.received(message);
            }
        }
        // No other callback runs at the same time. The receives of a reliable connection complete in the
        // order in which they were posted, so these follow each other.
        let done = self.received.load(Ordering::Relaxed).saturating_add(1);
        if done < self.batch {
            return self.received.store(done, Ordering::Relaxed);
        }
        self.received.store(0, Ordering::Relaxed);
        let posted = self.post_receives(index, done);
        // A place less for messages is not made up for, and a peer for which there is none waits for
        // ever. Where the connection is being shut down, nobody needs to know.
        if posted.is_err() && self.queue.lock().qp().is_some() {
            self.broken(live, bindings::ib_wc_status_IB_WC_GENERAL_ERR);
        }
    }

    fn on_register(&self, live: &Live<H>, wc: &bindings::ib_wc) {
        let ok = succeeded(wc);
        if !ok {
            self.broken(live, wc.status);
        }
        self.queue.lock().registered();
        self.registration_ok.store(ok, Ordering::Release);
        // SAFETY: Initialised since the connection was made.
        unsafe { bindings::complete(self.registered.get()) };
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for Connection<H> {
    fn drop(self: Pin<&mut Self>) {
        // Without need the lock must not be taken: nothing then sleeps.
        if !self.closed.load(Ordering::Acquire) {
            self.shutdown();
        }
    }
}

fn succeeded(wc: &bindings::ib_wc) -> bool {
    wc.status == bindings::ib_wc_status_IB_WC_SUCCESS
}

/// Finds the connection of a completion.
///
/// # Safety
///
/// Must be called in a callback of the completion queue of a `Connection<H>`, with its arguments.
unsafe fn completed<'a, H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) -> Option<(&'a Connection<H>, &'a Live<H>, &'a bindings::ib_wc)> {
    // SAFETY: By the invariant of `Connection` the context is its address. It frees the completion
    // queue or has it silent, either of which waits for callbacks, before it goes.
    let this = unsafe { &*(*cq).cq_context.cast::<Connection<H>>() };
    // SAFETY: A callback is running.
    let live = unsafe { this.live() }?;
    // SAFETY: The caller passes on a valid completion.
    Some((this, live, unsafe { &*wc }))
}

/// # Safety
///
/// To be called by ib_core only, for a work request of a `Connection<H>`.
unsafe extern "C" fn send_done<H: Handler>(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The arguments of the callback.
    if let Some((this, live, wc)) = unsafe { completed::<H>(cq, wc) } {
        this.on_send(live, wc);
    }
}

/// # Safety
///
/// As for [`send_done`].
unsafe extern "C" fn receive_done<H: Handler>(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The arguments of the callback.
    if let Some((this, live, wc)) = unsafe { completed::<H>(cq, wc) } {
        this.on_receive(live, wc);
    }
}

/// # Safety
///
/// As for [`send_done`]. Writes are not signalled, so only failures come here.
unsafe extern "C" fn write_done<H: Handler>(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The arguments of the callback.
    if let Some((this, live, wc)) = unsafe { completed::<H>(cq, wc) } {
        if !succeeded(wc) {
            this.broken(live, wc.status);
        }
    }
}

/// # Safety
///
/// As for [`send_done`].
unsafe extern "C" fn register_done<H: Handler>(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The arguments of the callback.
    if let Some((this, live, wc)) = unsafe { completed::<H>(cq, wc) } {
        this.on_register(live, wc);
    }
}
