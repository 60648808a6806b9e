// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.

use crate::attr::Attrs;
use crate::netlink::{list, Error, Malformed, Source};
use crate::uapi::{command, nest, GEN_FAMILY};
use serde::Serialize;

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Number of the port.
    pub port: u8,
    /// It can be used.
    pub active: bool,
    /// Pnet id.
    pub pnet_id: Option<String>,
    /// The id was set by an administrator.
    pub pnet_id_by_user: bool,
    /// Index of the network interface, zero if there is none.
    pub ifindex: u32,
    /// Its name.
    pub interface: Option<String>,
    /// Links over the port.
    pub links: u32,
}

/// Place on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pci {
    /// Address on the bus.
    pub id: String,
    /// Function id, on systems that have one.
    pub fid: Option<u32>,
    /// Channel id, on systems that have one.
    pub chid: Option<u16>,
    /// Vendor.
    pub vendor: Option<u16>,
    /// Device.
    pub device: Option<u16>,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Name of the device.
    pub name: String,
    /// Connections would be lost without it.
    pub critical: bool,
    /// Not for software devices.
    pub pci: Option<Pci>,
    /// Its ports.
    pub ports: Vec<Port>,
}

impl Device {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let message = Attrs::parse(bytes)?;
        let device = message.need_nest(nest::DEV_SMCR)?;
        let mut ports = Vec::new();
        for (number, kind) in [(1, 8), (2, 9)] {
            let Some(port) = device.nest(kind)? else {
                continue;
            };
            let ifindex = port.u32(3)?.unwrap_or_default();
            ports.push(Port {
                port: number,
                active: port.u8(4)? == Some(1),
                pnet_id: port.text(2).filter(|id| !id.is_empty()),
                pnet_id_by_user: port.u8(1)?.is_some_and(|value| value != 0),
                ifindex,
                interface: None,
                links: port.u32(6)?.unwrap_or_default(),
            });
        }
        let pci = match device.text(7) {
            Some(id) if !id.is_empty() => Some(Pci {
                id,
                fid: device.u32(3)?,
                chid: device.u16(4)?,
                vendor: device.u16(5)?,
                device: device.u16(6)?,
            }),
            _ => None,
        };
        Ok(Self {
            name: device.text(10).unwrap_or_default(),
            critical: device.u8(2)?.is_some_and(|value| value != 0),
            pci,
            ports,
        })
    }

    /// All devices.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        list(source, GEN_FAMILY, command::GET_DEV_SMCR, Self::decode)
    }
}
