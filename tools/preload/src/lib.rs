// SPDX-License-Identifier: GPL-2.0

//! `libsmc-preload.so`: gives a program SMC sockets where it asks for TCP sockets.
//!
//! The library replaces `socket()` of the C library. `AF_INET` and `AF_INET6` stream sockets with
//! protocol 0 or `IPPROTO_TCP` become `AF_SMC` sockets, or, where the program may not use that family,
//! such with the protocol `IPPROTO_SMC`; if the system has no SMC, the program gets the TCP socket it
//! asked for.
//!
//! Environment, read once when the library is loaded:
//!
//! - `SMC_DEBUG`: a number other than zero reports every replaced call on standard error;
//! - `SMC_SNDBUF`, `SMC_RCVBUF`: buffer sizes set on each SMC socket, with suffix `K` or `M`.
//!
//! `socket()` is async-signal-safe, may be called before `main`, in any thread and in a child after
//! `fork()`. This one stays so: it allocates nothing, takes no lock, and its only state is a few
//! atomics that the constructor sets. `errno` after a successful call is what it was before.
//!
//! Limits: statically linked programs, programs that make system calls themselves (`syscall(2)`, Go
//! programs, `io_uring`), and set-user-ID programs do not come past this function.

// As shipped, the library has no use for the standard library, which would make it twenty times as
// big. Tests unwind, which needs it.
#![cfg_attr(panic = "abort", no_std)]
// Without the exported function, as in its unit tests, only a part of the crate is used.
#![cfg_attr(test, allow(dead_code))]

mod decide;

use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use decide::{Outcome, AF_SMC};
use Piece::{Number, Text};

static DEBUG: AtomicBool = AtomicBool::new(false);
/// Sizes to set on new sockets; zero leaves the system's default.
static SNDBUF: AtomicI32 = AtomicI32::new(0);
static RCVBUF: AtomicI32 = AtomicI32::new(0);
/// The next `socket()` in the search order, null until the constructor has run.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

type SocketFn = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;

// Without the standard library nothing else names the C library to the linker.
#[cfg(panic = "abort")]
#[link(name = "c")]
extern "C" {}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `abort()` has no preconditions.
    unsafe { libc::abort() }
}

/// Runs when the dynamic linker has loaded the library, before `main`.
extern "C" fn setup() {
    // SAFETY: The name is a terminated string; `RTLD_NEXT` needs no handle.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"socket".as_ptr()) };
    NEXT.store(next, Ordering::Release);
    DEBUG.store(
        variable(c"SMC_DEBUG").is_some_and(decide::debug),
        Ordering::Relaxed,
    );
    SNDBUF.store(
        variable(c"SMC_SNDBUF").and_then(decide::size).unwrap_or(0),
        Ordering::Relaxed,
    );
    RCVBUF.store(
        variable(c"SMC_RCVBUF").and_then(decide::size).unwrap_or(0),
        Ordering::Relaxed,
    );
}

#[cfg(not(test))]
#[used]
#[link_section = ".init_array"]
static SETUP: extern "C" fn() = setup;

/// An environment variable. To be used in the constructor only, where no other thread can change
/// the environment.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: The name is a terminated string, and the constructor runs before there are threads.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: Not null, hence a terminated string in the environment. The caller drops it before
    // the program gets to run and to change it.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

fn errno() -> c_int {
    // SAFETY: The address of the calling thread's `errno` is valid as long as the thread runs.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: As in `errno()`; nothing else refers to the variable meanwhile.
    unsafe { *libc::__errno_location() = value };
}

/// The call that the program would have made without this library.
fn plain(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    let next = NEXT.load(Ordering::Acquire);
    if next.is_null() {
        // Another library's constructor is ahead of ours.
        // SAFETY: The system call takes three integers.
        let fd = unsafe { libc::syscall(libc::SYS_socket, family, kind, protocol) };
        // Descriptors are small integers, and the only negative value is -1.
        return fd as c_int;
    }
    // SAFETY: The pointer is not null and was found under the name `socket`, which has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, SocketFn>(next) };
    // SAFETY: `socket()` has no preconditions.
    unsafe { next(family, kind, protocol) }
}

