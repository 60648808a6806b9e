// SPDX-License-Identifier: GPL-2.0

//! What version 2 adds: the choice between the versions, the negotiation of enterprise IDs and
//! limits, and the longer messages of link groups.

use crate::{
    facts::{
        end,
        own_v2,
        proposal, //
    },
    talk::{
        accept,
        both,
        confirm,
        describe,
        eid,
        local,
        local_v2,
        offer,
        wire,
        with_v2,
        Talk,
        Todo,
        CLIENT,
        COMMON,
        SERVER, //
    },
};
use proptest::prelude::*;
use smc_proto::{
    clc::{
        AcceptConfirm,
        AcceptV2,
        FirstContact,
        Kind,
        Message,
        OfferV1,
        OfferV2,
        Proposal, //
    },
    group::{
        LinkIx,
        PeerRmb,
        PeerTable,
        Role, //
    },
    handshake::{
        accept_subsequent,
        Action,
        Client,
        Contact,
        Failure,
        LinkResult,
        OwnV2,
        Rendezvous,
        Server, //
    },
    llc::v2::{
        AddLinkExt,
        DeleteRkeyV2,
        Llc,
        RKeyWire,
        RequestAddLink, //
    },
    llc_flow::{
        DownReason,
        Event,
        Flow,
        FlowParams,
        LinkFailure,
        RmbId,
        Version, //
    },
    timer::{
        FlowTiming,
        HandshakeTiming,
        Time, //
    },
    wire::{
        ByteOrder,
        Diagnosis,
        Gid,
        List,
        ParseError,
        PeerId,
        RKey, //
    },
};

// Which version

#[test]
fn version_2_goes_first_and_its_failure_is_the_one_named() {
    let works = |_: &OfferV2| Ok(2);
    let fails = |_: &OfferV2| Err(Diagnosis::NO_USER_EID);
    assert_eq!(both().choose(works, || Ok(1)), Ok(2));
    assert_eq!(both().choose(fails, || Ok(1)), Ok(1));
    let none = both().choose(fails, || Err::<u8, _>(Diagnosis::SUBNET_MISMATCH));
    assert_eq!(none, Err(Diagnosis::NO_USER_EID));

    // Where only one is offered, only its failure counts.
    let v1 = proposal(CLIENT);
    assert_eq!(v1.choose(works, || Ok(1)), Ok(1));
    let none = v1.choose(works, || Err(Diagnosis::SUBNET_MISMATCH));
    assert_eq!(none, Err(Diagnosis::SUBNET_MISMATCH));
    let v2 = Proposal {
        v1: Err(ParseError::NotOffered),
        ..both()
    };
    assert_eq!(v2.choose(works, || Ok(1)), Ok(2));
    assert_eq!(v2.choose(fails, || Ok(1)), Err(Diagnosis::NO_USER_EID));
    // An offer that is no good does not hide the other.
    let bad = Proposal {
        v2: Err(ParseError::NoEid),
        ..both()
    };
    assert_eq!(bad.choose(works, || Ok(1)), Ok(1));
    let none = bad.choose(works, || Err(Diagnosis::SUBNET_MISMATCH));
    assert_eq!(none, Err(Diagnosis::NO_USER_EID));
}

#[test]
fn the_first_id_of_the_client_that_the_server_has_is_taken() {
    let own = own_v2(Role::Server, 2);
    assert_eq!(own.common_eid(&offer()), Ok(eid(COMMON)));
    let names: [&[u8]; 3] = [b"X", b"SERVER.LAB", COMMON];
    let two = OfferV2 {
        eids: List::from_slice(&names.map(eid)),
        ..offer()
    };
    assert_eq!(own.common_eid(&two), Ok(eid(b"SERVER.LAB")));
    let none = OwnV2 {
        eids: List::new(),
        ..own
    };
    assert_eq!(none.common_eid(&offer()), Err(Diagnosis::NO_USER_EID));
    assert_eq!(none.offer(Gid([1; 16])), None);
}

// The server

