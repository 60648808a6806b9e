// SPDX-License-Identifier: GPL-2.0

//! The lock of a socket, and waiting with it.

use super::{
    Sk,
    Socket, //
};
use crate::bindings;
use core::ops::Deref;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::types::NotThreadSafe;

/// A span of time to wait for, in jiffies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Timeo(c_long);

impl Timeo {
    /// No waiting.
    pub const ZERO: Self = Self(0);
    /// Waiting without limit.
    pub const FOREVER: Self = Self(c_long::MAX);

    #[inline]
    pub(crate) fn from_jiffies(jiffies: c_long) -> Self {
        Self(jiffies.max(0))
    }

    /// Milliseconds, rounded up.
    pub fn from_ms(ms: u32) -> Self {
        let jiffies = kernel::time::msecs_to_jiffies(ms);
        Self(jiffies.try_into().unwrap_or(c_long::MAX))
    }

    /// The span in milliseconds; [`u32::MAX`] if longer than that.
    pub fn as_ms(self) -> u32 {
        // SAFETY: Arithmetic only. Not negative by construction.
        let ms = unsafe { bindings::jiffies64_to_msecs(self.0 as u64) };
        ms.try_into().unwrap_or(u32::MAX)
    }

    /// Is there no time?
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Is there no limit?
    pub fn is_forever(self) -> bool {
        self == Self::FOREVER
    }
}

/// A locked socket; unlocked when dropped.
pub struct SockLock<'a, T: Socket> {
    sk: &'a Sk<T>,
    // A lock belongs to its task.
    _not_send: NotThreadSafe,
}

impl<'a, T: Socket> SockLock<'a, T> {
    pub(super) fn new(sk: &'a Sk<T>) -> Self {
        // SAFETY: The sock exists. In a context that may not sleep, the kernel warns.
        unsafe { bindings::lock_sock(sk.as_ptr()) };
        Self {
            sk,
            _not_send: NotThreadSafe,
        }
    }

    /// The socket, for longer than the lock.
    pub fn sk(&self) -> &'a Sk<T> {
        self.sk
    }

    /// Runs `f` with the lock given up.
    pub fn unlocked<R>(&mut self, f: impl FnOnce(&Sk<T>) -> R) -> R {
        // SAFETY: The sock is locked by us.
        unsafe { bindings::release_sock(self.sk.as_ptr()) };
        let result = f(self.sk);
        // SAFETY: The sock exists and was unlocked just above.
        unsafe { bindings::lock_sock(self.sk.as_ptr()) };
        result
    }

    /// Sleeps until `cond` yields something. It is asked first, and again after each of the `wake`
    /// methods of [`Sk`], always with the lock held, which is given up while asleep.
    ///
    /// `timeo` is reduced by what was slept. `EAGAIN` if nothing is left of it; the error for an
    /// interrupted system call if a signal arrived: the kernel repeats the call if there was no
    /// limit, else `EINTR`.
    pub fn wait_until<R>(
        &mut self,
        timeo: &mut Timeo,
        cond: impl FnMut(&Sk<T>) -> Option<R>,
    ) -> Result<R> {
        struct Waiting<'s, T: Socket, R, F> {
            sk: &'s Sk<T>,
            cond: F,
            result: Option<R>,
        }

        /// # Safety
        ///
        /// `arg` points to a `Waiting` of these types, which nobody else looks at.
        unsafe extern "C" fn ask<T: Socket, R, F: FnMut(&Sk<T>) -> Option<R>>(
            arg: *mut c_void,
        ) -> bool {
            // SAFETY: By the requirements of this function.
            let waiting = unsafe { &mut *arg.cast::<Waiting<'_, T, R, F>>() };
            waiting.result = (waiting.cond)(waiting.sk);
            waiting.result.is_some()
        }

        fn asker<T: Socket, R, F: FnMut(&Sk<T>) -> Option<R>>(
            _: &Waiting<'_, T, R, F>,
        ) -> bindings::kapi_cond_fn {
            Some(ask::<T, R, F>)
        }

        let mut waiting = Waiting {
            sk: self.sk,
            cond,
            result: None,
        };
        let ask = asker(&waiting);
        // SAFETY: The sock is locked by us; `waiting` is used by `ask` only, during this call.
        let ret = unsafe {
            bindings::sk_wait(
                self.sk.as_ptr(),
                &mut timeo.0,
                ask,
                core::ptr::from_mut(&mut waiting).cast(),
            )
        };
        to_result(ret)?;
        waiting.result.ok_or(EAGAIN)
    }
}

impl<T: Socket> Deref for SockLock<'_, T> {
    type Target = Sk<T>;

    fn deref(&self) -> &Sk<T> {
        self.sk
    }
}

impl<T: Socket> Drop for SockLock<'_, T> {
    fn drop(&mut self) {
        // SAFETY: The sock is locked by us.
        unsafe { bindings::release_sock(self.sk.as_ptr()) }
    }
}
