// SPDX-License-Identifier: GPL-2.0

//! What the fuzzer runs, each for any bytes at all. Nothing may panic, and what was understood has to
//! survive being written and read again. The tests of the core run them over the corpus.

#[path = "../tests/sim/hostile.rs"]
mod connection;
#[path = "../tests/rendezvous/facts.rs"]
mod facts;
#[path = "../tests/links/hostile.rs"]
mod groups;
#[path = "../tests/rendezvous/hostile.rs"]
mod hosts;
#[path = "../tests/sim/rng.rs"]
#[allow(clippy::should_implement_trait)] // it has no end
pub mod rng;
#[path = "../tests/rendezvous/talk.rs"]
#[expect(dead_code, reason = "the tests need more of it")]
mod talk;

use rng::Rng;
use smc_proto::{
    cdc::Cdc,
    clc::{
        Assembler,
        Header,
        Message,
        MAX_EMIT, //
    },
    handshake::{
        crossed_decline,
        Crossed, //
    },
    llc::{
        kind,
        v2,
        Kind,
        Llc, //
    },
    tcp_option, //
};

/// A CDC message, and the options of a TCP header.
pub fn cdc(bytes: &[u8]) {
    if let Ok(message) = Cdc::parse(bytes) {
        assert_eq!(Cdc::parse(&message.emit()), Ok(message));
        let _ = message.to_string();
    }
    if tcp_option::find(bytes) {
        assert!(bytes.windows(4).any(|id| id == [0xe2, 0xd4, 0xc3, 0xd9]));
    }
}

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

/// A CLC message, whole and from a stream.
pub fn clc(bytes: &[u8]) {
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
    if let Crossed::Decline(len) = crossed_decline(bytes) {
        assert!(matches!(
            Message::parse(&bytes[..len]),
            Ok(Message::Decline(_))
        ));
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
}

/// An LLC message of either version.
pub fn llc(bytes: &[u8]) {
    if let Ok(message) = Llc::parse(bytes) {
        assert_eq!(kind(bytes[0]), Kind::Llc(message.kind()));
        assert_eq!(Llc::parse(&message.emit()), Ok(message));
        let _ = message.to_string();
    }
    if let Ok((message, order)) = v2::Llc::parse(bytes) {
        assert_eq!(kind(bytes[0]), Kind::LlcV2(message.kind()));
        let mut out = vec![0; v2::MAX_LEN];
        // Only what is longer than any message allowed cannot be written.
        match message.emit(order, &mut out) {
            Some(len) => assert_eq!(v2::Llc::parse(&out[..len]).unwrap().0, message),
            None => assert!(bytes.len() > v2::MAX_LEN),
        }
    }
}

/// What happens to a connection: calls of the application, messages of a hostile peer, completions.
pub fn conn(bytes: &[u8]) {
    connection::attack(Rng::scripted(bytes));
}

/// What happens to a link group with several links: messages of a hostile peer, answers of the driver.
pub fn links(bytes: &[u8]) {
    groups::attack(Rng::scripted(bytes));
}

/// The same with one link, and a driver that may not do its part.
pub fn flow(bytes: &[u8]) {
    hosts::engine(Rng::scripted(bytes));
}

/// A rendezvous with a hostile peer.
pub fn rendezvous(bytes: &[u8]) {
    hosts::rendezvous(Rng::scripted(bytes));
}

/// Two link groups face to face.
pub fn two(bytes: &[u8]) {
    hosts::two(Rng::scripted(bytes));
}
