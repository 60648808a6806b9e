// SPDX-License-Identifier: GPL-2.0

//! Links and connections of this peer, and what can be done with them.

use crate::conn::{Conn, Cursors, Theirs};
use crate::link::{kind, Link, Role, Terms};
use crate::verbs::{FarEnd, Port, Work};
use smc_proto::cdc::Cdc;
use smc_proto::clc::{
    AcceptConfirm, AcceptV2, Decline, FirstContact, Ipv4Subnet, Limits, Message, OfferV1, OfferV2,
    Prefixes, Proposal, MAX_EMIT, OS_LINUX,
};
use smc_proto::error::ParseError;
use smc_proto::wire::{
    AlertToken, Diagnosis, Eid, Gid, List, Mac, MtuCode, PeerId, Psn, QpNum, RKey, RToken,
    RmbeIndex, RmbeSize,
};
use smc_testing::peer::engine::Host;
use smc_testing::peer::frame::End;
use smc_testing::peer::Wire;
use smc_testing::stream::Stream;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::path::Path;
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

/// How long something may take that should come at once.
pub(crate) const SOON: f64 = 20.0;

/// Keys in one ADD LINK CONTINUATION.
const KEYS_PER_MESSAGE: u8 = 2;

/// What an unused byte of our RMBs holds.
const CANARY: u8 = 0xa5;

/// Where we are.
pub(crate) struct Place {
    pub(crate) interface: String,
    pub(crate) device: String,
    pub(crate) address: (Ipv4Addr, u8),
    pub(crate) gid: Ipv4Addr,
    pub(crate) trace: bool,
    /// Interface, device and its address for further links.
    pub(crate) further: Option<(String, String, Ipv4Addr)>,
}

/// A link and what CLC agreed on.
struct Peering {
    link: Link,
    /// The name of the first link of its group.
    group: String,
    eid: Option<Eid>,
    agreed: Option<AcceptV2>,
}

/// Key and address of an RMB, by the number of the link.
type Keys = BTreeMap<u8, (u32, u64)>;

/// An open port, and the address of its interface.
type OpenPort = (Rc<Port>, [u8; 6]);

/// Everything.
pub(crate) struct World {
    place: Place,
    port: Rc<Port>,
    mac: [u8; 6],
    further: Option<OpenPort>,
    instance: u16,
    links: BTreeMap<String, Peering>,
    /// RMBs of the other sides, by group.
    rmbs: BTreeMap<String, Vec<Keys>>,
    conns: BTreeMap<String, Conn>,
    tcp_port: u16,
    token: u32,
    /// CDC messages with a token that no connection of ours has.
    strays: usize,
    /// How often a link was asked whether it is up.
    probes: u64,
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// The place of a RoCE v2 GID in the table of the device's first port.
fn gid_index(device: &str, gid: [u8; 16]) -> Result<u8, String> {
    let port = Path::new("/sys/class/infiniband")
        .join(device)
        .join("ports/1");
    for index in 0..64 {
        let entry = std::fs::read_to_string(port.join(format!("gids/{index}"))).unwrap_or_default();
        let kind = std::fs::read_to_string(port.join(format!("gid_attrs/types/{index}")));
        let bytes: Vec<u8> = entry
            .trim()
            .split(':')
            .filter_map(|word| u16::from_str_radix(word, 16).ok())
            .flat_map(u16::to_be_bytes)
            .collect();
        if bytes == gid && kind.unwrap_or_default().trim() == "RoCE v2" {
            return Ok(index);
        }
    }
    Err(format!("{device} has no such GID"))
}

fn open_port(interface: &str, device: &str, gid: Ipv4Addr) -> Result<OpenPort, String> {
    let gid = Gid::from_ipv4(gid.octets()).0;
    let port = Port::open(device, gid_index(device, gid)?, gid).map_err(text)?;
    let (_, mac) = Wire::open(interface).map_err(text)?;
    Ok((port, mac))
}

/// The bytes at this place of a message, or zeroes.
fn array<const N: usize>(message: &[u8], at: usize) -> [u8; N] {
    let bytes = message.get(at..).and_then(|rest| rest.first_chunk());
    bytes.copied().unwrap_or([0; N])
}

/// A key and the address behind it.
fn key_at(message: &[u8], at: usize) -> (u32, u64) {
    let key = u32::from_be_bytes(array(message, at));
    (key, u64::from_be_bytes(array(message, at + 4)))
}

fn number_of_3(message: &[u8], at: usize) -> u32 {
    let [a, b, c] = array(message, at);
    u32::from_be_bytes([0, a, b, c])
}

impl World {
    /// Opens device and interface.
    pub(crate) fn new(place: Place) -> Result<Self, String> {
        let (port, mac) = open_port(&place.interface, &place.device, place.gid)?;
        let further = match &place.further {
            Some((interface, device, gid)) => Some(open_port(interface, device, *gid)?),
            None => None,
        };
        let time = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let number = time.as_millis();
        Ok(Self {
            place,
            port,
            mac,
            further,
            instance: number as u16 | 1,
            links: BTreeMap::new(),
            rmbs: BTreeMap::new(),
            conns: BTreeMap::new(),
            tcp_port: 30_000 + (number % 25_000) as u16,
            token: 0x0100_0000,
            strays: 0,
            probes: 0,
        })
    }

