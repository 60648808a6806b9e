// SPDX-License-Identifier: GPL-2.0

//! Generators of messages.

use proptest::{
    array::uniform32,
    collection::vec,
    option,
    prelude::*, //
};
use smc_proto::{
    cdc::{Cdc, ProdFlags, RawCursor, StateFlags},
    clc::{
        AcceptConfirm, AcceptV2, Decline, FirstContact, Ipv4Subnet, Ipv6Prefix, Limits, Message,
        OfferV1, OfferV2, Prefixes, Proposal,
    },
    llc::{
        AddLink, AddLinkCont, AddLinkLayout, ConfirmLink, ConfirmRkey, ConfirmRkeyCont, DeleteLink,
        DeleteReason, DeleteRkey, LinkRToken, Llc, RTokenPair, Reject, TestLink, Unused,
    },
    wire::{
        AlertToken, Diagnosis, Eid, Gid, LinkNum, List, Mac, MtuCode, ParseError, PeerId, Psn,
        QpNum, RKey, RToken, RmbeIndex, RmbeSize,
    },
};

/// As many cases as an interpreter can bear, or the usual number.
pub fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
}

fn port_mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(|mut mac| {
        mac[0] &= 0xfe;
        mac[5] |= 1;
        Mac(mac)
    })
}

pub fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn port_gid() -> impl Strategy<Value = Gid> {
    gid().prop_filter("zero", |gid| !gid.is_zero())
}

fn v4_gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 4]>().prop_map(Gid::from_ipv4)
}

fn peer_id() -> impl Strategy<Value = PeerId> {
    (1..=u64::MAX).prop_map(|id| PeerId(id.to_be_bytes()))
}

pub fn qp() -> impl Strategy<Value = QpNum> {
    (0u32..1 << 24).prop_map(|qp| QpNum::new(qp).unwrap())
}

fn usable_qp() -> impl Strategy<Value = QpNum> {
    (2u32..1 << 24).prop_map(|qp| QpNum::new(qp).unwrap())
}

fn psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn::truncate)
}

fn link() -> impl Strategy<Value = LinkNum> {
    (1..=255u8).prop_map(|link| LinkNum::new(link).unwrap())
}

fn mtu() -> impl Strategy<Value = MtuCode> {
    (1..=5u8).prop_map(|mtu| MtuCode::new(mtu).unwrap())
}

pub fn rkey() -> impl Strategy<Value = RKey> {
    any::<u32>().prop_map(RKey)
}

fn rtoken() -> impl Strategy<Value = RToken> {
    (rkey(), any::<u64>()).prop_map(|(rkey, addr)| RToken { rkey, addr })
}

fn eid() -> impl Strategy<Value = Eid> {
    uniform32(any::<u8>()).prop_map(Eid)
}

fn limits(max_links: u8) -> impl Strategy<Value = Limits> {
    (16..=255u8, 1..=max_links, any::<u16>()).prop_map(|(max_connections, max_links, features)| {
        Limits {
            max_connections,
            max_links,
            features,
        }
    })
}

/// Release and what depends on it.
fn release(max_links: u8) -> impl Strategy<Value = (u8, Option<Limits>)> {
    (0..=15u8, limits(max_links))
        .prop_map(|(release, limits)| (release, (release > 0).then_some(limits)))
}

fn prefixes() -> impl Strategy<Value = Prefixes> {
    let v4 = (any::<[u8; 4]>(), 0..=32u8)
        .prop_map(|(addr, len)| Prefixes::V4(Ipv4Subnet::of(addr, len).unwrap()));
    let prefix =
        (any::<[u8; 16]>(), 0..=128u8).prop_map(|(addr, len)| Ipv6Prefix::of(addr, len).unwrap());
    let v6 = vec(prefix, 1..=8).prop_map(|list| Prefixes::V6(List::from_slice(&list)));
    prop_oneof![v4, v6]
}

fn offer_v1() -> impl Strategy<Value = OfferV1> {
    (port_gid(), port_mac(), prefixes()).prop_map(|(gid, mac, prefixes)| OfferV1 {
        gid,
        mac,
        prefixes,
    })
}

fn offer_v2() -> impl Strategy<Value = OfferV2> {
    let gid = prop_oneof![v4_gid(), port_gid()];
    (vec(eid(), 1..=8), release(255), gid).prop_map(|(eids, (release, limits), gid)| OfferV2 {
        eids: List::from_slice(&eids),
        release,
        gid,
        limits,
    })
}

