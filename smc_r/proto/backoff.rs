// SPDX-License-Identifier: GPL-2.0

//! How long something that failed is left alone: longer each time, up to a limit.

use crate::timer::{Millis, Time};

/// The failures of something, and until when it is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// How often it failed, with what failed while it was left alone counted as one.
    failures: u32,
    /// When it failed last.
    last: Time,
    /// How long it is left alone from then on.
    span: Millis,
    until: Time,
}

impl Backoff {
    /// The longest span that doubling leads to. Who begins with a longer one stays with that.
    pub const CEILING: Millis = 3_600_000;

    /// The first failure.
    pub const fn first(base: Millis, now: Time) -> Self {
        Self {
            failures: 1,
            last: now,
            span: base,
            until: now.after(base),
        }
    }

    /// Another failure. One of something that was begun before the last failure was known says
    /// nothing new. After a try that was possible and failed, the next one has to wait for twice as
    /// long; if all was well for longer than the [ceiling](Self::CEILING), counting begins anew.
    #[must_use]
    pub fn again(self, base: Millis, now: Time) -> Self {
        if self.is_on(now) {
            return self;
        }
        if self.is_stale(now) {
            return Self::first(base, now);
        }
        let doubled = self.span.saturating_mul(2).min(Self::CEILING);
        // The base may have been changed meanwhile.
        let span = doubled.max(base);
        Self {
            failures: self.failures.saturating_add(1),
            last: now,
            span,
            until: now.after(span),
        }
    }

    /// Whether it is left alone now.
    pub fn is_on(self, now: Time) -> bool {
        now < self.until
    }

    /// For how many milliseconds it is still left alone.
    pub const fn left(self, now: Time) -> u64 {
        self.until.since(now)
    }

    /// For how many milliseconds it was not seen to fail.
    pub const fn age(self, now: Time) -> u64 {
        now.since(self.last)
    }

    /// How often it failed.
    pub const fn failures(self) -> u32 {
        self.failures
    }

    /// Whether it is so long ago that it means nothing any more.
    pub fn is_stale(self, now: Time) -> bool {
        now >= self.until.after(Self::CEILING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Millis = 30_000;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn doubles_up_to_the_ceiling() {
        let mut now = at(1_000);
        let mut backoff = Backoff::first(BASE, now);
        let mut spans = std::vec![backoff.left(now)];
        for _ in 0..9 {
            now = now.after(Millis::try_from(backoff.left(now)).unwrap());
            assert!(!backoff.is_on(now));
            backoff = backoff.again(BASE, now);
            spans.push(backoff.left(now));
        }
        let seconds: std::vec::Vec<_> = spans.iter().map(|ms| ms / 1000).collect();
        assert_eq!(
            seconds,
            [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
        );
        assert_eq!(backoff.failures(), 10);
    }

    #[test]
    fn what_fails_meanwhile_is_the_same_failure() {
        let backoff = Backoff::first(BASE, at(0));
        assert_eq!(backoff.again(BASE, at(29_999)), backoff);
        assert!(backoff.is_on(at(29_999)) && !backoff.is_on(at(30_000)));
        assert_eq!(backoff.again(BASE, at(30_000)).left(at(30_000)), 60_000);
    }

    #[test]
    fn long_ago_is_forgotten() {
        let backoff = Backoff::first(BASE, at(0)).again(BASE, at(30_000));
        let end = 90_000 + u64::from(Backoff::CEILING);
        assert!(!backoff.is_stale(at(end - 1)) && backoff.is_stale(at(end)));
        assert_eq!(backoff.again(BASE, at(end - 1)).failures(), 3);
        assert_eq!(backoff.again(BASE, at(end)), Backoff::first(BASE, at(end)));
    }

    #[test]
    fn a_base_above_the_ceiling_stays() {
        let base = 2 * Backoff::CEILING;
        let backoff = Backoff::first(base, at(0));
        let now = at(u64::from(base));
        assert_eq!(backoff.again(base, now).left(now), u64::from(base));
        // Nor does a longer one that was set meanwhile get lost.
        let short = Backoff::first(1, at(0)).again(BASE, at(1));
        assert_eq!(short.left(at(1)), u64::from(BASE));
    }

    #[test]
    fn the_end_of_time_is_no_trap() {
        let end = at(u64::MAX);
        let backoff = Backoff::first(Millis::MAX, end).again(Millis::MAX, end);
        assert!(!backoff.is_on(end) && backoff.is_stale(end));
        assert_eq!((backoff.left(end), backoff.age(end)), (0, 0));
    }
}
