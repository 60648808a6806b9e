// SPDX-License-Identifier: GPL-2.0

//! The meaning of every field of the known messages.

use crate::vectors::tv;
use smc_proto::{
    cdc::{Cdc, ProdFlags, RawCursor, StateFlags},
    clc::{
        AcceptConfirm, AcceptV2, Decline, FirstContact, Ipv4Subnet, Ipv6Prefix, Limits, Message,
        OfferV1, OfferV2, Prefixes, Proposal, OS_LINUX,
    },
    llc::{
        v2, AddLink, AddLinkCont, AddLinkLayout, ConfirmLink, ConfirmRkey, ConfirmRkeyCont,
        DeleteLink, DeleteReason, DeleteRkey, LinkRToken, Llc, RTokenPair, Reject, TestLink,
    },
    wire::{
        AlertToken, ByteOrder, Diagnosis, Eid, Gid, LinkNum, List, Mac, MtuCode, ParseError,
        PeerId, Psn, QpNum, RKey, RToken, RmbeIndex, RmbeSize,
    },
};

const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 0x0b, 1]);
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 0x0a, 1]);

fn client_id() -> PeerId {
    PeerId::new([0xc1, 1], CLIENT_MAC)
}

fn server_id() -> PeerId {
    PeerId::new([0x53, 1], SERVER_MAC)
}

/// The link-local GID made from one of the MAC addresses in use here.
fn gid(mac: Mac) -> Gid {
    let [_, _, _, _, host, port] = mac.0;
    Gid([
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, host, port,
    ])
}

fn qp(number: u32) -> QpNum {
    QpNum::new(number).unwrap()
}

fn link(number: u8) -> LinkNum {
    LinkNum::new(number).unwrap()
}

fn psn(number: u32) -> Psn {
    Psn::new(number).unwrap()
}

fn rtoken(rkey: u32, addr: u64) -> RToken {
    RToken {
        rkey: RKey(rkey),
        addr,
    }
}

fn on_link(number: u8, rkey: u32, addr: u64) -> LinkRToken {
    LinkRToken {
        link: Some(link(number)),
        rtoken: rtoken(rkey, addr),
    }
}

fn pair(reference: u32, rkey: u32, addr: u64) -> RTokenPair {
    RTokenPair {
        reference: RKey(reference),
        new: rtoken(rkey, addr),
    }
}

fn subnet() -> Prefixes {
    Prefixes::V4(Ipv4Subnet::of([192, 0, 2, 0], 24).unwrap())
}

fn offer_v1(prefixes: Prefixes) -> OfferV1 {
    OfferV1 {
        gid: gid(CLIENT_MAC),
        mac: CLIENT_MAC,
        prefixes,
    }
}

fn host(name: &[u8]) -> [u8; 32] {
    let mut padded = [b' '; 32];
    padded[..name.len()].copy_from_slice(name);
    padded
}

const LIMITS: Limits = Limits {
    max_connections: 255,
    max_links: 2,
    features: 1,
};

