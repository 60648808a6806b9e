// SPDX-License-Identifier: GPL-2.0

//! Memory of the whole system: how much there is, and giving it back.
//!
//! C header: [`include/linux/shrinker.h`](srctree/include/linux/shrinker.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// The system's memory in bytes.
pub fn total() -> usize {
    // SAFETY: May be called from anywhere.
    let pages = unsafe { bindings::total_ram_pages() };
    pages.saturating_mul(PAGE_SIZE)
}

/// Who keeps memory that it can do without.
///
/// Both methods are called by who needs memory, with whatever locks it holds: they must not wait for one that is
/// held by anybody who allocates, nor allocate.
pub trait Cache: Send + Sync + 'static {
    /// How many pages could be given back.
    fn count(&self) -> usize;

    /// The system is short of memory: to be given back soon, by somebody else.
    fn shrink(&self);
}

/// Registers a [`Cache`] for as long as it exists.
///
/// # Invariants
///
/// `raw` is a registered shrinker whose data is the address of `cache`.
pub struct Shrinker<C: Cache> {
    raw: NonNull<bindings::shrinker>,
    _cache: Arc<C>,
}

// SAFETY: A shrinker may be freed from any thread, and nothing else is done with it.
unsafe impl<C: Cache> Send for Shrinker<C> {}
// SAFETY: There are no methods.
unsafe impl<C: Cache> Sync for Shrinker<C> {}

impl<C: Cache> Shrinker<C> {
    /// Has `cache` asked for memory from now on. May sleep.
    pub fn new(name: &'static CStr, cache: Arc<C>) -> Result<Self> {
        let data = Arc::as_ptr(&cache).cast_mut().cast();
        // SAFETY: The functions take what they find in the data for a `C`; the reference in `_cache` outlives the
        // shrinker, see the drop.
        let raw = unsafe {
            bindings::shrinker_new(name.as_char_ptr(), Some(count::<C>), Some(scan::<C>), data)
        };
        // INVARIANT: Just registered.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _cache: cache,
        })
    }
}

impl<C: Cache> Drop for Shrinker<C> {
    fn drop(&mut self) {
        // SAFETY: Registered by the invariant. Waits for calls that are under way.
        unsafe { bindings::shrinker_free(self.raw.as_ptr()) };
    }
}

/// # Safety
///
/// `shrinker` must be that of a [`Shrinker<C>`], which exists for as long as the result is used.
unsafe fn cache<'a, C: Cache>(shrinker: *mut bindings::shrinker) -> &'a C {
    // SAFETY: By the invariant of `Shrinker` the data is the address of a `C` that it keeps.
    unsafe { &*bindings::shrinker_data(shrinker).cast::<C>() }
}

/// # Safety
///
/// To be called by the kernel only, for the shrinker of a [`Shrinker<C>`].
unsafe extern "C" fn count<C: Cache>(
    shrinker: *mut bindings::shrinker,
    _control: *mut bindings::shrink_control,
) -> c_ulong {
    // SAFETY: The `Shrinker` waits for this call before it goes.
    unsafe { cache::<C>(shrinker) }.count()
}

/// # Safety
///
/// As for [`count`].
unsafe extern "C" fn scan<C: Cache>(
    shrinker: *mut bindings::shrinker,
    _control: *mut bindings::shrink_control,
) -> c_ulong {
    // SAFETY: As in `count`.
    unsafe { cache::<C>(shrinker) }.shrink();
    // Nothing has been freed yet, and asking again does not help.
    c_ulong::MAX
}
