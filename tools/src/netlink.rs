// SPDX-License-Identifier: GPL-2.0

//! Requests to the kernel over netlink, and the framing of its answers.

use netlink_packet_core::{
    NetlinkBuffer, NlasIterator, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_ATOMIC, NLM_F_CAPPED, NLM_F_DUMP,
    NLM_F_DUMP_INTR, NLM_F_REQUEST,
};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE, NETLINK_SOCK_DIAG};
use socket2::SockRef;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Numbers below are netlink's own.
const NLMSG_MIN_TYPE: u16 = 16;
const NLMSGERR_ATTR_MSG: u16 = 1;
const HEADER_LEN: usize = 16;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_NEWFAMILY: u8 = 1;
const CTRL_CMD_DELFAMILY: u8 = 2;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;
/// Where families come and go.
const CTRL_FAMILY: &str = "nlctrl";
const CTRL_GROUP: &str = "notify";

/// The kernel answers at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Dumps that raced with changes are repeated this often.
const DUMP_TRIES: u32 = 3;

/// Why a request failed.
#[derive(Debug)]
pub enum Error {
    /// A system call failed.
    System(&'static str, io::Error),
    /// The kernel refused, perhaps with a reason in words.
    Kernel(i32, Option<String>),
    /// The kernel does not have the family, so the module is not loaded.
    NoFamily(&'static str),
    /// The answer cannot be understood.
    Malformed(Malformed),
}

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Malformed> for Error {
    fn from(error: Malformed) -> Self {
        Error::Malformed(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::System(call, error) => write!(f, "{call}: {error}"),
            Error::Kernel(errno, message) => {
                write!(f, "{}", io::Error::from_raw_os_error(*errno))?;
                message
                    .iter()
                    .try_for_each(|message| write!(f, ": {message}"))
            }
            Error::NoFamily(name) => write!(f, "the kernel does not offer {name}"),
            Error::Malformed(error) => write!(f, "the kernel's answer is malformed: {error}"),
        }
    }
}

/// One message of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A message: of which kind, and what it says.
    Data(u16, &'a [u8]),
    /// The request is through, with an error number or zero.
    End(i32, Option<String>),
}

/// Takes a datagram apart. Messages that do not belong to the request are left out; `interrupted`
/// is set if the dump raced with a change.
pub fn parse<'a>(
    datagram: &'a [u8],
    sequence: u32,
    interrupted: &mut bool,
) -> Result<Vec<Event<'a>>, Malformed> {
    let mut events = Vec::new();
    let mut rest = datagram;
    while !rest.is_empty() {
        let message =
            NetlinkBuffer::new_checked(rest).map_err(|error| Malformed(error.to_string()))?;
        let length = message.length() as usize;
        let payload = rest.get(HEADER_LEN..length).unwrap_or_default();
        let next = length
            .checked_add(3)
            .map_or(rest.len(), |length| length & !3);
        if message.sequence_number() == sequence {
            *interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
            match message.message_type() {
                NLMSG_ERROR => events.push(end(payload, message.flags(), true)?),
                NLMSG_DONE => events.push(end(payload, message.flags(), false)?),
                kind if kind >= NLMSG_MIN_TYPE => events.push(Event::Data(kind, payload)),
                _ => {}
            }
        }
        rest = rest.get(next..).unwrap_or_default();
    }
    Ok(events)
}

/// An end of either kind: an error number, then for errors the request it is about, and attributes.
fn end(payload: &[u8], flags: u16, error: bool) -> Result<Event<'static>, Malformed> {
    let Some((code, rest)) = payload.split_first_chunk::<4>() else {
        // The end of a dump may come without a code.
        return if error {
            Err(Malformed("error without a code".into()))
        } else {
            Ok(Event::End(0, None))
        };
    };
    let errno = i32::from_ne_bytes(*code)
        .checked_neg()
        .filter(|errno| *errno >= 0);
    let errno = errno.ok_or_else(|| Malformed("error code is not negative".into()))?;
    let mut attributes = rest;
    if error {
        let request = rest
            .first_chunk::<4>()
            .map_or(0, |length| u32::from_ne_bytes(*length));
        let request = if flags & NLM_F_CAPPED != 0 {
            HEADER_LEN
        } else {
            request as usize
        };
        attributes = rest
            .get(request.saturating_add(3) & !3..)
            .unwrap_or_default();
    }
    if flags & NLM_F_ACK_TLVS == 0 {
        attributes = &[];
    }
    let message = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)
        .map(|attribute| crate::attr::text(attribute.value()));
    Ok(Event::End(errno, message))
}

