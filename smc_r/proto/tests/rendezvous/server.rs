// SPDX-License-Identifier: GPL-2.0

//! The server's table of states, row by row.

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
        Message,
        OfferV1,
        Proposal, //
    },
    group::{
        LinkEnd,
        Role, //
    },
    handshake::{
        Action,
        Contact,
        Failure,
        Late,
        LinkRefusal,
        LinkResult,
        Peer,
        Rendezvous,
        Server,
        Waiting, //
    },
    timer::{
        HandshakeTiming,
        Time, //
    },
    wire::{
        Diagnosis,
        Eid,
        Gid,
        Mac,
        MtuCode,
        ParseError,
        PeerId, //
    },
};

type Host = Talk<Server>;

fn s1() -> Host {
    Talk::new(Server::new(
        SERVER,
        HandshakeTiming::DEFAULT,
        Time::from_millis(0),
    ))
}

fn choosing() -> Host {
    let mut host = s1();
    host.message(Message::Proposal(proposal(CLIENT)));
    assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
    host
}

fn s2(first: bool) -> Host {
    let mut host = choosing();
    let contact = if first {
        Contact::First(local(Role::Server))
    } else {
        Contact::Subsequent(local(Role::Server))
    };
    host.machine.handle_contact(contact, host.now).unwrap();
    assert_eq!(
        host.actions(),
        [Todo::Send(Message::Accept(describe(Role::Server, first)))]
    );
    host
}

fn connecting() -> Host {
    let mut host = s2(true);
    host.message(Message::Confirm(describe(Role::Client, true)));
    assert_eq!(
        host.actions(),
        [Todo::Do(Action::ConnectLink(end(Role::Client)))]
    );
    host
}

fn s3() -> Host {
    let mut host = connecting();
    host.machine.handle_link_connected(host.now).unwrap();
    assert!(matches!(
        host.actions()[..],
        [Todo::Do(Action::StartLink(_))]
    ));
    host
}

fn peer(first_contact: bool) -> Peer {
    Peer {
        id: CLIENT,
        first_contact,
        link: end(Role::Client),
        element: element(Role::Client),
        v2: None,
    }
}

fn refusal(may_decline: bool, peer_knows: bool) -> LinkRefusal {
    LinkRefusal {
        diagnosis: Diagnosis::EYE_CATCHER,
        may_decline,
        peer_knows,
    }
}

// S1

#[test]
fn s1_proposal_is_put_to_the_driver() {
    let host = choosing();
    assert_eq!(host.machine.proposal(), Some(&proposal(CLIENT)));
}

#[test]
fn s1_proposal_may_come_in_pieces() {
    let bytes = wire(&Message::Proposal(proposal(CLIENT)));
    let mut host = s1();
    assert_eq!(host.machine.want(), 8);
    for byte in &bytes {
        assert_eq!(host.actions(), []);
        assert_eq!(host.bytes(&[*byte]), 1);
    }
    assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
}

#[test]
fn s1_version_2_with_an_offer_of_version_1_is_taken_as_version_1() {
    let mut host = s1();
    host.message(Message::Proposal(Proposal {
        version: 2,
        ..proposal(CLIENT)
    }));
    assert_eq!(host.actions(), [Todo::Do(Action::Contact)]);
    let contact = Contact::First(local(Role::Server));
    host.machine.handle_contact(contact, host.now).unwrap();
    assert_eq!(
        host.actions(),
        [Todo::Send(Message::Accept(describe(Role::Server, true)))]
    );
}

#[test]
fn s1_a_refusal_has_the_layout_of_the_proposals_version() {
    for (version, layout) in [(1, 1), (2, 2), (3, 2)] {
        let mut host = s1();
        host.message(Message::Proposal(Proposal {
            version,
            ..proposal(CLIENT)
        }));
        host.actions();
        let contact = Contact::Refuse(Diagnosis::SUBNET_MISMATCH);
        host.machine.handle_contact(contact, host.now).unwrap();
        host.expect_decline_with(SERVER, Diagnosis::SUBNET_MISMATCH, layout, false);
    }
}

