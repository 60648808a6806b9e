// SPDX-License-Identifier: GPL-2.0

//! Messages that arrive in pieces, with application data behind them.

use crate::{
    strategies::{clc, config},
    vectors::{all, is_clc, tv},
};
use proptest::{collection::vec, prelude::*};
use smc_proto::{
    clc::{Assembler, Message, MAX_EMIT, MAX_KEEP},
    wire::{ParseError, Reaction},
};

/// A TCP connection as the reader sees it: reads return at most as much as was asked for.
struct Stream<'a> {
    bytes: &'a [u8],
}

impl<'a> Stream<'a> {
    fn read(&mut self, want: usize, available: usize) -> &'a [u8] {
        let (now, later) = self
            .bytes
            .split_at(want.min(available).min(self.bytes.len()));
        self.bytes = later;
        now
    }
}

/// Reads one message from the stream, in pieces of at most these sizes.
fn read(stream: &mut Stream<'_>, sizes: &[usize]) -> Result<Message, ParseError> {
    let mut assembler = Assembler::new();
    assert!(assembler.is_empty());
    for size in sizes.iter().cycle() {
        let piece = stream.read(assembler.want(), *size);
        if let Some(message) = assembler.push(piece)? {
            assert_eq!(assembler.want(), 0);
            assert_eq!(assembler.header().unwrap().kind, message.kind());
            assert_eq!(assembler.push(b"x"), Err(ParseError::Overrun));
            return Ok(message);
        }
        assert_ne!(assembler.want(), 0);
    }
    unreachable!()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pieces_of_any_size_and_nothing_of_the_data(
        messages in vec(clc(), 1..4),
        sizes in vec(1..200usize, 1..10),
        data in vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = Vec::new();
        for message in &messages {
            let mut out = [0; MAX_EMIT];
            let len = message.emit(&mut out).unwrap();
            bytes.extend_from_slice(&out[..len]);
        }
        bytes.extend_from_slice(&data);
        let mut stream = Stream { bytes: &bytes };
        for message in &messages {
            prop_assert_eq!(read(&mut stream, &sizes), Ok(*message));
        }
        prop_assert_eq!(stream.bytes, &data[..]);
    }

    #[test]
    fn long_proposals_are_read_to_their_end(
        len in 600..=65535usize,
        size in 1..3000usize,
    ) {
        let (bytes, expected) = long_proposal(len);
        prop_assert_eq!(Message::parse(&bytes), Ok(expected));
        let mut with_data = bytes.clone();
        with_data.extend_from_slice(b"data");
        let mut stream = Stream { bytes: &with_data };
        prop_assert_eq!(read(&mut stream, &[size]), Ok(expected));
        prop_assert_eq!(stream.bytes, b"data");

        let mut damaged = bytes;
        damaged[len - 1] ^= 1;
        let mut stream = Stream { bytes: &damaged };
        prop_assert_eq!(read(&mut stream, &[size]), Err(ParseError::Trailer));
    }
}

/// A Proposal with so much at its end that not all of it is kept.
fn long_proposal(len: usize) -> (Vec<u8>, Message) {
    let mut bytes = tv(33);
    let expected = Message::parse(&bytes).unwrap();
    let trailer = bytes.split_off(bytes.len() - 4);
    bytes.resize(len - 4, 0x5a);
    bytes.extend_from_slice(&trailer);
    bytes[5..7].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
    (bytes, expected)
}

#[test]
fn lengths_around_what_is_kept() {
    for len in MAX_KEEP - 5..=MAX_KEEP + 9 {
        let (bytes, expected) = long_proposal(len);
        for size in [1, 3, 4, 5, 651, 652, 1000] {
            let mut stream = Stream { bytes: &bytes };
            assert_eq!(read(&mut stream, &[size]), Ok(expected), "{len} {size}");
        }
    }
}

#[test]
fn a_long_list_in_a_confirm() {
    let mut bytes = tv(35);
    let trailer = bytes.split_off(176);
    bytes.resize(160 + 255 * 16, 0x11);
    bytes.extend_from_slice(&trailer);
    bytes[156] = 255;
    let len = u16::try_from(bytes.len()).unwrap();
    bytes[5..7].copy_from_slice(&len.to_be_bytes());
    let message = read(&mut Stream { bytes: &bytes }, &[100]).unwrap();
    assert_eq!(Message::parse(&bytes), Ok(message));
    let Message::Confirm(confirm) = message else {
        unreachable!()
    };
    assert_eq!(confirm.v2.unwrap().first.unwrap().gids.len(), 8);
    bytes.drain(200..216);
    let len = u16::try_from(bytes.len()).unwrap();
    bytes[5..7].copy_from_slice(&len.to_be_bytes());
    let error = read(&mut Stream { bytes: &bytes }, &[100]).unwrap_err();
    assert_eq!(error.reaction(), Reaction::Reset);
}

#[test]
fn exactly_what_belongs_to_the_message_is_wanted() {
    for (name, bytes) in all().filter(|(_, bytes)| is_clc(bytes)) {
        let mut assembler = Assembler::new();
        for (at, byte) in bytes.iter().enumerate() {
            let end = if at < 8 { 8 } else { bytes.len() };
            assert_eq!(assembler.want(), end - at, "{name}");
            let message = assembler.push(&[*byte]).unwrap();
            assert_eq!(message.is_some(), at + 1 == bytes.len(), "{name}");
        }
    }
}

#[test]
fn more_than_wanted_is_an_error() {
    let bytes = tv(7);
    assert_eq!(Assembler::new().push(&bytes), Err(ParseError::Overrun));
    let mut assembler = Assembler::new();
    assert_eq!(assembler.push(&bytes[..8]), Ok(None));
    let mut rest = bytes[8..].to_vec();
    rest.push(0);
    assert_eq!(assembler.push(&rest), Err(ParseError::Overrun));
    assert_eq!(assembler.want(), 0);
}

#[test]
fn an_empty_read_changes_nothing() {
    let bytes = tv(5);
    let mut assembler = Assembler::new();
    assert_eq!(assembler.push(&[]), Ok(None));
    assert!(assembler.is_empty());
    assert_eq!(assembler.push(&bytes[..8]), Ok(None));
    assert_eq!(assembler.push(&[]), Ok(None));
    assert_eq!(assembler.want(), bytes.len() - 8);
}
