// SPDX-License-Identifier: GPL-2.0

//! A kernel whose answers are constructed, and may be damaged.

use smc_tools::netlink::{
    push_attribute, Address, Error, Interface, Message, Notice, Route, Source,
};
use smc_tools::uapi::{command, nest, own, pnet, GEN_FAMILY, OWN_FAMILY, PNET_FAMILY};
use std::net::IpAddr;
use std::ops::ControlFlow;

pub(crate) type Damage = Box<dyn Fn(Vec<u8>) -> Vec<u8>>;

#[derive(Default)]
pub(crate) struct Fake {
    /// What came with `execute`.
    pub(crate) executed: Vec<(&'static str, u8, Vec<u8>)>,
    /// What `execute` and `query` refuse, with the error number.
    pub(crate) refused: Vec<(&'static str, u8, i32)>,
    /// Applied to each message of an answer.
    pub(crate) damage: Option<Damage>,
}

#[derive(Default)]
pub(crate) struct Builder(pub(crate) Vec<u8>);

impl Builder {
    pub(crate) fn u8(mut self, kind: u16, value: u8) -> Self {
        push_attribute(&mut self.0, kind, &[value]);
        self
    }
    pub(crate) fn u16(mut self, kind: u16, value: u16) -> Self {
        push_attribute(&mut self.0, kind, &value.to_ne_bytes());
        self
    }
    pub(crate) fn u32(mut self, kind: u16, value: u32) -> Self {
        push_attribute(&mut self.0, kind, &value.to_ne_bytes());
        self
    }
    pub(crate) fn u64(mut self, kind: u16, value: u64) -> Self {
        push_attribute(&mut self.0, kind, &value.to_ne_bytes());
        self
    }
    pub(crate) fn text(mut self, kind: u16, value: &str) -> Self {
        push_attribute(&mut self.0, kind, &[value.as_bytes(), &[0]].concat());
        self
    }
    pub(crate) fn nest(mut self, kind: u16, inner: Builder) -> Self {
        push_attribute(&mut self.0, kind | 0x8000, &inner.0);
        self
    }
    pub(crate) fn message(self, command: u8) -> Message {
        Message {
            command,
            attributes: self.0,
        }
    }
}

pub(crate) fn new() -> Builder {
    Builder::default()
}

pub(crate) fn group(id: u32, v2: bool) -> Message {
    let mut group = new()
        .u32(1, id)
        .u8(2, u8::from(v2))
        .u8(3, 1)
        .text(4, if v2 { "" } else { "NET1" })
        .u8(5, if v2 { 26 } else { 0 })
        .u32(6, 17)
        .u64(9, 1)
        .u8(11, 0)
        .u32(12, 17 << 16)
        .u64(13, 5 << 30);
    if v2 {
        let common = new()
            .u8(0, 2)
            .u8(1, 1)
            .u8(2, 2)
            .text(3, "LAB-EID-1           ")
            .text(4, "peer ");
        group = group
            .nest(7, common)
            .nest(8, new().u8(1, 1).u8(2, 255).u8(3, 2));
    }
    new()
        .nest(nest::LGR_SMCR, group)
        .message(command::GET_LGR_SMCR)
}

pub(crate) fn link(id: u8) -> Message {
    let link = new()
        .u8(1, id)
        .text(2, "rxe_eth0")
        .u8(3, 1)
        .text(4, "0000:0000:0000:0000:0000:ffff:c000:0201")
        .text(5, "fe80:0000:0000:0000:0000:00ff:fe00:0b01")
        .u32(6, 17)
        .u32(7, 0)
        .u32(8, u32::from_ne_bytes([0, 0, 1, 1]))
        .u32(9, u32::from_ne_bytes([0, 0, 2, 1]))
        .u32(10, 3);
    new()
        .nest(nest::LINK_SMCR, link)
        .message(command::GET_LINK_SMCR)
}

pub(crate) fn devices() -> Vec<Message> {
    let port = new()
        .u8(1, 1)
        .text(2, "NET1")
        .u32(3, 0)
        .u8(4, 1)
        .u8(5, 1)
        .u32(6, 2);
    let soft = new().u8(2, 1).nest(8, port).text(10, "rxe_eth0");
    let port = |active| {
        new()
            .u8(1, 0)
            .text(2, "")
            .u32(3, 0)
            .u8(4, active)
            .u8(5, 1)
            .u32(6, 0)
    };
    let hard = new()
        .u8(2, 0)
        .u32(3, 0)
        .u16(4, 0)
        .u16(5, 0x15b3)
        .u16(6, 0x1017)
        .text(7, "0000:3b:00.0")
        .nest(8, port(1))
        .nest(9, port(0))
        .text(10, "mlx5_0");
    let bare = new().u8(2, 0).text(10, "noports");
    [soft, hard, bare]
        .map(|device| new().nest(nest::DEV_SMCR, device).message(6))
        .into()
}

pub(crate) fn stats() -> Vec<Message> {
    let buckets =
        |first: u64| (1..=9).fold(new(), |all, kind| all.u64(kind, first + u64::from(kind)));
    let buffers =
        |first: u64| (1..=7).fold(new(), |all, kind| all.u64(kind, first + u64::from(kind)));
    let smcr = new()
        .nest(1, buckets(0))
        .nest(2, buckets(10))
        .nest(3, buckets(1_000_000))
        .nest(4, buckets(30))
        .nest(5, buffers(100))
        .nest(6, buffers(200));
    let smcr = [
        (7, 1),
        (8, 2),
        (9, 3),
        (10, 4),
        (11, 0),
        (12, 5),
        (13, 6),
        (14, 7),
        (15, 8),
    ]
    .into_iter()
    .fold(smcr, |all, (kind, value)| all.u64(kind, value))
    .u64(16, 1 << 40)
    .u64(17, 12_345)
    .u64(18, 99)
    .u64(19, 98)
    .u32(20, 65536)
    .u64(21, 1 << 33);
    let stats = new().nest(1, new()).nest(2, smcr).u64(3, 11).u64(4, 12);
    vec![new().nest(nest::STATS, stats).message(7)]
}

pub(crate) fn fallbacks() -> Vec<Message> {
    let first = new()
        .u8(1, 1)
        .u64(2, 5)
        .u64(3, 70_000)
        .u32(4, 0x0301_0000)
        .u16(5, 5);
    let second = new().u8(1, 0).u32(4, 0x0303_0008).u16(5, 65535);
    let third = new().u8(1, 1).u32(4, 0x0600_0000).u16(5, 9);
    [first, second, third]
        .map(|inner| new().nest(nest::FBACK_STATS, inner).message(8))
        .into()
}

/// Lists of the module's own family.
pub(crate) fn own_lists(number: u8) -> Vec<Message> {
    let peer = |builder: Builder| {
        let mut builder = builder;
        push_attribute(&mut builder.0, 8, &[192, 0, 2, 2]);
        builder
    };
    match number {
        own::RULE_GET => {
            let all = new().u32(5, 9).u8(6, 1).u8(7, 0);
            let one = peer(new().u32(5, 1).u8(6, 0).u8(7, 2));
            let one = one.u8(9, 24).u16(10, 80).u16(11, 90).u64(12, 4711);
            vec![one.message(number), all.message(number)]
        }
        own::FALLBACK_GET => {
            let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
            let mut other = new();
            push_attribute(&mut other.0, 8, &v6);
            let other = other.u8(7, 2).u32(13, 0x0500_0000).u64(15, 1);
            let same = peer(new()).u8(7, 1).u32(13, 0x0301_0000).u64(15, 12);
            vec![other.message(number), same.message(number)]
        }
        own::PEER_GET => {
            let mut other = new();
            push_attribute(&mut other.0, 8, &[192, 0, 2, 7]);
            let other = other.u8(7, 2).u32(13, 0x0301_0000);
            let same = peer(new()).u8(7, 1).u32(13, 0x0201_0000).u64(15, 2);
            vec![
                other.u64(15, 1).u64(22, 31000).u64(23, 0).message(number),
                same.u64(22, 5500).u64(23, 54_500).message(number),
            ]
        }
        // More than the common statistics can tell.
        own::REASON_GET => vec![
            new()
                .u8(7, 2)
                .u32(13, 0x0301_0000)
                .u64(15, 5)
                .message(number),
            new()
                .u8(7, 1)
                .u32(13, 0x0303_0008)
                .u64(15, 69_995)
                .message(number),
        ],
        own::FAILURE_GET => vec![
            new().u8(7, 2).u8(24, 6).u64(15, 12).message(number),
            new()
                .u8(7, 1)
                .u8(24, 10)
                .u32(13, 0x0201_0000)
                .u64(15, 4)
                .message(number),
            new().u8(7, 1).u8(24, 5).u64(15, 7).message(number),
        ],
        own::DRAIN_GET => vec![
            new().text(18, "rxe_eth0").u8(19, 1).message(number),
            new().u32(16, 0x100).u32(21, 17).message(number),
        ],
        _ => Vec::new(),
    }
}

pub(crate) fn events() -> Vec<Message> {
    let group = || new().u64(3, 1).u32(16, 0x100).u8(7, 1);
    let link = || group().u8(17, 1).text(18, "rxe_eth0").u8(19, 1);
    let mut fallback = new()
        .u64(3, 1)
        .u8(7, 1)
        .u32(13, 0x0500_0000)
        .u32(14, 0x0303_0008);
    push_attribute(&mut fallback.0, 8, &[192, 0, 2, 2]);
    vec![
        group().message(own::GROUP_ADDED),
        link().message(own::LINK_UP),
        // Of a module that is newer than this program.
        group().message(99),
        fallback.u16(10, 5201).message(own::FALLBACK),
        link().message(own::LINK_DOWN),
        group().message(own::GROUP_REMOVED),
    ]
}

pub(crate) fn socket(state: u8, mode: u8, ports: (u16, u16), attributes: Builder) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..3].copy_from_slice(&[43, state, mode]);
    bytes[4..6].copy_from_slice(&ports.0.to_be_bytes());
    bytes[6..8].copy_from_slice(&ports.1.to_be_bytes());
    if ports.1 != 0 {
        bytes[8..12].copy_from_slice(&[192, 0, 2, 1]);
        bytes[24..28].copy_from_slice(&[192, 0, 2, 2]);
    }
    bytes[44..52].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    bytes[52] = 100;
    bytes[56..60].copy_from_slice(&4242u32.to_ne_bytes());
    bytes.extend(attributes.0);
    bytes
}

