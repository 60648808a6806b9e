// SPDX-License-Identifier: GPL-2.0

//! `smc_run`: starts a program with the preload library, so that its TCP sockets become SMC ones.

use crate::sys;
use clap::builder::ValueParser;
use clap::Parser;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Failure of smc_run itself.
pub const EXIT_FAILURE: u8 = 125;
/// The program was found and cannot be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Names of the library, as installed and as cargo builds it.
const LIBRARY: [&str; 2] = ["libsmc-preload.so", "libsmc_preload.so"];

const AFTER_HELP: &str = "\
Exit status:
  that of PROGRAM once it runs, otherwise
  125  smc_run failed (wrong options, library missing, --require)
  126  PROGRAM cannot be executed
  127  PROGRAM was not found

Environment that PROGRAM's preload library reads:
  SMC_DEBUG   a number other than 0 reports every replaced call on standard error
  SMC_SNDBUF  send buffer of each SMC socket, suffix K or M
  SMC_RCVBUF  receive buffer of each SMC socket, suffix K or M

Statically linked programs, programs that make system calls without the C
library, and set-user-ID programs keep their TCP sockets.";

/// Run a program with SMC sockets in place of its TCP sockets.
///
/// TCP sockets that PROGRAM and its children create become SMC sockets. Where
/// SMC is not available, they stay TCP sockets; a connection to a peer without
/// SMC falls back to TCP by itself.
#[derive(Clone, Debug, Parser)]
#[command(name = "smc_run", version, after_help = AFTER_HELP, disable_version_flag = true)]
pub struct Args {
    /// Print version
    #[arg(short = 'v', short_alias = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,

    /// Report every replaced call on standard error
    #[arg(short, long)]
    pub debug: bool,

    /// Receive buffer of each SMC socket, in bytes, with suffix K or M
    #[arg(short, long, value_name = "SIZE", value_parser = ValueParser::new(parse_size))]
    pub receive_buffer: Option<Size>,

    /// Send buffer of each SMC socket, in bytes, with suffix K or M
    #[arg(short, long, value_name = "SIZE", value_parser = ValueParser::new(parse_size))]
    pub transmit_buffer: Option<Size>,

    /// Fail if SMC is not available, instead of running PROGRAM over TCP
    #[arg(long)]
    pub require: bool,

    /// Preload library to use
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// Program to run, and its arguments
    #[arg(
        required = true,
        num_args = 1..,
        trailing_var_arg = true,
        value_name = "PROGRAM [ARGS]"
    )]
    pub command: Vec<OsString>,
}

/// A buffer size, at least one byte and at most what a socket option can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub i32);

fn parse_size(text: &str) -> Result<Size, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("expected a number with an optional suffix K or M".into());
    }
    digits
        .parse::<i32>()
        .ok()
        .and_then(|value| value.checked_mul(unit))
        .filter(|value| *value > 0)
        .map(Size)
        .ok_or_else(|| format!("out of range 1 to {}", i32::MAX))
}

/// Why the program could not be started.
#[derive(Debug)]
pub enum Error {
    /// No preload library in any of the places.
    NoLibrary(Vec<PathBuf>),
    /// The dynamic linker cannot be told of such a path.
    LibraryPath(PathBuf),
    /// `--require` was given and there is no SMC.
    NoSmc(io::Error),
    /// `execve()` failed.
    Exec(OsString, io::Error),
}

impl Error {
    /// The exit status that tells this failure, as `env(1)` and shells have it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Exec(_, error) if error.kind() == io::ErrorKind::NotFound => EXIT_NOT_FOUND,
            Error::Exec(..) => EXIT_NOT_EXECUTABLE,
            _ => EXIT_FAILURE,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoLibrary(places) => {
                write!(f, "preload library {} not found; looked in:", LIBRARY[0])?;
                places
                    .iter()
                    .try_for_each(|place| write!(f, "\n  {}", place.display()))
            }
            Error::LibraryPath(path) => {
                write!(
                    f,
                    "{}: LD_PRELOAD cannot hold a path with blanks or colons",
                    path.display()
                )
            }
            Error::NoSmc(error) => write!(
                f,
                "SMC is not available: {error}\nhint: {}",
                sys::NO_SMC_HINT
            ),
            Error::Exec(program, error) if error.kind() == io::ErrorKind::NotFound => {
                write!(f, "{}: command not found", Path::new(program).display())
            }
            Error::Exec(program, error) => write!(f, "{}: {error}", Path::new(program).display()),
        }
    }
}

