// SPDX-License-Identifier: GPL-2.0

//! InfiniBand verbs for kernel users, as far as reliable connections over RoCE need them.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/ib_cache.h`](srctree/include/rdma/ib_cache.h)
//!
//! Ownership goes one way: [`Connection`] (a queue pair, one more for registrations, their completion
//! queue, work request slots, mappings and memory regions) → [`Pd`] → [`Device`]. A `Device` reference keeps the
//! device *registered*: its unregistration waits until the last one is gone. So whoever holds one
//! for longer than a call must let go when [`Client::remove`] says so.
//!
//! Not supported: anything but reliable connected queue pairs, shared receive queues, reads and
//! atomics, user space, InfiniBand link layers, iWARP.

mod client;
mod connection;
mod device;
mod memory;
mod pd;
mod queue;
mod region;
mod verbs;

use crate::bindings;

pub use self::{
    client::{
        Client,
        ClientSlot,
        Event,
        Registration, //
    },
    connection::{
        Config,
        Connection,
        Handler, //
    },
    device::{
        Device,
        GidEntry,
        GidKind,
        Netdev,
        PortAttr, //
    },
    memory::Pages,
    pd::Pd,
    queue::{
        Chain,
        MappingId,
        PostError,
        Write,
        MAX_WRITES, //
    },
    region::RegionId,
    verbs::{
        LocalAddress,
        PeerAddress,
        Service, //
    },
};

/// Has a driver take back what it has made; says whether it did. What it refuses it is asked for again: nobody else
/// does, and it uses memory of ours until then. May sleep.
fn give_back(ask: impl Fn() -> core::ffi::c_int) -> bool {
    const TRIES: usize = 3;
    (0..TRIES).any(|_| ask() == 0)
}

/// Names something that a driver refuses to give back, or may, after its device: the name that it has from us goes with our
/// module, and whoever lists resources would read it afterwards.
///
/// # Safety
///
/// `resource` belongs to something that `device` has.
unsafe fn name_what_stays(resource: *mut bindings::rdma_restrack_entry, device: &Device) {
    // SAFETY: The device exists, and by the requirements of this function outlives what has the name from now on.
    unsafe { (*resource).kern_name = (&raw const (*device.as_raw()).name).cast() };
}
