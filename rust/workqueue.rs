// SPDX-License-Identifier: GPL-2.0

//! Work queues of one's own, and work items that keep their object alive while they wait.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)
//!
//! A [`Work`] is a field of the object it works on. Enqueueing hands over a reference to that
//! object, which the work function gets; so the object cannot go while the work is pending, and
//! whoever holds the last reference afterwards frees it.

use crate::bindings;
use crate::handle::Handle;
use core::marker::PhantomData;
use core::ptr::{
    self,
    NonNull, //
};
use core::sync::atomic::{
    AtomicPtr,
    Ordering, //
};
use kernel::prelude::*;
use kernel::sync::LockClassKey;
use kernel::types::Opaque;

/// A work queue with a rescuer thread, whose items run on any CPU.
///
/// Dropping it runs what is pending, waits for it, and destroys the queue: the owner of a queue
/// must outlive every object whose work may be enqueued on it, and items must no longer requeue
/// themselves by then.
pub struct Queue(NonNull<bindings::workqueue_struct>);

// SAFETY: Work queues may be used and destroyed from any thread.
unsafe impl Send for Queue {}
// SAFETY: All methods on `&Queue` are thread-safe in C.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a queue; `max_active` of zero means the default.
    pub fn new(name: &CStr, max_active: u32) -> Result<Self> {
        let flags = bindings::WQ_MEM_RECLAIM_FLAG | bindings::WQ_UNBOUND_FLAG;
        let max = max_active.try_into()?;
        // SAFETY: `name` is a C string, which is copied.
        let wq = unsafe { bindings::workqueue_new(name.as_char_ptr(), flags, max) };
        Ok(Self(NonNull::new(wq).ok_or(ENOMEM)?))
    }

    /// Waits until nothing is pending and nothing runs; only items themselves may enqueue more.
    pub fn drain(&self) {
        // SAFETY: The queue exists while `self` does.
        unsafe { bindings::drain_workqueue(self.0.as_ptr()) }
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::workqueue_struct {
        self.0.as_ptr()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: The queue exists, and with `self` goes the last way to enqueue anything on it.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) }
    }
}

/// What a work item does.
///
/// Implemented on a tag type, one per kind of work.
pub trait Handler<P>: 'static {
    /// Called on a worker thread, in process context, with the reference given on enqueueing.
    fn run(owner: P);
}

/// Is `field` inside the object that `owner` points to?
fn contains<T, F>(owner: NonNull<T>, field: *const F) -> bool {
    let start = owner.as_ptr() as usize;
    let field = field as usize;
    match (
        start.checked_add(size_of::<T>()),
        field.checked_add(size_of::<F>()),
    ) {
        (Some(end), Some(field_end)) => field >= start && field_end <= end,
        _ => false,
    }
}

/// A work item inside of the object `P` points to, run by `H`.
///
/// # Invariants
///
/// While `raw` is pending, `target` holds a pointer from `P::into_raw` whose reference belongs to
/// the item, and the item lies in the object this points to.
#[pin_data]
#[repr(C)]
pub struct Work<P, H> {
    #[pin]
    raw: Opaque<bindings::work_struct>,
    target: AtomicPtr<c_void>,
    _handler: PhantomData<fn(P, H)>,
}

// SAFETY: All access to the item is by thread-safe C functions and an atomic pointer; what moves
// between threads is a `P`, which only a `Handle` gets in, and that is `Send`. (A bound here would
// make the question whether `P` is a `Handle` depend on itself: the item is part of what `P` points
// to.)
unsafe impl<P, H> Send for Work<P, H> {}
// SAFETY: As above.
unsafe impl<P, H> Sync for Work<P, H> {}

