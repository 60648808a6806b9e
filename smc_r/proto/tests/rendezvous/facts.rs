// SPDX-License-Identifier: GPL-2.0

//! The two hosts of the tests.

use smc_proto::{
    clc::{
        Ipv4Subnet,
        OfferV1,
        Prefixes,
        Proposal, //
    },
    group::{
        Element,
        LinkEnd,
        Role, //
    },
    handshake::OwnV2,
    wire::{
        AlertToken,
        Eid,
        Gid,
        List,
        Mac,
        MtuCode,
        ParseError,
        PeerId,
        Psn,
        QpNum,
        RKey,
        RToken,
        RmbeIndex,
        RmbeSize, //
    },
};

/// One host's end of the link.
pub fn end(role: Role) -> LinkEnd {
    let n = role as u8 + 1;
    LinkEnd {
        mac: Mac([0x0a, 0, 0, 0, 0, n]),
        gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]),
        qp: QpNum::new(0x100 + u32::from(n)).unwrap(),
        mtu: MtuCode::new(3).unwrap(),
        psn: Psn::truncate(0x1000 * u32::from(n)),
    }
}

/// One host's buffer.
pub fn element(role: Role) -> Element {
    let n = role as u32 + 1;
    Element {
        token: token(0x5000 + n),
        index: RmbeIndex::FIRST,
        size: RmbeSize::new(1).unwrap(),
        alert: AlertToken(0xa000 + n),
    }
}

/// Some buffer.
pub fn token(rkey: u32) -> RToken {
    RToken {
        rkey: RKey(rkey),
        addr: 0x7f00_0000_0000 + u64::from(rkey) * 0x10_0000,
    }
}

/// A Proposal of version 1 for IPv4.
pub fn proposal(id: PeerId) -> Proposal {
    let end = end(Role::Client);
    Proposal {
        version: 1,
        peer_id: id,
        v1: Ok(OfferV1 {
            gid: end.gid,
            mac: end.mac,
            prefixes: Prefixes::V4(Ipv4Subnet::of([192, 0, 2, 1], 24).unwrap()),
        }),
        v2: Err(ParseError::NotOffered),
    }
}

/// What a host brings into negotiations of version 2: an ID of its own, and a common one.
pub fn own_v2(role: Role, max_links: u8) -> OwnV2 {
    let own: &[u8] = match role {
        Role::Client => b"CLIENT.LAB",
        Role::Server => b"SERVER.LAB",
    };
    OwnV2 {
        eids: List::from_slice(&[own, b"LAB-EID-1"].map(|name| Eid::new(name).unwrap())),
        max_connections: 255,
        max_links,
        host: [b'h'; 32],
    }
}
