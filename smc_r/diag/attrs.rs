// SPDX-License-Identifier: GPL-2.0

//! One socket as a message: the layouts of `include/uapi/linux/smc_diag.h`.

use core::net::Ipv6Addr;

use kapi::{diag::Writer, sock::Family};
use kernel::prelude::*;
use smc_proto::{cursor::Cursor, group::Role};

use crate::{
    diag::Wanted,
    snapshot::{ConnectionView, LinkView, Mode, Snapshot}, //
};

/// Numbers of attributes.
const CONNINFO: u16 = 1;
const LGRINFO: u16 = 2;
const SHUTDOWN: u16 = 3;
const FALLBACK: u16 = 5;

/// Length of `struct smc_diag_msg`.
const MESSAGE_LEN: usize = 64;

/// Length of `struct smc_diag_conninfo`.
const CONNINFO_LEN: usize = 76;

/// Length of `struct smc_diag_lgrinfo`.
const LGRINFO_LEN: usize = 147;

/// `AF_SMC` as messages have it.
const AF_SMC: u8 = crate::AF_SMC as u8;

/// Values of `diag_mode`.
const MODE_SMC_R: u8 = 0;
const MODE_TCP: u8 = 1;

/// A C structure, written field by field.
struct Fields<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Fields<N> {
    fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// Writes a field; what is beyond the structure's end is dropped.
    fn put(&mut self, field: &[u8]) -> &mut Self {
        let rest = self.bytes.get_mut(self.len..).unwrap_or(&mut []);
        for (to, from) in rest.iter_mut().zip(field) {
            *to = *from;
        }
        self.len = self.len.saturating_add(field.len());
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    /// Ports are in the order of the network.
    fn port(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_ne_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_ne_bytes())
    }

    fn cursor(&mut self, cursor: Cursor) -> &mut Self {
        self.put(&[0; 2])
            .put(&cursor.wrap().to_ne_bytes())
            .u32(cursor.offset())
    }
}

/// Writes the attributes of a socket.
pub(super) fn put(message: &mut Writer<'_>, socket: &Snapshot, wanted: Wanted) -> Result {
    message.u8(SHUTDOWN, socket.shutdown)?;
    let (reason, peer) = match socket.mode {
        Mode::Rdma => (0, 0),
        Mode::Tcp { reason, peer } => (reason, peer),
    };
    message.bytes(FALLBACK, &Fields::<8>::new().u32(reason).u32(peer).bytes)?;
    let Some(connection) = &socket.connection else {
        return Ok(());
    };
    if wanted.has(CONNINFO) {
        message.bytes(CONNINFO, &conninfo(connection).bytes)?;
    }
    match &connection.link {
        Some(link) if wanted.has(LGRINFO) => message.bytes(LGRINFO, &lgrinfo(link).bytes),
        _ => Ok(()),
    }
}

/// The 16 bytes of an address: IPv4 is in the first word.
fn address(family: Family, end: Option<(Ipv6Addr, u16)>) -> [u8; 16] {
    let Some((addr, _)) = end else {
        return [0; 16];
    };
    match (family, addr.octets()) {
        (Family::Inet, [.., a, b, c, d]) => [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        (Family::Inet6, octets) => octets,
    }
}

fn port(end: Option<(Ipv6Addr, u16)>) -> u16 {
    end.map_or(0, |(_, port)| port)
}

/// What is in front of the attributes. `uid`: the owner, as the reader knows him.
pub(super) fn header(socket: &Snapshot, uid: u32) -> [u8; MESSAGE_LEN] {
    let mut fields = Fields::<MESSAGE_LEN>::new();
    fields
        .u8(u8::try_from(socket.family(crate::AF_SMC)).unwrap_or(AF_SMC))
        .u8(socket.state)
        .u8(match socket.mode {
            Mode::Rdma => MODE_SMC_R,
            Mode::Tcp { .. } => MODE_TCP,
        })
        // What is shut has an attribute.
        .u8(0)
        .port(port(socket.local))
        .port(port(socket.peer))
        .put(&address(socket.kind.family, socket.local))
        .put(&address(socket.kind.family, socket.peer))
        .put(&socket.bound_dev_if.to_ne_bytes())
        .u32(socket.ids.cookie as u32)
        .u32((socket.ids.cookie >> 32) as u32)
        .u32(uid)
        .u64(socket.ids.inode);
    fields.bytes
}

fn conninfo(connection: &ConnectionView) -> Fields<CONNINFO_LEN> {
    let diag = &connection.diag;
    let mut fields = Fields::new();
    fields
        .u32(connection.token)
        .u32(diag.send_ring)
        .u32(diag.element)
        .u32(diag.peer_element)
        .cursor(diag.rx_producer)
        .cursor(diag.rx_consumer)
        .cursor(diag.tx_producer)
        .cursor(diag.tx_consumer)
        .u8(diag.rx_prod_flags.bits())
        .u8(diag.rx_state_flags.bits())
        .u8(diag.tx_prod_flags.bits())
        .u8(diag.tx_state_flags.bits())
        .cursor(diag.prepared)
        .cursor(diag.sent)
        .cursor(diag.confirmed);
    fields
}

fn lgrinfo(link: &LinkView) -> Fields<LGRINFO_LEN> {
    let mut fields = Fields::new();
    fields
        .u8(link.number)
        .put(&link.device)
        .u8(link.port)
        .put(&link.gid.text())
        .u8(0)
        .put(&link.peer_gid.text())
        .u8(0)
        .u8(u8::from(link.role == Role::Server));
    fields
}
