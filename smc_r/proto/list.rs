// SPDX-License-Identifier: GPL-2.0

//! A list with room for a fixed number of values.

use core::fmt;

/// Up to `N` values of type `T`, stored in place.
///
/// The protocol bounds all its lists: eight IPv6 prefixes, eight enterprise IDs, eight RKeys.
///
/// # Invariants
///
/// `len` is at most `N`.
#[derive(Clone, Copy)]
pub struct List<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// Returns an empty list.
    pub fn new() -> Self {
        // INVARIANT: Zero is at most `N`.
        Self {
            items: [T::default(); N],
            len: 0,
        }
    }

    /// Appends `item`; gives it back if the list is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        match self.items.get_mut(self.len) {
            Some(slot) => {
                *slot = item;
                // INVARIANT: `len` was a valid index, hence below `N`.
                self.len = self.len.saturating_add(1);
                Ok(())
            }
            None => Err(item),
        }
    }

    /// Collects values until the source ends or the list is full.
    pub fn take_from(items: impl IntoIterator<Item = T>) -> Self {
        let mut list = Self::new();
        for item in items {
            if list.push(item).is_err() {
                break;
            }
        }
        list
    }

    /// Copies values from a slice; surplus ones are left out.
    pub fn from_slice(items: &[T]) -> Self {
        Self::take_from(items.iter().copied())
    }
}

impl<T, const N: usize> List<T, N> {
    /// Returns the values in the list.
    pub fn as_slice(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or_default()
    }

    /// Returns the number of values, 0 to `N`.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Tells whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the values.
    pub fn iter(&self) -> core::slice::Iter<'_, T> {
        self.as_slice().iter()
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: Eq, const N: usize> Eq for List<T, N> {}

impl<T: fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a List<T, N> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
