// SPDX-License-Identifier: GPL-2.0

//! `smcctl why`: what decides whether connections to a peer use SMC, in the order in which a
//! connection meets it.
//!
//! Facts are collected first and judged then, so that the judgement can be tested.

use super::steps::{Report, Step, Verdict};
use super::{read_devices, read_links, Failure, Output};
use crate::model::device::{Device, Port};
use crate::model::group::Link;
use crate::model::own::{self, Drained, FailedPeer, PeerFallback, Rule};
use crate::model::socket::{Fallback, SocketInfo};
use crate::model::system::{self, PnetEntry, SystemInfo};
use crate::netlink::{Address, Error, Interface, Route, Source};
use crate::sys::{self, Gid};
use crate::uapi::{Mode, Reason, Side, State, OWN_FAMILY};
use clap::Args;
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The peer in question.
#[derive(Clone, Debug, Args)]
pub struct WhyArgs {
    /// Address of the peer
    pub address: IpAddr,
    /// Connect to this port of the peer as well
    #[arg(short, long)]
    pub port: Option<u16>,
}

/// Version 1 of SMC-R, or RoCE v1, among those that a setting allows.
pub const V1: u32 = 1;
/// Version 2 of SMC-R, or RoCE v2.
pub const V2: u32 = 2;

/// Where a peer is, as version 1 sees it, which stays in the IP subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the subnet.
    Near,
    /// In the subnet, but packets go by a router.
    NearByRouter(IpAddr),
    /// In another subnet.
    Far,
    /// Nobody says in which subnet this host is.
    Unknown,
}

/// What became of a connection that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It uses SMC.
    Smc(Mode),
    /// It is TCP.
    Tcp(Fallback),
    /// It could not be made.
    Failed(String),
    /// It was made, and nobody says what it is: smc_diag is missing.
    Untold,
}

/// All that is known.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Address of the peer.
    pub address: Option<IpAddr>,
    /// Port in question.
    pub port: Option<u16>,
    /// Module that is loaded.
    pub module: Option<String>,
    /// Its version; only smc_r tells.
    pub version: Option<String>,
    /// What it is capable of.
    pub system: SystemInfo,
    /// User-defined EIDs.
    pub ueids: Vec<String>,
    /// The way to the peer.
    pub route: Option<Route>,
    /// Why there is no way.
    pub route_error: String,
    /// Interface of the route, and what is below it.
    pub interfaces: Vec<String>,
    /// Addresses of this host.
    pub addresses: Vec<Address>,
    /// VLANs by interface, of it or of what is below it.
    pub vlans: Vec<(String, u16)>,
    /// Versions that may be spoken, [`V1`] and [`V2`]; `None` with a module without that setting.
    pub versions: Option<u32>,
    /// GIDs that version 1 may use, in the same way.
    pub v1_gids: Option<u32>,
    /// Table of pnet ids.
    pub pnet: Vec<PnetEntry>,
    /// RDMA devices.
    pub devices: Vec<Device>,
    /// GIDs by device and port.
    pub gids: Vec<(String, u8, Vec<Gid>)>,
    /// What is drained; `None` with a module that knows no such thing.
    pub drained: Option<Vec<Drained>>,
    /// Rules.
    pub rules: Option<Vec<Rule>>,
    /// Peers that fell back.
    pub fallbacks: Option<Vec<PeerFallback>>,
    /// Peers with whom SMC failed a short time ago.
    pub failures: Vec<FailedPeer>,
    /// Sockets; `None` without smc_diag.
    pub sockets: Option<Vec<SocketInfo>>,
    /// Links.
    pub links: Vec<Link>,
    /// What became of a connection that was tried.
    pub probe: Option<Probe>,
}

/// Takes the absence of a family for the absence of an answer.
fn if_there<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match super::status::if_supported(answer) {
        Err(Error::NoFamily(_)) => Ok(None),
        other => other,
    }
}

/// The VLANs of the packets that interfaces send.
fn vlans(names: BTreeSet<&String>, all: &[Interface]) -> Vec<(String, u16)> {
    let own = |name: &String| all.iter().find(|one| one.name == *name)?.vlan;
    let of = |name: &String| Interface::with_lowers(name, all).iter().find_map(own);
    let vlans = names
        .into_iter()
        .filter_map(|name| Some((name.clone(), of(name)?)));
    vlans.collect()
}

/// An address as GIDs write it.
fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Whether so many bits in front are the same.
fn same_subnet(one: IpAddr, other: IpAddr, prefix_len: u8) -> bool {
    let skipped = if one.is_ipv4() { 96 } else { 0 };
    let differ = wide(one).to_bits() ^ wide(other).to_bits();
    one.is_ipv4() == other.is_ipv4()
        && differ.leading_zeros() >= (u32::from(prefix_len) + skipped).min(128)
}

impl Facts {
    fn read(args: &WhyArgs, source: &mut dyn Source) -> Result<Self, Error> {
        let address = args.address.to_canonical();
        let system = match SystemInfo::read(source) {
            Err(Error::NoFamily(_)) => return Ok(Self::default()),
            system => system?,
        };
        let (route, route_error) = match source.route(address) {
            Ok(route) => (Some(route), String::new()),
            Err(error) => (None, error.to_string()),
        };
        let interface = route
            .as_ref()
            .and_then(|route| sys::interface(route.ifindex));
        let all = source.interfaces()?;
        let interfaces = interface.map(|name| Interface::with_lowers(&name, &all));
        let interfaces = interfaces.unwrap_or_default();
        let devices = read_devices(source)?;
        let ports = devices
            .iter()
            .flat_map(|device| device.ports.iter().map(|port| (&device.name, port.port)));
        let gids: Vec<_> = ports
            .map(|(name, port)| (name.clone(), port, sys::gids(name, port)))
            .collect();
        let of_gids = gids.iter().flat_map(|(_, _, gids)| gids);
        let names = of_gids.filter_map(|gid| gid.interface.as_ref());
        let names: BTreeSet<_> = names.chain(interfaces.first()).collect();
        let module = sys::module();
        Ok(Self {
            address: Some(address),
            port: args.port,
            module: Some(module.unwrap_or("SMC").into()),
            addresses: source.addresses()?,
            vlans: vlans(names, &all),
            versions: sys::setting("smcr_versions"),
            // The kernel's own module has no such setting, and takes no others.
            v1_gids: sys::setting("smcr_v1_gids").or((module != Some("smc_r")).then_some(V1)),
            version: if_there(own::version(source))?.flatten(),
            system,
            ueids: if_there(system::ueids(source))?.unwrap_or_default(),
            route,
            route_error,
            interfaces,
            pnet: if_there(PnetEntry::read_all(source))?.unwrap_or_default(),
            gids,
            devices,
            drained: if_there(Drained::read_all(source))?,
            rules: if_there(Rule::read_all(source))?,
            probe: args
                .port
                .map(|port| probe(SocketAddr::new(address, port), source)),
            fallbacks: if_there(PeerFallback::read_all(source))?,
            failures: if_there(FailedPeer::read_all(source))?.unwrap_or_default(),
            sockets: if_there(SocketInfo::read_all(source))?,
            links: read_links(source)?,
        })
    }

