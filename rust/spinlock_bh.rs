// SPDX-License-Identifier: GPL-2.0

//! A spin lock that keeps softirqs out: for data shared with them.

use crate::bindings;
use kernel::prelude::*;
use kernel::sync::lock::{
    Backend,
    Guard,
    Lock, //
};

/// The backend of [`SpinLockBh`].
pub struct SpinLockBhBackend;

/// A spin lock which is taken with softirqs disabled on this CPU.
///
/// Everything that process context and softirqs share goes under such a lock. It must not be taken
/// with interrupts disabled. See [`new_spinlock_bh!`](crate::new_spinlock_bh).
pub type SpinLockBh<T> = Lock<T, SpinLockBhBackend>;

/// The guard of a [`SpinLockBh`].
pub type SpinLockBhGuard<'a, T> = Guard<'a, T, SpinLockBhBackend>;

/// Creates an initialiser of a [`SpinLockBh`] with a lock class of its own, which bears a name.
#[macro_export]
macro_rules! new_spinlock_bh {
    ($inner:expr, $name:literal $(,)?) => {
        $crate::spinlock_bh::SpinLockBh::new(
            $inner,
            ::kernel::optional_name!($name),
            ::kernel::static_lock_class!(),
        )
    };
}

// SAFETY: The kernel's `spinlock_t` gives exclusive access, and unlocking is done by the holder
// since guards are not `Send`.
unsafe impl Backend for SpinLockBhBackend {
    type State = kernel::bindings::spinlock_t;
    type GuardState = ();

    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut kernel::bindings::lock_class_key,
    ) {
        // SAFETY: `ptr` is valid for writes, `name` and `key` for ever, by the requirements here.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: `ptr` is an initialised lock by the requirements of this function.
        unsafe { bindings::spin_lock_bh(ptr) }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &Self::GuardState) {
        // SAFETY: The caller holds the lock by the requirements of this function.
        unsafe { bindings::spin_unlock_bh(ptr) }
    }

    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: `ptr` is an initialised lock by the requirements of this function.
        let taken = unsafe { bindings::spin_trylock_bh(ptr) };
        (taken != 0).then_some(())
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: `ptr` is an initialised lock by the requirements of this function.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}