fn server() -> Talk<Server> {
    let now = Time::from_millis(0);
    let mut talk = Talk::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now));
    talk.message(Message::Proposal(both()));
    assert_eq!(talk.actions(), [Todo::Do(Action::Contact)]);
    talk
}

fn server_accepted(v2: AcceptV2) -> Talk<Server> {
    let mut talk = server();
    let local = local_v2(Role::Server, v2);
    let first = v2.first.is_some();
    let contact = if first {
        Contact::First(local)
    } else {
        Contact::Subsequent(local)
    };
    talk.machine.handle_contact(contact, talk.now).unwrap();
    let sent = with_v2(v2, describe(Role::Server, first));
    assert_eq!(talk.actions(), [Todo::Send(Message::Accept(sent))]);
    talk
}

#[test]
fn a_first_contact_of_the_server() {
    let mut talk = server_accepted(accept());
    let message = with_v2(confirm(), describe(Role::Client, true));
    talk.message(Message::Confirm(message));
    let connect = Action::ConnectLink(end(Role::Client));
    assert_eq!(talk.actions(), [Todo::Do(connect)]);
    talk.machine.handle_link_connected(talk.now).unwrap();
    assert!(matches!(
        talk.actions()[..],
        [Todo::Do(Action::StartLink(_))]
    ));
    talk.machine.handle_link(LinkResult::Up, talk.now).unwrap();
    let actions = talk.actions();
    let [Todo::Do(Action::Established(peer))] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert!(peer.first_contact);
    assert_eq!(peer.v2, Some(confirm()));
    talk.expect_over();
}

/// The first contact is in the latest release that both know, with what that release brings.
#[test]
fn a_later_release_of_the_client_is_not_taken_over() {
    for (offered, agreed) in [(9, 1), (1, 1), (0, 0)] {
        let limits = offer().limits.filter(|_| offered > 0);
        let later = OfferV2 {
            release: offered,
            limits,
            ..offer()
        };
        let now = Time::from_millis(0);
        let mut talk = Talk::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now));
        talk.message(Message::Proposal(Proposal {
            v2: Ok(later),
            ..both()
        }));
        assert_eq!(talk.actions(), [Todo::Do(Action::Contact)]);
        let heard = talk.machine.proposal().unwrap().v2.unwrap();
        assert_eq!(heard.release, offered);
        let accept = own_v2(Role::Server, 2).accept_first(&heard, eid(COMMON), true);
        let contact = Contact::First(local_v2(Role::Server, accept));
        talk.machine.handle_contact(contact, now).unwrap();
        let actions = talk.actions();
        let [Todo::Send(Message::Accept(sent))] = actions.as_slice() else {
            panic!("{actions:?}");
        };
        let first = sent.v2.unwrap().first.unwrap();
        assert_eq!(first.release, agreed);
        assert_eq!(first.limits.is_some(), agreed > 0);
    }
}

#[test]
fn a_client_that_offers_version_2_alone_need_not_say_who_it_is() {
    let nobody = Proposal {
        peer_id: PeerId([0; 8]),
        v1: Err(ParseError::NotOffered),
        ..both()
    };
    let now = Time::from_millis(0);
    let mut talk = Talk::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now));
    talk.message(Message::Proposal(nobody));
    assert_eq!(talk.actions(), [Todo::Do(Action::Contact)]);
    let contact = Contact::First(local_v2(Role::Server, accept()));
    talk.machine.handle_contact(contact, now).unwrap();
    talk.actions();
    talk.message(Message::Confirm(with_v2(
        confirm(),
        describe(Role::Client, true),
    )));
    let connect = Action::ConnectLink(end(Role::Client));
    assert_eq!(talk.actions(), [Todo::Do(connect)]);

    // With version 1 it has to, and then it has to remain who it is.
    let mut bytes = wire(&Message::Proposal(both()));
    bytes[8..16].fill(0);
    let mut talk = Talk::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now));
    talk.bytes(&bytes);
    talk.expect_decline_with(SERVER, Diagnosis::CONFIGURATION, 2, false);
    let mut talk = server_accepted(accept());
    let other = AcceptConfirm {
        peer_id: PeerId([7; 8]),
        ..with_v2(confirm(), describe(Role::Client, true))
    };
    talk.message(Message::Confirm(other));
    talk.expect_failure(Failure::PeerChanged);
}

