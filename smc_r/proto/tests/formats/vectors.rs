// SPDX-License-Identifier: GPL-2.0

//! The known messages: all are read, and written again byte by byte.

use smc_proto::{
    cdc::Cdc,
    clc::{self, Message},
    llc::{self, v2, Kind, Llc},
    tcp_option,
    wire::ByteOrder,
};

const FILE: &str = include_str!("../vectors/messages.txt");

/// All messages with their names.
pub fn all() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    FILE.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, hex) = line.split_once(' ').unwrap();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
            (
                name,
                hex.as_bytes()
                    .chunks(2)
                    .map(|pair| byte(pair).unwrap())
                    .collect(),
            )
        })
}

/// The message with this number.
pub fn tv(number: u32) -> Vec<u8> {
    let name = format!("TV{number:02}");
    all().find(|(found, _)| *found == name).unwrap().1
}

/// What a known message is.
pub fn is_clc(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xe2, 0xd4, 0xc3, 0xd9])
}

/// Reads a message of any kind and writes it again; fails with what the parser says.
pub fn rewrite(bytes: &[u8]) -> Result<Vec<u8>, smc_proto::wire::ParseError> {
    let mut out = vec![0xaa; 1024];
    let len = if is_clc(bytes) {
        Message::parse(bytes)?.emit(&mut out).unwrap()
    } else {
        match llc::kind(bytes[0]) {
            Kind::Cdc => return Ok(Cdc::parse(bytes)?.emit().to_vec()),
            Kind::Llc(_) => return Ok(Llc::parse(bytes)?.emit().to_vec()),
            Kind::LlcV2(_) => {
                let (message, order) = v2::Llc::parse(bytes)?;
                message.emit(order, &mut out).unwrap()
            }
            Kind::Unknown(_) => return Err(smc_proto::wire::ParseError::LlcType(bytes[0])),
        }
    };
    out.truncate(len);
    Ok(out)
}

#[test]
fn all_are_there() {
    assert_eq!(all().count(), 37);
    for (i, (name, _)) in all().enumerate() {
        assert_eq!(name, format!("TV{:02}", i + 1));
    }
}

#[test]
fn the_option_is_the_one_we_send() {
    assert_eq!(tv(1), tcp_option::OPTION);
    assert!(tcp_option::find(&tv(1)));
}

#[test]
fn each_is_written_as_it_was_read() {
    for (name, bytes) in all().skip(1) {
        assert_eq!(rewrite(&bytes), Ok(bytes), "{name}");
    }
}

#[test]
fn each_type_is_recognised() {
    for (name, bytes) in all().skip(1) {
        let number: u32 = name[2..].parse().unwrap();
        if is_clc(&bytes) {
            let kind = match number {
                2..=4 | 33 => clc::Kind::Proposal,
                5 | 34 => clc::Kind::Accept,
                6 | 35 => clc::Kind::Confirm,
                _ => clc::Kind::Decline,
            };
            assert_eq!(Message::parse(&bytes).unwrap().kind(), kind, "{name}");
            continue;
        }
        let kind = match number {
            9 | 10 => Kind::Llc(llc::LlcType::ConfirmLink),
            11..=13 => Kind::Llc(llc::LlcType::AddLink),
            14 | 15 => Kind::Llc(llc::LlcType::AddLinkCont),
            16..=19 => Kind::Llc(llc::LlcType::DeleteLink),
            20 | 21 => Kind::Llc(llc::LlcType::ConfirmRkey),
            22 => Kind::Llc(llc::LlcType::ConfirmRkeyCont),
            23 | 24 => Kind::Llc(llc::LlcType::DeleteRkey),
            25 | 26 => Kind::Llc(llc::LlcType::TestLink),
            36 => Kind::LlcV2(v2::LlcType::AddLink),
            37 => Kind::LlcV2(v2::LlcType::RequestAddLink),
            _ => Kind::Cdc,
        };
        assert_eq!(llc::kind(bytes[0]), kind, "{name}");
    }
}

#[test]
fn a_buffer_one_byte_short_is_not_enough() {
    for (name, bytes) in all().skip(1) {
        let mut out = vec![0; bytes.len() - 1];
        if is_clc(&bytes) {
            assert_eq!(
                Message::parse(&bytes).unwrap().emit(&mut out),
                None,
                "{name}"
            );
        } else if let Kind::LlcV2(_) = llc::kind(bytes[0]) {
            let (message, order) = v2::Llc::parse(&bytes).unwrap();
            assert_eq!(message.emit(order, &mut out), None, "{name}");
        }
    }
}

#[test]
fn version_2_lengths_come_in_either_byte_order() {
    for number in [36, 37] {
        let big = tv(number);
        let mut little = big.clone();
        little.swap(1, 2);
        if number == 36 {
            little.swap(70, 71);
        }
        let (message, order) = v2::Llc::parse(&little).unwrap();
        assert_eq!(order, ByteOrder::Little);
        assert_eq!((message, ByteOrder::Big), v2::Llc::parse(&big).unwrap());
        let mut out = [0; 128];
        let len = message.emit(order, &mut out).unwrap();
        assert_eq!(out[..len], little);
    }
}
