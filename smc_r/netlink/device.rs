// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.

use kapi::{
    genl::{Dump, Writer},
    net::Net, //
};
use kernel::{prelude::*, sync::Arc};

use super::{command, index_for, namespace, nest, visible, visible_device};
use crate::{device::Device, group::Group, pnet, Shared};

mod attr {
    pub(super) const IS_CRIT: u16 = 2;
    pub(super) const PCI_FID: u16 = 3;
    pub(super) const PCI_CHID: u16 = 4;
    pub(super) const PCI_VENDOR: u16 = 5;
    pub(super) const PCI_DEVICE: u16 = 6;
    pub(super) const PCI_ID: u16 = 7;
    /// Of port 1; that of port 2 follows.
    pub(super) const PORT: u16 = 8;
    pub(super) const IB_NAME: u16 = 10;
}

mod port_attr {
    pub(super) const PNET_USR: u16 = 1;
    pub(super) const PNETID: u16 = 2;
    pub(super) const NETDEV: u16 = 3;
    pub(super) const STATE: u16 = 4;
    pub(super) const VALID: u16 = 5;
    pub(super) const LNK_CNT: u16 = 6;
}

/// Devices of more ports are shown with the first two.
const MAX_PORTS: u8 = 2;

/// Devices, in the order in which they came.
pub(super) fn devices(dump: &mut Dump<'_>) -> Result {
    let ns = namespace(dump)?;
    loop {
        dump.as_of_if_asked(ns.shared.devices.changes());
        let Some(device) = ns.shared.devices.after(dump.cursor()[0] as u64) else {
            return Ok(());
        };
        // A device that is bound to another namespace is none of the reader's.
        if !visible_device(dump.net(), &device) {
            dump.cursor()[0] = device.number as usize;
            continue;
        }
        let net = dump.net();
        let fill = |message: &mut Writer<'_>| put_device(message, &ns.shared, &device, net);
        if !dump.message(command::DEVICES, fill)? {
            return Ok(());
        }
        dump.cursor()[0] = device.number as usize;
    }
}

fn put_device(
    message: &mut Writer<'_>,
    shared: &Shared,
    device: &Arc<Device>,
    net: &Net,
) -> Result {
    let reader = net.id();
    // How many links other namespaces have is not for everybody.
    let shown = |group: &Group| visible(net, &group.ns);
    message.nest(nest::DEVICE, |message| {
        let mut critical = false;
        for port in device.ports().filter(|port| (1..=MAX_PORTS).contains(port)) {
            let users = shared.groups.users_of(device, port, shown);
            critical |= users.critical;
            message.nest(
                attr::PORT.saturating_add(u16::from(port).saturating_sub(1)),
                |message| put_port(message, shared, device, port, users.links, reader),
            )?;
        }
        message.u8(attr::IS_CRIT, u8::from(critical))?;
        put_pci(message, device)?;
        message.str(attr::IB_NAME, &device.name())
    })
}

/// What it is on the PCI bus, if it is there. Function and channel IDs are for mainframes.
fn put_pci(message: &mut Writer<'_>, device: &Device) -> Result {
    let Ok(ib) = device.ib() else {
        return Ok(());
    };
    let (Some((vendor, number)), Some(name)) = (ib.pci(), ib.parent_name()) else {
        return Ok(());
    };
    message.u32(attr::PCI_FID, 0)?;
    message.u16(attr::PCI_CHID, 0)?;
    message.u16(attr::PCI_VENDOR, vendor)?;
    message.u16(attr::PCI_DEVICE, number)?;
    message.str(attr::PCI_ID, name.get(..16).unwrap_or_default())
}

fn put_port(
    message: &mut Writer<'_>,
    shared: &Shared,
    device: &Device,
    port: u8,
    links: usize,
    reader: u64,
) -> Result {
    let info = device.port(port).ok();
    let ifindex = info
        .as_ref()
        .and_then(|info| info.netdev)
        .map_or(0, |netdev| index_for(reader, &netdev));
    let id = pnet::of_port(&shared.devices, device, port);
    let by_user = id.as_ref().is_some_and(|id| id.by_user);
    message.u8(port_attr::PNET_USR, u8::from(by_user))?;
    let id = id.as_ref().map_or(&b""[..], |id| id.id.as_bytes());
    message.str(port_attr::PNETID, id)?;
    message.u32(port_attr::NETDEV, ifindex)?;
    message.u8(
        port_attr::STATE,
        u8::from(info.is_some_and(|info| info.active)),
    )?;
    message.u8(port_attr::VALID, 1)?;
    message.u32(port_attr::LNK_CNT, u32::try_from(links).unwrap_or(u32::MAX))
}
