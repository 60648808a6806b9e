// SPDX-License-Identifier: GPL-2.0

//! Small things which need no module of their own: randomness, time, the current context.

use crate::bindings;

/// Fills `buf` with random bytes.
pub fn random_bytes(buf: &mut [u8]) {
    // SAFETY: `buf` is valid for writes of its length.
    unsafe { bindings::random_bytes(buf.as_mut_ptr().cast(), buf.len()) }
}

/// Milliseconds of the monotonic clock.
#[inline]
pub fn now_ms() -> u64 {
    // SAFETY: May be called from anywhere.
    unsafe { bindings::now_ms() }
}

/// Nanoseconds of the clock of the day.
pub fn now_real_ns() -> i64 {
    // SAFETY: May be called from anywhere.
    unsafe { bindings::now_real_ns() }
}

/// Writes the name of the host, as the current task sees it, to the start of `buf`. Returns its
/// length. Process context.
pub fn host_name(buf: &mut [u8]) -> usize {
    // SAFETY: `buf` is valid for writes of its length.
    unsafe { bindings::host_name(buf.as_mut_ptr().cast(), buf.len()) }
}

/// May the current context sleep?
///
/// Says no as well where the kernel cannot tell (no preemption counting).
pub fn may_sleep() -> bool {
    // SAFETY: Looks at counters of the current context only.
    unsafe { bindings::may_sleep() }
}

/// Is a signal pending for the current task?
pub fn signal_pending() -> bool {
    // SAFETY: Looks at the current task only.
    unsafe { bindings::signal_pending_current() }
}

/// Sends the current task the signal that goes with `EPIPE`.
pub fn send_sigpipe() {
    // SAFETY: Concerns the current task only.
    unsafe { bindings::send_sigpipe_current() }
}

/// Is the current task going away, with its files being closed for it?
pub fn task_exiting() -> bool {
    // SAFETY: Looks at the current task only.
    unsafe { bindings::current_exiting() }
}

/// Waits until every reader under RCU and every softirq of now has ended. Sleeps.
pub fn wait_for_readers() {
    // SAFETY: No requirements but a context that may sleep; in another one the kernel warns.
    unsafe { bindings::wait_rcu() }
}

/// As [`wait_for_readers`], and until every task that was preempted, wherever that was, has gone on and given up its
/// processor by itself: what nobody could call any more by then, nobody executes afterwards. Sleeps, for a tenth of a second
/// or more. (Kernels without `CONFIG_TASKS_RCU` do not look at preempted tasks; those of Debian do.)
pub fn wait_for_preempted() {
    // SAFETY: As above.
    unsafe { bindings::wait_rcu_tasks() }
}

/// Reports, once, that something was used in a way it is not made for.
#[cold]
pub(crate) fn warn_misuse() {
    // SAFETY: May be called from anywhere.
    unsafe { bindings::warn_misuse() }
}

/// Spins until `cond` holds, for `us` microseconds at most. Ends earlier if the processor is wanted
/// by somebody else, or a signal is pending. Process context, nothing locked.
pub fn spin_until(us: u32, mut cond: impl FnMut() -> bool) {
    // SAFETY: May be called from anywhere.
    let until = unsafe { bindings::now_ns() }.saturating_add(u64::from(us).saturating_mul(1000));
    // SAFETY: Process context, as the caller is.
    while !cond() && unsafe { bindings::spin_once(until) } {}
}
