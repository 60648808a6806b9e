// SPDX-License-Identifier: GPL-2.0

//! A way in for many at a time, which is closed once, and for good.
//!
//! C header: [`include/linux/rwsem.h`](srctree/include/linux/rwsem.h)

use core::sync::atomic::{AtomicBool, Ordering};

use kernel::{
    prelude::*,
    sync::LockClassKey,
    types::{NotThreadSafe, Opaque},
};

use crate::bindings;

/// Open until it is closed; and who closes it waits until nobody is inside any more. See [`new_gate!`](crate::new_gate).
#[pin_data]
pub struct Gate {
    /// Readers are those inside.
    #[pin]
    inside: Opaque<bindings::rw_semaphore>,
    /// Changed by a writer.
    open: AtomicBool,
}

// SAFETY: A semaphore is for any task.
unsafe impl Send for Gate {}
// SAFETY: It has a lock of its own.
unsafe impl Sync for Gate {}

/// Somebody is inside. Stays with its task.
pub struct Inside<'a>(&'a Gate, NotThreadSafe);

impl Gate {
    /// Creates an open one; see [`new_gate!`](crate::new_gate).
    pub fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        pin_init!(Self {
            inside <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes and pinned; name and key live for ever.
                unsafe { bindings::__init_rwsem(slot, name.as_char_ptr(), key.as_ptr()) }
            }),
            open: AtomicBool::new(true),
        })
    }

    /// Goes in, unless it is closed. Sleeps while it is being closed.
    pub fn enter(&self) -> Option<Inside<'_>> {
        // SAFETY: Initialised by `new`.
        unsafe { bindings::down_read(self.inside.get()) };
        let inside = Inside(self, NotThreadSafe);
        self.open.load(Ordering::Relaxed).then_some(inside)
    }

    /// Closes it, and waits until nobody is inside; false if it was closed. Not from inside.
    pub fn close(&self) -> bool {
        // SAFETY: Initialised by `new`; released below.
        unsafe { bindings::down_write(self.inside.get()) };
        let was_open = self.open.swap(false, Ordering::Relaxed);
        // SAFETY: Taken above.
        unsafe { bindings::up_write(self.inside.get()) };
        was_open
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // SAFETY: Taken by `enter`, on this task.
        unsafe { bindings::up_read(self.0.inside.get()) }
    }
}

/// Creates an initialiser of a [`gate::Gate`](crate::gate::Gate) with a lock class of its own, which bears a name.
#[macro_export]
macro_rules! new_gate {
    ($name:literal) => {
        $crate::gate::Gate::new(
            ::kernel::optional_name!($name),
            ::kernel::static_lock_class!(),
        )
    };
}
