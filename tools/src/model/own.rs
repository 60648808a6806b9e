// SPDX-License-Identifier: GPL-2.0

//! What only the module smc_r has: rules, peers that use TCP, what is drained, and events.

use crate::attr::Attrs;
use crate::netlink::{ip, ip_bytes, list, push_attribute, Error, Malformed, Message, Source};
use crate::sys;
use crate::uapi::own::{self, attr};
use crate::uapi::{Failure, Reason, Role, Side, OWN_FAMILY};
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The module's version.
pub fn version(source: &mut dyn Source) -> Result<Option<String>, Error> {
    let messages = source.query(OWN_FAMILY, own::INFO_GET, &[])?;
    let first = messages
        .first()
        .ok_or_else(|| Malformed("empty answer".into()))?;
    Ok(Attrs::parse(&first.attributes)?.text(attr::VERSION))
}

fn address(attrs: &Attrs<'_>) -> Result<Option<IpAddr>, Malformed> {
    let Some(bytes) = attrs.bytes(attr::ADDRESS) else {
        return Ok(None);
    };
    let address = ip(bytes);
    let address =
        address.ok_or_else(|| Malformed(format!("an address has {} bytes", bytes.len())))?;
    Ok(Some(address.to_canonical()))
}

/// Addresses that agree in their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// How many bits count.
    pub length: u8,
}

impl Prefix {
    /// Bits of a whole address.
    fn whole(address: IpAddr) -> u8 {
        if address.is_ipv4() {
            32
        } else {
            128
        }
    }

    /// Whether an address is one of them.
    pub fn contains(&self, other: IpAddr) -> bool {
        let same = match (self.address, other.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        same >= u32::from(self.length)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("`{address}` is no IP address"))?;
        let whole = Self::whole(address);
        // IPv4 in the form of IPv6 is IPv4, without the bits that say so.
        let canonical = address.to_canonical();
        let least = whole - Self::whole(canonical);
        let length = length.map_or(Ok(whole), str::parse);
        let length = length
            .ok()
            .filter(|length| (least..=whole).contains(length));
        length
            .map(|length| Self {
                address: canonical,
                length: length - least,
            })
            .ok_or_else(|| format!("the length of a prefix is between {least} and {whole}"))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.length == Self::whole(self.address) {
            return Ok(());
        }
        write!(f, "/{}", self.length)
    }
}

impl Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A port, or several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Ports {
    /// All of them.
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => Err("expected a port, or two in the form FIRST-LAST".into()),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.first == self.last {
            return Ok(());
        }
        write!(f, "-{}", self.last)
    }
}

/// A rule about which connections may use SMC. What is `None` does not matter to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Its number; the first that fits decides.
    pub number: u32,
    /// Such connections may use SMC.
    pub allow: bool,
    /// Our side of the connection.
    pub side: Side,
    /// Address of the peer.
    pub peer: Option<Prefix>,
    /// Port of the service.
    pub ports: Option<Ports>,
    /// Number of a control group that the program is in.
    pub cgroup: Option<u64>,
}

