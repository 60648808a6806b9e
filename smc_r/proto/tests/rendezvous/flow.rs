// SPDX-License-Identifier: GPL-2.0

//! Dialogues with the LLC engine of a link group, row by row of the protocol's tables.

use crate::facts::{
    element,
    end,
    token, //
};
use smc_proto::{
    group::{
        LinkIx,
        PeerRmb,
        PeerTable,
        Role, //
    },
    handshake::{
        Failure,
        LinkRefusal,
        LinkResult, //
    },
    llc::{
        AddLink,
        AddLinkLayout,
        ConfirmLink,
        ConfirmRkey,
        DeleteLink,
        DeleteReason,
        DeleteRkey,
        Llc,
        Reject,
        TestLink, //
    },
    llc_flow::{
        AddLinkAnswer,
        AddLinkView,
        DownReason,
        Event,
        Exchange,
        Flow,
        FlowParams,
        LinkFailure,
        Note,
        RmbId,
        ShutDown,
        Unavailable,
        Version,
        CONFIRM_RKEY_TRIES,
        OWN_EXCHANGES_MAX, //
    },
    timer::{
        FlowTiming,
        Time, //
    },
    wire::{
        Diagnosis,
        LinkNum,
        List,
        Mac,
        MtuCode,
        Psn,
        QpNum,
        RKey, //
    },
};

const LINK: LinkIx = LinkIx::FIRST;

/// A flow with what its driver owns.
struct Engine {
    flow: Flow,
    slots: Vec<PeerRmb>,
    now: Time,
    role: Role,
}

fn number(n: u8) -> LinkNum {
    LinkNum::new(n).unwrap()
}

fn spare() -> smc_proto::group::LinkEnd {
    smc_proto::group::LinkEnd {
        qp: QpNum::new(0x999).unwrap(),
        ..end(Role::Server)
    }
}

impl Engine {
    fn new(role: Role) -> Self {
        let mut engine = Self {
            flow: Flow::new(FlowParams {
                role,
                version: Version::One,
                max_links: 2,
                max_connections: 3,
                user_id: 0x01020304,
                seed: 5,
                timing: FlowTiming::DEFAULT,
            }),
            slots: vec![PeerRmb::EMPTY; 255],
            now: Time::from_millis(10_000),
            role,
        };
        assert!(engine.flow.add_connection());
        let spare = match role {
            Role::Server => Some(spare()),
            Role::Client => None,
        };
        let now = engine.now;
        engine.flow.start(end(role), end(role.peer()), spare, now);
        engine
    }

    /// A group whose first contact is over.
    fn active(role: Role) -> Self {
        let mut engine = Self::new(role);
        match role {
            Role::Server => {
                engine.sends();
                engine.receive(Llc::ConfirmLink(engine.peer_confirms()));
                engine.sends();
                engine.receive(Llc::AddLink(reject(offer(Role::Server))));
                assert_eq!(
                    engine.events(),
                    [Event::SpareFree, Event::FirstContact(LinkResult::Up)]
                );
            }
            Role::Client => {
                engine.receive(Llc::ConfirmLink(engine.peer_confirms()));
                engine.sends();
                engine.receive(Llc::AddLink(offer(Role::Server)));
                engine.sends();
                assert_eq!(engine.events(), [Event::FirstContact(LinkResult::Up)]);
            }
        }
        assert!(engine.flow.is_usable());
        engine
    }

    /// The peer's side of CONFIRM LINK as it should be.
    fn peer_confirms(&self) -> ConfirmLink {
        let peer = end(self.role.peer());
        ConfirmLink {
            reply: self.role == Role::Server,
            no_eye_catcher: true,
            mac: peer.mac,
            gid: peer.gid,
            qp: peer.qp,
            link: number(1),
            user_id: [9; 4],
            max_links: 2,
            max_connections: 0,
        }
    }

    fn receive(&mut self, message: Llc) {
        self.receive_bytes(&message.emit());
    }

    fn receive_bytes(&mut self, bytes: &[u8]) {
        let mut table = PeerTable::new(&mut self.slots);
        self.flow.handle_received(LINK, bytes, &mut table, self.now);
    }

    fn sends(&mut self) -> Vec<Llc> {
        self.noted()
            .into_iter()
            .map(|(message, _)| message)
            .collect()
    }

    fn noted(&mut self) -> Vec<(Llc, Option<Note>)> {
        let mut all = Vec::new();
        while let Some(send) = self.flow.poll_send() {
            assert_eq!(send.link, LINK);
            all.push((Llc::parse(&send.message).unwrap(), send.note));
        }
        all
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.flow.poll_event()).collect()
    }

    fn pass(&mut self, ms: u32) {
        self.now = self.now.after(ms);
        self.flow.handle_timeout(self.now);
    }

    /// Lets time pass up to the next deadline, and tells how long that was.
    fn expire(&mut self) -> u64 {
        let deadline = self.flow.next_deadline().expect("a deadline");
        let span = deadline.since(self.now);
        self.flow
            .handle_timeout(Time::from_millis(deadline.as_millis() - 1));
        assert_eq!(
            self.flow.next_deadline(),
            Some(deadline),
            "too early is harmless"
        );
        self.now = deadline;
        self.flow.handle_timeout(deadline);
        span
    }

    fn drops(&mut self, message: Llc) {
        self.drops_bytes(&message.emit());
    }

    /// The one message that is sent: a request to test the link.
    fn test_request(&mut self) -> TestLink {
        let sends = self.sends();
        let [Llc::TestLink(request)] = sends.as_slice() else {
            panic!("{sends:?}");
        };
        *request
    }

    /// The message has no effect but that it is counted.
    fn drops_bytes(&mut self, message: &[u8]) {
        self.has_no_effect(message, 1);
    }

    /// The group is over: the message is not counted, either.
    fn passes_over(&mut self, message: Llc) {
        self.has_no_effect(&message.emit(), 0);
    }

    fn has_no_effect(&mut self, message: &[u8], dropped: u64) {
        let before = self.flow.counters();
        let deadline = self.flow.next_deadline();
        self.receive_bytes(message);
        assert_eq!(self.flow.counters().dropped, before.dropped + dropped);
        assert_eq!(self.sends(), []);
        assert_eq!(self.events(), []);
        let later = self.flow.next_deadline();
        assert!(
            later >= deadline,
            "an ignored message must not shorten a wait"
        );
    }

    fn announce(&mut self, id: u16) -> Result<(), Unavailable> {
        self.flow
            .announce(RmbId(id), token(u32::from(id)), self.now)
    }

    fn withdraw(&mut self, id: u16) -> Result<(), Unavailable> {
        self.flow.withdraw(RmbId(id), RKey(u32::from(id)), self.now)
    }

    fn expect_violation(&mut self) {
        assert_eq!(
            self.events(),
            [Event::Down(DownReason::LinkFailed(LinkFailure::Violation))]
        );
        let last = self.noted();
        assert_eq!(
            last,
            [(delete_all(false, DeleteReason::PROTOCOL), Some(Note::Last))]
        );
        self.flow.handle_sent(LINK, Note::Last, true, self.now);
        assert_eq!(self.events(), [Event::Release]);
        assert_eq!(self.flow.next_deadline(), None);
    }
}

fn delete_all(orderly: bool, reason: DeleteReason) -> Llc {
    Llc::DeleteLink(DeleteLink {
        reply: false,
        all: true,
        orderly,
        link: None,
        reason,
    })
}

