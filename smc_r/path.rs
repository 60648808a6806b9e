// SPDX-License-Identifier: GPL-2.0

//! Which port a connection can use, and whether the two ends are on the same subnet
//! (RFC 7609 section 3.5.1.2).

use core::net::IpAddr;

use kapi::{
    ib,
    netdev::{NetDev, NetDevice},
    sock::{Sk, SockAddr},
    tcp::TcpSocket, //
};
use kernel::prelude::*;
use smc_proto::{
    clc::{Ipv4Subnet, Ipv6Prefix, OfferV1, Prefixes, Proposal},
    error::ParseError,
    list::List,
    wire::{Diagnosis, Gid, Mac, PeerId}, //
};

use crate::{
    device::{Path, Want},
    pnet,
    socket::SmcSocket, //
};

/// Prefixes that a Proposal can name.
const MAX_PREFIXES: usize = 8;

/// Our address in the TCP connection; IPv4 where it is mapped.
fn source(tcp: &TcpSocket) -> Result<IpAddr, Diagnosis> {
    let local = tcp.local_addr().map_err(|_| Diagnosis::CONFIGURATION)?;
    if let Some(v4) = local.v4() {
        return Ok(IpAddr::from(v4));
    }
    match local {
        SockAddr::V6 { addr, .. } => Ok(IpAddr::from(addr)),
        _ => Err(Diagnosis::CONFIGURATION),
    }
}

/// The addresses of an interface that count: IPv6, but not link-local.
struct Ipv6Addresses {
    entries: [([u8; 16], u8); MAX_PREFIXES],
    count: usize,
}

impl Ipv6Addresses {
    fn of(dev: &NetDev) -> Self {
        let mut entries = [([0; 16], 0); MAX_PREFIXES];
        let count = dev.ipv6_addrs(&mut entries);
        Self { entries, count }
    }

    fn iter(&self) -> impl Iterator<Item = &([u8; 16], u8)> {
        self.entries.iter().take(self.count)
    }
}

/// Length of the prefix of `source` on `dev`.
fn prefix_len(dev: &NetDev, source: IpAddr) -> Option<u8> {
    match source {
        IpAddr::V4(addr) => dev.ipv4_prefix(addr.octets()),
        IpAddr::V6(addr) => {
            let same = |entry: &([u8; 16], u8)| {
                Ipv6Prefix::of(entry.0, entry.1) == Ipv6Prefix::of(addr.octets(), entry.1)
            };
            Ipv6Addresses::of(dev)
                .iter()
                .find(|entry| same(entry))
                .map(|(_, len)| *len)
        }
    }
}

/// The way that the TCP connection takes.
struct Egress {
    dev: NetDev,
    ifindex: u32,
}

impl Egress {
    fn of(tcp: &TcpSocket) -> Result<Self, Diagnosis> {
        let route = tcp.route().map_err(|_| Diagnosis::CONFIGURATION)?;
        if route.uses_xfrm {
            return Err(Diagnosis::IPSEC);
        }
        let ifindex = u32::try_from(route.ifindex).map_err(|_| Diagnosis::CONFIGURATION)?;
        let dev = route.dev.ok_or(Diagnosis::CONFIGURATION)?;
        Ok(Self { dev, ifindex })
    }
}

/// How far down a VLAN is looked for.
const MAX_DEPTH: usize = 8;

/// The VLAN of the packets that an interface sends: its own, or that of what is below it.
fn vlan(dev: &NetDevice, depth: usize) -> Option<u16> {
    dev.vlan().or_else(|| {
        let depth = depth.checked_sub(1)?;
        vlan(&*dev.lowers::<1>().next()?, depth)
    })
}

/// How a socket wants its packets to be treated.
fn service(tcp: &TcpSocket) -> ib::Service {
    ib::Service {
        traffic_class: tcp.traffic_class(),
        // There are eight levels; higher numbers are classes of the host alone.
        level: u8::try_from(tcp.priority())
            .ok()
            .filter(|priority| *priority < 8)
            .unwrap_or(0),
    }
}

/// The port that the connection can use.
fn find(
    sk: &Sk<SmcSocket>,
    tcp: &TcpSocket,
    route: &Egress,
    source: IpAddr,
) -> Result<Path, Diagnosis> {
    let prefix_len = prefix_len(&route.dev, source).ok_or(Diagnosis::CONFIGURATION)?;
    let want = Want {
        namespace: sk.ns.cookie,
        ifindex: Some(route.ifindex),
        source,
        pnet: pnet::of_interface(&route.dev),
        vlan: vlan(&route.dev, MAX_DEPTH),
        prefix_len,
        roce_v2: true,
    };
    let path = sk
        .ns
        .shared
        .devices
        .find(&want)
        .ok_or(Diagnosis::NO_SMC_R_DEVICE)?;
    Ok(Path {
        service: service(tcp),
        ..path
    })
}

/// The Proposal of a client, and the port it names. Process context.
pub(crate) fn proposal(
    sk: &Sk<SmcSocket>,
    tcp: &TcpSocket,
    own: PeerId,
) -> Result<(Proposal, Path), Diagnosis> {
    let route = Egress::of(tcp)?;
    let source = source(tcp)?;
    let path = find(sk, tcp, &route, source)?;
    let prefixes = match source {
        IpAddr::V4(addr) => {
            let len = route
                .dev
                .ipv4_prefix(addr.octets())
                .ok_or(Diagnosis::CONFIGURATION)?;
            Prefixes::V4(Ipv4Subnet::of(addr.octets(), len).ok_or(Diagnosis::CONFIGURATION)?)
        }
        IpAddr::V6(_) => {
            let mut list = List::new();
            for (addr, len) in Ipv6Addresses::of(&route.dev).iter() {
                if let Some(prefix) = Ipv6Prefix::of(*addr, *len) {
                    // There is room: both lists have the same limit.
                    let _ = list.push(prefix);
                }
            }
            Prefixes::V6(list)
        }
    };
    let proposal = Proposal {
        version: 1,
        peer_id: own,
        v1: Ok(OfferV1 {
            gid: path.gid,
            mac: path.mac,
            prefixes,
        }),
        v2: Err(ParseError::NotOffered),
    };
    Ok((proposal, path))
}

/// What a server makes of a Proposal: the client's port, and ours. Process context.
pub(crate) fn matching(
    sk: &Sk<SmcSocket>,
    tcp: &TcpSocket,
    proposal: &Proposal,
) -> Result<((Mac, Gid), Path), Diagnosis> {
    let offer = proposal.smcr_v1()?;
    let route = Egress::of(tcp)?;
    let source = source(tcp)?;
    let same_subnet = match source {
        IpAddr::V4(addr) => route
            .dev
            .ipv4_prefix(addr.octets())
            .is_some_and(|len| offer.prefixes.matches_ipv4(addr.octets(), len)),
        IpAddr::V6(_) => Ipv6Addresses::of(&route.dev)
            .iter()
            .any(|(addr, len)| offer.prefixes.matches_ipv6(*addr, *len)),
    };
    if !same_subnet {
        return Err(Diagnosis::SUBNET_MISMATCH);
    }
    let path = find(sk, tcp, &route, source)?;
    Ok(((offer.mac, offer.gid), path))
}