/// The bytes of a request.
pub fn request(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = HEADER_LEN + payload.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// Appends an attribute.
pub fn push_attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((value.len() as u16 + 4).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// A message of a generic netlink family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Command that the message is the answer of.
    pub command: u8,
    /// The attributes' bytes.
    pub attributes: Vec<u8>,
}

impl Message {
    /// Splits the family's header off.
    pub fn parse(payload: &[u8]) -> Result<Message, Malformed> {
        match payload {
            [command, _, _, _, attributes @ ..] => Ok(Message {
                command: *command,
                attributes: attributes.to_vec(),
            }),
            _ => Err(Malformed("message without a generic netlink header".into())),
        }
    }
}

/// Where answers come from: the kernel, or a test.
pub trait Source {
    /// The messages of a dump.
    fn dump(&mut self, family: &'static str, command: u8) -> Result<Vec<Message>, Error>;

    /// Carries out a command. `attributes` are appended to the request as they are.
    fn execute(
        &mut self,
        family: &'static str,
        command: u8,
        attributes: &[u8],
    ) -> Result<(), Error>;

    /// Carries out a command that has an answer.
    fn query(
        &mut self,
        family: &'static str,
        command: u8,
        attributes: &[u8],
    ) -> Result<Vec<Message>, Error>;

    /// The messages about sockets of a family; the request's payload is given.
    fn sockets(&mut self, request: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Hands over what comes to a multicast group of a family, until that says `Break`.
    fn events(
        &mut self,
        family: &'static str,
        group: &'static str,
        on_event: &mut dyn FnMut(Notice) -> ControlFlow<()>,
    ) -> Result<(), Error>;

    /// The way that packets to an address take.
    fn route(&mut self, to: IpAddr) -> Result<Route, Error>;

    /// The IP addresses of this host.
    fn addresses(&mut self) -> Result<Vec<Address>, Error>;

    /// The network interfaces of this host.
    fn interfaces(&mut self) -> Result<Vec<Interface>, Error>;
}

/// What a family lists, as values.
pub fn list<T>(
    source: &mut dyn Source,
    family: &'static str,
    command: u8,
    decode: fn(&[u8]) -> Result<T, Malformed>,
) -> Result<Vec<T>, Error> {
    let messages = source.dump(family, command)?;
    let items = messages.iter().map(|message| decode(&message.attributes));
    Ok(items.collect::<Result<_, _>>()?)
}

/// What comes to a multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message.
    Message(Message),
    /// Messages were lost, since they came faster than they were read.
    Lost,
    /// The module is no more. What one says that is loaded again is heard as well.
    Unloaded,
}

/// What the kernel says about a family, if the message is about that: whether it has it from now on.
fn is_there_now(message: &Message, family: &str) -> Result<Option<bool>, Malformed> {
    let attrs = crate::attr::Attrs::parse(&message.attributes)?;
    let is_it = attrs.text(CTRL_ATTR_FAMILY_NAME).as_deref() == Some(family);
    Ok(match message.command {
        CTRL_CMD_NEWFAMILY if is_it => Some(true),
        CTRL_CMD_DELFAMILY if is_it => Some(false),
        _ => None,
    })
}

/// The way that packets to an address take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The address belongs to this host.
    pub local: bool,
    /// Index of the interface that they leave by.
    pub ifindex: u32,
    /// The next router, if there is one in between.
    pub gateway: Option<IpAddr>,
    /// The address that they come from.
    pub source: Option<IpAddr>,
}

impl Route {
    fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let (header, attributes) = payload
            .split_first_chunk::<RTMSG_LEN>()
            .ok_or_else(|| Malformed("route is too short".into()))?;
        let attrs = crate::attr::Attrs::parse(attributes)?;
        // The address of a router of the other family has its family in front.
        let via = attrs.bytes(RTA_VIA).and_then(|via| via.get(2..));
        Ok(Self {
            local: header[7] == RTN_LOCAL,
            ifindex: attrs.u32(RTA_OIF)?.unwrap_or_default(),
            gateway: attrs.bytes(RTA_GATEWAY).or(via).and_then(ip),
            source: attrs.bytes(RTA_PREFSRC).and_then(ip),
        })
    }
}

