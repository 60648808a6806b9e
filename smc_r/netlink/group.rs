// SPDX-License-Identifier: GPL-2.0

//! Link groups and links.

use kapi::genl::{Dump, Writer};
use kernel::{prelude::*, sync::Arc};
use smc_proto::{group::Role, llc_flow::Redundancy};

use super::{command, index_for, namespace, nest, put_uint, visible};
use crate::{
    group::{Group, LinkEnds, Summary, Terms},
    link::Link, //
};

mod attr {
    pub(super) const ID: u16 = 1;
    pub(super) const ROLE: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    pub(super) const PNETID: u16 = 4;
    pub(super) const VLAN_ID: u16 = 5;
    pub(super) const CONNS_NUM: u16 = 6;
    pub(super) const V2_COMMON: u16 = 7;
    pub(super) const V2: u16 = 8;
    pub(super) const NET_COOKIE: u16 = 9;
    pub(super) const PAD: u16 = 10;
    pub(super) const BUF_TYPE: u16 = 11;
    pub(super) const SNDBUF_ALLOC: u16 = 12;
    pub(super) const RMB_ALLOC: u16 = 13;
}

mod v2_common {
    pub(super) const VER: u16 = 0;
    pub(super) const REL: u16 = 1;
    pub(super) const OS: u16 = 2;
    pub(super) const NEG_EID: u16 = 3;
    pub(super) const PEER_HOST: u16 = 4;
}

mod v2 {
    pub(super) const DIRECT: u16 = 1;
    pub(super) const MAX_CONNS: u16 = 2;
    pub(super) const MAX_LINKS: u16 = 3;
}

mod link_attr {
    pub(super) const ID: u16 = 1;
    pub(super) const IB_DEV: u16 = 2;
    pub(super) const IB_PORT: u16 = 3;
    pub(super) const GID: u16 = 4;
    pub(super) const PEER_GID: u16 = 5;
    pub(super) const CONN_CNT: u16 = 6;
    pub(super) const NET_DEV: u16 = 7;
    pub(super) const UID: u16 = 8;
    pub(super) const PEER_UID: u16 = 9;
    pub(super) const STATE: u16 = 10;
}

/// The number of a group's type.
fn group_type(redundancy: Redundancy) -> u8 {
    match redundancy {
        Redundancy::None => 0,
        Redundancy::Single => 1,
        Redundancy::Full => 2,
        Redundancy::PeerPort => 3,
        Redundancy::OwnPort => 4,
    }
}

/// Buffers are contiguous in memory.
const PHYSICAL: u8 = 0;

/// States of links.
const INACTIVE: u32 = 1;
const ACTIVATING: u32 = 2;
const ACTIVE: u32 = 3;

/// The next group that the reader may see.
fn next(dump: &mut Dump<'_>) -> Result<Option<Arc<Group>>> {
    let ns = namespace(dump)?;
    let mut number = dump.cursor()[0] as u64;
    loop {
        dump.as_of_if_asked(ns.shared.groups.changes());
        let Some(group) = ns.shared.groups.after(number) else {
            return Ok(None);
        };
        if visible(dump.net(), &group.ns) {
            return Ok(Some(group));
        }
        number = group.number;
    }
}

/// Link groups.
pub(super) fn groups(dump: &mut Dump<'_>) -> Result {
    while let Some(group) = next(dump)? {
        if !put_group(dump, &group)? {
            break;
        }
        dump.cursor()[0] = group.number as usize;
    }
    Ok(())
}

