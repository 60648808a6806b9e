// SPDX-License-Identifier: GPL-2.0

//! Names of error numbers.

use rustix::io::Errno;
use std::io;

macro_rules! names {
    ($($name:ident = $text:literal,)*) => {
        const NAMES: &[(&str, Errno)] = &[$(($text, Errno::$name),)*];
    };
}

names! {
    ACCESS = "EACCES",
    ADDRINUSE = "EADDRINUSE",
    ADDRNOTAVAIL = "EADDRNOTAVAIL",
    AFNOSUPPORT = "EAFNOSUPPORT",
    AGAIN = "EAGAIN",
    ALREADY = "EALREADY",
    BADF = "EBADF",
    CONNABORTED = "ECONNABORTED",
    CONNREFUSED = "ECONNREFUSED",
    CONNRESET = "ECONNRESET",
    HOSTDOWN = "EHOSTDOWN",
    HOSTUNREACH = "EHOSTUNREACH",
    INPROGRESS = "EINPROGRESS",
    INTR = "EINTR",
    INVAL = "EINVAL",
    IO = "EIO",
    ISCONN = "EISCONN",
    MFILE = "EMFILE",
    NETDOWN = "ENETDOWN",
    NETRESET = "ENETRESET",
    NETUNREACH = "ENETUNREACH",
    NFILE = "ENFILE",
    NOBUFS = "ENOBUFS",
    NODEV = "ENODEV",
    NOENT = "ENOENT",
    NOMEM = "ENOMEM",
    NOTCONN = "ENOTCONN",
    OPNOTSUPP = "EOPNOTSUPP",
    PERM = "EPERM",
    PIPE = "EPIPE",
    PROTO = "EPROTO",
    PROTONOSUPPORT = "EPROTONOSUPPORT",
    SOCKTNOSUPPORT = "ESOCKTNOSUPPORT",
    TIMEDOUT = "ETIMEDOUT",
}

/// The number of a name such as `ECONNRESET`.
pub fn by_name(name: &str) -> Option<i32> {
    NAMES
        .iter()
        .find(|(text, _)| *text == name)
        .map(|(_, errno)| errno.raw_os_error())
}

/// The name of the error number, or the number where it has no name here.
pub fn name(error: &io::Error) -> Option<String> {
    let number = error.raw_os_error()?;
    let name = NAMES
        .iter()
        .find(|(_, errno)| errno.raw_os_error() == number);
    Some(name.map_or_else(|| number.to_string(), |(text, _)| (*text).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!(by_name("ECONNREFUSED"), Some(111));
        assert_eq!(by_name("econnrefused"), None);
        assert_eq!(
            name(&io::Error::from_raw_os_error(104)).as_deref(),
            Some("ECONNRESET")
        );
        assert_eq!(
            name(&io::Error::from_raw_os_error(4000)).as_deref(),
            Some("4000")
        );
        assert_eq!(name(&io::Error::other("x")), None);
    }
}
