// SPDX-License-Identifier: GPL-2.0

//! The switch that makes TCP sockets of a network namespace SMC sockets.
//!
//! The kernel asks `update_socket_protocol()` which protocol a socket shall have that a program makes with
//! `socket()`, and lets BPF programs answer in its stead. Ours (see [`program`]) answers with SMC for TCP
//! sockets, if the namespace of the caller is in a map. Map and program stay when the tool ends, since they
//! have names in the file system of BPF.
//!
//! - [`switch`]: on, off, and how it stands;
//! - [`program`]: the instructions;
//! - [`layout`]: what they have to know about the kernel that runs, from its type information;
//! - [`syscall`]: bpf(2), the only part with unsafe code.

pub mod layout;
pub mod program;
pub mod switch;
pub mod syscall;

pub use switch::{Error, State, Switch};
pub use syscall::this_namespace;
