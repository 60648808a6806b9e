// SPDX-License-Identifier: GPL-2.0

//! Writer into a buffer of any length.

use zerocopy::{
    Immutable,
    IntoBytes, //
};

/// Writes values one after the other; fails if the buffer ends.
pub(crate) struct Out<'a> {
    rest: &'a mut [u8],
    written: usize,
}

impl<'a> Out<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self {
            rest: buffer,
            written: 0,
        }
    }

    /// Appends the bytes of `value`.
    pub(crate) fn put<T>(&mut self, value: &T) -> Option<()>
    where
        T: IntoBytes + Immutable + ?Sized,
    {
        let bytes = value.as_bytes();
        let (to, rest) = core::mem::take(&mut self.rest).split_at_mut_checked(bytes.len())?;
        to.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.rest = rest;
        self.written = self.written.checked_add(bytes.len())?;
        Some(())
    }

    /// Appends zeros until `len` bytes are written.
    pub(crate) fn fill(&mut self, len: usize) -> Option<()> {
        let more = len.saturating_sub(self.written);
        let (to, rest) = core::mem::take(&mut self.rest).split_at_mut_checked(more)?;
        to.fill(0);
        self.rest = rest;
        self.written = self.written.checked_add(more)?;
        Some(())
    }

    /// Returns the number of bytes written.
    pub(crate) fn written(&self) -> usize {
        self.written
    }
}