impl<P: Handle, H: Handler<P>> Work<P, H> {
    /// Creates an item; see [`new_work!`](crate::new_work).
    pub fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        pin_init!(Self {
            raw <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes and pinned; name and key live for ever.
                unsafe {
                    bindings::work_init(slot, Some(Self::func), name.as_char_ptr(), key.as_ptr())
                }
            }),
            target: AtomicPtr::new(ptr::null_mut()),
            _handler: PhantomData,
        })
    }

    /// Enqueues the item together with a reference to its object.
    ///
    /// Returns false, and drops `owner`, if it was pending already. May be called in any context,
    /// provided that dropping an `owner` which is not the last reference may.
    pub fn enqueue(&self, queue: &Queue, owner: P) -> bool {
        let Some(owner) = adopt(&self.target, owner, ptr::from_ref(self)) else {
            return false;
        };
        // INVARIANT: If this succeeds, the reference of `owner` belongs to the item.
        // SAFETY: Both exist; the item stays where it is and in existence, for the reference
        // taken is given up only when it runs or is cancelled.
        let queued = unsafe { bindings::work_queue(queue.as_ptr(), self.raw.get()) };
        if !queued {
            // SAFETY: The reference was not given away, since the item was pending already.
            drop(unsafe { P::from_raw(owner) });
        }
        queued
    }

    /// Is the item pending?
    pub fn is_pending(&self) -> bool {
        // SAFETY: The item is initialised.
        unsafe { bindings::work_pending(self.raw.get()) }
    }

    /// Takes the item from its queue if it is pending. One that is running is not waited for.
    pub fn cancel(&self) -> bool {
        // SAFETY: The item is initialised.
        let was_pending = unsafe { bindings::cancel_work(self.raw.get()) };
        self.reclaim(was_pending)
    }

    /// Takes the item from its queue and waits for a run in progress. Must not be called by the
    /// item itself, nor with a lock held that it takes.
    pub fn cancel_sync(&self) -> bool {
        // SAFETY: The item is initialised.
        let was_pending = unsafe { bindings::cancel_work_sync(self.raw.get()) };
        self.reclaim(was_pending)
    }

    fn reclaim(&self, was_pending: bool) -> bool {
        if was_pending {
            // SAFETY: By the type invariant; the item is no longer pending, so that its reference
            // is ours to take. The caller's borrow of `self` rests on another reference.
            unsafe { reclaim::<P>(&self.target) };
        }
        was_pending
    }

    /// # Safety
    ///
    /// Called by the work queue on an item enqueued by [`Work::enqueue`].
    unsafe extern "C" fn func(work: *mut bindings::work_struct) {
        // `raw` is the first field of a `repr(C)` structure.
        let this = work.cast::<Self>();
        // SAFETY: The item exists: its reference to the object around it is taken only here.
        let target = unsafe { &(*this).target }.load(Ordering::Acquire);
        // SAFETY: By the type invariant, not null.
        let target = unsafe { NonNull::new_unchecked(target.cast::<P::Target>()) };
        // SAFETY: By the type invariant; the item is no longer pending.
        H::run(unsafe { P::from_raw(target) });
    }
}

/// Prepares `owner` to be owned by a work item; `None`, if the item is not in its object.
fn adopt<P: Handle, W>(
    target: &AtomicPtr<c_void>,
    owner: P,
    item: *const W,
) -> Option<NonNull<P::Target>> {
    let owner = owner.into_raw();
    if !contains(owner, item) {
        crate::util::warn_misuse();
        // SAFETY: The reference was given up just above.
        drop(unsafe { P::from_raw(owner) });
        return None;
    }
    // The object around an item is always the same, so that this never changes a value in use.
    target.store(owner.as_ptr().cast(), Ordering::Release);
    Some(owner)
}

/// # Safety
///
/// `target` holds a pointer from `P::into_raw`, whose reference the caller may take.
unsafe fn reclaim<P: Handle>(target: &AtomicPtr<c_void>) {
    if let Some(owner) = NonNull::new(target.load(Ordering::Acquire).cast::<P::Target>()) {
        // SAFETY: By the requirements of this function.
        drop(unsafe { P::from_raw(owner) });
    }
}

/// Like [`Work`], with a timer in front.
///
/// # Invariants
///
/// As for [`Work`], pending meaning that the timer runs or the item is queued.
#[pin_data]
#[repr(C)]
pub struct DelayedWork<P, H> {
    #[pin]
    raw: Opaque<bindings::delayed_work>,
    target: AtomicPtr<c_void>,
    _handler: PhantomData<fn(P, H)>,
}

// SAFETY: As for `Work`.
unsafe impl<P, H> Send for DelayedWork<P, H> {}
// SAFETY: As for `Work`.
unsafe impl<P, H> Sync for DelayedWork<P, H> {}

