// SPDX-License-Identifier: GPL-2.0

//! Read-only view of the sockets of a namespace, for reports on them.
//!
//! A [`Snapshot`] is a copy, taken while nobody
//! waits: the reader may sleep over it, and sockets come and go meanwhile. Sockets are numbered in
//! the order in which they were made, and no number comes back, so that reading can stop anywhere
//! and go on after the last number that was seen.

use core::net::Ipv6Addr;

use kapi::{
    net::Net,
    sock::{self, Family, Ids, Kind, Origin, Sk}, //
};
use kernel::{prelude::*, sync::Arc};
use smc_proto::{conn::Diag, group::Role, wire::Gid};

use crate::{
    group::Group,
    link::Link,
    socket::{sk_state, Phase, SmcSocket}, //
};

/// What carries the data of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// RDMA; or it is not decided yet.
    Rdma,
    /// Plain TCP.
    Tcp {
        /// Why, as a code of our own Decline.
        reason: u32,
        /// The code of the peer's Decline, or 0.
        peer: u32,
    },
}

/// The link that a connection uses.
#[derive(Clone, Copy)]
pub(crate) struct LinkView {
    /// Its number on the wire.
    pub(crate) number: u8,
    /// Our side of the link group.
    pub(crate) role: Role,
    /// Name of the RDMA device, padded with zeroes.
    pub(crate) device: [u8; 64],
    /// Port of the device.
    pub(crate) port: u8,
    /// Our GID.
    pub(crate) gid: Gid,
    /// The peer's GID.
    pub(crate) peer_gid: Gid,
}

/// An accelerated connection.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionView {
    /// The token by which the peer names it.
    pub(crate) token: u32,
    /// Cursors and flags.
    pub(crate) diag: Diag,
    /// The link; none if the group is over.
    pub(crate) link: Option<LinkView>,
}

/// A socket.
pub(crate) struct Snapshot {
    /// Above the numbers of all sockets made before.
    pub(crate) number: u64,
    /// How the socket was made, and the family of its TCP connection.
    pub(crate) kind: Kind,
    /// The state, one of the numbers that user space knows.
    pub(crate) state: u8,
    /// What carries the data.
    pub(crate) mode: Mode,
    /// Which directions are shut: bit 0 for receiving, bit 1 for sending.
    pub(crate) shutdown: u8,
    /// Our address, that of IPv4 in the form of IPv6, and port; none without a TCP socket.
    pub(crate) local: Option<(Ipv6Addr, u16)>,
    /// Those of the peer; none without one.
    pub(crate) peer: Option<(Ipv6Addr, u16)>,
    /// Index of the interface that the socket is bound to, or 0.
    pub(crate) bound_dev_if: i32,
    /// Cookie, inode and owner.
    pub(crate) ids: Ids,
    /// The connection, while data moves by RDMA.
    pub(crate) connection: Option<ConnectionView>,
}

impl Snapshot {
    /// `None` for what the program has done with.
    fn of(sk: &Sk<SmcSocket>, number: u64) -> Option<Self> {
        let phase = sk.phase();
        if phase == Phase::Dead && !sk.has_file() {
            return None;
        }
        let tcp = sk.tcp().ok();
        let mut shutdown = sk.shutdown_mask();
        let mode = if phase == Phase::Fallback {
            let (reason, peer) = sk.fallback();
            shutdown |= tcp.as_ref().map_or(0, |tcp| tcp.shutdown_mask());
            Mode::Tcp {
                reason: reason.0,
                peer: peer.0,
            }
        } else {
            Mode::Rdma
        };
        Some(Self {
            number,
            kind: sk.kind(),
            state: match phase {
                Phase::Idle | Phase::Connecting => sk_state::INIT,
                _ => sk.state(),
            },
            mode,
            shutdown,
            local: tcp.as_ref().map(|tcp| tcp.end(false)),
            // What is not connected any more has still the address.
            peer: tcp
                .as_ref()
                .map(|tcp| tcp.end(true))
                .filter(|end| end.1 != 0),
            bound_dev_if: sk.bound_dev_if(),
            ids: sk.ids(),
            connection: ConnectionView::of(sk),
        })
    }

    /// The address family that the socket was made with: `AF_INET` or `AF_INET6`, or `native`
    /// where it is one of the module's own.
    pub(crate) fn family(&self, native: u16) -> u16 {
        match self.kind.origin {
            Origin::Native => native,
            Origin::Inet => self.kind.family.number(),
        }
    }
}

impl ConnectionView {
    fn of(sk: &Sk<SmcSocket>) -> Option<Self> {
        let (token, diag, group, link) = {
            let guard = sk.conn.lock();
            let connection = guard.as_ref()?;
            let (group, link) = (connection.group.clone(), connection.link.clone());
            (connection.token.get(), connection.diag(), group, link)
        };
        Some(Self {
            token,
            diag,
            link: LinkView::of(&group, &link),
        })
    }
}

impl LinkView {
    fn of(group: &Arc<Group>, link: &Link) -> Option<Self> {
        if group.is_over() {
            return None;
        }
        let ends = group.link_ends(link.place);
        Some(Self {
            number: ends.number,
            role: group.role,
            device: link.path.device.name().padded(),
            port: link.path.port,
            gid: link.path.gid,
            peer_gid: ends.peer_gid,
        })
    }
}

/// The number of the socket that was made last, in whatever namespace.
pub(crate) fn last_number() -> u64 {
    sock::last_number::<SmcSocket>()
}

/// Calls `f` for the sockets of a namespace whose TCP sockets are of family `family` and whose
/// numbers are above `after` and not above `last`, in ascending order. Ends with the first error of
/// `f`, which it returns. Process context.
pub(crate) fn for_each(
    net: &Net,
    family: Family,
    (after, last): (u64, u64),
    f: &mut dyn FnMut(&Snapshot) -> Result,
) -> Result {
    let mut result = Ok(());
    sock::for_each::<SmcSocket>(net, after, last, |sk, number| {
        if sk.kind().family != family {
            return true;
        }
        if let Some(snapshot) = Snapshot::of(sk, number) {
            result = f(&snapshot);
        }
        result.is_ok()
    });
    result
}