#[test]
fn s1_unacceptable_proposals_are_declined() {
    let v2_only = {
        let mut message = proposal(CLIENT);
        message.version = 2;
        message.v1 = Err(ParseError::NotOffered);
        wire(&Message::Proposal(message))
    };
    let mut no_gid = wire(&Message::Proposal(proposal(CLIENT)));
    no_gid[16..32].fill(0);
    let mut bad_mask = wire(&Message::Proposal(proposal(CLIENT)));
    bad_mask[44] = 33;
    let mut path_d = wire(&Message::Proposal(proposal(CLIENT)));
    path_d[7] = 0x11;
    let mut no_peer = wire(&Message::Proposal(proposal(CLIENT)));
    no_peer[8..16].fill(0);
    let cases = [
        (v2_only, 2, Diagnosis::NO_DEVICE),
        (no_gid, 1, Diagnosis::NO_SMC_R_DEVICE),
        (bad_mask, 1, Diagnosis::SUBNET_MISMATCH),
        (path_d, 1, Diagnosis::NO_DEVICE),
        (no_peer, 1, Diagnosis::CONFIGURATION),
    ];
    for (bytes, version, reason) in cases {
        let mut host = s1();
        assert_eq!(host.bytes(&bytes), bytes.len());
        let fallback = host.expect_decline_with(SERVER, reason, version, false);
        assert!(!fallback.may_cross);
    }
}

#[test]
fn s1_decline_instead_of_a_proposal() {
    Host::takes_declines(s1);
}

#[test]
fn s1_other_bytes_fail_the_connection() {
    let mut host = s1();
    host.bytes(b"GET / HTTP/1.1\r\n");
    host.expect_failure(Failure::Damaged(ParseError::EyeCatcher));

    let mut bytes = wire(&Message::Proposal(proposal(CLIENT)));
    bytes[51] = 0xd8;
    let mut host = s1();
    host.bytes(&bytes);
    host.expect_failure(Failure::Damaged(ParseError::Trailer));

    let mut host = s1();
    host.message(Message::Confirm(describe(Role::Client, true)));
    host.expect_failure(Failure::Unexpected(Kind::Confirm));
}

#[test]
fn s1_silence_and_end_fail_the_connection() {
    let mut host = s1();
    assert_eq!(host.expire(), 6_000);
    host.expect_failure(Failure::TimedOut(Waiting::Proposal));

    let mut host = s1();
    host.machine.handle_eof();
    host.expect_failure(Failure::Closed);

    let mut host = s1();
    host.machine.handle_reset();
    host.expect_failure(Failure::Reset);
}

// The driver's choice

#[test]
fn a_choice_that_takes_too_long_is_a_refusal() {
    let mut host = choosing();
    host.machine
        .handle_contact(Contact::Wait, host.now)
        .unwrap();
    assert!(host.machine.proposal().is_some());
    assert_eq!(host.expire(), 4_000);
    host.expect_decline(SERVER, Diagnosis::TIMEOUT_CONFIRM_LINK);
    let late = host
        .machine
        .handle_contact(Contact::First(local(Role::Server)), host.now);
    assert_eq!(late, Err(Late));
    assert_eq!(host.actions(), []);
    assert_eq!(host.machine.proposal(), None);
}

#[test]
fn a_wait_can_end_well() {
    let mut host = choosing();
    host.machine
        .handle_contact(Contact::Wait, host.now)
        .unwrap();
    assert_eq!(host.actions(), []);
    host.now = Time::from_millis(3_999);
    host.machine.handle_timeout(host.now);
    let contact = Contact::Subsequent(local(Role::Server));
    host.machine.handle_contact(contact, host.now).unwrap();
    assert_eq!(host.actions().len(), 1);
    assert_eq!(host.expire(), 6_000);
}

#[test]
fn the_client_may_not_go_on_before_the_accept() {
    Host::takes_declines(choosing);
    let mut host = choosing();
    host.message(Message::Confirm(describe(Role::Client, true)));
    host.expect_failure(Failure::Unexpected(Kind::Confirm));
    let mut host = choosing();
    host.machine.handle_eof();
    host.expect_failure(Failure::Closed);
}

#[test]
fn a_server_can_be_out_of_sync() {
    let mut host = choosing();
    host.machine
        .handle_contact(Contact::OutOfSync, host.now)
        .unwrap();
    host.expect_decline_with(SERVER, Diagnosis::OUT_OF_SYNC, 1, true);
}

// S2