impl Rule {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::parse(bytes)?;
        let address = address(&attrs)?;
        let length = attrs.u8(attr::PREFIX_LEN)?;
        let peer = address.map(|address| Prefix {
            address,
            length: length.unwrap_or_else(|| Prefix::whole(address)),
        });
        let last = attrs.u16(attr::PORT_LAST)?;
        let ports = attrs.u16(attr::PORT_FIRST)?.map(|first| Ports {
            first,
            last: last.unwrap_or(first),
        });
        Ok(Self {
            number: attrs.u32(attr::RULE)?.unwrap_or_default(),
            allow: attrs.u8(attr::ALLOW)? == Some(1),
            side: Side(attrs.u8(attr::SIDE)?.unwrap_or_default()),
            peer,
            ports,
            cgroup: attrs.u64(attr::CGROUP)?,
        })
    }

    /// All rules, in their order.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        list(source, OWN_FAMILY, own::RULE_GET, Self::decode)
    }

    /// The attributes of a request to add it.
    pub fn attributes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.number != 0 {
            push_attribute(&mut bytes, attr::RULE, &self.number.to_ne_bytes());
        }
        push_attribute(&mut bytes, attr::ALLOW, &[u8::from(self.allow)]);
        push_attribute(&mut bytes, attr::SIDE, &[self.side.0]);
        if let Some(peer) = self.peer {
            push_attribute(&mut bytes, attr::ADDRESS, &ip_bytes(peer.address));
            push_attribute(&mut bytes, attr::PREFIX_LEN, &[peer.length]);
        }
        if let Some(ports) = self.ports {
            push_attribute(&mut bytes, attr::PORT_FIRST, &ports.first.to_ne_bytes());
            push_attribute(&mut bytes, attr::PORT_LAST, &ports.last.to_ne_bytes());
        }
        if let Some(cgroup) = self.cgroup {
            push_attribute(&mut bytes, attr::CGROUP, &cgroup.to_ne_bytes());
        }
        bytes
    }

    /// Adds the rule; gives its number.
    pub fn add(&self, source: &mut dyn Source) -> Result<u32, Error> {
        let messages = source.query(OWN_FAMILY, own::RULE_ADD, &self.attributes())?;
        let number = messages
            .first()
            .map(|message| Attrs::parse(&message.attributes)?.u32(attr::RULE))
            .transpose()?;
        Ok(number
            .flatten()
            .ok_or_else(|| Malformed("no number in the answer".into()))?)
    }
}

/// The address of a peer, who has to have one.
fn peer_address(attrs: &Attrs<'_>) -> Result<IpAddr, Malformed> {
    address(attrs)?.ok_or_else(|| Malformed("peer without an address".into()))
}

/// A peer with whom connections became plain TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerFallback {
    /// Its address.
    pub address: IpAddr,
    /// Our side.
    pub side: Side,
    /// The reason of the last one.
    pub reason: Reason,
    /// How many there were.
    pub count: u64,
}

impl PeerFallback {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::parse(bytes)?;
        Ok(Self {
            address: peer_address(&attrs)?,
            side: Side(attrs.u8(attr::SIDE)?.unwrap_or_default()),
            reason: Reason(attrs.u32(attr::REASON)?.unwrap_or_default()),
            count: attrs.u64(attr::COUNT)?.unwrap_or_default(),
        })
    }

    /// The peers that the module remembers, the latest last.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        let all = list(source, OWN_FAMILY, own::FALLBACK_GET, Self::decode)?;
        Ok(latest(all, |peer| (peer.address, peer.side)))
    }
}

/// A peer with whom SMC failed a short time ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedPeer {
    /// Its address.
    pub address: IpAddr,
    /// Our side.
    pub side: Side,
    /// Port of the service that failed; without one it is about all connections with the address.
    pub port: Option<u16>,
    /// Why it failed the last time.
    pub reason: Reason,
    /// How often it failed in a row.
    pub failures: u64,
    /// Milliseconds since the last time.
    pub age_ms: u64,
    /// Milliseconds for which connections are still plain TCP.
    pub left_ms: u64,
}

impl FailedPeer {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::parse(bytes)?;
        Ok(Self {
            address: peer_address(&attrs)?,
            side: Side(attrs.u8(attr::SIDE)?.unwrap_or_default()),
            reason: Reason(attrs.u32(attr::REASON)?.unwrap_or_default()),
            port: attrs.u16(attr::PORT_FIRST)?,
            failures: attrs.u64(attr::COUNT)?.unwrap_or_default(),
            age_ms: attrs.u64(attr::AGE)?.unwrap_or_default(),
            left_ms: attrs.u64(attr::LEFT)?.unwrap_or_default(),
        })
    }

    /// The peers that the module remembers, the latest last.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        let all = list(source, OWN_FAMILY, own::PEER_GET, Self::decode)?;
        Ok(latest(all, |peer| (peer.address, peer.side, peer.port)))
    }

    /// Whether it is about connections to a port, or about all if none is given.
    pub fn concerns(&self, port: Option<u16>) -> bool {
        self.port.is_none() || self.port == port
    }

    /// Seconds for which connections are still plain TCP, begun ones included; `None` for no longer.
    pub fn seconds_left(&self) -> Option<u64> {
        (self.left_ms != 0).then(|| self.left_ms.div_ceil(1000))
    }
}