/// Folders that may hold the library for a program in `folder`, best first.
fn library_folders(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_path_buf()];
    if let Some(prefix) = folder.parent() {
        let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
        for name in [multiarch.as_str(), "lib64", "lib"] {
            folders.push(prefix.join(name));
        }
    }
    folders.extend(option_env!("SMC_LIBDIR").map(PathBuf::from));
    folders
}

fn find_library(folder: &Path) -> Result<PathBuf, Error> {
    let folders = library_folders(folder);
    folders
        .iter()
        .flat_map(|folder| LIBRARY.map(|name| folder.join(name)))
        .find(|path| path.is_file())
        .ok_or(Error::NoLibrary(folders))
}

/// Value of `LD_PRELOAD`: our library in front of those already asked for.
fn preload_value(library: &Path, present: Option<&OsStr>) -> Result<OsString, Error> {
    if library
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| byte.is_ascii_whitespace() || *byte == b':')
    {
        return Err(Error::LibraryPath(library.to_path_buf()));
    }
    let mut value = library.as_os_str().to_os_string();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        value.push(":");
        value.push(present);
    }
    Ok(value)
}

/// Says something on standard error, if there is one: the program runs anyway.
pub fn say(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "smc_run: {message}");
}

/// Raises a limit of the kernel for socket buffers, if it is lower than the size wanted.
fn raise_limit(file: &str, size: Size) {
    let present = std::fs::read_to_string(file);
    let present = present
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok());
    if present.is_some_and(|limit| limit < size.0) {
        if let Err(error) = std::fs::write(file, size.0.to_string()) {
            say(format_args!("cannot raise {file} to {}: {error}", size.0));
        }
    }
}

/// Whether a process ignores SIGPIPE, by its file `status` in /proc.
pub fn ignores_sigpipe(status: &str) -> bool {
    const SIGPIPE: u32 = 13;
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (mask >> (SIGPIPE - 1)) & 1 == 1)
}

/// Starts the program in place of this one, where SIGPIPE is what it was for this one. Comes back only
/// on failure.
pub fn exec(args: &Args, sigpipe_ignored: bool) -> Error {
    match prepare(args) {
        // The standard library ignores the signal itself, and makes it deadly again for other programs.
        Ok((program, command)) if sigpipe_ignored => Error::Exec(program, exec_as_it_is(&command)),
        Ok((program, mut command)) => Error::Exec(program, command.exec()),
        Err(error) => error,
    }
}

/// Like `command.exec()`, but leaves signals alone.
fn exec_as_it_is(command: &Command) -> io::Error {
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => environment.insert(name.into(), value.into()),
            None => environment.remove(name),
        };
    }
    let environment: Vec<_> = environment
        .into_iter()
        .filter_map(|(name, value)| {
            let line = [name.as_bytes(), b"=", value.as_bytes()].concat();
            CString::new(line).ok()
        })
        .collect();
    let words: Result<Vec<_>, _> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| CString::new(word.as_bytes()))
        .collect();
    match words {
        Ok(words) => match nix::unistd::execvpe(&words[0], &words, &environment) {
            Ok(never) => match never {},
            Err(error) => error.into(),
        },
        Err(error) => error.into(),
    }
}