fn delete_one(link: u8, reply: bool, reason: DeleteReason) -> Llc {
    Llc::DeleteLink(DeleteLink {
        reply,
        all: false,
        orderly: false,
        link: LinkNum::new(link),
        reason,
    })
}

/// The ADD LINK that a server sends.
fn offer(role: Role) -> AddLink {
    let from = match role {
        Role::Server => spare(),
        Role::Client => end(Role::Client),
    };
    AddLink {
        reply: false,
        reject: None,
        mac: from.mac,
        gid: from.gid,
        qp: from.qp,
        link: Some(number(2)),
        mtu: Some(from.mtu),
        psn: from.psn,
        layout: AddLinkLayout::Deployed,
    }
}

fn reject(offer: AddLink) -> AddLink {
    offer.rejection(Reject::NoPath)
}

fn failed(diagnosis: Diagnosis, may_decline: bool, peer_knows: bool) -> Event {
    Event::FirstContact(LinkResult::Failed(LinkRefusal {
        diagnosis,
        may_decline,
        peer_knows,
    }))
}

// First contact, server

#[test]
fn server_confirms_and_offers() {
    let mut server = Engine::new(Role::Server);
    let sends = server.noted();
    let end = end(Role::Server);
    assert_eq!(
        sends,
        [(
            Llc::ConfirmLink(ConfirmLink {
                reply: false,
                no_eye_catcher: true,
                mac: end.mac,
                gid: end.gid,
                qp: end.qp,
                link: number(1),
                user_id: [1, 2, 3, 4],
                max_links: 2,
                max_connections: 0,
            }),
            Some(Note::ConfirmLink)
        )]
    );
    server
        .flow
        .handle_sent(LINK, Note::ConfirmLink, true, server.now);
    assert!(!server.flow.is_usable());
    assert!(
        !server.flow.add_connection(),
        "only that of the first contact"
    );
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    assert_eq!(server.noted(), [(Llc::AddLink(offer(Role::Server)), None)]);
    assert_eq!(server.events(), []);
    server.receive(Llc::AddLink(reject(offer(Role::Server))));
    assert_eq!(
        server.events(),
        [Event::SpareFree, Event::FirstContact(LinkResult::Up)]
    );
    assert_eq!(server.sends(), []);
    assert!(server.flow.is_usable() && server.flow.add_connection());
}

#[test]
fn server_without_a_spare_offers_its_own_end() {
    let mut flow = Flow::new(FlowParams {
        role: Role::Server,
        version: Version::One,
        max_links: 2,
        max_connections: 3,
        user_id: 0,
        seed: 5,
        timing: FlowTiming::DEFAULT,
    });
    let now = Time::from_millis(0);
    flow.start(end(Role::Server), end(Role::Client), None, now);
    flow.poll_send().unwrap();
    let mut slots = [PeerRmb::EMPTY; 1];
    let mut table = PeerTable::new(&mut slots);
    let reply = Engine::new(Role::Server).peer_confirms();
    flow.handle_received(LINK, &Llc::ConfirmLink(reply).emit(), &mut table, now);
    let Ok(Llc::AddLink(sent)) = Llc::parse(&flow.poll_send().unwrap().message) else {
        panic!("ADD LINK comes next");
    };
    assert_eq!(sent.qp, end(Role::Server).qp);
    flow.handle_received(LINK, &Llc::AddLink(reject(sent)).emit(), &mut table, now);
    assert_eq!(flow.poll_event(), Some(Event::FirstContact(LinkResult::Up)));
}

#[test]
fn server_deletes_what_a_client_accepts() {
    let mut server = Engine::new(Role::Server);
    server.sends();
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    server.sends();
    let accepted = AddLink {
        reply: true,
        ..AddLink {
            link: Some(number(2)),
            ..offer(Role::Client)
        }
    };
    server.receive(Llc::AddLink(accepted));
    let Llc::DeleteLink(delete) = delete_one(2, false, DeleteReason::PROGRAM) else {
        unreachable!();
    };
    let delete = Llc::DeleteLink(DeleteLink {
        orderly: true,
        ..delete
    });
    assert_eq!(server.sends(), [delete]);
    assert_eq!(
        server.events(),
        [Event::SpareFree, Event::FirstContact(LinkResult::Up)]
    );
    // RKEYs do not change before that is settled.
    server.announce(1).unwrap();
    assert_eq!(server.sends(), []);
    server.receive(delete_one(2, true, DeleteReason::DONE));
    assert_eq!(
        server.sends(),
        [Llc::ConfirmRkey(ConfirmRkey::request(token(1)))]
    );
}

/// A client of Linux that waits for keys drops DELETE LINK, and takes its word back.
#[test]
fn server_need_not_delete_what_a_client_takes_back() {
    let mut server = Engine::new(Role::Server);
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    let accepted = AddLink {
        reply: true,
        ..offer(Role::Client)
    };
    server.receive(Llc::AddLink(accepted));
    server.sends();
    server.events();
    server.announce(1).unwrap();
    assert_eq!(server.sends(), []);
    // That of another link says nothing of this one, and an acceptance comes once.
    let other = AddLink {
        link: Some(number(3)),
        ..offer(Role::Client)
    };
    server.drops(Llc::AddLink(reject(other)));
    server.drops(Llc::AddLink(accepted));
    assert_eq!(server.sends(), []);
    server.receive(Llc::AddLink(reject(offer(Role::Client))));
    assert_eq!(
        server.sends(),
        [Llc::ConfirmRkey(ConfirmRkey::request(token(1)))]
    );
    // There may be an answer to DELETE LINK, too.
    server.drops(delete_one(2, true, DeleteReason::NO_SUCH_LINK));
}

#[test]
fn server_goes_on_if_the_accepted_link_is_not_deleted() {
    let mut server = Engine::new(Role::Server);
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    server.receive(Llc::AddLink(AddLink {
        reply: true,
        ..offer(Role::Server)
    }));
    server.sends();
    server.events();
    server.announce(1).unwrap();
    assert_eq!(server.expire(), 5_000);
    assert_eq!(server.sends().len(), 1, "the RKEY exchange had to wait");
    assert!(server.flow.is_usable());
    assert_eq!(server.events(), []);
}

#[test]
fn server_rejects_bad_confirm_link_replies() {
    let good = Engine::new(Role::Server).peer_confirms();
    let bad = [
        (
            ConfirmLink {
                no_eye_catcher: false,
                ..good
            },
            Diagnosis::EYE_CATCHER,
        ),
        (
            ConfirmLink {
                mac: Mac([2; 6]),
                ..good
            },
            Diagnosis::INTERNAL,
        ),
        (
            ConfirmLink {
                qp: QpNum::new(77).unwrap(),
                ..good
            },
            Diagnosis::INTERNAL,
        ),
        (
            ConfirmLink {
                gid: end(Role::Server).gid,
                ..good
            },
            Diagnosis::INTERNAL,
        ),
        (
            ConfirmLink {
                link: number(2),
                ..good
            },
            Diagnosis::INTERNAL,
        ),
    ];
    for (reply, diagnosis) in bad {
        let mut server = Engine::new(Role::Server);
        server
            .flow
            .handle_sent(LINK, Note::ConfirmLink, true, server.now);
        server.sends();
        server.receive(Llc::ConfirmLink(reply));
        assert_eq!(
            server.events(),
            [failed(diagnosis, true, false)],
            "{reply:?}"
        );
        assert_eq!(server.sends(), []);
        assert!(server.flow.is_over());
        assert_eq!(server.flow.next_deadline(), None);
    }
}

