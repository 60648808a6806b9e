// SPDX-License-Identifier: GPL-2.0

//! The generic netlink family `SMC_PNETID`, by which administrators name physical networks: see
//! [`crate::pnet`].
//!
//! Interfaces belong to a namespace, and so do their entries. Entries of ports belong to the initial
//! one, like the devices.

use kapi::{
    genl::{self, Dump, Kind, Op, Policy, Request, Rule, Writer},
    net::Net, //
    netdev::Name,
};
use kernel::prelude::*;

use crate::{
    netns::{self, Netns},
    pnet::{self, Entry, PnetId, Target, ID_LEN, PORT_NAME},
};

mod command {
    pub(super) const GET: u8 = 1;
    pub(super) const ADD: u8 = 2;
    pub(super) const DELETE: u8 = 3;
    pub(super) const FLUSH: u8 = 4;
}

mod attr {
    pub(super) const NAME: u16 = 1;
    pub(super) const ETHNAME: u16 = 2;
    pub(super) const IBNAME: u16 = 3;
    pub(super) const IBPORT: u16 = 4;
}

/// What stands for the part that an entry does not have.
const NO_NAME: &[u8] = b"n/a";
const NO_PORT: u8 = 255;

const POLICY: Policy = &[
    Rule {
        number: attr::NAME,
        name: c"NAME",
        kind: Kind::NulString(ID_LEN as u16),
    },
    Rule {
        number: attr::ETHNAME,
        name: c"ETHNAME",
        kind: Kind::NulString(Name::LEN as u16 - 1),
    },
    Rule {
        number: attr::IBNAME,
        name: c"IBNAME",
        kind: Kind::NulString(PORT_NAME as u16 - 1),
    },
    Rule {
        number: attr::IBPORT,
        name: c"IBPORT",
        kind: Kind::U8,
    },
];

/// The family.
pub(crate) struct PnetFamily;

impl genl::Family for PnetFamily {
    const NAME: &'static CStr = c"SMC_PNETID";
    const VERSION: u8 = 1;
    const OPS: &'static [Op] = &[
        Op::new(command::GET).policy(POLICY).doit(get).dump(list),
        Op::new(command::ADD).policy(POLICY).doit(add).admin(),
        Op::new(command::DELETE).policy(POLICY).doit(delete).admin(),
        Op::new(command::FLUSH).policy(POLICY).doit(flush).admin(),
    ];
}

fn is_initial(net: &Net) -> bool {
    net == Net::init()
}

/// The ID that a request names.
fn id(request: &mut Request<'_>) -> Result<PnetId> {
    let text = request.required(attr::NAME)?;
    PnetId::parse(text.str_bytes())
        .ok_or_else(|| request.fail_at(attr::NAME, EINVAL, c"must be 1 to 16 letters and digits"))
}

/// The interface that a request names.
fn interface(request: &mut Request<'_>) -> Result<Option<Name>> {
    let Some(attr) = request.attr(attr::ETHNAME) else {
        return Ok(None);
    };
    match Name::new(attr.str_bytes()) {
        Some(name) => Ok(Some(name)),
        None => Err(request.fail_at(attr::ETHNAME, EINVAL, c"is no interface name")),
    }
}

/// The port that a request names.
fn port(request: &mut Request<'_>) -> Result<Option<([u8; PORT_NAME], u8)>> {
    let port = request.attr(attr::IBPORT).map_or(Ok(1), |attr| attr.u8())?;
    if !(1..=2).contains(&port) {
        return Err(request.fail_at(attr::IBPORT, EINVAL, c"must be 1 or 2"));
    }
    let Some(attr) = request.attr(attr::IBNAME) else {
        return Ok(None);
    };
    let text = attr.str_bytes();
    if text.is_empty() {
        return Err(request.fail_at(attr::IBNAME, EINVAL, c"is empty"));
    }
    let mut name = [0; PORT_NAME];
    for (to, from) in name.iter_mut().zip(text) {
        *to = *from;
    }
    Ok(Some((name, port)))
}

