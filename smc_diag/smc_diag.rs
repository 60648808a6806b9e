// SPDX-License-Identifier: GPL-2.0

//! Reports on SMC sockets over `NETLINK_SOCK_DIAG`, for `smcss` and the like.
//!
//! A module of its own, so that it need not be loaded where nobody looks; it knows sockets by
//! [`smc_r::snapshot`] only.

#![forbid(unsafe_code)]

mod attrs;
mod request;

use kapi::diag;
use kernel::prelude::*;

use crate::request::SmcSockets;

/// `AF_SMC`, see `include/linux/socket.h`.
const AF_SMC: u8 = 43;

module! {
    type: SmcDiag,
    name: "smc_diag",
    authors: ["The smc-rs developers"],
    description: "Diagnosis of SMC sockets",
    license: "GPL v2",
    alias: ["net-pf-16-proto-4-type-43"],
}

struct SmcDiag {
    _handler: diag::Registration<SmcSockets>,
}

impl kernel::Module for SmcDiag {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _handler: diag::Registration::new()?,
        })
    }
}
