// SPDX-License-Identifier: GPL-2.0

//! CLC messages, right and wrong ones, and a rough reader (RFC 7609, appendix A.2).
//!
//! Written without the protocol core on purpose: this peer is to find its faults, not to share them.

use serde::Serialize;

const EYE: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];
/// Length of the header of all messages.
pub const HEADER_LEN: usize = 8;

/// Whom the messages are from.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// MAC of the RDMA port that we pretend to have.
    pub mac: [u8; 6],
    /// Our address.
    pub ip: [u8; 4],
    /// Bits of the network part of the address.
    pub prefix: u8,
}

impl Identity {
    /// Another host on the same link.
    pub fn other(&self, number: u16) -> Self {
        let [a, b, c, d, ..] = self.mac;
        let [e, f] = number.to_be_bytes();
        Self {
            mac: [a, b, c, d, e, f],
            ..*self
        }
    }

    fn peer_id(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.mac;
        [0x5a, 0xa5, a, b, c, d, e, f]
    }

    /// The link-local GID of the MAC.
    fn gid(&self) -> [u8; 16] {
        let [a, b, c, d, e, f] = self.mac;
        [
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            f,
        ]
    }

    fn subnet(&self) -> [u8; 4] {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(self.prefix))
            .unwrap_or(0);
        (u32::from_be_bytes(self.ip) & mask).to_be_bytes()
    }
}

/// Puts header and trailer around a body.
fn message(kind: u8, version: u8, body: &[u8]) -> Vec<u8> {
    let length = (HEADER_LEN + body.len() + EYE.len()) as u16;
    [
        &EYE[..],
        &[kind],
        &length.to_be_bytes(),
        &[version],
        body,
        &EYE,
    ]
    .concat()
}

/// A proposal of version 1, without a growth area.
pub fn proposal(identity: &Identity) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(identity.peer_id());
    body.extend(identity.gid());
    body.extend(identity.mac);
    body.extend([0, 0]);
    body.extend(identity.subnet());
    body.extend([identity.prefix, 0, 0, 0]);
    message(1, 0x10, &body)
}

fn accept_or_confirm(kind: u8, version: u8, identity: &Identity) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(identity.peer_id());
    body.extend(identity.gid());
    body.extend(identity.mac);
    // QP number, RKey, RMB element 1, alert token.
    body.extend([0x00, 0x12, 0x34, 0, 0, 0xab, 0xcd, 1, 0, 0, 0, 7]);
    // 64 KiB elements, MTU 1024; address of the RMB; initial PSN.
    body.extend([0x23, 0, 0, 0, 0, 1, 0x23, 0x40, 0, 0, 0, 0x0a, 0x0b, 0x0c]);
    message(kind, version, &body)
}

/// An accept of version 1 for a first contact. The queue pair in it does not exist.
pub fn accept(identity: &Identity) -> Vec<u8> {
    accept_or_confirm(2, 0x18, identity)
}

/// A confirm of version 1 for a first contact. The queue pair in it does not exist.
pub fn confirm(identity: &Identity) -> Vec<u8> {
    accept_or_confirm(3, 0x18, identity)
}

/// A decline: 28 bytes in version 1, 44 bytes in version 2.
pub fn decline(identity: &Identity, version: u8, diagnosis: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(identity.peer_id());
    body.extend(diagnosis.to_be_bytes());
    body.extend([if version == 2 { 0x20 } else { 0 }, 0, 0, 0]);
    if version == 2 {
        body.extend([0; 16]);
    }
    message(4, version << 4, &body)
}

/// What a message that came is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// `proposal`, `accept`, `confirm`, `decline` or a number.
    pub kind: String,
    /// Length of the message.
    pub length: usize,
    /// Version and flags.
    pub version: String,
    /// Diagnosis of a decline.
    pub diagnosis: Option<String>,
}

/// Reads one message from the front of the stream; `None` if it is not complete, `Some(Err)` if what
/// is there is not a CLC message.
pub fn read(stream: &[u8]) -> Option<Result<(Seen, usize), ()>> {
    let start = stream.len().min(EYE.len());
    if stream[..start] != EYE[..start] {
        return Some(Err(()));
    }
    let header = stream.get(..HEADER_LEN)?;
    let length = usize::from(u16::from_be_bytes([header[5], header[6]]));
    if length < HEADER_LEN + EYE.len() {
        return Some(Err(()));
    }
    let message = stream.get(..length)?;
    if !message.ends_with(&EYE) {
        return Some(Err(()));
    }
    let kind = match header[4] {
        1 => "proposal".into(),
        2 => "accept".into(),
        3 => "confirm".into(),
        4 => "decline".into(),
        other => other.to_string(),
    };
    let diagnosis = (header[4] == 4 && length >= 28).then(|| {
        let code = [message[16], message[17], message[18], message[19]];
        format!("{:#010x}", u32::from_be_bytes(code))
    });
    let version = format!("{:#04x}", header[7]);
    Some(Ok((
        Seen {
            kind,
            length,
            version,
            diagnosis,
        },
        length,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const CLIENT: Identity = Identity {
        mac: [2, 0, 0, 0, 0x0b, 1],
        ip: [192, 0, 2, 20],
        prefix: 24,
    };

    #[test]
    fn lengths_and_fields() {
        let bytes = proposal(&CLIENT);
        assert_eq!(
            hex(&bytes),
            "e2d4c3d9010034105aa5020000000b01fe80000000000000000000fffe000b01020000000b010000\
             c000020018000000e2d4c3d9"
        );
        let bytes = accept(&CLIENT);
        assert_eq!(
            (bytes.len(), bytes[4], bytes[45], bytes[50]),
            (68, 2, 1, 0x23)
        );
        assert_eq!(&bytes[61..64], &[0x0a, 0x0b, 0x0c]);
        assert_eq!(confirm(&CLIENT)[4], 3);
        assert_eq!(decline(&CLIENT, 1, 0x0307_0000).len(), 28);
        assert_eq!(decline(&CLIENT, 2, 0x0400_0000).len(), 44);
    }

    #[test]
    fn subnets() {
        let subnet = |prefix| Identity { prefix, ..CLIENT }.subnet();
        assert_eq!(subnet(0), [0; 4]);
        assert_eq!(subnet(28), [192, 0, 2, 16]);
        assert_eq!(subnet(32), [192, 0, 2, 20]);
    }

    #[test]
    fn reading() {
        let mut stream = decline(&CLIENT, 2, 0x0303_0008);
        stream.extend(b"more");
        let (seen, length) = read(&stream).unwrap().unwrap();
        assert_eq!((seen.kind.as_str(), length), ("decline", 44));
        assert_eq!(seen.diagnosis.as_deref(), Some("0x03030008"));
        for cut in 0..44 {
            assert!(read(&stream[..cut]).is_none(), "cut to {cut}");
        }
        assert_eq!(read(b"GET / HTTP"), Some(Err(())));
        stream[43] ^= 1;
        assert_eq!(read(&stream), Some(Err(())));
        assert_eq!(
            read(&[0xe2, 0xd4, 0xc3, 0xd9, 1, 0, 4, 0x10]),
            Some(Err(()))
        );
    }
}
