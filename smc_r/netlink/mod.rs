// SPDX-License-Identifier: GPL-2.0

//! The generic netlink family `SMC_GEN_NETLINK`, by which administrators look at link groups,
//! devices and counters.
//!
//! Dumps read what is there at the moment: lists may change between two messages, and go on after
//! the last number that was seen. Numbers of commands and attributes
//! are those of [`include/uapi/linux/smc.h`](srctree/include/uapi/linux/smc.h). What rests on
//! SMC-D, which this module lacks, is empty.

mod device;
mod eid;
mod group;
mod limit;
pub(crate) mod own;
mod pnet;
mod stats;

use kapi::{
    genl::{self, Dump, Kind, Op, Policy, Request, Rule, Writer},
    ib::Netdev,
    net::Net,
    util::host_name, //
};
use kernel::{prelude::*, sync::Arc};

use crate::{
    device::Device,
    netns::{self, Netns}, //
};

pub(crate) use self::pnet::PnetFamily;

/// Version of the protocol that the module speaks, and its release.
const VERSION: (u8, u8) = (2, smc_proto::handshake::RELEASE);

/// Length that names are padded to with blanks.
const NAME_LEN: usize = 32;

mod command {
    pub(super) const SYS_INFO: u8 = 1;
    pub(super) const GROUPS: u8 = 2;
    pub(super) const LINKS: u8 = 3;
    pub(super) const GROUPS_SMC_D: u8 = 4;
    pub(super) const DEVICES_SMC_D: u8 = 5;
    pub(super) const DEVICES: u8 = 6;
    pub(super) const STATS: u8 = 7;
    pub(super) const FALLBACKS: u8 = 8;
    pub(super) const USER_EIDS: u8 = 9;
    pub(super) const ADD_USER_EID: u8 = 10;
    pub(super) const REMOVE_USER_EID: u8 = 11;
    pub(super) const FLUSH_USER_EIDS: u8 = 12;
    pub(super) const SYSTEM_EID: u8 = 13;
    pub(super) const ENABLE_SYSTEM_EID: u8 = 14;
    pub(super) const DISABLE_SYSTEM_EID: u8 = 15;
    pub(super) const LIMIT: u8 = 16;
    pub(super) const ENABLE_LIMIT: u8 = 17;
    pub(super) const DISABLE_LIMIT: u8 = 18;
}

/// Attributes of messages.
mod nest {
    pub(super) const SYS_INFO: u16 = 1;
    pub(super) const GROUP: u16 = 2;
    pub(super) const LINK: u16 = 3;
    pub(super) const DEVICE: u16 = 6;
    pub(super) const STATS: u16 = 7;
    pub(super) const FALLBACK: u16 = 8;
}

mod sys_info {
    pub(super) const VERSION: u16 = 1;
    pub(super) const RELEASE: u16 = 2;
    pub(super) const IS_ISM_V2: u16 = 3;
    pub(super) const LOCAL_HOST: u16 = 4;
    pub(super) const IS_SMCR_V2: u16 = 6;
}

/// Dumps take no attributes.
const NO_ATTRIBUTES: Policy = &[Rule {
    number: 1,
    name: c"attribute 1",
    kind: Kind::Reject,
}];

/// The family.
pub(crate) struct SmcFamily;

impl genl::Family for SmcFamily {
    const NAME: &'static CStr = c"SMC_GEN_NETLINK";
    const VERSION: u8 = 1;
    const OPS: &'static [Op] = &[
        list(command::SYS_INFO, sys_info),
        list(command::GROUPS, group::groups),
        list(command::LINKS, group::links),
        list(command::GROUPS_SMC_D, nothing),
        list(command::DEVICES_SMC_D, nothing),
        list(command::DEVICES, device::devices),
        list(command::STATS, stats::stats),
        list(command::FALLBACKS, stats::fallbacks),
        list(command::USER_EIDS, eid::list),
        eid::change(command::ADD_USER_EID, eid::add),
        eid::change(command::REMOVE_USER_EID, eid::remove),
        change(command::FLUSH_USER_EIDS, eid::flush),
        list(command::SYSTEM_EID, eid::system),
        change(command::ENABLE_SYSTEM_EID, eid::no_system),
        change(command::DISABLE_SYSTEM_EID, eid::no_system),
        list(command::LIMIT, limit::show),
        change(command::ENABLE_LIMIT, limit::enable),
        change(command::DISABLE_LIMIT, limit::disable),
    ];
}

/// A command that lists something, and takes no attributes.
const fn list(cmd: u8, dump: fn(&mut Dump<'_>) -> Result) -> Op {
    Op::new(cmd).dump(dump).policy(NO_ATTRIBUTES).strict()
}

/// A command that changes something, by default without attributes. For administrators.
const fn change(cmd: u8, doit: fn(&mut Request<'_>) -> Result) -> Op {
    Op::new(cmd)
        .doit(doit)
        .policy(NO_ATTRIBUTES)
        .strict()
        .admin()
}

/// The state of the reader's namespace.
fn namespace(dump: &Dump<'_>) -> Result<Arc<Netns>> {
    netns::of(dump.net())
}

/// True if the reader may see what belongs to `ns`: everything may be seen from the initial
/// namespace.
fn visible(net: &Net, ns: &Netns) -> bool {
    net == Net::init() || net.id() == ns.cookie
}

/// The same of a device, which may be bound to a namespace.
fn visible_device(net: &Net, device: &Device) -> bool {
    net == Net::init() || device.ib().is_ok_and(|ib| ib.is_in(net))
}

/// The index of an interface for a reader whose namespace has the cookie `reader`; 0 if the interface is
/// in another one, where the index belongs to another interface or to none. This is so in the initial
/// namespace, too.
fn index_for(reader: u64, netdev: &Netdev) -> u32 {
    if netdev.namespace == reader {
        netdev.ifindex
    } else {
        0
    }
}

/// Writes the only message of a dump.
fn once(dump: &mut Dump<'_>, cmd: u8, fill: impl FnOnce(&mut Writer<'_>) -> Result) -> Result {
    if dump.cursor()[0] == 0 && dump.message(cmd, fill)? {
        dump.cursor()[0] = 1;
    }
    Ok(())
}

/// There are no such things here.
fn nothing(_dump: &mut Dump<'_>) -> Result {
    Ok(())
}

/// What this machine and module can do.
fn sys_info(dump: &mut Dump<'_>) -> Result {
    once(dump, command::SYS_INFO, |message| {
        message.nest(nest::SYS_INFO, |message| {
            message.u8(sys_info::VERSION, VERSION.0)?;
            message.u8(sys_info::RELEASE, VERSION.1)?;
            message.u8(sys_info::IS_ISM_V2, 0)?;
            let mut name = [b' '; NAME_LEN];
            host_name(&mut name);
            message.str(sys_info::LOCAL_HOST, &name)?;
            message.u8(sys_info::IS_SMCR_V2, 1)
        })
    })
}

/// An unsigned integer in four bytes, or in eight if need be.
fn put_uint(message: &mut Writer<'_>, attr: u16, value: u64) -> Result {
    match u32::try_from(value) {
        Ok(value) => message.u32(attr, value),
        Err(_) => message.u64(attr, value),
    }
}
