// SPDX-License-Identifier: GPL-2.0

//! Memory that devices read and write, and its mapping for a device.

use super::device::Device;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    iov::{
        IovIterDest,
        IovIterSource, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
};

/// Zeroed, physically contiguous pages.
///
/// A device, and through it a peer, may write here at any time. So no reference to the bytes ever
/// exists: they are copied in and out, and a copy that races with a writer sees any mixture of old
/// and new bytes.
///
/// # Invariants
///
/// `start` is the start of `len` bytes from `alloc_pages_exact`, which nothing in Rust accesses but through raw copies.
/// Each page has a reference of ours, put by the drop.
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: The memory belongs to no thread.
unsafe impl Send for Pages {}
// SAFETY: All access is by raw copies, for which races are allowed by the type's contract.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `len` bytes, rounded up to pages, and charges them to the memory group of the caller, which is not
    /// used up. May sleep; does not try hard.
    pub fn new(len: usize) -> Result<Self> {
        Self::allocate(len, false)
    }

    /// The same, charged to nobody, and waiting for memory as long as there can be any: for up to eight pages, which
    /// the system gives to whoever waits.
    pub fn new_urgently(len: usize) -> Result<Self> {
        Self::allocate(len, true)
    }

    fn allocate(len: usize, urgent: bool) -> Result<Self> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        // SAFETY: Any length may be asked for.
        let start = unsafe { bindings::ib_alloc_pages(len, urgent) };
        // INVARIANT: Just allocated, and ours.
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(ENOMEM)?,
            len,
        })
    }

    /// The number of bytes.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address of a piece, if all of it is inside.
    #[inline]
    pub(super) fn piece(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            // SAFETY: `offset` is at most `self.len`, so the address is in the allocation or just
            // past it.
            Some(end) if end <= self.len => Ok(unsafe { self.start().add(offset) }),
            _ => Err(ERANGE),
        }
    }

    /// Copies bytes out. Fails, with nothing done, if they are not all inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        let from = self.piece(offset, to.len())?;
        // SAFETY: `piece` has checked the source, `to` is the destination's whole length; a
        // reference to our bytes cannot exist, so they do not overlap.
        unsafe { bindings::memcpy(to.as_mut_ptr().cast(), from.cast(), to.len()) };
        Ok(())
    }

    /// Copies bytes in. Fails, with nothing done, if there is no room for all.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result {
        let to = self.piece(offset, from.len())?;
        // SAFETY: As in `read`, the other way round.
        unsafe { bindings::memcpy(to.cast(), from.as_ptr().cast(), from.len()) };
        Ok(())
    }

    /// Overwrites bytes with zeroes.
    pub fn zero(&self, offset: usize, len: usize) -> Result {
        let to = self.piece(offset, len)?;
        // SAFETY: `piece` has checked the range.
        unsafe { bindings::memset(to.cast(), 0, len) };
        Ok(())
    }

    /// Copies in up to `len` bytes from `iter`, which may be a user's memory: may sleep. Returns
    /// the number copied, less than `len` if `iter` ended or faulted.
    #[inline]
    pub fn copy_from_iter(
        &self,
        offset: usize,
        len: usize,
        iter: &mut IovIterSource<'_>,
    ) -> Result<usize> {
        let to = self.piece(offset, len)?;
        // SAFETY: `piece` has checked the range, `iter` is a valid source.
        Ok(unsafe { bindings::_copy_from_iter(to.cast(), len, iter.as_raw()) })
    }

    /// Copies out up to `len` bytes to `iter`, which may be a user's memory: may sleep. Returns
    /// the number copied, less than `len` if `iter` ended or faulted.
    #[inline]
    pub fn copy_to_iter(
        &self,
        offset: usize,
        len: usize,
        iter: &mut IovIterDest<'_>,
    ) -> Result<usize> {
        let from = self.piece(offset, len)?;
        // SAFETY: `piece` has checked the range, `iter` is a valid destination.
        Ok(unsafe { bindings::_copy_to_iter(from.cast(), len, iter.as_raw()) })
    }

    /// Leaves the memory for good to a device that has not given back what uses it: the drop does not free it.
    pub(super) fn keep(&self) {
        // SAFETY: By the invariant, it is that many bytes of such pages.
        unsafe { bindings::ib_keep_pages(self.start().cast(), self.len) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: By the invariant. Whoever mapped the pages holds an `Arc` of them, or has called `keep`, by which they are
        // not freed.
        unsafe { bindings::free_pages_exact(self.start().cast(), self.len) };
    }
}