pub(crate) fn sockets() -> Vec<Vec<u8>> {
    let mut info = Vec::new();
    for value in [7u32, 65536, 65536, 131_072] {
        info.extend(value.to_ne_bytes());
    }
    let cursor = |info: &mut Vec<u8>, wrap: u16, count: u32| {
        info.extend(0u16.to_ne_bytes());
        info.extend(wrap.to_ne_bytes());
        info.extend(count.to_ne_bytes());
    };
    for (wrap, count) in [(1, 100), (0, 5), (0, 9), (0, 65_000)] {
        cursor(&mut info, wrap, count);
    }
    info.extend([0x80, 0, 0x10, 0]);
    for count in [900, 800, 700] {
        cursor(&mut info, 0, count);
    }
    assert_eq!(info.len(), 76);
    let mut link = vec![0; 147];
    link[0] = 1;
    link[1..9].copy_from_slice(b"rxe_eth0");
    link[65] = 1;
    link[66..105].copy_from_slice(b"0000:0000:0000:0000:0000:ffff:c000:0201");
    link[106..145].copy_from_slice(b"0000:0000:0000:0000:0000:ffff:c000:0202");
    link[146] = 1;
    let mut smc = new().u8(3, 2).u64(5, 0);
    push_attribute(&mut smc.0, 1, &info);
    push_attribute(&mut smc.0, 2, &link);
    let mut dmb = vec![0; 8];
    dmb[..4].copy_from_slice(&0x300u32.to_ne_bytes());
    for value in [0xa2_u64, 0xa1, 0xb1, 0xb2, 0, 0xc1] {
        dmb.extend(value.to_ne_bytes());
    }
    let mut smcd = new().u8(3, 3).u64(5, 0);
    push_attribute(&mut smcd.0, 4, &dmb);

    let mut v6 = socket(
        1,
        1,
        (5000, 6000),
        new().u8(3, 0).u64(5, 0x0303_0008_0500_0000),
    );
    v6[8..24].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    v6[24..40].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    vec![
        socket(10, 0, (80, 0), new().u8(3, 0).u64(5, 0)),
        socket(1, 0, (80, 40000), smc),
        v6,
        socket(21, 2, (81, 40001), smcd),
        socket(7, 1, (0, 0), new().u8(3, 3).u64(5, 0)),
        socket(2, 0, (0, 0), new().u8(3, 0).u64(5, 0)),
    ]
}

