// SPDX-License-Identifier: GPL-2.0

//! Damaged messages and the reaction to each.

use crate::vectors::tv;
use smc_proto::{
    cdc::Cdc,
    clc::{Assembler, Message, Proposal},
    llc::{self, v2, Kind, Llc},
    wire::{ByteOrder, Diagnosis, Gid, ParseError, Reaction, RmbeSize},
};

/// A copy of a known message with some bytes replaced.
fn changed(number: u32, changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = tv(number);
    for (at, new) in changes {
        bytes[*at..at + new.len()].copy_from_slice(new);
    }
    bytes
}

/// How a CLC message fails, read as a whole and from a stream.
fn clc_error(bytes: &[u8]) -> ParseError {
    let error = Message::parse(bytes).unwrap_err();
    let mut assembler = Assembler::new();
    let streamed = bytes.iter().find_map(|byte| assembler.push(&[*byte]).err());
    assert_eq!(streamed, Some(error));
    assert_eq!(assembler.want(), 0);
    error
}

fn clc(bytes: &[u8]) -> Reaction {
    clc_error(bytes).reaction()
}

fn proposal(bytes: &[u8]) -> Proposal {
    Proposal::parse(bytes).unwrap()
}

fn llc(bytes: &[u8]) -> Reaction {
    Llc::parse(bytes).unwrap_err().reaction()
}

const CONFIGURATION: Reaction = Reaction::Decline(Diagnosis::CONFIGURATION);
const NO_SMC_R_DEVICE: Reaction = Reaction::Decline(Diagnosis::NO_SMC_R_DEVICE);
const MODE: Reaction = Reaction::Decline(Diagnosis::MODE_NOT_OFFERED);

#[test]
fn header() {
    assert_eq!(clc(&changed(2, &[(0, &[0])])), Reaction::Reset);
    assert_eq!(clc(&changed(2, &[(3, &[0xc4])])), Reaction::Reset);
    assert_eq!(clc_error(&changed(2, &[(4, &[0])])), ParseError::ClcType(0));
    assert_eq!(clc_error(&changed(2, &[(4, &[5])])), ParseError::ClcType(5));
    assert_eq!(clc(&changed(2, &[(4, &[5])])), Reaction::Reset);
    for number in [2, 5, 7] {
        assert_eq!(
            clc_error(&changed(number, &[(7, &[0])])),
            ParseError::ClcVersion(0)
        );
        assert_eq!(
            clc_error(&changed(number, &[(5, &[0, 7])])),
            ParseError::ClcLength(7)
        );
    }
    assert_eq!(ParseError::ClcVersion(0).reaction(), Reaction::Reset);
    assert_eq!(ParseError::ClcLength(7).reaction(), Reaction::Reset);
}

#[test]
fn an_invalid_header_is_found_before_the_rest_arrives() {
    let mut assembler = Assembler::new();
    let error = assembler.push(b"GET / HT").unwrap_err();
    assert_eq!(error, ParseError::EyeCatcher);
    assert_eq!(error.reaction(), Reaction::Reset);
    assert_eq!(assembler.want(), 0);
}