/// An IP address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// Bits of it that name its subnet.
    pub prefix_len: u8,
}

impl Address {
    /// None where it is not one of IP, or none at all (`0.0.0.0`).
    fn decode(payload: &[u8]) -> Result<Option<Self>, Malformed> {
        let (header, attributes) = payload
            .split_first_chunk::<IFADDRMSG_LEN>()
            .ok_or_else(|| Malformed("address is too short".into()))?;
        let attrs = crate::attr::Attrs::parse(attributes)?;
        let [_, prefix_len, _, _, index @ ..] = *header;
        // At the end of a tunnel, the other attribute is the address of the other end.
        let own = attrs.bytes(IFA_LOCAL).or(attrs.bytes(IFA_ADDRESS));
        Ok(own.and_then(ip).map(|address| Self {
            ifindex: u32::from_ne_bytes(index),
            address,
            prefix_len,
        }))
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its alternative names.
    pub alternatives: Vec<String>,
    /// Its number.
    pub index: u32,
    /// Largest packet, in bytes.
    pub mtu: Option<u32>,
    /// The VLAN that it is for.
    pub vlan: Option<u16>,
    /// The interface that it stands on, such as the card of a VLAN.
    pub lower: Option<u32>,
    /// The interface that stands on it and others, such as a bond.
    pub master: Option<u32>,
}

/// Kinds of interfaces that stand on the one which they name as their link. Others name one as well, such as a pair of
/// virtual cards each other.
const UPPER_KINDS: [&str; 7] = [
    "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec", "vxlan",
];

impl Interface {
    fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let (head, attributes) = payload
            .split_first_chunk::<IFINFOMSG_LEN>()
            .ok_or_else(|| Malformed("interface is too short".into()))?;
        let [_, _, _, _, index @ .., _, _, _, _, _, _, _, _] = *head;
        let attrs = crate::attr::Attrs::parse(attributes)?;
        let info = attrs.nest(IFLA_LINKINFO)?.unwrap_or_default();
        let kind = info.text(IFLA_INFO_KIND).unwrap_or_default();
        let vlan = match kind.as_str() {
            "vlan" => info.nest(IFLA_INFO_DATA)?,
            _ => None,
        };
        // The number may be one of another network namespace.
        let is_here = attrs.bytes(IFLA_LINK_NETNSID).is_none();
        let is_upper = is_here && UPPER_KINDS.contains(&kind.as_str());
        let properties = attrs.nest(IFLA_PROP_LIST)?.unwrap_or_default();
        Ok(Self {
            name: attrs.text(IFLA_IFNAME).unwrap_or_default(),
            alternatives: properties
                .all(IFLA_ALT_IFNAME)
                .map(crate::attr::text)
                .collect(),
            index: u32::from_ne_bytes(index),
            mtu: attrs.u32(IFLA_MTU)?,
            vlan: vlan.map_or(Ok(None), |vlan| vlan.u16(IFLA_VLAN_ID))?,
            lower: attrs.u32(IFLA_LINK)?.filter(|_| is_upper),
            master: attrs.u32(IFLA_MASTER)?,
        })
    }

    /// Whether it stands on the other one.
    fn is_on(&self, other: &Self) -> bool {
        self.lower == Some(other.index) || other.master == Some(self.index)
    }

    /// An interface and those that it stands on, by their names, in the order in which the module looks for a pnet ID:
    /// each is followed by its alternative names and all that is below it, then comes the next one.
    pub fn with_lowers(name: &str, all: &[Self]) -> Vec<String> {
        let mut found = Vec::new();
        let mut left = vec![name];
        while let Some(name) = left.pop() {
            if found.iter().any(|known| known == name) {
                continue;
            }
            found.push(name.to_string());
            let upper = all.iter().find(|one| one.name == name);
            found.extend(upper.iter().flat_map(|upper| upper.alternatives.clone()));
            let lowers = all
                .iter()
                .filter(|lower| upper.is_some_and(|upper| upper.is_on(lower)));
            left.extend(lowers.rev().map(|lower| lower.name.as_str()));
        }
        found
    }
}

