// SPDX-License-Identifier: GPL-2.0

//! The switch: on for some network namespaces, until it is turned off or the host is booted.

use crate::layout::{Layout, Missing, FILE};
use crate::program::program;
use crate::syscall::{Program, Set};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file system in which names of BPF objects are.
const BPFFS: &str = "/sys/fs/bpf";
/// What tells it from others.
const BPFFS_MAGIC: u32 = 0xcafe_4a11;
/// Namespaces in which it can be on. Those that are gone count until it is turned off everywhere; their
/// numbers do not come again.
const MOST: u32 = 65536;

/// Why something did not work.
#[derive(Debug)]
pub enum Error {
    /// The caller may not do this.
    NotPermitted(String),
    /// There is no file system for names.
    NoFileSystem(PathBuf),
    /// Somebody else made the folder for the names.
    Foreign(PathBuf),
    /// The kernel lacks something.
    Kernel(String),
    /// The kernel refused it, and what it said.
    Refused(&'static str, io::Error, String),
}

impl Error {
    fn new(what: &'static str, error: io::Error) -> Self {
        Self::said(what, error, "")
    }

    fn said(what: &'static str, error: io::Error, log: &str) -> Self {
        // The verifier refuses with the same error, but not without words.
        if error.kind() == io::ErrorKind::PermissionDenied && log.is_empty() {
            return Error::NotPermitted(format!("{what}: {error}"));
        }
        // The verifier's last words, before its statistics.
        let mut lines = log.lines().filter(|line| !line.starts_with("processed "));
        let last = lines.next_back().unwrap_or_default().trim();
        Error::Refused(what, error, last.to_string())
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::NotPermitted(_) => {
                "this needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN of the host, not of a container: run it \
                 as root there; a kernel in lockdown mode `confidentiality` allows it to nobody"
            }
            Error::NoFileSystem(_) => "mount it with `mount -t bpf bpf /sys/fs/bpf`",
            Error::Foreign(_) => "remove it: only root may put names there",
            Error::Kernel(_) | Error::Refused(..) => {
                "this needs a kernel with CONFIG_DEBUG_INFO_BTF, CONFIG_BPF_JIT, CONFIG_MPTCP and \
                 CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, as Debian's are; smc_run works without"
            }
        }
    }
}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Self {
        Error::Kernel(missing.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotPermitted(what) => write!(f, "not permitted: {what}"),
            Error::NoFileSystem(path) => {
                write!(f, "{}: no file system of BPF", path.display())
            }
            Error::Foreign(path) => {
                write!(f, "{} belongs to another user than root", path.display())
            }
            Error::Kernel(what) => write!(f, "{what}"),
            Error::Refused(what, error, said) if said.is_empty() => write!(f, "{what}: {error}"),
            Error::Refused(what, error, said) => write!(f, "{what}: {error}: {said}"),
        }
    }
}

impl std::error::Error for Error {}

/// How the switch stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Here.
    pub on: bool,
    /// In how many namespaces, with this one.
    pub namespaces: usize,
}

/// The switch, which nobody else changes meanwhile.
pub struct Switch {
    folder: PathBuf,
    _lock: File,
}

/// Where names are: in the mount namespace of the host, also for a caller in another one, such as that of
/// `ip netns exec`, which has a /sys of its own.
fn names() -> PathBuf {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    match (namespace("self"), namespace("1")) {
        (Some(ours), Some(first)) if ours != first => {
            Path::new("/proc/1/root").join(BPFFS.trim_start_matches('/'))
        }
        _ => BPFFS.into(),
    }
}

