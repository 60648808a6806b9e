// SPDX-License-Identifier: GPL-2.0

//! Socket addresses by value.

use crate::bindings;
use crate::errno;
use core::net::IpAddr;
use kernel::prelude::*;

/// The address family of a TCP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    Inet,
    /// IPv6, and IPv4 as mapped addresses.
    Inet6,
}

impl Family {
    /// The number of the family.
    pub fn number(self) -> u16 {
        match self {
            Family::Inet => AF_INET,
            Family::Inet6 => AF_INET6,
        }
    }
}

/// The number of the unspecified address family.
pub const AF_UNSPEC: u16 = bindings::AF_UNSPEC as u16;
/// The number of the IPv4 address family.
pub const AF_INET: u16 = bindings::AF_INET as u16;
/// The number of the IPv6 address family.
pub const AF_INET6: u16 = bindings::AF_INET6 as u16;

/// A socket address. Ports are in host order, addresses in the order of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SockAddr {
    /// `sockaddr_in`.
    V4 {
        /// The address.
        addr: [u8; 4],
        /// The port.
        port: u16,
    },
    /// `sockaddr_in6`.
    V6 {
        /// The address.
        addr: [u8; 16],
        /// The port.
        port: u16,
        /// The flow information as user space gave it.
        flowinfo: u32,
        /// The scope of the address, an interface index.
        scope_id: u32,
    },
    /// `AF_UNSPEC`. What follows matters to nobody but TCP's `bind(2)`.
    Unspec {
        /// What follows the family, as far as any address of TCP goes.
        rest: [u8; LEN6 - 2],
        /// How much of it there is.
        len: usize,
    },
    /// Another family.
    Other(u16),
}

/// The prefix of an IPv4 address in IPv6.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Size of `sockaddr_in`.
const LEN4: usize = size_of::<bindings::sockaddr_in>();
/// Size of `sockaddr_in6`.
const LEN6: usize = size_of::<bindings::sockaddr_in6>();
/// Size of `sockaddr_in6` before RFC 2553 added the scope, which the kernel still accepts.
const LEN6_MIN: usize = 24;

/// Puts bytes in their place.
fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> Result {
    let out = out.get_mut(at..).and_then(|out| out.get_mut(..bytes.len()));
    out.ok_or(EINVAL)?.copy_from_slice(bytes);
    Ok(())
}

impl SockAddr {
    /// The wildcard address of a family, port zero.
    pub fn any(family: Family) -> Self {
        match family {
            Family::Inet => SockAddr::V4 {
                addr: [0; 4],
                port: 0,
            },
            Family::Inet6 => SockAddr::V6 {
                addr: [0; 16],
                port: 0,
                flowinfo: 0,
                scope_id: 0,
            },
        }
    }

    /// `AF_UNSPEC` and nothing that follows: for `connect(2)` the end of a connection.
    pub const UNSPEC: Self = SockAddr::Unspec {
        rest: [0; LEN6 - 2],
        len: 0,
    };

    /// Whether the family is `AF_UNSPEC`.
    pub fn is_unspec(&self) -> bool {
        matches!(self, SockAddr::Unspec { .. })
    }

    /// The number of the family.
    pub fn family(&self) -> u16 {
        match *self {
            SockAddr::V4 { .. } => AF_INET,
            SockAddr::V6 { .. } => AF_INET6,
            SockAddr::Unspec { .. } => AF_UNSPEC,
            SockAddr::Other(family) => family,
        }
    }

    /// The port; zero where there is none.
    pub fn port(&self) -> u16 {
        match *self {
            SockAddr::V4 { port, .. } | SockAddr::V6 { port, .. } => port,
            SockAddr::Unspec { .. } | SockAddr::Other(_) => 0,
        }
    }

    /// The same address with another port.
    #[must_use]
    pub fn with_port(mut self, new: u16) -> Self {
        if let SockAddr::V4 { port, .. } | SockAddr::V6 { port, .. } = &mut self {
            *port = new;
        }
        self
    }

    /// The IPv4 address, also of a mapped one.
    pub fn v4(&self) -> Option<[u8; 4]> {
        match *self {
            SockAddr::V4 { addr, .. } => Some(addr),
            SockAddr::V6 { addr, .. } if addr.starts_with(&MAPPED) => addr.last_chunk().copied(),
            _ => None,
        }
    }

    /// The IPv6 address; `None` for a mapped IPv4 address.
    pub fn v6(&self) -> Option<[u8; 16]> {
        match *self {
            SockAddr::V6 { addr, .. } if !addr.starts_with(&MAPPED) => Some(addr),
            _ => None,
        }
    }