#[test]
fn server_whose_confirm_link_fails_may_decline() {
    let mut server = Engine::new(Role::Server);
    server.sends();
    server
        .flow
        .handle_sent(LINK, Note::ConfirmLink, false, server.now);
    assert_eq!(
        server.events(),
        [failed(Diagnosis::TIMEOUT_CONFIRM_LINK, true, false)]
    );
}

#[test]
fn server_waits_five_seconds_for_the_reply() {
    for (delivered, may_decline) in [(false, true), (true, false)] {
        let mut server = Engine::new(Role::Server);
        if delivered {
            server
                .flow
                .handle_sent(LINK, Note::ConfirmLink, true, server.now);
        }
        server.sends();
        assert_eq!(server.expire(), 5_000);
        assert_eq!(
            server.events(),
            [failed(Diagnosis::TIMEOUT_CONFIRM_LINK, may_decline, false)]
        );
    }
}

#[test]
fn server_keeps_one_link_without_an_add_link_reply() {
    let mut server = Engine::new(Role::Server);
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    server.sends();
    assert_eq!(server.expire(), 5_000);
    assert_eq!(
        server.events(),
        [Event::SpareFree, Event::FirstContact(LinkResult::Up)]
    );
    // The late reply is nobody's.
    server.drops(Llc::AddLink(reject(offer(Role::Server))));
}

#[test]
fn server_whose_link_fails_late_must_not_decline() {
    let mut server = Engine::new(Role::Server);
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    server.sends();
    server.flow.handle_link_failed(LINK, server.now);
    assert_eq!(
        server.events(),
        [failed(Diagnosis::NO_ACTIVE_LINK, false, false)]
    );
    blames_nobody(Diagnosis::NO_ACTIVE_LINK);
}

/// CONFIRM LINK came through: the peer's address is not remembered as one that RDMA does not get to.
fn blames_nobody(reason: Diagnosis) {
    for role in [Role::Client, Role::Server] {
        assert_eq!(Failure::LinkFailed(reason).trouble(role, true), None);
    }
}

#[test]
fn server_takes_an_acceptance_of_another_link_as_a_violation() {
    let mut server = Engine::new(Role::Server);
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    server.sends();
    server.receive(Llc::AddLink(AddLink {
        reply: true,
        link: Some(number(3)),
        ..offer(Role::Server)
    }));
    assert_eq!(server.events(), [failed(Diagnosis::INTERNAL, false, false)]);
}

#[test]
fn the_smaller_maximum_of_links_counts() {
    for (theirs, ours) in [(0, 2), (2, 2), (8, 2)] {
        let mut server = Engine::new(Role::Server);
        let reply = ConfirmLink {
            max_links: theirs,
            ..server.peer_confirms()
        };
        server.receive(Llc::ConfirmLink(reply));
        assert_eq!(server.flow.max_links(), ours);
    }
    let mut client = Engine::new(Role::Client);
    client.receive(Llc::ConfirmLink(ConfirmLink {
        max_links: 8,
        ..client.peer_confirms()
    }));
    let sends = client.sends();
    assert!(matches!(sends.as_slice(), [Llc::ConfirmLink(reply)] if reply.max_links == 2));
}

// First contact, client

#[test]
fn client_answers_and_rejects() {
    let mut client = Engine::new(Role::Client);
    assert_eq!(client.sends(), []);
    client.receive(Llc::ConfirmLink(client.peer_confirms()));
    let end = end(Role::Client);
    assert_eq!(
        client.noted(),
        [(
            Llc::ConfirmLink(ConfirmLink {
                reply: true,
                no_eye_catcher: true,
                mac: end.mac,
                gid: end.gid,
                qp: end.qp,
                link: number(1),
                user_id: [1, 2, 3, 4],
                max_links: 2,
                max_connections: 0,
            }),
            Some(Note::ConfirmLinkReply)
        )]
    );
    assert_eq!(client.flow.link_number(LINK), Some(number(1)));
    client
        .flow
        .handle_sent(LINK, Note::ConfirmLinkReply, true, client.now);
    assert_eq!(client.events(), []);
    client.receive(Llc::AddLink(offer(Role::Server)));
    assert_eq!(
        client.sends(),
        [Llc::AddLink(offer(Role::Server).rejection(Reject::NoPath))]
    );
    assert_eq!(client.events(), [Event::FirstContact(LinkResult::Up)]);
}

#[test]
fn client_rejects_a_reserved_mtu_with_its_own_reason() {
    let mut client = Engine::new(Role::Client);
    client.receive(Llc::ConfirmLink(client.peer_confirms()));
    client.sends();
    let offer = AddLink {
        mtu: None,
        ..offer(Role::Server)
    };
    client.receive(Llc::AddLink(offer));
    assert_eq!(client.sends(), [Llc::AddLink(offer.rejection(Reject::Mtu))]);
    assert_eq!(client.events(), [Event::FirstContact(LinkResult::Up)]);
}

#[test]
fn client_rejects_bad_confirm_link_requests() {
    let good = Engine::new(Role::Client).peer_confirms();
    let bad = [
        (
            ConfirmLink {
                no_eye_catcher: false,
                ..good
            },
            Diagnosis::EYE_CATCHER,
        ),
        (
            ConfirmLink {
                mac: Mac([2; 6]),
                ..good
            },
            Diagnosis::INTERNAL,
        ),
        (
            ConfirmLink {
                qp: QpNum::new(77).unwrap(),
                ..good
            },
            Diagnosis::INTERNAL,
        ),
    ];
    for (request, diagnosis) in bad {
        let mut client = Engine::new(Role::Client);
        client.receive(Llc::ConfirmLink(request));
        assert_eq!(client.events(), [failed(diagnosis, true, false)]);
        assert_eq!(client.sends(), []);
    }
}

#[test]
fn client_waits_eight_seconds_for_confirm_link() {
    let mut client = Engine::new(Role::Client);
    assert_eq!(client.expire(), 8_000);
    assert_eq!(
        client.events(),
        [failed(Diagnosis::TIMEOUT_CONFIRM_LINK, true, false)]
    );
}

#[test]
fn client_goes_on_without_add_link_if_its_reply_got_through() {
    let mut client = Engine::new(Role::Client);
    client.receive(Llc::ConfirmLink(client.peer_confirms()));
    client.sends();
    client
        .flow
        .handle_sent(LINK, Note::ConfirmLinkReply, true, client.now);
    assert_eq!(client.expire(), 4_000);
    assert_eq!(client.events(), [Event::FirstContact(LinkResult::Up)]);

    let mut client = Engine::new(Role::Client);
    client.receive(Llc::ConfirmLink(client.peer_confirms()));
    client.sends();
    assert_eq!(client.expire(), 4_000);
    assert_eq!(
        client.events(),
        [failed(Diagnosis::TIMEOUT_CONFIRM_LINK, true, false)]
    );
}

#[test]
fn client_may_decline_until_its_reply_got_through() {
    let (timeout, lost) = (Diagnosis::TIMEOUT_CONFIRM_LINK, Diagnosis::NO_ACTIVE_LINK);
    for (delivered, may_decline, reason) in [(false, true, timeout), (true, false, lost)] {
        let mut client = Engine::new(Role::Client);
        client.receive(Llc::ConfirmLink(client.peer_confirms()));
        client.sends();
        if delivered {
            client
                .flow
                .handle_sent(LINK, Note::ConfirmLinkReply, true, client.now);
        }
        client.flow.handle_link_failed(LINK, client.now);
        assert_eq!(client.events(), [failed(reason, may_decline, false)]);
    }
    let mut client = Engine::new(Role::Client);
    client.receive(Llc::ConfirmLink(client.peer_confirms()));
    client
        .flow
        .handle_sent(LINK, Note::ConfirmLinkReply, false, client.now);
    assert_eq!(
        client.events(),
        [failed(Diagnosis::TIMEOUT_CONFIRM_LINK, true, false)]
    );
}

