// SPDX-License-Identifier: GPL-2.0

//! References that can be kept as a plain pointer.

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use kernel::sync::aref::{
    ARef,
    AlwaysRefCounted, //
};
use kernel::sync::Arc;

/// An owned, cloneable reference to a shared object: [`Arc`] or [`ARef`].
///
/// # Safety
///
/// `into_raw` gives up the reference without dropping it and returns a pointer to the object;
/// `from_raw` takes it back.
pub unsafe trait Handle: Clone + Send + Sync + 'static {
    /// What the reference points to.
    type Target: 'static;

    /// Turns the reference into a pointer to its object, without dropping the reference.
    fn into_raw(self) -> NonNull<Self::Target>;

    /// Takes back what [`Handle::into_raw`] has given up.
    ///
    /// # Safety
    ///
    /// `ptr` comes from `into_raw` of the same type, whose reference has not been taken back yet.
    unsafe fn from_raw(ptr: NonNull<Self::Target>) -> Self;
}

// SAFETY: `Arc::into_raw` and `Arc::from_raw` do as the trait demands.
unsafe impl<T: Send + Sync + 'static> Handle for Arc<T> {
    type Target = T;

    fn into_raw(self) -> NonNull<T> {
        // SAFETY: A pointer to an object in an `Arc` is not null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self).cast_mut()) }
    }

    unsafe fn from_raw(ptr: NonNull<T>) -> Self {
        // SAFETY: By the requirements of the function, `ptr` comes from `Arc::into_raw`.
        unsafe { Arc::from_raw(ptr.as_ptr()) }
    }
}

// SAFETY: `ARef::into_raw` and `ARef::from_raw` do as the trait demands.
unsafe impl<T: AlwaysRefCounted + Send + Sync + 'static> Handle for ARef<T> {
    type Target = T;

    fn into_raw(self) -> NonNull<T> {
        ARef::into_raw(self)
    }

    unsafe fn from_raw(ptr: NonNull<T>) -> Self {
        // SAFETY: By the requirements of the function, `ptr` owns a reference.
        unsafe { ARef::from_raw(ptr) }
    }
}

/// Borrows the handle whose reference `ptr` stands for.
///
/// # Safety
///
/// `ptr` comes from [`Handle::into_raw`] of `P`, and its reference is not taken back while the
/// result is in use.
pub(crate) unsafe fn borrow<P: Handle>(ptr: NonNull<c_void>) -> ManuallyDrop<P> {
    // SAFETY: As the reference is never dropped by the result, it counts as taken back only while
    // the result is in use.
    ManuallyDrop::new(unsafe { P::from_raw(ptr.cast()) })
}
