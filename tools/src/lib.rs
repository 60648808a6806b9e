// SPDX-License-Identifier: GPL-2.0

//! What the command line tools share.
//!
//! - [`run`]: starts programs with the preload library;
//! - [`ctl`]: the commands of smcctl and their output;
//! - [`compat`]: smc_pnet, smcss and smcr, which are views of the same;
//! - [`model`]: what the kernel reports, decoded from netlink;
//! - [`netlink`], [`attr`]: requests, framing and attributes;
//! - [`uapi`], [`sys`]: the kernel's numbers, and questions to the running system.

#![forbid(unsafe_code)]

pub mod attr;
pub mod compat;
pub mod ctl;
pub mod model;
pub mod netlink;
pub mod run;
pub mod sys;
pub mod uapi;