    /// Says something about what goes on.
    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.place.trace {
            eprintln!("{}", what());
        }
    }

    /// Makes a link, one of a host that nobody has heard of.
    pub(crate) fn add_link(
        &mut self,
        name: &str,
        role: Role,
        eid: Option<&str>,
        (elements, size): (u8, u8),
    ) -> Result<(), String> {
        self.instance = self.instance.wrapping_add(2);
        let terms = Terms {
            role,
            version: if eid.is_some() { 2 } else { 1 },
            elements,
            element_len: RmbeSize::new(size).ok_or("no such size")?.bytes(),
            mac: self.mac,
            instance: self.instance,
        };
        let link = Link::new(&self.port, terms, None).map_err(text)?;
        link.rmb.write(0, &vec![CANARY; link.rmb.len()]);
        let eid = match eid {
            Some(name) => Some(Eid::new(name.as_bytes()).ok_or("no such ID")?),
            None => None,
        };
        let peering = Peering {
            link,
            group: name.into(),
            eid,
            agreed: None,
        };
        self.links.insert(name.into(), peering);
        Ok(())
    }

    /// Makes a queue pair on the second port, for a further link of the group of another one.
    pub(crate) fn add_further(&mut self, name: &str, of: &str, keys: u8) -> Result<(), String> {
        let (port, mac) = self.further.as_ref().ok_or("no second device")?;
        let first = self.peering(of)?;
        let terms = Terms {
            mac: *mac,
            ..first.link.terms
        };
        let mut link = Link::new(port, terms, Some(&first.link.rmb)).map_err(text)?;
        link.keys = keys;
        let peering = Peering {
            link,
            group: of.into(),
            eid: first.eid,
            agreed: None,
        };
        self.links.insert(name.into(), peering);
        self.link(of)?.has_further = true;
        Ok(())
    }

    /// A further link of a group that is not connected, or is by this number.
    fn further_of(&self, group: &str, number: Option<u8>) -> Option<String> {
        let mut further = self.links.iter().filter(|(name, peering)| {
            peering.group == group
                && *name != group
                && number.map_or(peering.link.far.is_none(), |n| peering.link.number == n)
        });
        further.next().map(|(name, _)| name.clone())
    }

    /// Client: answers what the server asks about a further link.
    fn asked(&mut self, group: &str, message: &[u8]) -> Result<(), String> {
        let is_cont = message[0] & 0x1f == kind::ADD_LINK_CONT;
        let number = if is_cont { message[4] } else { message[31] };
        let further = self.further_of(group, is_cont.then_some(number));
        let reply = match further {
            Some(name) if is_cont => {
                self.learn_keys(group, message);
                self.next_keys(group, &name)?
            }
            Some(name) => {
                // It may have gone, and is promised all the same.
                let joined = self.join(&name, message);
                self.trace(|| format!("  {name}: {joined:?}"));
                self.learn_keys_v2(group, message);
                self.offer(group, &name, number)?
            }
            None if is_cont => return Err("no queue pair for a further link".into()),
            None => self.peering(group)?.link.rejection(message),
        };
        self.reply_to(group, reply)
    }

    fn reply_to(&mut self, link: &str, mut reply: Vec<u8>) -> Result<(), String> {
        reply[3] |= 0x80;
        self.link(link)?.answer(reply);
        Ok(())
    }

    /// An LLC message of this kind about a link, as a well-behaved peer could send it.
    pub(crate) fn sample(&self, name: &str, kind: u8) -> Result<Vec<u8>, String> {
        let Peering { link, group, .. } = self.peering(name)?;
        if kind == kind::ADD_LINK && group != name {
            return self.offer(group, name, link.number.wrapping_add(1));
        }
        Ok(link.sample(kind))
    }

    /// ADD LINK for a further link of a group; in version 2 with our key on it.
    fn offer(&self, group: &str, further: &str, number: u8) -> Result<Vec<u8>, String> {
        let further = &self.peering(further)?.link;
        let group = &self.peering(group)?.link;
        Ok(match further.terms.version {
            2 => group.add_link_v2(further, number),
            _ => further.add_link(number),
        })
    }

    /// Connects a further link to what ADD LINK says.
    fn join(&mut self, name: &str, message: &[u8]) -> Result<(), String> {
        let link = self.link(name)?;
        link.keys_left = link.keys;
        link.number = message[31];
        link.connect(FarEnd {
            gid: array(message, 12),
            qpn: number_of_3(message, 28),
            psn: number_of_3(message, 33),
            mtu: (message[32] & 15).clamp(1, 3),
        })
    }

    /// Remembers keys of ADD LINK CONTINUATION.
    fn learn_keys(&mut self, group: &str, message: &[u8]) {
        for at in [8, 24].into_iter().take(message[5].into()) {
            let known = self.known_by(group, u32::from_be_bytes(array(message, at)));
            known.insert(message[4], key_at(message, at + 4));
        }
    }

