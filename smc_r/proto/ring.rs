// SPDX-License-Identifier: GPL-2.0

//! Pieces of a ring: a run of bytes which may go around the end is at most two of them.

use crate::cursor::{
    Cursor,
    Geometry, //
};

/// Consecutive bytes of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Offset of the first byte from the start of the buffer.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// A run of bytes of a ring, in order, as at most two spans.
///
/// # Invariants
///
/// The second span is empty unless the first one ends at the end of the ring. Both lie inside the
/// ring that made them, and do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spans {
    first: Span,
    second: Span,
}

impl Spans {
    /// No bytes at all.
    pub const EMPTY: Spans = Spans {
        first: Span { offset: 0, len: 0 },
        second: Span { offset: 0, len: 0 },
    };

    /// The `n` bytes of `ring` from `at` on; not more than its capacity.
    #[inline(always)]
    pub const fn new(ring: Geometry, at: Cursor, n: u32) -> Spans {
        let n = if n < ring.capacity() {
            n
        } else {
            ring.capacity()
        };
        let room = ring.to_end(at);
        let len = if n < room { n } else { room };
        // INVARIANT: `second` is empty unless `n` exceeds what is left up to the end.
        Spans {
            first: Span {
                offset: at.offset(),
                len,
            },
            second: Span {
                offset: ring.base(),
                len: n.saturating_sub(len),
            },
        }
    }

    /// The first span; empty only if there are no bytes at all.
    pub const fn first(&self) -> Span {
        self.first
    }

    /// The second span, from the base of the ring on; mostly empty.
    pub const fn second(&self) -> Span {
        self.second
    }

    /// Bytes in both spans.
    pub const fn len(&self) -> u32 {
        self.first.len.saturating_add(self.second.len)
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.first.len == 0
    }

    /// The spans which are not empty, in order.
    pub fn iter(&self) -> impl Iterator<Item = Span> {
        [self.first, self.second].into_iter().filter(|s| s.len > 0)
    }
}
