// SPDX-License-Identifier: GPL-2.0

//! One object for each processor.
//!
//! C header: [`include/linux/percpu.h`](srctree/include/linux/percpu.h)

use crate::bindings;
use core::marker::PhantomData;
use core::mem::{
    needs_drop,
    size_of, //
};
use core::ptr::NonNull;
use kernel::prelude::*;

/// An object `T` for each processor that the machine can have.
///
/// `T` is shared: a task may be moved to another processor while it uses the one of this.
///
/// # Invariants
///
/// `base` is a per-CPU allocation with an initialised `T` for each possible processor.
pub struct PerCpu<T> {
    base: NonNull<c_void>,
    _objects: PhantomData<T>,
}

// SAFETY: The objects can be used and freed on any thread, as `T` can.
unsafe impl<T: Send + Sync> Send for PerCpu<T> {}
// SAFETY: Only shared references to the objects are given out.
unsafe impl<T: Send + Sync> Sync for PerCpu<T> {}

impl<T: Send + Sync> PerCpu<T> {
    /// Makes the objects. Sleeps.
    pub fn new(mut make: impl FnMut() -> T) -> Result<Self> {
        static_assert_no_drop::<T>();
        // SAFETY: Process context.
        let base = unsafe { bindings::percpu_alloc(size_of::<T>(), align_of::<T>()) };
        let base = NonNull::new(base).ok_or(ENOMEM)?;
        for cpu in possible() {
            // SAFETY: There is room for a `T` of each possible processor, aligned, and nobody else
            // knows of it yet.
            unsafe {
                bindings::percpu_of(base.as_ptr(), cpu)
                    .cast::<T>()
                    .write(make())
            };
        }
        // INVARIANT: All are written.
        Ok(Self {
            base,
            _objects: PhantomData,
        })
    }

    /// The object of the processor that this runs on at the moment.
    pub fn here(&self) -> &T {
        // SAFETY: By the type invariant; the object stays valid wherever the task goes.
        unsafe { &*bindings::percpu_here(self.base.as_ptr()).cast::<T>() }
    }

    /// The objects of all processors.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: By the type invariant.
        possible().map(|cpu| unsafe { &*bindings::percpu_of(self.base.as_ptr(), cpu).cast::<T>() })
    }
}

/// Objects are freed without being dropped.
const fn static_assert_no_drop<T>() {
    const { assert!(!needs_drop::<T>()) }
}

/// The numbers of all processors that the machine can have.
fn possible() -> impl Iterator<Item = c_uint> {
    // SAFETY: No requirements; the mask does not change.
    let next = |after: c_int| unsafe { bindings::percpu_next(after) };
    let limit = next(c_int::MAX);
    core::iter::successors(Some(next(-1)), move |cpu| Some(next(*cpu as c_int)))
        .take_while(move |cpu| *cpu < limit)
}

impl<T> Drop for PerCpu<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nobody uses the objects any more, and there is nothing in
        // them to drop.
        unsafe { bindings::percpu_free(self.base.as_ptr()) }
    }
}
