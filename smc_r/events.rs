// SPDX-License-Identifier: GPL-2.0

//! What happens, for programs that listen: see the group `events` of the family in
//! [`crate::netlink::own`].
//!
//! An event goes to the listeners of its namespace, and to those of the initial one; to each of them
//! once, whatever else it listens to. All functions here are for process context, unless they say
//! otherwise; without a listener they do next to nothing.

use core::net::IpAddr;

use kapi::{
    genl::{Audience, Registration, Writer},
    net::Net,
    trace, //
};
use kernel::prelude::*;
use smc_proto::wire::{Diagnosis, LinkNum};

use crate::{
    group::Group,
    link::Link,
    netlink::own::{attr, command, put_address, side_number, OwnFamily, EVENTS},
    netns::Netns,
    stats::Side,
};

/// How events get out.
pub(crate) type Outlet = Registration<OwnFamily>;

/// A link that carried data (`enum smc_link_state`, as tools show it).
const ACTIVE: i32 = 3;

/// A first link is up, and the group can be used.
pub(crate) fn group_added(group: &Group) {
    send(&group.ns, None, command::GROUP_ADDED, |message| {
        put_group(message, group)
    });
}

/// A group is no more.
pub(crate) fn group_removed(group: &Group) {
    send(&group.ns, None, command::GROUP_REMOVED, |message| {
        put_group(message, group)
    });
}

/// A link is up.
pub(crate) fn link_up(group: &Group, link: &Link, number: LinkNum) {
    send(&group.ns, None, command::LINK_UP, |message| {
        put_link(message, group, link, number)
    });
}

/// A link is down.
pub(crate) fn link_down(group: &Group, link: &Link, number: LinkNum) {
    trace::link_down(link, group, group.ns.cookie, ACTIVE, || {
        link.path.device.name().padded()
    });
    send(&group.ns, None, command::LINK_DOWN, |message| {
        put_link(message, group, link, number)
    });
}

/// Whether anybody listens. Any context.
pub(crate) fn wanted(ns: &Netns) -> bool {
    ns.shared.outlet.has_listeners(EVENTS)
}

/// A connection became plain TCP.
pub(crate) fn fallback(
    ns: &Netns,
    net: &Net,
    side: Side,
    reason: Diagnosis,
    peer_reason: Option<Diagnosis>,
    peer: Option<(IpAddr, u16)>,
) {
    send(ns, Some(net), command::FALLBACK, |message| {
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

fn put_link(message: &mut Writer<'_>, group: &Group, link: &Link, number: LinkNum) -> Result {
    put_group(message, group)?;
    message.u8(attr::LINK, number.get())?;
    message.str(attr::DEVICE, &link.path.device.name())?;
    message.u8(attr::DEVICE_PORT, link.path.port)
}

/// `net`: the namespace, where it is at hand.
fn send(ns: &Netns, net: Option<&Net>, cmd: u8, fill: impl Fn(&mut Writer<'_>) -> Result) {
    if !wanted(ns) {
        return;
    }
    let outlet = &ns.shared.outlet;
    let tell = |net: &Net, audience: Audience<'_>| {
        // A listener that is slow, or short of memory, misses it.
        let _ = outlet.multicast(net, audience, EVENTS, cmd, |message| {
            message.u64(attr::NET_COOKIE, ns.cookie)?;
            fill(message)
        });
    };
    let found = match net {
        Some(_) => None,
        None => Net::by_id(ns.cookie),
    };
    let initial = Net::init();
    match net.or(found.as_deref()) {
        Some(own) if own == initial => tell(initial, Audience::All),
        own => {
            if let Some(own) = own {
                tell(own, Audience::NotOf(initial));
            }
            tell(initial, Audience::Own);
        }
    }
}