#[test]
fn proposal_of_version_1() {
    let damaged = changed(2, &[(51, &[0xd8])]);
    assert_eq!(clc_error(&damaged), ParseError::Trailer);
    assert_eq!(clc(&damaged), Reaction::Reset);

    let mut longer = changed(2, &[(5, &[0, 53])]);
    longer.insert(48, 0);
    assert_eq!(clc_error(&longer), ParseError::ClcLength(53));

    // Nine prefixes, and room for them.
    let mut many = changed(2, &[(47, &[9])]);
    let end = many.split_off(48);
    many.resize(48 + 9 * 17, 0);
    many.extend(end);
    many[5..7].copy_from_slice(&(52u16 + 9 * 17).to_be_bytes());
    assert_eq!(clc_error(&many), ParseError::PrefixCount(9));
    assert_eq!(clc(&many), Reaction::Reset);
    assert_eq!(clc(&changed(2, &[(47, &[9])])), Reaction::Reset);
    assert_eq!(
        clc_error(&changed(2, &[(47, &[1])])),
        ParseError::PrefixArea
    );
    assert_eq!(clc(&changed(2, &[(47, &[1])])), Reaction::Reset);
    assert_eq!(
        clc_error(&changed(2, &[(38, &[0, 1])])),
        ParseError::PrefixArea
    );
    assert_eq!(
        clc_error(&changed(2, &[(38, &[0xff, 0xff])])),
        ParseError::PrefixArea
    );

    let offer = |changes: &[(usize, &[u8])]| proposal(&changed(2, changes)).smcr_v1().copied();
    assert_eq!(offer(&[(16, &[0; 16])]), Err(Diagnosis::NO_SMC_R_DEVICE));
    assert_eq!(offer(&[(32, &[0; 6])]), Err(Diagnosis::NO_SMC_R_DEVICE));
    assert_eq!(offer(&[(32, &[3])]), Err(Diagnosis::NO_SMC_R_DEVICE));
    assert_eq!(offer(&[(44, &[33])]), Err(Diagnosis::SUBNET_MISMATCH));
    assert_eq!(offer(&[(7, &[0x11])]), Err(Diagnosis::NO_DEVICE));
    assert_eq!(offer(&[(7, &[0x12])]), Err(Diagnosis::NO_DEVICE));
    assert!(offer(&[(7, &[0x13])]).is_ok());
    assert_eq!(clc(&changed(2, &[(8, &[0; 8])])), CONFIGURATION);
    // Prefix lengths are not checked, but never match.
    let long = proposal(&changed(3, &[(64, &[129])]));
    assert!(long.smcr_v1().is_ok());
}

#[test]
fn proposal_of_higher_versions() {
    // A short form is good enough for version 1 of the protocol.
    let lenient = proposal(&changed(2, &[(7, &[0x30])]));
    assert_eq!(lenient.version, 3);
    assert_eq!(lenient.smcr_v1(), proposal(&tv(2)).smcr_v1());
    assert_eq!(lenient.smcr_v2(), Err(Diagnosis::NO_V2_EXTENSION));

    assert_eq!(
        clc_error(&changed(4, &[(38, &[0xff, 0xff])])),
        ParseError::PrefixArea
    );
    assert_eq!(clc(&changed(4, &[(38, &[0xff, 0xff])])), Reaction::Reset);
    // Surplus bytes are none of our business here.
    let mut longer = changed(4, &[(6, &[93])]);
    longer.insert(88, 0x55);
    assert_eq!(proposal(&longer), proposal(&tv(4)));

    // An SMC-D path beside that of SMC-R.
    assert_eq!(proposal(&changed(4, &[(7, &[0x2b])])), proposal(&tv(4)));
    // Without version 1 the prefix count is not looked at: byte 47 is part of the ISM GID.
    let v2_only = proposal(&changed(33, &[(7, &[0x22]), (38, &[0, 0]), (47, &[0xff])]));
    assert_eq!(v2_only.smcr_v1(), Err(Diagnosis::NO_DEVICE));
    assert_eq!(v2_only.smcr_v2(), proposal(&tv(33)).smcr_v2());
}

