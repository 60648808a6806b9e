// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use super::device::Device;
use crate::bindings;
use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    },
};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::aref::ARef, //
};

/// A protection domain: what is made in one works with nothing made in another.
///
/// # Invariants
///
/// `raw` is a protection domain of `device`, freed by the drop unless it `stays`.
pub struct Pd {
    raw: NonNull<bindings::ib_pd>,
    device: ARef<Device>,
    stays: AtomicBool,
}

// SAFETY: Protection domains may be used from any thread; the count of their users is atomic.
unsafe impl Send for Pd {}
// SAFETY: As above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Makes a protection domain. `owner` is the name resource tracking shows.
    pub fn new(device: &Device, owner: &'static CStr) -> Result<Self> {
        // SAFETY: The device is valid, `owner` is static.
        let raw = unsafe { bindings::__ib_alloc_pd(device.as_raw(), 0, owner.as_char_ptr()) };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?;
        // INVARIANT: Just made, and ours.
        Ok(Self {
            raw,
            device: device.hold(),
            stays: AtomicBool::new(false),
        })
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.raw.as_ptr()
    }

    /// Leaves it to the driver, which has refused to give back something that is in it: some drivers free what such things
    /// still refer to.
    pub(super) fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    /// The key for local access to anything that is DMA-mapped for the device.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: By the invariant the protection domain is valid; the field never changes.
        unsafe { (*self.as_raw()).local_dma_lkey }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: The protection domain is of this device.
        unsafe { super::name_what_stays(&raw mut (*self.as_raw()).res, &self.device) };
        if *self.stays.get_mut() {
            return;
        }
        // SAFETY: By the invariant it is ours; queue pairs and regions hold an `Arc` of it, so none is left.
        unsafe { bindings::ib_dealloc_pd(self.as_raw()) };
    }
}
