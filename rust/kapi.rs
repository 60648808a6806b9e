// SPDX-License-Identifier: GPL-2.0

//! Safe wrappers for kernel interfaces which the `kernel` crate does not cover: socket families,
//! in-kernel TCP sockets, verbs, netlink, namespaces, work queues.
//!
//! All `unsafe` of the modules is here. Nothing in this crate knows what is built on it.

#![deny(
    unsafe_op_in_unsafe_fn,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod bindings;

pub mod completion;
pub mod diag;
pub mod errno;
pub mod gate;
pub mod genl;
pub mod grow;
pub mod handle;
pub mod ib;
pub mod memory;
pub mod net;
pub mod netdev;
pub mod netlink;
pub mod percpu;
pub mod pernet;
pub mod reboot;
pub mod sock;
pub mod spinlock_bh;
pub mod sysctl;
pub mod tcp;
pub mod tcp_option;
pub mod trace;
pub mod util;
pub mod workqueue;