#[test]
fn s2_subsequent_contact_is_established() {
    for f in [false, true] {
        let mut host = s2(false);
        // F means nothing in a Confirm of version 1.
        host.message(Message::Confirm(describe(Role::Client, f)));
        assert_eq!(host.actions(), [Todo::Do(Action::Established(peer(false)))]);
        host.expect_over();
    }
}

// Only a client of a subsequent contact does not wait for us once it has sent its Confirm.
#[test]
fn s2_a_connection_may_be_in_use_before_its_confirm_is_here() {
    assert!(!s1().machine.may_be_in_use());
    assert!(!choosing().machine.may_be_in_use());
    assert!(!s2(true).machine.may_be_in_use());
    assert!(!s3().machine.may_be_in_use());
    let mut host = s2(false);
    assert!(host.machine.may_be_in_use());
    host.message(Message::Confirm(describe(Role::Client, false)));
    assert!(!host.machine.may_be_in_use());
}

#[test]
fn s2_a_subsequent_confirm_may_have_any_mtu_and_link() {
    let mut host = s2(false);
    let confirm = AcceptConfirm {
        mtu: None,
        qp: smc_proto::wire::QpNum::new(4711).unwrap(),
        ..describe(Role::Client, false)
    };
    host.message(Message::Confirm(confirm));
    let actions = host.actions();
    assert!(
        matches!(actions.as_slice(), [Todo::Do(Action::Established(peer))]
            if peer.link.qp.get() == 4711),
        "{actions:?}"
    );
}

// Linux as server takes what the Proposal says.
#[test]
fn s2_the_confirm_names_the_clients_port() {
    let link = LinkEnd {
        gid: Gid([9; 16]),
        mac: Mac([8; 6]),
        ..end(Role::Client)
    };
    let offered = proposal(CLIENT).v1.unwrap();
    assert!(offered.gid != link.gid && offered.mac != link.mac);
    // Before it comes, nothing is connected.
    let mut host = s2(true);
    host.message(Message::Confirm(AcceptConfirm {
        gid: link.gid,
        mac: link.mac,
        ..describe(Role::Client, true)
    }));
    assert_eq!(host.actions(), [Todo::Do(Action::ConnectLink(link))]);
    host.machine.handle_link_connected(host.now).unwrap();
    let start = Action::StartLink(Peer { link, ..peer(true) });
    assert_eq!(host.actions(), [Todo::Do(start)]);
}

// Linux has taken the smaller one already, others name that of their port.
#[test]
fn s2_the_smaller_mtu_is_that_of_the_queue_pair() {
    for own in 1..=5 {
        for confirmed in 1..=5 {
            let mtu = |code| MtuCode::new(code).unwrap();
            let mut host = choosing();
            let mut ours = local(Role::Server);
            ours.link.mtu = mtu(own);
            let contact = Contact::First(ours);
            host.machine.handle_contact(contact, host.now).unwrap();
            let accept = Message::Accept(AcceptConfirm {
                mtu: Some(mtu(own)),
                ..describe(Role::Server, true)
            });
            assert_eq!(host.actions(), [Todo::Send(accept)]);
            host.message(Message::Confirm(AcceptConfirm {
                mtu: Some(mtu(confirmed)),
                ..describe(Role::Client, true)
            }));
            let link = LinkEnd {
                mtu: mtu(own.min(confirmed)),
                ..end(Role::Client)
            };
            assert_eq!(host.actions(), [Todo::Do(Action::ConnectLink(link))]);
        }
    }
}

// RFC 7609 knows F in an Accept alone, Linux sets it in the Confirm of a first contact, too.
#[test]
fn s2_f_is_not_asked_for_on_first_contact() {
    for f in [false, true] {
        let mut host = s2(true);
        host.message(Message::Confirm(describe(Role::Client, f)));
        let connect = Action::ConnectLink(end(Role::Client));
        assert_eq!(host.actions(), [Todo::Do(connect)]);
        // The MTU matters all the same.
        let mut host = s2(true);
        host.message(Message::Confirm(AcceptConfirm {
            mtu: None,
            ..describe(Role::Client, f)
        }));
        host.expect_decline(SERVER, Diagnosis::CONFIGURATION);
    }
}

