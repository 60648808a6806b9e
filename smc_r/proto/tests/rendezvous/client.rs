// SPDX-License-Identifier: GPL-2.0

//! The client's table of states, row by row.

use crate::{
    facts::{
        element,
        end,
        proposal, //
    },
    talk::{
        describe,
        local,
        wire,
        Talk,
        Todo,
        CLIENT,
        SERVER, //
    },
};
use smc_proto::{
    clc::{
        AcceptConfirm,
        AcceptV2,
        Decline,
        Kind,
        Message, //
    },
    group::Role,
    handshake::{
        crossed_decline,
        Action,
        Client,
        Contact,
        Crossed,
        Errno,
        Failure,
        Late,
        LinkRefusal,
        LinkResult,
        Peer,
        Rendezvous,
        Waiting, //
    },
    timer::HandshakeTiming,
    wire::{
        Diagnosis,
        Eid,
        Gid,
        MtuCode,
        ParseError,
        QpNum,
        RmbeSize, //
    },
};

type Host = Talk<Client>;

fn c0() -> Host {
    Talk::new(Client::new(CLIENT, HandshakeTiming::DEFAULT))
}

fn c1() -> Host {
    let mut host = c0();
    host.machine.propose(&proposal(CLIENT), host.now).unwrap();
    assert_eq!(
        host.actions(),
        [Todo::Send(Message::Proposal(proposal(CLIENT)))]
    );
    host
}

fn choosing(first: bool) -> Host {
    let mut host = c1();
    host.message(Message::Accept(describe(Role::Server, first)));
    assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
    assert_eq!(host.machine.offer(), Some(&peer(first)));
    host
}

fn c2() -> Host {
    let mut host = choosing(true);
    let contact = Contact::First(local(Role::Client));
    host.machine.handle_contact(contact, host.now).unwrap();
    assert_eq!(
        host.actions(),
        [Todo::Send(Message::Confirm(describe(Role::Client, true)))]
    );
    host
}

fn peer(first_contact: bool) -> Peer {
    Peer {
        id: SERVER,
        first_contact,
        link: end(Role::Server),
        element: element(Role::Server),
        v2: None,
    }
}

// C0

#[test]
fn c0_proposes() {
    let mut host = c0();
    assert_eq!(host.machine.want(), 0, "the client speaks first");
    assert_eq!(host.machine.next_deadline(), None);
    host.machine.handle_bytes(b"hello", host.now);
    assert_eq!(host.actions(), []);
    let mut host = c1();
    assert_eq!(host.machine.propose(&proposal(CLIENT), host.now), Err(Late));
    assert_eq!(host.machine.decline(Diagnosis::IPSEC), Err(Late));
}

#[test]
fn c0_declines_instead_of_proposing() {
    let mut host = c0();
    host.machine.decline(Diagnosis::IPSEC).unwrap();
    host.expect_decline(CLIENT, Diagnosis::IPSEC);
    assert_eq!(host.machine.propose(&proposal(CLIENT), host.now), Err(Late));
}

#[test]
fn c0_the_connection_may_end() {
    let mut host = c0();
    host.machine.handle_eof();
    host.expect_failure(Failure::Closed);
    let mut host = c0();
    host.machine.handle_reset();
    host.expect_failure(Failure::Reset);
}

// C1

#[test]
fn c1_decline() {
    Host::takes_declines(c1);
}

#[test]
fn c1_a_known_link_is_used_at_once() {
    let mut host = choosing(false);
    let contact = Contact::Subsequent(local(Role::Client));
    host.machine.handle_contact(contact, host.now).unwrap();
    assert_eq!(
        host.actions(),
        [
            Todo::Send(Message::Confirm(describe(Role::Client, false))),
            Todo::Do(Action::Established(peer(false)))
        ]
    );
    host.expect_over();
}