    /// The pnet id of the interface: its own, or that of the first below it which has one.
    fn pnet_id(&self) -> Option<&str> {
        let entry = |name: &String| {
            let found = self
                .pnet
                .iter()
                .find(|entry| entry.interface.as_ref() == Some(name));
            found.map(|entry| entry.id.as_str())
        };
        self.interfaces.iter().find_map(entry)
    }

    fn gids_of(&self, device: &str, port: u8) -> &[Gid] {
        let found = self
            .gids
            .iter()
            .find(|(name, number, _)| (name.as_str(), *number) == (device, port));
        found.map_or(&[], |(_, _, gids)| gids)
    }

    fn vlan(&self, interface: Option<&String>) -> Option<u16> {
        let found = self.vlans.iter().find(|(name, _)| Some(name) == interface);
        found.map(|(_, vlan)| *vlan)
    }

    fn source(&self) -> Option<IpAddr> {
        self.route.as_ref()?.source
    }

    /// The addresses of the interface that say in which subnet the connection is: its own, or in IPv6
    /// those in the same subnet, and none that is good on one link only.
    fn own_addresses(&self) -> impl Iterator<Item = &Address> {
        let ifindex = self.route.as_ref().map_or(0, |route| route.ifindex);
        let source = self.source();
        let counts = move |own: &&Address| match (own.address, source) {
            (IpAddr::V6(v6), Some(source)) => {
                !v6.is_unicast_link_local() && same_subnet(own.address, source, own.prefix_len)
            }
            (own, source) => Some(own) == source,
        };
        let own = self.addresses.iter();
        own.filter(move |own| own.ifindex == ifindex).filter(counts)
    }

    /// The subnets that a client of version 1 names: that of its own address, or in IPv6 all those of
    /// the interface.
    fn named_subnets(&self) -> impl Iterator<Item = &Address> {
        let ifindex = self.route.as_ref().map_or(0, |route| route.ifindex);
        let source = self.source();
        let counts = move |own: &&Address| match own.address {
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
            v4 => Some(v4) == source,
        };
        let own = self.addresses.iter();
        own.filter(move |own| own.ifindex == ifindex).filter(counts)
    }

    /// Where the peer is.
    fn place(&self) -> Place {
        // Which address a connection would have is not known, and so its subnet is not.
        if self.source().is_none() {
            return Place::Unknown;
        }
        let near = |own: &Address| {
            self.address
                .is_none_or(|peer| same_subnet(own.address, peer, own.prefix_len))
        };
        let gateway = self.route.as_ref().and_then(|route| route.gateway);
        match (self.named_subnets().any(near), gateway) {
            (true, None) => Place::Near,
            (true, Some(gateway)) => Place::NearByRouter(gateway),
            (false, _) => Place::Far,
        }
    }

    /// What keeps this host from speaking version 2, and what to do.
    fn lacks_v2(&self) -> Option<(&'static str, &'static str)> {
        if !self.system.smcr_v2 {
            return Some(("this module has no version 2", "use one that has"));
        }
        if self.versions.unwrap_or(V1 | V2) & V2 == 0 {
            return Some((
                "net.smc.smcr_versions excludes version 2",
                "`sysctl net.smc.smcr_versions=3`",
            ));
        }
        let no_eid = (
            "this host has no EID for version 2",
            "`smcctl ueid add EID` on both hosts",
        );
        self.ueids.is_empty().then_some(no_eid)
    }

    fn may_speak_v1(&self) -> bool {
        self.versions.unwrap_or(V1 | V2) & V1 != 0
    }

    /// The versions that a connection to the peer can have, each with the GIDs that it may use. If
    /// there is none, which is told elsewhere, what there is for any.
    fn speaks(&self) -> Vec<(u32, u32)> {
        let of_v1 = self.v1_gids.unwrap_or(V1 | V2);
        let near = self.place() != Place::Far;
        let v1 = (self.may_speak_v1() && near).then_some((V1, of_v1));
        let v2 = self.lacks_v2().is_none().then_some((V2, V2));
        let speaks: Vec<_> = v1.into_iter().chain(v2).collect();
        if speaks.is_empty() {
            return vec![(V1, of_v1)];
        }
        speaks
    }

    /// How well a GID does, by the rules of the module: more is better, `None` is not at all.
    fn rank(&self, gid: &Gid, kinds: u32) -> Option<u8> {
        let interface = self.interfaces.first();
        let direct = interface.is_some() && gid.interface.as_ref() == interface;
        let named = self.pnet_id().is_some();
        // Another port of the same network has to be in the same VLAN of it.
        let same_vlan = self.vlan(gid.interface.as_ref()) == self.vlan(interface);
        let same_network = named && same_vlan;
        if !direct && !same_network {
            return None;
        }
        let rank = match gid.kind.contains("v2") {
            false if kinds & V1 != 0 => 4,
            true if kinds & V2 != 0 => self
                .rank_address(gid.gid)
                .or((named && !gid.gid.is_unicast_link_local()).then_some(1))?,
            _ => return None,
        };
        Some(if direct { 8 + rank } else { rank })
    }

    fn rank_address(&self, gid: Ipv6Addr) -> Option<u8> {
        let source = self.source()?;
        if wide(source) == gid {
            return Some(3);
        }
        let near = |own: &Address| {
            own.prefix_len > 0 && same_subnet(own.address, gid.to_canonical(), own.prefix_len)
        };
        self.own_addresses().any(near).then_some(2)
    }

    /// Whether a port has a GID that would do for a connection from an address in its subnet.
    fn may_have_gid(&self, device: &str, port: u8, kinds: u32) -> bool {
        let interface = self.interfaces.first();
        let may_do = |gid: &Gid| {
            kinds & V2 != 0
                && gid.kind.contains("v2")
                && gid.interface.as_ref() == interface
                && !gid.gid.is_unicast_link_local()
        };
        self.gids_of(device, port).iter().any(may_do)
    }

