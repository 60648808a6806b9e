// SPDX-License-Identifier: GPL-2.0

//! The host as a whole, its EIDs and its pnet ids.

use crate::attr::Attrs;
use crate::netlink::{list, push_attribute, Error, Malformed, Source};
use crate::uapi::{command, nest, pnet, GEN_FAMILY, PNET_FAMILY};
use serde::Serialize;

/// Length of an EID.
pub const EID_LEN: usize = 32;

/// What the implementation is capable of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SystemInfo {
    /// Highest version of the protocol.
    pub version: u8,
    /// Highest release of that version.
    pub release: u8,
    /// Name that peers get to see.
    pub host: Option<String>,
    /// SMC-Rv2 is there.
    pub smcr_v2: bool,
    /// A device capable of ISMv2 is there.
    pub ism_v2: bool,
    /// System EID.
    pub seid: Option<String>,
}

impl SystemInfo {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let message = Attrs::parse(bytes)?;
        let info = message.need_nest(nest::SYS_INFO)?;
        Ok(Self {
            version: info.u8(1)?.unwrap_or_default(),
            release: info.u8(2)?.unwrap_or_default(),
            host: info.text(4),
            smcr_v2: info.u8(6)?.is_some_and(|value| value != 0),
            ism_v2: info.u8(3)?.is_some_and(|value| value != 0),
            seid: info.text(5),
        })
    }

    /// Asks the kernel.
    pub fn read(source: &mut dyn Source) -> Result<Self, Error> {
        let messages = source.dump(GEN_FAMILY, command::GET_SYS_INFO)?;
        let first = messages
            .first()
            .ok_or_else(|| Malformed("empty answer".into()))?;
        Ok(Self::decode(&first.attributes)?)
    }
}

/// The user-defined EIDs.
pub fn ueids(source: &mut dyn Source) -> Result<Vec<String>, Error> {
    let messages = source.dump(GEN_FAMILY, command::DUMP_UEID)?;
    let mut ids = Vec::new();
    for message in &messages {
        ids.extend(
            Attrs::parse(&message.attributes)?
                .text(1)
                .filter(|id| !id.is_empty()),
        );
    }
    Ok(ids)
}

/// Whether handshakes are limited in this namespace; `None` if the kernel does not tell.
pub fn handshake_limit(source: &mut dyn Source) -> Result<Option<bool>, Error> {
    let messages = source.dump(GEN_FAMILY, command::DUMP_HS_LIMITATION)?;
    let Some(message) = messages.first() else {
        return Ok(None);
    };
    Ok(Attrs::parse(&message.attributes)?
        .u8(1)?
        .map(|value| value != 0))
}

/// Checks an EID as the kernel does, and gives the attribute for it: padded and terminated.
pub fn eid_attribute(id: &str) -> Result<Vec<u8>, String> {
    let good = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    match id.as_bytes() {
        [] => return Err("an EID has at least one character".into()),
        bytes if bytes.len() > EID_LEN => {
            return Err(format!("an EID has at most {EID_LEN} characters"));
        }
        [first, rest @ ..]
            if good(first) && rest.iter().all(|byte| good(byte) || b".-".contains(byte)) => {}
        _ => {
            return Err("an EID has upper-case letters, digits, `.` and `-`, \
                        and starts with a letter or digit"
                .into());
        }
    }
    let mut value = [b' '; EID_LEN + 1];
    value[..id.len()].copy_from_slice(id.as_bytes());
    value[EID_LEN] = 0;
    let mut attribute = Vec::new();
    push_attribute(&mut attribute, 1, &value);
    Ok(attribute)
}

/// An entry of the table of pnet ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PnetEntry {
    /// The id.
    pub id: String,
    /// Network interface that has it.
    pub interface: Option<String>,
    /// RDMA or SMC-D device that has it.
    pub device: Option<String>,
    /// Port of the RDMA device.
    pub port: Option<u8>,
}

/// An id as the kernel keeps it, with a zero. The C implementation finds it under no other form.
fn kept(id: &str) -> Vec<u8> {
    let mut bytes = id.trim().to_ascii_uppercase().into_bytes();
    bytes.push(0);
    bytes
}

