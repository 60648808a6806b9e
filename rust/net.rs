// SPDX-License-Identifier: GPL-2.0

//! Network namespaces.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::sync::aref::{
    ARef,
    AlwaysRefCounted, //
};
use kernel::types::Opaque;

/// A network namespace.
///
/// A counted reference keeps the namespace from being torn down, not just its memory: whatever
/// belongs to a namespace must not hold one, or it keeps the namespace, which keeps it.
///
/// # Invariants
///
/// The namespace exists as long as the reference does.
#[repr(transparent)]
pub struct Net(Opaque<bindings::net>);

// SAFETY: Namespaces are used and released on any CPU.
unsafe impl Send for Net {}
// SAFETY: The methods below are thread-safe.
unsafe impl Sync for Net {}

// SAFETY: `get_net` and `put_net` count references; all namespaces are counted.
unsafe impl AlwaysRefCounted for Net {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant the namespace exists. One in its teardown, which some
        // callbacks get, may be counted all the same; it is not freed before they have returned.
        unsafe { bindings::net_hold(self.as_ptr()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: By the requirements of the function, a reference is owned.
        unsafe { bindings::net_put(obj.as_ptr().cast()) }
    }
}

impl Net {
    /// # Safety
    ///
    /// The namespace exists for the lifetime of the result.
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut bindings::net) -> &'a Self {
        // SAFETY: By the requirements of this function; the type is transparent.
        unsafe { &*ptr.cast() }
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::net {
        self.0.get()
    }

    /// The namespace that is there from the start.
    pub fn init() -> &'static Self {
        // SAFETY: It exists for ever.
        unsafe { Self::from_ptr(bindings::net_init()) }
    }

    /// A reference, unless the namespace is on its way out.
    pub fn try_get(&self) -> Option<ARef<Self>> {
        // SAFETY: By the type invariant the namespace exists.
        let ptr = NonNull::new(unsafe { bindings::net_hold_live(self.as_ptr()) })?;
        // SAFETY: The reference was just taken.
        Some(unsafe { ARef::from_raw(ptr.cast()) })
    }

    /// The namespace with the number [`Net::id`], unless it is on its way out.
    pub fn by_id(id: u64) -> Option<ARef<Self>> {
        // SAFETY: May be called from anywhere.
        let ptr = NonNull::new(unsafe { bindings::net_find(id) })?;
        // SAFETY: The reference was just taken.
        Some(unsafe { ARef::from_raw(ptr.cast()) })
    }

    /// A number that no other namespace has or had since boot.
    pub fn id(&self) -> u64 {
        // SAFETY: By the type invariant the namespace exists.
        unsafe { bindings::net_id(self.as_ptr()) }
    }

    /// The number by which user space knows the namespace (`stat` of `/proc/PID/ns/net`).
    pub fn inode(&self) -> u32 {
        // SAFETY: By the type invariant the namespace exists.
        unsafe { bindings::net_inum(self.as_ptr()) }
    }

    /// Is somebody still using the namespace?
    pub fn is_alive(&self) -> bool {
        // SAFETY: By the type invariant the namespace exists.
        unsafe { bindings::net_alive(self.as_ptr()) }
    }
}

impl PartialEq for Net {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Net {}