    /// The GID of a port that a connection takes.
    fn best_gid(&self, device: &str, port: u8, kinds: u32) -> Option<&Gid> {
        let gids = self.gids_of(device, port).iter().rev();
        let ranked = gids.filter_map(|gid| Some((self.rank(gid, kinds)?, gid)));
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, gid)| gid)
    }

    /// Ports of the network that the interface is in.
    fn ports(&self) -> Vec<(&str, &Port)> {
        let ifindex = self.route.as_ref().map_or(0, |route| route.ifindex);
        let pnet_id = self.pnet_id();
        let interface = self.interfaces.first();
        let fits = |device: &str, port: &Port| match pnet_id {
            Some(id) => port.pnet_id.as_deref() == Some(id),
            None => {
                let gids = self.gids_of(device, port.port);
                (port.ifindex == ifindex && ifindex != 0)
                    || (interface.is_some()
                        && gids.iter().any(|gid| gid.interface.as_ref() == interface))
            }
        };
        self.devices
            .iter()
            .flat_map(|device| device.ports.iter().map(|port| (device.name.as_str(), port)))
            .filter(|(device, port)| fits(device, port))
            .collect()
    }
}

/// How long a connection that is tried may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects, and looks what became of that.
fn probe(peer: SocketAddr, source: &mut dyn Source) -> Probe {
    // Protocol 1 stands for IPv6.
    let protocol = Protocol::from(i32::from(peer.is_ipv6()));
    let connect = || {
        let socket = Socket::new(Domain::from(sys::AF_SMC), Type::STREAM, Some(protocol))?;
        socket.set_write_timeout(Some(PROBE_TIMEOUT))?;
        socket.set_read_timeout(Some(PROBE_TIMEOUT))?;
        socket.connect(&peer.into())?;
        let local = socket.local_addr()?;
        Ok::<_, std::io::Error>((socket, local.as_socket()))
    };
    let (socket, local) = match connect() {
        Ok(made) => made,
        Err(error) => return Probe::Failed(error.to_string()),
    };
    let sockets = SocketInfo::read_all(source);
    drop(socket);
    let Ok(sockets) = sockets else {
        return Probe::Untold;
    };
    let same = |socket: &&SocketInfo| {
        local.is_some_and(|local| {
            socket.local.port() == local.port()
                && socket.peer.port() == peer.port()
                && socket.peer.ip() == peer.ip().to_canonical()
        })
    };
    match sockets.iter().find(same) {
        None => Probe::Untold,
        Some(socket) => match socket.fallback {
            Some(fallback) => Probe::Tcp(fallback),
            None => Probe::Smc(socket.mode),
        },
    }
}

/// The report on a peer.
#[derive(Debug, Serialize)]
struct Answer {
    address: IpAddr,
    #[serde(flatten)]
    report: Report,
}