#[test]
fn client_rejects_later_offers_too() {
    let mut client = Engine::active(Role::Client);
    client.receive(Llc::AddLink(offer(Role::Server)));
    assert_eq!(client.sends(), [Llc::AddLink(reject(offer(Role::Server)))]);
    assert_eq!(client.events(), []);
}

#[test]
fn the_answers_to_an_offer() {
    let view = |same_server_port, spare_client_port, has_asymmetric| AddLinkView {
        same_server_port,
        spare_client_port,
        has_asymmetric,
        room: true,
        mtu_valid: true,
    };
    use AddLinkAnswer::{Asymmetric, InvalidMtu, NoAlternatePath, Symmetric};
    assert_eq!(view(false, true, false).answer(), Symmetric);
    assert_eq!(view(false, true, true).answer(), Symmetric);
    assert_eq!(view(false, false, false).answer(), Asymmetric);
    assert_eq!(view(false, false, true).answer(), NoAlternatePath);
    assert_eq!(view(true, true, false).answer(), Asymmetric);
    assert_eq!(view(true, true, true).answer(), NoAlternatePath);
    assert_eq!(view(true, false, false).answer(), NoAlternatePath);
    let full = AddLinkView {
        room: false,
        ..view(false, true, false)
    };
    assert_eq!(full.answer(), NoAlternatePath);
    let bad = AddLinkView {
        mtu_valid: false,
        ..view(false, true, false)
    };
    assert_eq!(bad.answer(), InvalidMtu);
}

#[test]
fn the_peer_may_end_a_first_contact() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::new(role);
        engine.sends();
        engine.receive(delete_all(false, DeleteReason::PATH_LOST));
        let events = engine.events();
        assert!(
            matches!(events.as_slice(), [Event::FirstContact(LinkResult::Failed(refusal))]
                if refusal.peer_knows && refusal.may_decline),
            "{events:?}"
        );
        assert_eq!(engine.sends(), []);
    }
}

#[test]
fn a_shut_down_ends_a_first_contact() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::new(role);
        engine.sends();
        engine.flow.shut_down(ShutDown::Operator, engine.now);
        assert_eq!(
            engine.events(),
            [failed(Diagnosis::TIMEOUT_CONFIRM_LINK, true, false)]
        );
        assert!(engine.flow.is_over());
    }
}

#[test]
fn an_abandoned_group_is_silent() {
    let mut server = Engine::new(Role::Server);
    assert!(server.flow.abandon(false));
    assert_eq!(server.sends(), []);
    server.passes_over(Llc::ConfirmLink(server.peer_confirms()));
    server.flow.handle_link_failed(LINK, server.now);
    server.pass(100_000);
    assert_eq!(server.events(), []);
    assert_eq!(server.flow.next_deadline(), None);
    assert!(!server.flow.add_connection());
}

// The reset of the connection that made the group may be noticed when others use it already.
#[test]
fn a_group_whose_first_contact_is_over_is_not_abandoned() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::active(role);
        assert!(engine.flow.add_connection());
        assert!(!engine.flow.abandon(false));
        assert!(!engine.flow.is_over());
        assert!(engine.flow.add_connection());
        // But nothing holds it if the peer has said that it is of no use.
        assert!(engine.flow.abandon(true));
        assert!(engine.flow.is_over());
        assert!(engine.flow.abandon(false));
    }
}

/// A server may use the connection from CONFIRM LINK on, and is told of its end over the link by its client.
#[test]
fn a_confirmed_link_outlives_a_connection_that_nobody_wants() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::new(role);
        engine.sends();
        assert!(!engine.flow.may_be_in_use());
        assert!(engine.flow.settle(), "nothing is confirmed");
        assert!(engine.flow.is_over());
    }
    let mut server = Engine::new(Role::Server);
    server.sends();
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    assert!(server.flow.may_be_in_use());
    // Nothing follows in a group of one link, which only version 2 has.
    let mut single = Flow::new(FlowParams {
        role: Role::Server,
        version: Version::Two { direct: true },
        max_links: 1,
        max_connections: 3,
        user_id: 1,
        seed: 5,
        timing: FlowTiming::DEFAULT,
    });
    assert!(!single.may_be_in_use());
    let now = server.now;
    single.start(end(Role::Server), end(Role::Client), None, now);
    assert!(single.may_be_in_use());
    assert!(server.flow.settle());
    assert!(server.flow.is_over() && !server.flow.may_be_in_use());

    let mut client = Engine::new(Role::Client);
    client.receive(Llc::ConfirmLink(client.peer_confirms()));
    assert_eq!(client.events(), []);
    assert!(!client.flow.is_usable());
    assert!(!client.flow.settle());
    let up = Event::FirstContact(LinkResult::Up);
    assert_eq!(client.events(), [up]);
    assert!(client.flow.is_usable());
    assert!(!client.flow.settle());
    assert_eq!(client.events(), []);
}

// The wrong message at the wrong moment

#[test]
fn messages_that_mean_nothing_now_are_dropped() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::active(role);
        let mut request = engine.peer_confirms();
        request.reply = false;
        engine.drops(Llc::ConfirmLink(request));
        engine.drops(Llc::ConfirmLink(ConfirmLink {
            reply: true,
            ..request
        }));
        engine.drops(Llc::AddLink(reject(offer(Role::Server))));
        engine.drops(Llc::ConfirmRkey(ConfirmRkey::request(token(1)).accepted()));
        engine.drops(Llc::DeleteRkey(DeleteRkey::request(RKey(1)).answered(0)));
        engine.drops(Llc::TestLink(TestLink {
            reply: true,
            data: [1; 16],
            ..TestLink::default()
        }));
        engine.drops(delete_one(1, true, DeleteReason::DONE));
        engine.drops(delete_one(7, true, DeleteReason::NO_SUCH_LINK));
        // Types of version 2, continuations, and types that ask to be dropped.
        for first in [0x21u8, 0x25, 0x03, 0x08, 0x80, 0xbf] {
            let mut bytes = [0u8; 44];
            bytes[0] = first;
            bytes[1] = 44;
            bytes[4] = 1;
            engine.drops_bytes(&bytes);
        }
    }
    let mut server = Engine::active(Role::Server);
    // A hint of the client.
    server.drops(Llc::AddLink(AddLink {
        link: None,
        mtu: None,
        psn: Psn::truncate(0),
        qp: QpNum::new(0).unwrap(),
        ..offer(Role::Client)
    }));
    let mut client = Engine::new(Role::Client);
    client.drops(Llc::AddLink(offer(Role::Server)));
}

#[test]
fn breaches_end_the_link() {
    let good = Llc::TestLink(TestLink::default()).emit();
    let mut wrong_length = good;
    wrong_length[1] = 43;
    let mut unknown = good;
    unknown[0] = 0x0a;
    let mut reserved = good;
    reserved[0] = 0xc1;
    for bytes in [
        &wrong_length[..],
        &unknown,
        &reserved,
        &good[..43],
        &good[..1],
    ] {
        for role in [Role::Client, Role::Server] {
            let mut engine = Engine::active(role);
            engine.receive_bytes(bytes);
            engine.expect_violation();
            assert_eq!(engine.flow.counters().violations, 1);
        }
        let mut client = Engine::new(Role::Client);
        client.receive_bytes(bytes);
        assert_eq!(client.events(), [failed(Diagnosis::INTERNAL, true, false)]);
    }
}