/// Reads an address of 4 or 16 bytes.
pub fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// The bytes of an address.
pub fn ip_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

const RTM_GETLINK: u16 = 18;
const IFINFOMSG_LEN: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const RTM_GETADDR: u16 = 22;
const IFADDRMSG_LEN: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTM_GETROUTE: u16 = 26;
const RTMSG_LEN: usize = 12;
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

struct Connection {
    socket: netlink_sys::Socket,
    sequence: u32,
}

impl Connection {
    fn new(protocol: isize) -> Result<Self, Error> {
        let system = |call| move |error| Error::System(call, error);
        let mut socket = netlink_sys::Socket::new(protocol).map_err(system("netlink socket"))?;
        socket.bind_auto().map_err(system("netlink bind"))?;
        // Older kernels lack these two; their messages are only less detailed.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_netlink_get_strict_chk(true);
        SockRef::from(&socket)
            .set_read_timeout(Some(TIMEOUT))
            .map_err(system("netlink option"))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// The next datagram that the kernel sent. Other processes can send to our port as well.
    fn receive(&self) -> io::Result<Vec<u8>> {
        loop {
            match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok((_, sender)) if sender.port_number() != 0 => {}
                result => return result.map(|(datagram, _)| datagram),
            }
        }
    }

    /// Hears what comes to a multicast group from now on.
    fn join(&mut self, group: u32) -> Result<(), Error> {
        self.socket
            .add_membership(group)
            .map_err(|error| Error::System("netlink membership", error))
    }