pub(super) fn run(
    args: &WhyArgs,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<bool, Failure> {
    let facts = Facts::read(args, source)?;
    let address = args.address;
    let report = judge(&facts);
    let answer = Answer { address, report };
    let (width, color) = (output.width, output.color);
    output.print(&answer, |answer| answer.report.text(width, color))?;
    Ok(answer.report.good)
}

/// Judges the facts.
pub fn judge(facts: &Facts) -> Report {
    let steps = steps(facts);
    let unsure = steps
        .iter()
        .any(|step| matches!(step.verdict, Verdict::Warning | Verdict::Unknown));
    let peer = facts
        .address
        .map_or("the peer".into(), |peer| peer.to_string());
    let good = match facts.probe {
        Some(Probe::Smc(mode)) => format!("a connection to {peer} uses {mode}"),
        _ if unsure => {
            format!("connections to {peer} can use SMC as far as this host can tell; see above")
        }
        _ => format!("nothing on this host keeps connections to {peer} from using SMC"),
    };
    Report::new(
        steps,
        good,
        &format!("connections to {peer} do not use SMC"),
    )
}

fn steps(facts: &Facts) -> Vec<Step> {
    let mut steps = vec![module(facts)];
    if facts.module.is_none() {
        return steps;
    }
    steps.push(rules(facts));
    steps.extend(avoided(facts));
    let route = route(facts);
    let on = route.verdict != Verdict::Failure;
    steps.push(route);
    if on {
        steps.push(pnet(facts));
        let (mut of_ports, usable) = ports(facts);
        steps.append(&mut of_ports);
        steps.push(version(facts, usable));
    }
    steps.push(now(facts));
    steps.push(before(facts));
    steps.extend(facts.probe.as_ref().map(tried));
    steps
}

fn module(facts: &Facts) -> Step {
    match (&facts.module, &facts.version) {
        (None, _) => Step::new("module", Verdict::Failure, "no SMC module is loaded")
            .advise(sys::NO_SMC_HINT),
        (Some(module), Some(version)) => {
            Step::new("module", Verdict::Pass, format!("{module} {version}"))
        }
        (Some(module), None) => Step::new(
            "module",
            Verdict::Pass,
            format!("{module}, without the family {OWN_FAMILY}: rules and peers are not known"),
        ),
    }
}

/// The first rule that fits a client of the peer decides; what it says of control groups depends on
/// the program.
fn rules(facts: &Facts) -> Step {
    let name = "rules";
    let (Some(rules), Some(address)) = (&facts.rules, facts.address) else {
        return Step::new(name, Verdict::Note, "the module has no rules");
    };
    let fits = |rule: &&Rule| {
        rule.side != Side(2)
            && rule.peer.is_none_or(|peer| peer.contains(address))
            && match (rule.ports, facts.port) {
                (Some(ports), Some(port)) => ports.range().contains(&port),
                _ => true,
            }
    };
    for rule in rules.iter().filter(fits) {
        let number = rule.number;
        let depends = rule.cgroup.is_some() || (rule.ports.is_some() && facts.port.is_none());
        match (rule.allow, depends) {
            (true, true) => {}
            (false, true) => {
                let what = if rule.cgroup.is_some() {
                    "programs"
                } else {
                    "ports"
                };
                return Step::new(
                    name,
                    Verdict::Warning,
                    format!("rule {number} denies some {what}"),
                )
                .advise("see `smcctl rules list`; `--port PORT` asks for one port");
            }
            (true, false) => {
                return Step::new(name, Verdict::Pass, format!("rule {number} allows it"));
            }
            (false, false) => {
                return Step::new(name, Verdict::Failure, format!("rule {number} denies it"))
                    .advise(format!("`smcctl rules remove {number}`"));
            }
        }
    }
    Step::new(name, Verdict::Pass, "no rule denies it")
}

/// What the module remembers of failures; connections of this host as client are in question.
fn avoided(facts: &Facts) -> Option<Step> {
    let ours = |peer: &&FailedPeer| {
        Some(peer.address.to_canonical()) == facts.address && peer.side == Side(1)
    };
    let name = "failures";
    let concerned = |peer: &&FailedPeer| ours(peer) && peer.concerns(facts.port);
    let Some(failure) = facts.failures.iter().find(concerned) else {
        // Which port is meant was not said.
        let other = |peer: &&FailedPeer| ours(peer) && facts.port.is_none();
        let (port, seconds) = facts
            .failures
            .iter()
            .filter(other)
            .find_map(|peer| Some((peer.port?, peer.seconds_left()?)))?;
        let detail = format!("SMC failed with port {port} and is not tried there for {seconds} s");
        let step = Step::new(name, Verdict::Warning, detail);
        return Some(step.advise(format!("see `smcctl why ADDRESS --port {port}`")));
    };
    let reason = failure.reason;
    let Some(seconds) = failure.seconds_left() else {
        let detail = format!("the last try failed ({reason}); the next connection tries again");
        return Some(Step::new(name, Verdict::Warning, detail));
    };
    let times = match failure.failures {
        1 => "failed".to_string(),
        times => format!("failed {times} times"),
    };
    let detail = format!("SMC {times} and is not tried for {seconds} s: {reason}");
    let advice = reason
        .advice()
        .map_or(String::new(), |advice| format!("{advice}; then "));
    let advice = format!("{advice}`smcctl peers --flush` to try it at once");
    Some(Step::new(name, Verdict::Failure, detail).advise(advice))
}

fn route(facts: &Facts) -> Step {
    let name = "route";
    let Some(route) = &facts.route else {
        return Step::new(name, Verdict::Failure, facts.route_error.clone())
            .advise("see `ip route get ADDRESS`");
    };
    if route.local {
        let detail = "this is an address of this host itself";
        // Unlike other interfaces, it never has a port of its own.
        if facts.pnet_id().is_some() {
            return addressless(facts, "lo").unwrap_or(Step::new(name, Verdict::Pass, detail));
        }
        return Step::new(name, Verdict::Failure, detail).advise(
            "such connections go over the interface lo, which has no RDMA port, unless the table \
             of pnet ids gives it one: `smcctl pnet add ID -i lo` and `smcctl pnet add ID -d DEVICE`",
        );
    }
    let interface = facts
        .interfaces
        .first()
        .map_or("an interface", String::as_str);
    let from = route
        .source
        .map_or(String::new(), |source| format!(" from {source}"));
    if let Some(step) = addressless(facts, interface) {
        return step;
    }
    match facts.place() {
        Place::Near => {
            let detail = format!("directly over {interface}{from}");
            Step::new(name, Verdict::Pass, detail)
        }
        Place::NearByRouter(gateway) => near_by_router(facts, interface, gateway),
        Place::Unknown => {
            let detail = format!("over {interface}; which address packets come from is not known");
            Step::new(name, Verdict::Unknown, detail).advise(
                "see `ip address` and `ip route get ADDRESS`: version 1 stays in the subnet of that \
                 address",
            )
        }
        Place::Far => {
            let by = route.gateway.map_or_else(
                || "to another subnet".to_string(),
                |gateway| format!("by the router {gateway}"),
            );
            let detail = format!("over {interface}{from}, {by}");
            match facts.lacks_v2() {
                None => Step::new(name, Verdict::Warning, detail)
                    .advise("only SMC-R version 2 leaves the subnet; both hosts need a common EID"),
                Some((why, advice)) => Step::new(
                    name,
                    Verdict::Failure,
                    format!("{detail}: version 1 stays in its IP subnet, and {why}"),
                )
                .advise(advice),
            }
        }
    }
}

/// Version 1 compares subnets and asks for no route. Cards send its RDMA packets to the peer's Ethernet
/// address: they arrive if both hosts are on one link, whatever the route says.
fn near_by_router(facts: &Facts, interface: &str, gateway: IpAddr) -> Step {
    let detail = format!(
        "over {interface} by the router {gateway}, though the peer's address is in a subnet of {interface}"
    );
    let step = Step::new("route", Verdict::Warning, detail);
    let one_link = "version 1 needs both hosts on one link";
    match facts.lacks_v2() {
        None => step.advise(format!(
            "{one_link}; across a router only version 2 works, with an EID that both have"
        )),
        Some((why, advice)) => step.advise(format!(
            "{one_link}; across a router only version 2 works, and {why}: {advice}"
        )),
    }
}

/// The subnet of a connection is that of its address on the interface.
fn addressless(facts: &Facts, interface: &str) -> Option<Step> {
    let source = facts.source()?;
    if facts.own_addresses().next().is_some() {
        return None;
    }
    let detail =
        format!("{interface} has no subnet of the address {source}, which packets come from");
    let step = Step::new("route", Verdict::Failure, detail);
    Some(step.advise(
        "give the interface an address in a subnet, not a link-local one, and let packets come from it \
         (`ip route`: `src`)",
    ))
}

fn pnet(facts: &Facts) -> Step {
    let interface = facts
        .interfaces
        .first()
        .map_or("the interface", String::as_str);
    match facts.pnet_id() {
        Some(id) => Step::new(
            "pnet id",
            Verdict::Pass,
            format!("{interface} is in network {id}"),
        ),
        None => Step::new(
            "pnet id",
            Verdict::Note,
            format!("{interface} has none: only an RDMA port of its own counts"),
        ),
    }
}

/// The steps about devices, ports and GIDs, and whether there is a port to use.
fn ports(facts: &Facts) -> (Vec<Step>, bool) {
    let interface = facts
        .interfaces
        .first()
        .map_or("the interface", String::as_str);
    let ports = facts.ports();
    if ports.is_empty() {
        let (detail, advice) = if facts.devices.is_empty() {
            (
                "this host has no RDMA device".to_string(),
                format!(
                    "load the driver of the RoCE card, or make a software device: \
                     `rdma link add NAME type rxe netdev {interface}`"
                ),
            )
        } else {
            let names: Vec<_> = facts
                .devices
                .iter()
                .map(|device| device.name.as_str())
                .collect();
            let of = facts.pnet_id().map_or_else(
                || format!("belongs to {interface}"),
                |id| format!("is in network {id}"),
            );
            (
                format!("no port of {} {of}", names.join(", ")),
                format!(
                    "if a port is attached to the same network, say so: \
                     `smcctl pnet add ID -i {interface} -d DEVICE -p PORT`"
                ),
            )
        };
        let step = Step::new("device", Verdict::Failure, detail).advise(advice);
        return (vec![step], false);
    }
    let worst = |steps: &Vec<Step>| steps.iter().map(|step| step.verdict).max();
    let of_ports = ports
        .iter()
        .map(|(device, port)| one_port(facts, device, port));
    let steps = of_ports.min_by_key(worst).unwrap_or_default();
    let usable = worst(&steps) < Some(Verdict::Failure);
    (steps, usable)
}

fn one_port(facts: &Facts, device: &str, port: &Port) -> Vec<Step> {
    let number = port.port;
    let name = format!("{device}/{number}");
    let mut steps = Vec::new();
    let interface = port.interface.as_deref();
    let on = interface.map_or(String::new(), |interface| format!(" on {interface}"));
    steps.push(Step::new("device", Verdict::Pass, format!("{name}{on}")));
    steps.push(if port.active {
        Step::new("port", Verdict::Pass, format!("{name} is active"))
    } else {
        Step::new("port", Verdict::Failure, format!("{name} is not active")).advise(format!(
            "set the interface up and look at the cable: `ip link set {} up`, `rdma link show`",
            interface.unwrap_or("IFACE")
        ))
    });
    let drained = facts.drained.iter().flatten().any(|item| {
        matches!(item, Drained::Port { device: other, port } if (other.as_str(), *port) == (device, number))
    });
    if drained {
        steps.push(
            Step::new("drain", Verdict::Failure, format!("{name} is drained")).advise(format!(
                "`smcctl drain --device {device} --port {number} --undo`"
            )),
        );
    }
    steps.push(gids(facts, device, number));
    steps
}

fn show(gid: &Gid) -> String {
    format!("{} ({})", gid.gid.to_canonical(), gid.kind)
}

/// Whether there is a GID for each version that the connection can have.
fn gids(facts: &Facts, device: &str, port: u8) -> Step {
    let name = "GID";
    let speaks = facts.speaks();
    let best = |kinds| facts.best_gid(device, port, kinds);
    let mut found: Vec<_> = speaks
        .iter()
        .filter_map(|(_, kinds)| best(*kinds))
        .collect();
    let lacks = speaks.iter().find(|(_, kinds)| best(*kinds).is_none());
    found.dedup();
    let found: Vec<_> = found.into_iter().map(show).collect();
    let found = found.join(", ");
    let Some((version, kinds)) = lacks else {
        return Step::new(name, Verdict::Pass, found);
    };
    // Whether one is in the subnet of an address that is not known, is not known.
    let may_have = |(_, kinds): &(u32, u32)| facts.may_have_gid(device, port, *kinds);
    if found.is_empty() && facts.source().is_none() && speaks.iter().any(may_have) {
        let shown: Vec<_> = facts.gids_of(device, port).iter().map(show).collect();
        let detail = format!(
            "whether one is in the subnet of the connection is not known; {device}/{port} has {}",
            shown.join(", ")
        );
        return Step::new(name, Verdict::Unknown, detail)
            .advise("see step \"route\", and `ip address`");
    }
    let (detail, advice) = no_gid(facts, device, port, *version, *kinds);
    if found.is_empty() {
        Step::new(name, Verdict::Failure, detail).advise(advice)
    } else {
        Step::new(name, Verdict::Warning, format!("{found}; {detail}")).advise(advice)
    }
}

/// Why a port has no GID for a version, and what to do.
fn no_gid(facts: &Facts, device: &str, port: u8, version: u32, kinds: u32) -> (String, String) {
    let all = facts.gids_of(device, port);
    if all.is_empty() {
        let advice = "give its interface an IP address, and set it up";
        return (format!("{device}/{port} has none"), advice.into());
    }
    let none = format!("{device}/{port} has none for version {version}");
    if kinds != V1 | V2 && facts.best_gid(device, port, V1 | V2).is_some() && version == V1 {
        let kind = if kinds == V1 { "RoCE v1" } else { "RoCE v2" };
        let advice = if facts.module.as_deref() != Some("smc_r") {
            "use version 2: `smcctl ueid add EID` on both hosts"
        } else {
            "`sysctl net.smc.smcr_v1_gids=3`"
        };
        return (format!("{none}, which may use {kind} alone"), advice.into());
    }
    let interface = facts.interfaces.first();
    let vlan = facts.vlan(interface);
    let of_vlan = vlan.map_or(String::new(), |vlan| format!(" in VLAN {vlan}"));
    let shown: Vec<_> = all.iter().map(show).collect();
    let shown = shown.join(", ");
    if facts.pnet_id().is_some() {
        return (
            format!("{none} that is good beyond one link{of_vlan}; it has {shown}"),
            "give an interface of the port, in the same VLAN, an IP address that is not link-local"
                .into(),
        );
    }
    let subnet = facts.source().map_or(String::new(), |source| {
        format!(" in the subnet of {source}")
    });
    (
        format!("{none}{subnet} on the interface; it has {shown}"),
        "see `ip address` and `rdma link`: the interface that packets leave by has to be the port's, or in \
         a network with it (`smcctl pnet add`)"
            .into(),
    )
}

fn version(facts: &Facts, usable: bool) -> Step {
    let system = &facts.system;
    let detail = format!("SMC-R up to {}.{}", system.version, system.release);
    let Some((why, advice)) = facts.lacks_v2() else {
        let only = if facts.may_speak_v1() {
            ""
        } else {
            "; version 2 only, by net.smc.smcr_versions"
        };
        let detail = format!("{detail}, EIDs {}{only}", facts.ueids.join(", "));
        return Step::new("version", Verdict::Pass, detail);
    };
    if !facts.may_speak_v1() {
        let detail = format!("net.smc.smcr_versions excludes version 1, and {why}");
        return Step::new("version", Verdict::Failure, detail)
            .advise(format!("{advice}, or `sysctl net.smc.smcr_versions=3`"));
    }
    let step = Step::new(
        "version",
        Verdict::Note,
        format!("{detail}; version 1 only, since {why}"),
    );
    if usable && system.smcr_v2 {
        step.advise(format!("for version 2, {advice}"))
    } else {
        step
    }
}

/// What is connected now.
fn now(facts: &Facts) -> Step {
    let name = "connected";
    let (Some(sockets), Some(address)) = (&facts.sockets, facts.address) else {
        return Step::new(name, Verdict::Unknown, "sockets cannot be listed")
            .advise("load the module smc_diag");
    };
    let idle = [State(2), State(7), State(10)];
    let with_peer = |mode: &'static [u8]| {
        let fits = |socket: &&SocketInfo| {
            socket.peer.ip().to_canonical() == address
                && !idle.contains(&socket.state)
                && mode.contains(&socket.mode.0)
        };
        sockets.iter().filter(fits).count()
    };
    let (smc, tcp) = (with_peer(&[0, 2]), with_peer(&[1]));
    let gid = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let links = facts
        .links
        .iter()
        .filter(|link| link.peer_gid.parse() == Ok(gid));
    let links: Vec<_> = links
        .map(|link| format!("{}/{}", link.group, link.id))
        .collect();
    let links = match links.as_slice() {
        [] => String::new(),
        links => format!("; links {}", links.join(", ")),
    };
    let verdict = if smc > 0 {
        Verdict::Pass
    } else {
        Verdict::Note
    };
    Step::new(
        name,
        verdict,
        format!("{smc} connections over SMC, {tcp} over TCP{links}"),
    )
}