impl PnetEntry {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::parse(bytes)?;
        let present = |text: Option<String>| text.filter(|text| !text.is_empty() && text != "n/a");
        let device = present(attrs.text(pnet::IBNAME));
        Ok(Self {
            id: attrs.text(pnet::NAME).unwrap_or_default(),
            interface: present(attrs.text(pnet::ETHNAME)),
            port: attrs
                .u8(pnet::IBPORT)?
                .filter(|port| device.is_some() && *port != 255),
            device,
        })
    }

    /// The table.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        list(source, PNET_FAMILY, pnet::GET, Self::decode)
    }

    /// The entries of an id.
    pub fn read(source: &mut dyn Source, id: &str) -> Result<Vec<Self>, Error> {
        let mut attributes = Vec::new();
        let name = kept(id);
        push_attribute(&mut attributes, pnet::NAME, &name);
        // This answer ends with what one buffer has room for. But the kernel knows what can be an id.
        source.query(PNET_FAMILY, pnet::GET, &attributes)?;
        let mut entries = Self::read_all(source)?;
        entries.retain(|entry| name.strip_suffix(&[0]) == Some(entry.id.as_bytes()));
        Ok(entries)
    }

    /// The attributes of a request to add the entry.
    pub fn attributes(&self) -> Vec<u8> {
        let terminated = |text: &str| [text.as_bytes(), &[0]].concat();
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, pnet::NAME, &kept(&self.id));
        if let Some(interface) = &self.interface {
            push_attribute(&mut bytes, pnet::ETHNAME, &terminated(interface));
        }
        if let Some(device) = &self.device {
            push_attribute(&mut bytes, pnet::IBNAME, &terminated(device));
            push_attribute(&mut bytes, pnet::IBPORT, &[self.port.unwrap_or(1)]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_info() {
        let mut inner = Vec::new();
        push_attribute(&mut inner, 1, &[2]);
        push_attribute(&mut inner, 2, &[1]);
        push_attribute(&mut inner, 3, &[0]);
        push_attribute(&mut inner, 4, b"host                            \0");
        push_attribute(&mut inner, 6, &[1]);
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, nest::SYS_INFO | 0x8000, &inner);
        let info = SystemInfo::decode(&bytes).unwrap();
        assert_eq!(
            (info.version, info.release, info.smcr_v2, info.ism_v2),
            (2, 1, true, false)
        );
        assert_eq!(info.host.as_deref(), Some("host"));
        assert_eq!(info.seid, None);
        assert!(SystemInfo::decode(&[]).is_err());
    }

    #[test]
    fn eids() {
        let attribute = eid_attribute("LAB-EID.1").unwrap();
        assert_eq!(attribute.len(), 40);
        assert_eq!(attribute[..2], 37u16.to_ne_bytes());
        assert_eq!(&attribute[4..13], b"LAB-EID.1");
        assert!(attribute[13..36].iter().all(|byte| *byte == b' '));
        assert_eq!(attribute[36], 0);
        assert!(eid_attribute(&"A".repeat(32)).is_ok());
        for bad in ["", "lab", "-A", ".A", "A B", "A_B", "Ä", &"A".repeat(33)] {
            assert!(eid_attribute(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pnet_entries() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 1, b"NET1\0");
        push_attribute(&mut bytes, 2, b"eth0\0");
        push_attribute(&mut bytes, 3, b"n/a\0");
        push_attribute(&mut bytes, 4, &[255]);
        let entry = PnetEntry::decode(&bytes).unwrap();
        assert_eq!(
            (entry.id.as_str(), entry.interface.as_deref()),
            ("NET1", Some("eth0"))
        );
        assert_eq!((entry.device, entry.port), (None, None));

        let entry = PnetEntry {
            id: " n1".into(),
            device: Some("rxe0".into()),
            ..PnetEntry::default()
        };
        let again = PnetEntry::decode(&entry.attributes()).unwrap();
        assert_eq!(
            again,
            PnetEntry {
                id: "N1".into(),
                port: Some(1),
                ..entry
            }
        );
    }
}