#[test]
fn version_2_extension() {
    let area = |changes: &[(usize, &[u8])]| clc_error(&changed(33, changes));
    assert_eq!(area(&[(50, &[0, 173])]), ParseError::ExtensionArea);
    assert_eq!(area(&[(50, &[0, 172])]), ParseError::ExtensionArea);
    assert_eq!(area(&[(50, &[0xff, 0xff])]), ParseError::ExtensionArea);
    assert_eq!(area(&[(88, &[2])]), ParseError::ExtensionArea);
    assert_eq!(area(&[(88, &[9])]), ParseError::EidCount(9));
    assert_eq!(area(&[(7, &[0x2c]), (89, &[9])]), ParseError::IsmCount(9));
    for error in [
        ParseError::ExtensionArea,
        ParseError::EidCount(9),
        ParseError::IsmCount(9),
    ] {
        assert_eq!(error.reaction(), Reaction::Reset);
    }
    let offer = |changes: &[(usize, &[u8])]| {
        let proposal = proposal(&changed(33, changes));
        assert!(proposal.smcr_v1().is_ok());
        proposal.smcr_v2().copied()
    };
    assert!(offer(&[(89, &[9])]).is_ok());
    assert_eq!(offer(&[(50, &[0, 0])]), Err(Diagnosis::NO_V2_EXTENSION));
    assert_eq!(offer(&[(88, &[0])]), Err(Diagnosis::NO_USER_EID));
    assert_eq!(offer(&[(96, &[0; 16])]), Err(Diagnosis::NO_ROUTE));
    // Linux wants an IPv4 address; between our own, one of IPv6 will do.
    assert!(offer(&[(96, &[0x20, 0x01, 0x0d, 0xb8])]).is_ok());
    assert_eq!(offer(&[(112, &[15])]), Err(Diagnosis::MAX_CONNECTIONS));
    assert_eq!(offer(&[(113, &[0])]), Err(Diagnosis::MAX_LINKS));
    assert_eq!(offer(&[(7, &[0x28])]), Err(Diagnosis::NO_DEVICE));
    assert_eq!(offer(&[(7, &[0x24])]), Err(Diagnosis::NO_DEVICE));
    // Before release 1 the limits do not exist.
    let first = offer(&[(91, &[0]), (112, &[0, 0])]).unwrap();
    assert_eq!(first.limits, None);
}

#[test]
fn accept_and_confirm() {
    for (number, kind) in [(5, "Accept"), (6, "Confirm")] {
        let error = |changes: &[(usize, &[u8])]| clc_error(&changed(number, changes));
        assert_eq!(error(&[(45, &[0])]), ParseError::RmbeIndex, "{kind}");
        assert_eq!(error(&[(7, &[0x12])]), ParseError::Path(2), "{kind}");
        assert_eq!(error(&[(7, &[0x1b])]), ParseError::Path(3), "{kind}");
        assert_eq!(error(&[(6, &[69])]), ParseError::ClcLength(69), "{kind}");
        assert_eq!(error(&[(64, &[0])]), ParseError::Trailer, "{kind}");
        assert_eq!(error(&[(3, &[0xc4])]), ParseError::EyeCatcher, "{kind}");
        for error in [
            ParseError::RmbeIndex,
            ParseError::Path(2),
            ParseError::RmbRange,
        ] {
            assert_eq!(error.reaction(), Reaction::Reset, "{kind}");
        }
        let reaction = |changes: &[(usize, &[u8])]| clc(&changed(number, changes));
        assert_eq!(reaction(&[(8, &[0; 8])]), CONFIGURATION, "{kind}");
        assert_eq!(reaction(&[(16, &[0; 16])]), NO_SMC_R_DEVICE, "{kind}");
        assert_eq!(reaction(&[(32, &[0; 6])]), NO_SMC_R_DEVICE, "{kind}");
        assert_eq!(reaction(&[(32, &[0xff; 6])]), NO_SMC_R_DEVICE, "{kind}");
        assert_eq!(reaction(&[(38, &[0, 0, 0])]), CONFIGURATION, "{kind}");
        assert_eq!(reaction(&[(38, &[0, 0, 1])]), CONFIGURATION, "{kind}");
        assert_eq!(reaction(&[(7, &[0x11])]), MODE, "{kind}");
        assert_eq!(reaction(&[(7, &[0x30])]), MODE, "{kind}");
        // A reset is worse than a Decline, and a message may deserve both.
        let both: &[(usize, &[u8])] = &[(16, &[0; 16]), (45, &[0])];
        assert_eq!(reaction(both), Reaction::Reset, "{kind}");
    }
}