// RFC 7609 would let the client choose another link, and name it in the Confirm.
#[test]
fn c1_the_accept_names_the_link() {
    let mut host = c1();
    let qp = QpNum::new(4711).unwrap();
    host.message(Message::Accept(AcceptConfirm {
        qp,
        ..describe(Role::Server, false)
    }));
    assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
    let mut named = peer(false);
    named.link.qp = qp;
    assert_eq!(host.machine.offer(), Some(&named));
    let contact = Contact::Subsequent(local(Role::Client));
    host.machine.handle_contact(contact, host.now).unwrap();
    assert_eq!(
        host.actions(),
        [
            Todo::Send(Message::Confirm(describe(Role::Client, false))),
            Todo::Do(Action::Established(named))
        ]
    );
}

#[test]
fn c1_an_unknown_group_or_link_is_declined() {
    let mut host = choosing(false);
    host.machine
        .handle_contact(Contact::OutOfSync, host.now)
        .unwrap();
    host.expect_decline_with(CLIENT, Diagnosis::OUT_OF_SYNC, 1, true);
    let mut host = choosing(false);
    let contact = Contact::Refuse(Diagnosis::UNKNOWN_LINK);
    host.machine.handle_contact(contact, host.now).unwrap();
    host.expect_decline(CLIENT, Diagnosis::UNKNOWN_LINK);
}

#[test]
fn c1_first_contact_or_not_is_for_the_server_to_say() {
    let mut host = choosing(false);
    let contact = Contact::First(local(Role::Client));
    host.machine.handle_contact(contact, host.now).unwrap();
    host.expect_decline(CLIENT, Diagnosis::INTERNAL);
    let mut host = choosing(true);
    let contact = Contact::Subsequent(local(Role::Client));
    host.machine.handle_contact(contact, host.now).unwrap();
    host.expect_decline(CLIENT, Diagnosis::INTERNAL);
}

#[test]
fn c1_missing_resources_are_declined() {
    for first in [false, true] {
        let mut host = choosing(first);
        let contact = Contact::Refuse(Diagnosis::MEMORY);
        host.machine.handle_contact(contact, host.now).unwrap();
        let fallback = host.expect_decline(CLIENT, Diagnosis::MEMORY);
        assert!(!fallback.may_cross && !fallback.out_of_sync);
        let mut host = choosing(first);
        assert_eq!(host.expire(), 4_000);
        host.expect_decline(CLIENT, Diagnosis::TIMEOUT_CONFIRM_LINK);
        let late = host
            .machine
            .handle_contact(Contact::First(local(Role::Client)), host.now);
        assert_eq!(late, Err(Late));
        Host::takes_declines(|| choosing(first));
    }
}

#[test]
fn c1_unacceptable_accepts_are_declined() {
    let good = describe(Role::Server, true);
    let cases = [
        (
            AcceptConfirm { mtu: None, ..good },
            Diagnosis::CONFIGURATION,
        ),
        (
            AcceptConfirm {
                gid: Gid([0; 16]),
                ..good
            },
            Diagnosis::NO_SMC_R_DEVICE,
        ),
        (
            AcceptConfirm {
                qp: QpNum::new(1).unwrap(),
                ..good
            },
            Diagnosis::CONFIGURATION,
        ),
    ];
    for (accept, reason) in cases {
        let mut host = c1();
        host.message(Message::Accept(accept));
        host.expect_decline(CLIENT, reason);
    }
}

#[test]
fn c1_a_mode_that_was_not_proposed_is_declined() {
    let accept = AcceptConfirm {
        first_contact: false,
        v2: Some(AcceptV2 {
            eid: Eid::default(),
            first: None,
        }),
        ..describe(Role::Server, false)
    };
    let mut host = c1();
    host.message(Message::Accept(accept));
    host.expect_decline_with(CLIENT, Diagnosis::MODE_NOT_OFFERED, 2, false);

    // SMC-D
    let mut bytes = [0u8; 48];
    bytes[..8].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xc4, 2, 0, 48, 0x11]);
    bytes[44..].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xc4]);
    let mut host = c1();
    assert_eq!(host.bytes(&bytes), 48);
    host.expect_decline(CLIENT, Diagnosis::MODE_NOT_OFFERED);
}

#[test]
fn c1_large_buffers_are_fine() {
    let mut host = c1();
    let accept = AcceptConfirm {
        size: RmbeSize::MAX,
        ..describe(Role::Server, true)
    };
    host.message(Message::Accept(accept));
    assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
    assert_eq!(
        host.machine.offer().unwrap().element.size.bytes(),
        512 << 20
    );
}