    /// Remembers keys of an ADD LINK of version 2; in version 1 there are none.
    fn learn_keys_v2(&mut self, group: &str, message: &[u8]) {
        for pair in message.get(72..).unwrap_or_default().chunks_exact(16) {
            let known = self.known_by(group, u32::from_be_bytes(array(pair, 0)));
            known.insert(message[31], key_at(pair, 4));
        }
    }

    /// Remembers the keys that CONFIRM RKEY names.
    fn learn_rkeys(&mut self, link: &str, message: &[u8]) {
        let number = self
            .links
            .get(link)
            .map_or(1, |peering| peering.link.number);
        let keys = self.rmbs.entry(self.group_of(link)).or_default();
        let others = [17, 30].into_iter().take(message[4].into());
        let mut known = BTreeMap::from([(number, key_at(message, 5))]);
        known.extend(others.map(|at| (message[at], key_at(message, at + 1))));
        keys.push(known);
    }

    /// The keys of an RMB of the other side, of which one is known.
    fn known_by(&mut self, group: &str, rkey: u32) -> &mut Keys {
        let rmbs = self.rmbs.entry(group.into()).or_default();
        let has = |keys: &Keys| keys.values().any(|key| key.0 == rkey);
        let place = rmbs.iter().position(has).unwrap_or_else(|| {
            rmbs.push(BTreeMap::new());
            rmbs.len() - 1
        });
        &mut rmbs[place]
    }

    /// Our next ADD LINK CONTINUATION about a further link.
    fn next_keys(&mut self, group: &str, further: &str) -> Result<Vec<u8>, String> {
        let link = &self.peering(further)?.link;
        let message = self.peering(group)?.link.add_link_cont(link);
        let link = self.link(further)?;
        link.keys_left = link.keys_left.saturating_sub(KEYS_PER_MESSAGE);
        Ok(message)
    }

    /// Server: offers a further link, and connects it to what the answer says.
    pub(crate) fn offer_further(&mut self, name: &str) -> Result<(), String> {
        let group = self.group_of(name);
        self.link(name)?.number = 2;
        let message = self.offer(&group, name, 2)?;
        self.post(&group, &message)?;
        let reply = self.take_llc(&group, kind::ADD_LINK, true, &[], SOON)?;
        self.join(name, &reply)?;
        self.learn_keys_v2(&group, &reply);
        Ok(())
    }

    /// Server: adds a further link, all up to CONFIRM LINK.
    pub(crate) fn add(&mut self, name: &str) -> Result<(), String> {
        self.offer_further(name)?;
        let group = self.group_of(name);
        if self.peering(name)?.link.terms.version == 1 {
            self.exchange_keys(&group, name)?;
        }
        let message = self.peering(name)?.link.confirm_link(false);
        self.post(name, &message)?;
        self.wait_llc(name, kind::CONFIRM_LINK, true, SOON)
    }

    /// Server of version 1: our keys on a further link, and the other side's.
    fn exchange_keys(&mut self, group: &str, further: &str) -> Result<(), String> {
        loop {
            let message = self.next_keys(group, further)?;
            self.post(group, &message)?;
            let reply = self.take_llc(group, kind::ADD_LINK_CONT, true, &[], SOON)?;
            if message[5].max(reply[5]) <= KEYS_PER_MESSAGE {
                return Ok(());
            }
        }
    }

    /// From now on a connection sends on another link.
    pub(crate) fn move_to(&mut self, name: &str, link: &str) -> Result<(), String> {
        let peering = self.peering(link)?;
        let (group, number) = (peering.group.clone(), peering.link.number);
        let old = self.conn(name)?.theirs.ok_or("not connected yet")?.rkey;
        let key = self.known_by(&group, old).get(&number).copied();
        let (rkey, rmb) = key.ok_or("no key on that link")?;
        let conn = self.conn(name)?;
        conn.link = link.into();
        let theirs = conn.theirs.as_mut().ok_or("not connected yet")?;
        (theirs.rkey, theirs.rmb) = (rkey, rmb);
        Ok(())
    }

    fn group_of(&self, link: &str) -> String {
        self.peering(link)
            .map_or_else(|_| link.into(), |peering| peering.group.clone())
    }

    fn peering(&self, name: &str) -> Result<&Peering, String> {
        self.links.get(name).ok_or(format!("no link {name}"))
    }

    /// A link by its name.
    pub(crate) fn link(&mut self, name: &str) -> Result<&mut Link, String> {
        let peering = self.links.get_mut(name).ok_or(format!("no link {name}"))?;
        Ok(&mut peering.link)
    }

    /// A connection by its name.
    pub(crate) fn conn(&mut self, name: &str) -> Result<&mut Conn, String> {
        self.conns
            .get_mut(name)
            .ok_or(format!("no connection {name}"))
    }

    /// Lets everything go on that can. Gives the time to rest until the next look: longer where there is much to look at, as
    /// others want the processor, too.
    pub(crate) fn tick(&mut self) -> Duration {
        let began = Instant::now();
        self.look();
        (3 * began.elapsed()).clamp(Duration::from_micros(500), Duration::from_millis(200))
    }