impl Switch {
    /// The one of this host, made if need be.
    pub fn open() -> Result<Self, Error> {
        let names = names();
        // The kernel's number has 32 bits; the field is wider, or has a sign, depending on the machine.
        let magic = rustix::fs::statfs(&names).map(|stat| stat.f_type as u32);
        if magic != Ok(BPFFS_MAGIC) {
            return Err(Error::NoFileSystem(names));
        }
        // Others may be able to make the folder, and would be in the way then.
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotPermitted("the caller is not root".into()));
        }
        let folder = names.join("smc-rs");
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::new("making a folder in /sys/fs/bpf", error))
            }
            _ => Self::lock(folder),
        }
    }

    /// The one of this host, if anybody ever turned it on.
    pub fn find() -> Result<Option<Self>, Error> {
        let folder = names().join("smc-rs");
        match fs::symlink_metadata(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::new("looking into /sys/fs/bpf", error)),
            Ok(_) => Self::lock(folder).map(Some),
        }
    }

    /// Waits until nobody else changes it. The folder itself is the lock, so it is never removed, and nobody
    /// but root may hold it.
    fn lock(folder: PathBuf) -> Result<Self, Error> {
        let failed = |error| Error::new("the folder smc-rs in /sys/fs/bpf", error);
        // Not what somebody else's link leads to.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&folder, flags, Mode::empty())
            .map(File::from)
            .map_err(|error| failed(error.into()))?;
        if lock.metadata().map_err(failed)?.uid() != 0 {
            return Err(Error::Foreign(folder));
        }
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| failed(error.into()))?;
        Ok(Switch {
            folder,
            _lock: lock,
        })
    }

    fn map_path(&self) -> PathBuf {
        self.folder.join("namespaces")
    }

    fn link_path(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// The map, if the program is in place too: neither does anything without the other.
    fn map(&self) -> Result<Option<Set>, Error> {
        match fs::symlink_metadata(self.link_path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| Error::new("the pinned program", error))?,
        };
        match Set::open(&self.map_path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other
                .map(Some)
                .map_err(|error| Error::new("the pinned map", error)),
        }
    }

    /// Puts the program in place. What is left of one that was not is taken away before.
    fn install(&self) -> Result<Set, Error> {
        self.remove()?;
        let types = fs::read(FILE).map_err(|error| Missing::Types(error.to_string()))?;
        let layout = Layout::read(&types)?;
        let map =
            Set::create("smc_namespaces", MOST).map_err(|error| Error::new("a BPF map", error))?;
        let program = Program::load("smc_socket", &program(&layout, map.number()), layout.hook)
            .map_err(|(error, log)| Error::said("the BPF program", error, &log))?;
        let link = program
            .attach()
            .map_err(|error| Error::new("attaching the BPF program", error))?;
        map.pin(&self.map_path())
            .and_then(|()| link.pin(&self.link_path()))
            .map_err(|error| {
                let error = Error::new("pinning in /sys/fs/bpf", error);
                // What is half done serves nobody; the first error is the one to tell.
                drop(self.remove());
                error
            })?;
        Ok(map)
    }

    /// Takes all away; the kernel ends the program with its name.
    fn remove(&self) -> Result<(), Error> {
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::new("unpinning in /sys/fs/bpf", error))
            }
            _ => Ok(()),
        };
        gone(fs::remove_file(self.link_path()))?;
        gone(fs::remove_file(self.map_path()))
    }

    /// TCP sockets that are made in the namespace from now on are SMC sockets.
    pub fn on(&self, namespace: u64) -> Result<(), Error> {
        let map = match self.map()? {
            Some(map) => map,
            None => self.install()?,
        };
        map.add(namespace)
            .map_err(|error| Error::new("the map of namespaces", error))
    }

    /// They are TCP sockets again.
    pub fn off(&self, namespace: u64) -> Result<(), Error> {
        let Some(map) = self.map()? else {
            return self.remove();
        };
        map.remove(namespace)
            .and_then(|()| map.count(1))
            .map_err(|error| Error::new("the map of namespaces", error))
            .and_then(|left| if left == 0 { self.remove() } else { Ok(()) })
    }

    /// So they are in all namespaces.
    pub fn off_everywhere(&self) -> Result<(), Error> {
        self.remove()
    }

    /// How it stands for a namespace.
    pub fn state(&self, namespace: u64) -> Result<State, Error> {
        let Some(map) = self.map()? else {
            return Ok(State::default());
        };
        let most = usize::try_from(MOST).unwrap_or(usize::MAX);
        map.has(namespace)
            .and_then(|on| {
                let namespaces = map.count(most)?;
                Ok(State { on, namespaces })
            })
            .map_err(|error| Error::new("the map of namespaces", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_and_what_next() {
        let log = "func#0 @0\nupdate_socket_protocol() is not modifiable\nprocessed 0 insns\n";
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        let error = Error::said("the BPF program", error, log);
        let text = error.to_string();
        assert!(
            text.ends_with("update_socket_protocol() is not modifiable"),
            "{text}"
        );
        assert!(error.hint().contains("CONFIG_MPTCP"));
        let error = Error::new("a BPF map", io::Error::from_raw_os_error(libc::EPERM));
        assert!(error.to_string().starts_with("not permitted: a BPF map"));
        assert!(error.hint().contains("CAP_BPF"));
    }
}