#[test]
fn a_subsequent_contact_of_the_server() {
    let v2 = accept_subsequent(eid(COMMON));
    let mut talk = server_accepted(v2);
    talk.message(Message::Confirm(with_v2(v2, describe(Role::Client, false))));
    let actions = talk.actions();
    let [Todo::Do(Action::Established(peer))] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!((peer.first_contact, peer.v2), (false, Some(v2)));
}

#[test]
fn a_server_may_take_version_1_of_both() {
    let mut talk = server();
    let contact = Contact::First(local(Role::Server));
    talk.machine.handle_contact(contact, talk.now).unwrap();
    let sent = describe(Role::Server, true);
    assert_eq!(talk.actions(), [Todo::Send(Message::Accept(sent))]);
}

#[test]
fn a_server_takes_no_version_that_is_not_offered() {
    let cases = [
        (
            proposal(CLIENT),
            Contact::First(local_v2(Role::Server, accept())),
            1,
        ),
        (
            Proposal {
                v1: Err(ParseError::NotOffered),
                ..both()
            },
            Contact::First(local(Role::Server)),
            2,
        ),
        (
            both(),
            Contact::Subsequent(local_v2(Role::Server, accept())),
            2,
        ),
    ];
    for (proposal, contact, version) in cases {
        let now = Time::from_millis(0);
        let mut talk = Talk::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now));
        talk.message(Message::Proposal(proposal));
        talk.actions();
        talk.machine.handle_contact(contact, talk.now).unwrap();
        talk.expect_decline_with(SERVER, Diagnosis::INTERNAL, version, false);
    }
}

fn changed(v2: AcceptV2, change: impl FnOnce(&mut FirstContact)) -> AcceptV2 {
    let mut first = v2.first.unwrap();
    change(&mut first);
    AcceptV2 {
        first: Some(first),
        ..v2
    }
}

#[test]
fn a_confirm_that_says_something_else_is_declined() {
    let conns =
        |n| move |first: &mut FirstContact| first.limits.as_mut().unwrap().max_connections = n;
    let links = |n| move |first: &mut FirstContact| first.limits.as_mut().unwrap().max_links = n;
    let cases = [
        (
            AcceptV2 {
                eid: eid(b"CLIENT.LAB"),
                ..confirm()
            },
            Diagnosis::NO_USER_EID,
        ),
        (
            changed(confirm(), |first| {
                first.release = 0;
                first.limits = None;
            }),
            Diagnosis::RELEASE,
        ),
        (changed(confirm(), conns(254)), Diagnosis::MAX_CONNECTIONS),
        (changed(confirm(), conns(15)), Diagnosis::MAX_CONNECTIONS),
        (changed(confirm(), links(1)), Diagnosis::MAX_LINKS),
        (changed(confirm(), links(0)), Diagnosis::MAX_LINKS),
        (changed(confirm(), links(3)), Diagnosis::MAX_LINKS),
        (
            changed(confirm(), |first| first.direct = false),
            Diagnosis::INDIRECT,
        ),
        (accept_subsequent(eid(COMMON)), Diagnosis::CONFIGURATION),
    ];
    for (v2, reason) in cases {
        let mut talk = server_accepted(accept());
        let first = v2.first.is_some();
        talk.message(Message::Confirm(with_v2(v2, describe(Role::Client, first))));
        let fallback = talk.expect_decline_with(SERVER, reason, 2, false);
        assert!(fallback.may_cross);
    }
    // Version 1, after all.
    let mut talk = server_accepted(accept());
    talk.message(Message::Confirm(describe(Role::Client, true)));
    talk.expect_decline_with(SERVER, Diagnosis::MODE_NOT_OFFERED, 2, false);
    // On a subsequent contact the client uses the link already.
    let mut talk = server_accepted(accept_subsequent(eid(COMMON)));
    let other = accept_subsequent(eid(b"CLIENT.LAB"));
    talk.message(Message::Confirm(with_v2(
        other,
        describe(Role::Client, false),
    )));
    talk.expect_failure(Failure::Unexpected(Kind::Confirm));
}