// RFC 7609 has writes with immediate data in one place; they say nothing that the CDC message does not.
#[test]
fn a_write_with_immediate_data_has_no_effect() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::active(role);
        engine.drops_bytes(&[]);
        assert!(engine.flow.is_usable());
        assert_eq!(engine.flow.counters().violations, 0);
    }
}

// TEST LINK

#[test]
fn test_link_is_answered_at_once() {
    for role in [Role::Client, Role::Server] {
        for mut engine in [Engine::new(role), Engine::active(role)] {
            engine.sends();
            let request = TestLink {
                data: [0x5a; 16],
                ..TestLink::default()
            };
            engine.receive(Llc::TestLink(request));
            let reply = TestLink {
                reply: true,
                ..request
            };
            assert_eq!(engine.sends(), [Llc::TestLink(reply)]);
        }
    }
}

// All bytes come back as they were, those that have no meaning too.
#[test]
fn all_of_test_link_is_sent_back() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::active(role);
        let mut message: [u8; 44] = std::array::from_fn(|i| 0xd3u8.wrapping_add(i as u8));
        message[..4].copy_from_slice(&[7, 44, 0xee, 0x55]);
        engine.receive_bytes(&message);
        message[3] |= 0x80;
        let reply = engine.flow.poll_send().unwrap();
        assert_eq!(*reply.message, message);
        assert_eq!(engine.sends(), []);
    }
}

// Only the data of our own request has to come back: who clears the rest has read it.
#[test]
fn what_is_behind_the_data_is_not_compared() {
    let mut engine = Engine::active(Role::Client);
    engine.expire();
    let request = engine.flow.poll_send().unwrap();
    assert_eq!(request.message[20..], [0; 24]);
    let mut reply = [0xff; 44];
    reply[..20].copy_from_slice(&request.message[..20]);
    reply[3] |= 0x80;
    engine.receive_bytes(&reply);
    assert_eq!(engine.events(), []);
    assert_eq!(engine.expire(), 30_000);
}

#[test]
fn an_idle_link_is_tested() {
    let mut engine = Engine::active(Role::Server);
    assert_eq!(engine.expire(), 30_000);
    let request = engine.test_request();
    assert!(!request.reply);
    engine.pass(4_999);
    engine.receive(Llc::TestLink(TestLink {
        reply: true,
        ..request
    }));
    assert_eq!(engine.events(), []);
    assert_eq!(engine.expire(), 30_000);
    let again = engine.test_request();
    assert_ne!(again, request, "each request has data of its own");
    assert_eq!(engine.expire(), 5_000);
    assert_eq!(
        engine.events(),
        [Event::Down(DownReason::LinkFailed(LinkFailure::Timeout(
            Exchange::TestLink
        )))]
    );
}

#[test]
fn keepalive_has_links_tested_earlier() {
    let mut engine = Engine::active(Role::Client);
    engine.flow.set_keepalive(40_000);
    assert_eq!(engine.flow.next_deadline(), Some(engine.now.after(30_000)));
    engine.flow.set_keepalive(2_000);
    assert_eq!(engine.expire(), 2_000);
    let request = engine.test_request();
    engine.receive(Llc::TestLink(TestLink {
        reply: true,
        ..request
    }));
    engine.flow.set_keepalive(0);
    assert_eq!(engine.expire(), 30_000);
}

#[test]
fn a_busy_link_is_not_tested() {
    let mut engine = Engine::active(Role::Client);
    for _ in 0..5 {
        engine.pass(20_000);
        engine.flow.note_activity(LINK, engine.now);
        assert_eq!(engine.sends(), []);
    }
    engine.receive(Llc::TestLink(TestLink::default()));
    engine.sends();
    engine.pass(29_999);
    assert_eq!(engine.sends(), []);
    // What was noted before does not count for less.
    engine.flow.note_activity(LINK, Time::from_millis(0));
    engine.pass(1);
    assert_eq!(engine.sends().len(), 1);
}

#[test]
fn a_wrong_echo_is_a_breach() {
    let mut engine = Engine::active(Role::Client);
    engine.expire();
    let request = engine.test_request();
    let mut reply = TestLink {
        reply: true,
        ..request
    };
    reply.data[0] ^= 1;
    engine.receive(Llc::TestLink(reply));
    engine.expect_violation();
}

#[test]
fn test_link_can_be_turned_off() {
    let mut flow = Flow::new(FlowParams {
        role: Role::Client,
        version: Version::One,
        max_links: 2,
        max_connections: 3,
        user_id: 0,
        seed: 0,
        timing: FlowTiming {
            test_link: 0,
            ..FlowTiming::DEFAULT
        },
    });
    let mut slots = [PeerRmb::EMPTY; 1];
    let now = Time::from_millis(0);
    flow.start(end(Role::Client), end(Role::Server), None, now);
    let request = Engine::new(Role::Client).peer_confirms();
    let mut table = PeerTable::new(&mut slots);
    flow.handle_received(LINK, &Llc::ConfirmLink(request).emit(), &mut table, now);
    flow.handle_received(
        LINK,
        &Llc::AddLink(offer(Role::Server)).emit(),
        &mut table,
        now,
    );
    assert!(flow.is_usable());
    assert_eq!(flow.next_deadline(), None);
}

// CONFIRM RKEY and DELETE RKEY of our own

#[test]
fn buffers_are_announced_one_after_the_other() {
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::active(role);
        engine.announce(1).unwrap();
        engine.announce(2).unwrap();
        let first = ConfirmRkey::request(token(1));
        let second = ConfirmRkey::request(token(2));
        assert_eq!(engine.sends(), [Llc::ConfirmRkey(first)]);
        engine.drops(Llc::ConfirmRkey(second.accepted()));
        engine.receive(Llc::ConfirmRkey(first.accepted()));
        assert_eq!(engine.events(), [Event::RkeyConfirmed(RmbId(1))]);
        assert_eq!(engine.sends(), [Llc::ConfirmRkey(second)]);
        engine.receive(Llc::ConfirmRkey(second.refused(false)));
        assert_eq!(engine.events(), [Event::RkeyRefused(RmbId(2))]);
        assert_eq!(engine.sends(), []);
    }
}

#[test]
fn a_refusal_for_now_is_repeated_a_few_times() {
    let mut engine = Engine::active(Role::Client);
    engine.announce(1).unwrap();
    let request = ConfirmRkey::request(token(1));
    for try_number in 1..=CONFIRM_RKEY_TRIES {
        assert_eq!(engine.sends(), [Llc::ConfirmRkey(request)]);
        engine.receive(Llc::ConfirmRkey(request.refused(true)));
        assert_eq!(engine.sends(), []);
        if try_number < CONFIRM_RKEY_TRIES {
            assert_eq!(engine.events(), []);
            assert_eq!(engine.expire(), 100);
        }
    }
    assert_eq!(engine.events(), [Event::RkeyRefused(RmbId(1))]);
}

#[test]
fn a_repeated_announcement_can_succeed() {
    let mut engine = Engine::active(Role::Client);
    engine.announce(1).unwrap();
    let request = ConfirmRkey::request(token(1));
    engine.sends();
    engine.receive(Llc::ConfirmRkey(request.refused(true)));
    // A second answer to the first request is nobody's.
    engine.drops(Llc::ConfirmRkey(request.accepted()));
    engine.expire();
    // Nor is it one to the second before that is sent.
    engine.receive(Llc::ConfirmRkey(request.refused(true)));
    assert_eq!(engine.sends(), [Llc::ConfirmRkey(request)]);
    engine.receive(Llc::ConfirmRkey(request.accepted()));
    assert_eq!(engine.events(), [Event::RkeyConfirmed(RmbId(1))]);
}

