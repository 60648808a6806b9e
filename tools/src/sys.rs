// SPDX-License-Identifier: GPL-2.0

//! Questions to the running system.

use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

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

/// No room: events were lost.
pub const ENOBUFS: i32 = 105;
/// No such device.
pub const ENODEV: i32 = 19;
/// It is there already.
pub const EEXIST: i32 = 17;
/// Not a valid value.
pub const EINVAL: i32 = 22;

/// What to do when the family is missing.
pub const NO_SMC_HINT: &str =
    "load the module with `modprobe smc_r` (or `modprobe smc` for the one of the kernel)";

/// Whether an SMC socket can be created, in either of the ways that there are, which also loads the module
/// if it can be loaded. The error is that of the family.
pub fn smc_available() -> io::Result<()> {
    Socket::new(Domain::from(AF_SMC), Type::STREAM, Some(Protocol::from(0)))
        .map(drop)
        .or_else(|error| smc_over_ip().map_err(|_| error))
}

/// The protocol of SMC for sockets of IPv4 and IPv6.
pub const IPPROTO_SMC: i32 = 256;

/// Whether sockets of IPv4 can be SMC sockets, which also loads the module if it can be loaded.
pub fn smc_over_ip() -> io::Result<()> {
    let protocol = Protocol::from(IPPROTO_SMC);
    Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).map(drop)
}

/// Name of the module that is loaded, or built in with parameters to see.
pub fn module() -> Option<&'static str> {
    ["smc_r", "smc"]
        .into_iter()
        .find(|name| Path::new("/sys/module").join(name).exists())
}

/// Name of a network interface of this namespace. Not from sysfs, which may be that of another one.
pub fn interface(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).ok()?;
    rustix::net::netdevice::index_to_name(&socket, index).ok()
}

/// A line of a file of the kernel's.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_string())
}

/// Names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Where a program of administrators is: in the folders of `PATH`, or else in those that `PATH` of others may lack. A
/// program that is nowhere keeps its name.
pub fn admin_program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut found = folders.map(|folder| folder.join(name));
    found
        .find(|file| file.is_file())
        .unwrap_or_else(|| name.into())
}

/// A number among the settings of the module; that of this network namespace.
pub fn setting(name: &str) -> Option<u32> {
    line(&Path::new("/proc/sys/net/smc").join(name))?
        .parse()
        .ok()
}

/// A GID of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Place in the table.
    pub index: u32,
    /// The GID.
    pub gid: Ipv6Addr,
    /// What it is for, such as "RoCE v2".
    pub kind: String,
    /// Interface that it belongs to.
    pub interface: Option<String>,
}

/// The GIDs of a port that are set.
pub fn gids(device: &str, port: u8) -> Vec<Gid> {
    let folder = Path::new("/sys/class/infiniband")
        .join(device)
        .join("ports")
        .join(port.to_string());
    let mut gids = Vec::new();
    for name in names(&folder.join("gids")) {
        let gid = line(&folder.join("gids").join(&name)).and_then(|text| text.parse().ok());
        let (Ok(index), Some(gid)) = (name.parse(), gid) else {
            continue;
        };
        if Ipv6Addr::is_unspecified(&gid) {
            continue;
        }
        gids.push(Gid {
            index,
            gid,
            kind: line(&folder.join("gid_attrs/types").join(&name)).unwrap_or_default(),
            interface: line(&folder.join("gid_attrs/ndevs").join(&name)),
        });
    }
    gids.sort_by_key(|gid| gid.index);
    gids
}

/// Memory that is available, in bytes.
pub fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_administrators() {
        // One that each system has somewhere, and one that none has.
        let shell = admin_program("sh");
        assert!(shell.is_absolute() && shell.is_file());
        assert_eq!(
            admin_program("no-such-program"),
            Path::new("no-such-program")
        );
    }
}
