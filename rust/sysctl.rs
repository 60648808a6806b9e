// SPDX-License-Identifier: GPL-2.0

//! Settings of a namespace under `/proc/sys`.
//!
//! C header: [`include/linux/sysctl.h`](srctree/include/linux/sysctl.h)

use crate::bindings;
use crate::net::Net;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicPtr,
    AtomicU32,
    Ordering, //
};
use kernel::prelude::*;

/// A setting.
#[derive(Clone, Copy)]
pub struct Knob {
    /// The name of the file.
    pub name: &'static CStr,
    /// What it takes.
    pub value: Value,
}

/// What a setting takes.
#[derive(Clone, Copy)]
pub enum Value {
    /// An unsigned integer within bounds.
    Number {
        /// The value it begins with.
        default: u32,
        /// The smallest value.
        min: u32,
        /// The largest value.
        max: u32,
    },
    /// The name of something that there is none of: only the empty one is taken.
    NoName,
}

impl Knob {
    /// A setting that takes an unsigned integer from `min` to `max`.
    pub const fn number(name: &'static CStr, default: u32, min: u32, max: u32) -> Self {
        let value = Value::Number { default, min, max };
        Self { name, value }
    }

    /// A setting that takes the empty name only.
    pub const fn no_name(name: &'static CStr) -> Self {
        let value = Value::NoName;
        Self { name, value }
    }
}

/// What the kernel points to.
struct Inner<const N: usize> {
    table: [bindings::ctl_table; N],
    values: [AtomicU32; N],
    min: [u32; N],
    max: [u32; N],
}

/// The settings of a namespace.
///
/// # Invariants
///
/// `header` is null, or of a table in `inner` that is registered in a namespace which exists.
pub struct Table<const N: usize> {
    header: AtomicPtr<bindings::ctl_table_header>,
    inner: NonNull<Inner<N>>,
}

// SAFETY: Unregistering is possible on any thread.
unsafe impl<const N: usize> Send for Table<N> {}
// SAFETY: The values are atomic.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    /// Makes files in a folder below `/proc/sys`, `net/...`, for the administrator of the namespace
    /// to write. [`Table::unregister`] must be called before the namespace goes.
    pub fn new(net: &Net, path: &'static CStr, knobs: &[Knob; N]) -> Result<Self> {
        let number = |knob: &Knob| match knob.value {
            Value::Number { default, min, max } => (default, min, max),
            Value::NoName => (0, 0, 0),
        };
        let inner = KBox::new(
            Inner {
                table: core::array::from_fn(|_| pin_init::zeroed()),
                values: knobs.each_ref().map(|knob| AtomicU32::new(number(knob).0)),
                min: knobs.each_ref().map(|knob| number(knob).1),
                max: knobs.each_ref().map(|knob| number(knob).2),
            },
            GFP_KERNEL,
        )?;
        let inner = KBox::into_raw(inner);
        for (i, knob) in knobs.iter().enumerate() {
            let name = knob.name.as_char_ptr();
            // SAFETY: All in one box that stays where it is until unregistered, with `N` elements
            // of each, which the kernel reads and writes as plain integers.
            unsafe {
                let entry = (&raw mut (*inner).table)
                    .cast::<bindings::ctl_table>()
                    .add(i);
                match knob.value {
                    Value::Number { .. } => bindings::sysctl_entry(
                        entry,
                        name,
                        (&raw mut (*inner).values).cast::<u32>().add(i),
                        (&raw mut (*inner).min).cast::<u32>().add(i),
                        (&raw mut (*inner).max).cast::<u32>().add(i),
                    ),
                    Value::NoName => bindings::sysctl_no_name(entry, name),
                }
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
        if header.is_null() {
            // SAFETY: From `into_raw` above; the kernel has not kept it.
            drop(unsafe { KBox::from_raw(inner) });
            return Err(ENOMEM);
        }
        // INVARIANT: Registered just now.
        Ok(Self {
            header: AtomicPtr::new(header),
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

    /// Removes the files and waits for their users. The values stay. May sleep.
    pub fn unregister(&self) {
        let header = self.header.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !header.is_null() {
            // SAFETY: By the type invariant it is registered, and nobody else takes it away.
            unsafe { bindings::unregister_net_sysctl_table(header) };
        }
    }
}

impl<const N: usize> Drop for Table<N> {
    fn drop(&mut self) {
        self.unregister();
        // SAFETY: From `into_raw` in `new`; the kernel has forgotten it.
        drop(unsafe { KBox::from_raw(self.inner.as_ptr()) });
    }
}