#[test]
fn c1_a_reserved_mtu_matters_on_first_contact_only() {
    let mut host = c1();
    host.message(Message::Accept(AcceptConfirm {
        mtu: None,
        ..describe(Role::Server, false)
    }));
    assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
}

// RFC 7609 knows F in an Accept alone, Linux sets it here as well.
#[test]
fn c1_f_is_set_in_the_confirm_of_a_first_contact() {
    for (first, flags) in [(true, 0x18), (false, 0x10)] {
        let mut host = choosing(first);
        let local = local(Role::Client);
        let contact = match first {
            true => Contact::First(local),
            false => Contact::Subsequent(local),
        };
        host.machine.handle_contact(contact, host.now).unwrap();
        assert_eq!(host.machine.poll(), Some(Action::Send));
        let sent = host.machine.outgoing();
        assert_eq!((sent.len(), sent[4], sent[7]), (68, 3, flags));
    }
}

// Linux names the smaller one. The server takes that in any case.
#[test]
fn c1_the_confirm_has_our_mtu() {
    let mtu = |code| MtuCode::new(code).unwrap();
    let own = end(Role::Client).mtu;
    for offered in 1..=5 {
        let mut host = c1();
        host.message(Message::Accept(AcceptConfirm {
            mtu: Some(mtu(offered)),
            ..describe(Role::Server, true)
        }));
        assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
        // The driver connects the queue pair by it.
        assert_eq!(host.machine.offer().unwrap().link.mtu, mtu(offered));
        let contact = Contact::First(local(Role::Client));
        host.machine.handle_contact(contact, host.now).unwrap();
        let actions = host.actions();
        assert!(
            matches!(actions[..], [Todo::Send(Message::Confirm(confirm))]
                if confirm.mtu == Some(own)),
            "{actions:?}"
        );
    }
}

#[test]
fn c1_damage_silence_and_end_fail_the_connection() {
    let mut bytes = wire(&Message::Accept(describe(Role::Server, true)));
    bytes[45] = 0;
    let mut host = c1();
    host.bytes(&bytes);
    host.expect_failure(Failure::Damaged(ParseError::RmbeIndex));

    let mut host = c1();
    host.message(Message::Confirm(describe(Role::Server, true)));
    host.expect_failure(Failure::Unexpected(Kind::Confirm));

    let mut host = c1();
    assert_eq!(host.expire(), 6_000);
    host.expect_failure(Failure::TimedOut(Waiting::Accept));

    for mut host in [c1(), choosing(true), choosing(false)] {
        host.machine.handle_eof();
        host.expect_failure(Failure::Closed);
    }
    for mut host in [c1(), choosing(true), choosing(false), c2()] {
        host.machine.handle_reset();
        host.expect_failure(Failure::Reset);
    }
    for first in [true, false] {
        let mut host = choosing(first);
        host.message(Message::Accept(describe(Role::Server, first)));
        host.expect_failure(Failure::Unexpected(Kind::Accept));
    }
}

// C2 to C4

#[test]
fn c2_the_link_comes_up() {
    let mut host = c2();
    host.machine.handle_link(LinkResult::Up, host.now).unwrap();
    assert_eq!(host.actions(), [Todo::Do(Action::Established(peer(true)))]);
    host.expect_over();
}

#[test]
fn c2_decline_on_tcp() {
    Host::takes_declines(c2);
}

#[test]
fn c2_other_bytes_on_tcp() {
    let mut host = c2();
    host.bytes(b"application data");
    host.expect_failure(Failure::Damaged(ParseError::EyeCatcher));
    let mut host = c2();
    host.message(Message::Accept(describe(Role::Server, true)));
    host.expect_failure(Failure::Unexpected(Kind::Accept));
}

#[test]
fn c2_a_fin_means_nothing() {
    let mut host = c2();
    host.machine.handle_eof();
    assert_eq!(host.actions(), []);
    host.machine.handle_link(LinkResult::Up, host.now).unwrap();
    assert_eq!(host.actions(), [Todo::Do(Action::Established(peer(true)))]);
}

