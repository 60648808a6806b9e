// SPDX-License-Identifier: GPL-2.0

//! Any bytes at all: no parser panics, and what it accepts it can write and read again.

use crate::{
    strategies::config,
    vectors::{all, is_clc, rewrite},
};
use proptest::{collection::vec, prelude::*};
use smc_proto::{
    cdc::Cdc,
    clc::{Assembler, Message, Proposal, HEADER_LEN},
    llc::{v2, Llc},
    tcp_option,
};

/// What a parser accepts becomes, written once, bytes that are read as the same and written the
/// same.
fn settles(bytes: &[u8]) {
    if let Ok(once) = rewrite(bytes) {
        if !is_clc(bytes) || worth_sending(bytes) {
            assert_eq!(rewrite(&once), Ok(once.clone()), "{bytes:02x?}");
        }
    }
}

/// A Proposal without a valid offer is read, so that it can be declined, but never written.
fn worth_sending(bytes: &[u8]) -> bool {
    Proposal::parse(bytes).map_or(true, |proposal| proposal.v1.is_ok() || proposal.v2.is_ok())
}

fn all_parsers(bytes: &[u8]) {
    let _ = Message::parse(bytes);
    let _ = Llc::parse(bytes);
    let _ = v2::Llc::parse(bytes);
    let _ = Cdc::parse(bytes);
    tcp_option::find(bytes);
    let mut assembler = Assembler::new();
    let mut rest = bytes;
    while let Some((now, later)) = rest.split_at_checked(assembler.want()) {
        if now.is_empty() || assembler.push(now).is_err() {
            break;
        }
        rest = later;
    }
    if !bytes.is_empty() && (is_clc(bytes) || bytes[0] != 0xe2) {
        settles(bytes);
    }
}

#[test]
fn every_bit_of_every_known_message() {
    for (_, bytes) in all() {
        // Each bit takes an interpreter some milliseconds.
        let step = if cfg!(miri) { 41 } else { 1 };
        for bit in (0..bytes.len() * 8).step_by(step) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            all_parsers(&flipped);
        }
    }
}

#[test]
fn every_byte_of_every_known_message_with_extreme_values() {
    for (_, bytes) in all() {
        let step = if cfg!(miri) { 13 } else { 1 };
        for at in (0..bytes.len()).step_by(step) {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                all_parsers(&changed);
            }
        }
    }
}

#[test]
fn known_messages_cut_off_at_every_byte() {
    for (name, bytes) in all().skip(1) {
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            all_parsers(cut);
            if is_clc(&bytes) {
                assert!(Message::parse(cut).is_err(), "{name} at {len}");
            } else {
                assert!(Llc::parse(cut).is_err(), "{name} at {len}");
                assert!(Cdc::parse(cut).is_err(), "{name} at {len}");
                assert!(v2::Llc::parse(cut).is_err(), "{name} at {len}");
            }
        }
    }
}

/// A CLC header that promises as many bytes as there are, and a trailer.
fn framed(kind: u8, version: u8, middle: &[u8]) -> Vec<u8> {
    let eye_catcher = [0xe2, 0xd4, 0xc3, 0xd9];
    let len = (HEADER_LEN + middle.len() + 4) as u16;
    let [a, b] = len.to_be_bytes();
    [
        &eye_catcher[..],
        &[kind, a, b, version],
        middle,
        &eye_catcher,
    ]
    .concat()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        all_parsers(&bytes);
    }

    #[test]
    fn any_bytes_of_the_right_kind(first in any::<u8>(), mut bytes in vec(any::<u8>(), 44..120)) {
        bytes[0] = first;
        bytes[1] = 44;
        all_parsers(&bytes);
        all_parsers(&bytes[..44]);
        bytes[1] = 0;
        bytes[2] = bytes.len() as u8;
        all_parsers(&bytes);
    }

    #[test]
    fn any_bytes_in_a_frame(
        kind in 1..=4u8,
        version in prop_oneof![0x10..=0x2fu8, any::<u8>()],
        mut middle in vec(prop_oneof![Just(0u8), any::<u8>()], 0..700),
        growth in prop_oneof![Just(0u16), Just(40), any::<u16>()],
        extension in 0..200u16,
    ) {
        if let Some(field) = middle.get_mut(30..32) {
            field.copy_from_slice(&growth.to_be_bytes());
        }
        if let Some(field) = middle.get_mut(42..44) {
            field.copy_from_slice(&extension.to_be_bytes());
        }
        all_parsers(&framed(kind, version, &middle));
    }
}
