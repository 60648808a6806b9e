// SPDX-License-Identifier: GPL-2.0

//! bpf(2), as far as the switch needs it: one map, one program, their names.

use crate::program::Instruction;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// A map of type hash.
const MAP_HASH: u32 = 1;
/// Elements of a map take memory only when they are there.
const MAP_NO_PREALLOC: u32 = 1;
/// Programs that are attached to functions of the kernel.
const PROGRAM_TRACING: u32 = 26;
/// Those that give a function's value in its stead.
const ATTACH_MODIFY_RETURN: u32 = 26;
/// How much the verifier may say.
const LOG_BYTES: usize = 1 << 16;

/// The argument of bpf(2), field after field.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn fd(self, fd: BorrowedFd<'_>) -> Self {
        self.u32(fd.as_raw_fd() as u32)
    }

    fn pointer<T>(self, pointer: *const T) -> Self {
        self.u64(pointer as u64)
    }

    fn pointer_mut<T>(self, pointer: *mut T) -> Self {
        self.u64(pointer as u64)
    }

    /// The name that people see in lists; at most 15 bytes of it.
    fn name(mut self, name: &str) -> Self {
        let mut bytes = [0; 16];
        bytes
            .iter_mut()
            .zip(name.bytes().take(15))
            .for_each(|(to, from)| *to = from);
        self.0.extend(bytes);
        self
    }
}

