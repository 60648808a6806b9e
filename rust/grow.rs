// SPDX-License-Identifier: GPL-2.0

//! Lists that grow and shrink by code which cannot panic.
//!
//! `push`, `reserve` and `retain` of the kernel's vectors check, as all its code in Rust does, what cannot go wrong:
//! that the capacity is no less than the length, and that twice of it can be counted. What is left of that in the
//! compiled module are calls of panics, next to which none that could happen would be noticed. `tools/env/objects`
//! looks that there are none at all.

use core::mem;

use kernel::{
    alloc::{
        kvec::Vec,
        AllocError,
        Allocator,
        Flags, //
    },
    prelude::*,
};

/// What takes the place of methods of vectors.
pub trait Grow<T> {
    /// Makes room for `more` elements in addition to those that there are, as `reserve` does.
    fn make_room(&mut self, more: usize, flags: Flags) -> Result<(), AllocError>;

    /// Adds an element at the end, as `push` does. Without memory the element is dropped.
    fn append(&mut self, value: T, flags: Flags) -> Result<(), AllocError>;

    /// Keeps those elements that `wanted` is true of, in their order, as `retain` does.
    fn keep(&mut self, wanted: impl FnMut(&T) -> bool);
}

impl<T, A: Allocator> Grow<T> for Vec<T, A> {
    fn make_room(&mut self, more: usize, flags: Flags) -> Result<(), AllocError> {
        let (len, capacity) = (self.len(), self.capacity());
        if capacity.saturating_sub(len) >= more {
            return Ok(());
        }
        let needed = len.checked_add(more).ok_or(AllocError)?;
        let mut longer = Self::with_capacity(needed.max(capacity.saturating_mul(2)), flags)?;
        for value in self.drain_all() {
            // There is room for more than that.
            let _ = longer.push_within_capacity(value);
        }
        *self = longer;
        Ok(())
    }

    fn append(&mut self, value: T, flags: Flags) -> Result<(), AllocError> {
        self.make_room(1, flags)?;
        self.push_within_capacity(value).map_err(|_| AllocError)
    }

    fn keep(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        let mut kept = 0usize;
        for place in 0..self.len() {
            if !self.get(place).is_some_and(&mut wanted) {
                continue;
            }
            // The same element, or one that is not wanted.
            if let Some((front, [value, ..])) = self.split_at_mut_checked(place) {
                if let Some(gone) = front.get_mut(kept) {
                    mem::swap(gone, value);
                }
            }
            kept = kept.wrapping_add(1);
        }
        self.truncate(kept);
    }
}

/// The place of the first element that `is_before` is not true of, where it is true of all in front of that and of none behind,
/// as `partition_point` finds it.
pub fn place_behind<T>(items: &[T], is_before: impl Fn(&T) -> bool) -> usize {
    let (mut low, mut high) = (0, items.len());
    while low < high {
        let middle = low.saturating_add(high) / 2;
        match items.get(middle) {
            Some(item) if is_before(item) => low = middle.saturating_add(1),
            _ => high = middle,
        }
    }
    low
}

/// How many there are.
pub fn count(items: impl Iterator) -> usize {
    items.fold(0, |count, _| count.saturating_add(1))
}

/// The sum of all.
pub fn sum(numbers: impl Iterator<Item = usize>) -> usize {
    numbers.fold(0, usize::saturating_add)
}