    fn look(&mut self) {
        for conn in self.conns.values_mut() {
            conn.poll();
        }
        let mut news: Vec<(String, Cdc)> = Vec::new();
        let mut llc: Vec<(String, Vec<u8>)> = Vec::new();
        for (name, peering) in &mut self.links {
            peering.link.poll();
            let came = peering.link.fresh.drain(..);
            llc.extend(came.map(|message| (name.clone(), message)));
            let came = peering.link.news.drain(..);
            news.extend(came.map(|cdc| (name.clone(), cdc)));
        }
        for (link, message) in llc {
            self.trace(|| format!("  < LLC on {link}: {message:02x?}"));
        }
        self.hear();
        for (link, cdc) in news {
            self.trace(|| format!("  < on {link}: {cdc}"));
            let (links, group) = (&self.links, self.group_of(&link));
            let is_same = |conn: &Conn| {
                links
                    .get(&conn.link)
                    .is_some_and(|peering| peering.group == group)
            };
            let known = self
                .conns
                .values_mut()
                .find(|conn| is_same(conn) && conn.token == cdc.token.0);
            match known {
                Some(conn) => conn.received(&cdc),
                None => self.strays += 1,
            }
        }
    }

    /// Takes in what was asked about further links, and keys on them.
    fn hear(&mut self) {
        let mut asked = Vec::new();
        for (name, peering) in &mut self.links {
            let came = peering.link.asked.drain(..);
            asked.extend(came.map(|message| (name.clone(), message)));
        }
        for (link, message) in asked {
            match (message[0] & 0x1f, message[3] & 0x80 != 0) {
                (kind::CONFIRM_RKEY, _) => self.learn_rkeys(&link, &message),
                (_, true) => self.learn_keys(&link, &message),
                (_, false) => {
                    if let Err(error) = self.asked(&link, &message) {
                        self.trace(|| format!("  {link}: {error}"));
                    }
                }
            }
        }
    }

    /// Waits until something is true.
    pub(crate) fn until(
        &mut self,
        seconds: f64,
        what: &str,
        mut test: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        loop {
            let rest = self.tick();
            if test(self)? {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(format!("{what}: not within {seconds} s"));
            }
            sleep(rest);
        }
    }

