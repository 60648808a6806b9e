// SPDX-License-Identifier: GPL-2.0

//! Memory regions for the peer to write to, by fast registration.

use super::{
    memory::{
        Direction,
        Pages, //
    },
    pd::Pd,
};
use crate::{
    bindings,
    errno::EOPNOTSUPP, //
};
use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    },
};
use kernel::{
    error::from_err_ptr,
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// Names a region of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(pub(super) u32);

/// A memory region of all of some pages. Made without telling the device; what makes the key
/// work is a registration request on a queue pair of the same protection domain.
///
/// The drop takes the region from the device first, then its mapping, then the memory.
///
/// # Invariants
///
/// `raw` is a memory region of the protection domain of `mapped`, given up by the drop.
pub(super) struct Region {
    raw: NonNull<bindings::ib_mr>,
    registered: AtomicBool,
    mapped: Mapped,
    pages: Arc<Pages>,
}

// SAFETY: Regions may be used from any thread.
unsafe impl Send for Region {}
// SAFETY: As above; nothing is changed by shared use.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: By the invariant it is ours.
        if !super::give_back(|| unsafe { bindings::ib_dereg_mr(self.as_raw()) }) {
            // A peer could have the device write there still: the memory stays the device's, and the protection domain.
            self.mapped.stays = true;
            self.mapped.pd.stay();
            self.pages.keep();
        }
    }
}

/// # Invariants
///
/// The list `sg` of one entry is mapped for the device of `pd`, unmapped by the drop unless it `stays`.
struct Mapped {
    sg: KBox<Opaque<bindings::scatterlist>>,
    pd: Arc<Pd>,
    stays: bool,
}

// SAFETY: The list belongs to no thread.
unsafe impl Send for Mapped {}
// SAFETY: Nothing is changed by shared use.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // SAFETY: By the invariant it is mapped, with this direction.
        unsafe {
            bindings::ib_dma_unmap_sg(
                self.pd.device().as_raw(),
                self.sg.get(),
                1,
                Direction::Both.as_raw(),
            )
        };
    }
}

impl Region {
    /// Makes a region. May sleep.
    ///
    /// The address the peer has to use is random, so that it learns nothing of ours. EOPNOTSUPP if
    /// the CPU may not see at once what the device writes, as with bounce buffers.
    pub(super) fn new(pd: &Arc<Pd>, pages: &Arc<Pages>) -> Result<Self> {
        let device = pd.device();
        let len = u32::try_from(pages.len())?;
        let count = len >> PAGE_SHIFT;
        if count > device.max_region_pages() {
            return Err(EINVAL);
        }
        let sg = KBox::new(Opaque::<bindings::scatterlist>::uninit(), GFP_KERNEL)?;
        // SAFETY: `sg` has room for one entry; the pages are linear memory of that length.
        unsafe { bindings::sg_init_one(sg.get(), pages.start().cast(), len) };
        let direction = Direction::Both.as_raw();
        // SAFETY: The device is valid, the list has one entry.
        if unsafe { bindings::ib_dma_map_sg(device.as_raw(), sg.get(), 1, direction) } != 1 {
            return Err(ENOMEM);
        }
        // INVARIANT: Mapped just now.
        let mapped = Mapped {
            sg,
            pd: pd.clone(),
            stays: false,
        };
        // What a peer writes is looked at without asking for the memory before each look, and all
        // links of a group write to the same memory: bounce buffers cannot serve that, and caches
        // that do not see the device's writes neither. (The kernel's check errs on the safe side
        // with a debugging DMA API, and behind an IOMMU once a page of the device was bounced.)
        // SAFETY: The device is valid, the list of one entry is mapped for it.
        if unsafe { bindings::ib_needs_sync(device.as_raw(), mapped.sg.get()) } {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: The protection domain is valid.
        let raw = unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, count)
        };
        // INVARIANT: Just made, and ours.
        let region = Self {
            raw: NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?,
            registered: AtomicBool::new(false),
            mapped,
            pages: pages.clone(),
        };
        // SAFETY: The region is ours and not in use, the list is mapped.
        let entries = unsafe {
            bindings::ib_map_mr_sg(
                region.as_raw(),
                region.mapped.sg.get(),
                1,
                core::ptr::null_mut(),
                PAGE_SIZE as u32,
            )
        };
        if entries != 1 {
            return Err(ENOMEM);
        }
        // SAFETY: As before. Starts of pages stay starts of pages.
        unsafe { (*region.as_raw()).iova = Self::random_address() };
        Ok(region)
    }

    /// An address that is aligned for the largest pages, not zero, and far from wrapping.
    fn random_address() -> u64 {
        // SAFETY: May be called from anywhere.
        let random = unsafe { bindings::get_random_u32() };
        (u64::from(random) | 1) << 22
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.raw.as_ptr()
    }

    /// Whether the key works. Written with registrations locked only.
    pub(super) fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Relaxed)
    }

    /// The key works from now on.
    pub(super) fn set_registered(&self) {
        self.registered.store(true, Ordering::Relaxed);
    }

    /// The key for the peer.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: By the invariant; the key is not changed after allocation.
        unsafe { (*self.as_raw()).rkey }
    }

    /// The address of the first byte for the peer.
    pub(super) fn address(&self) -> u64 {
        // SAFETY: By the invariant; only `new` writes it (a device sets the same value again).
        unsafe { (*self.as_raw()).iova }
    }
}