/// The last item of each key: one that changes while it is being listed is told again, behind the others.
fn latest<T, K: PartialEq>(items: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut latest: Vec<T> = Vec::with_capacity(items.len());
    for item in items {
        latest.retain(|other| key(other) != key(&item));
        latest.push(item);
    }
    latest
}

/// A list of the module's own family. Empty where the module is another one, or older.
fn list_if_there<T>(
    source: &mut dyn Source,
    command: u8,
    decode: fn(&[u8]) -> Result<T, Malformed>,
) -> Result<Vec<T>, Error> {
    match list(source, OWN_FAMILY, command, decode) {
        Err(Error::NoFamily(_)) => Ok(Vec::new()),
        Err(Error::Kernel(errno, _)) if errno == sys::EOPNOTSUPP => Ok(Vec::new()),
        other => other,
    }
}

/// How often connections of one side fell back for a reason, in full: statistics have 16 bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonCount {
    /// Our side.
    pub side: Side,
    /// The reason.
    pub reason: Reason,
    /// How often.
    pub count: u64,
}

impl ReasonCount {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::parse(bytes)?;
        Ok(Self {
            side: Side(attrs.u8(attr::SIDE)?.unwrap_or_default()),
            reason: Reason(attrs.u32(attr::REASON)?.unwrap_or_default()),
            count: attrs.u64(attr::COUNT)?.unwrap_or_default(),
        })
    }

    /// Whether it is about this side, as other families name it.
    pub fn is_of(&self, role: Role) -> bool {
        self.side.0.checked_sub(1) == Some(role.0)
    }

    /// All that there are; none where the module is another one.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        list_if_there(source, own::REASON_GET, Self::decode)
    }
}

/// How often handshakes ended without a connection, in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedHandshakes {
    /// Our side.
    pub side: Side,
    /// How they ended.
    pub failure: Failure,
    /// Why the link failed, if that was it.
    pub reason: Option<Reason>,
    /// How many there were.
    pub count: u64,
}

impl FailedHandshakes {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::parse(bytes)?;
        Ok(Self {
            side: Side(attrs.u8(attr::SIDE)?.unwrap_or_default()),
            failure: Failure(attrs.u8(attr::FAILURE)?.unwrap_or_default()),
            reason: attrs.u32(attr::REASON)?.map(Reason),
            count: attrs.u64(attr::COUNT)?.unwrap_or_default(),
        })
    }

    /// All ways that there were; of client first, the most frequent first. None where the module is
    /// another one.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        let mut failures = list_if_there(source, own::FAILURE_GET, Self::decode)?;
        failures.sort_by_key(|entry| (entry.side, std::cmp::Reverse(entry.count)));
        Ok(failures)
    }
}

/// How often peers broke the protocol, or went away, or could not be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Connections aborted because their peer broke the protocol, or took away the element that they wrote to.
    pub connections_aborted: u64,
    /// LLC messages that broke the protocol and ended their link.
    pub links_broken: u64,
    /// CDC messages discarded.
    pub cdc_dropped: u64,
    /// LLC messages discarded.
    pub llc_dropped: u64,
    /// LLC requests answered in the negative.
    pub llc_refused: u64,
    /// Links that ended by a failure or by the peer's wish, of link groups that had others; and further ones that did
    /// so while they were set up.
    pub links_lost: u64,
    /// Link groups that ended by a failure or by the peer's wish.
    pub groups_lost: u64,
    /// Handshakes after which a connection was neither SMC nor TCP.
    pub handshakes_failed: u64,
    /// Further links for which no port of ours has a way to the peer's, or its gateway does not answer.
    pub links_without_route: u64,
}

impl Faults {
    /// Those of the namespace, since it was made.
    pub fn read(source: &mut dyn Source) -> Result<Self, Error> {
        let messages = source.query(OWN_FAMILY, own::FAULT_GET, &[])?;
        let first = messages
            .first()
            .ok_or_else(|| Malformed("empty answer".into()))?;
        let attrs = Attrs::parse(&first.attributes)?;
        let counter = |kind| attrs.u64(kind).map(Option::unwrap_or_default);
        Ok(Self {
            connections_aborted: counter(attr::CONNECTIONS_ABORTED)?,
            links_broken: counter(attr::LINKS_BROKEN)?,
            cdc_dropped: counter(attr::CDC_DROPPED)?,
            llc_dropped: counter(attr::LLC_DROPPED)?,
            llc_refused: counter(attr::LLC_REFUSED)?,
            links_lost: counter(attr::LINKS_LOST)?,
            groups_lost: counter(attr::GROUPS_LOST)?,
            handshakes_failed: counter(attr::HANDSHAKES_FAILED)?,
            links_without_route: counter(attr::LINKS_WITHOUT_ROUTE)?,
        })
    }
}