impl Source for Fake {
    fn dump(&mut self, family: &'static str, number: u8) -> Result<Vec<Message>, Error> {
        let mut messages = match (family, number) {
            (GEN_FAMILY, command::GET_SYS_INFO) => {
                let info = new()
                    .u8(1, 2)
                    .u8(2, 1)
                    .u8(3, 0)
                    .text(4, "testhost      ")
                    .u8(6, 1);
                vec![new().nest(nest::SYS_INFO, info).message(1)]
            }
            (GEN_FAMILY, command::GET_LGR_SMCR) => vec![group(0x100, false), group(0x200, true)],
            (GEN_FAMILY, command::GET_LINK_SMCR) => {
                vec![
                    group(0x100, false),
                    link(1),
                    link(2),
                    group(0x300, true),
                    group(0x200, true),
                    link(1),
                ]
            }
            (GEN_FAMILY, command::GET_DEV_SMCR) => devices(),
            (GEN_FAMILY, command::GET_STATS) => stats(),
            (GEN_FAMILY, command::GET_FBACK_STATS) => fallbacks(),
            (GEN_FAMILY, command::DUMP_UEID) => {
                vec![
                    new().text(1, "LAB-EID-1         ").message(9),
                    new().text(1, "X.2   ").message(9),
                ]
            }
            (GEN_FAMILY, command::DUMP_HS_LIMITATION) => vec![new().u8(1, 0).message(16)],
            (PNET_FAMILY, pnet::GET) => {
                let none = "n/a";
                vec![
                    new()
                        .text(1, "NET1")
                        .text(2, "eth0")
                        .text(3, none)
                        .u8(4, 255)
                        .message(1),
                    new()
                        .text(1, "NET2")
                        .text(2, none)
                        .text(3, "mlx5_0")
                        .u8(4, 2)
                        .message(1),
                ]
            }
            (OWN_FAMILY, _) => own_lists(number),
            _ => return Err(Error::NoFamily(family)),
        };
        if let Some(damage) = &self.damage {
            for message in &mut messages {
                message.attributes = damage(std::mem::take(&mut message.attributes));
            }
        }
        Ok(messages)
    }

