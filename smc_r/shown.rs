// SPDX-License-Identifier: GPL-2.0

//! Texts of the protocol core in the kernel's log, whose formatting has a `Display` of its own.

use kernel::fmt;

/// Shows what the core shows.
pub(crate) struct Shown<T>(pub(crate) T);

impl<T: core::fmt::Display> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}
