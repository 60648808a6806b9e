// SPDX-License-Identifier: GPL-2.0

//! Questions to the running system.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;

/// Address family of SMC sockets.
pub const AF_SMC: i32 = 43;

/// What to do when the family is missing.
pub const NO_SMC_HINT: &str =
    "hint: load the module with `modprobe smc_r` (or `modprobe smc` for the one of the kernel)";

/// Whether an SMC socket can be created, which also loads the module if it can be loaded.
pub fn smc_available() -> io::Result<()> {
    Socket::new(Domain::from(AF_SMC), Type::STREAM, Some(Protocol::from(0))).map(drop)
}
