// SPDX-License-Identifier: GPL-2.0

//! The clock of the protocol core's timers: milliseconds since boot.

use kapi::util::now_ms;
use smc_proto::timer::Time;

/// The time now.
pub(crate) fn now() -> Time {
    Time::from_millis(now_ms())
}

/// Milliseconds from now until `deadline`, as work items take them; 0 if it has passed.
pub(crate) fn ms_until(deadline: Time) -> u32 {
    u32::try_from(deadline.since(now())).unwrap_or(u32::MAX)
}