/// What happened before.
fn before(facts: &Facts) -> Step {
    let name = "peer";
    let (Some(fallbacks), Some(address)) = (&facts.fallbacks, facts.address) else {
        return Step::new(
            name,
            Verdict::Note,
            "the module does not remember what peers answered",
        );
    };
    let of_peer = fallbacks
        .iter()
        .rev()
        .filter(|peer| peer.address.to_canonical() == address);
    let mut of_peer = of_peer.peekable();
    let Some(last) = of_peer.peek() else {
        return Step::new(
            name,
            Verdict::Pass,
            "no connection with it became TCP so far",
        );
    };
    let (reason, side) = (last.reason, last.side);
    let count: u64 = of_peer
        .clone()
        .map(|peer| peer.count)
        .fold(0, u64::saturating_add);
    let detail = format!("{count} connections became TCP, the last as {side}: {reason}");
    let step = Step::new(name, Verdict::Warning, detail);
    match reason.advice() {
        Some(advice) => step.advise(advice),
        None => step,
    }
}

fn tried(probe: &Probe) -> Step {
    let name = "try";
    match probe {
        Probe::Smc(mode) => Step::new(name, Verdict::Pass, format!("a connection used {mode}")),
        Probe::Untold => Step::new(
            name,
            Verdict::Unknown,
            "a connection was made; as what, is not known",
        )
        .advise("load the module smc_diag"),
        Probe::Failed(error) => {
            Step::new(name, Verdict::Failure, format!("no connection: {error}"))
                .advise("see whether a server listens on that port")
        }
        Probe::Tcp(fallback) => {
            let peer = fallback.peer_diagnosis;
            let said = if peer.0 == 0 {
                String::new()
            } else {
                format!("; the peer says {peer}")
            };
            let detail = format!("a connection became TCP: {}{said}", fallback.reason);
            let step = Step::new(name, Verdict::Failure, detail);
            let advice = Some(peer)
                .filter(|peer| *peer != Reason(0))
                .and_then(Reason::advice);
            match advice.or(fallback.reason.advice()) {
                Some(advice) => step.advise(advice),
                None => step,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::Reason;

    /// A host where everything is in order.
    fn facts() -> Facts {
        let port = Port {
            port: 1,
            active: true,
            ifindex: 2,
            interface: Some("eth0".into()),
            ..Port::default()
        };
        let gid = Gid {
            index: 1,
            gid: "::ffff:192.0.2.1".parse().unwrap(),
            kind: "RoCE v2".into(),
            interface: Some("eth0".into()),
        };
        Facts {
            address: Some("192.0.2.2".parse().unwrap()),
            module: Some("smc_r".into()),
            version: Some("0.1.0".into()),
            route: Some(Route {
                ifindex: 2,
                source: Some("192.0.2.1".parse().unwrap()),
                ..Route::default()
            }),
            interfaces: vec!["eth0".into()],
            addresses: vec![Address {
                ifindex: 2,
                address: "192.0.2.1".parse().unwrap(),
                prefix_len: 24,
            }],
            devices: vec![Device {
                name: "rxe0".into(),
                ports: vec![port],
                ..Device::default()
            }],
            gids: vec![("rxe0".into(), 1, vec![gid])],
            drained: Some(Vec::new()),
            rules: Some(Vec::new()),
            fallbacks: Some(Vec::new()),
            sockets: Some(Vec::new()),
            ..Facts::default()
        }
    }

    /// The name and the advice of the step that fails.
    fn failed(facts: &Facts) -> (&'static str, String) {
        let report = judge(facts);
        let failed: Vec<_> = report
            .steps
            .iter()
            .filter(|step| step.verdict == Verdict::Failure)
            .collect();
        assert!(!report.good && failed.len() == 1, "{report:?}");
        assert!(report.conclusion.contains(failed[0].name), "{report:?}");
        (failed[0].name, failed[0].advice.clone().unwrap_or_default())
    }

    #[test]
    fn all_is_well() {
        let report = judge(&facts());
        assert!(report.good, "{report:?}");
        assert!(
            report.conclusion.starts_with("nothing on this host"),
            "{report:?}"
        );
    }

    #[test]
    fn each_condition_is_named() {
        let mut bad = facts();
        bad.module = None;
        assert_eq!(failed(&bad).0, "module");

        let mut bad = facts();
        bad.route = None;
        bad.route_error = "Network is unreachable".into();
        assert_eq!(failed(&bad).0, "route");

        let mut bad = facts();
        bad.route.as_mut().unwrap().local = true;
        assert_eq!(failed(&bad).0, "route");

        // Unless the table of pnet ids gives lo a port.
        bad.interfaces = vec!["lo".into()];
        bad.pnet = vec![PnetEntry {
            id: "LOOP".into(),
            interface: Some("lo".into()),
            ..PnetEntry::default()
        }];
        assert_eq!(failed(&bad).0, "device");
        bad.devices[0].ports[0].pnet_id = Some("LOOP".into());
        assert!(judge(&bad).good);

        let mut bad = facts();
        bad.addresses.clear();
        assert_eq!(failed(&bad).0, "route");

        let mut bad = facts();
        bad.devices[0].ports[0].active = false;
        let (name, advice) = failed(&bad);
        assert!(
            name == "port" && advice.contains("ip link set eth0 up"),
            "{advice}"
        );

        let mut bad = facts();
        bad.gids.clear();
        assert_eq!(failed(&bad).0, "GID");

        let mut bad = facts();
        bad.devices.clear();
        let (name, advice) = failed(&bad);
        assert!(
            name == "device" && advice.contains("rxe netdev eth0"),
            "{advice}"
        );

        let mut bad = facts();
        bad.devices[0].ports[0].ifindex = 3;
        bad.gids[0].2[0].interface = Some("eth1".into());
        let (name, advice) = failed(&bad);
        assert!(
            name == "device" && advice.contains("pnet add ID -i eth0"),
            "{advice}"
        );

        let mut bad = facts();
        let device = "rxe0".to_string();
        bad.drained = Some(vec![Drained::Port { device, port: 1 }]);
        let (name, advice) = failed(&bad);
        assert!(name == "drain" && advice.contains("--undo"), "{advice}");
    }

    /// A host that speaks version 2 as well.
    fn both_versions() -> Facts {
        let mut facts = facts();
        facts.system.smcr_v2 = true;
        facts.ueids = vec!["LAB-1".into()];
        facts
    }

    fn verdict(facts: &Facts, name: &str) -> Verdict {
        let steps = judge(facts).steps;
        steps.iter().find(|step| step.name == name).unwrap().verdict
    }

    #[test]
    fn routers_need_version_2() {
        let mut routed = both_versions();
        routed.address = Some("198.51.100.2".parse().unwrap());
        routed.route.as_mut().unwrap().gateway = Some("192.0.2.254".parse().unwrap());
        assert!(judge(&routed).good);
        assert_eq!(verdict(&routed, "route"), Verdict::Warning);
        for (version_2, versions, eids, want) in [
            (false, None, 1, "one that has"),
            (true, Some(V1), 1, "smcr_versions=3"),
            (true, None, 0, "ueid add"),
            (true, Some(V2), 0, "ueid add"),
        ] {
            routed.system.smcr_v2 = version_2;
            routed.versions = versions;
            routed.ueids = vec!["LAB-1".into(); eids];
            let (name, advice) = failed(&routed);
            assert!(name == "route" && advice.contains(want), "{advice}");
        }
        // Without a router, another subnet is another one all the same.
        routed.route.as_mut().unwrap().gateway = None;
        assert_eq!(failed(&routed).0, "route");
    }

    #[test]
    fn routers_to_the_own_subnet_are_no_refusal() {
        let mut near = facts();
        let gateway = Some("192.0.2.254".parse().unwrap());
        near.route.as_mut().unwrap().gateway = gateway;
        for (version_2, want) in [(false, "one that has"), (true, "both have")] {
            near.system.smcr_v2 = version_2;
            near.ueids = vec!["LAB-1".into(); usize::from(version_2)];
            let report = judge(&near);
            assert!(
                report.good && report.conclusion.contains("can tell"),
                "{report:?}"
            );
            let step = report.steps.iter().find(|step| step.name == "route");
            let step = step.unwrap();
            assert_eq!(step.verdict, Verdict::Warning, "{step:?}");
            assert!(step.detail.contains("192.0.2.254"), "{step:?}");
            assert!(step.advice.as_ref().unwrap().contains(want), "{step:?}");
        }
        // Version 2 alone, which cannot be spoken.
        near.ueids.clear();
        near.versions = Some(V2);
        assert_eq!(failed(&near).0, "version");
    }

    /// A host with two subnets of IPv6 on one interface.
    fn ipv6() -> Facts {
        let mut facts = facts();
        let own = |text: &str| Address {
            ifindex: 2,
            address: text.parse().unwrap(),
            prefix_len: 64,
        };
        facts.address = Some("2001:db8:1::2".parse().unwrap());
        facts.route.as_mut().unwrap().source = Some("2001:db8:1::1".parse().unwrap());
        facts.addresses = vec![own("fe80::1"), own("2001:db8:1::1"), own("2001:db8:2::1")];
        facts.gids[0].2[0].gid = "2001:db8:1::1".parse().unwrap();
        facts
    }

    #[test]
    fn clients_name_all_subnets_of_ipv6() {
        let mut facts = ipv6();
        assert_eq!(verdict(&facts, "route"), Verdict::Pass);
        facts.address = Some("2001:db8:2::2".parse().unwrap());
        assert_eq!(verdict(&facts, "route"), Verdict::Pass);
        facts.route.as_mut().unwrap().gateway = Some("fe80::2".parse().unwrap());
        assert_eq!(verdict(&facts, "route"), Verdict::Warning);
        assert!(judge(&facts).good);
        facts.address = Some("2001:db8:3::2".parse().unwrap());
        assert_eq!(failed(&facts).0, "route");
    }

    #[test]
    fn without_a_source_address_nobody_knows() {
        for gateway in [None, Some("fe80::2".parse().unwrap())] {
            let mut facts = ipv6();
            let route = facts.route.as_mut().unwrap();
            (route.source, route.gateway) = (None, gateway);
            assert_eq!(verdict(&facts, "route"), Verdict::Unknown);
            assert_eq!(verdict(&facts, "GID"), Verdict::Unknown);
            let report = judge(&facts);
            assert!(
                report.good && report.conclusion.contains("as far as"),
                "{report:?}"
            );
            // What does not depend on the address is known.
            facts.gids[0].2[0].gid = "fe80::1".parse().unwrap();
            assert_eq!(failed(&facts).0, "GID");
            facts.gids[0].2[0].kind = "IB/RoCE v1".into();
            assert_eq!(verdict(&facts, "GID"), Verdict::Pass);
        }
    }

    #[test]
    fn versions_that_may_be_spoken() {
        let mut facts = both_versions();
        facts.versions = Some(V2);
        assert!(judge(&facts).good);
        facts.ueids.clear();
        let (name, advice) = failed(&facts);
        assert!(name == "version" && advice.contains("ueid add"), "{advice}");
        facts.versions = Some(V1);
        assert!(judge(&facts).good);
    }

    #[test]
    fn gids_that_version_1_may_use() {
        let mut facts = both_versions();
        facts.v1_gids = Some(V1);
        assert_eq!(verdict(&facts, "GID"), Verdict::Warning);
        facts.ueids.clear();
        let (name, advice) = failed(&facts);
        assert!(name == "GID" && advice.contains("v1_gids=3"), "{advice}");
        facts.module = Some("smc".into());
        assert!(failed(&facts).1.contains("ueid add"));
        facts.gids[0].2[0].kind = "IB/RoCE v1".into();
        assert!(judge(&facts).good);
        facts.v1_gids = Some(V2);
        assert_eq!(failed(&facts).0, "GID");
    }

    #[test]
    fn gids_are_of_the_subnet_of_the_address() {
        let mut facts = both_versions();
        let own = facts.gids[0].2[0].clone();
        let gid = |text: &str| Gid {
            gid: text.parse().unwrap(),
            ..own.clone()
        };
        facts.gids[0].2 = vec![gid("fe80::1"), own.clone(), gid("::ffff:192.0.2.9")];
        assert_eq!(facts.best_gid("rxe0", 1, V2), Some(&own));
        facts.gids[0].2 = vec![gid("fe80::1"), gid("::ffff:192.0.2.9")];
        assert_eq!(verdict(&facts, "GID"), Verdict::Pass);
        facts.gids[0].2 = vec![gid("fe80::1"), gid("::ffff:198.51.100.1")];
        assert_eq!(failed(&facts).0, "GID");
        // A name says that it is the same network, for what is good beyond the link.
        facts.pnet = vec![PnetEntry {
            id: "NET1".into(),
            interface: Some("eth0".into()),
            ..PnetEntry::default()
        }];
        facts.devices[0].ports[0].pnet_id = Some("NET1".into());
        assert!(judge(&facts).good);
        facts.gids[0].2.truncate(1);
        assert_eq!(failed(&facts).0, "GID");
        // RoCE v1 is good on the link, and so for version 1.
        facts.gids[0].2[0].kind = "IB/RoCE v1".into();
        assert_eq!(verdict(&facts, "GID"), Verdict::Warning);
        assert!(judge(&facts).good);
    }

    #[test]
    fn gids_of_another_interface_need_the_same_vlan() {
        let mut facts = facts();
        facts.pnet = vec![PnetEntry {
            id: "NET1".into(),
            interface: Some("eth0".into()),
            ..PnetEntry::default()
        }];
        facts.devices[0].ports[0].pnet_id = Some("NET1".into());
        facts.gids[0].2[0].interface = Some("eth1".into());
        assert!(judge(&facts).good);
        facts.vlans = vec![("eth1".into(), 5)];
        let (name, advice) = failed(&facts);
        assert!(name == "GID" && advice.contains("VLAN"), "{advice}");
        facts.vlans.push(("eth0".into(), 5));
        assert!(judge(&facts).good);
    }

    #[test]
    fn link_local_addresses_have_no_subnet() {
        let mut facts = facts();
        let own = |text: &str, prefix_len| Address {
            ifindex: 2,
            address: text.parse().unwrap(),
            prefix_len,
        };
        facts.address = Some("2001:db8::2".parse().unwrap());
        facts.route.as_mut().unwrap().source = Some("2001:db8::1".parse().unwrap());
        facts.addresses = vec![own("fe80::1", 64), own("2001:db8::1", 64)];
        facts.gids[0].2[0].gid = "2001:db8::1".parse().unwrap();
        assert!(judge(&facts).good);
        facts.address = Some("fe80::2".parse().unwrap());
        facts.route.as_mut().unwrap().source = Some("fe80::1".parse().unwrap());
        assert_eq!(failed(&facts).0, "route");
    }

    #[test]
    fn networks_by_name() {
        let mut facts = facts();
        facts.interfaces = vec!["bond0".into(), "eth7".into()];
        facts.route.as_mut().unwrap().ifindex = 9;
        facts.addresses[0].ifindex = 9;
        facts.pnet = vec![PnetEntry {
            id: "NET1".into(),
            interface: Some("eth7".into()),
            ..PnetEntry::default()
        }];
        assert_eq!(failed(&facts).0, "device");
        facts.devices[0].ports[0].pnet_id = Some("NET1".into());
        assert!(judge(&facts).good);
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rule = |number, allow, peer: &str| Rule {
            number,
            allow,
            peer: Some(peer.parse().unwrap()),
            ..Rule::default()
        };
        let mut facts = facts();
        facts.rules = Some(vec![
            rule(1, true, "192.0.2.0/24"),
            rule(2, false, "0.0.0.0/0"),
        ]);
        assert!(judge(&facts).good);
        facts.rules = Some(vec![
            rule(1, true, "192.0.3.0/24"),
            rule(2, false, "0.0.0.0/0"),
        ]);
        let (name, advice) = failed(&facts);
        assert!(name == "rules" && advice.contains("remove 2"), "{advice}");
        // One about servers is none of the clients'.
        facts.rules.as_mut().unwrap()[1].side = Side(2);
        assert!(judge(&facts).good);
        // One about a port needs the port to be known.
        let about_port = Rule {
            ports: Some("80-90".parse().unwrap()),
            ..rule(3, false, "0.0.0.0/0")
        };
        facts.rules = Some(vec![about_port]);
        let report = judge(&facts);
        assert!(
            report.good && report.steps[1].verdict == Verdict::Warning,
            "{report:?}"
        );
        facts.port = Some(91);
        assert_eq!(judge(&facts).steps[1].verdict, Verdict::Pass);
        facts.port = Some(90);
        assert_eq!(failed(&facts).0, "rules");
    }

    #[test]
    fn what_failed_is_left_alone_for_a_while() {
        let mut facts = facts();
        let failure = FailedPeer {
            address: "192.0.2.2".parse().unwrap(),
            side: Side(1),
            port: None,
            reason: Reason(0x0201_0000),
            failures: 2,
            age_ms: 7_000,
            left_ms: 52_001,
        };
        facts.failures = vec![failure.clone()];
        let (name, advice) = failed(&facts);
        assert!(
            name == "failures" && advice.contains("4791") && advice.contains("peers --flush"),
            "{advice}"
        );
        let report = judge(&facts);
        let step = report.steps.iter().find(|step| step.name == name).unwrap();
        assert!(
            step.detail.contains("2 times") && step.detail.contains("53 s"),
            "{step:?}"
        );
        // It is about one port only.
        facts.failures[0].port = Some(80);
        assert!(judge(&facts).good);
        assert_eq!(avoided(&facts).unwrap().verdict, Verdict::Warning);
        facts.port = Some(81);
        assert!(avoided(&facts).is_none());
        facts.port = Some(80);
        assert_eq!(failed(&facts).0, "failures");
        // The time is over, or it is about our servers.
        facts.failures[0].left_ms = 0;
        assert!(judge(&facts).good);
        facts.failures = vec![FailedPeer {
            side: Side(2),
            ..failure
        }];
        assert!(judge(&facts).good);
    }

    #[test]
    fn what_was_tried_and_what_happened_before() {
        let mut facts = facts();
        facts.fallbacks = Some(vec![PeerFallback {
            address: "192.0.2.2".parse().unwrap(),
            side: Side(1),
            reason: Reason(0x0301_0000),
            count: 3,
        }]);
        let report = judge(&facts);
        let peer = report
            .steps
            .iter()
            .find(|step| step.name == "peer")
            .unwrap();
        assert!(report.good && peer.verdict == Verdict::Warning);
        assert!(
            peer.advice.as_deref().unwrap().contains("smc_run"),
            "{peer:?}"
        );

        facts.probe = Some(Probe::Tcp(Fallback {
            reason: Reason(0x0500_0000),
            peer_diagnosis: Reason(0x0307_0000),
        }));
        let (name, advice) = failed(&facts);
        assert!(name == "try" && advice.contains("subnet"), "{advice}");
        facts.probe = Some(Probe::Smc(Mode(0)));
        assert!(judge(&facts).conclusion.contains("uses SMC-R"));
    }
}