#[test]
fn s2_decline_and_damage() {
    for first in [false, true] {
        Host::takes_declines(|| s2(first));

        let mut host = s2(first);
        host.message(Message::Proposal(proposal(CLIENT)));
        host.expect_failure(Failure::Unexpected(Kind::Proposal));

        let mut host = s2(first);
        host.message(Message::Confirm(AcceptConfirm {
            peer_id: PeerId([7; 8]),
            ..describe(Role::Client, first)
        }));
        host.expect_failure(Failure::PeerChanged);

        let mut host = s2(first);
        let mut bytes = wire(&Message::Confirm(describe(Role::Client, first)));
        bytes[45] = 0;
        host.bytes(&bytes);
        host.expect_failure(Failure::Damaged(ParseError::RmbeIndex));

        let mut host = s2(first);
        assert_eq!(host.expire(), 6_000);
        host.expect_failure(Failure::TimedOut(Waiting::Confirm));

        let mut host = s2(first);
        host.machine.handle_eof();
        host.expect_failure(Failure::Closed);

        let mut host = s2(first);
        host.machine.handle_reset();
        host.expect_failure(Failure::Reset);
    }
}

#[test]
fn s2_refusable_confirms() {
    let no_gid = AcceptConfirm {
        gid: Gid([0; 16]),
        ..describe(Role::Client, true)
    };
    // The client still listens on first contact: it waits for CONFIRM LINK.
    let mut host = s2(true);
    host.message(Message::Confirm(no_gid));
    host.expect_decline(SERVER, Diagnosis::NO_SMC_R_DEVICE);
    // Otherwise it uses RDMA already.
    let mut host = s2(false);
    host.message(Message::Confirm(no_gid));
    host.expect_failure(Failure::Damaged(ParseError::Gid));

    let mut host = s2(true);
    host.message(Message::Confirm(AcceptConfirm {
        mtu: None,
        ..describe(Role::Client, true)
    }));
    host.expect_decline(SERVER, Diagnosis::CONFIGURATION);
}

#[test]
fn s2_a_confirm_of_version_2_was_not_asked_for() {
    let confirm = AcceptConfirm {
        v2: Some(AcceptV2 {
            eid: Eid::default(),
            first: None,
        }),
        ..describe(Role::Client, false)
    };
    let mut host = s2(true);
    host.message(Message::Confirm(confirm));
    host.expect_decline_with(SERVER, Diagnosis::MODE_NOT_OFFERED, 2, false);
    let mut host = s2(false);
    host.message(Message::Confirm(confirm));
    host.expect_failure(Failure::Unexpected(Kind::Confirm));
}

// Between S2 and S3

#[test]
fn a_link_that_cannot_be_connected_is_declined() {
    let mut host = connecting();
    host.machine
        .handle_link_refused(Diagnosis::READY_LINK)
        .unwrap();
    let fallback = host.expect_decline(SERVER, Diagnosis::READY_LINK);
    assert!(fallback.may_cross);

    let mut host = connecting();
    assert_eq!(host.expire(), 4_000);
    host.expect_decline(SERVER, Diagnosis::READY_LINK);
    assert_eq!(host.machine.handle_link_connected(host.now), Err(Late));
    assert_eq!(
        host.machine.handle_link_refused(Diagnosis::READY_LINK),
        Err(Late)
    );
    Host::takes_declines(connecting);
}

// S3 to S5

#[test]
fn s3_the_link_comes_up() {
    let mut host = s3();
    host.machine.handle_link(LinkResult::Up, host.now).unwrap();
    assert_eq!(host.actions(), [Todo::Do(Action::Established(peer(true)))]);
    host.expect_over();
    assert_eq!(
        host.machine.handle_link(LinkResult::Up, host.now),
        Err(Late)
    );
}

#[test]
fn s3_decline_on_tcp() {
    Host::takes_declines(s3);
}

#[test]
fn s3_other_bytes_on_tcp() {
    let mut host = s3();
    host.bytes(b"application data");
    host.expect_failure(Failure::Damaged(ParseError::EyeCatcher));
    let mut host = s3();
    host.message(Message::Confirm(describe(Role::Client, true)));
    host.expect_failure(Failure::Unexpected(Kind::Confirm));
    let mut host = s3();
    host.machine.handle_reset();
    host.expect_failure(Failure::Reset);
}

#[test]
fn s3_a_fin_means_nothing() {
    let mut host = s3();
    host.machine.handle_eof();
    assert_eq!(host.actions(), []);
    assert_eq!(host.machine.want(), 0);
    host.machine.handle_link(LinkResult::Up, host.now).unwrap();
    assert_eq!(host.actions(), [Todo::Do(Action::Established(peer(true)))]);
}