    /// Sends a request and gives its answer to `on_data`, until the end of it.
    fn transact(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        on_data: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<bool, Error> {
        self.sequence += 1;
        let bytes = request(kind, flags, self.sequence, payload);
        self.socket
            .send(&bytes, 0)
            .map_err(|error| Error::System("netlink send", error))?;
        let mut interrupted = false;
        loop {
            let datagram = self
                .receive()
                .map_err(|error| Error::System("netlink receive", error))?;
            for event in parse(&datagram, self.sequence, &mut interrupted)? {
                match event {
                    Event::Data(_, payload) => on_data(payload)?,
                    Event::End(0, _) => return Ok(interrupted),
                    Event::End(errno, message) => return Err(Error::Kernel(errno, message)),
                }
            }
        }
    }

    fn collect<T>(
        &mut self,
        kind: u16,
        payload: &[u8],
        convert: fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let mut items = Vec::new();
        for _ in 0..DUMP_TRIES {
            items.clear();
            let interrupted =
                self.transact(kind, NLM_F_DUMP | NLM_F_ATOMIC, payload, &mut |data| {
                    items.push(convert(data)?);
                    Ok(())
                })?;
            if !interrupted {
                break;
            }
        }
        Ok(items)
    }
}

/// The running kernel.
pub struct Kernel {
    generic: Connection,
}

fn generic_payload(command: u8, version: u8, attributes: &[u8]) -> Vec<u8> {
    let mut payload = vec![command, version, 0, 0];
    payload.extend(attributes);
    payload
}

impl Kernel {
    /// Opens the connection.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            generic: Connection::new(NETLINK_GENERIC)?,
        })
    }

    /// What the kernel says about a family. Asking for it loads the module, if there is one to load.
    fn describe(&mut self, name: &'static str) -> Result<Vec<u8>, Error> {
        let mut attributes = Vec::new();
        push_attribute(
            &mut attributes,
            CTRL_ATTR_FAMILY_NAME,
            &[name.as_bytes(), &[0]].concat(),
        );
        let payload = generic_payload(CTRL_CMD_GETFAMILY, 1, &attributes);
        let mut found = None;
        let answer = self
            .generic
            .transact(GENL_ID_CTRL, NLM_F_ACK, &payload, &mut |data| {
                found = Some(Message::parse(data)?.attributes);
                Ok(())
            });
        match answer {
            Err(Error::Kernel(errno, _)) if errno == crate::sys::ENOENT => {
                Err(Error::NoFamily(name))
            }
            Err(error) => Err(error),
            Ok(_) => Ok(found.ok_or_else(|| Malformed("no family in the answer".into()))?),
        }
    }

    /// The number of a family.
    fn family(&mut self, name: &'static str) -> Result<u16, Error> {
        let attributes = self.describe(name)?;
        let id = crate::attr::Attrs::parse(&attributes)?.u16(CTRL_ATTR_FAMILY_ID)?;
        Ok(id.ok_or_else(|| Malformed("family without a number".into()))?)
    }

    /// The number of a multicast group of a family.
    fn group(&mut self, family: &'static str, group: &str) -> Result<u32, Error> {
        let attributes = self.describe(family)?;
        let groups = crate::attr::Attrs::parse(&attributes)?
            .nest(CTRL_ATTR_MCAST_GROUPS)?
            .unwrap_or_default();
        for entry in groups.values() {
            let entry = crate::attr::Attrs::parse(entry)?;
            if entry.text(CTRL_ATTR_MCAST_GRP_NAME).as_deref() == Some(group) {
                let id = entry.u32(CTRL_ATTR_MCAST_GRP_ID)?;
                return Ok(id.ok_or_else(|| Malformed("group without a number".into()))?);
            }
        }
        Err(Malformed(format!("{family} has no group {group}")).into())
    }

    /// Has what comes to a group of a family heard that has just come.
    fn join_again(
        &mut self,
        connection: &mut Connection,
        family: &'static str,
        group: &str,
    ) -> Result<(), Error> {
        match self.group(family, group) {
            Ok(number) => connection.join(number),
            // And has gone again, of which is told next.
            Err(Error::NoFamily(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What there is to be told of a message that came to a group of a family, or to that of all families.
    fn notice(
        &mut self,
        connection: &mut Connection,
        family: &'static str,
        group: &str,
        kind: u16,
        message: Message,
    ) -> Result<Option<Notice>, Error> {
        if kind != GENL_ID_CTRL {
            return Ok(Some(Notice::Message(message)));
        }
        match is_there_now(&message, family)? {
            None => Ok(None),
            Some(false) => Ok(Some(Notice::Unloaded)),
            Some(true) => self.join_again(connection, family, group).map(|()| None),
        }
    }
}

impl Source for Kernel {
    fn dump(&mut self, family: &'static str, command: u8) -> Result<Vec<Message>, Error> {
        let id = self.family(family)?;
        self.generic
            .collect(id, &generic_payload(command, 1, &[]), Message::parse)
    }

    fn execute(
        &mut self,
        family: &'static str,
        command: u8,
        attributes: &[u8],
    ) -> Result<(), Error> {
        let id = self.family(family)?;
        let payload = generic_payload(command, 1, attributes);
        self.generic
            .transact(id, NLM_F_ACK, &payload, &mut |_| Ok(()))
            .map(drop)
    }

    fn query(
        &mut self,
        family: &'static str,
        command: u8,
        attributes: &[u8],
    ) -> Result<Vec<Message>, Error> {
        let id = self.family(family)?;
        let payload = generic_payload(command, 1, attributes);
        let mut messages = Vec::new();
        self.generic
            .transact(id, NLM_F_ACK, &payload, &mut |data| {
                messages.push(Message::parse(data)?);
                Ok(())
            })?;
        Ok(messages)
    }

    fn events(
        &mut self,
        family: &'static str,
        group: &'static str,
        on_event: &mut dyn FnMut(Notice) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut connection = Connection::new(NETLINK_GENERIC)?;
        let system = |call| move |error| Error::System(call, error);
        // First: of a family that goes while it is looked for, the end is heard.
        connection.join(self.group(CTRL_FAMILY, CTRL_GROUP)?)?;
        connection.join(self.group(family, group)?)?;
        SockRef::from(&connection.socket)
            .set_read_timeout(None)
            .map_err(system("netlink option"))?;
        loop {
            let datagram = match connection.receive() {
                Err(error) if error.raw_os_error() == Some(crate::sys::ENOBUFS) => {
                    // Perhaps that the module is there again.
                    self.join_again(&mut connection, family, group)?;
                    if on_event(Notice::Lost).is_break() {
                        return Ok(());
                    }
                    continue;
                }
                datagram => datagram.map_err(system("netlink receive"))?,
            };
            // Nobody asked for what comes to a group, so it has no sequence number.
            for event in parse(&datagram, 0, &mut false)? {
                let Event::Data(kind, payload) = event else {
                    continue;
                };
                let message = Message::parse(payload)?;
                let notice = self.notice(&mut connection, family, group, kind, message)?;
                if notice.is_some_and(|notice| on_event(notice).is_break()) {
                    return Ok(());
                }
            }
        }
    }

    fn route(&mut self, to: IpAddr) -> Result<Route, Error> {
        let (family, bits) = if to.is_ipv4() {
            (AF_INET, 32)
        } else {
            (AF_INET6, 128)
        };
        let mut payload = vec![0; RTMSG_LEN];
        payload[..2].copy_from_slice(&[family, bits]);
        push_attribute(&mut payload, RTA_DST, &ip_bytes(to));
        let mut route = None;
        Connection::new(NETLINK_ROUTE)?.transact(
            RTM_GETROUTE,
            NLM_F_ACK,
            &payload,
            &mut |data| {
                route = Some(Route::decode(data)?);
                Ok(())
            },
        )?;
        Ok(route.ok_or_else(|| Malformed("no route in the answer".into()))?)
    }

    fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let mut connection = Connection::new(NETLINK_ROUTE)?;
        let all = connection.collect(RTM_GETADDR, &[0; IFADDRMSG_LEN], Address::decode)?;
        Ok(all.into_iter().flatten().collect())
    }

    fn interfaces(&mut self) -> Result<Vec<Interface>, Error> {
        Connection::new(NETLINK_ROUTE)?.collect(RTM_GETLINK, &[0; IFINFOMSG_LEN], Interface::decode)
    }

    fn sockets(&mut self, request: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut connection = Connection::new(NETLINK_SOCK_DIAG)?;
        let answer = connection.collect(crate::uapi::SOCK_DIAG_BY_FAMILY, request, |data| {
            Ok(data.to_vec())
        });
        match answer {
            Err(Error::Kernel(errno, _)) if errno == crate::sys::ENOENT => {
                Err(Error::NoFamily("sock_diag for SMC (module smc_diag)"))
            }
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = request(kind, flags, sequence, payload);
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn events(datagram: &[u8]) -> Result<Vec<Event<'_>>, Malformed> {
        parse(datagram, 7, &mut false)
    }

    #[test]
    fn data_and_end() {
        let datagram = [
            message(20, 2, 7, &[1, 2, 3]),
            message(20, 2, 6, &[9]),
            message(20, 2, 7, &[]),
            message(1, 2, 7, &[]),
            message(NLMSG_DONE, 2, 7, &0i32.to_ne_bytes()),
        ]
        .concat();
        let want = vec![
            Event::Data(20, &[1, 2, 3]),
            Event::Data(20, &[]),
            Event::End(0, None),
        ];
        assert_eq!(events(&datagram), Ok(want));
    }

    #[test]
    fn errors_with_words() {
        let mut capped = (-22i32).to_ne_bytes().to_vec();
        capped.extend([0; HEADER_LEN]);
        push_attribute(&mut capped, NLMSGERR_ATTR_MSG, b"bad id\0");
        let flags = NLM_F_CAPPED | NLM_F_ACK_TLVS;
        let datagram = message(NLMSG_ERROR, flags, 7, &capped);
        assert_eq!(
            events(&datagram),
            Ok(vec![Event::End(22, Some("bad id".into()))])
        );

        // The whole request comes back, and is skipped.
        let mut whole = (-17i32).to_ne_bytes().to_vec();
        whole.extend(request(30, 0, 7, &[5; 9]));
        whole.resize(whole.len().next_multiple_of(4), 0);
        push_attribute(&mut whole, NLMSGERR_ATTR_MSG, b"exists\0");
        let datagram = message(NLMSG_ERROR, NLM_F_ACK_TLVS, 7, &whole);
        assert_eq!(
            events(&datagram),
            Ok(vec![Event::End(17, Some("exists".into()))])
        );
    }

    #[test]
    fn the_end_of_a_dump_can_be_an_error() {
        let datagram = message(NLMSG_DONE, 2, 7, &(-12i32).to_ne_bytes());
        assert_eq!(events(&datagram), Ok(vec![Event::End(12, None)]));
        assert_eq!(
            events(&message(NLMSG_DONE, 2, 7, &[])),
            Ok(vec![Event::End(0, None)])
        );
    }

    #[test]
    fn interrupted_dumps_are_noticed() {
        let mut interrupted = false;
        let datagram = message(20, NLM_F_DUMP_INTR, 7, &[]);
        parse(&datagram, 7, &mut interrupted).unwrap();
        assert!(interrupted);
        interrupted = false;
        parse(&datagram, 8, &mut interrupted).unwrap();
        assert!(!interrupted);
    }

    #[test]
    fn hostile_framing() {
        let good = message(20, 2, 7, &[1, 2, 3, 4]);
        for length in 1..good.len() {
            assert!(events(&good[..length]).is_err(), "cut to {length}");
        }
        for length in [0u32, 15, 21, 1 << 20, u32::MAX] {
            let mut bad = good.clone();
            bad[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(events(&bad).is_err(), "length {length}");
        }
        for code in [1i32, i32::MAX, i32::MIN] {
            assert!(events(&message(NLMSG_ERROR, 0, 7, &code.to_ne_bytes())).is_err());
        }
        assert!(events(&message(NLMSG_ERROR, 0, 7, &[1, 2])).is_err());
        // A length of the request inside that points nowhere.
        let mut error = (-1i32).to_ne_bytes().to_vec();
        error.extend([0xff; 16]);
        let datagram = message(NLMSG_ERROR, NLM_F_ACK_TLVS, 7, &error);
        assert_eq!(events(&datagram), Ok(vec![Event::End(1, None)]));
    }

    #[test]
    fn a_message_needs_its_header() {
        assert!(Message::parse(&[1, 0, 0]).is_err());
        let message = Message::parse(&[3, 1, 0, 0, 9]).unwrap();
        assert_eq!((message.command, &message.attributes[..]), (3, &[9][..]));
    }

    #[test]
    fn attributes_are_padded() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 5, b"ab\0");
        assert_eq!(bytes.len(), 8);
        assert_eq!(bytes[..2], 7u16.to_ne_bytes());
    }

    #[test]
    fn the_kernel_knows_its_controller() {
        let mut kernel = Kernel::new().unwrap();
        assert_eq!(kernel.family("nlctrl").unwrap(), GENL_ID_CTRL);
        assert!(kernel.group("nlctrl", "notify").is_ok());
        assert!(kernel.group("nlctrl", "nothing").is_err());
        assert!(matches!(
            kernel.family("NO_SUCH_FAM"),
            Err(Error::NoFamily("NO_SUCH_FAM"))
        ));
    }

    #[test]
    fn the_kernel_knows_the_way_to_itself() {
        let route = Kernel::new()
            .unwrap()
            .route("127.0.0.1".parse().unwrap())
            .unwrap();
        assert!(route.local && route.ifindex != 0, "{route:?}");
        assert_eq!(route.gateway, None);
    }

    #[test]
    fn routes() {
        let mut bytes = vec![0; RTMSG_LEN];
        bytes[7] = 1;
        push_attribute(&mut bytes, RTA_OIF, &7u32.to_ne_bytes());
        push_attribute(
            &mut bytes,
            RTA_VIA,
            &[10, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        );
        push_attribute(&mut bytes, RTA_PREFSRC, &[192, 0, 2, 1]);
        let want = Route {
            local: false,
            ifindex: 7,
            gateway: Some("fe80::1".parse().unwrap()),
            source: Some("192.0.2.1".parse().unwrap()),
        };
        assert_eq!(Route::decode(&bytes), Ok(want));
        assert!(Route::decode(&bytes[..11]).is_err());
        assert_eq!(ip(&[1, 2, 3]), None);
    }

    #[test]
    fn the_kernel_knows_its_own_addresses_and_interfaces() {
        let mut kernel = Kernel::new().unwrap();
        let lo = kernel.interfaces().unwrap();
        assert!(lo.iter().any(|lo| lo.name == "lo" && lo.vlan.is_none()));
        for address in kernel.addresses().unwrap() {
            assert!(address.ifindex != 0, "{address:?}");
        }
    }

    #[test]
    fn addresses_and_vlans() {
        let mut bytes = vec![AF_INET, 24, 0, 0];
        bytes.extend(7u32.to_ne_bytes());
        push_attribute(&mut bytes, IFA_ADDRESS, &[192, 0, 2, 9]);
        push_attribute(&mut bytes, IFA_LOCAL, &[192, 0, 2, 1]);
        let want = Address {
            ifindex: 7,
            address: "192.0.2.1".parse().unwrap(),
            prefix_len: 24,
        };
        assert_eq!(Address::decode(&bytes), Ok(Some(want)));
        assert_eq!(Address::decode(&bytes[..8]), Ok(None));
        assert!(Address::decode(&bytes[..7]).is_err());
        // Of a protocol with addresses of one byte.
        bytes.truncate(8);
        push_attribute(&mut bytes, IFA_LOCAL, &[9]);
        assert_eq!(Address::decode(&bytes), Ok(None));

        let (mut data, mut info, mut bytes) = (vec![], vec![], vec![0; IFINFOMSG_LEN]);
        push_attribute(&mut data, IFLA_VLAN_ID, &5u16.to_ne_bytes());
        push_attribute(&mut info, IFLA_INFO_KIND, b"vlan");
        push_attribute(&mut info, IFLA_INFO_DATA, &data);
        push_attribute(&mut bytes, IFLA_IFNAME, b"eth0.5\0");
        push_attribute(&mut bytes, IFLA_LINKINFO, &info);
        let interface = Interface::decode(&bytes).unwrap();
        assert_eq!(
            (interface.name.as_str(), interface.vlan),
            ("eth0.5", Some(5))
        );
    }

    /// An interface of a kind, with numbers as attributes.
    fn interface(name: &str, index: u32, kind: &str, numbers: &[(u16, u32)]) -> Interface {
        let (mut info, mut bytes) = (vec![], vec![0; IFINFOMSG_LEN]);
        bytes[4..8].copy_from_slice(&index.to_ne_bytes());
        push_attribute(&mut info, IFLA_INFO_KIND, kind.as_bytes());
        push_attribute(&mut bytes, IFLA_IFNAME, name.as_bytes());
        push_attribute(&mut bytes, IFLA_LINKINFO, &info);
        for (attribute, number) in numbers {
            push_attribute(&mut bytes, *attribute, &number.to_ne_bytes());
        }
        Interface::decode(&bytes).unwrap()
    }

    /// As the kernel tells, not sysfs, which may be that of another network namespace.
    #[test]
    fn what_interfaces_stand_on() {
        let all = [
            interface("eth0", 2, "", &[(IFLA_MTU, 9000), (IFLA_MASTER, 4)]),
            interface("eth1", 3, "", &[(IFLA_MASTER, 4)]),
            interface("bond0", 4, "bond", &[]),
            interface("bond0.5", 5, "vlan", &[(IFLA_LINK, 4)]),
            // A pair of virtual cards, and a VLAN whose card is elsewhere.
            interface("va", 6, "veth", &[(IFLA_LINK, 7)]),
            interface("vb", 7, "veth", &[(IFLA_LINK, 6)]),
            interface(
                "far.5",
                8,
                "vlan",
                &[(IFLA_LINK, 2), (IFLA_LINK_NETNSID, 1)],
            ),
            interface("odd", 9, "vlan", &[(IFLA_LINK, 9), (IFLA_MASTER, 9)]),
            // A bridge of VLANs.
            interface("br0", 10, "bridge", &[]),
            interface("va.5", 11, "vlan", &[(IFLA_LINK, 6), (IFLA_MASTER, 10)]),
            interface("vb.5", 12, "vlan", &[(IFLA_LINK, 7), (IFLA_MASTER, 10)]),
            Interface {
                alternatives: vec!["enp1s0".into(), "uplink".into()],
                ..interface("eth2", 13, "", &[(IFLA_MASTER, 14)])
            },
            interface("bond1", 14, "bond", &[]),
        ];
        for names in [
            &["eth0"][..],
            &["bond0", "eth0", "eth1"],
            &["bond0.5", "bond0", "eth0", "eth1"],
            &["va"],
            &["vb"],
            &["far.5"],
            &["odd"],
            &["br0", "va.5", "va", "vb.5", "vb"],
            &["unknown"],
            &["bond1", "eth2", "enp1s0", "uplink"],
        ] {
            assert_eq!(Interface::with_lowers(names[0], &all), names);
        }
        assert_eq!(
            (all[0].index, all[0].mtu, all[1].mtu),
            (2, Some(9000), None)
        );
    }
}