/// Link groups, each followed by its links.
pub(super) fn links(dump: &mut Dump<'_>) -> Result {
    while let Some(group) = next(dump)? {
        if dump.cursor()[1] == 0 {
            if !put_group(dump, &group)? {
                break;
            }
            dump.cursor()[1] = group.number as usize;
            dump.cursor()[2] = 0;
        }
        // If the group whose links were begun is gone, the next one begins with itself.
        if dump.cursor()[1] != group.number as usize {
            dump.cursor()[1] = 0;
            continue;
        }
        for link in group.links() {
            let place = link.place.get();
            if place < dump.cursor()[2] {
                continue;
            }
            let reader = dump.net().id();
            let fill = |message: &mut Writer<'_>| put_link(message, &group, &link, reader);
            if !dump.message(command::LINKS, fill)? {
                return Ok(());
            }
            dump.cursor()[2] = place.saturating_add(1);
        }
        dump.cursor()[0] = group.number as usize;
        dump.cursor()[1] = 0;
    }
    Ok(())
}

fn put_group(dump: &mut Dump<'_>, group: &Group) -> Result<bool> {
    let summary = group.summary();
    dump.message(command::GROUPS, |message| {
        message.nest(nest::GROUP, |message| {
            message.u32(attr::ID, group.id)?;
            message.u8(attr::ROLE, u8::from(group.role == Role::Server))?;
            message.u8(attr::TYPE, group_type(summary.redundancy))?;
            let pnet = group.first_path.pnet.as_ref();
            message.str(attr::PNETID, pnet.map_or(b"", |id| id.as_bytes()))?;
            // The attribute has room for the low byte only.
            message.u8(attr::VLAN_ID, group.vlan.unwrap_or(0) as u8)?;
            message.u32(attr::CONNS_NUM, summary.connections.into())?;
            if let Some(terms) = &group.terms {
                put_terms(message, group, terms)?;
            }
            message.u64_aligned(attr::NET_COOKIE, group.ns.cookie, attr::PAD)?;
            message.u8(attr::BUF_TYPE, PHYSICAL)?;
            put_uint(message, attr::SNDBUF_ALLOC, summary.ring_bytes as u64)?;
            put_uint(message, attr::RMB_ALLOC, summary.rmb_bytes as u64)
        })
    })
}

/// What was agreed on in version 2.
fn put_terms(message: &mut Writer<'_>, group: &Group, terms: &Terms) -> Result {
    message.nest(attr::V2_COMMON, |message| {
        message.u8(v2_common::VER, 2)?;
        message.u8(v2_common::REL, terms.release)?;
        message.u8(v2_common::OS, group.peer_host().map_or(0, |host| host.os))?;
        message.str(v2_common::NEG_EID, &terms.eid.0)?;
        let name = group.peer_host().map_or([b' '; 32], |host| host.name);
        message.str(v2_common::PEER_HOST, &name)
    })?;
    message.nest(attr::V2, |message| {
        message.u8(v2::DIRECT, terms.direct.into())?;
        message.u8(v2::MAX_CONNS, terms.max_connections)?;
        message.u8(v2::MAX_LINKS, terms.max_links)
    })
}

fn link_state(summary: &Summary, ends: &LinkEnds, link: &Link) -> u32 {
    if summary.over || !link.is_up() {
        INACTIVE
    } else if ends.up {
        ACTIVE
    } else {
        ACTIVATING
    }
}

fn put_link(message: &mut Writer<'_>, group: &Group, link: &Link, reader: u64) -> Result {
    let summary = group.summary();
    let ends = group.link_ends(link.place);
    let path = &link.path;
    message.nest(nest::LINK, |message| {
        message.u8(link_attr::ID, ends.number)?;
        message.str(link_attr::IB_DEV, &path.device.name())?;
        message.u8(link_attr::IB_PORT, path.port)?;
        message.str(link_attr::GID, &path.gid.text())?;
        message.str(link_attr::PEER_GID, &ends.peer_gid.text())?;
        message.u32(link_attr::CONN_CNT, link.load())?;
        message.u32(link_attr::NET_DEV, index_for(reader, &path.netdev))?;
        message.u32(link_attr::UID, u32::from_ne_bytes(ends.user_id))?;
        message.u32(link_attr::PEER_UID, u32::from_ne_bytes(ends.peer_user_id))?;
        message.u32(link_attr::STATE, link_state(&summary, &ends, link))
    })
}