#[test]
fn mtu_and_size_codes() {
    for code in [0u8, 6, 15] {
        let error = clc_error(&changed(5, &[(50, &[0x20 | code])]));
        assert_eq!(error, ParseError::Mtu(code));
        assert_eq!(error.reaction(), CONFIGURATION);
        // Not a first contact, or not known to be one: the caller knows whether it matters.
        for bytes in [
            changed(5, &[(7, &[0x10]), (50, &[0x20 | code])]),
            changed(6, &[(50, &[0x20 | code])]),
        ] {
            let Ok(Message::Accept(message) | Message::Confirm(message)) = Message::parse(&bytes)
            else {
                unreachable!()
            };
            assert_eq!(
                message.first_contact_mtu().unwrap_err().reaction(),
                CONFIGURATION
            );
        }
    }
    let Ok(Message::Accept(accept)) = Message::parse(&changed(5, &[(50, &[0xf3])])) else {
        unreachable!()
    };
    assert_eq!(accept.size, RmbeSize::MAX);
}

#[test]
fn the_buffer_ends_within_the_address_space() {
    // 64 KiB elements; the RMB address is that of its start.
    let with = |index: u8, addr: u64| {
        let bytes = changed(5, &[(45, &[index]), (52, &addr.to_be_bytes())]);
        Message::parse(&bytes).map(|_| ())
    };
    assert_eq!(with(1, 0u64.wrapping_sub(65536)), Ok(()));
    assert_eq!(with(1, 0u64.wrapping_sub(65535)), Err(ParseError::RmbRange));
    assert_eq!(with(2, 0u64.wrapping_sub(65536)), Err(ParseError::RmbRange));
    assert_eq!(with(255, 0u64.wrapping_sub(255 * 65536)), Ok(()));
    assert_eq!(
        with(255, 0u64.wrapping_sub(254 * 65536)),
        Err(ParseError::RmbRange)
    );
    assert_eq!(with(1, u64::MAX), Err(ParseError::RmbRange));
}

#[test]
fn an_accept_of_smc_d_is_read_to_its_end_and_declined() {
    for (version, len) in [(0x11u8, 48u8), (0x19, 48), (0x21, 78), (0x29, 126)] {
        let mut bytes = vec![0x77; usize::from(len)];
        bytes[..8].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xc4, 2, 0, len, version]);
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xc4]);
        let mut assembler = Assembler::new();
        for byte in &bytes[..bytes.len() - 1] {
            assert_eq!(assembler.push(&[*byte]), Ok(None));
        }
        assert_eq!(assembler.want(), 1);
        assert_eq!(clc(&bytes), MODE);
    }
}

#[test]
fn accept_and_confirm_of_version_2() {
    let short = changed(5, &[(7, &[0x28])]);
    assert_eq!(clc_error(&short), ParseError::ClcLength(68));
    let error = |number, changes: &[(usize, &[u8])]| clc_error(&changed(number, changes));
    for number in [34, 35] {
        assert_eq!(
            error(number, &[(140, &[15])]),
            ParseError::MaxConnections(15)
        );
        assert_eq!(error(number, &[(141, &[0])]), ParseError::MaxLinks(0));
        assert_eq!(error(number, &[(141, &[3])]), ParseError::MaxLinks(3));
    }
    assert_eq!(error(35, &[(156, &[2])]), ParseError::ClcLength(180));
    assert_eq!(error(35, &[(156, &[255])]), ParseError::ClcLength(180));
    // First contact needs the extension.
    let mut without = tv(34);
    without.drain(104..156);
    without[6] = 108;
    assert_eq!(clc_error(&without), ParseError::ClcLength(108));
    without[7] = 0x20;
    let Ok(Message::Accept(accept)) = Message::parse(&without) else {
        unreachable!()
    };
    assert!(!accept.first_contact);
    assert_eq!(accept.v2.unwrap().first, None);
}

#[test]
fn the_short_form_of_release_0() {
    for number in [34, 35] {
        let mut bytes = tv(number);
        bytes.drain(140..156);
        bytes[6] -= 16;
        // Release 1 always has the long form.
        assert_eq!(clc(&bytes), Reaction::Reset);
        bytes[105] = 0x20;
        let Ok(Message::Accept(short) | Message::Confirm(short)) = Message::parse(&bytes) else {
            unreachable!()
        };
        let Ok(Message::Accept(long) | Message::Confirm(long)) =
            Message::parse(&changed(number, &[(105, &[0x20])]))
        else {
            unreachable!()
        };
        assert_eq!(short, long);
        assert_eq!(short.v2.unwrap().first.unwrap().limits, None);
    }
}

