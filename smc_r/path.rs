// SPDX-License-Identifier: GPL-2.0

//! Which port a connection can use, in which version, and whether the two ends are on the same
//! subnet (RFC 7609 section 3.5.1.2). Version 2 asks for a route instead.

use core::net::IpAddr;

use kapi::{
    errno::EHOSTUNREACH,
    grow::Grow,
    ib::{self, GidKind},
    net::{Hop, Net, Way},
    netdev::{NetDev, NetDevice},
    sock::{Sk, SockAddr},
    tcp::TcpSocket, //
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta}, //
};
use smc_proto::{
    clc::{AcceptV2, Ipv4Subnet, Ipv6Prefix, OfferV1, OfferV2, Prefixes, Proposal},
    error::ParseError,
    gid::{Allowed, Wanted},
    list::List,
    wire::{Diagnosis, Gid, Mac, PeerId}, //
};

use crate::{
    device::{DeviceTable, Path, Want},
    netns::{Setting, VERSION_1, VERSION_2},
    pnet,
    socket::SmcSocket, //
};

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

/// Length of the prefix of the smallest subnet of `dev` in which `source` is. Additional addresses often have a prefix of all
/// bits, which counts only where the interface has no other one around them.
fn prefix_len(dev: &NetDev, source: IpAddr) -> Option<u8> {
    let mut best = None;
    // None is the last one.
    let mut take = |len: u8, all: u8| {
        if best.is_none_or(|before| before == all || (len < all && len > before)) {
            best = Some(len);
        }
        false
    };
    match source {
        IpAddr::V4(source) => {
            dev.find_ipv4(|addr, len| {
                let subnet = Ipv4Subnet::of(addr, len);
                let is_in = subnet.is_some() && subnet == Ipv4Subnet::of(source.octets(), len);
                is_in && take(len, 32)
            });
        }
        IpAddr::V6(source) => {
            dev.find_ipv6(|addr, len| {
                let prefix = Ipv6Prefix::of(addr, len);
                let is_in = prefix.is_some() && prefix == Ipv6Prefix::of(source.octets(), len);
                is_in && take(len, 128)
            });
        }
    }
    best
}

/// The way that the TCP connection takes.
struct Egress {
    dev: NetDev,
    ifindex: u32,
    service: ib::Service,
}

impl Egress {
    fn of(tcp: &TcpSocket) -> Result<Self, Diagnosis> {
        let route = tcp.route().map_err(|_| Diagnosis::CONFIGURATION)?;
        if route.uses_xfrm {
            return Err(Diagnosis::IPSEC);
        }
        let ifindex = u32::try_from(route.ifindex).map_err(|_| Diagnosis::CONFIGURATION)?;
        let dev = route.dev.ok_or(Diagnosis::CONFIGURATION)?;
        let service = service(tcp);
        Ok(Self {
            dev,
            ifindex,
            service,
        })
    }
}

/// How far down a VLAN is looked for.
const MAX_DEPTH: usize = 8;