// The client

fn client(proposal: &Proposal) -> Talk<Client> {
    let mut talk = Talk::new(Client::new(CLIENT, HandshakeTiming::DEFAULT));
    talk.machine.propose(proposal, talk.now).unwrap();
    assert_eq!(talk.actions(), [Todo::Send(Message::Proposal(*proposal))]);
    talk
}

#[test]
fn a_first_contact_of_the_client() {
    let mut talk = client(&both());
    talk.message(Message::Accept(with_v2(
        accept(),
        describe(Role::Server, true),
    )));
    assert_eq!(talk.actions(), [Todo::Do(Action::Contact)]);
    assert_eq!(talk.machine.offer().unwrap().v2, Some(accept()));
    let contact = Contact::First(local_v2(Role::Client, confirm()));
    talk.machine.handle_contact(contact, talk.now).unwrap();
    let sent = with_v2(confirm(), describe(Role::Client, true));
    assert_eq!(talk.actions(), [Todo::Send(Message::Confirm(sent))]);
    talk.machine.handle_link(LinkResult::Up, talk.now).unwrap();
    let actions = talk.actions();
    let [Todo::Do(Action::Established(peer))] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!(peer.v2, Some(accept()));
}

#[test]
fn the_server_may_choose_version_1() {
    let mut talk = client(&both());
    talk.message(Message::Accept(describe(Role::Server, true)));
    assert_eq!(talk.actions(), [Todo::Do(Action::Contact)]);
    assert_eq!(talk.machine.offer().unwrap().v2, None);
    // The driver cannot answer in another version.
    let contact = Contact::First(local_v2(Role::Client, confirm()));
    talk.machine.handle_contact(contact, talk.now).unwrap();
    talk.expect_decline_with(CLIENT, Diagnosis::INTERNAL, 1, false);
}

#[test]
fn an_accept_of_what_was_not_offered_is_declined() {
    let v2_only = Proposal {
        v1: Err(ParseError::NotOffered),
        ..both()
    };
    let few = Proposal {
        v2: Ok(OfferV2 {
            limits: OwnV2 {
                max_connections: 100,
                ..own_v2(Role::Client, 1)
            }
            .offer(offer().gid)
            .unwrap()
            .limits,
            ..offer()
        }),
        ..both()
    };
    let old = Proposal {
        v2: Ok(OfferV2 {
            release: 0,
            limits: None,
            ..offer()
        }),
        ..both()
    };
    let v2 = |v2: AcceptV2| with_v2(v2, describe(Role::Server, v2.first.is_some()));
    let less = changed(accept(), |first| {
        first.limits.as_mut().unwrap().max_connections = 100
    });
    let foreign = AcceptV2 {
        eid: eid(b"SERVER.LAB"),
        ..accept()
    };
    let cases = [
        (
            v2_only,
            describe(Role::Server, true),
            Diagnosis::MODE_NOT_OFFERED,
            1,
        ),
        (
            proposal(CLIENT),
            v2(accept()),
            Diagnosis::MODE_NOT_OFFERED,
            2,
        ),
        (both(), v2(foreign), Diagnosis::NO_USER_EID, 2),
        (
            both(),
            v2(accept_subsequent(eid(b"SERVER.LAB"))),
            Diagnosis::NO_USER_EID,
            2,
        ),
        (
            both(),
            v2(changed(accept(), |first| first.release = 2)),
            Diagnosis::RELEASE,
            2,
        ),
        (old, v2(accept()), Diagnosis::RELEASE, 2),
        (few, v2(accept()), Diagnosis::MAX_CONNECTIONS, 2),
        (few, v2(less), Diagnosis::MAX_LINKS, 2),
    ];
    for (proposal, accept, reason, version) in cases {
        let mut talk = client(&proposal);
        talk.message(Message::Accept(accept));
        talk.expect_decline_with(CLIENT, reason, version, false);
    }
}

