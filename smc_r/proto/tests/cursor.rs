// SPDX-License-Identifier: GPL-2.0

//! Cursor arithmetic against a plain count of bytes.

use proptest::prelude::*;
use smc_proto::{
    cdc::RawCursor,
    cursor::{
        CursorError,
        Geometry,
        Position,
        Step, //
    },
    ring::Spans, //
};

/// The cursor that a count of bytes stands for.
fn model(ring: Geometry, total: u64) -> RawCursor {
    let capacity = u64::from(ring.capacity());
    RawCursor {
        wrap: (total / capacity) as u16,
        count: ring.base() + (total % capacity) as u32,
    }
}

/// A position reached in two leaps, so that any wrap count is quickly there.
fn position(ring: Geometry, total: u64) -> Position {
    let capacity = u64::from(ring.capacity());
    let mut p = Position::start(ring);
    for _ in 0..(total / capacity) {
        p = p.advance(ring, ring.capacity());
    }
    p.advance(ring, (total % capacity) as u32)
}

fn geometry() -> impl Strategy<Value = Geometry> {
    let size = prop_oneof![5u32..40, Just(4096), Just(65536), Just(u32::MAX), 5u32..];
    (size, prop_oneof![Just(0u32), Just(4)])
        .prop_map(|(size, base)| Geometry::new(size, base).unwrap())
}

/// Counts around the places where wraps of 16 bits go over.
fn wraps() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4, 65530u64..65542]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn advance_is_addition(ring in geometry(), wraps in wraps(), part: u32, n: u32) {
        let capacity = u64::from(ring.capacity());
        let total = wraps * capacity + u64::from(part) % capacity;
        let n = (u64::from(n) % (capacity + 1)) as u32;
        let p = position(ring, total);
        prop_assert_eq!(p.total, total);
        prop_assert_eq!(p.cursor.raw(), model(ring, total));
        let q = p.advance(ring, n);
        prop_assert_eq!(q.total, total + u64::from(n));
        prop_assert_eq!(q.cursor.raw(), model(ring, q.total));
        prop_assert_eq!(ring.distance(p.cursor, q.cursor), Some(n));
        prop_assert_eq!(ring.check(p.cursor, q.cursor.raw()), Ok(Step::Forward(n)));
        prop_assert_eq!(q.since(p), n);
        prop_assert_eq!(p.since(q), 0);
        if n > 0 {
            prop_assert_eq!(ring.check(q.cursor, p.cursor.raw()), Ok(Step::Backward));
        }
        prop_assert_eq!(u64::from(ring.to_end(p.cursor)), capacity - total % capacity);
    }

    #[test]
    fn check_agrees_with_the_count(ring in geometry(), at in wraps(), part: u32, leap in -5i64..6, count: u32) {
        let capacity = u64::from(ring.capacity());
        let total = (at + 5) * capacity + u64::from(part) % capacity;
        let known = position(ring, total).cursor;
        let wrap = model(ring, total).wrap.wrapping_add(leap as u16);
        let got = ring.check(known, RawCursor { wrap, count });
        if count < ring.base() {
            prop_assert_eq!(got, Err(CursorError::BelowBase));
        } else if count >= ring.size() {
            prop_assert_eq!(got, Err(CursorError::BeyondEnd));
        } else {
            let there = (total as i64 / capacity as i64 + leap) * capacity as i64
                + i64::from(count - ring.base());
            let step = there - total as i64;
            let expected = if step < 0 {
                Ok(Step::Backward)
            } else if step <= capacity as i64 {
                Ok(Step::Forward(step as u32))
            } else {
                Err(CursorError::TooFar)
            };
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn check_takes_anything(ring in geometry(), at in wraps(), wrap: u16, count: u32) {
        let known = position(ring, at).cursor;
        if let Ok(Step::Forward(n)) = ring.check(known, RawCursor { wrap, count }) {
            prop_assert!(n <= ring.capacity());
            let next = ring.advance(known, n);
            prop_assert_eq!(next.raw(), RawCursor { wrap, count });
        }
    }

    #[test]
    fn spans_are_the_bytes_of_the_ring(size in 5u32..60, base in 0u32..5, total in 0u64..300, n in 0u32..80) {
        let ring = Geometry::new(size, base).unwrap();
        let at = position(ring, total);
        let spans = Spans::new(ring, at.cursor, n);
        let n = n.min(ring.capacity());
        prop_assert_eq!(spans.len(), n);
        prop_assert_eq!(spans.is_empty(), n == 0);
        let listed: Vec<u32> = spans.iter().flat_map(|s| s.offset..s.offset + s.len).collect();
        let expected: Vec<u32> =
            (0..u64::from(n)).map(|k| model(ring, total + k).count).collect();
        prop_assert_eq!(listed, expected);
        prop_assert_eq!(spans.first().len + spans.second().len, n);
    }

    #[test]
    fn a_leap_too_far_stays_inside(ring in geometry(), part: u32, n: u32) {
        // Not allowed, but it must not lead out of the ring.
        let at = ring.advance(ring.start(), part % ring.capacity());
        let there = ring.advance(at, n);
        prop_assert!(there.offset() >= ring.base() && there.offset() < ring.size());
    }
}

#[test]
fn full_and_empty() {
    for base in [0, 4] {
        let ring = Geometry::new(16, base).unwrap();
        let at = ring.advance(ring.start(), 5);
        let full = ring.advance(at, ring.capacity());
        assert_eq!(full.offset(), at.offset());
        assert_eq!(full.wrap(), at.wrap() + 1);
        assert_eq!(ring.distance(at, full), Some(ring.capacity()));
        assert_eq!(ring.distance(at, at), Some(0));
        assert_eq!(ring.distance(full, at), None);
    }
}

#[test]
fn no_ring_without_room() {
    assert_eq!(Geometry::new(0, 0), None);
    assert_eq!(Geometry::new(4, 4), None);
    assert_eq!(Geometry::new(5, 4).map(Geometry::capacity), Some(1));
}

#[test]
fn wrap_counter_goes_over() {
    let ring = Geometry::new(16, 4).unwrap();
    let mut p = Position::start(ring);
    for _ in 0..65536 {
        p = p.advance(ring, 12);
    }
    assert_eq!(p.cursor, ring.start());
    assert_eq!(p.total, 65536 * 12);
}