    /// Waits.
    pub(crate) fn pause(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let rest = self.tick();
            sleep(rest);
        }
    }

    fn own_end(&self, port: u16) -> End {
        End {
            mac: self.mac,
            ip: self.place.address.0.octets(),
            port,
        }
    }

    fn add_conn(&mut self, name: &str, link: &str, host: Host) -> Result<(), String> {
        self.peering(link)?;
        let (wire, _) = Wire::open(&self.place.interface).map_err(text)?;
        self.token += 1;
        let conn = Conn::new(wire, host, link, self.token);
        self.conns.insert(name.into(), conn);
        Ok(())
    }

    /// Connects over TCP, with the option.
    pub(crate) fn connect(
        &mut self,
        name: &str,
        link: &str,
        to: Ipv4Addr,
        port: u16,
    ) -> Result<(), String> {
        self.tcp_port = self.tcp_port.wrapping_add(1).max(1024);
        let other = End {
            mac: [0; 6],
            ip: to.octets(),
            port,
        };
        let now = Instant::now();
        let host = Host::client(
            self.own_end(self.tcp_port),
            other,
            true,
            vec![Vec::new()],
            now,
        );
        self.add_conn(name, link, host)?;
        self.connected(name, SOON)
    }

    /// Waits for a connection over TCP.
    pub(crate) fn listen(&mut self, name: &str, link: &str, port: u16) -> Result<(), String> {
        let host = Host::server(self.own_end(port), true, Vec::new(), 1);
        self.add_conn(name, link, host)
    }

    /// Waits until there is a TCP connection on which both have shown the option.
    pub(crate) fn connected(&mut self, name: &str, seconds: f64) -> Result<(), String> {
        self.until(seconds, "TCP connection", |world| {
            Ok(world.conn(name)?.tcp().is_some_and(|tcp| tcp.connected))
        })?;
        let option = self.conn(name)?.tcp().is_some_and(|tcp| tcp.smc_option);
        option.then_some(()).ok_or("no option came".into())
    }

    fn peer_id(&self, terms: &Terms) -> PeerId {
        PeerId::new(terms.instance.to_be_bytes(), Mac(self.mac))
    }

    fn proposal(&self, peering: &Peering) -> Result<Message, String> {
        let (address, bits) = self.place.address;
        let gid = Gid(peering.link.gid());
        let offer = OfferV1 {
            gid,
            mac: Mac(self.mac),
            prefixes: Prefixes::V4(
                Ipv4Subnet::of(address.octets(), bits).ok_or("no such network")?,
            ),
        };
        let v2 = peering.eid.map(|eid| OfferV2 {
            eids: List::from_slice(&[eid]),
            release: 1,
            gid,
            limits: Some(LIMITS),
        });
        Ok(Message::Proposal(Proposal {
            version: peering.link.terms.version,
            peer_id: self.peer_id(&peering.link.terms),
            v1: if v2.is_some() {
                Err(ParseError::NotOffered)
            } else {
                Ok(offer)
            },
            v2: v2.ok_or(ParseError::NoExtension),
        }))
    }

    /// Our Accept or Confirm, whose first contact it is or not.
    fn accept(&mut self, name: &str, first: bool) -> Result<AcceptConfirm, String> {
        let conn = self.conn(name)?;
        let (token, link, element) = (conn.token, conn.link.clone(), conn.element);
        let element = match element {
            0 => self.link(&self.group_of(&link))?.take_element()?,
            element => element,
        };
        self.conn(name)?.element = element;
        let peering = self.peering(&link)?;
        let link = &peering.link;
        let first_contact = FirstContact {
            direct: true,
            os: OS_LINUX,
            release: 1,
            host: *b"liar                            ",
            limits: Some(LIMITS),
            gids: match link.terms.role {
                Role::Client => List::from_slice(&[Gid(link.gid())]),
                Role::Server => List::new(),
            },
        };
        let v2 = peering.eid.map(|eid| AcceptV2 {
            eid,
            first: first.then_some(match peering.agreed.and_then(|agreed| agreed.first) {
                // The client repeats what the server chose.
                Some(theirs) => FirstContact {
                    limits: theirs.limits,
                    release: theirs.release,
                    ..first_contact
                },
                None => first_contact,
            }),
        });
        Ok(AcceptConfirm {
            first_contact: first,
            peer_id: self.peer_id(&link.terms),
            gid: Gid(link.gid()),
            mac: Mac(link.terms.mac),
            qp: QpNum::new(link.qpn()).ok_or("no such queue pair")?,
            rmb: RToken {
                rkey: RKey(link.rmb.rkey()),
                addr: link.rmb.address(),
            },
            index: RmbeIndex::new(element).ok_or("no such element")?,
            token: AlertToken(token),
            size: RmbeSize::for_bytes(link.terms.element_len),
            mtu: MtuCode::new(3),
            psn: Psn::truncate(link.psn),
            v2,
        })
    }

    /// A CLC message of ours, as it should be.
    pub(crate) fn clc(&mut self, name: &str, what: &str) -> Result<Vec<u8>, String> {
        let link = self.conn(name)?.link.clone();
        let far = self.peering(&link)?.link.far;
        let role = self.peering(&link)?.link.terms.role;
        // The server decides whether it is a first contact; the client has connected by then.
        let first = match role {
            Role::Server => far.is_none(),
            Role::Client => {
                let group = self.group_of(&link);
                let conns = self.conns.values();
                conns
                    .filter(|conn| self.group_of(&conn.link) == group)
                    .count()
                    == 1
            }
        };
        let (what, code) = what.split_once(':').unwrap_or((what, "0x03030000"));
        let message = match what {
            "proposal" => self.proposal(self.peering(&link)?)?,
            "accept" => Message::Accept(self.accept(name, first)?),
            "confirm" => Message::Confirm(self.accept(name, first)?),
            "decline" | "decline-sync" => Message::Decline(Decline {
                version: 1,
                out_of_sync: what == "decline-sync",
                peer_id: self.peer_id(&self.peering(&link)?.link.terms),
                diagnosis: Diagnosis(number(code)? as u32),
            }),
            _ => return Err(format!("no message {what}")),
        };
        self.trace(|| format!("  > {message}"));
        let mut bytes = vec![0; MAX_EMIT];
        let len = message.emit(&mut bytes).ok_or("the message is too long")?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Waits for a CLC message of a kind, and remembers what it says. `bring_up`: connects the queue
    /// pair on a first contact.
    pub(crate) fn wait_clc(
        &mut self,
        name: &str,
        what: &str,
        bring_up: bool,
        seconds: f64,
    ) -> Result<Message, String> {
        let mut came = None;
        self.until(seconds, what, |world| {
            let conn = world.conn(name)?;
            came = conn.next_clc();
            if came.is_none() && conn.is_reset() {
                return Err(format!("{what}: the connection was reset"));
            }
            Ok(came.is_some())
        })?;
        let message = Message::parse(&came.unwrap_or_default()).map_err(text)?;
        self.trace(|| format!("  < {message}"));
        let kind = match &message {
            Message::Proposal(_) => "proposal",
            Message::Accept(_) => "accept",
            Message::Confirm(_) => "confirm",
            Message::Decline(_) => "decline",
        };
        if kind != what {
            return Err(format!("{what} awaited, {message} came"));
        }
        if let Message::Accept(said) | Message::Confirm(said) = &message {
            self.learn(name, said, bring_up)?;
        }
        Ok(message)
    }

    fn learn(&mut self, name: &str, said: &AcceptConfirm, bring_up: bool) -> Result<(), String> {
        let link = self.conn(name)?.link.clone();
        let peering = self.links.get_mut(&link).ok_or("no link")?;
        if said.v2.is_some() {
            peering.agreed = said.v2;
        }
        let own_len = peering.link.terms.element_len;
        if peering.link.far.is_none() && bring_up {
            peering.link.connect(FarEnd {
                gid: said.gid.0,
                qpn: said.qp.get(),
                psn: said.psn.get(),
                mtu: said.mtu.map_or(3, |mtu| mtu.code().min(3)),
            })?;
        }
        let group = self.group_of(&link);
        let link = self.link_to(&group, said).unwrap_or(link);
        let conn = self.conn(name)?;
        conn.link = link;
        conn.theirs = Some(Theirs {
            token: said.token.0,
            rkey: said.rmb.rkey.0,
            rmb: said.rmb.addr,
            offset: said.index.offset(said.size),
            len: said.size.bytes(),
        });
        conn.begin(Cursors::new(own_len, said.size.bytes()));
        Ok(())
    }

    /// The link of a group that an Accept or Confirm names. Whose RMB it is, is known by its key there.
    fn link_to(&mut self, group: &str, said: &AcceptConfirm) -> Option<String> {
        let (name, number) = self.links.iter().find_map(|(name, peering)| {
            let far = peering.link.far?;
            let same = (far.gid, far.qpn) == (said.gid.0, said.qp.get());
            (peering.group == group && same).then(|| (name.clone(), peering.link.number))
        })?;
        let key = (said.rmb.rkey.0, said.rmb.addr);
        self.known_by(group, key.0).insert(number.max(1), key);
        Some(name)
    }

    /// Sends a CLC message as it should be.
    pub(crate) fn say(&mut self, name: &str, what: &str) -> Result<(), String> {
        let bytes = self.clc(name, what)?;
        self.conn(name)?.send_tcp(bytes);
        Ok(())
    }

    /// A client's connection up to where data flows.
    pub(crate) fn open(
        &mut self,
        name: &str,
        link: &str,
        to: Ipv4Addr,
        port: u16,
    ) -> Result<(), String> {
        let first = self.peering(link)?.link.far.is_none();
        self.connect(name, link, to, port)?;
        self.say(name, "proposal")?;
        self.wait_clc(name, "accept", true, SOON)?;
        self.say(name, "confirm")?;
        if first {
            self.wait_llc(link, kind::ADD_LINK, false, SOON)?;
        }
        Ok(())
    }

    /// A server's connection, from the client's TCP connection to where data flows.
    pub(crate) fn serve(&mut self, name: &str) -> Result<(), String> {
        self.connected(name, SOON)?;
        self.wait_clc(name, "proposal", false, SOON)?;
        let link = self.conn(name)?.link.clone();
        let first = self.peering(&link)?.link.far.is_none();
        self.say(name, "accept")?;
        self.wait_clc(name, "confirm", true, SOON)?;
        if first {
            self.confirm(&link)?;
        }
        Ok(())
    }

    /// The server's LLC messages of a first contact.
    pub(crate) fn confirm(&mut self, link: &str) -> Result<(), String> {
        let message = self.link(link)?.confirm_link(false);
        self.post(link, &message)?;
        self.wait_llc(link, kind::CONFIRM_LINK, true, SOON)?;
        if let Some(further) = self.further_of(link, None) {
            return self.add(&further);
        }
        let message = self.link(link)?.sample(kind::ADD_LINK);
        self.post(link, &message)?;
        self.wait_llc(link, kind::ADD_LINK, true, SOON)
    }

    /// Waits for an LLC message and takes it out of the inbox.
    pub(crate) fn wait_llc(
        &mut self,
        link: &str,
        kind: u8,
        reply: bool,
        seconds: f64,
    ) -> Result<(), String> {
        self.take_llc(link, kind, reply, &[], seconds).map(|_| ())
    }

    /// The same, for one that has these bytes at these places.
    pub(crate) fn take_llc(
        &mut self,
        link: &str,
        kind: u8,
        reply: bool,
        parts: &[(usize, Vec<u8>)],
        seconds: f64,
    ) -> Result<Vec<u8>, String> {
        let mut taken = None;
        let fits = |message: &[u8], (at, part): &(usize, Vec<u8>)| {
            message.get(*at..at + part.len()) == Some(part)
        };
        let what = format!("LLC message {kind}{}", if reply { " reply" } else { "" });
        self.until(seconds, &what, |world| {
            let inbox = &mut world.link(link)?.inbox;
            let place = inbox.iter().position(|message| {
                let flags = message.get(3).copied().unwrap_or(0);
                let first = message.first().copied().unwrap_or(0);
                first & 0x1f == kind
                    && (flags & 0x80 != 0) == reply
                    && parts.iter().all(|part| fits(message, part))
            });
            taken = place.map(|place| inbox.remove(place));
            Ok(taken.is_some())
        })?;
        Ok(taken.unwrap_or_default())
    }

    /// Takes no messages on a link any more: uses up the places that the device has for them.
    pub(crate) fn deafen(&mut self, link: &str) -> Result<(), String> {
        self.link(link)?.is_deaf = true;
        let message = self.link(link)?.sample(kind::TEST_LINK);
        self.until(SOON, "places used up", |world| {
            let link = world.link(link)?;
            if link.is_quiet() && link.places > 0 {
                link.post(&message)?;
            }
            Ok(link.places == 0)
        })
    }

    /// Posts a message on a link, when there is room.
    pub(crate) fn post(&mut self, link: &str, message: &[u8]) -> Result<u64, String> {
        self.until(SOON, "room", |world| Ok(world.link(link)?.has_room()))?;
        self.link(link)?.post(message)
    }

    /// Waits for the end of a request. True if it went well.
    pub(crate) fn is_done(&mut self, link: &str, id: u64) -> Result<bool, String> {
        self.until(SOON, "completion", |world| {
            Ok(world.link(link)?.status(id).is_some())
        })?;
        Ok(self.link(link)?.status(id) == Some(0))
    }

    /// Writes into the other side's memory, or reads as much. True if it went well.
    pub(crate) fn access(&mut self, link: &str, bytes: &[u8], work: Work) -> Result<bool, String> {
        self.until(SOON, "room", |world| Ok(world.link(link)?.is_quiet()))?;
        let id = self.link(link)?.post_data(bytes, work)?;
        self.is_done(link, id)
    }

    /// Sends a CDC message. Its number becomes the last one of the connection.
    pub(crate) fn send_cdc(&mut self, name: &str, cdc: &Cdc) -> Result<(), String> {
        self.trace(|| format!("  > {cdc}"));
        let conn = self.conn(name)?;
        conn.seq = cdc.seq;
        let link = conn.link.clone();
        self.post(&link, &cdc.emit()).map(|_| ())
    }

    /// Writes data into the other side's element, and does not tell; as much as there is room for.
    pub(crate) fn put(&mut self, name: &str, bytes: &[u8]) -> Result<usize, String> {
        let conn = self.conn(name)?;
        let link = conn.link.clone();
        let (theirs, cursors) = conn
            .theirs
            .zip(conn.cursors.as_mut())
            .ok_or("not connected yet")?;
        let len = cursors.room().min(bytes.len() as u32);
        let parts = cursors.parts(len);
        cursors.produce(len);
        let mut rest = bytes;
        for (offset, part) in parts {
            let (now, later) = rest.split_at(part as usize);
            rest = later;
            let to = theirs.rmb + theirs.offset + u64::from(offset);
            if !now.is_empty() && !self.access(&link, now, Work::Write(to, theirs.rkey))? {
                return Err("a write failed".into());
            }
        }
        Ok(len as usize)
    }

    /// Tells where both cursors are.
    pub(crate) fn announce(&mut self, name: &str) -> Result<(), String> {
        let cdc = self.conn(name)?.cdc().ok_or("not connected yet")?;
        self.send_cdc(name, &cdc)
    }

    /// Reads what came, at most so much, and tells.
    pub(crate) fn take(&mut self, name: &str, most: usize) -> Result<Vec<u8>, String> {
        let conn = self.conn(name)?;
        let (link, element) = (conn.link.clone(), conn.element);
        let cursors = conn.cursors.as_mut().ok_or("not connected yet")?;
        let len = cursors.readable().min(most as u32);
        let parts = cursors.own_parts(len);
        cursors.consume(len);
        let link = self.link(&link)?;
        let start = usize::from(element - 1) * link.terms.element_len as usize;
        let mut bytes = Vec::new();
        for (offset, part) in parts {
            let at = start + offset as usize;
            bytes.extend(link.rmb.read(at, part as usize));
            // Free again, for what check_memory() looks for.
            link.rmb.write(at, &vec![CANARY; part as usize]);
        }
        if len > 0 {
            self.announce(name)?;
        }
        Ok(bytes)
    }

    /// Sends so many bytes and expects the same back. `put`: those at the front that were written
    /// before.
    pub(crate) fn echo(&mut self, name: &str, len: usize, put: usize) -> Result<(), String> {
        let mut data = vec![0; len];
        Stream::new(7, 0).fill(0, &mut data);
        let (mut sent, mut back) = (put, Vec::new());
        if put > 0 {
            self.announce(name)?;
        }
        self.until(3.0 * SOON, "echo", |world| {
            if sent < len {
                let now = world.put(name, &data[sent..])?;
                sent += now;
                if now > 0 {
                    world.announce(name)?;
                }
            }
            back.extend(world.take(name, len)?);
            let conn = world.conn(name)?;
            if let Some(fault) = &conn.fault {
                return Err(fault.clone());
            }
            if conn.state.aborted || conn.is_reset() {
                return Err("the connection was aborted".into());
            }
            Ok(back.len() >= len)
        })?;
        if back == data {
            return Ok(());
        }
        let place = back.iter().zip(&data).position(|(have, want)| have != want);
        Err(format!("byte {place:?} of {len} came back wrong"))
    }

    /// Sends so many bytes back that come.
    pub(crate) fn reflect(&mut self, name: &str, len: usize) -> Result<(), String> {
        let (mut came, mut data) = (0, Vec::new());
        self.until(3.0 * SOON, "bytes to send back", |world| {
            let fresh = world.take(name, len - came)?;
            came += fresh.len();
            data.extend(fresh);
            let now = world.put(name, &data)?;
            if now > 0 {
                data.drain(..now);
                world.announce(name)?;
            }
            let conn = world.conn(name)?;
            match &conn.fault {
                Some(fault) => Err(fault.clone()),
                None if conn.state.aborted => Err("the connection was aborted".into()),
                None => Ok(came >= len && data.is_empty()),
            }
        })
    }

    /// Tells of so many bytes that were never written, and expects zeroes back.
    pub(crate) fn claim(&mut self, name: &str, len: usize) -> Result<(), String> {
        let cursors = self.conn(name)?.cursors.as_mut();
        let cursors = cursors.ok_or("not connected yet")?;
        if cursors.room() < len as u32 {
            return Err("no room".into());
        }
        cursors.produce(len as u32);
        self.announce(name)?;
        let mut back = Vec::new();
        self.until(SOON, "what was never written", |world| {
            back.extend(world.take(name, len)?);
            Ok(back.len() >= len)
        })?;
        match back.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(place) => Err(format!("byte {place} is {:#04x}", back[place])),
        }
    }

    /// Whether two connections have the same element on the other side.
    pub(crate) fn is_same_element(&mut self, name: &str, other: &str) -> Result<bool, String> {
        let mut place = |name| -> Result<_, String> {
            let theirs = self.conn(name)?.theirs.ok_or("not connected yet")?;
            Ok((theirs.rkey, theirs.rmb, theirs.offset))
        };
        Ok(place(name)? == place(other)?)
    }

    /// Ends all groups that work, so that the other side need not find out.
    pub(crate) fn leave(&mut self) -> Result<(), String> {
        let groups: BTreeSet<String> = self.links.values().map(|link| link.group.clone()).collect();
        for group in groups {
            let names: Vec<String> = self
                .links
                .iter()
                .filter(|(_, peering)| peering.group == group && peering.link.works())
                .map(|(name, _)| name.clone())
                .collect();
            for name in names {
                if self.say_farewell(&group, &name)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Says that a group ends, on this link of it. False if it does not get there.
    fn say_farewell(&mut self, group: &str, link: &str) -> Result<bool, String> {
        let message = self.link(link)?.farewell();
        let id = self.post(link, &message)?;
        if !self.is_done(link, id)? {
            return Ok(false);
        }
        if self.link(link)?.terms.role == Role::Client {
            // The server's own last word, on whichever link.
            self.until(SOON, "DELETE LINK", |world| {
                let mut links = world.links.values().filter(|link| link.group == group);
                Ok(links.any(|peering| peering.link.has_farewell()))
            })?;
        }
        Ok(true)
    }

    /// Writes the first bytes of an echo, and does not tell.
    pub(crate) fn put_echo(&mut self, name: &str, len: usize) -> Result<(), String> {
        let mut data = vec![0; len];
        Stream::new(7, 0).fill(0, &mut data);
        let done = self.put(name, &data)?;
        (done == len).then_some(()).ok_or("no room".into())
    }

    /// The other side kept to the protocol: what it says is possible and for somebody, and it wrote nothing but
    /// what it told of.
    pub(crate) fn check_peer(&self) -> Result<(), String> {
        for (name, conn) in &self.conns {
            if let Some(fault) = &conn.fault {
                return Err(format!("{name}: {fault}"));
            }
        }
        if self.strays > 0 {
            return Err(format!("{} CDC messages for nobody came", self.strays));
        }
        self.check_memory()
    }

    /// Our RMBs hold canaries where no connection has an element, and in elements where no data waits.
    fn check_memory(&self) -> Result<(), String> {
        // Further links of a group have the RMB of the first one.
        let firsts = self
            .links
            .iter()
            .filter(|(name, peering)| peering.group == **name);
        for (name, Peering { link, .. }) in firsts {
            let len = link.terms.element_len as usize;
            let mut rmb = link.rmb.read(0, link.rmb.len());
            for (element, parts) in self.filled(name) {
                for (offset, part) in parts {
                    let at = usize::from(element - 1) * len + offset as usize;
                    rmb[at..at + part as usize].fill(CANARY);
                }
            }
            if let Some(place) = rmb.iter().position(|byte| *byte != CANARY) {
                let (element, offset) = (place / len + 1, place % len);
                return Err(format!(
                    "{name}: somebody has written to byte {offset} of element {element}"
                ));
            }
        }
        Ok(())
    }

    /// The elements of a group's connections, and the parts of them that may hold data.
    fn filled<'a>(&'a self, group: &'a str) -> impl Iterator<Item = (u8, [(u32, u32); 2])> + 'a {
        // A link that has gone may have taken with it what told of data.
        let mut links = self.links.values().filter(|link| link.group == group);
        let is_whole = links.all(|peering| peering.link.far.is_none() || peering.link.works());
        let conns = self.conns.values();
        let here = conns.filter(move |conn| self.group_of(&conn.link) == group);
        here.filter_map(move |conn| {
            let cursors = conn.cursors.filter(|_| conn.element > 0)?;
            let parts = if is_whole {
                cursors.own_parts(cursors.readable())
            } else {
                [(0, cursors.own_len()), (0, 0)]
            };
            Some((conn.element, parts))
        })
    }

    /// What no TEST LINK of ours has said yet, and where it says it.
    pub(crate) fn next_probe(&mut self) -> (usize, Vec<u8>) {
        self.probes += 1;
        (4, self.probes.to_be_bytes().to_vec())
    }

    /// Ends everything, so that nothing stays behind on the other side.
    pub(crate) fn end(&mut self) {
        for conn in self.conns.values_mut() {
            conn.abandon();
        }
    }
}

const LIMITS: Limits = Limits {
    max_connections: 255,
    max_links: 2,
    features: 0,
};

/// A number, decimal or with 0x.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| format!("`{text}` is not a number"))
}
