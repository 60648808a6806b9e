// SPDX-License-Identifier: GPL-2.0

//! Elements (RMBEs) of one of our own buffers (RMBs), RFC 7609 sections 2.1 and 4.4.
//!
//! An RMB has one RKey and up to 255 elements of one size. Which elements are taken is nothing but
//! a set of numbers; memory, registration and zeroing belong to whoever owns the buffer.

use crate::wire::{
    RmbeIndex,
    RmbeSize, //
};

/// A set of element numbers 1 to 255.
///
/// Bit 0 of the first word would be element 0, which does not exist, and is never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexSet([u64; 4]);

impl IndexSet {
    pub(crate) const EMPTY: Self = Self([0; 4]);

    const fn place(index: RmbeIndex) -> (usize, u64) {
        let number = index.get();
        (
            (number >> 6) as usize,
            1u64.wrapping_shl((number & 63) as u32),
        )
    }

    pub(crate) fn contains(&self, index: RmbeIndex) -> bool {
        let (word, bit) = Self::place(index);
        self.0.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Adds `index`; false if it was there already.
    pub(crate) fn insert(&mut self, index: RmbeIndex) -> bool {
        let (word, bit) = Self::place(index);
        match self.0.get_mut(word) {
            Some(w) if *w & bit == 0 => {
                *w |= bit;
                true
            }
            _ => false,
        }
    }

    /// Takes `index` out; false if it was not there.
    pub(crate) fn remove(&mut self, index: RmbeIndex) -> bool {
        let (word, bit) = Self::place(index);
        match self.0.get_mut(word) {
            Some(w) if *w & bit != 0 => {
                *w &= !bit;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    pub(crate) fn len(&self) -> u32 {
        self.0
            .iter()
            .fold(0, |n, w| w.count_ones().saturating_add(n))
    }

    /// The lowest element number from 1 to `count` that is not in the set.
    fn lowest_free(&self, count: u8) -> Option<RmbeIndex> {
        (1..=count)
            .filter_map(RmbeIndex::new)
            .find(|index| !self.contains(*index))
    }
}

/// Which elements of one of our RMBs are in use.
///
/// An element is *free*, *taken* by a connection, or *retired*: given up by a connection whose peer
/// never confirmed that it stopped writing. A retired element is not handed out again; it ends with
/// the RMB (RFC 7609 section 4.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elements {
    size: RmbeSize,
    count: u8,
    taken: IndexSet,
    retired: IndexSet,
}

impl Elements {
    /// All elements of an RMB free: `count` of them, each `size` big. A count of zero makes an RMB
    /// that is always full.
    pub const fn new(size: RmbeSize, count: u8) -> Self {
        Self {
            size,
            count,
            taken: IndexSet::EMPTY,
            retired: IndexSet::EMPTY,
        }
    }

    /// The size of each element.
    pub const fn size(&self) -> RmbeSize {
        self.size
    }

    /// Number of elements, in use or not.
    pub const fn count(&self) -> u8 {
        self.count
    }

    /// Number of elements that connections use now.
    pub fn in_use(&self) -> u32 {
        self.taken.len().saturating_sub(self.retired.len())
    }

    /// Number of elements that [`alloc`](Self::alloc) can still hand out.
    pub fn available(&self) -> u32 {
        u32::from(self.count).saturating_sub(self.taken.len())
    }

    /// True if no connection uses any element: the RMB may be deleted.
    pub fn is_idle(&self) -> bool {
        self.in_use() == 0
    }

    /// True if no connection uses any element and none can be handed out: the RMB is of no use.
    pub fn is_spent(&self) -> bool {
        self.is_idle() && self.available() == 0
    }

    /// Takes the free element with the lowest number.
    pub fn alloc(&mut self) -> Option<RmbeIndex> {
        let index = self.taken.lowest_free(self.count)?;
        self.taken.insert(index);
        Some(index)
    }

    /// Gives an element back for reuse. The caller has zeroed it, and knows that the peer will not
    /// write to it any more. False if the element was not in use.
    pub fn free(&mut self, index: RmbeIndex) -> bool {
        !self.retired.contains(index) && self.taken.remove(index)
    }

    /// Gives an element back to which the peer may still write. False if it was not in use.
    pub fn retire(&mut self, index: RmbeIndex) -> bool {
        self.taken.contains(index) && self.retired.insert(index)
    }

    /// Offset of an element from the start of the RMB. None if the RMB has no such element.
    pub fn offset(&self, index: RmbeIndex) -> Option<u64> {
        (index.get() <= self.count).then(|| index.offset(self.size))
    }
}