#[test]
fn a_buffer_is_withdrawn() {
    let mut engine = Engine::active(Role::Server);
    for mask in [0, 0x80] {
        engine.withdraw(4).unwrap();
        let request = DeleteRkey::request(RKey(4));
        assert_eq!(engine.sends(), [Llc::DeleteRkey(request)]);
        engine.drops(Llc::DeleteRkey(DeleteRkey::request(RKey(5)).answered(0)));
        engine.receive(Llc::DeleteRkey(request.answered(mask)));
        assert_eq!(engine.events(), [Event::RkeyDeleted(RmbId(4))]);
    }
}

#[test]
fn an_unanswered_rkey_exchange_fails_the_link() {
    let mut engine = Engine::active(Role::Client);
    engine.announce(1).unwrap();
    engine.sends();
    assert_eq!(engine.expire(), 5_000);
    assert_eq!(
        engine.events(),
        [Event::Down(DownReason::LinkFailed(LinkFailure::Timeout(
            Exchange::ConfirmRkey
        )))]
    );
    assert_eq!(
        engine.noted(),
        [(delete_all(false, DeleteReason::PATH_LOST), Some(Note::Last))]
    );
    // The link may be dead for all we know.
    assert_eq!(engine.expire(), 2_000);
    assert_eq!(engine.events(), [Event::Release]);
}

/// Whoever is asked to forget a buffer may wait for another link, for as long as we wait for the answer.
#[test]
fn a_link_is_tested_before_it_is_given_up_for_a_buffer() {
    let failure = LinkFailure::Timeout(Exchange::DeleteRkey);
    let lost = [Event::Down(DownReason::LinkFailed(failure))];
    let withdrawn = || {
        let mut engine = Engine::active(Role::Server);
        engine.withdraw(1).unwrap();
        engine.sends();
        assert_eq!(engine.expire(), 5_000);
        assert_eq!(engine.events(), []);
        let request = engine.test_request();
        (engine, request)
    };
    let (mut engine, _) = withdrawn();
    assert_eq!(engine.expire(), 5_000);
    assert_eq!(engine.events(), lost);

    let tested = || {
        let (mut engine, request) = withdrawn();
        engine.receive(Llc::TestLink(TestLink {
            reply: true,
            ..request
        }));
        engine
    };
    let mut engine = tested();
    assert_eq!(engine.expire(), 5_000);
    assert_eq!(engine.events(), lost);

    let mut engine = tested();
    engine.receive(Llc::DeleteRkey(DeleteRkey::request(RKey(1)).answered(0)));
    assert_eq!(engine.events(), [Event::RkeyDeleted(RmbId(1))]);
    assert!(engine.flow.is_usable());
    // The next one has as much time.
    engine.withdraw(2).unwrap();
    engine.sends();
    assert_eq!(engine.expire(), 5_000);
    engine.test_request();
}

#[test]
fn the_line_is_bounded() {
    let mut engine = Engine::active(Role::Client);
    for id in 0..OWN_EXCHANGES_MAX {
        engine.announce(id as u16).unwrap();
    }
    assert_eq!(engine.announce(99), Err(Unavailable::Full));
    assert_eq!(engine.sends().len(), 1, "one at a time");
    let mut early = Engine::new(Role::Client);
    assert_eq!(early.announce(1), Err(Unavailable::Down));
    engine.flow.shut_down(ShutDown::Program, engine.now);
    assert_eq!(engine.withdraw(1), Err(Unavailable::Down));
}

// CONFIRM RKEY and DELETE RKEY of the peer

#[test]
fn the_peers_buffers_are_stored() {
    let mut engine = Engine::active(Role::Server);
    let request = ConfirmRkey::request(token(3));
    for _ in 0..2 {
        engine.receive(Llc::ConfirmRkey(request));
        assert_eq!(engine.sends(), [Llc::ConfirmRkey(request.accepted())]);
    }
    let mut table = PeerTable::new(&mut engine.slots);
    assert_eq!(table.len(), 1);
    let mut far = element(Role::Client);
    far.token = token(3);
    let held = table.claim(LINK, &far).unwrap().element();

    let delete = DeleteRkey {
        rkeys: List::from_slice(&[RKey(8), RKey(3)]),
        ..Default::default()
    };
    engine.receive(Llc::DeleteRkey(delete));
    assert_eq!(engine.events(), [Event::PeerRmbGone(held.slot)]);
    // The answer lets the peer use the memory for something else: first nobody writes there any more.
    assert_eq!(engine.sends(), []);
    assert_eq!(engine.flow.answering(), Some(LINK));
    engine.drops(Llc::DeleteRkey(delete));
    engine.flow.rmb_abandoned();
    assert_eq!(engine.sends(), [Llc::DeleteRkey(delete.answered(0x80))]);
    assert_eq!(engine.flow.answering(), None);
    engine.flow.rmb_abandoned();
    assert_eq!(engine.sends(), []);
    // The second time it is not known any more.
    engine.receive(Llc::DeleteRkey(delete));
    assert_eq!(engine.sends(), [Llc::DeleteRkey(delete.answered(0xc0))]);
    assert_eq!(engine.events(), []);
}

#[test]
fn the_answer_waits_for_all_that_use_the_buffers() {
    let mut engine = Engine::active(Role::Server);
    let mut table = PeerTable::new(&mut engine.slots);
    for rkey in 1..=3 {
        let mut far = element(Role::Client);
        far.token = token(rkey);
        table.claim(LINK, &far).unwrap();
    }
    let delete = DeleteRkey {
        rkeys: List::from_slice(&[RKey(1), RKey(2), RKey(3)]),
        ..Default::default()
    };
    engine.receive(Llc::DeleteRkey(delete));
    assert_eq!(engine.events().len(), 3);
    for _ in 0..3 {
        assert_eq!(engine.sends(), []);
        engine.flow.rmb_abandoned();
    }
    assert_eq!(engine.sends(), [Llc::DeleteRkey(delete.answered(0))]);
    // The end of the group leaves nothing to be answered.
    let mut table = PeerTable::new(&mut engine.slots);
    let mut far = element(Role::Client);
    far.token = token(9);
    table.claim(LINK, &far).unwrap();
    engine.receive(Llc::DeleteRkey(DeleteRkey::request(RKey(9))));
    engine.flow.handle_link_failed(LINK, engine.now);
    engine.sends();
    assert_eq!(engine.flow.answering(), None);
    engine.flow.rmb_abandoned();
    assert_eq!(engine.sends(), []);
}

#[test]
fn peer_requests_overlap_with_ours() {
    let mut engine = Engine::active(Role::Client);
    engine.announce(1).unwrap();
    engine.sends();
    let theirs = ConfirmRkey::request(token(77));
    engine.receive(Llc::ConfirmRkey(theirs));
    assert_eq!(engine.sends(), [Llc::ConfirmRkey(theirs.accepted())]);
    engine.receive(Llc::ConfirmRkey(ConfirmRkey::request(token(1)).accepted()));
    assert_eq!(engine.events(), [Event::RkeyConfirmed(RmbId(1))]);
}