/// What is drained: a port or a link group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Drained {
    /// A port gets no new links.
    Port {
        /// RDMA device.
        device: String,
        /// Its port.
        port: u8,
    },
    /// A group gets no new connections.
    Group {
        /// Its number, as hexadecimal text.
        group: String,
        /// Those that are left.
        connections: u32,
    },
}

impl Drained {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::parse(bytes)?;
        if let Some(device) = attrs.text(attr::DEVICE) {
            let port = attrs.u8(attr::DEVICE_PORT)?.unwrap_or_default();
            return Ok(Drained::Port { device, port });
        }
        let group = attrs.u32(attr::GROUP)?;
        let group = group.ok_or_else(|| Malformed("neither a port nor a group".into()))?;
        Ok(Drained::Group {
            group: format!("{group:08x}"),
            connections: attrs.u32(attr::CONNECTIONS)?.unwrap_or_default(),
        })
    }

    /// All of it.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        list(source, OWN_FAMILY, own::DRAIN_GET, Self::decode)
    }
}

/// What to drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainTarget {
    /// A group, or a link of it.
    Group(u32, Option<u8>),
    /// A device, or a port of it.
    Device(String, Option<u8>),
}

impl DrainTarget {
    /// The attributes of a request to drain it, or to take it back into use.
    pub fn attributes(&self, undo: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            DrainTarget::Group(group, link) => {
                push_attribute(&mut bytes, attr::GROUP, &group.to_ne_bytes());
                if let Some(link) = link {
                    push_attribute(&mut bytes, attr::LINK, &[*link]);
                }
            }
            DrainTarget::Device(device, port) => {
                let name = [device.as_bytes(), &[0]].concat();
                push_attribute(&mut bytes, attr::DEVICE, &name);
                if let Some(port) = port {
                    push_attribute(&mut bytes, attr::DEVICE_PORT, &[*port]);
                }
            }
        }
        if undo {
            push_attribute(&mut bytes, attr::UNDO, &[]);
        }
        bytes
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A link carries data.
    LinkUp(LinkEvent),
    /// A link carries nothing any more.
    LinkDown(LinkEvent),
    /// There is a new link group.
    GroupAdded(GroupEvent),
    /// A link group is no more.
    GroupRemoved(GroupEvent),
    /// A connection is plain TCP.
    Fallback(FallbackEvent),
    /// Events were lost, since they came faster than they were read.
    Lost,
    /// The module is no more.
    Unloaded,
}

/// What happened to a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkEvent {
    /// Its group.
    #[serde(flatten)]
    pub group: GroupEvent,
    /// Number of the link in the group.
    pub link: u8,
    /// RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
}

/// What happened to a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupEvent {
    /// Number of the group, as hexadecimal text.
    pub group: String,
    /// Our side.
    pub side: Side,
    /// Network namespace.
    pub net_cookie: u64,
}

/// What became of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FallbackEvent {
    /// The peer's address.
    pub address: Option<IpAddr>,
    /// The peer's port.
    pub port: Option<u16>,
    /// Our side.
    pub side: Side,
    /// Our reason.
    pub reason: Reason,
    /// The peer's reason.
    pub peer_reason: Option<Reason>,
    /// Network namespace.
    pub net_cookie: u64,
}

