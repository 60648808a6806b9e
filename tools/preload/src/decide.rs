// SPDX-License-Identifier: GPL-2.0

//! What to do with a call of `socket()`, as functions without side effects.

use libc::{
    c_int, AF_INET, AF_INET6, EACCES, EAFNOSUPPORT, EPERM, EPROTONOSUPPORT, ESOCKTNOSUPPORT,
    IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM,
};

/// Address family of SMC sockets.
pub(crate) const AF_SMC: c_int = 43;
/// Protocol of an `AF_SMC` socket that uses IPv4 addresses.
pub(crate) const SMCPROTO_SMC: c_int = 0;
/// Protocol of an `AF_SMC` socket that uses IPv6 addresses.
pub(crate) const SMCPROTO_SMC6: c_int = 1;

/// The SMC protocol that takes the place of the arguments given, or `None` if the call is not one
/// for a TCP socket. The type, with its flags, stays as it is.
pub(crate) fn replacement(family: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    if kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != SOCK_STREAM {
        return None;
    }
    if protocol != 0 && protocol != IPPROTO_TCP {
        return None;
    }
    match family {
        AF_INET => Some(SMCPROTO_SMC),
        AF_INET6 => Some(SMCPROTO_SMC6),
        _ => None,
    }
}

/// Whether this failure of the SMC call means that SMC is not to be had here, so that the program
/// gets the TCP socket it asked for. Shortage of memory or descriptors is the program's to see.
///
/// `EPERM` and `EACCES` are what seccomp filters and security modules answer for a family that they
/// do not know.
pub(crate) fn unavailable(errno: c_int) -> bool {
    matches!(
        errno,
        EAFNOSUPPORT | EPROTONOSUPPORT | ESOCKTNOSUPPORT | EPERM | EACCES
    )
}

/// Parses a buffer size: decimal digits with an optional suffix `K` or `M`. Zero, garbage and what
/// does not fit give `None`.
pub(crate) fn size(text: &[u8]) -> Option<c_int> {
    let (digits, unit) = match text.split_last()? {
        (b'k' | b'K', rest) => (rest, 1 << 10),
        (b'm' | b'M', rest) => (rest, 1 << 20),
        _ => (text, 1),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value: c_int = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value
            .checked_mul(10)?
            .checked_add(c_int::from(digit - b'0'))?;
    }
    value.checked_mul(unit).filter(|value| *value > 0)
}

/// Whether the text of `SMC_DEBUG` asks for messages: any number but zero.
pub(crate) fn debug(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'1'..=b'9'))
        && text.iter().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::*;

    #[test]
    fn tcp_sockets_are_replaced() {
        for flags in [0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC] {
            for protocol in [0, IPPROTO_TCP] {
                let kind = SOCK_STREAM | flags;
                assert_eq!(replacement(AF_INET, kind, protocol), Some(0));
                assert_eq!(replacement(AF_INET6, kind, protocol), Some(1));
            }
        }
    }

    #[test]
    fn everything_else_passes() {
        let cases = [
            (AF_UNIX, SOCK_STREAM, 0),
            (AF_SMC, SOCK_STREAM, 0),
            (AF_NETLINK, SOCK_RAW, 0),
            (AF_VSOCK, SOCK_STREAM, 0),
            (AF_UNSPEC, SOCK_STREAM, 0),
            (AF_INET, SOCK_DGRAM, 0),
            (AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, IPPROTO_UDP),
            (AF_INET, SOCK_RAW, IPPROTO_TCP),
            (AF_INET, SOCK_SEQPACKET, 0),
            (AF_INET, SOCK_STREAM, 256),
            (AF_INET, SOCK_STREAM, IPPROTO_SCTP),
            (AF_INET6, SOCK_STREAM, 262),
            (AF_INET6, SOCK_STREAM, -1),
            (AF_INET6, SOCK_STREAM | 0x10, 0),
            (AF_INET6, -1, 0),
            (-1, SOCK_STREAM, 0),
        ];
        for (family, kind, protocol) in cases {
            assert_eq!(
                replacement(family, kind, protocol),
                None,
                "{family} {kind} {protocol}"
            );
        }
    }

    #[test]
    fn only_a_missing_family_is_hidden() {
        for errno in [
            EAFNOSUPPORT,
            EPROTONOSUPPORT,
            ESOCKTNOSUPPORT,
            EPERM,
            EACCES,
        ] {
            assert!(unavailable(errno));
        }
        for errno in [0, EMFILE, ENFILE, ENOMEM, ENOBUFS, EINVAL, EINTR, ENODEV] {
            assert!(!unavailable(errno));
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size(b"4096"), Some(4096));
        assert_eq!(size(b"64K"), Some(65536));
        assert_eq!(size(b"64k"), Some(65536));
        assert_eq!(size(b"2M"), Some(2 << 20));
        assert_eq!(size(b"2147483647"), Some(i32::MAX));
        for bad in [
            "",
            "K",
            "0",
            "0M",
            "-1",
            "1G",
            "1 ",
            " 1",
            "1KK",
            "0x10",
            "2048M",
            "2147483648",
        ] {
            assert_eq!(size(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(size(&[b'9'; 4096]), None);
    }

    #[test]
    fn debug_values() {
        assert!(debug(b"1") && debug(b"10") && debug(b"01"));
        assert!(!debug(b"") && !debug(b"0") && !debug(b"00") && !debug(b"yes") && !debug(b"1x"));
    }
}