/// A client that closes takes its queue pair along: that says nothing of the way to it.
#[test]
fn s3_a_link_that_goes_with_its_client_is_not_held_against_it() {
    let timeout = Diagnosis::TIMEOUT_CONFIRM_LINK;
    for may_decline in [true, false] {
        for (eof, reason) in [(false, timeout), (true, Diagnosis::NO_ACTIVE_LINK)] {
            let mut host = s3();
            if eof {
                host.machine.handle_eof();
            }
            let failed = LinkResult::Failed(LinkRefusal {
                diagnosis: timeout,
                may_decline,
                peer_knows: false,
            });
            host.machine.handle_link(failed, host.now).unwrap();
            let trouble = if may_decline {
                host.expect_decline(SERVER, reason).trouble(true)
            } else {
                if !eof {
                    host.expire();
                }
                let failure = Failure::LinkFailed(reason);
                host.expect_failure(failure);
                failure.trouble(Role::Server, true)
            };
            assert_eq!(trouble.is_none(), eof);
        }
    }
    // What the client has said is told as it is.
    let mut host = s3();
    host.machine.handle_eof();
    let failed = LinkResult::Failed(refusal(true, false));
    host.machine.handle_link(failed, host.now).unwrap();
    host.expect_decline(SERVER, Diagnosis::EYE_CATCHER);
}

#[test]
fn s3_the_link_fails_inside_the_window() {
    let mut host = s3();
    let failed = LinkResult::Failed(refusal(true, false));
    host.machine.handle_link(failed, host.now).unwrap();
    let fallback = host.expect_decline(SERVER, Diagnosis::EYE_CATCHER);
    assert!(fallback.may_cross);
}

fn awaiting_decline(may_decline: bool) -> Host {
    let mut host = s3();
    let failed = LinkResult::Failed(refusal(may_decline, may_decline));
    host.machine.handle_link(failed, host.now).unwrap();
    assert_eq!(host.actions(), []);
    host
}

#[test]
fn s3_the_peer_may_decline_first() {
    for may_decline in [false, true] {
        Host::takes_declines(|| awaiting_decline(may_decline));
        let mut host = awaiting_decline(may_decline);
        assert_eq!(host.expire(), 1_000);
        if may_decline {
            host.expect_decline(SERVER, Diagnosis::EYE_CATCHER);
        } else {
            host.expect_failure(Failure::LinkFailed(Diagnosis::EYE_CATCHER));
        }
        let mut host = awaiting_decline(may_decline);
        host.machine.handle_eof();
        host.expect_failure(Failure::Closed);
    }
}

#[test]
fn s3_the_guard() {
    let mut host = s3();
    assert_eq!(host.expire(), 20_000);
    host.expect_failure(Failure::TimedOut(Waiting::Link));
}

#[test]
fn answers_out_of_turn_change_nothing() {
    for mut host in [s1(), s2(true), s2(false)] {
        let contact = Contact::First(local(Role::Server));
        assert_eq!(host.machine.handle_contact(contact, host.now), Err(Late));
        assert_eq!(host.machine.handle_link_connected(host.now), Err(Late));
        assert_eq!(
            host.machine.handle_link(LinkResult::Up, host.now),
            Err(Late)
        );
        assert_eq!(host.actions(), []);
        assert!(!host.machine.is_over());
    }
}

#[test]
fn offers_of_version_1_are_at_hand() {
    let host = choosing();
    let proposal = host.machine.proposal().unwrap();
    let Ok(OfferV1 { gid, mac, prefixes }) = proposal.smcr_v1() else {
        panic!("it is offered");
    };
    assert_eq!((*gid, *mac), (end(Role::Client).gid, end(Role::Client).mac));
    assert!(prefixes.matches_ipv4([192, 0, 2, 77], 24));
}

#[test]
fn a_long_decline_is_read_to_its_end() {
    // A Decline of version 2 in place of the Proposal has 44 bytes.
    let decline = Decline {
        version: 2,
        out_of_sync: false,
        peer_id: CLIENT,
        diagnosis: Diagnosis::MEMORY,
    };
    let bytes = wire(&Message::Decline(decline));
    assert_eq!(bytes.len(), 44);
    let mut host = s1();
    assert_eq!(host.bytes(&bytes), 44);
    host.expect_declined(Diagnosis::MEMORY, false);
}