#[test]
fn proposals() {
    let rfc = Proposal {
        version: 1,
        peer_id: client_id(),
        v1: Ok(offer_v1(subnet())),
        v2: Err(ParseError::NotOffered),
    };
    assert_eq!(Message::parse(&tv(2)), Ok(Message::Proposal(rfc)));

    let prefix = |n| {
        Ipv6Prefix::of(
            [0x20, 1, 0x0d, 0xb8, 0, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            64,
        )
        .unwrap()
    };
    let ipv6 = Prefixes::V6(List::from_slice(&[prefix(1), prefix(2)]));
    let expected = Proposal {
        v1: Ok(offer_v1(ipv6)),
        ..rfc
    };
    assert_eq!(Message::parse(&tv(3)), Ok(Message::Proposal(expected)));

    let linux = Proposal { version: 2, ..rfc };
    assert_eq!(Message::parse(&tv(4)), Ok(Message::Proposal(linux)));

    let both = Proposal {
        version: 2,
        v2: Ok(OfferV2 {
            eids: List::from_slice(&[Eid::new(b"LAB-EID-1").unwrap()]),
            release: 1,
            gid: Gid::from_ipv4([192, 0, 2, 20]),
            limits: Some(LIMITS),
        }),
        ..rfc
    };
    assert_eq!(Message::parse(&tv(33)), Ok(Message::Proposal(both)));
}

/// Linux as server looks for the number of prefixes there, even if none is offered.
#[test]
fn a_proposal_of_version_2_alone_has_zeros_where_prefixes_would_be_counted() {
    let Ok(Message::Proposal(both)) = Message::parse(&tv(33)) else {
        unreachable!()
    };
    let v2_only = Proposal {
        v1: Err(ParseError::NotOffered),
        ..both
    };
    let mut bytes = [0xaa; 200];
    let len = v2_only.emit(&mut bytes).unwrap();
    // No offset either, so that the count would be that of byte 47.
    assert_eq!(bytes[38..50], [0; 12]);
    assert_eq!(bytes[50..52], 28u16.to_be_bytes());
    assert_eq!(bytes[52..80], [0; 28]);
    assert_eq!(
        Message::parse(&bytes[..len]),
        Ok(Message::Proposal(v2_only))
    );
}

fn accept() -> AcceptConfirm {
    AcceptConfirm {
        first_contact: true,
        peer_id: server_id(),
        gid: gid(SERVER_MAC),
        mac: SERVER_MAC,
        qp: qp(0x123),
        rmb: rtoken(0x0001_1a2b, 0x1_2340_0000),
        index: RmbeIndex::FIRST,
        token: AlertToken(7),
        size: RmbeSize::new(2).unwrap(),
        mtu: MtuCode::new(3),
        psn: psn(0x0a_0b0c),
        v2: None,
    }
}

fn confirm() -> AcceptConfirm {
    AcceptConfirm {
        first_contact: false,
        peer_id: client_id(),
        gid: gid(CLIENT_MAC),
        mac: CLIENT_MAC,
        qp: qp(0x456),
        rmb: rtoken(0x0002_2c3d, 0xfedc_0000),
        token: AlertToken(9),
        psn: psn(0x0d_0e0f),
        ..accept()
    }
}

#[test]
fn accept_and_confirm() {
    assert_eq!(Message::parse(&tv(5)), Ok(Message::Accept(accept())));
    assert_eq!(accept().size.bytes(), 65536);
    assert_eq!(accept().first_contact_mtu().unwrap().bytes(), 1024);
    assert_eq!(Message::parse(&tv(6)), Ok(Message::Confirm(confirm())));

    let first = FirstContact {
        direct: true,
        os: OS_LINUX,
        release: 1,
        host: host(b"srv1"),
        limits: Some(LIMITS),
        gids: List::new(),
    };
    let eid = Eid::new(b"LAB-EID-1").unwrap();
    let expected = AcceptConfirm {
        gid: Gid::from_ipv4([192, 0, 2, 10]),
        v2: Some(AcceptV2 {
            eid,
            first: Some(first),
        }),
        ..accept()
    };
    assert_eq!(Message::parse(&tv(34)), Ok(Message::Accept(expected)));

    let client_gid = Gid::from_ipv4([192, 0, 2, 20]);
    let first = FirstContact {
        host: host(b"clnt1"),
        gids: List::from_slice(&[client_gid]),
        ..first
    };
    let expected = AcceptConfirm {
        first_contact: true,
        gid: client_gid,
        v2: Some(AcceptV2 {
            eid,
            first: Some(first),
        }),
        ..confirm()
    };
    assert_eq!(Message::parse(&tv(35)), Ok(Message::Confirm(expected)));
}

#[test]
fn declines() {
    let expected = Decline {
        version: 1,
        out_of_sync: false,
        peer_id: server_id(),
        diagnosis: Diagnosis::SUBNET_MISMATCH,
    };
    assert_eq!(Message::parse(&tv(7)), Ok(Message::Decline(expected)));
    let expected = Decline {
        version: 2,
        out_of_sync: true,
        peer_id: client_id(),
        diagnosis: Diagnosis::OUT_OF_SYNC,
    };
    assert_eq!(Message::parse(&tv(8)), Ok(Message::Decline(expected)));
}

#[test]
fn confirm_link() {
    let request = ConfirmLink {
        reply: false,
        no_eye_catcher: true,
        mac: SERVER_MAC,
        gid: gid(SERVER_MAC),
        qp: qp(0x123),
        link: link(1),
        user_id: [0, 0, 1, 1],
        max_links: 2,
        max_connections: 0,
    };
    assert_eq!(Llc::parse(&tv(9)), Ok(Llc::ConfirmLink(request)));
    let reply = ConfirmLink {
        reply: true,
        mac: CLIENT_MAC,
        gid: gid(CLIENT_MAC),
        qp: qp(0x456),
        user_id: [0, 0, 2, 1],
        ..request
    };
    assert_eq!(Llc::parse(&tv(10)), Ok(Llc::ConfirmLink(reply)));
}

fn add_link() -> AddLink {
    let mac = Mac([2, 0, 0, 0, 0x0a, 2]);
    AddLink {
        reply: false,
        reject: None,
        mac,
        gid: gid(mac),
        qp: qp(0x124),
        link: Some(link(2)),
        mtu: MtuCode::new(3),
        psn: psn(0x11_1213),
        layout: AddLinkLayout::Deployed,
    }
}

#[test]
fn add_link_in_all_forms() {
    let request = add_link();
    assert_eq!(Llc::parse(&tv(11)), Ok(Llc::AddLink(request)));
    let mac = Mac([2, 0, 0, 0, 0x0b, 2]);
    let reply = AddLink {
        reply: true,
        mac,
        gid: gid(mac),
        qp: qp(0x457),
        psn: psn(0x21_2223),
        ..request
    };
    assert_eq!(Llc::parse(&tv(12)), Ok(Llc::AddLink(reply)));
    assert_eq!(
        Llc::parse(&tv(13)),
        Ok(Llc::AddLink(request.rejection(Reject::NoPath)))
    );

    let base = AddLink {
        gid: Gid::from_ipv4([192, 0, 2, 11]),
        ..request
    };
    let pairs = [pair(0x0001_1a2b, 0x0001_1b2c, 0x1_2340_0000).into()];
    let ext = v2::AddLinkExt {
        direct: true,
        target_gid: Gid::from_ipv4([192, 0, 2, 20]),
        pairs: &pairs,
    };
    let expected = v2::Llc::AddLink(v2::AddLinkV2 {
        base,
        ext: Some(ext),
    });
    assert_eq!(v2::Llc::parse(&tv(36)), Ok((expected, ByteOrder::Big)));
}

#[test]
fn add_link_in_the_layout_of_the_rfc() {
    let mut bytes = tv(11);
    // The same fields two bytes earlier.
    bytes.copy_within(12..36, 10);
    bytes[34..].fill(0);
    let expected = AddLink {
        layout: AddLinkLayout::Rfc,
        ..add_link()
    };
    assert_eq!(Llc::parse(&bytes), Ok(Llc::AddLink(expected)));
    assert_eq!(Llc::AddLink(expected).emit(), bytes[..]);
}

#[test]
fn add_link_continuation() {
    let request = AddLinkCont {
        reply: false,
        link: link(2),
        left: 3,
        pairs: [
            pair(0x0001_1a2b, 0x0001_1b2c, 0x1_2340_0000),
            pair(0x0001_1a2d, 0x0001_1b2e, 0x1_2350_0000),
        ],
    };
    assert_eq!(Llc::parse(&tv(14)), Ok(Llc::AddLinkCont(request)));
    assert_eq!(request.pairs().len(), 2);
    let reply = AddLinkCont {
        reply: true,
        link: link(2),
        left: 1,
        pairs: [
            pair(0x0002_2c3d, 0x0002_2d3e, 0xfedc_0000),
            RTokenPair::default(),
        ],
    };
    assert_eq!(Llc::parse(&tv(15)), Ok(Llc::AddLinkCont(reply)));
    assert_eq!(reply.pairs().len(), 1);
}

#[test]
fn delete_link() {
    let request = DeleteLink {
        reply: false,
        all: false,
        orderly: false,
        link: Some(link(1)),
        reason: DeleteReason::PATH_LOST,
    };
    assert_eq!(Llc::parse(&tv(16)), Ok(Llc::DeleteLink(request)));
    let reply = DeleteLink {
        reply: true,
        reason: DeleteReason::DONE,
        ..request
    };
    assert_eq!(Llc::parse(&tv(17)), Ok(Llc::DeleteLink(reply)));
    let all = DeleteLink {
        all: true,
        orderly: true,
        link: None,
        reason: DeleteReason::PROGRAM,
        ..request
    };
    assert_eq!(Llc::parse(&tv(18)), Ok(Llc::DeleteLink(all)));
    let unknown = DeleteLink {
        link: Some(link(9)),
        reason: DeleteReason::NO_SUCH_LINK,
        ..reply
    };
    assert_eq!(Llc::parse(&tv(19)), Ok(Llc::DeleteLink(unknown)));
}

#[test]
fn rkeys() {
    let request = ConfirmRkey {
        others: 1,
        entries: [on_link(2, 0x0002_2d41, 0xfee0_0000), LinkRToken::default()],
        ..ConfirmRkey::request(rtoken(0x0002_2c40, 0xfee0_0000))
    };
    assert_eq!(Llc::parse(&tv(20)), Ok(Llc::ConfirmRkey(request)));
    assert_eq!(
        Llc::parse(&tv(21)),
        Ok(Llc::ConfirmRkey(request.refused(true)))
    );

    let mut entries = [LinkRToken::default(); 3];
    entries[0] = on_link(4, 0x0002_2f43, 0xfee0_0000);
    let rest = ConfirmRkeyCont {
        reply: false,
        negative: false,
        left: 1,
        entries,
    };
    assert_eq!(Llc::parse(&tv(22)), Ok(Llc::ConfirmRkeyCont(rest)));

    let delete = DeleteRkey {
        rkeys: List::from_slice(&[RKey(0x0002_2c3d), RKey(0x0002_2c40)]),
        ..DeleteRkey::default()
    };
    assert_eq!(Llc::parse(&tv(23)), Ok(Llc::DeleteRkey(delete)));
    assert_eq!(
        Llc::parse(&tv(24)),
        Ok(Llc::DeleteRkey(delete.answered(0x40)))
    );
}

#[test]
fn test_link() {
    let data = core::array::from_fn(|i| 0xa0 + i as u8);
    let request = TestLink {
        data,
        ..TestLink::default()
    };
    assert_eq!(Llc::parse(&tv(25)), Ok(Llc::TestLink(request)));
    let reply = TestLink {
        reply: true,
        ..request
    };
    assert_eq!(Llc::parse(&tv(26)), Ok(Llc::TestLink(reply)));
}

#[test]
fn request_add_link() {
    let gids = [
        Gid::from_ipv4([192, 0, 2, 20]),
        Gid::from_ipv4([192, 0, 2, 21]),
    ];
    let request = v2::Llc::RequestAddLink(v2::RequestAddLink {
        reply: false,
        gids: &gids,
    });
    assert_eq!(v2::Llc::parse(&tv(37)), Ok((request, ByteOrder::Big)));
}

#[test]
fn cdc_messages() {
    let cursor = |wrap, count| RawCursor { wrap, count };
    let cdc = |seq, token, prod, cons| Cdc {
        seq,
        token: AlertToken(token),
        prod,
        cons,
        ..Cdc::default()
    };
    assert_eq!(
        Cdc::parse(&tv(27)),
        Ok(cdc(1, 7, cursor(0, 1000), cursor(0, 0)))
    );
    assert_eq!(
        Cdc::parse(&tv(28)),
        Ok(cdc(2, 9, cursor(0, 500), cursor(0, 1000)))
    );
    let blocked = ProdFlags {
        blocked: true,
        ..ProdFlags::default()
    };
    let expected = Cdc {
        prod_flags: blocked,
        ..cdc(17, 7, cursor(1, 464), cursor(0, 60000))
    };
    assert_eq!(Cdc::parse(&tv(29)), Ok(expected));
    let urgent = ProdFlags {
        urgent_pending: true,
        urgent_present: true,
        ..ProdFlags::default()
    };
    let expected = Cdc {
        prod_flags: urgent,
        ..cdc(18, 7, cursor(1, 1500), cursor(1, 1000))
    };
    assert_eq!(Cdc::parse(&tv(30)), Ok(expected));
    assert_eq!(
        Cdc::parse(&tv(31)),
        Ok(Cdc::failover_validation(AlertToken(7), 18))
    );
    let closed = StateFlags {
        done: true,
        closed: true,
        aborted: false,
    };
    let expected = Cdc {
        state_flags: closed,
        ..cdc(19, 9, cursor(0, 500), cursor(1, 1500))
    };
    assert_eq!(Cdc::parse(&tv(32)), Ok(expected));
}

/// A bit of a byte of flags and how to ask for it.
type Flag<T> = (u8, fn(&T) -> bool);

#[test]
fn every_flag_of_a_cdc_message() {
    let mut bytes = tv(27);
    let prod: [Flag<ProdFlags>; 5] = [
        (0x80, |flags| flags.blocked),
        (0x40, |flags| flags.urgent_pending),
        (0x20, |flags| flags.urgent_present),
        (0x10, |flags| flags.update_requested),
        (0x08, |flags| flags.failover),
    ];
    for (bit, flag) in prod {
        bytes[24] = bit;
        let flags = Cdc::parse(&bytes).unwrap().prod_flags;
        assert!(flag(&flags));
        assert_eq!(prod.iter().filter(|(_, other)| other(&flags)).count(), 1);
    }
    bytes[24] = 0x07;
    assert_eq!(Cdc::parse(&bytes).unwrap().prod_flags, ProdFlags::default());
    let state: [Flag<StateFlags>; 3] = [
        (0x80, |flags| flags.done),
        (0x40, |flags| flags.closed),
        (0x20, |flags| flags.aborted),
    ];
    for (bit, flag) in state {
        bytes[25] = bit;
        let flags = Cdc::parse(&bytes).unwrap().state_flags;
        assert!(flag(&flags));
        assert_eq!(state.iter().filter(|(_, other)| other(&flags)).count(), 1);
    }
    bytes[25] = 0x1f;
    assert_eq!(
        Cdc::parse(&bytes).unwrap().state_flags,
        StateFlags::default()
    );
}

#[test]
fn texts_for_people() {
    let text = |number| Message::parse(&tv(number)).unwrap().to_string();
    assert_eq!(
        text(2),
        "Proposal: v1 peer c101@02:00:00:00:0b:01, SMC-Rv1 gid \
         fe80:0000:0000:0000:0000:00ff:fe00:0b01 mac 02:00:00:00:0b:01 subnet 192.0.2.0/24, \
         no SMC-Rv2: SMC-R is not offered"
    );
    assert_eq!(
        text(7),
        "Decline: peer 5301@02:00:00:00:0a:01 0x03070000 (IP subnet or prefix mismatch)"
    );
    let text = |number| Llc::parse(&tv(number)).unwrap().to_string();
    assert_eq!(text(18), "DELETE LINK request all links, orderly, program");
    assert_eq!(
        text(21),
        "CONFIRM RKEY reply 0x00022c40:0x00000000fee00000 others 1, \
         link 2 0x00022d41:0x00000000fee00000, refused for now"
    );
    let cdc = Cdc::parse(&tv(29)).unwrap().to_string();
    assert_eq!(cdc, "CDC 17 token 0x00000007 prod 1:464 cons 0:60000 B");
    let gid = gid(CLIENT_MAC);
    assert_eq!(gid.text().as_slice(), gid.to_string().as_bytes());
}

#[test]
fn sizes_and_codes() {
    assert_eq!(RmbeSize::MIN.bytes(), 16 << 10);
    assert_eq!(RmbeSize::MAX_SEND.bytes(), 512 << 10);
    assert_eq!(RmbeSize::MAX.bytes(), 512 << 20);
    assert_eq!(RmbeSize::new(16), None);
    for code in 0..16 {
        let size = RmbeSize::new(code).unwrap();
        assert_eq!(size.code(), code);
        assert_eq!(RmbeSize::for_bytes(size.bytes()), size);
        assert_eq!(RmbeSize::for_bytes(size.bytes() - 1), size);
        let next = RmbeSize::new((code + 1).min(15)).unwrap();
        assert_eq!(RmbeSize::for_bytes(size.bytes() + 1), next);
        assert_eq!(size.smaller(), code.checked_sub(1).and_then(RmbeSize::new));
    }
    assert_eq!(RmbeSize::for_bytes(0), RmbeSize::MIN);
    assert_eq!(RmbeSize::for_bytes(u32::MAX), RmbeSize::MAX);
    let index = RmbeIndex::new(255).unwrap();
    assert_eq!(index.offset(RmbeSize::MAX), 254 * (512 << 20));
    assert_eq!(RmbeIndex::FIRST.offset(RmbeSize::MAX), 0);
    for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        assert_eq!(MtuCode::new(code).unwrap().bytes(), bytes);
    }
    assert!([0, 6, 15, 255]
        .into_iter()
        .all(|code| MtuCode::new(code).is_none()));
    assert_eq!(QpNum::new(1 << 24), None);
    assert_eq!(Psn::truncate(u32::MAX), psn(0xff_ffff));
}

