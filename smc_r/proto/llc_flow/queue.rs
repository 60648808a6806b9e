// SPDX-License-Identifier: GPL-2.0

//! A queue in an array.

/// First in, first out, at most `N` at a time.
pub(super) struct Queue<T, const N: usize> {
    /// Filled places come first.
    places: [Option<T>; N],
}

impl<T: Copy, const N: usize> Queue<T, N> {
    pub(super) const fn new() -> Self {
        Self { places: [None; N] }
    }

    pub(super) fn len(&self) -> usize {
        // `count()` would check for an overflow, and thus have a way to panic.
        self.iter().fold(0, |n, _| n.saturating_add(1))
    }

    pub(super) fn room(&self) -> usize {
        N.saturating_sub(self.len())
    }

    /// Appends `item`; false if there is no room.
    pub(super) fn push(&mut self, item: T) -> bool {
        match self.places.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(item);
                true
            }
            None => false,
        }
    }

    /// Puts `item` before all others; false if there is no room.
    pub(super) fn push_first(&mut self, item: T) -> bool {
        if self.places.last().is_none_or(Option::is_some) {
            return false;
        }
        self.places.rotate_right(1);
        if let Some(place) = self.places.first_mut() {
            *place = Some(item);
        }
        true
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let first = self.places.first_mut()?.take();
        if first.is_some() {
            self.places.rotate_left(1);
        }
        first
    }

    /// Removes what is not to be kept.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for _ in 0..self.len() {
            if let Some(item) = self.pop().filter(&keep) {
                self.push(item);
            }
        }
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut T> {
        self.places.first_mut()?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }

    pub(super) fn clear(&mut self) {
        self.places = [None; N];
    }
}