    fn execute(&mut self, family: &'static str, number: u8, bytes: &[u8]) -> Result<(), Error> {
        self.executed.push((family, number, bytes.to_vec()));
        let mut refused = self.refused.iter();
        match refused.find(|it| (it.0, it.1) == (family, number)) {
            Some((_, _, errno)) => Err(Error::Kernel(*errno, None)),
            None => Ok(()),
        }
    }

    fn query(
        &mut self,
        family: &'static str,
        number: u8,
        bytes: &[u8],
    ) -> Result<Vec<Message>, Error> {
        self.executed.push((family, number, bytes.to_vec()));
        let mut refused = self.refused.iter();
        if let Some((_, _, errno)) = refused.find(|it| (it.0, it.1) == (family, number)) {
            return Err(Error::Kernel(*errno, None));
        }
        match (family, number) {
            (OWN_FAMILY, own::INFO_GET) => Ok(vec![new().text(1, "0.1.0").u64(3, 1).message(1)]),
            (PNET_FAMILY, pnet::GET) => self.dump(family, number),
            (OWN_FAMILY, own::FAULT_GET) => Ok(vec![new()
                .u64(25, 2)
                .u64(26, 1)
                .u64(27, 70)
                .u64(28, 30)
                .u64(29, 3)
                .u64(30, 5)
                .u64(31, 4)
                .u64(32, 6)
                .u64(33, 7)
                .message(number)]),
            (OWN_FAMILY, own::RULE_ADD) => Ok(vec![new().u32(5, 3).message(4)]),
            _ => Err(Error::NoFamily(family)),
        }
    }

    fn events(
        &mut self,
        _family: &'static str,
        _group: &'static str,
        on_event: &mut dyn FnMut(Notice) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        for message in events() {
            let mut message = message;
            if let Some(damage) = &self.damage {
                message.attributes = damage(std::mem::take(&mut message.attributes));
            }
            if on_event(Notice::Message(message)).is_break() {
                return Ok(());
            }
        }
        let _ = on_event(Notice::Lost);
        Ok(())
    }

    fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        Ok(vec![Address {
            ifindex: 0,
            address: "192.0.2.1".parse().unwrap(),
            prefix_len: 24,
        }])
    }

    fn interfaces(&mut self) -> Result<Vec<Interface>, Error> {
        Ok(Vec::new())
    }

    fn route(&mut self, _to: IpAddr) -> Result<Route, Error> {
        Ok(Route {
            ifindex: 0,
            source: Some("192.0.2.1".parse().unwrap()),
            ..Route::default()
        })
    }

    fn sockets(&mut self, request: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        assert_eq!((request.len(), request[0], request[3]), (52, 43, 0b1011));
        Ok(match &self.damage {
            Some(damage) => sockets().into_iter().map(damage).collect(),
            None => sockets(),
        })
    }
}