/// What bpf(2) is asked, with all memory that the kernel may read or write.
enum Call<'a> {
    CreateMap(&'a str, u32),
    Lookup(BorrowedFd<'a>, &'a u64, &'a mut u32),
    Update(BorrowedFd<'a>, &'a u64, &'a u32),
    Delete(BorrowedFd<'a>, &'a u64),
    NextKey(BorrowedFd<'a>, Option<&'a u64>, &'a mut u64),
    Load(&'a str, &'a [Instruction], u32, &'a mut [u8]),
    Pin(BorrowedFd<'a>, &'a CString),
    Get(&'a CString),
    Attach(BorrowedFd<'a>),
}

impl Call<'_> {
    /// The number of the command, and its argument.
    fn encode(&mut self) -> (u32, Fields) {
        let fields = Fields::default();
        // A map's file descriptor is followed by four bytes of nothing.
        let on_map = |map: BorrowedFd<'_>| Fields::default().fd(map).u32(0);
        match self {
            Call::CreateMap(name, entries) => {
                let sizes = fields.u32(MAP_HASH).u32(8).u32(4).u32(*entries);
                (0, sizes.u32(MAP_NO_PREALLOC).u32(0).u32(0).name(name))
            }
            Call::Lookup(map, key, value) => {
                let value = std::ptr::from_mut(*value);
                (1, on_map(*map).pointer(*key).pointer_mut(value).u64(0))
            }
            Call::Update(map, key, value) => (2, on_map(*map).pointer(*key).pointer(*value).u64(0)),
            Call::Delete(map, key) => (3, on_map(*map).pointer(*key)),
            Call::NextKey(map, key, next) => {
                let key = key.map_or(std::ptr::null(), std::ptr::from_ref);
                let next = std::ptr::from_mut(*next);
                (4, on_map(*map).pointer(key).pointer_mut(next))
            }
            Call::Load(name, code, function, log) => {
                let count = u32::try_from(code.len()).unwrap_or(u32::MAX);
                let size = u32::try_from(log.len()).unwrap_or(0);
                let license = c"GPL".as_ptr();
                let head = fields.u32(PROGRAM_TRACING).u32(count);
                let head = head.pointer(code.as_ptr()).pointer(license);
                let log = head.u32(1).u32(size).pointer_mut(log.as_mut_ptr());
                let log = log.u32(0).u32(0);
                let kind = log.name(name).u32(0).u32(ATTACH_MODIFY_RETURN);
                // No type information of its own: neither of functions nor of lines.
                let nothing = kind.u32(0).u32(0).u64(0).u32(0).u32(0).u64(0).u32(0);
                (5, nothing.u32(*function).u32(0))
            }
            Call::Pin(object, path) => (6, fields.pointer(path.as_ptr()).fd(*object).u32(0)),
            Call::Get(path) => (7, fields.pointer(path.as_ptr()).u32(0).u32(0)),
            // A tracing program knows its function; there is no name to give.
            Call::Attach(program) => (17, fields.u64(0).fd(*program).u32(0)),
        }
    }

    fn make(mut self) -> io::Result<i32> {
        let (command, fields) = self.encode();
        // SAFETY: The argument is as long as it says. All pointers in it come from references in `self`,
        // which lives until after the call, to as much memory as the command has the kernel use: keys have 8
        // bytes and values 4, as the map was made. What the kernel writes to is borrowed mutably.
        let answer =
            unsafe { libc::syscall(libc::SYS_bpf, command, fields.0.as_ptr(), fields.0.len()) };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        i32::try_from(answer).map_err(io::Error::other)
    }

    /// For the commands that give a file descriptor.
    fn open(self) -> io::Result<OwnedFd> {
        let fd = self.make()?;
        // SAFETY: The kernel just made it, for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Gives a map, program or link a name in the file system, by which it stays.
fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Call::Pin(object, &c_path(path)?).make().map(drop)
}

/// A set of numbers in the kernel.
pub struct Set(OwnedFd);

impl Set {
    /// Makes one for at most so many numbers.
    pub fn create(name: &str, entries: u32) -> io::Result<Self> {
        Call::CreateMap(name, entries).open().map(Set)
    }

    /// The one that has this name in the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Call::Get(&c_path(path)?).open().map(Set)
    }

    /// Names it.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.0.as_fd(), path)
    }

    /// Its number in instructions.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Whether it has a number.
    pub fn has(&self, key: u64) -> io::Result<bool> {
        let mut value = 0;
        let call = Call::Lookup(self.0.as_fd(), &key, &mut value);
        match call.make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// Adds a number; it may be there.
    pub fn add(&self, key: u64) -> io::Result<()> {
        let value = 1;
        let call = Call::Update(self.0.as_fd(), &key, &value);
        call.make().map(drop)
    }

    /// Removes a number, which need not be there.
    pub fn remove(&self, key: u64) -> io::Result<()> {
        match Call::Delete(self.0.as_fd(), &key).make() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// How many there are. Where others change it meanwhile: about so many, and never without end.
    pub fn count(&self, most: usize) -> io::Result<usize> {
        let mut key = None;
        for count in 0..most {
            let mut next = 0;
            match Call::NextKey(self.0.as_fd(), key.as_ref(), &mut next).make() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(count),
                other => other?,
            };
            key = Some(next);
        }
        Ok(most)
    }
}

/// A program that the kernel took.
pub struct Program(OwnedFd);

impl Program {
    /// Loads one that gives the value of a function of the kernel, the one with this id. Where the kernel
    /// refuses it, gives what it said, too.
    pub fn load(
        name: &str,
        code: &[Instruction],
        function: u32,
    ) -> Result<Self, (io::Error, String)> {
        let mut log = vec![0; LOG_BYTES];
        let call = Call::Load(name, code, function, &mut log);
        call.open().map(Program).map_err(|error| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
            let said = String::from_utf8_lossy(&log[..end]).into_owned();
            (error, said)
        })
    }

    /// Has the kernel run it, for as long as the link is there.
    pub fn attach(&self) -> io::Result<Link> {
        Call::Attach(self.0.as_fd()).open().map(Link)
    }
}

/// A program at its place.
pub struct Link(OwnedFd);

impl Link {
    /// Names it.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.0.as_fd(), path)
    }
}

/// The number of the network namespace of the caller, which none after it has until the next boot.
pub fn this_namespace() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: The socket is open, and the kernel writes at most 8 bytes to the first place and a length to
    // the second one; both are of that size.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_places_of_the_kernel() {
        let stdin = io::stdin();
        let fd = stdin.as_fd();
        let mut log = [0; 8];
        let code = crate::program::program(&crate::layout::Layout::default(), 3);
        let (_, fields) = Call::Load("abc", &code, 0x1234_5678, &mut log).encode();
        assert_eq!(&fields.0[48..52], b"abc\0", "prog_name");
        assert_eq!(
            fields.0[68..72],
            26u32.to_ne_bytes(),
            "expected_attach_type"
        );
        assert_eq!(
            fields.0[108..112],
            0x1234_5678u32.to_ne_bytes(),
            "attach_btf_id"
        );
        assert_eq!(fields.0.len(), 116);
        let (_, fields) = Call::CreateMap("a-name-of-many-letters", 9).encode();
        assert_eq!(fields.0.len(), 44);
        assert_eq!(&fields.0[28..], b"a-name-of-many-\0");
        let key = 7;
        let (_, fields) = Call::Delete(fd, &key).encode();
        assert_eq!(fields.0[8..16], (&raw const key as u64).to_ne_bytes());
    }

    #[test]
    fn the_namespace_has_a_number() {
        let one = this_namespace().unwrap();
        assert_ne!(one, 0);
        assert_eq!(one, this_namespace().unwrap());
    }
}
