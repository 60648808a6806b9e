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

/// Protocol of SMC sockets of the families of IPv4 and IPv6.
pub(crate) const IPPROTO_SMC: c_int = 256;

/// The families and protocols that take the place of the arguments given, in the order in which they are
/// to be tried, or `None` if the call is not one for a TCP socket. The type, with its flags, stays as it
/// is.
///
/// Every implementation has the family of its own; the protocol is there from Linux 6.11 on, also where
/// programs may use certain families only, such as services with `RestrictAddressFamilies`.
pub(crate) fn replacements(
    family: c_int,
    kind: c_int,
    protocol: c_int,
) -> Option<[(c_int, c_int); 2]> {
    if kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != SOCK_STREAM {
        return None;
    }
    if protocol != 0 && protocol != IPPROTO_TCP {
        return None;
    }
    let own = match family {
        AF_INET => SMCPROTO_SMC,
        AF_INET6 => SMCPROTO_SMC6,
        _ => return None,
    };
    Some([(AF_SMC, own), (family, IPPROTO_SMC)])
}

/// What became of the tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This descriptor is an SMC socket of this family.
    Smc(c_int, c_int),
    /// There is no SMC, for this reason; the program gets a TCP socket.
    Tcp(c_int),
    /// The program gets to see this error.
    Failure(c_int),
}

/// Tries one after the other, until there is a socket or an error that is the program's to see. Where there
/// is no SMC the error of the first one says why.
pub(crate) fn first_of(
    ways: [(c_int, c_int); 2],
    mut create: impl FnMut(c_int, c_int) -> Result<c_int, c_int>,
) -> Outcome {
    let mut reason = None;
    for (family, protocol) in ways {
        match create(family, protocol) {
            Ok(fd) => return Outcome::Smc(fd, family),
            Err(error) if !unavailable(error) => return Outcome::Failure(error),
            Err(error) => reason = reason.or(Some(error)),
        }
    }
    Outcome::Tcp(reason.unwrap_or(EAFNOSUPPORT))
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
                let four = [(AF_SMC, 0), (AF_INET, 256)];
                assert_eq!(replacements(AF_INET, kind, protocol), Some(four));
                let six = [(AF_SMC, 1), (AF_INET6, 256)];
                assert_eq!(replacements(AF_INET6, kind, protocol), Some(six));
            }
        }
    }

    #[test]
    fn the_second_way_is_for_a_family_that_is_not_to_be_had() {
        let ways = [(AF_SMC, 1), (AF_INET6, 256)];
        let run = |first: Result<c_int, c_int>, second: Result<c_int, c_int>| {
            let mut tries = Vec::new();
            let outcome = first_of(ways, |family, protocol| {
                tries.push((family, protocol));
                if family == AF_SMC {
                    first
                } else {
                    second
                }
            });
            assert_eq!(tries, ways[..tries.len()]);
            (outcome, tries.len())
        };
        assert_eq!(run(Ok(5), Ok(6)), (Outcome::Smc(5, AF_SMC), 1));
        assert_eq!(run(Err(EMFILE), Ok(6)), (Outcome::Failure(EMFILE), 1));
        for errno in [EAFNOSUPPORT, EPERM, EACCES] {
            assert_eq!(run(Err(errno), Ok(6)), (Outcome::Smc(6, AF_INET6), 2));
            let neither = run(Err(errno), Err(EPROTONOSUPPORT));
            assert_eq!(neither, (Outcome::Tcp(errno), 2));
            assert_eq!(run(Err(errno), Err(ENOMEM)), (Outcome::Failure(ENOMEM), 2));
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
                replacements(family, kind, protocol),
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