#[test]
fn declines() {
    let Ok(Message::Decline(decline)) = Message::parse(&changed(7, &[(7, &[0x18])])) else {
        unreachable!()
    };
    assert!(decline.out_of_sync);
    for changes in [
        &[(7usize, &[0x20u8][..])][..],
        &[(7, &[0x30])],
        &[(6, &[29])],
        &[(24, &[0])],
    ] {
        assert_eq!(clc(&changed(7, changes)), Reaction::Reset, "{changes:?}");
    }
    assert_eq!(clc(&changed(8, &[(7, &[0x10])])), Reaction::Reset);
    assert_eq!(clc(&changed(8, &[(40, &[0])])), Reaction::Reset);
    // Any diagnosis and any sender will do.
    assert!(Message::parse(&changed(7, &[(8, &[0; 12])])).is_ok());
}

#[test]
fn reserved_fields_are_not_looked_at() {
    for (number, fields) in [
        (2, &[(45usize, 47usize)][..]),
        (4, &[(40, 50), (52, 80), (85, 87)]),
        (5, &[(51, 52), (60, 61)]),
        (7, &[(20, 24)]),
        (8, &[(20, 40)]),
        (9, &[(2, 3), (35, 44)]),
        (11, &[(2, 3), (36, 44)]),
        (14, &[(2, 3), (6, 8), (40, 44)]),
        (16, &[(2, 3), (9, 44)]),
        (20, &[(2, 3), (30, 44)]),
        (22, &[(2, 3), (18, 44)]),
        (23, &[(2, 3), (5, 8), (16, 44)]),
        (27, &[(8, 10), (16, 18), (26, 44)]),
        (34, &[(96, 104), (106, 108), (144, 156)]),
        (36, &[(45, 46), (62, 70)]),
        (37, &[(4, 24), (25, 28)]),
    ] {
        let mut bytes = tv(number);
        for (from, to) in fields {
            bytes[*from..*to].fill(0xff);
        }
        assert_eq!(
            crate::vectors::rewrite(&bytes),
            Ok(tv(number)),
            "TV{number:02}"
        );
    }
}

#[test]
fn llc_length_and_type() {
    assert_eq!(llc(&changed(9, &[(1, &[43])])), Reaction::Link);
    assert_eq!(llc(&changed(25, &[(1, &[0])])), Reaction::Link);
    assert_eq!(llc(&tv(9)[..43]), Reaction::Link);
    assert_eq!(llc(&[]), Reaction::Link);
    for first in 0..=255u8 {
        let expected = match first {
            0xfe => Kind::Cdc,
            0x01..=0x04 | 0x06..=0x09 => {
                Kind::Llc(llc::LlcType::from_byte(first).expect("a type of version 1"))
            }
            0x21 | 0x22 | 0x24..=0x27 | 0x29 => {
                Kind::LlcV2(v2::LlcType::from_byte(first).expect("a type of version 2"))
            }
            0x80..=0xbf => Kind::Unknown(Reaction::Drop),
            _ => Kind::Unknown(Reaction::Link),
        };
        assert_eq!(llc::kind(first), expected, "{first:#04x}");
        let bytes = changed(25, &[(0, &[first])]);
        match expected {
            Kind::Llc(kind) => assert_eq!(kind.to_byte(), first),
            Kind::LlcV2(kind) => {
                assert_eq!(kind.to_byte(), first);
                assert_eq!(llc(&bytes), Reaction::Drop);
            }
            Kind::Unknown(reaction) => assert_eq!(llc(&bytes), reaction),
            Kind::Cdc => assert_eq!(llc(&bytes), Reaction::Link),
        }
    }
}

