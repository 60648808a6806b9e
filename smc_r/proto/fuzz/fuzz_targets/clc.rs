// SPDX-License-Identifier: GPL-2.0

//! Any bytes as a CLC message, whole and from a stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_proto::clc::{Assembler, Header, Message, MAX_EMIT};

/// The message as the reader of a stream sees it, in pieces of at most `size` bytes; none if the
/// stream ends too early.
fn read(mut stream: &[u8], size: usize) -> Option<Result<Message, smc_proto::wire::ParseError>> {
    let mut assembler = Assembler::new();
    while !stream.is_empty() {
        let (now, later) = stream.split_at(assembler.want().min(size).min(stream.len()));
        stream = later;
        match assembler.push(now) {
            Ok(None) => assert_ne!(assembler.want(), 0),
            Ok(Some(message)) => return Some(Ok(message)),
            Err(error) => return Some(Err(error)),
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    let whole = Message::parse(bytes);
    let size = 1 + bytes.len() % 13;
    if let Some(streamed) = read(bytes, size) {
        // What the reader took is a message or its header, and fails or not like that.
        let header = bytes.first_chunk().unwrap();
        match Header::parse(header) {
            Ok(header) => assert_eq!(Message::parse(&bytes[..header.len.into()]), streamed),
            Err(error) => assert_eq!(Err(error), streamed),
        }
    }
    let Ok(message) = whole else {
        return;
    };
    let _ = message.to_string();
    let mut once = [0; MAX_EMIT];
    let len = message.emit(&mut once).unwrap();
    match message {
        // Nobody sends a Proposal without an offer.
        Message::Proposal(proposal) if proposal.v1.is_err() && proposal.v2.is_err() => {}
        // The reason why there is no offer is not written.
        Message::Proposal(_) => {
            let mut twice = [0; MAX_EMIT];
            let again = Message::parse(&once[..len]).unwrap();
            assert_eq!(again.emit(&mut twice), Some(len));
            assert_eq!(once, twice);
        }
        _ => assert_eq!(Message::parse(&once[..len]), Ok(message)),
    }
});
