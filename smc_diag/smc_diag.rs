// SPDX-License-Identifier: GPL-2.0

//! Reports on SMC sockets over `NETLINK_SOCK_DIAG`, for `smcss` and the like.
//!
//! A module of its own, so that it need not be loaded where nobody looks. What it says is in
//! `smc_r`, which it borrows while it answers: `smc_r` can be unloaded at any other time. Where it
//! is not loaded, there are no sockets to list.

#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use kapi::diag;
use kernel::prelude::*;

module! {
    type: SmcDiag,
    name: "smc_diag",
    authors: ["The smc-rs developers"],
    description: "Diagnosis of SMC sockets",
    license: "GPL v2",
    alias: ["net-pf-16-proto-4-type-43"],
}

/// The handler.
struct SmcSockets;

impl diag::Handler for SmcSockets {
    /// `AF_SMC`, see `include/linux/socket.h`.
    const FAMILY: u8 = 43;

    fn module() -> &'static ThisModule {
        #[cfg(before_7_3)]
        {
            &THIS_MODULE
        }
        #[cfg(not(before_7_3))]
        kernel::module::this_module::<SmcDiag>()
    }
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