#[test]
fn llc_fields() {
    // Whether eye catchers are tolerated, and whether the link is the right one, is seen from
    // outside.
    let Ok(Llc::ConfirmLink(confirm)) = Llc::parse(&changed(9, &[(3, &[0])])) else {
        unreachable!()
    };
    assert!(!confirm.no_eye_catcher);
    for bits in [1, 2, 3] {
        let Ok(Llc::ConfirmLink(confirm)) = Llc::parse(&changed(9, &[(3, &[bits])])) else {
            unreachable!()
        };
        assert!(confirm.no_eye_catcher);
    }
    assert_eq!(llc(&changed(9, &[(29, &[0])])), Reaction::Link);
    assert_eq!(llc(&changed(14, &[(4, &[0])])), Reaction::Link);
    for (sent, read) in [(0, 0), (1, 2), (2, 2), (8, 8), (9, 8), (255, 8)] {
        let Ok(Llc::ConfirmLink(confirm)) = Llc::parse(&changed(9, &[(34, &[sent])])) else {
            unreachable!()
        };
        assert_eq!(confirm.max_links, read);
    }
    for code in [0, 6, 15] {
        let Ok(Llc::AddLink(add)) = Llc::parse(&changed(11, &[(32, &[code])])) else {
            unreachable!()
        };
        assert_eq!(add.mtu, None);
    }
    // Z means nothing in a request, nor does the reason without Z.
    let Ok(Llc::AddLink(add)) = Llc::parse(&changed(11, &[(2, &[1, 0x40])])) else {
        unreachable!()
    };
    assert_eq!(add.reject, None);
    let Ok(Llc::ConfirmRkey(confirm)) = Llc::parse(&changed(20, &[(4, &[8]), (17, &[0])])) else {
        unreachable!()
    };
    assert_eq!(confirm.others, 8);
    assert_eq!(confirm.entries()[0].link, None);
    for (count, kept) in [(0, 0), (8, 8), (9, 8), (255, 8)] {
        let Ok(Llc::DeleteRkey(delete)) = Llc::parse(&changed(23, &[(4, &[count])])) else {
            unreachable!()
        };
        assert_eq!(delete.rkeys.len(), kept);
    }
}

#[test]
fn llc_of_version_2() {
    let reaction = |bytes: &[u8]| v2::Llc::parse(bytes).unwrap_err().reaction();
    assert_eq!(reaction(&tv(36)[..43]), Reaction::Link);
    // A length that fits in neither byte order.
    assert_eq!(reaction(&changed(36, &[(1, &[0, 43])])), Reaction::Link);
    assert_eq!(reaction(&changed(36, &[(1, &[0, 89])])), Reaction::Link);
    assert_eq!(reaction(&changed(37, &[(24, &[3])])), Reaction::Link);
    assert_eq!(reaction(&tv(9)), Reaction::Drop);
    assert_eq!(reaction(&changed(36, &[(0, &[0x23])])), Reaction::Link);
    // The number of pairs is that of the message where the field says more.
    let bytes = changed(36, &[(70, &[1, 0])]);
    let (v2::Llc::AddLink(add), _) = v2::Llc::parse(&bytes).unwrap() else {
        unreachable!()
    };
    assert_eq!(add.ext.unwrap().pairs.len(), 1);
    let bytes = changed(36, &[(70, &[0, 0])]);
    let (v2::Llc::AddLink(add), _) = v2::Llc::parse(&bytes).unwrap() else {
        unreachable!()
    };
    assert!(add.ext.unwrap().pairs.is_empty());
    // A rejection of 44 bytes.
    let mut bytes = changed(36, &[(1, &[0, 44, 0xc1])]);
    bytes.truncate(44);
    let (v2::Llc::AddLink(add), _) = v2::Llc::parse(&bytes).unwrap() else {
        unreachable!()
    };
    assert_eq!(add.base.reject, Some(llc::Reject::NoPath));
    assert_eq!(add.ext, None);
}

