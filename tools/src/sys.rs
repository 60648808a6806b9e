// SPDX-License-Identifier: GPL-2.0

//! Questions to the running system.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::path::Path;

/// Address family of SMC sockets.
pub const AF_SMC: i32 = 43;

/// No such file, entry or family.
pub const ENOENT: i32 = 2;
/// Not permitted.
pub const EPERM: i32 = 1;
/// Permission denied.
pub const EACCES: i32 = 13;
/// Not supported: a family without the command.
pub const EOPNOTSUPP: i32 = 95;

/// What to do when the family is missing.
pub const NO_SMC_HINT: &str =
    "hint: load the module with `modprobe smc_r` (or `modprobe smc` for the one of the kernel)";

/// Whether an SMC socket can be created, which also loads the module if it can be loaded.
pub fn smc_available() -> io::Result<()> {
    Socket::new(Domain::from(AF_SMC), Type::STREAM, Some(Protocol::from(0))).map(drop)
}

/// Name of the module that is loaded, or built in with parameters to see.
pub fn module() -> Option<&'static str> {
    ["smc_r", "smc"]
        .into_iter()
        .find(|name| Path::new("/sys/module").join(name).exists())
}

/// Name of a network interface of this namespace.
pub fn interface(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let folder = std::fs::read_dir("/sys/class/net").ok()?;
    folder.filter_map(Result::ok).find_map(|entry| {
        let text = std::fs::read_to_string(entry.path().join("ifindex")).ok()?;
        (text.trim().parse() == Ok(index)).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}
