// SPDX-License-Identifier: GPL-2.0

//! Sockets, from sock_diag.

use crate::attr::{text, Attrs};
use crate::netlink::{Error, Malformed, Source};
use crate::sys::AF_SMC;
use crate::uapi::{Mode, Reason, Role, State};
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const MESSAGE_LEN: usize = 64;
const CONNINFO: u16 = 1;
const LGRINFO: u16 = 2;
const SHUTDOWN: u16 = 3;
const DMBINFO: u16 = 4;
const FALLBACK: u16 = 5;

/// A position in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cursor {
    /// How often the ring was passed through.
    pub wrap: u16,
    /// Offset in the ring.
    pub count: u32,
}

impl Cursor {
    /// Bytes from `earlier` to this cursor in a ring of `size`.
    fn since(self, earlier: Cursor, size: u32) -> u32 {
        let (count, from) = (u64::from(self.count), u64::from(earlier.count));
        let distance = if self.wrap == earlier.wrap {
            count.saturating_sub(from)
        } else {
            (u64::from(size) + count).saturating_sub(from)
        };
        u32::try_from(distance).unwrap_or(size).min(size)
    }
}

/// Buffers and cursors of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionInfo {
    /// Our alert token.
    pub token: u32,
    /// Size of the send buffer.
    pub sndbuf: u32,
    /// Size of our RMB element.
    pub rmbe: u32,
    /// Size of the peer's RMB element.
    pub peer_rmbe: u32,
    /// Producer cursor, as received.
    pub rx_producer: Cursor,
    /// Consumer cursor, as received.
    pub rx_consumer: Cursor,
    /// Producer cursor, as sent.
    pub tx_producer: Cursor,
    /// Consumer cursor, as sent.
    pub tx_consumer: Cursor,
    /// Producer flags, as received.
    pub rx_producer_flags: u8,
    /// State flags, as received.
    pub rx_state_flags: u8,
    /// Producer flags, as sent.
    pub tx_producer_flags: u8,
    /// State flags, as sent.
    pub tx_state_flags: u8,
    /// Written by the program.
    pub prepared: Cursor,
    /// Handed to RDMA.
    pub sent: Cursor,
    /// Known to have arrived.
    pub confirmed: Cursor,
}

impl ConnectionInfo {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; 76] = bytes.first_chunk().ok_or_else(|| short("connection"))?;
        let long = |at: usize| read(bytes, at).map_or(0, u32::from_ne_bytes);
        let cursor = |at: usize| Cursor {
            wrap: read(bytes, at + 2).map_or(0, u16::from_ne_bytes),
            count: long(at + 4),
        };
        Ok(Self {
            token: long(0),
            sndbuf: long(4),
            rmbe: long(8),
            peer_rmbe: long(12),
            rx_producer: cursor(16),
            rx_consumer: cursor(24),
            tx_producer: cursor(32),
            tx_consumer: cursor(40),
            rx_producer_flags: bytes[48],
            rx_state_flags: bytes[49],
            tx_producer_flags: bytes[50],
            tx_state_flags: bytes[51],
            prepared: cursor(52),
            sent: cursor(60),
            confirmed: cursor(68),
        })
    }

    /// Bytes that arrived and were not reported as consumed.
    pub fn unread(&self) -> u32 {
        self.rx_producer.since(self.tx_consumer, self.rmbe)
    }

    /// Bytes that the program sent and that are not confirmed.
    pub fn unsent(&self) -> u32 {
        self.prepared.since(self.confirmed, self.sndbuf)
    }
}

/// The link of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkInfo {
    /// Number of the link.
    pub link: u8,
    /// RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// GID of our port.
    pub gid: String,
    /// GID of the peer's port.
    pub peer_gid: String,
    /// Our side.
    pub role: Role,
}

impl LinkInfo {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; 147] = bytes.first_chunk().ok_or_else(|| short("link group"))?;
        Ok(Self {
            link: bytes[0],
            device: text(&bytes[1..65]),
            port: bytes[65],
            gid: text(&bytes[66..106]),
            peer_gid: text(&bytes[106..146]),
            role: Role(bytes[146]),
        })
    }
}

/// The memory buffers of an SMC-D connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DmbInfo {
    /// Number of the link group.
    pub group: u32,
    /// GID of our device.
    pub gid: u64,
    /// GID of the peer's device.
    pub peer_gid: u64,
    /// Token of our buffer.
    pub token: u64,
    /// Token of the peer's buffer.
    pub peer_token: u64,
    /// The second half of our GID, where it has one.
    pub gid_extension: u64,
    /// The second half of the peer's GID.
    pub peer_gid_extension: u64,
}