pub fn proposal() -> impl Strategy<Value = Proposal> {
    let offers = prop_oneof![
        (Just(1u8), offer_v1().prop_map(Some), Just(None)),
        (2..=15u8, option::of(offer_v1()), offer_v2().prop_map(Some)),
        (2..=15u8, offer_v1().prop_map(Some), Just(None)),
    ];
    (peer_id(), offers).prop_map(|(peer_id, (version, v1, v2))| Proposal {
        version,
        peer_id,
        v1: v1.ok_or(ParseError::NotOffered),
        v2: v2.ok_or(ParseError::NotOffered),
    })
}

fn first_contact(gids: usize) -> impl Strategy<Value = FirstContact> {
    (
        any::<bool>(),
        0..=15u8,
        release(2),
        uniform32(any::<u8>()),
        vec(gid(), 0..=gids),
    )
        .prop_map(|(direct, os, (release, limits), host, gids)| FirstContact {
            direct,
            os,
            release,
            host,
            limits,
            gids: List::from_slice(&gids),
        })
}

/// An Accept for `gids` of 0, a Confirm for 8.
fn accept_confirm(gids: usize) -> impl Strategy<Value = AcceptConfirm> {
    let v2 =
        (eid(), option::of(first_contact(gids))).prop_map(|(eid, first)| AcceptV2 { eid, first });
    let port = (peer_id(), port_gid(), port_mac(), usable_qp());
    let buffer = (rkey(), 0..u64::MAX >> 1, 1..=255u8, any::<u32>(), 0..16u8);
    let link = (any::<bool>(), mtu(), psn(), option::of(v2));
    (port, buffer, link).prop_map(
        |((peer_id, gid, mac, qp), (rkey, addr, index, token, size), (first, mtu, psn, v2))| {
            AcceptConfirm {
                first_contact: v2.map_or(first, |v2| v2.first.is_some()),
                peer_id,
                gid,
                mac,
                qp,
                rmb: RToken { rkey, addr },
                index: RmbeIndex::new(index).unwrap(),
                token: AlertToken(token),
                size: RmbeSize::new(size).unwrap(),
                mtu: Some(mtu),
                psn,
                v2,
            }
        },
    )
}

fn decline() -> impl Strategy<Value = Decline> {
    (1..=2u8, any::<bool>(), any::<[u8; 8]>(), any::<u32>()).prop_map(
        |(version, out_of_sync, peer_id, diagnosis)| Decline {
            version,
            out_of_sync,
            peer_id: PeerId(peer_id),
            diagnosis: Diagnosis(diagnosis),
        },
    )
}

pub fn clc() -> impl Strategy<Value = Message> {
    prop_oneof![
        proposal().prop_map(Message::Proposal),
        accept_confirm(0).prop_map(Message::Accept),
        accept_confirm(8).prop_map(Message::Confirm),
        decline().prop_map(Message::Decline),
    ]
}

fn max_links() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), 2..=8u8]
}

pub fn confirm_link() -> impl Strategy<Value = ConfirmLink> {
    let flags = (any::<bool>(), any::<bool>());
    (
        flags,
        mac(),
        gid(),
        qp(),
        link(),
        any::<[u8; 4]>(),
        max_links(),
    )
        .prop_map(
            |((reply, no_eye_catcher), mac, gid, qp, link, user_id, max_links)| ConfirmLink {
                reply,
                no_eye_catcher,
                mac,
                gid,
                qp,
                link,
                user_id,
                max_links,
                max_connections: 0,
            },
        )
}

fn reject() -> impl Strategy<Value = Reject> {
    prop_oneof![
        Just(Reject::NoPath),
        Just(Reject::Mtu),
        prop_oneof![Just(0), 3..=15u8].prop_map(Reject::Other),
    ]
}

pub fn add_link() -> impl Strategy<Value = AddLink> {
    let port = (mac(), gid(), qp());
    let rest = (option::of(link()), option::of(mtu()), psn());
    (
        any::<bool>(),
        option::of(reject()),
        port,
        rest,
        any::<bool>(),
    )
        .prop_map(
            |(reply, reject, (mac, gid, qp), (link, mtu, psn), rfc)| AddLink {
                reply,
                reject: reject.filter(|_| reply),
                mac,
                gid,
                qp,
                link,
                mtu,
                psn,
                // The receiver tells the layouts apart by these bytes.
                layout: if rfc && gid.0[..2] != [0, 0] {
                    AddLinkLayout::Rfc
                } else {
                    AddLinkLayout::Deployed
                },
            },
        )
}

pub fn rtoken_pair() -> impl Strategy<Value = RTokenPair> {
    (rkey(), rtoken()).prop_map(|(reference, new)| RTokenPair { reference, new })
}