#[test]
fn a_peer_of_release_0_has_no_limits() {
    let old = OfferV2 {
        release: 0,
        limits: None,
        ..offer()
    };
    let accept = own_v2(Role::Server, 2).accept_first(&old, eid(COMMON), true);
    let first = accept.first.unwrap();
    assert_eq!((first.release, first.limits), (0, None));
    let mut talk = client(&Proposal {
        v2: Ok(old),
        ..both()
    });
    talk.message(Message::Accept(with_v2(
        accept,
        describe(Role::Server, true),
    )));
    assert_eq!(talk.actions(), [Todo::Do(Action::Contact)]);
}

/// The feature mask of a Confirm is what both have, and the only feature there is belongs to SMC-D.
#[test]
fn features_that_only_the_peer_has_are_not_confirmed() {
    let told = |v2: &AcceptV2| v2.first.unwrap().limits.unwrap().features;
    assert_eq!(offer().limits.unwrap().features, 0);
    let mut eager = offer();
    eager.limits.as_mut().unwrap().features = 0xffff;
    let accept = own_v2(Role::Server, 2).accept_first(&eager, eid(COMMON), true);
    assert_eq!(told(&accept), 0);
    let eager = changed(accept, |first| {
        first.limits.as_mut().unwrap().features = 0xffff
    });
    let gid = end(Role::Client).gid;
    let confirm = own_v2(Role::Client, 2).confirm(&eager, gid, true);
    assert_eq!(told(&confirm), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_hosts_always_agree(
        client_limits in (16u8..=255, 1u8..=2),
        server_limits in (16u8..=255, 1u8..=2),
        direct: bool,
    ) {
        let own = |role, (max_connections, max_links)| OwnV2 {
            max_connections,
            ..own_v2(role, max_links)
        };
        let (client_own, server_own) = (own(Role::Client, client_limits), own(Role::Server, server_limits));
        let gid = end(Role::Client).gid;
        let proposal = Proposal { v2: Ok(client_own.offer(gid).unwrap()), ..both() };
        let mut near = client(&proposal);
        let now = Time::from_millis(0);
        let mut far = Talk::new(Server::new(SERVER, HandshakeTiming::DEFAULT, now));
        far.message(Message::Proposal(proposal));
        far.actions();
        let accept = {
            let offer = far.machine.proposal().unwrap().smcr_v2().unwrap();
            server_own.accept_first(offer, server_own.common_eid(offer).unwrap(), direct)
        };
        let contact = Contact::First(local_v2(Role::Server, accept));
        far.machine.handle_contact(contact, now).unwrap();
        let Todo::Send(message) = far.actions().pop().unwrap() else { panic!() };
        near.message(message);
        prop_assert_eq!(near.actions(), [Todo::Do(Action::Contact)]);
        let heard = near.machine.offer().unwrap().v2.unwrap();
        prop_assert_eq!(heard, accept);
        let limits = heard.first.unwrap().limits.unwrap();
        prop_assert_eq!(limits.max_connections, client_limits.0.min(server_limits.0));
        prop_assert_eq!(limits.max_links, client_limits.1.min(server_limits.1));
        let contact = Contact::First(local_v2(Role::Client, client_own.confirm(&heard, gid, direct)));
        near.machine.handle_contact(contact, now).unwrap();
        let Todo::Send(message) = near.actions().pop().unwrap() else { panic!() };
        far.message(message);
        let connect = Action::ConnectLink(end(Role::Client));
        prop_assert_eq!(far.actions(), [Todo::Do(connect)]);
    }
}

// The link group

struct Engine {
    flow: Flow,
    slots: Vec<PeerRmb>,
    now: Time,
}

impl Engine {
    fn new(role: Role, max_links: u8) -> Self {
        let mut flow = Flow::new(FlowParams {
            role,
            version: Version::Two { direct: true },
            max_links,
            max_connections: 200,
            user_id: 1,
            seed: 2,
            timing: FlowTiming::DEFAULT,
        });
        assert!(flow.add_connection());
        let now = Time::from_millis(0);
        flow.start(end(role), end(role.peer()), None, now);
        Self {
            flow,
            slots: vec![PeerRmb::EMPTY; 255],
            now,
        }
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let frames = std::iter::from_fn(|| self.flow.poll_send());
        frames.map(|send| send.message.to_vec()).collect()
    }

    fn only(&mut self) -> Vec<u8> {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut table = PeerTable::new(&mut self.slots);
        self.flow
            .handle_received(LinkIx::FIRST, bytes, &mut table, self.now);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.flow.poll_event()).collect()
    }

    /// The other side's CONFIRM LINK, in an order of bytes.
    fn confirm_link(role: Role, reply: bool, order: ByteOrder) -> Vec<u8> {
        let far = end(role);
        let message = Llc::ConfirmLink(smc_proto::llc::ConfirmLink {
            reply,
            no_eye_catcher: true,
            mac: far.mac,
            gid: far.gid,
            qp: far.qp,
            link: smc_proto::wire::LinkNum::new(1).unwrap(),
            user_id: [0; 4],
            max_links: 2,
            max_connections: 200,
        });
        emit(&message, order)
    }

    /// A server whose group is up, with a peer that uses this order of bytes.
    fn up(order: ByteOrder) -> Self {
        let mut engine = Self::new(Role::Server, 1);
        engine.only();
        engine.receive(&Self::confirm_link(Role::Client, true, order));
        assert_eq!(engine.events(), [Event::FirstContact(LinkResult::Up)]);
        assert!(engine.sent().is_empty(), "no other link was agreed on");
        engine
    }
}

