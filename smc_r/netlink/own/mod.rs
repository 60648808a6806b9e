// SPDX-License-Identifier: GPL-2.0

//! The generic netlink family `smc-rs`: what the interfaces that this module shares with others have
//! no place for.
//!
//! Described for programs by `Documentation/netlink/specs/smc-rs.yaml`, which has to say the same.
//! Numbers are never used for anything else once they were published.

mod drain;
mod failure;
mod fallback;
mod fault;
mod peer;
mod rule;

use core::net::IpAddr;

use kapi::{
    genl::{self, Kind, Op, Policy, Request, Rule, Writer},
    netlink::Attr,
};
use kernel::prelude::*;

use crate::{netns, stats::Side};

/// Commands, and events.
pub(crate) mod command {
    pub(crate) const INFO_GET: u8 = 1;
    pub(crate) const RULE_GET: u8 = 3;
    pub(crate) const RULE_ADD: u8 = 4;
    pub(crate) const RULE_DELETE: u8 = 5;
    pub(crate) const RULE_FLUSH: u8 = 6;
    pub(crate) const FALLBACK_GET: u8 = 7;
    pub(crate) const DRAIN: u8 = 10;
    pub(crate) const DRAIN_GET: u8 = 11;
    pub(crate) const PEER_GET: u8 = 12;
    pub(crate) const PEER_FLUSH: u8 = 13;
    pub(crate) const FAILURE_GET: u8 = 14;
    pub(crate) const FAULT_GET: u8 = 15;
    pub(crate) const REASON_GET: u8 = 16;
    pub(crate) const LINK_UP: u8 = 32;
    pub(crate) const LINK_DOWN: u8 = 33;
    pub(crate) const GROUP_ADDED: u8 = 34;
    pub(crate) const GROUP_REMOVED: u8 = 35;
    pub(crate) const FALLBACK: u8 = 36;
}

/// Attributes. All commands share their numbers.
pub(crate) mod attr {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const NET_COOKIE: u16 = 3;
    pub(crate) const PAD: u16 = 4;
    pub(crate) const RULE: u16 = 5;
    pub(crate) const ALLOW: u16 = 6;
    pub(crate) const SIDE: u16 = 7;
    pub(crate) const ADDRESS: u16 = 8;
    pub(crate) const PREFIX_LEN: u16 = 9;
    pub(crate) const PORT_FIRST: u16 = 10;
    pub(crate) const PORT_LAST: u16 = 11;
    pub(crate) const CGROUP: u16 = 12;
    pub(crate) const REASON: u16 = 13;
    pub(crate) const PEER_REASON: u16 = 14;
    pub(crate) const COUNT: u16 = 15;
    pub(crate) const GROUP: u16 = 16;
    pub(crate) const LINK: u16 = 17;
    pub(crate) const DEVICE: u16 = 18;
    pub(crate) const DEVICE_PORT: u16 = 19;
    pub(crate) const UNDO: u16 = 20;
    pub(crate) const CONNECTIONS: u16 = 21;
    pub(crate) const AGE: u16 = 22;
    pub(crate) const LEFT: u16 = 23;
    pub(crate) const FAILURE: u16 = 24;
    pub(crate) const CONNECTIONS_ABORTED: u16 = 25;
    pub(crate) const LINKS_BROKEN: u16 = 26;
    pub(crate) const CDC_DROPPED: u16 = 27;
    pub(crate) const LLC_DROPPED: u16 = 28;
    pub(crate) const GROUPS_LOST: u16 = 29;
    pub(crate) const HANDSHAKES_FAILED: u16 = 30;
    pub(crate) const LINKS_WITHOUT_ROUTE: u16 = 31;
    pub(crate) const LLC_REFUSED: u16 = 32;
    pub(crate) const LINKS_LOST: u16 = 33;
}

/// The place of the group `events` among those of the family.
pub(crate) const EVENTS: u32 = 0;