/// The direction of access by a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToDevice,
    Both,
}

impl Direction {
    #[inline]
    pub(super) fn as_raw(self) -> c_uint {
        match self {
            Self::ToDevice => bindings::DMA_TO_DEVICE,
            Self::Both => bindings::DMA_BIDIRECTIONAL,
        }
    }
}

/// Pages mapped for local access by a device, at one address. The drop may run in softirq.
///
/// # Invariants
///
/// `address` is the DMA address of all of `pages` for `device`, unmapped by the drop unless it `stays`.
pub(super) struct Mapping {
    address: u64,
    stays: bool,
    direction: Direction,
    pages: Arc<Pages>,
    device: ARef<Device>,
}

impl Mapping {
    /// Maps all of `pages`.
    pub(super) fn new(device: &Device, pages: Arc<Pages>, direction: Direction) -> Result<Self> {
        // SAFETY: The device is valid; the pages are linear kernel memory of that length, which
        // lives as long as the mapping.
        let address = unsafe {
            bindings::ib_dma_map_single(
                device.as_raw(),
                pages.start().cast(),
                pages.len(),
                direction.as_raw(),
            )
        };
        // SAFETY: The device is valid, the address was just returned for it.
        if unsafe { bindings::ib_dma_mapping_error(device.as_raw(), address) } != 0 {
            return Err(ENOMEM);
        }
        // INVARIANT: Mapped just now.
        Ok(Self {
            address,
            stays: false,
            direction,
            pages,
            device: device.hold(),
        })
    }

    /// Leaves it and its pages to a device that has not given back what uses them.
    pub(super) fn stay(&mut self) {
        if !self.stays {
            self.stays = true;
            self.pages.keep();
        }
    }

    #[inline]
    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The DMA address of a piece, if all of it is inside.
    #[inline]
    pub(super) fn piece(&self, offset: usize, len: usize) -> Result<u64> {
        self.pages.piece(offset, len)?;
        Ok(self.address.wrapping_add(offset as u64))
    }

    /// Makes what the CPU wrote to a piece visible to the device; returns its DMA address.
    #[inline]
    pub(super) fn sync_for_device(&self, offset: usize, len: usize) -> Result<u64> {
        let address = self.piece(offset, len)?;
        // SAFETY: The piece is inside the mapping, which is of that direction.
        unsafe {
            bindings::ib_dma_sync_single_for_device(
                self.device.as_raw(),
                address,
                len,
                self.direction.as_raw(),
            )
        };
        Ok(address)
    }

    /// Makes what the device wrote to a piece visible to the CPU.
    #[inline]
    pub(super) fn sync_for_cpu(&self, offset: usize, len: usize) -> Result {
        let address = self.piece(offset, len)?;
        // SAFETY: The piece is inside the mapping, which is of that direction.
        unsafe {
            bindings::ib_dma_sync_single_for_cpu(
                self.device.as_raw(),
                address,
                len,
                self.direction.as_raw(),
            )
        };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // SAFETY: By the invariant it is mapped; no work request names it any more, because the
        // queue that posts them keeps the mapping until they completed.
        unsafe {
            bindings::ib_dma_unmap_single(
                self.device.as_raw(),
                self.address,
                self.pages.len(),
                self.direction.as_raw(),
            )
        };
    }
}