#[test]
fn c2_the_link_fails() {
    let refusal = |may_decline, peer_knows| {
        LinkResult::Failed(LinkRefusal {
            diagnosis: Diagnosis::TIMEOUT_CONFIRM_LINK,
            may_decline,
            peer_knows,
        })
    };
    let mut host = c2();
    host.machine
        .handle_link(refusal(true, false), host.now)
        .unwrap();
    let fallback = host.expect_decline(CLIENT, Diagnosis::TIMEOUT_CONFIRM_LINK);
    assert!(fallback.may_cross);

    for may_decline in [false, true] {
        let waiting = || {
            let mut host = c2();
            host.machine
                .handle_link(refusal(may_decline, true), host.now)
                .unwrap();
            assert_eq!(host.actions(), []);
            host
        };
        Host::takes_declines(waiting);
        let mut host = waiting();
        assert_eq!(host.expire(), 1_000);
        if may_decline {
            host.expect_decline(CLIENT, Diagnosis::TIMEOUT_CONFIRM_LINK);
        } else {
            host.expect_failure(Failure::LinkFailed(Diagnosis::TIMEOUT_CONFIRM_LINK));
        }
    }

    // Nobody is left who could decline, and the link may have gone with the server.
    let mut host = c2();
    host.machine.handle_eof();
    host.machine
        .handle_link(refusal(false, true), host.now)
        .unwrap();
    host.expect_failure(Failure::LinkFailed(Diagnosis::NO_ACTIVE_LINK));
}

#[test]
fn c2_the_guard() {
    let mut host = c2();
    assert_eq!(host.expire(), 20_000);
    host.expect_failure(Failure::TimedOut(Waiting::Link));
}

#[test]
fn link_results_out_of_turn_change_nothing() {
    for mut host in [c0(), c1(), choosing(true)] {
        assert_eq!(
            host.machine.handle_link(LinkResult::Up, host.now),
            Err(Late)
        );
        assert_eq!(host.actions(), []);
    }
    let mut host = c1();
    let contact = Contact::First(local(Role::Client));
    assert_eq!(host.machine.handle_contact(contact, host.now), Err(Late));
}

// Errors, crossed Declines

#[test]
fn failures_have_error_numbers() {
    assert_eq!(
        Failure::Damaged(ParseError::Trailer).errno(),
        Errno::Protocol
    );
    assert_eq!(Failure::Closed.errno(), Errno::ConnectionReset);
    assert_eq!(Failure::TimedOut(Waiting::Accept).errno(), Errno::TimedOut);
    assert_eq!(
        Failure::LinkFailed(Diagnosis::INTERNAL).errno(),
        Errno::ConnectionAborted
    );
    assert_eq!(
        Failure::TimedOut(Waiting::Accept).to_string(),
        "timed out waiting for the Accept"
    );
}

#[test]
fn crossed_declines_are_told_from_data() {
    for version in [1, 2] {
        let decline = wire(&Message::Decline(Decline {
            version,
            out_of_sync: false,
            peer_id: SERVER,
            diagnosis: Diagnosis::TIMEOUT_CONFIRM_LINK,
        }));
        for n in 0..decline.len() {
            assert_eq!(crossed_decline(&decline[..n]), Crossed::NeedMore, "{n}");
        }
        let all = Crossed::Decline(decline.len());
        assert_eq!(crossed_decline(&decline), all);
        let mut more = decline.clone();
        more.extend(b"and data");
        assert_eq!(crossed_decline(&more), all);
        for changed in [0, 3, 4, 5, 6, 7, decline.len() - 1] {
            let mut data = decline.clone();
            data[changed] ^= 0x40;
            assert_eq!(crossed_decline(&data), Crossed::No, "byte {changed}");
        }
    }
    assert_eq!(crossed_decline(b"G"), Crossed::No);
    assert_eq!(crossed_decline(b"GET / HTTP/1.1"), Crossed::No);
    let accept = wire(&Message::Accept(describe(Role::Server, true)));
    assert_eq!(crossed_decline(&accept), Crossed::No);
    assert_eq!(crossed_decline(&accept[..7]), Crossed::No);
}
