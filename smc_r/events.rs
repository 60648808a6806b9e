// SPDX-License-Identifier: GPL-2.0

//! What happens, for programs that listen: see the group `events` of the family in
//! [`crate::netlink::own`].
//!
//! An event goes to the listeners of its namespace, and to those of the initial one. All functions
//! here are for process context; without a listener they do next to nothing.

use core::net::IpAddr;

use kapi::{
    genl::{Registration, Writer},
    net::Net, //
};
use kernel::prelude::*;
use smc_proto::wire::Diagnosis;

use crate::{
    group::Group,
    link::Link,
    netlink::own::{attr, command, put_address, side_number, OwnFamily, EVENTS},
    netns::Netns,
    stats::Side,
};

/// How events get out.
pub(crate) type Outlet = Registration<OwnFamily>;

/// A first link is up, and the group can be used.
pub(crate) fn group_added(group: &Group) {
    send(&group.ns, command::GROUP_ADDED, |message| {
        put_group(message, group)
    });
}

/// A group is no more.
pub(crate) fn group_removed(group: &Group) {
    send(&group.ns, command::GROUP_REMOVED, |message| {
        put_group(message, group)
    });
}

/// A link is up.
pub(crate) fn link_up(group: &Group, link: &Link) {
    send(&group.ns, command::LINK_UP, |message| {
        put_link(message, group, link)
    });
}

/// A link is down.
pub(crate) fn link_down(group: &Group, link: &Link) {
    send(&group.ns, command::LINK_DOWN, |message| {
        put_link(message, group, link)
    });
}

/// A connection became plain TCP.
pub(crate) fn fallback(
    ns: &Netns,
    side: Side,
    reason: Diagnosis,
    peer_reason: Option<Diagnosis>,
    peer: Option<(IpAddr, u16)>,
) {
    send(ns, command::FALLBACK, |message| {
        message.u8(attr::SIDE, side_number(Some(side)))?;
        message.u32(attr::REASON, reason.0)?;
        if let Some(reason) = peer_reason {
            message.u32(attr::PEER_REASON, reason.0)?;
        }
        if let Some((addr, port)) = peer {
            put_address(message, attr::ADDRESS, addr)?;
            message.u16(attr::PORT_FIRST, port)?;
        }
        Ok(())
    });
}

fn put_group(message: &mut Writer<'_>, group: &Group) -> Result {
    message.u32(attr::GROUP, group.id)?;
    message.u8(attr::SIDE, side_number(Some(group.role.into())))
}

fn put_link(message: &mut Writer<'_>, group: &Group, link: &Link) -> Result {
    put_group(message, group)?;
    message.u8(attr::LINK, group.link_ends(link.place).number)?;
    message.str(attr::DEVICE, &link.path.device.name())?;
    message.u8(attr::DEVICE_PORT, link.path.port)
}

fn send(ns: &Netns, cmd: u8, fill: impl Fn(&mut Writer<'_>) -> Result) {
    let outlet = &ns.shared.outlet;
    let own = Net::by_id(ns.cookie);
    let nets = [own.as_deref(), Some(Net::init())];
    let [own, initial] = match nets {
        [Some(own), Some(initial)] if own == initial => [None, Some(initial)],
        nets => nets,
    };
    for net in [own, initial].into_iter().flatten() {
        if outlet.has_listeners(net, EVENTS) {
            // A listener that is slow, or short of memory, misses it.
            let _ = outlet.multicast(net, EVENTS, cmd, |message| {
                message.u64(attr::NET_COOKIE, ns.cookie)?;
                fill(message)
            });
        }
    }
}