fn emit(message: &Llc<'_>, order: ByteOrder) -> Vec<u8> {
    let mut bytes = [0; 8192];
    let len = message.emit(order, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

#[test]
fn confirm_link_repeats_the_limits() {
    let mut engine = Engine::new(Role::Server, 2);
    let sent = engine.only();
    assert_eq!(sent[..4], [0x21, 0, 44, 0x03]);
    assert_eq!((sent.len(), sent[34], sent[35]), (44, 2, 200));
}

#[test]
fn lengths_are_in_the_order_that_the_peer_shows() {
    for (order, len) in [(ByteOrder::Big, [0, 44]), (ByteOrder::Little, [44, 0])] {
        let mut client = Engine::new(Role::Client, 1);
        client.receive(&Engine::confirm_link(Role::Server, false, order));
        let reply = client.only();
        assert_eq!((reply[0], &reply[1..3]), (0x21, &len[..]));
        assert!(client.flow.is_usable(), "one link: there is no ADD LINK");

        let mut server = Engine::new(Role::Server, 2);
        server.only();
        server.receive(&Engine::confirm_link(Role::Client, true, order));
        let offer = server.only();
        let (message, found) = Llc::parse(&offer).unwrap();
        assert_eq!(found, order);
        let Llc::AddLink(message) = message else {
            panic!("{message:?}");
        };
        assert_eq!(offer.len(), 72);
        assert_eq!(
            message.ext,
            Some(AddLinkExt {
                direct: true,
                target_gid: end(Role::Client).gid,
                pairs: &[]
            })
        );
    }
}

#[test]
fn an_offered_link_is_refused_in_44_bytes() {
    let mut client = Engine::new(Role::Client, 2);
    client.receive(&Engine::confirm_link(
        Role::Server,
        false,
        ByteOrder::Little,
    ));
    client.only();
    assert!(!client.flow.is_usable());
    let mut offer = vec![0; 88];
    offer[..3].copy_from_slice(&[0x22, 88, 0]);
    offer[12..28].copy_from_slice(&end(Role::Server).gid.0);
    offer[31] = 2;
    offer[32] = 3;
    offer[70] = 1;
    client.receive(&offer);
    let reply = client.only();
    assert_eq!(reply.len(), 44);
    assert_eq!(reply[..4], [0x22, 44, 0, 0xc1]);
    assert!(client.flow.is_usable());
}

#[test]
fn the_server_keeps_the_limit_of_connections() {
    let mut server = Engine::up(ByteOrder::Little);
    assert!((1..200).all(|_| server.flow.add_connection()));
    assert!(!server.flow.add_connection());

    // Connections that the server has counted out may still be on their way out here.
    let mut client = Engine::new(Role::Client, 1);
    assert!(
        !client.flow.add_connection(),
        "only the first before all is set up"
    );
    client.receive(&Engine::confirm_link(
        Role::Server,
        false,
        ByteOrder::Little,
    ));
    assert!((1..400).all(|_| client.flow.add_connection()));
    assert!(!client.flow.add_connection());
}

#[test]
fn a_request_for_a_link_is_refused() {
    let mut engine = Engine::up(ByteOrder::Little);
    let gids = [end(Role::Client).gid; 2];
    let request = Llc::RequestAddLink(RequestAddLink {
        reply: false,
        gids: &gids,
    });
    engine.receive(&emit(&request, ByteOrder::Little));
    let mut refusal = [0; 44];
    refusal[..4].copy_from_slice(&[0x25, 44, 0, 0x80]);
    assert_eq!(engine.only(), refusal);
    // A client is not asked, and a refusal is no request.
    engine.receive(&refusal);
    assert!(engine.sent().is_empty());
    assert_eq!(engine.flow.counters().violations, 0);
}

/// A client of Linux starts nothing of its own before it has an answer, so it gets one while the first contact is not over
/// for the server, too.
#[test]
fn a_request_for_a_link_is_refused_before_the_group_is_up() {
    let gids = [end(Role::Client).gid; 2];
    let request = Llc::RequestAddLink(RequestAddLink {
        reply: false,
        gids: &gids,
    });
    let request = emit(&request, ByteOrder::Big);
    let mut refusal = [0; 44];
    refusal[..4].copy_from_slice(&[0x25, 0, 44, 0x80]);
    for confirmed in [false, true] {
        let mut engine = Engine::new(Role::Server, 2);
        if confirmed {
            engine.receive(&Engine::confirm_link(Role::Client, true, ByteOrder::Big));
        }
        engine.sent();
        engine.receive(&request);
        assert_eq!(engine.only(), refusal);
        engine.receive(&refusal);
        assert!(engine.sent().is_empty() && engine.events().is_empty());
    }
    // A client gives none.
    let mut engine = Engine::new(Role::Client, 2);
    engine.receive(&request);
    assert!(engine.sent().is_empty() && engine.events().is_empty());
}

/// A DELETE RKEY for all of these.
fn deletion(rkeys: &[RKeyWire]) -> Vec<u8> {
    let request = Llc::DeleteRkey(DeleteRkeyV2 {
        reply: false,
        negative: false,
        errors: 0,
        rkeys,
    });
    emit(&request, ByteOrder::Little)
}

#[test]
fn many_keys_are_deleted_at_once() {
    let mut engine = Engine::up(ByteOrder::Little);
    for rkey in 0..100 {
        let mut table = PeerTable::new(&mut engine.slots);
        table.add(LinkIx::FIRST, crate::facts::token(rkey)).unwrap();
    }
    let rkeys: Vec<RKeyWire> = (50..116).map(|rkey| RKey(rkey).into()).collect();
    engine.receive(&deletion(&rkeys));
    assert_eq!(PeerTable::new(&mut engine.slots).len(), 50);
    let reply = engine.only();
    assert_eq!(reply.len(), 44);
    // Sixteen were not known.
    assert_eq!(reply[..6], [0x29, 44, 0, 0xa0, 9, 16]);
    assert_eq!(reply[8..12], 50u32.to_be_bytes());
}

/// To look for a key among all takes its time, and a peer can send as many as it likes.
#[test]
fn a_peer_that_takes_away_what_nobody_knows_loses_the_group() {
    let mut engine = Engine::up(ByteOrder::Little);
    let rkeys: Vec<RKeyWire> = (1000..1017).map(|rkey| RKey(rkey).into()).collect();
    engine.receive(&deletion(&rkeys));
    let down = Event::Down(DownReason::LinkFailed(LinkFailure::Violation));
    let events = engine.events();
    assert!(events.contains(&down), "{events:?}");
}

/// While our request has no send slot nothing answers it, and so one alone waits.
#[test]
fn a_request_is_not_answered_before_it_is_sent() {
    let mut engine = Engine::up(ByteOrder::Little);
    let answer = Llc::DeleteRkey(DeleteRkeyV2 {
        reply: true,
        negative: false,
        errors: 0,
        rkeys: &[],
    });
    let answer = emit(&answer, ByteOrder::Little);
    for id in 1..4 {
        let rkey = RKey(id.into());
        engine.flow.withdraw(RmbId(id), rkey, engine.now).unwrap();
        engine.receive(&answer);
    }
    assert_eq!(engine.events(), []);
    assert!(engine.flow.poll_send().is_some());
    engine.flow.put_back();
    engine.receive(&answer);
    assert_eq!(engine.events(), []);
    for id in 1..4 {
        assert_eq!(engine.only()[..12].last_chunk(), Some(&[0, 0, 0, id as u8]));
        engine.receive(&answer);
        assert_eq!(engine.events(), [Event::RkeyDeleted(RmbId(id))]);
    }
}

#[test]
fn a_peer_that_takes_away_everything_in_use_loses_the_group() {
    let mut engine = Engine::up(ByteOrder::Little);
    let rkeys: Vec<RKeyWire> = (0..40).map(|rkey| RKey(rkey).into()).collect();
    for rkey in 0..40 {
        let element = smc_proto::group::Element {
            token: crate::facts::token(rkey),
            ..crate::facts::element(Role::Client)
        };
        let mut table = PeerTable::new(&mut engine.slots);
        table.claim(LinkIx::FIRST, &element).unwrap();
    }
    engine.receive(&deletion(&rkeys));
    let down = Event::Down(DownReason::LinkFailed(LinkFailure::Violation));
    let events = engine.events();
    assert!(events.contains(&down), "{events:?}");
}

#[test]
fn all_of_test_link_is_sent_back() {
    let mut engine = Engine::up(ByteOrder::Little);
    let mut message: [u8; 44] = std::array::from_fn(|i| 0xd3u8.wrapping_add(i as u8));
    message[..4].copy_from_slice(&[0x27, 44, 0, 0x55]);
    engine.receive(&message);
    message[3] |= 0x80;
    assert_eq!(engine.sent(), [message.to_vec()]);
}

#[test]
fn messages_of_version_1_have_no_effect() {
    let mut engine = Engine::up(ByteOrder::Big);
    let test = smc_proto::llc::TestLink::default();
    engine.receive(&smc_proto::llc::Llc::TestLink(test).emit());
    assert!(engine.sent().is_empty() && engine.events().is_empty());
    assert_eq!(engine.flow.counters().dropped, 1);
}

#[test]
fn in_version_2_the_gid_alone_names_the_port() {
    let engine = Engine::up(ByteOrder::Big);
    let far = end(Role::Client);
    let other = smc_proto::wire::Mac([2; 6]);
    assert_eq!(engine.flow.find_port(other, far.gid), Some(LinkIx::FIRST));
    let moved = smc_proto::group::LinkEnd { mac: other, ..far };
    assert_eq!(engine.flow.find_link(&moved), Some(LinkIx::FIRST));
    assert_eq!(engine.flow.find_port(far.mac, Gid([9; 16])), None);
}

#[test]
fn both_versions_fit_into_one_proposal() {
    let mut bytes = [0; 652];
    let len = Message::Proposal(both()).emit(&mut bytes).unwrap();
    let Ok(Message::Proposal(read)) = Message::parse(&bytes[..len]) else {
        panic!();
    };
    assert_eq!(read, both());
    let OfferV1 { gid, .. } = read.v1.unwrap();
    assert_eq!(gid, read.v2.unwrap().gid);
}