fn prepare(args: &Args) -> Result<(OsString, Command), Error> {
    let library = match &args.library {
        Some(path) if path.is_file() => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        Some(path) => return Err(Error::NoLibrary(vec![path.clone()])),
        None => {
            let folder = std::env::current_exe()
                .ok()
                .and_then(|exe| Some(exe.parent()?.to_owned()));
            find_library(&folder.unwrap_or_else(|| PathBuf::from("/usr/bin")))?
        }
    };
    if let Err(error) = sys::smc_available() {
        if args.require {
            return Err(Error::NoSmc(error));
        }
        say(format_args!("SMC is not available, TCP is used: {error}"));
        say(format_args!("{}", sys::NO_SMC_HINT));
    }

    let present = std::env::var_os("LD_PRELOAD");
    let (program, arguments) = args.command.split_first().expect("clap requires one value");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload_value(&library, present.as_deref())?);
    if args.debug {
        command.env("SMC_DEBUG", "1");
    }
    if let Some(size) = args.transmit_buffer {
        raise_limit("/proc/sys/net/core/wmem_max", size);
        command.env("SMC_SNDBUF", size.0.to_string());
    }
    if let Some(size) = args.receive_buffer {
        raise_limit("/proc/sys/net/core/rmem_max", size);
        command.env("SMC_RCVBUF", size.0.to_string());
    }
    Ok((program.clone(), command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("smc_run").chain(args.iter().copied()))
    }

    #[test]
    fn options_end_at_the_program() {
        let args = parse(&[
            "-d", "-r", "64K", "-t", "1M", "iperf3", "-d", "--", "-r", "x",
        ])
        .unwrap();
        assert!(args.debug);
        assert_eq!(args.receive_buffer, Some(Size(65536)));
        assert_eq!(args.transmit_buffer, Some(Size(1 << 20)));
        assert_eq!(args.command, ["iperf3", "-d", "--", "-r", "x"]);
    }

    #[test]
    fn values_may_be_attached() {
        for words in [
            &["-r64K", "-t1M", "prog", "-r", "x"][..],
            &["-r64K", "-t=1M", "--", "prog", "-r", "x"],
            &["-r=64K", "--transmit-buffer=1M", "prog", "-r", "x"],
        ] {
            let args = parse(words).unwrap();
            assert_eq!(args.receive_buffer, Some(Size(65536)), "{words:?}");
            assert_eq!(args.transmit_buffer, Some(Size(1 << 20)), "{words:?}");
            assert_eq!(args.command, ["prog", "-r", "x"], "{words:?}");
        }
        let args = parse(&["-dr64K", "prog", "--", "-d", "--require"]).unwrap();
        assert!(args.debug && !args.require);
        assert_eq!(args.receive_buffer, Some(Size(65536)));
        assert_eq!(args.command, ["prog", "--", "-d", "--require"]);
    }

    #[test]
    fn unknown_options_are_no_programs() {
        for words in [
            &["--requre", "prog"][..],
            &["-x", "prog"],
            &["-d5", "prog"],
            &["-r", "-1", "prog"],
            &["-r64X", "prog"],
            &["--debug=1", "prog"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
        // After this word there are no options.
        assert_eq!(parse(&["--", "-x", "-d"]).unwrap().command, ["-x", "-d"]);
    }

    #[test]
    fn a_program_is_needed() {
        let error = parse(&["-d"]).unwrap_err();
        assert_eq!(
            error.kind(),
            clap::error::ErrorKind::MissingRequiredArgument
        );
    }

    #[test]
    fn version_in_both_spellings() {
        for option in ["-v", "-V", "--version"] {
            let error = parse(&[option]).unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::DisplayVersion,
                "{option}"
            );
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16384"), Ok(Size(16384)));
        assert_eq!(parse_size("2m"), Ok(Size(2 << 20)));
        for bad in ["", "K", "0", "-1", "+1", "1G", "2048M", "99999999999", "1é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_preloads_are_kept() {
        let library = Path::new("/lib/libsmc-preload.so");
        let value =
            |present: Option<&str>| preload_value(library, present.map(OsStr::new)).unwrap();
        assert_eq!(value(None), "/lib/libsmc-preload.so");
        assert_eq!(value(Some("")), "/lib/libsmc-preload.so");
        assert_eq!(value(Some("a.so b.so")), "/lib/libsmc-preload.so:a.so b.so");
        assert!(preload_value(Path::new("/a b/x.so"), None).is_err());
        assert!(preload_value(Path::new("/a:b/x.so"), None).is_err());
    }

    #[test]
    fn exit_codes() {
        let exec = |kind| Error::Exec("x".into(), io::Error::from(kind)).exit_code();
        assert_eq!(exec(io::ErrorKind::NotFound), 127);
        assert_eq!(exec(io::ErrorKind::PermissionDenied), 126);
        assert_eq!(Error::NoLibrary(vec![]).exit_code(), 125);
    }

    #[test]
    fn library_places() {
        let folders = library_folders(Path::new("/usr/bin"));
        assert_eq!(folders[0], Path::new("/usr/bin"));
        assert!(folders.contains(&PathBuf::from("/usr/lib")));
    }
}