fn add_link_cont() -> impl Strategy<Value = AddLinkCont> {
    (
        any::<bool>(),
        link(),
        any::<u8>(),
        [rtoken_pair(), rtoken_pair()],
    )
        .prop_map(|(reply, link, left, pairs)| AddLinkCont {
            reply,
            link,
            left,
            pairs: valid(pairs, left),
        })
}

pub fn delete_link() -> impl Strategy<Value = DeleteLink> {
    (any::<[bool; 3]>(), option::of(link()), any::<u32>()).prop_map(
        |([reply, all, orderly], link, reason)| DeleteLink {
            reply,
            all,
            orderly,
            link,
            reason: DeleteReason(reason),
        },
    )
}

fn entry() -> impl Strategy<Value = LinkRToken> {
    (option::of(link()), rtoken()).prop_map(|(link, rtoken)| LinkRToken { link, rtoken })
}

/// Clears what is beyond the first `count`.
fn valid<T: Default + Copy, const N: usize>(mut entries: [T; N], count: u8) -> [T; N] {
    entries
        .iter_mut()
        .skip(count.into())
        .for_each(|entry| *entry = T::default());
    entries
}

/// Mostly counts at which something changes.
fn count() -> impl Strategy<Value = u8> {
    prop_oneof![0..=4u8, any::<u8>()]
}

pub fn confirm_rkey() -> impl Strategy<Value = ConfirmRkey> {
    (any::<[bool; 3]>(), rtoken(), count(), [entry(), entry()]).prop_map(
        |([reply, negative, retry], rtoken, others, entries)| ConfirmRkey {
            reply,
            negative,
            retry: negative && retry,
            rtoken,
            others,
            entries: valid(entries, others),
        },
    )
}

fn confirm_rkey_cont() -> impl Strategy<Value = ConfirmRkeyCont> {
    (any::<[bool; 2]>(), count(), [entry(), entry(), entry()]).prop_map(
        |([reply, negative], left, entries)| ConfirmRkeyCont {
            reply,
            negative,
            left,
            entries: valid(entries, left),
        },
    )
}

fn delete_rkey() -> impl Strategy<Value = DeleteRkey> {
    (any::<[bool; 2]>(), any::<u8>(), vec(rkey(), 0..=8)).prop_map(
        |([reply, negative], error_mask, rkeys)| DeleteRkey {
            reply,
            negative,
            error_mask: if negative { error_mask } else { 0 },
            rkeys: List::from_slice(&rkeys),
        },
    )
}

pub fn test_link() -> impl Strategy<Value = TestLink> {
    (
        any::<bool>(),
        any::<[u8; 16]>(),
        any::<(u8, u8, [u8; 24])>(),
    )
        .prop_map(|(reply, data, (byte, flags, tail))| TestLink {
            reply,
            data,
            unused: Unused {
                byte,
                flags: flags & 0x7f,
                tail,
            },
        })
}

pub fn llc() -> impl Strategy<Value = Llc> {
    prop_oneof![
        confirm_link().prop_map(Llc::ConfirmLink),
        add_link().prop_map(Llc::AddLink),
        add_link_cont().prop_map(Llc::AddLinkCont),
        delete_link().prop_map(Llc::DeleteLink),
        confirm_rkey().prop_map(Llc::ConfirmRkey),
        confirm_rkey_cont().prop_map(Llc::ConfirmRkeyCont),
        delete_rkey().prop_map(Llc::DeleteRkey),
        test_link().prop_map(Llc::TestLink),
    ]
}

fn cursor() -> impl Strategy<Value = RawCursor> {
    (any::<u16>(), any::<u32>()).prop_map(|(wrap, count)| RawCursor { wrap, count })
}

pub fn cdc() -> impl Strategy<Value = Cdc> {
    let flags = (any::<[bool; 5]>(), any::<[bool; 3]>());
    (any::<u16>(), any::<u32>(), cursor(), cursor(), flags).prop_map(
        |(seq, token, prod, cons, (prod_flags, state_flags))| {
            let [blocked, urgent_pending, urgent_present, update_requested, failover] = prod_flags;
            let [done, closed, aborted] = state_flags;
            Cdc {
                seq,
                token: AlertToken(token),
                prod,
                cons,
                prod_flags: ProdFlags {
                    blocked,
                    urgent_pending,
                    urgent_present,
                    update_requested,
                    failover,
                },
                state_flags: StateFlags {
                    done,
                    closed,
                    aborted,
                },
            }
        },
    )
}