fn set_buffer(fd: c_int, option: c_int, size: c_int) {
    if size == 0 {
        return;
    }
    // SAFETY: The pointer is to an integer, whose size is passed along.
    let ret = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            (&raw const size).cast::<c_void>(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if ret != 0 {
        let error = errno();
        report(&[
            Text("cannot set socket option "),
            Number(option),
            Text(" to "),
            Number(size),
            Text(": errno "),
            Number(error),
        ]);
    }
}

/// Replaces the C library's `socket()`.
///
/// # Safety
///
/// None: any arguments may be passed. The function is `extern "C"` because C programs call it.
#[cfg_attr(not(test), no_mangle)]
pub extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    let Some(ways) = decide::replacements(family, kind, protocol) else {
        return plain(family, kind, protocol);
    };
    let saved = errno();
    let outcome = decide::first_of(ways, |family, protocol| {
        let fd = plain(family, kind, protocol);
        if fd >= 0 {
            Ok(fd)
        } else {
            Err(errno())
        }
    });
    if let Outcome::Smc(fd, _) = outcome {
        set_buffer(fd, libc::SO_SNDBUF, SNDBUF.load(Ordering::Relaxed));
        set_buffer(fd, libc::SO_RCVBUF, RCVBUF.load(Ordering::Relaxed));
    }
    report_call(family, kind, protocol, &outcome);
    match outcome {
        Outcome::Smc(fd, _) => {
            set_errno(saved);
            fd
        }
        Outcome::Tcp(_) => {
            set_errno(saved);
            plain(family, kind, protocol)
        }
        Outcome::Failure(error) => {
            set_errno(error);
            -1
        }
    }
}

fn report_call(family: c_int, kind: c_int, protocol: c_int, outcome: &Outcome) {
    let (text, number) = match *outcome {
        Outcome::Smc(fd, AF_SMC) => ("AF_SMC: descriptor ", fd),
        Outcome::Smc(fd, _) => (
            "IPPROTO_SMC, since AF_SMC is not available: descriptor ",
            fd,
        ),
        Outcome::Tcp(error) => ("TCP, since AF_SMC is not available: errno ", error),
        Outcome::Failure(error) => ("no socket of AF_SMC or IPPROTO_SMC: errno ", error),
    };
    report(&[
        Text("socket("),
        Number(family),
        Text(", "),
        Number(kind),
        Text(", "),
        Number(protocol),
        Text(") -> "),
        Text(text),
        Number(number),
    ]);
}

/// A piece of a message. The formatting of the standard library can panic, which would bring some
/// hundred kilobytes of panic handling into every program.
enum Piece<'a> {
    Text(&'a str),
    Number(c_int),
}

/// One line of text on the stack; what does not fit is cut off.
struct Line {
    bytes: [u8; 160],
    used: usize,
}

impl Line {
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.used) {
            *slot = byte;
            self.used += 1;
        }
    }

    fn push_piece(&mut self, piece: &Piece<'_>) {
        match *piece {
            Text(text) => text.bytes().for_each(|byte| self.push(byte)),
            Number(number) => {
                if number < 0 {
                    self.push(b'-');
                }
                let mut rest = number.unsigned_abs();
                let mut power = 1_000_000_000;
                while power > 1 && rest < power {
                    power /= 10;
                }
                while power > 0 {
                    self.push(b'0' + (rest / power % 10) as u8);
                    rest %= power;
                    power /= 10;
                }
            }
        }
    }

    /// Ends the line, in place of the last byte if there is no room.
    fn finish(&mut self) -> &[u8] {
        self.used = self.used.min(self.bytes.len() - 1);
        self.push(b'\n');
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// Writes a message to standard error if `SMC_DEBUG` asks for it. Changes `errno`.
fn report(pieces: &[Piece<'_>]) {
    if !DEBUG.load(Ordering::Relaxed) {
        return;
    }
    let mut line = Line {
        bytes: [0; 160],
        used: 0,
    };
    line.push_piece(&Text("libsmc-preload: "));
    pieces.iter().for_each(|piece| line.push_piece(piece));
    let line = line.finish();
    // SAFETY: The pointer and the length describe the slice. A failure to write is of no concern.
    unsafe {
        libc::write(
            libc::STDERR_FILENO,
            line.as_ptr().cast::<c_void>(),
            line.len(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pieces: &[Piece<'_>]) -> String {
        let mut line = Line {
            bytes: [0; 160],
            used: 0,
        };
        pieces.iter().for_each(|piece| line.push_piece(piece));
        String::from_utf8(line.finish().to_vec()).unwrap()
    }

    #[test]
    fn messages() {
        for number in [
            0,
            1,
            9,
            10,
            99,
            100,
            2049,
            1_000_000_000,
            i32::MAX,
            -1,
            i32::MIN,
        ] {
            assert_eq!(line(&[Text("a "), Number(number)]), format!("a {number}\n"));
        }
        assert_eq!(line(&[]), "\n");
        let long = "0123456789".repeat(20);
        assert_eq!(line(&[Text(&long)]), format!("{}\n", &long[..159]));
    }

    #[test]
    fn works_before_and_after_the_constructor() {
        assert!(NEXT.load(Ordering::Acquire).is_null());
        for _ in 0..2 {
            set_errno(12345);
            let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0);
            assert_eq!(errno(), 12345);
            // SAFETY: The descriptor was just opened and belongs to this test.
            assert_eq!(unsafe { libc::close(fd) }, 0);

            assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM, 255), -1);
            assert_eq!(errno(), libc::EPROTONOSUPPORT);
            setup();
            assert!(!NEXT.load(Ordering::Acquire).is_null());
        }
    }
}
