// SPDX-License-Identifier: GPL-2.0

//! Cursors: places in an RMB element, counted with wraps (RFC 7609, 4.1 and appendix A.4).
//!
//! A cursor names the next byte to write or read of a ring. On the wire it is a pair of a 16-bit
//! wrap counter and an offset from the start of the element. The offset runs from the *base* of
//! the element to its end; then it returns to the base and the wrap counter goes up by one. The
//! base is 0 where both peers do without an eye catcher, else 4.
//!
//! Inside, a [`Position`] carries besides the cursor the number of bytes of the stream so far, so
//! that amounts are plain differences.

use core::fmt;

use crate::cdc::RawCursor;

/// A cursor that is inside the ring it belongs to.
///
/// # Invariants
///
/// `base <= count < size` of the [`Geometry`] which made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    wrap: u16,
    count: u32,
}

impl Cursor {
    /// Number of times the cursor wrapped, modulo 65536.
    pub const fn wrap(self) -> u16 {
        self.wrap
    }

    /// Offset of the next byte from the start of the element.
    pub const fn offset(self) -> u32 {
        self.count
    }

    /// The cursor as it is sent.
    pub const fn raw(self) -> RawCursor {
        RawCursor {
            wrap: self.wrap,
            count: self.count,
        }
    }
}

/// Why a cursor of the peer was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorError {
    /// The offset lies in front of the base of the ring.
    BelowBase,
    /// The offset lies at or beyond the end of the ring.
    BeyondEnd,
    /// The cursor advanced by more than the ring holds.
    TooFar,
}

impl fmt::Display for CursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CursorError::BelowBase => "cursor below the base of the element",
            CursorError::BeyondEnd => "cursor beyond the end of the element",
            CursorError::TooFar => "cursor advanced by more than the element holds",
        })
    }
}

/// How a checked cursor of the peer stands to the one known before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It advanced by this number of bytes, at most the capacity of the ring; 0 if equal.
    Forward(u32),
    /// It went back, as happens after the peer moved to another link. It is to be ignored.
    Backward,
}

/// Size and base of a ring.
///
/// # Invariants
///
/// `base < size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    size: u32,
    base: u32,
}

impl Geometry {
    /// A ring of `size` bytes of which the first `base` are never used for data.
    ///
    /// `None` if no byte would be left.
    pub const fn new(size: u32, base: u32) -> Option<Geometry> {
        if base < size {
            // INVARIANT: Just compared.
            Some(Geometry { size, base })
        } else {
            None
        }
    }

    /// Size in bytes, with the part below the base.
    pub const fn size(self) -> u32 {
        self.size
    }

    /// Offset of the first byte used for data.
    pub const fn base(self) -> u32 {
        self.base
    }

    /// Bytes of data that fit in.
    pub const fn capacity(self) -> u32 {
        self.size.saturating_sub(self.base)
    }

    /// The cursor of an unused ring.
    pub const fn start(self) -> Cursor {
        // INVARIANT: `base < size`.
        Cursor {
            wrap: 0,
            count: self.base,
        }
    }

    /// Bytes from the cursor to the end of the ring, at least 1.
    #[inline(always)]
    pub const fn to_end(self, at: Cursor) -> u32 {
        self.size.saturating_sub(at.count)
    }

    /// The cursor `n` bytes further. `n` must not exceed the capacity.
    #[inline(always)]
    pub const fn advance(self, at: Cursor, n: u32) -> Cursor {
        let room = self.to_end(at);
        if n < room {
            // INVARIANT: `count + n < count + (size - count)`.
            return Cursor {
                wrap: at.wrap,
                count: at.count.saturating_add(n),
            };
        }
        let over = n.saturating_sub(room);
        let count = self.base.saturating_add(over);
        // INVARIANT: With `n` at most the capacity `over` is below it, since `room` is at least 1.
        // A larger `n` would break the caller's duty; the cursor stays inside nevertheless.
        Cursor {
            wrap: at.wrap.wrapping_add(1),
            count: if count < self.size { count } else { self.base },
        }
    }

    /// Bytes from `old` to `new`, for two cursors of which `new` is not behind and at most one
    /// capacity ahead. `None` if they do not stand so.
    pub const fn distance(self, old: Cursor, new: Cursor) -> Option<u32> {
        match new.wrap.wrapping_sub(old.wrap) {
            0 => new.count.checked_sub(old.count),
            1 => {
                let tail = self.size.saturating_sub(old.count);
                let head = new.count.saturating_sub(self.base);
                match tail.checked_add(head) {
                    Some(sum) if sum <= self.capacity() => Some(sum),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Checks a cursor of the peer (`raw`) against the last one known (`known`).
    ///
    /// # Errors
    ///
    /// The offset is outside of the ring, or the step is larger than the ring.
    pub const fn check(self, known: Cursor, raw: RawCursor) -> Result<Step, CursorError> {
        if raw.count < self.base {
            return Err(CursorError::BelowBase);
        }
        if raw.count >= self.size {
            return Err(CursorError::BeyondEnd);
        }
        // INVARIANT: Just compared.
        let new = Cursor {
            wrap: raw.wrap,
            count: raw.count,
        };
        if let Some(n) = self.distance(known, new) {
            return Ok(Step::Forward(n));
        }
        let wraps = raw.wrap.wrapping_sub(known.wrap);
        if wraps == 0 || wraps >= 0x8000 {
            Ok(Step::Backward)
        } else {
            Err(CursorError::TooFar)
        }
    }
}

/// A place in a stream of bytes, with the place in the ring which that byte has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Bytes of the stream in front of this place.
    pub total: u64,
    /// Where the next byte lies in the ring.
    pub cursor: Cursor,
}

impl Position {
    /// A place in no ring, for where there is none yet.
    pub(crate) const ZERO: Position = Position {
        total: 0,
        // INVARIANT: Below the size of any ring that has base 0.
        cursor: Cursor { wrap: 0, count: 0 },
    };

    /// The start of a stream in an unused ring.
    pub const fn start(ring: Geometry) -> Position {
        Position {
            total: 0,
            cursor: ring.start(),
        }
    }

    /// The place `n` bytes further. `n` must not exceed the capacity of the ring.
    #[inline(always)]
    pub const fn advance(self, ring: Geometry, n: u32) -> Position {
        Position {
            total: self.total.wrapping_add(n as u64),
            cursor: ring.advance(self.cursor, n),
        }
    }

    /// Bytes from `earlier` up to here; 0 if `earlier` is not earlier. The two must be at most
    /// 4 GiB apart, which all places of one ring are.
    #[inline(always)]
    pub const fn since(self, earlier: Position) -> u32 {
        amount(earlier.total, self.total)
    }
}

/// Bytes from `earlier` to `later` of one stream; 0 if they stand the other way round.
#[inline(always)]
pub(crate) const fn amount(earlier: u64, later: u64) -> u32 {
    let n = later.saturating_sub(earlier);
    if n > u32::MAX as u64 {
        u32::MAX
    } else {
        n as u32
    }
}
