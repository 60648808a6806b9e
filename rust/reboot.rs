// SPDX-License-Identifier: GPL-2.0

//! Being told that the machine is about to stop.
//!
//! C header: [`include/linux/reboot.h`](srctree/include/linux/reboot.h)

use crate::bindings;
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// Who is told.
pub trait Listener: Send + Sync + 'static {
    /// The machine is about to be halted, switched off, or to boot another system: with devices that still work, and
    /// programs that may still run. All others wait for the end of this call. Process context; never after
    /// [`Registration`] has been dropped.
    fn machine_stops(&self);
}

/// Registers a [`Listener`] for as long as it exists.
///
/// # Invariants
///
/// The block is registered.
pub struct Registration<L: Listener> {
    block: Pin<KBox<Block<L>>>,
}

/// The block is first, so that its address is that of the whole.
#[pin_data]
#[repr(C)]
struct Block<L: Listener> {
    #[pin]
    raw: Opaque<bindings::notifier_block>,
    listener: Arc<L>,
}

// SAFETY: A block may be taken out of the list from any thread, and nothing else is done with it.
unsafe impl<L: Listener> Send for Registration<L> {}
// SAFETY: There are no methods.
unsafe impl<L: Listener> Sync for Registration<L> {}

impl<L: Listener> Registration<L> {
    /// Has `listener` told from now on. May sleep.
    pub fn new(listener: Arc<L>) -> Result<Self> {
        let raw = bindings::notifier_block {
            notifier_call: Some(notify::<L>),
            ..pin_init::zeroed()
        };
        let block = KBox::pin_init(
            pin_init!(Block {
                raw: Opaque::new(raw),
                listener,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The block stays where it is until the drop takes it out of the list.
        to_result(unsafe { bindings::register_reboot_notifier(block.raw.get()) })?;
        // INVARIANT: Just registered.
        Ok(Self { block })
    }
}

impl<L: Listener> Drop for Registration<L> {
    fn drop(&mut self) {
        // SAFETY: Registered by the invariant. Waits for a call that is under way. It fails for what is not in the list only.
        unsafe { bindings::unregister_reboot_notifier(self.block.raw.get()) };
    }
}

/// # Safety
///
/// To be called by the kernel only, with the block of a [`Registration<L>`].
unsafe extern "C" fn notify<L: Listener>(
    block: *mut bindings::notifier_block,
    _how: c_ulong,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: The address of the block is that of a pinned `Block<L>`, which exists until the drop has waited for this call.
    let block = unsafe { &*block.cast::<Block<L>>() };
    block.listener.machine_stops();
    // NOTIFY_DONE: whoever is next in the list is told as well.
    0
}