/// The VLAN of the packets that an interface sends: its own, or that of what is below it.
fn vlan(dev: &NetDevice, depth: usize) -> Option<u16> {
    dev.vlan().or_else(|| {
        let depth = depth.checked_sub(1)?;
        vlan(&*dev.lower(0)?, depth)
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

/// An address of ours, and the length of the prefix of the subnet that the interface has around it.
#[derive(Clone, Copy)]
struct Source {
    addr: IpAddr,
    prefix_len: u8,
}

impl Source {
    fn on(dev: &NetDev, addr: IpAddr) -> Result<Self, Diagnosis> {
        let prefix_len = prefix_len(dev, addr).ok_or(Diagnosis::CONFIGURATION)?;
        Ok(Self { addr, prefix_len })
    }
}

/// The port that the connection can use.
fn find(
    sk: &Sk<SmcSocket>,
    route: &Egress,
    source: Source,
    allowed: Allowed,
) -> Result<Path, Diagnosis> {
    let want = Want {
        pnet: pnet::of_interface(&route.dev),
        gid: Wanted {
            namespace: sk.ns.cookie,
            ifindex: Some(route.ifindex),
            vlan: vlan(&route.dev, MAX_DEPTH),
            source: source.addr,
            prefix_len: source.prefix_len,
            allowed,
        },
    };
    let path = sk
        .ns
        .shared
        .devices
        .find(&want)
        .ok_or(Diagnosis::NO_SMC_R_DEVICE)?;
    Ok(Path {
        service: route.service,
        ..path
    })
}

/// The GIDs that version 1 may use here.
fn gids_of_v1(sk: &Sk<SmcSocket>) -> Allowed {
    match sk.ns.setting(Setting::V1Gids) {
        VERSION_1 => Allowed::V1,
        VERSION_2 => Allowed::V2,
        _ => Allowed::Any,
    }
}

/// A port for version 2, of a device that can put a long message into two places.
fn find_v2(sk: &Sk<SmcSocket>, route: &Egress, source: IpAddr) -> Result<Path, Diagnosis> {
    let path = find(sk, route, Source::on(&route.dev, source)?, Allowed::V2)?;
    if !path.device.receives_in_two() {
        return Err(Diagnosis::NO_SMC_R_DEVICE);
    }
    Ok(path)
}

/// The address that a GID of RoCE version 2 stands for.
fn address(gid: Gid) -> IpAddr {
    match gid.ipv4() {
        Some(addr) => IpAddr::from(addr),
        None => IpAddr::from(gid.0),
    }
}

/// Version 2: whether the peer's port is on the same link as ours, or behind a gateway. Process
/// context.
pub(crate) fn is_direct(path: &Path, peer: Gid) -> Result<bool, Diagnosis> {
    let way = way(path, peer).map_err(|_| Diagnosis::NO_ROUTE)?;
    if let Hop::Gateway(_) = way.hop {
        way_by_gateway(path, peer).map_err(|_| Diagnosis::NO_ROUTE)?;
    }
    Ok(way.hop == Hop::Direct)
}

/// Version 2: the Ethernet address of the gateway to the peer's port, which devices do not find by
/// themselves. Process context; waits for the gateway's answer if it is not known, a second at most.
pub(crate) fn gateway_mac(path: &Path, peer: Gid) -> Result<Mac> {
    for _ in 0..10 {
        if let Some(mac) = way_by_gateway(path, peer)?.mac {
            return Ok(Mac(mac));
        }
        fsleep(Delta::from_millis(100));
    }
    Err(EHOSTUNREACH)
}

/// Asks for the Ethernet address of the peer's port, which is on the same link. Our own comes with the question: to
/// a host that sends to a former one, as `rdma_rxe` does, a link would seem dead. Process context.
pub(crate) fn ask_for(path: &Path, peer: Gid) {
    let peer = address(peer);
    if let Some(dev) = netdev(path).filter(|_| path.gid_kind == GidKind::V2 && is_unicast(&peer)) {
        dev.ask_for(address(path.gid), peer);
    }
}

/// How packets to the peer's port leave the host.
fn way(path: &Path, peer: Gid) -> Result<Way> {
    let is_link_local = match address(peer) {
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    };
    way_through(is_link_local.then_some(path.netdev.ifindex), path, peer)
}

/// The same through the interface with that index, if there is one.
fn way_through(ifindex: Option<u32>, path: &Path, peer: Gid) -> Result<Way> {
    let peer = address(peer);
    if !is_unicast(&peer) {
        return Err(EHOSTUNREACH);
    }
    let net = Net::by_id(path.netdev.namespace).ok_or(ENODEV)?;
    let way = net.route(address(path.gid), peer, ifindex);
    way.ok_or(EHOSTUNREACH)
}

/// The way from our port to the peer's by a gateway. Devices send through their own interface, whichever one
/// the host's route leads to; so the gateway is that of the interface, or the host's if it is on the same link.
fn way_by_gateway(path: &Path, peer: Gid) -> Result<Way> {
    let own = way_through(Some(path.netdev.ifindex), path, peer)
        .ok()
        .filter(|way| matches!(way.hop, Hop::Gateway(_)));
    let hosts = || {
        let way = way(path, peer).ok()?;
        matches!(way.hop, Hop::Gateway(gateway) if is_on_link(path, gateway)).then_some(way)
    };
    own.or_else(hosts).ok_or(EHOSTUNREACH)
}

/// The paths for a further link of the group whose first one was on `first`. If the peer's port is
/// known, only those that lead to it, all of them with a gateway in between or none. Process context.
pub(crate) fn further(
    devices: &DeviceTable,
    first: &Path,
    peer: Option<Gid>,
    direct: bool,
) -> Result<KVec<Path>> {
    let mut paths = devices.beside(first, first.want.gid.source)?;
    let (Some(peer), GidKind::V2) = (peer, first.gid_kind) else {
        return Ok(paths);
    };
    let leads = |path: &Path| {
        if direct {
            is_on_link(path, address(peer))
        } else {
            way_by_gateway(path, peer).is_ok()
        }
    };
    paths.keep(&leads);
    if first.want.pnet.is_some() {
        // A port in the same physical network may be in several subnets, the peer's among them.
        for near in devices.beside(first, address(peer))? {
            let is_known = paths.iter().any(|path| path.is_on(&near.device, near.port));
            if !is_known && leads(&near) {
                paths.append(near, GFP_KERNEL)?;
            }
        }
    }
    Ok(paths)
}

/// Whether an address is in the subnet of our port. A route does not tell: devices send through their own
/// interface, whichever one it leads to.
fn is_on_link(path: &Path, addr: IpAddr) -> bool {
    let Some(dev) = netdev(path) else {
        return false;
    };
    let own = address(path.gid);
    prefix_len(&dev, own).is_some_and(|len| match (own, addr) {
        (IpAddr::V4(own), IpAddr::V4(addr)) => {
            Ipv4Subnet::of(own.octets(), len) == Ipv4Subnet::of(addr.octets(), len)
        }
        (IpAddr::V6(own), IpAddr::V6(addr)) => {
            Ipv6Prefix::of(own.octets(), len) == Ipv6Prefix::of(addr.octets(), len)
        }
        _ => false,
    })
}

fn netdev(path: &Path) -> Option<NetDev> {
    let net = Net::by_id(path.netdev.namespace)?;
    NetDevice::by_index(&net, i32::try_from(path.netdev.ifindex).ok()?)
}

fn is_unicast(addr: &IpAddr) -> bool {
    let broadcast = matches!(addr, IpAddr::V4(addr) if addr.is_broadcast());
    !(broadcast || addr.is_multicast() || addr.is_unspecified() || addr.is_loopback())
}

/// Whether the peer's GID is that of one port. What goes by UDP to a whole network would be heard by hosts that have nothing
/// to do with the group.
pub(crate) fn is_one_port(path: &Path, peer: Gid) -> bool {
    let peer = address(peer);
    path.gid_kind != GidKind::V2 || is_unicast(&peer) && !is_for_all(path, peer)
}

/// Whether an address is that of all hosts in a subnet of our port.
fn is_for_all(path: &Path, addr: IpAddr) -> bool {
    let (IpAddr::V4(addr), Some(dev)) = (addr, netdev(path)) else {
        return false;
    };
    // In any of them: devices do not look at the route.
    let is_last = |own: [u8; 4], len: u8| {
        let hosts = u32::MAX.checked_shr(len.into()).unwrap_or(0);
        hosts > 1 && u32::from(addr) == u32::from_be_bytes(own) | hosts
    };
    dev.find_ipv4(is_last).is_some()
}

/// The ports that a client offers.
#[derive(Default)]
pub(crate) struct Offered {
    /// For version 1.
    pub(crate) v1: Option<Path>,
    /// For version 2.
    pub(crate) v2: Option<Path>,
}

/// The Proposal of a client. The ports that it names go to `offered`. Process context.
pub(crate) fn proposal(
    sk: &Sk<SmcSocket>,
    tcp: &TcpSocket,
    own: PeerId,
    offered: &mut Offered,
) -> Result<Proposal, Diagnosis> {
    let route = Egress::of(tcp)?;
    let source = source(tcp)?;
    let v1 = offer_v1(sk, &route, source, &mut offered.v1);
    let v2 = offer_v2(sk, &route, source, &mut offered.v2);
    if let (Err(of_v1), Err(of_v2)) = (&v1, &v2) {
        let only_v2 = !sk.ns.may_speak(VERSION_1);
        return Err(if only_v2 { *of_v2 } else { *of_v1 });
    }
    Ok(Proposal {
        version: if v2.is_ok() { 2 } else { 1 },
        peer_id: own,
        v1: v1.map_err(|_| ParseError::NotOffered),
        v2: v2.map_err(|_| ParseError::NotOffered),
    })
}

fn offer_v2(
    sk: &Sk<SmcSocket>,
    route: &Egress,
    source: IpAddr,
    offered: &mut Option<Path>,
) -> Result<OfferV2, Diagnosis> {
    let own = sk.ns.own_v2().ok_or(Diagnosis::NO_USER_EID)?;
    let path = offered.insert(find_v2(sk, route, source)?);
    own.offer(path.gid).ok_or(Diagnosis::NO_USER_EID)
}

fn offer_v1(
    sk: &Sk<SmcSocket>,
    route: &Egress,
    source: IpAddr,
    offered: &mut Option<Path>,
) -> Result<OfferV1, Diagnosis> {
    if !sk.ns.may_speak(VERSION_1) {
        return Err(Diagnosis::NO_SMC_R_DEVICE);
    }
    let source = Source::on(&route.dev, source)?;
    let path = find(sk, route, source, gids_of_v1(sk))?;
    let prefixes = match source.addr {
        IpAddr::V4(addr) => {
            let subnet = Ipv4Subnet::of(addr.octets(), source.prefix_len);
            Prefixes::V4(subnet.ok_or(Diagnosis::CONFIGURATION)?)
        }
        IpAddr::V6(_) => {
            let mut list = List::new();
            // As many as there is room for.
            route.dev.find_ipv6(|addr, len| {
                Ipv6Prefix::of(addr, len).is_some_and(|prefix| list.push(prefix).is_err())
            });
            if list.is_empty() {
                return Err(Diagnosis::CONFIGURATION);
            }
            Prefixes::V6(list)
        }
    };
    let path = offered.insert(path);
    Ok(OfferV1 {
        gid: path.gid,
        mac: path.mac,
        prefixes,
    })
}

/// What a server makes of a Proposal.
pub(crate) struct Match {
    /// The client's port. In version 2 its GID alone counts.
    pub(crate) peer: (Mac, Gid),
    /// Our port.
    pub(crate) path: Path,
    /// What a first contact in version 2 says; none in version 1.
    pub(crate) v2: Option<AcceptV2>,
}

/// Chooses the version, and the port. Process context.
#[inline(never)]
pub(crate) fn matching(
    sk: &Sk<SmcSocket>,
    tcp: &TcpSocket,
    proposal: &Proposal,
) -> Result<Match, Diagnosis> {
    let route = Egress::of(tcp)?;
    let source = source(tcp)?;
    proposal.choose(
        |offer| match_v2(sk, &route, source, offer),
        || match_v1(sk, &route, source, proposal.smcr_v1()?),
    )
}

fn match_v2(
    sk: &Sk<SmcSocket>,
    route: &Egress,
    source: IpAddr,
    offer: &OfferV2,
) -> Result<Match, Diagnosis> {
    let own = sk.ns.own_v2().ok_or(Diagnosis::NO_USER_EID)?;
    let eid = own.common_eid(offer)?;
    let path = find_v2(sk, route, source)?;
    let direct = is_direct(&path, offer.gid)?;
    Ok(Match {
        peer: (Mac::default(), offer.gid),
        path,
        v2: Some(own.accept_first(offer, eid, direct)),
    })
}

fn match_v1(
    sk: &Sk<SmcSocket>,
    route: &Egress,
    source: IpAddr,
    offer: &OfferV1,
) -> Result<Match, Diagnosis> {
    if !sk.ns.may_speak(VERSION_1) {
        return Err(Diagnosis::NO_SMC_R_DEVICE);
    }
    // Any address of the interface counts.
    let (dev, prefixes) = (&route.dev, &offer.prefixes);
    let in_common = match source {
        IpAddr::V4(_) => dev
            .find_ipv4(|addr, len| prefixes.matches_ipv4(addr, len))
            .map(|(addr, _)| IpAddr::from(addr)),
        IpAddr::V6(_) => dev
            .find_ipv6(|addr, len| prefixes.matches_ipv6(addr, len))
            .map(|(addr, _)| IpAddr::from(addr)),
    };
    let in_common = in_common.ok_or(Diagnosis::SUBNET_MISMATCH)?;
    // An address that a host has on `lo`, behind a load balancer, is in no subnet of the interface: the port's is then.
    let source = Source::on(dev, source).or_else(|_| Source::on(dev, in_common))?;
    let path = find(sk, route, source, gids_of_v1(sk))?;
    Ok(Match {
        peer: (offer.mac, offer.gid),
        path,
        v2: None,
    })
}