#[test]
fn cdc_length() {
    let reaction = |bytes: &[u8]| Cdc::parse(bytes).unwrap_err().reaction();
    assert_eq!(reaction(&changed(27, &[(1, &[43])])), Reaction::Link);
    assert_eq!(reaction(&tv(27)[..43]), Reaction::Link);
    assert_eq!(reaction(&tv(27)[..26]), Reaction::Link);
    assert_eq!(reaction(&tv(9)), Reaction::Link);
    // Whatever the transport adds at the end is not looked at.
    let mut longer = tv(27);
    longer.extend([0xff; 4]);
    assert_eq!(Cdc::parse(&longer), Cdc::parse(&tv(27)));
}

#[test]
fn the_form_of_the_extension_is_found_by_the_length() {
    // Twelve GIDs in the short form. In the long form, the first octet of an address would be the
    // number of GIDs, and they would fit, too.
    let mut bytes = changed(35, &[(105, &[0x20])]);
    bytes.truncate(140);
    bytes.extend([12, 0, 0, 0]);
    for host in 0..12 {
        bytes.extend(Gid::from_ipv4([10, 0, 0, host]).0);
    }
    bytes.extend([0xe2, 0xd4, 0xc3, 0xd9]);
    let len = u16::try_from(bytes.len()).unwrap();
    bytes[5..7].copy_from_slice(&len.to_be_bytes());
    assert_eq!(bytes[156], 10);
    let Ok(Message::Confirm(confirm)) = Message::parse(&bytes) else {
        unreachable!()
    };
    let gids = confirm.v2.unwrap().first.unwrap().gids;
    let expected: Vec<_> = (0..8)
        .map(|host| Gid::from_ipv4([10, 0, 0, host]))
        .collect();
    assert_eq!(gids.as_slice(), expected);
}

#[test]
fn the_offset_of_the_extension_is_limited() {
    let at = |offset: u16| {
        let mut bytes = changed(33, &[(5, &[1, 144]), (50, &offset.to_be_bytes())]);
        let extension = bytes[88..160].to_vec();
        bytes.resize(400, 0);
        let start = usize::from(52 + offset);
        bytes[start..start + extension.len()].copy_from_slice(&extension);
        bytes[396..].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xd9]);
        Proposal::parse(&bytes)
    };
    assert_eq!(at(172).unwrap().v2, proposal(&tv(33)).v2);
    assert_eq!(at(173), Err(ParseError::ExtensionArea));
}

#[test]
fn entries_beyond_the_count_are_not_read() {
    for (number, at, count) in [(14, 5, 1), (14, 5, 0), (15, 5, 0), (20, 4, 0), (22, 4, 0)] {
        let bytes = changed(number, &[(at, &[count])]);
        let used = match Llc::parse(&bytes).unwrap() {
            Llc::AddLinkCont(llc) => (llc.pairs().len(), 8 + 16 * llc.pairs().len()),
            Llc::ConfirmRkey(llc) => (llc.entries().len(), 17 + 13 * llc.entries().len()),
            Llc::ConfirmRkeyCont(llc) => (llc.entries().len(), 5 + 13 * llc.entries().len()),
            _ => unreachable!(),
        };
        assert_eq!(used.0, usize::from(count));
        let mut expected = bytes.clone();
        expected[used.1..].fill(0);
        assert_ne!(expected, bytes);
        assert_eq!(
            crate::vectors::rewrite(&bytes),
            Ok(expected),
            "TV{number:02}"
        );
    }
}

#[test]
fn a_message_may_be_shorter_than_its_transport() {
    let padded = |len: [u8; 2]| {
        let mut bytes = changed(37, &[(1, &len)]);
        bytes.resize(100, 0);
        v2::Llc::parse(&bytes).map(|(message, order)| {
            assert_eq!(message, v2::Llc::parse(&tv(37)).unwrap().0);
            order
        })
    };
    assert_eq!(padded([0, 60]), Ok(ByteOrder::Big));
    assert_eq!(padded([60, 0]), Ok(ByteOrder::Little));
    assert_eq!(padded([0, 100]), Ok(ByteOrder::Big));
    assert_eq!(padded([0, 101]), Err(ParseError::Length(101)));
    assert_eq!(padded([0, 43]), Err(ParseError::Length(43)));
}
