// SPDX-License-Identifier: GPL-2.0

//! What is written is read back as it was.

use crate::strategies::{
    add_link, cdc, clc, config, confirm_link, confirm_rkey, delete_link, gid, llc, rkey,
    rtoken_pair, test_link,
};
use proptest::{collection::vec, option, prelude::*};
use smc_proto::{
    cdc::Cdc,
    clc::{self, Message},
    llc::{self, v2, AddLinkLayout, Llc},
    wire::ByteOrder,
};

fn order() -> impl Strategy<Value = ByteOrder> {
    prop_oneof![Just(ByteOrder::Big), Just(ByteOrder::Little)]
}

/// Writes and reads a version 2 message; returns its length.
fn v2_round_trip(message: v2::Llc<'_>, order: ByteOrder) -> usize {
    let mut out = vec![0xaa; v2::MAX_LEN];
    let len = message.emit(order, &mut out).unwrap();
    let (read, read_order) = v2::Llc::parse(&out[..len]).unwrap();
    assert_eq!(read, message);
    // A length may read alike in both orders, but 44 does not.
    if len == 44 {
        assert_eq!(read_order, order);
    }
    len
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn clc_messages(message in clc()) {
        let mut out = [0xaa; clc::MAX_EMIT];
        let len = message.emit(&mut out).unwrap();
        prop_assert_eq!(Message::parse(&out[..len]), Ok(message));
        prop_assert!(!message.to_string().is_empty());
        prop_assert_eq!(message.emit(&mut out[..len - 1]), None);
    }

    #[test]
    fn llc_messages(message in llc()) {
        let bytes = message.emit();
        prop_assert_eq!(Llc::parse(&bytes), Ok(message));
        prop_assert_eq!(llc::kind(bytes[0]), llc::Kind::Llc(message.kind()));
        prop_assert_eq!(bytes[3] & 0x80 != 0, message.is_reply());
        prop_assert!(!message.to_string().is_empty());
    }

    #[test]
    fn cdc_messages(message in cdc()) {
        prop_assert_eq!(Cdc::parse(&message.emit()), Ok(message));
        prop_assert!(!message.to_string().is_empty());
    }

    #[test]
    fn short_v2_messages(
        (order, pick) in (order(), 0..4),
        mut confirm_link in confirm_link(),
        max in (1..=8u8, any::<u8>()),
        delete_link in delete_link(),
        confirm_rkey in confirm_rkey(),
        mut test_link in test_link(),
    ) {
        (confirm_link.max_links, confirm_link.max_connections) = max;
        let message = match pick {
            0 => v2::Llc::ConfirmLink(confirm_link),
            1 => v2::Llc::DeleteLink(delete_link),
            2 => v2::Llc::ConfirmRkey(confirm_rkey),
            _ => {
                test_link.unused.byte = 0;
                v2::Llc::TestLink(test_link)
            }
        };
        prop_assert_eq!(v2_round_trip(message, order), 44);
    }

    #[test]
    fn v2_add_link(
        order in order(),
        mut base in add_link(),
        ext in option::of((any::<bool>(), gid(), vec(rtoken_pair(), 0..40))),
    ) {
        base.layout = AddLinkLayout::Deployed;
        let ext = ext.filter(|_| base.reject.is_none());
        let (direct, target_gid, pairs) = ext.clone().unwrap_or_default();
        let pairs: Vec<_> = pairs.into_iter().map(v2::RTokenPairWire::from).collect();
        let len = 44 + if ext.is_some() { 28 + pairs.len() * 16 } else { 0 };
        let ext = ext.map(|_| v2::AddLinkExt { direct, target_gid, pairs: &pairs });
        let message = v2::Llc::AddLink(v2::AddLinkV2 { base, ext });
        prop_assert_eq!(v2_round_trip(message, order), len);
    }

    #[test]
    fn v2_request_add_link(order in order(), reply: bool, gids in vec(gid(), 0..20)) {
        let message = v2::Llc::RequestAddLink(v2::RequestAddLink { reply, gids: &gids });
        prop_assert_eq!(v2_round_trip(message, order), (28 + gids.len() * 16).max(44));
    }

    #[test]
    fn v2_delete_rkey(
        (order, reply, negative) in (order(), any::<bool>(), any::<bool>()),
        errors: u8,
        rkeys in vec(rkey(), 0..=255),
    ) {
        let rkeys: Vec<_> = rkeys.into_iter().map(v2::RKeyWire::from).collect();
        let errors = if negative { errors } else { 0 };
        let message =
            v2::Llc::DeleteRkey(v2::DeleteRkeyV2 { reply, negative, errors, rkeys: &rkeys });
        prop_assert_eq!(v2_round_trip(message, order), (8 + rkeys.len() * 4).max(44));
    }
}

#[test]
fn a_list_too_long_for_its_counter_is_not_written() {
    let mut out = vec![0; 10_000];
    let gids = [smc_proto::wire::Gid::default(); 256];
    let message = v2::Llc::RequestAddLink(v2::RequestAddLink {
        reply: false,
        gids: &gids,
    });
    assert_eq!(message.emit(ByteOrder::Big, &mut out), None);
    let pair = v2::RTokenPairWire::from(llc::RTokenPair::default());
    let Ok(llc::Llc::AddLink(base)) = Llc::parse(&crate::vectors::tv(11)) else {
        unreachable!()
    };
    for (count, len) in [(507, Some(8184)), (508, None)] {
        let pairs = vec![pair; count];
        let target_gid = gids[0];
        let ext = v2::AddLinkExt {
            direct: false,
            target_gid,
            pairs: &pairs,
        };
        let message = v2::Llc::AddLink(v2::AddLinkV2 {
            base,
            ext: Some(ext),
        });
        assert_eq!(message.emit(ByteOrder::Big, &mut out), len);
    }
}