#[test]
fn the_largest_size_that_is_sent() {
    for (wanted, code) in [
        (0, 0),
        (16 << 10, 0),
        ((16 << 10) + 1, 1),
        (512 << 10, 5),
        ((512 << 10) + 1, 5),
        (u32::MAX, 5),
    ] {
        assert_eq!(RmbeSize::for_buffer(wanted).code(), code, "{wanted}");
    }
}

#[test]
fn the_smaller_mtu_is_taken_again() {
    let mtu = |code| MtuCode::new(code).unwrap();
    for own in 1..=5 {
        for peers in 1..=5 {
            let agreed = mtu(own).agreed(mtu(peers));
            assert_eq!(agreed.code(), own.min(peers));
            assert_eq!(mtu(peers).agreed(mtu(own)), agreed);
            // The peer's message has had the smaller one already.
            assert_eq!(mtu(own).agreed(agreed), agreed);
        }
    }
}

#[test]
fn enterprise_ids() {
    for good in [&b"A"[..], b"0.B-C", b"LAB-EID-1", &[b'Z'; 32]] {
        assert_eq!(Eid::new(good).unwrap().name(), good);
    }
    for bad in [
        &b""[..],
        b"-A",
        b".A",
        b"a",
        b"A B",
        b"A_",
        b"A ",
        b" A",
        &[b'Z'; 33],
    ] {
        assert_eq!(Eid::new(bad), None);
    }
}