impl Event {
    /// Reads an event; `None` for one of a kind that is not known.
    pub fn decode(message: &Message) -> Result<Option<Self>, Malformed> {
        let attrs = Attrs::parse(&message.attributes)?;
        let side = Side(attrs.u8(attr::SIDE)?.unwrap_or_default());
        let net_cookie = attrs.u64(attr::NET_COOKIE)?.unwrap_or_default();
        let group = GroupEvent {
            group: format!("{:08x}", attrs.u32(attr::GROUP)?.unwrap_or_default()),
            side,
            net_cookie,
        };
        let link = |group| -> Result<LinkEvent, Malformed> {
            Ok(LinkEvent {
                group,
                link: attrs.u8(attr::LINK)?.unwrap_or_default(),
                device: attrs.text(attr::DEVICE).unwrap_or_default(),
                port: attrs.u8(attr::DEVICE_PORT)?.unwrap_or_default(),
            })
        };
        Ok(Some(match message.command {
            own::LINK_UP => Event::LinkUp(link(group)?),
            own::LINK_DOWN => Event::LinkDown(link(group)?),
            own::GROUP_ADDED => Event::GroupAdded(group),
            own::GROUP_REMOVED => Event::GroupRemoved(group),
            own::FALLBACK => Event::Fallback(FallbackEvent {
                address: address(&attrs)?,
                port: attrs.u16(attr::PORT_FIRST)?,
                side,
                reason: Reason(attrs.u32(attr::REASON)?.unwrap_or_default()),
                peer_reason: attrs.u32(attr::PEER_REASON)?.map(Reason),
                net_cookie,
            }),
            _ => return Ok(None),
        }))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = |f: &mut fmt::Formatter<'_>, what, link: &LinkEvent| {
            let (group, side) = (&link.group.group, link.group.side);
            write!(f, "{what:<14}group {group} ({side}) link {}", link.link)?;
            write!(f, " on {}/{}", link.device, link.port)
        };
        match self {
            Event::LinkUp(event) => link(f, "link-up", event),
            Event::LinkDown(event) => link(f, "link-down", event),
            Event::GroupAdded(event) => {
                write!(f, "group-added   group {} ({})", event.group, event.side)
            }
            Event::GroupRemoved(event) => {
                write!(f, "group-removed group {} ({})", event.group, event.side)
            }
            Event::Fallback(event) => {
                let peer = match (event.address, event.port) {
                    (Some(address), Some(port)) => {
                        std::net::SocketAddr::new(address, port).to_string()
                    }
                    (Some(address), None) => address.to_string(),
                    _ => "unknown peer".into(),
                };
                write!(f, "fallback      {peer} ({}): {}", event.side, event.reason)?;
                match event.peer_reason {
                    Some(reason) if reason.0 != 0 => write!(f, "; peer says {reason}"),
                    _ => Ok(()),
                }
            }
            Event::Lost => f.write_str("lost          events came faster than they were read"),
            Event::Unloaded => {
                f.write_str("unloaded      events follow when the module is loaded again")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_again_counts_once() {
        let told = vec![("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3)];
        let want = vec![("b", 1), ("c", 1), ("a", 3)];
        assert_eq!(latest(told, |item| item.0), want);
    }

    #[test]
    fn prefixes() {
        for (text, address, inside) in [
            ("192.0.2.0/24", "192.0.2.77", true),
            ("192.0.2.0/24", "192.0.3.77", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), text);
            assert_eq!(prefix.contains(address.parse().unwrap()), inside, "{text}");
        }
        for bad in [
            "",
            "x",
            "1.2.3.4/33",
            "::/129",
            "1.2.3.4/",
            "1.2.3.4/x",
            "1.2.3.4/-1",
        ] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn prefixes_of_ipv4_in_the_form_of_ipv6() {
        for (text, shown) in [
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1/128", "192.0.2.1"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), shown);
        }
        for bad in ["::ffff:0:0/95", "::ffff:192.0.2.0/24", "::ffff:1.2.3.4/129"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ports() {
        assert_eq!("80".parse::<Ports>().unwrap().range(), 80..=80);
        assert_eq!("80-443".parse::<Ports>().unwrap().to_string(), "80-443");
        for bad in ["", "-", "80-", "443-80", "65536", "http"] {
            assert!(bad.parse::<Ports>().is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_survive_the_way_there_and_back() {
        for rule in [
            Rule {
                number: 5,
                ..Rule::default()
            },
            Rule {
                number: 7,
                allow: true,
                side: Side(2),
                peer: Some("2001:db8::/32".parse().unwrap()),
                ports: Some("80-90".parse().unwrap()),
                cgroup: Some(1 << 40),
            },
        ] {
            assert_eq!(Rule::decode(&rule.attributes()), Ok(rule));
        }
    }
}