    /// The address by itself; a mapped one is IPv4. `None` if there is none.
    pub fn ip(&self) -> Option<IpAddr> {
        let v4 = self.v4().map(IpAddr::from);
        v4.or_else(|| self.v6().map(IpAddr::from))
    }

    /// Is it an IPv4 address in the form of IPv6?
    pub fn is_v4_mapped(&self) -> bool {
        matches!(self, SockAddr::V6 { addr, .. } if addr.starts_with(&MAPPED))
    }

    /// Is it the wildcard address?
    pub fn is_any(&self) -> bool {
        match *self {
            SockAddr::V4 { addr, .. } => addr == [0; 4],
            SockAddr::V6 { addr, .. } => addr == [0; 16],
            _ => false,
        }
    }

    /// Reads a `struct sockaddr`.
    pub fn parse(raw: &[u8]) -> Result<Self> {
        let (family, rest) = raw.split_first_chunk::<2>().ok_or(EINVAL)?;
        let family = u16::from_ne_bytes(*family);
        if family == AF_UNSPEC {
            let mut kept = [0; LEN6 - 2];
            let len = rest.len().min(kept.len());
            for (to, from) in kept.iter_mut().zip(rest) {
                *to = *from;
            }
            return Ok(SockAddr::Unspec { rest: kept, len });
        }
        let port = |rest: &[u8]| rest.first_chunk().map(|p| u16::from_be_bytes(*p));
        let word = |at: usize| {
            rest.get(at..)?
                .first_chunk()
                .map(|w| u32::from_ne_bytes(*w))
        };
        if family == AF_INET && raw.len() >= LEN4 {
            Ok(SockAddr::V4 {
                port: port(rest).ok_or(EINVAL)?,
                addr: rest
                    .get(2..)
                    .and_then(|r| r.first_chunk())
                    .copied()
                    .ok_or(EINVAL)?,
            })
        } else if family == AF_INET6 && raw.len() >= LEN6_MIN {
            Ok(SockAddr::V6 {
                port: port(rest).ok_or(EINVAL)?,
                flowinfo: word(2).ok_or(EINVAL)?,
                addr: rest
                    .get(6..)
                    .and_then(|r| r.first_chunk())
                    .copied()
                    .ok_or(EINVAL)?,
                scope_id: word(22).unwrap_or(0),
            })
        } else if family == AF_INET || family == AF_INET6 {
            Err(EINVAL)
        } else {
            Ok(SockAddr::Other(family))
        }
    }

    /// Writes the address as a `struct sockaddr`; returns its length.
    pub(crate) fn emit(&self, out: &mut RawAddr) -> Result<usize> {
        out.0 = [0; RawAddr::LEN];
        let (start, rest) = out.0.split_at_mut(2);
        start.copy_from_slice(&self.family().to_ne_bytes());
        match *self {
            SockAddr::V4 { addr, port } => {
                put(rest, 0, &port.to_be_bytes())?;
                put(rest, 2, &addr)?;
                Ok(LEN4)
            }
            SockAddr::V6 {
                addr,
                port,
                flowinfo,
                scope_id,
            } => {
                put(rest, 0, &port.to_be_bytes())?;
                put(rest, 2, &flowinfo.to_ne_bytes())?;
                put(rest, 6, &addr)?;
                put(rest, 22, &scope_id.to_ne_bytes())?;
                Ok(LEN6)
            }
            SockAddr::Unspec { rest: kept, len } => {
                let kept = kept.get(..len).ok_or(EINVAL)?;
                put(rest, 0, kept)?;
                Ok(len.saturating_add(2))
            }
            SockAddr::Other(_) => Err(errno::EAFNOSUPPORT),
        }
    }
}

/// Room for any `struct sockaddr`, aligned as C wants it.
#[repr(C, align(8))]
pub(crate) struct RawAddr([u8; RawAddr::LEN]);

impl RawAddr {
    pub(crate) const LEN: usize = size_of::<bindings::__kernel_sockaddr_storage>();

    pub(crate) fn new() -> Self {
        Self([0; Self::LEN])
    }

    pub(crate) fn as_mut_ptr<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }

    /// The address of `len` bytes that C has written.
    pub(crate) fn parse(&self, len: c_int) -> Result<SockAddr> {
        let len = usize::try_from(len).map_err(|_| EINVAL)?;
        SockAddr::parse(self.0.get(..len).ok_or(EINVAL)?)
    }
}
