// SPDX-License-Identifier: GPL-2.0

//! Sockets of the three ways to ask for a stream, and what became of them.

use clap::ValueEnum;
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

const AF_SMC: i32 = 43;
const IPPROTO_SMC: i32 = 256;
const IPPROTO_TCP: i32 = 6;

const SOL_SMC: i32 = 286;
const SMC_INFO: i32 = 1000;
const MODE_SMC_R: u32 = 0;
const MODE_FALLBACK: u32 = 1;

/// How the socket is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// A TCP socket, as any program asks for it
    Tcp,
    /// AF_SMC with protocol 0 or 1
    Smc,
    /// AF_INET or AF_INET6 with IPPROTO_SMC
    InetSmc,
}

impl Family {
    /// A socket for such an address.
    pub fn socket(self, address: &SocketAddr) -> io::Result<Socket> {
        let domain = Domain::for_address(*address);
        let (domain, protocol) = match self {
            Family::Tcp => (domain, IPPROTO_TCP),
            Family::Smc => (Domain::from(AF_SMC), i32::from(address.is_ipv6())),
            Family::InetSmc => (domain, IPPROTO_SMC),
        };
        Socket::new(domain, Type::STREAM, Some(Protocol::from(protocol)))
    }
}

/// What carries the data of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// RDMA, as far as the socket tells
    Smc,
    /// TCP below an SMC socket
    Fallback,
    /// TCP, and nobody asked for more
    Tcp,
    /// The socket does not tell
    Unknown,
}

impl Mode {
    /// Asks a connected socket: by `SMC_INFO`, which smc-rs has, or else by what kind of socket it
    /// says it is, which after a fallback is TCP with the C implementation.
    pub fn of(socket: &Socket, family: Family) -> Mode {
        match smc_info(socket) {
            Some(MODE_SMC_R) => return Mode::Smc,
            Some(MODE_FALLBACK) => return Mode::Fallback,
            Some(_) => return Mode::Unknown,
            None => {}
        }
        let domain = socket.domain().map(i32::from);
        let protocol = socket
            .protocol()
            .map(|protocol| protocol.map_or(0, i32::from));
        match (domain, protocol) {
            (Ok(domain), Ok(protocol)) => Self::classify(domain, protocol, family),
            _ => Mode::Unknown,
        }
    }

    fn classify(domain: i32, protocol: i32, family: Family) -> Mode {
        match (domain, protocol) {
            (AF_SMC, 0 | 1) | (_, IPPROTO_SMC) => Mode::Smc,
            (_, IPPROTO_TCP) if family == Family::Tcp => Mode::Tcp,
            (_, IPPROTO_TCP) => Mode::Fallback,
            _ => Mode::Unknown,
        }
    }
}

/// The mode of an SMC socket, the first of the numbers that `SMC_INFO` tells.
#[expect(unsafe_code, reason = "no crate has an option of a level of its own")]
fn smc_info(socket: &Socket) -> Option<u32> {
    let mut info = [0u32; 3];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: Address and length are those of `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            SOL_SMC,
            SMC_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    (result == 0 && len >= 4).then_some(info[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        assert_eq!(Mode::classify(43, 0, Family::Smc), Mode::Smc);
        assert_eq!(Mode::classify(43, 1, Family::Tcp), Mode::Smc);
        assert_eq!(Mode::classify(10, 256, Family::InetSmc), Mode::Smc);
        assert_eq!(Mode::classify(2, 6, Family::Smc), Mode::Fallback);
        assert_eq!(Mode::classify(43, 6, Family::Smc), Mode::Fallback);
        assert_eq!(Mode::classify(2, 6, Family::InetSmc), Mode::Fallback);
        assert_eq!(Mode::classify(2, 6, Family::Tcp), Mode::Tcp);
        assert_eq!(Mode::classify(2, 132, Family::Tcp), Mode::Unknown);
    }

    #[test]
    fn a_tcp_socket_says_so() {
        let address = "127.0.0.1:0".parse().unwrap();
        let socket = Family::Tcp.socket(&address).unwrap();
        assert_eq!(Mode::of(&socket, Family::Tcp), Mode::Tcp);
    }
}
