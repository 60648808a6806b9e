// SPDX-License-Identifier: GPL-2.0

//! Taking links, groups and devices out of use without harm to what runs on them.
//!
//! What is drained gets no new connections. A group ends when its last connection does, or at once
//! if it has none. A device, or a port of it, stays drained until that is undone or the device is
//! removed: one of the same name that comes later is another one.

use kapi::{
    errno::EOPNOTSUPP,
    genl::{Dump, Request, Writer},
    net::Net, //
};
use kernel::{prelude::*, sync::Arc};

use super::{super::visible_device, attr, command};
use crate::{
    device::Device,
    group::{Drain, Group},
    netns::{self, Netns}, //
};

/// Most ports that are looked at: none has more.
const MAX_PORTS: u8 = 63;

/// Drains what the request names, or undoes it.
pub(super) fn drain(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    let undo = request.attr(attr::UNDO).is_some();
    let has = |number| request.attr(number).is_some();
    match (request.attr(attr::GROUP), request.attr(attr::DEVICE)) {
        (Some(_), Some(_)) => {
            Err(request.fail_at(attr::DEVICE, EINVAL, c"cannot be named beside a group"))
        }
        (Some(_), None) if has(attr::DEVICE_PORT) => {
            Err(request.fail_at(attr::DEVICE_PORT, EINVAL, c"cannot be named beside a group"))
        }
        (None, Some(_)) if has(attr::LINK) => {
            Err(request.fail_at(attr::LINK, EINVAL, c"cannot be named beside a device"))
        }
        (Some(group), None) => drain_group(request, &ns, group.u32()?, undo),
        (None, Some(name)) => drain_device(request, &ns, name.str_bytes(), undo),
        (None, None) => Err(request.fail(EINVAL, c"group or device: one of them is needed")),
    }
}

fn visible(net: &Net, group: &Group) -> bool {
    net == Net::init() || net.id() == group.ns.cookie
}

fn drain_group(request: &mut Request<'_>, ns: &Netns, id: u32, undo: bool) -> Result {
    let net = request.net();
    let groups = &ns.shared.groups;
    let Some(group) = groups.find(|group| group.id == id && visible(net, group)) else {
        return Err(request.fail_at(attr::GROUP, ENOENT, c"does not exist"));
    };
    let Some(number) = request.attr(attr::LINK) else {
        group.drain(Drain::Group, !undo);
        return Ok(());
    };
    let number = number.u8()?;
    let link = group
        .links()
        .find(|link| group.link_ends(link.place).number == number);
    let Some(link) = link else {
        return Err(request.fail_at(attr::LINK, ENOENT, c"does not exist"));
    };
    if undo {
        return Err(request.fail_at(attr::UNDO, EOPNOTSUPP, c"a link that was drained is gone"));
    }
    group.drain_link(Drain::Group, &link);
    Ok(())
}

fn drain_device(request: &mut Request<'_>, ns: &Netns, name: &[u8], undo: bool) -> Result {
    let devices = ns.shared.devices.list()?;
    let is_it =
        |device: &&Arc<Device>| *device.name() == *name && visible_device(request.net(), device);
    let Some(device) = devices.iter().find(is_it) else {
        return Err(request.fail_at(attr::DEVICE, ENODEV, c"does not exist"));
    };
    let port = request
        .attr(attr::DEVICE_PORT)
        .map(|attr| attr.u8())
        .transpose()?;
    if port.is_some_and(|port| port > MAX_PORTS || !device.ports().any(|other| other == port)) {
        return Err(request.fail_at(attr::DEVICE_PORT, ENODEV, c"does not exist"));
    }
    for port in device
        .ports()
        .filter(|other| port.is_none_or(|port| port == *other))
    {
        device.set_drained(port, !undo);
        ns.shared.groups.drain_port(device, port, !undo);
    }
    Ok(())
}

/// What is drained at the moment: ports, then groups.
pub(super) fn list(dump: &mut Dump<'_>) -> Result {
    let ns = netns::of(dump.net())?;
    let shared = &ns.shared;
    let changes = || {
        let devices = shared.devices.changes();
        devices
            .wrapping_add(shared.groups.changes())
            .wrapping_add(shared.groups.drains())
    };
    while dump.cursor()[0] == 0 {
        dump.as_of(changes());
        let [_, after, port, begun, _] = *dump.cursor();
        // The same device again, as long as it has ports behind the last one.
        let Some(device) = ns.shared.devices.after(after as u64) else {
            *dump.cursor() = [1, 0, 0, 0, 0];
            break;
        };
        // If the device whose ports were begun is gone, the next one begins with its first.
        let port = if begun == device.number as usize {
            port as u8
        } else {
            0
        };
        let next = device
            .ports()
            .find(|other| *other > port && device.is_drained(*other))
            .filter(|_| visible_device(dump.net(), &device));
        let Some(port) = next else {
            *dump.cursor() = [0, device.number as usize, 0, 0, 0];
            continue;
        };
        if !dump.message(command::DRAIN_GET, |message| {
            put_port(message, &device, port)
        })? {
            return Ok(());
        }
        dump.cursor()[2] = port.into();
        dump.cursor()[3] = device.number as usize;
    }
    loop {
        dump.as_of(changes());
        let after = dump.cursor()[1] as u64;
        let Some(group) = ns.shared.groups.after(after) else {
            return Ok(());
        };
        let shown = group.is_drained() && visible(dump.net(), &group);
        if shown && !dump.message(command::DRAIN_GET, |message| put_group(message, &group))? {
            return Ok(());
        }
        dump.cursor()[1] = group.number as usize;
    }
}

fn put_port(message: &mut Writer<'_>, device: &Arc<Device>, port: u8) -> Result {
    message.str(attr::DEVICE, &device.name())?;
    message.u8(attr::DEVICE_PORT, port)
}

fn put_group(message: &mut Writer<'_>, group: &Group) -> Result {
    message.u32(attr::GROUP, group.id)?;
    message.u32(attr::CONNECTIONS, group.summary().connections.into())
}
