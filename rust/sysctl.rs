// SPDX-License-Identifier: GPL-2.0

//! Settings of a namespace under `/proc/sys`.
//!
//! C header: [`include/linux/sysctl.h`](srctree/include/linux/sysctl.h)

use crate::bindings;
use crate::net::Net;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::prelude::*;

/// A setting: an unsigned integer within bounds.
#[derive(Clone, Copy)]
pub struct Knob {
    /// The name of the file.
    pub name: &'static CStr,
    /// The value it begins with.
    pub default: u32,
    /// The smallest value.
    pub min: u32,
    /// The largest value.
    pub max: u32,
}

/// What the kernel points to.
struct Inner<const N: usize> {
    table: [bindings::ctl_table; N],
    values: [AtomicU32; N],
    min: [u32; N],
    max: [u32; N],
}

/// The settings of a namespace. Dropping it removes the files and waits for their users.
pub struct Table<const N: usize> {
    header: NonNull<bindings::ctl_table_header>,
    inner: NonNull<Inner<N>>,
}

// SAFETY: Unregistering is possible on any thread.
unsafe impl<const N: usize> Send for Table<N> {}
// SAFETY: The values are atomic.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    /// Makes files in a folder below `/proc/sys`, `net/...`, for the administrator of the namespace
    /// to write.
    pub fn new(net: &Net, path: &'static CStr, knobs: [Knob; N]) -> Result<Self> {
        let inner = KBox::new(
            Inner {
                table: core::array::from_fn(|_| pin_init::zeroed()),
                values: knobs.map(|knob| AtomicU32::new(knob.default)),
                min: knobs.map(|knob| knob.min),
                max: knobs.map(|knob| knob.max),
            },
            GFP_KERNEL,
        )?;
        let inner = KBox::into_raw(inner);
        for (i, knob) in knobs.iter().enumerate() {
            // SAFETY: All in one box that stays where it is until unregistered, with `N` elements
            // of each, which the kernel reads and writes as plain integers.
            unsafe {
                bindings::sysctl_entry(
                    (&raw mut (*inner).table)
                        .cast::<bindings::ctl_table>()
                        .add(i),
                    knob.name.as_char_ptr(),
                    (&raw mut (*inner).values).cast::<u32>().add(i),
                    (&raw mut (*inner).min).cast::<u32>().add(i),
                    (&raw mut (*inner).max).cast::<u32>().add(i),
                )
            };
        }
        // SAFETY: The namespace exists; the table stays where it is until unregistered.
        let header = unsafe {
            bindings::register_net_sysctl_sz(
                net.as_ptr().cast(),
                path.as_char_ptr(),
                (&raw mut (*inner).table).cast(),
                N,
            )
        };
        let Some(header) = NonNull::new(header) else {
            // SAFETY: From `into_raw` above; the kernel has not kept it.
            drop(unsafe { KBox::from_raw(inner) });
            return Err(ENOMEM);
        };
        Ok(Self {
            header,
            // SAFETY: Not null, as it comes from a box.
            inner: unsafe { NonNull::new_unchecked(inner) },
        })
    }

    fn value(&self, i: usize) -> Option<&AtomicU32> {
        // SAFETY: The box is ours until dropped; the values are used atomically.
        let values = unsafe { &(*self.inner.as_ptr()).values };
        values.get(i)
    }

    /// The value of the setting of that number; zero if there is none.
    pub fn get(&self, i: usize) -> u32 {
        self.value(i).map_or(0, |v| v.load(Ordering::Relaxed))
    }

    /// Sets a value; the caller keeps the bounds.
    pub fn set(&self, i: usize, value: u32) {
        if let Some(v) = self.value(i) {
            v.store(value, Ordering::Relaxed);
        }
    }
}

impl<const N: usize> Drop for Table<N> {
    fn drop(&mut self) {
        // SAFETY: Registered in `new`.
        unsafe { bindings::unregister_net_sysctl_table(self.header.as_ptr()) };
        // SAFETY: From `into_raw` in `new`; the kernel has forgotten it.
        drop(unsafe { KBox::from_raw(self.inner.as_ptr()) });
    }
}