#[test]
fn subnets_match_by_network_and_length() {
    let ours = subnet();
    assert!(ours.matches_ipv4([192, 0, 2, 77], 24));
    assert!(!ours.matches_ipv4([192, 0, 2, 77], 25));
    assert!(!ours.matches_ipv4([192, 0, 3, 77], 24));
    assert!(!ours.matches_ipv4([192, 0, 2, 77], 33));
    assert!(!ours.matches_ipv6([0; 16], 24));
    let Ok(Message::Proposal(proposal)) = Message::parse(&tv(3)) else {
        unreachable!()
    };
    let prefixes = proposal.smcr_v1().unwrap().prefixes;
    let mut addr = [0x20, 1, 0x0d, 0xb8, 0, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert!(prefixes.matches_ipv6(addr, 64));
    assert!(!prefixes.matches_ipv6(addr, 48));
    assert!(!prefixes.matches_ipv6(addr, 129));
    assert!(!prefixes.matches_ipv4([192, 0, 2, 77], 24));
    addr[5] = 3;
    assert!(!prefixes.matches_ipv6(addr, 64));
    // That every interface has one says nothing.
    let mut link_local = [0; 16];
    link_local[..2].copy_from_slice(&[0xfe, 0x80]);
    let prefix = Ipv6Prefix::of(link_local, 64).unwrap();
    assert!(!Prefixes::V6(List::from_slice(&[prefix])).matches_ipv6(link_local, 64));
    let any = Ipv4Subnet::of([1, 2, 3, 4], 0).unwrap();
    assert_eq!(any.network(), [0; 4]);
    assert_eq!(
        Ipv6Prefix::of([0xff; 16], 128).unwrap().prefix(),
        [0xff; 16]
    );
    assert_eq!(Ipv6Prefix::of([0xff; 16], 0).unwrap().prefix(), [0; 16]);
}

#[test]
fn diagnoses_are_in_order_and_have_texts() {
    assert!(Diagnosis::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(Diagnosis::ALL.iter().all(|code| code.text().is_some()));
    assert_eq!(Diagnosis(0x0203_0000).to_string(), "0x02030000");
    assert_eq!(
        Diagnosis::OUT_OF_SYNC.to_string(),
        "0x04000000 (out of sync)"
    );
}