/// Adds what is new of an interface and a port; an error if nothing is.
fn add(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    let id = id(request)?;
    let (interface, port) = (interface(request)?, port(request)?);
    if interface.is_none() && port.is_none() {
        return Err(request.fail(EINVAL, c"ETHNAME or IBNAME: one of them is needed"));
    }
    let by_interface = interface.map(|name| ns.interfaces.add(id, &[Target::Interface(name)]));
    // Ports have entries in the initial namespace only.
    let by_port = port
        .filter(|_| is_initial(request.net()))
        .map(|(name, port)| pnet::add_port(&ns.shared.devices, id, name, port));
    match (by_interface, by_port) {
        (Some(Ok(())), _) | (_, Some(Ok(()))) => Ok(()),
        (Some(Err(error)), _) => Err(explain(request, attr::ETHNAME, error)),
        (None, Some(Err(error))) => Err(explain(request, attr::IBNAME, error)),
        (None, None) => Err(request.fail_at(
            attr::IBNAME,
            EEXIST,
            c"RDMA devices have entries in the initial namespace only",
        )),
    }
}

fn explain(request: &mut Request<'_>, attr: u16, error: Error) -> Error {
    if error == EEXIST {
        request.fail_at(attr, error, c"has an entry already")
    } else {
        request.fail_at(attr, error, c"there is no room for more entries")
    }
}

/// Removes all entries of an ID.
fn delete(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    let id = id(request)?;
    let mut any = ns.interfaces.remove(id);
    if is_initial(request.net()) {
        any |= ns.shared.devices.pnet.remove(id);
    }
    if any {
        Ok(())
    } else {
        Err(request.fail_at(attr::NAME, ENOENT, c"has no entry"))
    }
}

/// Removes all entries.
fn flush(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    ns.interfaces.flush();
    if is_initial(request.net()) {
        ns.shared.devices.pnet.flush();
    }
    Ok(())
}

/// The entry of a namespace after a place, interfaces first. A place is a number of an entry and
/// whether it is that of a port.
fn next(ns: &Netns, with_ports: bool, place: &mut (u64, bool)) -> Option<Entry> {
    if !place.1 {
        if let Some(entry) = ns.interfaces.after(place.0) {
            place.0 = entry.number;
            return Some(entry);
        }
        *place = (0, true);
    }
    if !with_ports {
        return None;
    }
    let entry = ns.shared.devices.pnet.after(place.0)?;
    place.0 = entry.number;
    Some(entry)
}

/// The entries of an ID.
fn get(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    let id = id(request)?;
    let with_ports = is_initial(request.net());
    request.reply_list(|list| {
        let mut place = (0, false);
        while let Some(entry) = next(&ns, with_ports, &mut place) {
            if entry.id == id && !list.message(command::GET, |message| put(message, &entry))? {
                break;
            }
        }
        Ok(())
    })
}

/// All entries.
fn list(dump: &mut Dump<'_>) -> Result {
    let ns = netns::of(dump.net())?;
    let with_ports = is_initial(dump.net());
    let mut place = (dump.cursor()[0] as u64, dump.cursor()[1] != 0);
    loop {
        let ports = &ns.shared.devices.pnet;
        dump.as_of_if_asked(ns.interfaces.changes().wrapping_add(ports.changes()));
        let Some(entry) = next(&ns, with_ports, &mut place) else {
            return Ok(());
        };
        if !dump.message(command::GET, |message| put(message, &entry))? {
            return Ok(());
        }
        *dump.cursor() = [place.0 as usize, usize::from(place.1), 0, 0, 0];
    }
}

/// An entry has all four attributes, whatever it is about.
fn put(message: &mut Writer<'_>, entry: &Entry) -> Result {
    message.str(attr::NAME, entry.id.as_bytes())?;
    let (interface, device, port) = match &entry.target {
        Target::Interface(name) => (name.as_bytes(), NO_NAME, NO_PORT),
        Target::Port(name, port) => (NO_NAME, name.as_slice(), *port),
    };
    message.str(attr::ETHNAME, interface)?;
    message.str(attr::IBNAME, device)?;
    message.u8(attr::IBPORT, port)
}