#[test]
fn announcements_that_cannot_be_stored_are_refused() {
    let mut engine = Engine::active(Role::Server);
    for others in [1, 2, 7, 8, 255] {
        let request = ConfirmRkey {
            others,
            ..ConfirmRkey::request(token(1))
        };
        engine.receive(Llc::ConfirmRkey(request));
        assert_eq!(engine.sends(), [Llc::ConfirmRkey(request.refused(false))]);
    }
    assert!(PeerTable::new(&mut engine.slots).is_empty());
    for rkey in 0..300 {
        let request = ConfirmRkey::request(token(rkey));
        engine.receive(Llc::ConfirmRkey(request));
        let reply = if rkey < 255 {
            request.accepted()
        } else {
            request.refused(false)
        };
        assert_eq!(engine.sends(), [Llc::ConfirmRkey(reply)]);
    }
    assert_eq!(PeerTable::new(&mut engine.slots).len(), 255);
}

#[test]
fn announcements_during_a_change_of_links_come_too_early() {
    let request = ConfirmRkey::request(token(1));
    let refused = [Llc::ConfirmRkey(request.refused(true))];
    let mut server = Engine::new(Role::Server);
    server.sends();
    server.receive(Llc::ConfirmRkey(request));
    assert_eq!(server.sends(), refused);
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    server.sends();
    server.receive(Llc::ConfirmRkey(request));
    assert_eq!(server.sends(), refused);
    let mut server = Engine::active(Role::Server);
    server.receive(delete_one(1, false, DeleteReason::OPERATOR));
    server.sends();
    server.receive(Llc::ConfirmRkey(request));
    assert_eq!(server.sends(), refused);
}

#[test]
fn replies_that_cannot_be_sent_are_not_piled_up() {
    let mut engine = Engine::active(Role::Client);
    for _ in 0..1_000 {
        engine.receive(Llc::TestLink(TestLink::default()));
    }
    let replies = engine.sends().len();
    assert!((1..=16).contains(&replies), "{replies}");
    // Own requests have room all the same.
    for _ in 0..1_000 {
        engine.receive(Llc::TestLink(TestLink::default()));
    }
    engine.announce(1).unwrap();
    let request = Llc::ConfirmRkey(ConfirmRkey::request(token(1)));
    assert!(engine.sends().contains(&request));
}

// DELETE LINK

#[test]
fn client_obeys_a_deletion() {
    for orderly in [false, true] {
        client_obeys_a_deletion_that_is(orderly);
    }
}

fn client_obeys_a_deletion_that_is(orderly: bool) {
    let mut client = Engine::active(Role::Client);
    let delete_one = |link, reply, reason| match delete_one(link, reply, reason) {
        Llc::DeleteLink(delete) => Llc::DeleteLink(DeleteLink { orderly, ..delete }),
        other => other,
    };
    client.receive(delete_one(9, false, DeleteReason::OPERATOR));
    assert_eq!(
        client.sends(),
        [delete_one(9, true, DeleteReason::NO_SUCH_LINK)]
    );
    client.receive(delete_one(0, false, DeleteReason::OPERATOR));
    assert_eq!(client.sends().len(), 1);
    assert!(client.flow.is_usable());
    client.receive(delete_one(1, false, DeleteReason::OPERATOR));
    assert_eq!(
        client.noted(),
        [(delete_one(1, true, DeleteReason::DONE), Some(Note::Last))]
    );
    assert_eq!(
        client.events(),
        [Event::Down(DownReason::PeerDeleted(DeleteReason::OPERATOR))]
    );
    client.flow.handle_sent(LINK, Note::Last, true, client.now);
    assert_eq!(client.events(), []);
    client.pass(FlowTiming::DEFAULT.linger);
    assert_eq!(client.events(), [Event::Release]);
}

#[test]
fn client_drops_a_group_without_a_word() {
    let mut client = Engine::active(Role::Client);
    client.announce(1).unwrap();
    client.sends();
    client.receive(delete_all(true, DeleteReason::PROGRAM));
    assert_eq!(client.sends(), []);
    assert_eq!(
        client.events(),
        [
            Event::Down(DownReason::PeerDeleted(DeleteReason::PROGRAM)),
            Event::Release
        ]
    );
    client.passes_over(delete_all(true, DeleteReason::PROGRAM));
    client.passes_over(Llc::TestLink(TestLink::default()));
}

#[test]
fn server_answers_the_wish_to_end_the_group() {
    let mut server = Engine::active(Role::Server);
    server.receive(delete_all(true, DeleteReason::OPERATOR));
    assert_eq!(
        server.noted(),
        [(delete_all(true, DeleteReason::OPERATOR), Some(Note::Last))]
    );
    assert_eq!(
        server.events(),
        [Event::Down(DownReason::PeerDeleted(DeleteReason::OPERATOR))]
    );
    // Once more while it ends.
    server.passes_over(delete_all(true, DeleteReason::OPERATOR));
    server.flow.handle_sent(LINK, Note::Last, false, server.now);
    assert_eq!(server.events(), [Event::Release]);
}

/// The peer ends the group while our TEST LINK is on its way to it, and answers that as it has to.
#[test]
fn an_answer_that_crosses_the_end_is_no_fault() {
    let mut server = Engine::active(Role::Server);
    server.expire();
    let request = server.test_request();
    let answer = Llc::TestLink(TestLink {
        reply: true,
        ..request
    });
    server.receive(delete_all(true, DeleteReason::PROGRAM));
    assert_eq!(server.noted().len(), 1);
    assert_eq!(server.events().len(), 1);
    server.passes_over(answer);
    server.flow.handle_sent(LINK, Note::Last, true, server.now);
    server.passes_over(answer);
    server.pass(FlowTiming::DEFAULT.linger);
    assert_eq!(server.events(), [Event::Release]);
    server.passes_over(answer);
}

#[test]
fn server_carries_out_the_wish_to_delete_a_link() {
    let mut server = Engine::active(Role::Server);
    server.receive(delete_one(1, false, DeleteReason::OPERATOR));
    assert_eq!(
        server.sends(),
        [delete_one(1, false, DeleteReason::OPERATOR)]
    );
    assert_eq!(server.events(), []);
    server.drops(delete_one(1, false, DeleteReason::OPERATOR));
    server.drops(delete_one(2, true, DeleteReason::DONE));
    server.receive(delete_one(1, true, DeleteReason::DONE));
    assert_eq!(
        server.events(),
        [
            Event::Down(DownReason::PeerDeleted(DeleteReason::OPERATOR)),
            Event::Release
        ]
    );
}

#[test]
fn server_does_not_wait_for_ever() {
    let mut server = Engine::active(Role::Server);
    server.receive(delete_one(1, false, DeleteReason::OPERATOR));
    server.sends();
    assert_eq!(server.expire(), 5_000);
    assert_eq!(
        server.events(),
        [
            Event::Down(DownReason::PeerDeleted(DeleteReason::OPERATOR)),
            Event::Release
        ]
    );
}

#[test]
fn server_does_not_know_other_links() {
    let mut server = Engine::active(Role::Server);
    server.receive(delete_one(9, false, DeleteReason::OPERATOR));
    assert_eq!(
        server.sends(),
        [delete_one(9, true, DeleteReason::NO_SUCH_LINK)]
    );
    assert!(server.flow.is_usable());
}

#[test]
fn server_queues_a_wish_behind_its_rkey_exchange() {
    let mut server = Engine::active(Role::Server);
    server.announce(1).unwrap();
    server.announce(2).unwrap();
    server.sends();
    server.receive(delete_one(1, false, DeleteReason::OPERATOR));
    assert_eq!(server.sends(), []);
    server.receive(Llc::ConfirmRkey(ConfirmRkey::request(token(1)).accepted()));
    assert_eq!(
        server.sends(),
        [delete_one(1, false, DeleteReason::OPERATOR)],
        "before the next exchange of our own"
    );
}