impl<P: Handle, H: Handler<P>> DelayedWork<P, H> {
    /// Creates an item; see [`new_delayed_work!`](crate::new_delayed_work).
    pub fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        pin_init!(Self {
            raw <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes and pinned; name and key live for ever.
                unsafe {
                    bindings::delayed_work_init(
                        slot,
                        Some(Self::func),
                        name.as_char_ptr(),
                        key.as_ptr(),
                    )
                }
            }),
            target: AtomicPtr::new(ptr::null_mut()),
            _handler: PhantomData,
        })
    }

    /// Has the item run in `ms` milliseconds, unless it is pending already: then false.
    pub fn enqueue_after(&self, queue: &Queue, owner: P, ms: u32) -> bool {
        let Some(owner) = adopt(&self.target, owner, ptr::from_ref(self)) else {
            return false;
        };
        // INVARIANT: If this succeeds, the reference of `owner` belongs to the item.
        // SAFETY: As in `Work::enqueue`.
        let queued = unsafe { bindings::delayed_work_queue(queue.as_ptr(), self.raw.get(), ms) };
        if !queued {
            // SAFETY: The reference was not given away, since the item was pending already.
            drop(unsafe { P::from_raw(owner) });
        }
        queued
    }

    /// Has the item run in `ms` milliseconds, whatever was arranged before. Without effect while
    /// [`Self::cancel_sync`] waits: then the kernel refuses it.
    pub fn rearm(&self, queue: &Queue, owner: P, ms: u32) {
        let Some(owner) = adopt(&self.target, owner, ptr::from_ref(self)) else {
            return;
        };
        loop {
            // The kernel's own way to change the time does not tell whether it was refused.
            self.cancel();
            // INVARIANT: If this succeeds, the reference of `owner` belongs to the item.
            // SAFETY: As in `Work::enqueue`.
            if unsafe { bindings::delayed_work_queue(queue.as_ptr(), self.raw.get(), ms) } {
                return;
            }
            // Somebody else may have arranged something in between.
            if !self.is_pending() {
                // SAFETY: The reference was not given away.
                return drop(unsafe { P::from_raw(owner) });
            }
        }
    }

    /// Is the item waiting for its time or to be run?
    pub fn is_pending(&self) -> bool {
        // SAFETY: The item is initialised.
        unsafe { bindings::delayed_work_pending(self.raw.get()) }
    }

    /// Takes back the item if it is pending. One that is running is not waited for.
    pub fn cancel(&self) -> bool {
        // SAFETY: The item is initialised.
        let was_pending = unsafe { bindings::cancel_delayed_work(self.raw.get()) };
        self.reclaim(was_pending)
    }

    /// Takes back the item and waits for a run in progress, as [`Work::cancel_sync`].
    pub fn cancel_sync(&self) -> bool {
        // SAFETY: The item is initialised.
        let was_pending = unsafe { bindings::cancel_delayed_work_sync(self.raw.get()) };
        self.reclaim(was_pending)
    }

    fn reclaim(&self, was_pending: bool) -> bool {
        if was_pending {
            // SAFETY: As in `Work::reclaim`.
            unsafe { reclaim::<P>(&self.target) };
        }
        was_pending
    }

    /// # Safety
    ///
    /// Called by the work queue on an item enqueued by the methods above.
    unsafe extern "C" fn func(work: *mut bindings::work_struct) {
        // `work` is the first field of `delayed_work`, and this the first field here.
        static_assert!(core::mem::offset_of!(bindings::delayed_work, work) == 0);
        let this = work.cast::<Self>();
        // SAFETY: The item exists: its reference to the object around it is taken only here.
        let target = unsafe { &(*this).target }.load(Ordering::Acquire);
        // SAFETY: By the type invariant, not null.
        let target = unsafe { NonNull::new_unchecked(target.cast::<P::Target>()) };
        // SAFETY: By the type invariant; the item is no longer pending.
        H::run(unsafe { P::from_raw(target) });
    }
}

/// Creates an initialiser of a [`workqueue::Work`](crate::workqueue::Work) with a lock class.
#[macro_export]
macro_rules! new_work {
    ($name:literal) => {
        $crate::workqueue::Work::new(
            ::kernel::optional_name!($name),
            ::kernel::static_lock_class!(),
        )
    };
}

/// Creates an initialiser of a [`workqueue::DelayedWork`](crate::workqueue::DelayedWork) with a
/// lock class.
#[macro_export]
macro_rules! new_delayed_work {
    ($name:literal) => {
        $crate::workqueue::DelayedWork::new(
            ::kernel::optional_name!($name),
            ::kernel::static_lock_class!(),
        )
    };
}
