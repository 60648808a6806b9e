// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of the system `smc`, with the names and fields of the C implementation's (`uapi`:
//! `/sys/kernel/tracing/events/smc`). While nobody traces, each costs a call and a jump.
//!
//! All functions may be called in any context.

use core::ptr::{self, NonNull};

use kernel::prelude::*;

use crate::{
    bindings,
    sock::{Sk, Socket}, //
};

/// A connection became plain TCP. `tcp` is its inner socket, named by its address.
pub fn fell_back<P: Socket, T>(
    sk: &Sk<P>,
    net: u64,
    reason: u32,
    tcp: impl FnOnce() -> Option<NonNull<T>>,
) {
    // SAFETY: Reads a static key.
    if unsafe { bindings::trace_fallback_enabled() } {
        let tcp = tcp().map_or(ptr::null(), |tcp| tcp.as_ptr().cast_const());
        // SAFETY: The addresses are recorded and not followed.
        unsafe { bindings::trace_fallback(ptr::from_ref(sk).cast(), tcp.cast(), net, reason) };
    }
}

/// A program's bytes are in the send ring. `device` carries the connection.
pub fn sent<P: Socket>(sk: &Sk<P>, net: u64, len: usize, device: impl FnOnce() -> [u8; 64]) {
    // SAFETY: Reads a static key.
    if unsafe { bindings::trace_sent_enabled() } {
        with_name(device(), |name| {
            // SAFETY: The address is recorded and not followed; `name` is a string.
            unsafe {
                bindings::trace_sent(ptr::from_ref(sk).cast(), net, len, name.as_char_ptr());
            };
        });
    }
}

/// A program has got bytes of the RMB. `device` carries the connection.
pub fn received<P: Socket>(sk: &Sk<P>, net: u64, len: usize, device: impl FnOnce() -> [u8; 64]) {
    // SAFETY: Reads a static key.
    if unsafe { bindings::trace_received_enabled() } {
        with_name(device(), |name| {
            // SAFETY: The address is recorded and not followed; `name` is a string.
            unsafe {
                bindings::trace_received(ptr::from_ref(sk).cast(), net, len, name.as_char_ptr());
            };
        });
    }
}

/// A link carries nothing any more; `state` is the one that it had (`enum smc_link_state`).
pub fn link_down<L, G>(
    link: &L,
    group: &G,
    net: u64,
    state: i32,
    device: impl FnOnce() -> [u8; 64],
) {
    // SAFETY: Reads a static key.
    if unsafe { bindings::trace_link_down_enabled() } {
        let (link, group) = (ptr::from_ref(link).cast(), ptr::from_ref(group).cast());
        with_name(device(), |name| {
            // SAFETY: The addresses are recorded and not followed; `name` is a string.
            unsafe { bindings::trace_link_down(link, group, net, state, name.as_char_ptr()) };
        });
    }
}

/// A name that is padded with zeroes, as a string.
fn with_name(mut name: [u8; 64], then: impl FnOnce(&CStr)) {
    name[63] = 0;
    if let Ok(name) = CStr::from_bytes_until_nul(&name) {
        then(name);
    }
}
