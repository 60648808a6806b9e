// SPDX-License-Identifier: GPL-2.0

//! Data of one's own in every network namespace.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use crate::bindings;
use crate::net::Net;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool,
    AtomicPtr,
    Ordering, //
};
use kernel::error::{
    from_result,
    to_result, //
};
use kernel::prelude::*;
use kernel::sync::{
    rcu,
    Arc,
    ArcBorrow, //
};

/// What a namespace has.
///
/// It must not hold a counted reference to its [`Net`].
pub trait PerNet: Send + Sync + Sized + 'static {
    /// What the data of all namespaces is made from.
    type Context: Send + Sync + 'static;

    /// Where the data of namespaces is found: `&NETNS` for a `static NETNS: Key<Self>`.
    fn key() -> &'static Key<Self>;

    /// Makes the data of a namespace, when it is created or the module loaded. Process context.
    fn new(net: &Net, context: &Arc<Self::Context>) -> Result<Arc<Self>>;

    /// The namespace is about to go, or the module to be unloaded: [`Key::get`] no longer finds the data, but who has
    /// it may still use it. Namespaces that go together, or with the module, are all told before [`PerNet::exit`] is
    /// called for the first one: here is begun what takes time, so that it does so for all at once. Process context.
    fn pre_exit(_this: &Arc<Self>) {}

    /// The namespace goes, or the module is unloaded, a grace period after [`PerNet::pre_exit`]. What
    /// it stands for must be gone when this returns. Process context.
    fn exit(this: &Arc<Self>, net: &Net);
}

/// The place of `T` in all namespaces; a `static`, since the kernel keeps a pointer to the number.
pub struct Key<T> {
    id: UnsafeCell<c_uint>,
    /// `id` is valid and constant while true.
    ready: AtomicBool,
    /// Null, or a pointer from `Arc::into_raw` of a `T::Context`, whose reference the key owns. Set
    /// from before the first namespace is initialised until after the last one is left.
    context: AtomicPtr<c_void>,
    _data: PhantomData<fn() -> T>,
}

// SAFETY: `id` is written by the kernel while registering only, before `ready` is set.
unsafe impl<T> Sync for Key<T> {}

/// What the kernel allocates and clears for us in a namespace.
///
/// # Invariants
///
/// Each field is null or a pointer from `Arc::into_raw`, whose reference the slot owns. `data` is
/// looked at under RCU; a grace period passes between its move to `leaving` and the drop.
#[repr(C)]
struct Slot {
    data: AtomicPtr<c_void>,
    leaving: AtomicPtr<c_void>,
}

impl<T: PerNet> Key<T> {
    /// A key which is not registered yet.
    #[expect(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            id: UnsafeCell::new(0),
            ready: AtomicBool::new(false),
            context: AtomicPtr::new(core::ptr::null_mut()),
            _data: PhantomData,
        }
    }

    /// Gives all namespaces, now and to come, their data. May sleep.
    ///
    /// The module must not go before the registration; keep it in the module's structure.
    pub fn register(&'static self, context: Arc<T::Context>) -> Result<Registration<T>> {
        if !core::ptr::eq(self, T::key()) {
            return Err(EINVAL);
        }
        let ops = KBox::new(
            bindings::pernet_operations {
                init: Some(init::<T>),
                pre_exit: Some(pre_exit::<T>),
                exit: Some(exit::<T>),
                id: self.id.get(),
                size: size_of::<Slot>(),
                ..pin_init::zeroed()
            },
            GFP_KERNEL,
        )?;
        let context = Arc::into_raw(context).cast_mut().cast();
        let free = self.context.compare_exchange(
            core::ptr::null_mut(),
            context,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if free.is_err() {
            // SAFETY: The pointer comes from `Arc::into_raw` just above and was given to nobody.
            drop(unsafe { Arc::from_raw(context.cast::<T::Context>()) });
            return Err(EBUSY);
        }
        let ops = KBox::into_raw(ops);
        // SAFETY: `ops` and what it points to stay until unregistered in `Registration::drop`.
        let result = to_result(unsafe { bindings::register_pernet_subsys(ops) });
        let registration = Registration {
            ops,
            key: self,
            registered: result.is_ok(),
        };
        result?;
        self.ready.store(true, Ordering::Release);
        Ok(registration)
    }

    /// The data of a namespace; `None` before registration, after [`PerNet::exit`] began, and once
    /// unregistering has begun.
    pub fn get(&self, net: &Net) -> Option<Arc<T>> {
        let _guard = rcu::read_lock();
        if !self.ready.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `ready` says that the number is valid, and it does not change.
        let id = unsafe { *self.id.get() };
        // SAFETY: `id` is registered with the size of a `Slot`, in every namespace that exists;
        // unregistering waits for a grace period after `ready` has been cleared.
        let slot = unsafe { &*bindings::net_slot(net.as_ptr(), id).cast::<Slot>() };
        let data = NonNull::new(slot.data.load(Ordering::Acquire).cast::<T>())?;
        // SAFETY: By the invariant of `Slot`, its reference lives until after this RCU section.
        Some(Arc::from(unsafe { ArcBorrow::from_raw(data.as_ptr()) }))
    }
}

