// SPDX-License-Identifier: GPL-2.0

//! Link groups and links.

use crate::attr::Attrs;
use crate::netlink::{list, Error, Malformed, Source};
use crate::uapi::{command, nest, BufferType, GroupType, LinkState, Os, Role, GEN_FAMILY};
use serde::Serialize;

/// What version 2 adds to a link group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupV2 {
    /// Version of the protocol.
    pub version: u8,
    /// Release of the version.
    pub release: u8,
    /// Operating system of the peer.
    pub peer_os: Os,
    /// EID that both sides have.
    pub eid: Option<String>,
    /// Host name of the peer.
    pub peer_host: Option<String>,
    /// No gateway is in between.
    pub direct: Option<bool>,
    /// Limit of connections.
    pub max_connections: Option<u8>,
    /// Limit of links.
    pub max_links: Option<u8>,
}

/// A link group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Number of the group, as hexadecimal text.
    pub id: String,
    /// Our side.
    pub role: Role,
    /// How its links are connected.
    #[serde(rename = "type")]
    pub kind: GroupType,
    /// Pnet id.
    pub pnet_id: Option<String>,
    /// VLAN, zero if there is none. The kernel reports only its low byte.
    pub vlan_id: u8,
    /// Connections in use.
    pub connections: u32,
    /// Only for version 2.
    pub v2: Option<GroupV2>,
    /// Network namespace.
    pub net_cookie: Option<u64>,
    /// How buffers are allocated.
    pub buffer_type: Option<BufferType>,
    /// Bytes of send buffers.
    pub sndbuf_bytes: Option<u64>,
    /// Bytes of RMBs.
    pub rmb_bytes: Option<u64>,
}

impl Group {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let message = Attrs::parse(bytes)?;
        let group = message.need_nest(nest::LGR_SMCR)?;
        let mut v2 = None;
        if let Some(common) = group.nest(7)? {
            let own = group.nest(8)?.unwrap_or_default();
            v2 = Some(GroupV2 {
                version: common.u8(0)?.unwrap_or_default(),
                release: common.u8(1)?.unwrap_or_default(),
                peer_os: Os(common.u8(2)?.unwrap_or_default()),
                eid: common.text(3),
                peer_host: common.text(4),
                direct: own.u8(1)?.map(|value| value != 0),
                max_connections: own.u8(2)?,
                max_links: own.u8(3)?,
            });
        }
        Ok(Self {
            id: format!("{:08x}", group.u32(1)?.unwrap_or_default()),
            role: Role(group.u8(2)?.unwrap_or_default()),
            kind: GroupType(group.u8(3)?.unwrap_or_default()),
            pnet_id: group.text(4).filter(|id| !id.is_empty()),
            vlan_id: group.u8(5)?.unwrap_or_default(),
            connections: group.u32(6)?.unwrap_or_default(),
            v2,
            net_cookie: group.u64(9)?,
            buffer_type: group.u8(11)?.map(BufferType),
            sndbuf_bytes: group.uint(12)?,
            rmb_bytes: group.uint(13)?,
        })
    }

    /// Version of the protocol that the group speaks.
    pub fn version(&self) -> u8 {
        self.v2.as_ref().map_or(1, |v2| v2.version)
    }

    /// All link groups.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        list(source, GEN_FAMILY, command::GET_LGR_SMCR, Self::decode)
    }
}

/// Four bytes in the order of the wire, which the kernel hands over as a number. The kernel's log
/// shows them in this way too.
fn wire_hex(value: Option<u32>) -> String {
    format!(
        "{:08x}",
        u32::from_be_bytes(value.unwrap_or_default().to_ne_bytes())
    )
}

/// A link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Group that it belongs to.
    pub group: String,
    /// Number of the link in the group.
    pub id: u8,
    /// Our user id of the link.
    pub uid: String,
    /// The peer's.
    pub peer_uid: String,
    /// State.
    pub state: LinkState,
    /// RDMA device.
    pub device: String,
    /// Port of the device.
    pub port: u8,
    /// GID of our port.
    pub gid: String,
    /// GID of the peer's port.
    pub peer_gid: String,
    /// Index of the network interface, zero if there is none.
    pub ifindex: u32,
    /// Its name.
    pub interface: Option<String>,
    /// Connections on the link.
    pub connections: u32,
}

impl Link {
    fn decode(bytes: &[u8], group: &str) -> Result<Self, Malformed> {
        let message = Attrs::parse(bytes)?;
        let link = message.need_nest(nest::LINK_SMCR)?;
        let ifindex = link.u32(7)?.unwrap_or_default();
        Ok(Self {
            group: group.to_string(),
            id: link.u8(1)?.unwrap_or_default(),
            uid: wire_hex(link.u32(8)?),
            peer_uid: wire_hex(link.u32(9)?),
            state: LinkState(link.u32(10)?.unwrap_or_default()),
            device: link.text(2).unwrap_or_default(),
            port: link.u8(3)?.unwrap_or_default(),
            gid: link.text(4).unwrap_or_default(),
            peer_gid: link.text(5).unwrap_or_default(),
            ifindex,
            interface: None,
            connections: link.u32(6)?.unwrap_or_default(),
        })
    }

    /// All links. The answer has each group's message before those of its links.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        let mut links = Vec::new();
        let mut group = None;
        for message in source.dump(GEN_FAMILY, command::GET_LINK_SMCR)? {
            if message.command == command::GET_LINK_SMCR {
                let group = group
                    .as_deref()
                    .ok_or_else(|| Malformed("link without a group".into()))?;
                links.push(Self::decode(&message.attributes, group)?);
            } else {
                group = Some(Group::decode(&message.attributes)?.id);
            }
        }
        Ok(links)
    }
}