impl DmbInfo {
    /// Kernels up to 6.6 do not tell the extensions.
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < 40 {
            return Err(short("memory buffers"));
        }
        let long = |at: usize| read(bytes, at).map_or(0, u64::from_ne_bytes);
        Ok(Self {
            group: read(bytes, 0).map_or(0, u32::from_ne_bytes),
            peer_gid: long(8),
            gid: long(16),
            token: long(24),
            peer_token: long(32),
            peer_gid_extension: long(40),
            gid_extension: long(48),
        })
    }
}

/// Why a socket uses TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// Our reason.
    pub reason: Reason,
    /// What the peer gave as its reason.
    pub peer_diagnosis: Reason,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SocketInfo {
    /// Address family of the socket itself: 43, or 2 and 10 for IPPROTO_SMC.
    pub family: u8,
    /// State.
    pub state: State,
    /// What carries its data.
    pub mode: Mode,
    /// Own address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Interface that it is bound to, zero if none.
    pub ifindex: u32,
    /// User.
    pub uid: u32,
    /// Inode.
    pub inode: u64,
    /// Cookie of the socket.
    pub cookie: u64,
    /// The receiving side is shut.
    pub shut_receive: bool,
    /// The sending side is shut.
    pub shut_send: bool,
    /// Why it uses TCP, if it does.
    pub fallback: Option<Fallback>,
    /// Buffers and cursors, if it is connected.
    pub connection: Option<ConnectionInfo>,
    /// Its link, if it has one.
    pub link: Option<LinkInfo>,
    /// Its buffers, if it uses SMC-D.
    pub dmb: Option<DmbInfo>,
}

fn short(what: &str) -> Malformed {
    Malformed(format!("information about the {what} is too short"))
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn address(bytes: [u8; 16], port: [u8; 2], family: u8) -> SocketAddr {
    let [a, b, c, d, rest @ ..] = bytes;
    // An IPv4 address has its place in the first word; the socket may be of family 43.
    let ip = if rest == [0; 12] && (family != 10 || [a, b, c, d] != [0; 4]) {
        IpAddr::from(Ipv4Addr::new(a, b, c, d))
    } else {
        let ip = Ipv6Addr::from(bytes);
        ip.to_ipv4_mapped().map_or(IpAddr::from(ip), IpAddr::from)
    };
    SocketAddr::new(ip, u16::from_be_bytes(port))
}

impl SocketInfo {
    /// Reads a message of sock_diag.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (message, rest) = bytes
            .split_first_chunk::<MESSAGE_LEN>()
            .ok_or_else(|| short("socket"))?;
        let at = |at: usize| read(message, at).map_or(0, u32::from_ne_bytes);
        let family = message[0];
        let end = |ip: usize, port: usize| {
            let ip = read(message, ip).unwrap_or_default();
            address(ip, read(message, port).unwrap_or_default(), family)
        };
        let attrs = Attrs::parse(rest)?;
        let shutdown = attrs.u8(SHUTDOWN)?.unwrap_or_default();
        let mode = Mode(message[2]);
        let fallback = attrs.bytes(FALLBACK).filter(|_| mode == Mode(1));
        let fallback = fallback
            .map(|bytes| {
                let bytes: &[u8; 8] = bytes.first_chunk().ok_or_else(|| short("fallback"))?;
                let code = |at: usize| Reason(read(bytes, at).map_or(0, u32::from_ne_bytes));
                Ok(Fallback {
                    reason: code(0),
                    peer_diagnosis: code(4),
                })
            })
            .transpose()?;
        Ok(Self {
            family,
            state: State(message[1]),
            mode,
            local: end(8, 4),
            peer: end(24, 6),
            ifindex: at(40),
            uid: at(52),
            inode: read(message, 56).map_or(0, u64::from_ne_bytes),
            cookie: (u64::from(at(48)) << 32) | u64::from(at(44)),
            shut_receive: shutdown & 1 != 0,
            shut_send: shutdown & 2 != 0,
            fallback,
            connection: attrs
                .bytes(CONNINFO)
                .map(ConnectionInfo::decode)
                .transpose()?,
            link: attrs.bytes(LGRINFO).map(LinkInfo::decode).transpose()?,
            dmb: attrs.bytes(DMBINFO).map(DmbInfo::decode).transpose()?,
        })
    }

    /// All sockets of the namespace.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        // Family, then which attributes are wanted, then an id that nobody looks at.
        let mut request = [0; 52];
        request[0] = AF_SMC as u8;
        request[3] = [CONNINFO, LGRINFO, DMBINFO]
            .iter()
            .fold(0, |bits, attr| bits | (1 << (attr - 1)));
        let messages = source.sockets(&request)?;
        Ok(messages
            .iter()
            .map(|bytes| Self::decode(bytes))
            .collect::<Result<_, _>>()?)
    }
}