/// # Safety
///
/// `id` is registered with the size of a `Slot`; `net` exists.
unsafe fn slot<'a, T: PerNet>(net: *mut bindings::net) -> &'a Slot {
    // SAFETY: The kernel has written the number before it calls `init` for the first time.
    let id = unsafe { *T::key().id.get() };
    // SAFETY: By the requirements of this function.
    unsafe { &*bindings::net_slot(net, id).cast::<Slot>() }
}

/// # Safety
///
/// Called by the kernel for a namespace in which `T` is being registered.
unsafe extern "C" fn init<T: PerNet>(net: *mut bindings::net) -> c_int {
    from_result(|| {
        let context = T::key()
            .context
            .load(Ordering::Acquire)
            .cast::<T::Context>();
        // SAFETY: By the comment on `context`, this is a pointer from `Arc::into_raw`, valid until
        // after the last call of `exit`.
        let context: Arc<T::Context> = Arc::from(unsafe { ArcBorrow::from_raw(context) });
        // SAFETY: The namespace exists during this call.
        let data = T::new(unsafe { Net::from_ptr(net) }, &context)?;
        // SAFETY: Called between registering and unregistering.
        let slot = unsafe { slot::<T>(net) };
        // INVARIANT: The reference goes to the slot.
        slot.data
            .store(Arc::into_raw(data).cast_mut().cast(), Ordering::SeqCst);
        Ok(0)
    })
}

/// # Safety
///
/// Called by the kernel for a namespace in which `init` has been called.
unsafe extern "C" fn pre_exit<T: PerNet>(net: *mut bindings::net) {
    // SAFETY: Called between registering and unregistering.
    let slot = unsafe { slot::<T>(net) };
    let data = slot.data.swap(core::ptr::null_mut(), Ordering::AcqRel);
    slot.leaving.store(data, Ordering::Release);
    if !data.is_null() {
        // SAFETY: From `Arc::into_raw`; the reference is the slot's until `exit`.
        let data: Arc<T> = Arc::from(unsafe { ArcBorrow::from_raw(data.cast::<T>()) });
        T::pre_exit(&data);
    }
}

/// # Safety
///
/// Called by the kernel a grace period after `pre_exit`.
unsafe extern "C" fn exit<T: PerNet>(net: *mut bindings::net) {
    // SAFETY: Called between registering and unregistering.
    let slot = unsafe { slot::<T>(net) };
    let data = slot.leaving.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if !data.is_null() {
        // SAFETY: The reference was the slot's, and nobody looks at it any more.
        let data = unsafe { Arc::from_raw(data.cast::<T>()) };
        // SAFETY: The namespace exists during this call.
        T::exit(&data, unsafe { Net::from_ptr(net) });
    }
}

/// The registration of a [`Key`]. Dropping it calls [`PerNet::exit`] for all namespaces.
pub struct Registration<T: PerNet> {
    ops: *mut bindings::pernet_operations,
    key: &'static Key<T>,
    registered: bool,
}

// SAFETY: Unregistering is possible on any thread.
unsafe impl<T: PerNet> Send for Registration<T> {}
// SAFETY: There are no methods on shared references.
unsafe impl<T: PerNet> Sync for Registration<T> {}

impl<T: PerNet> Drop for Registration<T> {
    fn drop(&mut self) {
        if self.registered {
            self.key.ready.store(false, Ordering::Release);
            crate::util::wait_for_readers();
            // SAFETY: `ops` is registered.
            unsafe { bindings::unregister_pernet_subsys(self.ops) };
        }
        let context = self
            .key
            .context
            .swap(core::ptr::null_mut(), Ordering::AcqRel)
            .cast::<T::Context>();
        if !context.is_null() {
            // SAFETY: The reference was the key's, and no namespace looks at it any more.
            drop(unsafe { Arc::from_raw(context) });
        }
        // SAFETY: `ops` comes from `KBox::into_raw`, and nobody else knows it.
        drop(unsafe { KBox::from_raw(self.ops) });
    }
}