const fn rule(number: u16, name: &'static CStr, kind: Kind) -> Rule {
    Rule { number, name, kind }
}

const RULE: Policy = &[
    rule(attr::RULE, c"rule", Kind::U32),
    rule(attr::ALLOW, c"allow", Kind::U8),
    rule(attr::SIDE, c"side", Kind::U8),
    rule(attr::ADDRESS, c"address", Kind::Bytes(16)),
    rule(attr::PREFIX_LEN, c"prefix-len", Kind::U8),
    rule(attr::PORT_FIRST, c"port-first", Kind::U16),
    rule(attr::PORT_LAST, c"port-last", Kind::U16),
    rule(attr::CGROUP, c"cgroup", Kind::U64),
];

const RULE_NUMBER: Policy = &[rule(attr::RULE, c"rule", Kind::U32)];

const DRAIN: Policy = &[
    rule(attr::GROUP, c"group", Kind::U32),
    rule(attr::LINK, c"link", Kind::U8),
    rule(attr::DEVICE, c"device", Kind::NulString(63)),
    rule(attr::DEVICE_PORT, c"device-port", Kind::U8),
    rule(attr::UNDO, c"undo", Kind::Flag),
];

/// The family.
pub(crate) struct OwnFamily;

impl genl::Family for OwnFamily {
    const NAME: &'static CStr = c"smc-rs";
    const VERSION: u8 = 1;
    const GROUPS: &'static [&'static CStr] = &[c"events"];
    const OPS: &'static [Op] = &[
        Op::new(command::INFO_GET).strict().doit(info),
        Op::new(command::RULE_GET).strict().dump(rule::list),
        Op::new(command::RULE_ADD)
            .strict()
            .policy(RULE)
            .doit(rule::add)
            .net_admin(),
        Op::new(command::RULE_DELETE)
            .strict()
            .policy(RULE_NUMBER)
            .doit(rule::delete)
            .net_admin(),
        Op::new(command::RULE_FLUSH)
            .strict()
            .doit(rule::flush)
            .net_admin(),
        Op::new(command::FALLBACK_GET)
            .strict()
            .dump(fallback::list_peers),
        Op::new(command::REASON_GET)
            .strict()
            .dump(fallback::list_reasons),
        Op::new(command::DRAIN)
            .strict()
            .policy(DRAIN)
            .doit(drain::drain)
            .admin(),
        Op::new(command::DRAIN_GET).strict().dump(drain::list),
        Op::new(command::PEER_GET).strict().dump(peer::list),
        Op::new(command::PEER_FLUSH)
            .strict()
            .doit(peer::flush)
            .net_admin(),
        Op::new(command::FAILURE_GET).strict().dump(failure::list),
        Op::new(command::FAULT_GET).strict().doit(fault::get),
    ];
}

/// What the module is, and what the namespace permits.
fn info(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    request.reply(command::INFO_GET, |message| {
        message.str(attr::VERSION, crate::VERSION.as_bytes())?;
        message.u64_aligned(attr::NET_COOKIE, ns.cookie, attr::PAD)
    })
}

/// A side as a number: 0 stands for both.
pub(crate) fn side_number(side: Option<Side>) -> u8 {
    match side {
        None => 0,
        Some(Side::Client) => 1,
        Some(Side::Server) => 2,
    }
}

/// Writes an address, as four bytes or as sixteen.
pub(crate) fn put_address(message: &mut Writer<'_>, attr: u16, addr: IpAddr) -> Result {
    match addr {
        IpAddr::V4(addr) => message.bytes(attr, &addr.octets()),
        IpAddr::V6(addr) => message.bytes(attr, &addr.octets()),
    }
}

/// Reads an address. An IPv4 address in the form of IPv6 is IPv4.
fn address(attr: Attr<'_>) -> Option<IpAddr> {
    let bytes = attr.bytes();
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(v4));
    }
    let v6 = <[u8; 16]>::try_from(bytes).ok()?;
    Some(IpAddr::from(v6).to_canonical())
}
