// SPDX-License-Identifier: GPL-2.0

//! Something that happens once, for those who wait for it.

use kernel::{prelude::*, time::msecs_to_jiffies, types::Opaque};

use crate::bindings;

/// As that of the `kernel` crate, with a limit to waiting.
#[pin_data]
pub struct Completion {
    #[pin]
    raw: Opaque<bindings::completion>,
}

// SAFETY: A completion is for any task.
unsafe impl Send for Completion {}
// SAFETY: It has a lock of its own.
unsafe impl Sync for Completion {}

impl Completion {
    /// Creates one that has not happened.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            raw <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes and pinned.
                unsafe { bindings::init_completion(slot) }
            }),
        })
    }

    /// It has happened: nobody waits any more. Any context.
    pub fn complete(&self) {
        // SAFETY: Initialised by `new`.
        unsafe { bindings::complete_all(self.raw.get()) }
    }

    /// Waits for it, `ms` milliseconds at most, whatever signals there are; false if it has not happened. Sleeps, but for
    /// 0 ms.
    pub fn wait(&self, ms: u32) -> bool {
        if ms == 0 {
            // SAFETY: As above.
            return unsafe { bindings::completion_done(self.raw.get()) };
        }
        let jiffies = msecs_to_jiffies(ms);
        // SAFETY: As above; it cannot go while it is borrowed.
        unsafe { bindings::wait_for_completion_timeout(self.raw.get(), jiffies) != 0 }
    }
}