/// A link that an operator of the client wants deleted, and that nothing can take the place of, stays. A client whose wish
/// has no answer at all would take the link for lost.
#[test]
fn server_keeps_the_last_link_and_says_so() {
    let mut server = Engine::active(Role::Server);
    let wish = |reply, reason| {
        Llc::DeleteLink(DeleteLink {
            reply,
            all: false,
            orderly: true,
            link: Some(number(1)),
            reason,
        })
    };
    server.receive(wish(false, DeleteReason::OPERATOR));
    let answer = wish(true, DeleteReason::NO_SUCH_LINK);
    assert_eq!(server.sends(), [answer]);
    assert_eq!(server.events(), []);
    assert!(server.flow.is_usable());
    // It may be waited with, and is answered all the same.
    server.announce(1).unwrap();
    server.sends();
    server.receive(wish(false, DeleteReason::OPERATOR));
    assert_eq!(server.sends(), []);
    server.receive(Llc::ConfirmRkey(ConfirmRkey::request(token(1)).accepted()));
    assert_eq!(server.sends(), [answer]);
}

#[test]
fn server_queues_a_wish_behind_the_first_contact() {
    let mut server = Engine::new(Role::Server);
    server.sends();
    server.receive(Llc::ConfirmLink(server.peer_confirms()));
    server.sends();
    server.receive(delete_one(1, false, DeleteReason::OPERATOR));
    assert_eq!(server.sends(), []);
    server.receive(Llc::AddLink(reject(offer(Role::Server))));
    assert_eq!(
        server.sends(),
        [delete_one(1, false, DeleteReason::OPERATOR)]
    );
}

// The end

#[test]
fn an_idle_group_ends() {
    for (role, span) in [(Role::Server, 600_000), (Role::Client, 610_000)] {
        let mut engine = Engine::active(role);
        let idle_from = engine.now;
        engine.flow.remove_connection(engine.now);
        loop {
            engine.expire();
            let sends = engine.noted();
            match sends.as_slice() {
                [(Llc::TestLink(request), None)] => {
                    engine.receive(Llc::TestLink(TestLink {
                        reply: true,
                        ..*request
                    }));
                }
                [(last, Some(Note::Last))] => {
                    assert_eq!(*last, delete_all(true, DeleteReason::PROGRAM));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(engine.now.since(idle_from), span);
        assert_eq!(engine.events(), [Event::Down(DownReason::Idle)]);
        assert!(!engine.flow.is_usable());
        assert!(!engine.flow.add_connection());
        engine.flow.handle_sent(LINK, Note::Last, true, engine.now);
        engine.pass(FlowTiming::DEFAULT.linger);
        assert_eq!(engine.events(), [Event::Release]);
    }
}

#[test]
fn a_group_in_use_does_not_end() {
    let mut engine = Engine::active(Role::Server);
    assert!(engine.flow.add_connection());
    engine.flow.remove_connection(engine.now);
    assert_eq!(engine.flow.connections(), 1);
    engine.flow.remove_connection(engine.now);
    engine.pass(20_000);
    engine.flow.note_activity(LINK, engine.now);
    assert!(engine.flow.add_connection());
    for _ in 0..40 {
        engine.pass(20_000);
        engine.flow.note_activity(LINK, engine.now);
    }
    assert_eq!(engine.events(), []);
    assert!(engine.flow.add_connection() && engine.flow.add_connection());
    assert!(!engine.flow.add_connection(), "the maximum is three");
}

#[test]
fn a_shut_down_tells_the_peer() {
    let reasons = [
        (ShutDown::LostPath, DeleteReason::PATH_LOST, false),
        (ShutDown::Operator, DeleteReason::OPERATOR, true),
        (ShutDown::Program, DeleteReason::PROGRAM, true),
        (ShutDown::OutOfSync, DeleteReason::PROTOCOL, false),
    ];
    for (why, reason, orderly) in reasons {
        let mut engine = Engine::active(Role::Client);
        engine.flow.shut_down(why, engine.now);
        engine.flow.shut_down(why, engine.now);
        assert_eq!(
            engine.noted(),
            [(delete_all(orderly, reason), Some(Note::Last))]
        );
        assert_eq!(engine.events(), [Event::Down(DownReason::Local)]);
        engine.flow.handle_sent(LINK, Note::Last, true, engine.now);
        engine.flow.handle_sent(LINK, Note::Last, true, engine.now);
        if orderly {
            assert_eq!(engine.events(), []);
            engine.pass(FlowTiming::DEFAULT.linger);
        }
        assert_eq!(engine.events(), [Event::Release]);
    }
}

/// What the peer has on its way when it learns of the end, or sends because of it, is acknowledged for a while.
#[test]
fn a_link_outlives_the_last_words() {
    let linger = FlowTiming::DEFAULT.linger;
    for role in [Role::Client, Role::Server] {
        let mut engine = Engine::active(role);
        engine.flow.shut_down(ShutDown::Operator, engine.now);
        engine.events();
        engine.flow.handle_sent(LINK, Note::Last, true, engine.now);
        engine.pass(linger - 1);
        assert_eq!(engine.events(), []);
        // A second time it is not waited for.
        engine.flow.handle_sent(LINK, Note::Last, true, engine.now);
        engine.pass(1);
        assert_eq!(engine.events(), [Event::Release]);
        assert_eq!(engine.flow.next_deadline(), None);
    }
}

#[test]
fn a_dead_link_is_released_at_once() {
    let mut engine = Engine::active(Role::Client);
    engine.announce(1).unwrap();
    engine.flow.handle_link_failed(LINK, engine.now);
    engine.flow.handle_link_failed(LINK, engine.now);
    assert_eq!(
        engine.events(),
        [
            Event::Down(DownReason::LinkFailed(LinkFailure::Transport)),
            Event::Release
        ]
    );
    assert_eq!(engine.sends(), []);
    let mut engine = Engine::active(Role::Client);
    engine.flow.shut_down(ShutDown::Operator, engine.now);
    engine.events();
    engine.flow.handle_link_failed(LINK, engine.now);
    assert_eq!(engine.events(), [Event::Release]);
}

// Finding links

#[test]
fn links_are_found_by_their_far_end() {
    let mut engine = Engine::active(Role::Client);
    let far = end(Role::Server);
    assert_eq!(engine.flow.find_link(&far), Some(LINK));
    let mut other = far;
    other.qp = QpNum::new(5).unwrap();
    assert_eq!(engine.flow.find_link(&other), None);
    let mut same = far;
    same.mtu = MtuCode::MIN;
    same.psn = Psn::truncate(1);
    assert_eq!(engine.flow.find_link(&same), Some(LINK));
    assert_eq!(engine.flow.find_port(far.mac, far.gid), Some(LINK));
    assert_eq!(engine.flow.find_port(Mac([2; 6]), far.gid), None);
    assert_eq!(engine.flow.local_end(LINK), Some(end(Role::Client)));
    assert_eq!(engine.flow.peer_end(LINK), Some(far));
    engine.flow.shut_down(ShutDown::Operator, engine.now);
    assert_eq!(engine.flow.find_link(&far), None, "not any more");
    assert_eq!(
        Engine::new(Role::Client).flow.find_link(&far),
        None,
        "not yet"
    );
}
