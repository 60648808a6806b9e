// SPDX-License-Identifier: GPL-2.0

//! What the peer leaves out or gets wrong in a group of several links: as a rule it costs one link, and the group
//! goes on (RFC 7609 appendix C.7.1, from which the quotations are).

use smc_proto::{
    group::{
        Element,
        LinkIx,
        PeerRmb,
        PeerTable,
        Role, //
    },
    handshake::{
        Failure,
        LinkResult, //
    },
    llc::{
        v2,
        AddLink,
        AddLinkCont,
        AddLinkLayout,
        ConfirmLink,
        ConfirmRkey,
        ConfirmRkeyCont,
        DeleteLink,
        DeleteReason,
        DeleteRkey,
        LinkRToken,
        Llc,
        RTokenPair,
        Reject,
        TestLink, //
    },
    llc_flow::{
        DownReason,
        Event,
        Exchange,
        Flow,
        LinkFailure,
        Note,
        ShutDown, //
    },
    wire::{
        AlertToken,
        Gid,
        LinkNum,
        QpNum,
        RKey,
        RmbeIndex,
        RmbeSize, //
    },
};

use crate::fixtures::{
    at,
    confirmed,
    end,
    events,
    key,
    place,
    said,
    Client,
    Server,
    SECOND,
    THIRD, //
};

const LOST: DeleteReason = DeleteReason::PATH_LOST;
const BREACH: DeleteReason = DeleteReason::PROTOCOL;

/// Long after the links have come: one that fails is replaced at once.
const LATER: u64 = 20_000;

fn number(link: u8) -> LinkNum {
    LinkNum::new(link).unwrap()
}

/// The places of the links that are up.
fn up(flow: &Flow) -> Vec<usize> {
    let all = LinkIx::all().filter(|link| flow.is_link_up(*link));
    all.map(LinkIx::get).collect()
}

/// The DELETE LINK requests among what is sent: by place, for which link, and why.
fn deletions(flow: &mut Flow) -> Vec<(usize, u8, DeleteReason)> {
    let request = |(place, message)| match message {
        Llc::DeleteLink(delete) if !delete.reply => {
            Some((place, delete.link.map_or(0, LinkNum::get), delete.reason))
        }
        _ => None,
    };
    said(flow).into_iter().filter_map(request).collect()
}

fn failed(link: usize, failure: LinkFailure) -> Event {
    Event::LinkDown(place(link), DownReason::LinkFailed(failure))
}

fn done(link: u8) -> DeleteLink {
    DeleteLink {
        reply: true,
        all: false,
        orderly: false,
        link: Some(number(link)),
        reason: DeleteReason::DONE,
    }
}

/// The server of a group of two links, in which nothing is going on, and the second one.
fn idle_server() -> (Server, LinkIx) {
    let mut server = Server::new();
    let second = server.join(2, SECOND);
    let (attempt, _) = crate::fixtures::asked(&mut server.flow);
    assert!(server.flow.link_made(attempt, None, at(1)));
    (server, second)
}

/// The first of two messages about a buffer.
fn first_of_two() -> ConfirmRkey {
    let entry = LinkRToken {
        link: Some(number(2)),
        rtoken: key(41),
    };
    ConfirmRkey {
        others: 3,
        entries: [entry; 2],
        ..ConfirmRkey::request(key(40))
    }
}

/// Either side of a group of two links, in which nothing is going on.
fn sides() -> [(Flow, Vec<PeerRmb>); 2] {
    let mut client = Client::new(false);
    client.join(SECOND);
    let (server, _) = idle_server();
    [(client.flow, client.peers), (server.flow, server.peers)]
}

fn receive(side: &mut (Flow, Vec<PeerRmb>), link: usize, message: Llc) {
    let mut table = PeerTable::new(&mut side.1);
    side.0
        .handle_received(place(link), &message.emit(), &mut table, at(2));
}

/// "No RKey provided for one or more of the links in the link group": "Treat as if detected failure of the link(s)
/// for which no RKey was provided."
#[test]
fn a_link_without_a_key_fails_alone() {
    for over in [0, 1] {
        for mut side in sides() {
            let request = ConfirmRkey::request(key(40));
            receive(&mut side, over, Llc::ConfirmRkey(request));
            let flow = &mut side.0;
            assert_eq!(events(flow)[0], failed(1 - over, LinkFailure::NoRkey));
            assert_eq!(up(flow), [over]);
            let sends = said(flow);
            assert_eq!(sends[0], (over, Llc::ConfirmRkey(request.accepted())));
            let Llc::DeleteLink(delete) = sends[1].1 else {
                panic!("{sends:?}");
            };
            assert_eq!((sends[1].0, sends.len()), (over, 2));
            assert_eq!(delete.link, Some(number(2 - over as u8)));
            assert_eq!(delete.reason, LOST);
        }
    }
}

/// A message with two keys for a link, that on which it comes or another one, is refused, and nothing else happens.
#[test]
fn two_keys_for_one_link_are_refused() {
    for over in [0, 1] {
        for mut side in sides() {
            let entry = |(link, name)| LinkRToken {
                link: Some(number(link)),
                rtoken: key(name),
            };
            let (this, other) = (over as u8 + 1, 2 - over as u8);
            for keys in [
                [(this, 41), (other, 41)],
                [(other, 41), (this, 41)],
                [(other, 41), (other, 42)],
            ] {
                let request = ConfirmRkey {
                    others: 2,
                    entries: keys.map(entry),
                    ..ConfirmRkey::request(key(40))
                };
                receive(&mut side, over, Llc::ConfirmRkey(request));
                let refused = Llc::ConfirmRkey(request.refused(false));
                assert_eq!(said(&mut side.0), [(over, refused)]);
                assert_eq!(up(&side.0), [0, 1]);
            }
        }
    }
}

/// "Any unambiguously incorrect or out-of-sync LLC message": "Treat as if detected that the link has gone down."
/// CONFIRM RKEY CONTINUATION has to count down.
#[test]
fn a_continuation_of_confirm_rkey_with_a_wrong_count_costs_its_link() {
    for (left, wrong) in [(1, false), (0, true), (2, true), (4, true)] {
        for mut side in sides() {
            let request = first_of_two();
            receive(&mut side, 0, Llc::ConfirmRkey(request));
            let accepted = Llc::ConfirmRkey(request.accepted());
            assert_eq!(said(&mut side.0), [(0, accepted)]);
            let goes_on = ConfirmRkeyCont {
                left,
                entries: [request.entries[0]; 3],
                ..ConfirmRkeyCont::default()
            };
            receive(&mut side, 0, Llc::ConfirmRkeyCont(goes_on));
            let flow = &mut side.0;
            if wrong {
                assert_eq!(deletions(flow), [(1, 1, BREACH)]);
                assert_eq!(events(flow)[0], failed(0, LinkFailure::Violation));
                assert_eq!(up(flow), [1]);
            } else {
                assert_eq!(said(flow).len(), 1);
                assert_eq!(up(flow), [0, 1]);
            }
        }
    }
}

/// A client of two links that has accepted a third one, and waits for keys.
fn accepted() -> (Client, LinkIx) {
    let mut client = Client::new(false);
    client.join(SECOND);
    client.now = LATER;
    let attempt = client.offer(THIRD, key(30));
    assert!(client.flow.link_made(attempt, Some(end(3)), at(LATER)));
    said(&mut client.flow);
    (client, attempt.link())
}

fn keys(link: u8, left: u8) -> AddLinkCont {
    AddLinkCont {
        reply: false,
        link: number(link),
        left,
        pairs: [RTokenPair::default(); 2],
    }
}

/// A server of two links that has offered a third one.
fn offering() -> (Server, LinkIx, AddLink) {
    let mut server = Server::new();
    server.join(2, SECOND);
    server.now = LATER;
    let (link, offer) = server.offer(3);
    (server, link, offer)
}

/// The same whose client has accepted it, and waits for keys.
fn offered() -> (Server, LinkIx, AddLink) {
    let (mut server, link, offer) = offering();
    server.accept(LinkIx::FIRST, offer, THIRD);
    server.connect();
    (server, link, offer)
}

/// "Number of RMBs provided doesn't match count given": "Protocol error. Treat as if detected link outage." That is
/// the link over which the keys come; the new one goes with it. Fewer of them do match, see below.
#[test]
fn a_continuation_of_add_link_that_is_wrong_costs_its_link() {
    for (link, left) in [(3, 2), (3, 3), (2, 1), (4, 1)] {
        let (mut client, new) = accepted();
        client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(3, 3)).emit());
        assert_eq!(said(&mut client.flow).len(), 1);
        client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(link, left)).emit());
        let expected = [(1, 3, LOST), (1, 1, BREACH)];
        assert_eq!(deletions(&mut client.flow), expected);
        let happened = events(&mut client.flow);
        assert_eq!(happened[0], failed(0, LinkFailure::Violation));
        assert!(happened.contains(&Event::LinkGone(new)));
        assert_eq!(up(&client.flow), [1]);

        let (mut server, new, offer) = offered();
        server.keys(LinkIx::FIRST, offer, 3);
        assert_eq!(said(&mut server.flow).len(), 1);
        let link = Some(number(link));
        server.keys(LinkIx::FIRST, AddLink { link, ..offer }, left);
        assert_eq!(deletions(&mut server.flow), [(1, 1, BREACH)]);
        let happened = events(&mut server.flow);
        assert_eq!(happened[0], failed(0, LinkFailure::Violation));
        assert!(happened.contains(&Event::LinkGone(new)));
        assert_eq!(up(&server.flow), [1]);
        // One after the other.
        server.receive(place(1), Llc::DeleteLink(done(1)));
        assert_eq!(deletions(&mut server.flow), [(1, 3, LOST)]);
    }
}

/// Linux counts connections that have no buffer yet. That there are no more keys, it says by a zero if something is left
/// to be said; otherwise it goes on to CONFIRM LINK.
#[test]
fn fewer_keys_than_the_first_continuation_of_add_link_said() {
    for says_so in [true, false] {
        let (mut client, new) = accepted();
        client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(3, 3)).emit());
        assert_eq!(said(&mut client.flow).len(), 1);
        if says_so {
            client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(3, 0)).emit());
            assert_eq!(said(&mut client.flow).len(), 1);
        }
        let (request, _) = confirmations(false)[0];
        client.receive(new, &Llc::ConfirmLink(request).emit());
        confirmed_or_not(&mut client.flow, new, true);
    }

    let (mut server, new, offer) = offered();
    server.keys(LinkIx::FIRST, offer, 3);
    assert_eq!(said(&mut server.flow).len(), 1);
    server.keys(LinkIx::FIRST, offer, 0);
    let (reply, _) = confirmations(true)[0];
    server.receive(new, Llc::ConfirmLink(reply));
    confirmed_or_not(&mut server.flow, new, true);
}

/// A client of Linux accepts a link, waits for what follows, and takes its word back when that is late. The link goes,
/// and nothing else; before it has accepted it, that is an ordinary no, see `edges`.
#[test]
fn a_client_that_takes_its_word_back() {
    for keys_are_under_way in [false, true] {
        let (mut server, new, offer) = offering();
        server.accept(LinkIx::FIRST, offer, THIRD);
        if keys_are_under_way {
            server.connect();
        }
        let no = AddLink {
            reply: true,
            reject: Some(Reject::NoPath),
            ..offer
        };
        // That of a former link comes too late.
        let link = Some(number(2));
        server.receive(LinkIx::FIRST, Llc::AddLink(AddLink { link, ..no }));
        assert_eq!(
            events(&mut server.flow).len(),
            usize::from(!keys_are_under_way)
        );
        server.receive(LinkIx::FIRST, Llc::AddLink(no));
        assert_eq!(deletions(&mut server.flow), [(0, 3, LOST)]);
        assert!(events(&mut server.flow).contains(&Event::LinkGone(new)));
        assert_eq!(up(&server.flow), [0, 1]);
    }
}

/// The same while the link is being deleted: a client of Linux that waits for keys, or CONFIRM LINK, drops DELETE LINK.
#[test]
fn a_client_that_takes_its_word_back_has_nothing_to_delete() {
    let (mut server, new, offer) = offering();
    server.accept(LinkIx::FIRST, offer, THIRD);
    let [Event::ConnectLink(attempt)] = events(&mut server.flow)[..] else {
        panic!("nothing to connect");
    };
    assert_eq!(attempt.link(), new);
    server.flow.link_connected(attempt, false, at(LATER));
    assert_eq!(deletions(&mut server.flow), [(0, 3, LOST)]);
    assert_eq!(events(&mut server.flow), [Event::LinkGone(new)]);
    // Others wait, for something may be said of the links.
    let request = ConfirmRkey::request(key(40));
    let no = AddLink {
        reply: true,
        reject: Some(Reject::NoPath),
        ..offer
    };
    let link = Some(number(2));
    server.receive(LinkIx::FIRST, Llc::AddLink(AddLink { link, ..no }));
    server.receive(LinkIx::FIRST, Llc::ConfirmRkey(request));
    let refused = Llc::ConfirmRkey(request.refused(true));
    assert_eq!(said(&mut server.flow), [(0, refused)]);
    server.receive(LinkIx::FIRST, Llc::AddLink(no));
    assert_eq!(events(&mut server.flow), []);
    assert_eq!(up(&server.flow), [0, 1]);
    let entry = LinkRToken {
        link: Some(number(2)),
        rtoken: key(41),
    };
    let request = ConfirmRkey {
        others: 1,
        entries: [entry, LinkRToken::default()],
        ..request
    };
    server.receive(LinkIx::FIRST, Llc::ConfirmRkey(request));
    let accepted = Llc::ConfirmRkey(request.accepted());
    assert_eq!(said(&mut server.flow), [(0, accepted)]);
}

/// A no to an offer before this one says nothing of it, and it is accepted. What names no link is about this one.
#[test]
fn a_no_to_another_offer_says_nothing_of_this_one() {
    for (link, is_dropped) in [
        (Some(number(9)), true),
        (Some(number(3)), false),
        (None, false),
    ] {
        let (mut server, new, offer) = offering();
        let no = AddLink {
            link,
            ..offer.rejection(Reject::NoPath)
        };
        server.receive(LinkIx::FIRST, Llc::AddLink(no));
        let gone = events(&mut server.flow).contains(&Event::LinkGone(new));
        assert_eq!(gone, !is_dropped, "{link:?}");
        if is_dropped {
            server.accept(LinkIx::FIRST, offer, THIRD);
            let connects = |event: &Event| matches!(event, Event::ConnectLink(_));
            assert!(events(&mut server.flow).iter().any(connects));
        }
    }
}

/// A no to the offer itself may cross DELETE LINK, which is answered then, and waited for. So it is not if the client has
/// accepted the link meanwhile.
#[test]
fn a_no_that_crosses_a_deletion_is_not_its_answer() {
    for accepts in [false, true] {
        let (mut server, new, offer) = offering();
        server.flow.handle_link_failed(new, at(LATER));
        assert_eq!(deletions(&mut server.flow), [(0, 3, LOST)]);
        if accepts {
            server.accept(LinkIx::FIRST, offer, THIRD);
        }
        server.receive(LinkIx::FIRST, Llc::AddLink(offer.rejection(Reject::NoPath)));
        // Another deletion waits for its turn.
        server.flow.handle_link_failed(place(1), at(LATER));
        let next = if accepts { vec![(0, 2, LOST)] } else { vec![] };
        assert_eq!(deletions(&mut server.flow), next);
    }
}

/// A client that says that it has a port, and refuses the offer that it gets, as often as it can: after the first ones, a
/// queue pair is made for it every second.
#[test]
fn a_client_that_asks_and_refuses_without_end() {
    // However often it asks: each time that it has refused, or all the time.
    for every in [10, 350] {
        let offers = asked_and_refused(every);
        assert!((30..=37).contains(&offers), "{every}: {offers}");
    }
}

/// How many offers there are within 20 s, if it asks every so many milliseconds.
fn asked_and_refused(every: u64) -> usize {
    let (mut server, _, offer) = offering();
    let hint = AddLink {
        reply: false,
        qp: QpNum::default(),
        link: None,
        mtu: None,
        ..offer
    };
    let mut offers = vec![offer];
    for ms in (0..20_000).step_by(10) {
        server.now = LATER + ms;
        server.flow.handle_timeout(at(server.now));
        if ms % every == 0 {
            server.receive(LinkIx::FIRST, Llc::AddLink(hint));
        }
        for event in events(&mut server.flow) {
            if let Event::MakeLink { attempt, .. } = event {
                let own = Some(end(3));
                assert!(server.flow.link_made(attempt, own, at(server.now)));
            }
        }
        for (_, message) in said(&mut server.flow) {
            match message {
                Llc::AddLink(offer) if !offer.reply => offers.push(offer),
                _ => {}
            }
        }
        let last = offers.last().unwrap().rejection(Reject::NoPath);
        server.receive(LinkIx::FIRST, Llc::AddLink(last));
    }
    assert_eq!(up(&server.flow), [0, 1]);
    offers.len()
}

/// A server that makes one offer after the other, each of which has the one before given up: the same.
#[test]
fn a_server_that_offers_without_end() {
    let mut client = Client::new(false);
    client.join(SECOND);
    let (mut made, mut refused) = (0, 0);
    for ms in (0..10_000).step_by(10) {
        client.now = LATER + ms;
        client.flow.handle_timeout(at(client.now));
        client.say_offer(THIRD, key(31));
        for event in client.events() {
            if let Event::AcceptLink { attempt, .. } = event {
                let own = Some(end(3));
                assert!(client.flow.link_made(attempt, own, at(client.now)));
                made += 1;
            }
        }
        for (_, message) in said(&mut client.flow) {
            refused += usize::from(matches!(message, Llc::AddLink(no) if no.reject.is_some()));
        }
    }
    assert_eq!(made + refused, 1_000);
    assert!((20..=30).contains(&made), "{made}");
    assert_eq!(up(&client.flow), [0, 1]);
}

/// What ADD LINK may say of the port behind it that leads nowhere.
fn nowhere(right: AddLink) -> [AddLink; 4] {
    let qp = |number| QpNum::new(number).unwrap();
    [
        AddLink { qp: qp(0), ..right },
        AddLink { qp: qp(1), ..right },
        AddLink { mtu: None, ..right },
        AddLink {
            gid: Gid::default(),
            ..right
        },
    ]
}

/// A client that takes an offer up, and names an end at which nothing can be, has broken the rules. The link goes, and
/// nothing else.
#[test]
fn an_answer_that_leads_nowhere_costs_the_new_link() {
    let (_, _, offer) = offering();
    let far = end(THIRD);
    let right = AddLink {
        reply: true,
        mac: far.mac,
        gid: far.gid,
        qp: far.qp,
        ..offer
    };
    for wrong in nowhere(right) {
        let (mut server, new, _) = offering();
        server.receive(LinkIx::FIRST, Llc::AddLink(wrong));
        confirmed_or_not(&mut server.flow, new, false);
        assert_eq!(server.flow.counters().unmade, 1);
    }
}

/// Such an offer is refused, and the driver is not asked.
#[test]
fn an_offer_that_leads_nowhere_is_refused() {
    let far = end(THIRD);
    let right = AddLink {
        reply: false,
        reject: None,
        mac: far.mac,
        gid: far.gid,
        qp: far.qp,
        link: Some(number(3)),
        mtu: Some(far.mtu),
        psn: far.psn,
        layout: AddLinkLayout::Deployed,
    };
    for wrong in nowhere(right) {
        let mut client = Client::new(false);
        client.join(SECOND);
        client.receive(LinkIx::FIRST, &Llc::AddLink(wrong).emit());
        let reason = match wrong.mtu {
            None => Reject::Mtu,
            Some(_) => Reject::NoPath,
        };
        let refusal = Llc::AddLink(wrong.rejection(reason));
        assert_eq!(said(&mut client.flow), [(0, refusal)]);
        assert_eq!(client.events(), []);
        assert_eq!(client.flow.counters().refused, 1);
    }
}

/// A link that comes to nothing when both sides know it is counted once, whatever the reason; one that the other side
/// does not want, or that is used, is not.
#[test]
fn further_links_that_come_to_nothing_are_counted() {
    let wish = DeleteLink {
        reply: false,
        reason: LOST,
        ..done(3)
    };
    for (how, count) in [
        "fails",
        "is taken back",
        "is late",
        "its carrier fails",
        "comes",
    ]
    .into_iter()
    .zip([1, 1, 1, 1, 0])
    {
        let (mut client, new) = accepted();
        let (right, _) = confirmations(false)[0];
        match how {
            "fails" => client.flow.handle_link_failed(new, at(LATER)),
            "is taken back" => client.receive(LinkIx::FIRST, &Llc::DeleteLink(wish).emit()),
            "its carrier fails" => client.flow.handle_link_failed(LinkIx::FIRST, at(LATER)),
            _ => client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(3, 0)).emit()),
        }
        said(&mut client.flow);
        match how {
            "comes" => client.receive(new, &Llc::ConfirmLink(right).emit()),
            _ => client.flow.handle_timeout(at(LATER + 5_001)),
        }
        assert_eq!(client.flow.counters().unmade, count, "client: {how}");

        let (mut server, new, offer) = offered();
        let (right, _) = confirmations(true)[0];
        match how {
            "fails" => server.flow.handle_link_failed(new, at(LATER)),
            "is taken back" => server.receive(LinkIx::FIRST, Llc::DeleteLink(wish)),
            "its carrier fails" => server.flow.handle_link_failed(LinkIx::FIRST, at(LATER)),
            _ => server.keys(LinkIx::FIRST, offer, 0),
        }
        said(&mut server.flow);
        match how {
            "comes" => server.receive(new, Llc::ConfirmLink(right)),
            _ => server.flow.handle_timeout(at(LATER + 5_001)),
        }
        assert_eq!(server.flow.counters().unmade, count, "server: {how}");
    }

    let (mut server, _, offer) = offering();
    server.receive(LinkIx::FIRST, Llc::AddLink(offer.rejection(Reject::NoPath)));
    assert_eq!(server.flow.counters().unmade, 0);
    // With the second link, a first contact does not wait for a TEST LINK.
    let mut server = Server::new();
    server.offer(2);
    server.flow.handle_timeout(at(5_001));
    assert_eq!(server.flow.counters().unmade, 1);
}

/// CONFIRM LINK for the third link, and what is wrong with it.
fn confirmations(reply: bool) -> [(ConfirmLink, bool); 6] {
    let Llc::ConfirmLink(first) = confirmed() else {
        unreachable!();
    };
    let far = end(THIRD);
    let right = ConfirmLink {
        reply,
        mac: far.mac,
        gid: far.gid,
        qp: far.qp,
        link: number(3),
        ..first
    };
    let other = end(SECOND);
    [
        (right, true),
        (
            ConfirmLink {
                mac: other.mac,
                ..right
            },
            false,
        ),
        (
            ConfirmLink {
                gid: other.gid,
                ..right
            },
            false,
        ),
        (
            ConfirmLink {
                qp: other.qp,
                ..right
            },
            false,
        ),
        (
            ConfirmLink {
                link: number(2),
                ..right
            },
            false,
        ),
        (
            ConfirmLink {
                no_eye_catcher: false,
                ..right
            },
            false,
        ),
    ]
}

/// "Incorrect link information": "Protocol error. The link must be brought down by sending a DELETE LINK for the link
/// over another link in the link group".
#[test]
fn a_wrong_confirmation_costs_the_new_link() {
    for (message, right) in confirmations(false) {
        let (mut client, new) = accepted();
        client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(3, 0)).emit());
        said(&mut client.flow);
        client.receive(new, &Llc::ConfirmLink(message).emit());
        confirmed_or_not(&mut client.flow, new, right);
    }
    for (message, right) in confirmations(true) {
        let (mut server, new, offer) = offered();
        server.keys(LinkIx::FIRST, offer, 0);
        said(&mut server.flow);
        server.receive(new, Llc::ConfirmLink(message));
        confirmed_or_not(&mut server.flow, new, right);
    }
}

fn confirmed_or_not(flow: &mut Flow, new: LinkIx, right: bool) {
    assert_eq!(flow.counters().violations, u64::from(!right));
    if right {
        assert_eq!(deletions(flow), []);
        assert_eq!(
            (events(flow)[0], up(flow)),
            (Event::LinkUp(new), vec![0, 1, 2])
        );
    } else {
        assert_eq!(deletions(flow), [(0, 3, BREACH)]);
        assert_eq!(
            (events(flow)[0], up(flow)),
            (Event::LinkGone(new), vec![0, 1])
        );
    }
}

/// The same before the keys are exchanged: a request is out of sync, and a reply is one to nothing.
#[test]
fn a_confirmation_before_its_time_costs_the_new_link() {
    let (mut client, new) = accepted();
    let (right, _) = confirmations(false)[0];
    client.receive(new, &Llc::ConfirmLink(right).emit());
    confirmed_or_not(&mut client.flow, new, false);

    let (mut server, new, offer) = offered();
    let (right, _) = confirmations(true)[0];
    server.receive(new, Llc::ConfirmLink(right));
    assert_eq!(said(&mut server.flow), []);
    assert_eq!(up(&server.flow), [0, 1]);
    server.keys(LinkIx::FIRST, offer, 0);
    said(&mut server.flow);
    server.receive(new, Llc::ConfirmLink(right));
    confirmed_or_not(&mut server.flow, new, true);
}

/// It may also find us out of sync, and want the new link deleted: that breaks no rule.
#[test]
fn a_client_that_complains_of_the_new_link_breaks_nothing() {
    let (mut server, new, _) = offered();
    let complaint = DeleteLink {
        reply: false,
        reason: BREACH,
        ..done(3)
    };
    server.receive(LinkIx::FIRST, Llc::DeleteLink(complaint));
    assert_eq!(events(&mut server.flow)[0], Event::LinkGone(new));
    assert_eq!(server.flow.counters().violations, 0);
    assert_eq!(up(&server.flow), [0, 1]);
}

/// "Any unambiguously incorrect or out-of-sync LLC message": the answer to an offer is about the link offered.
#[test]
fn an_answer_about_another_link_costs_its_link() {
    let mut server = Server::new();
    server.join(2, SECOND);
    let (new, offer) = server.offer(3);
    let link = Some(number(4));
    server.accept(LinkIx::FIRST, AddLink { link, ..offer }, THIRD);
    assert_eq!(deletions(&mut server.flow), [(1, 1, BREACH)]);
    let happened = events(&mut server.flow);
    assert_eq!(happened[0], failed(0, LinkFailure::Violation));
    assert!(happened.contains(&Event::LinkGone(new)));
    assert_eq!(up(&server.flow), [1]);
}

/// "Parallel links are not permitted. Delete the link by sending a DELETE LINK to the client over another link in the
/// link group." And a group has one asymmetric link at most (section 2.2.1).
#[test]
fn a_parallel_link_and_a_second_asymmetric_one_are_deleted() {
    // The ports of the second link, those of the third one, and whether that may be.
    for (second, third, fine) in [
        ((2, 12), (3, 13), true),
        ((2, 12), (1, 13), true),
        ((2, 12), (3, 12), true),
        ((2, 12), (1, 12), true),
        ((2, 12), (1, 11), false),
        ((2, 12), (2, 12), false),
        ((2, 11), (3, 13), true),
        ((2, 11), (3, 11), false),
        ((1, 12), (3, 12), true),
        ((1, 12), (1, 13), false),
        ((2, 11), (2, 13), true),
        ((2, 11), (1, 13), false),
    ] {
        let mut server = Server::new();
        server.join(second.0, second.1);
        let (new, offer) = server.offer(third.0);
        server.accept(LinkIx::FIRST, offer, third.1);
        let expected = if fine { vec![] } else { vec![(0, 3, BREACH)] };
        assert_eq!(
            deletions(&mut server.flow),
            expected,
            "{second:?} {third:?}"
        );
        assert_eq!(server.flow.counters().violations, u64::from(!fine));
        let asked = events(&mut server.flow);
        if fine {
            assert!(matches!(asked[..], [Event::ConnectLink(_)]), "{asked:?}");
        } else {
            assert_eq!(asked, [Event::LinkGone(new)]);
        }
        assert_eq!(up(&server.flow), [0, 1]);
    }
}

/// "Any link group command from the server, except DELETE LINK for the entire link group": "Client has sent a DELETE
/// LINK for the link on which the message was received." "Ignore the LLC message."
#[test]
fn a_client_is_deaf_on_a_link_that_it_has_given_up() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        let second = client.join(SECOND);
        client.flow.handle_link_failed(second, at(20));
        client.events();
        client.sends();
        let dropped = client.flow.counters().dropped;
        client.test(second);
        let announced = ConfirmRkey::request(key(40));
        client.say(
            second,
            &Llc::ConfirmRkey(announced),
            &v2::Llc::ConfirmRkey(announced),
        );
        client.confirm(second, SECOND, 3);
        // Neither for this link nor for the other one.
        client.delete(SECOND, second);
        client.delete(11, second);
        assert_eq!(client.flow.counters().dropped, dropped + 5);
        assert_eq!((client.events(), client.sends()), (vec![], vec![]));
        assert_eq!(up(&client.flow), [0]);
        let all = DeleteLink {
            reply: false,
            all: true,
            orderly: false,
            link: None,
            reason: LOST,
        };
        client.say(second, &Llc::DeleteLink(all), &v2::Llc::DeleteLink(all));
        let down = Event::Down(DownReason::PeerDeleted(LOST));
        assert_eq!(client.events(), [down, Event::Release]);
    }
}

/// "ADD LINK from server (not first contact)", or its continuation, without a reply: "treat the link over which the
/// ADD LINK was sent as if it had failed"; "retry the ADD LINK over another link".
#[test]
fn an_offer_without_an_answer_is_repeated_over_another_link() {
    let asked = |exchange| LinkFailure::Timeout(exchange);
    for accepts in [false, true] {
        let (mut server, new) = if accepts {
            let (server, new, _) = offered();
            (server, new)
        } else {
            let mut server = Server::new();
            server.join(2, SECOND);
            server.now = LATER;
            let (new, _) = server.offer(3);
            (server, new)
        };
        server.flow.handle_timeout(at(LATER + 4_999));
        assert_eq!(said(&mut server.flow), []);
        server.flow.handle_timeout(at(LATER + 5_000));
        only_tests(&mut server.flow, 0);
        server.flow.handle_timeout(at(LATER + 9_999));
        assert_eq!(events(&mut server.flow), []);
        server.now = LATER + 10_000;
        server.flow.handle_timeout(at(server.now));
        let happened = events(&mut server.flow);
        assert_eq!(happened[0], failed(0, asked(Exchange::AddLink)));
        assert_eq!(happened[1..], [Event::LinkGone(new)]);
        assert_eq!(deletions(&mut server.flow), [(1, 1, LOST)]);
        server.receive(place(1), Llc::DeleteLink(done(1)));
        assert_eq!(deletions(&mut server.flow), [(1, 3, LOST)]);
        server.receive(place(1), Llc::DeleteLink(done(3)));
        let (_, offer) = server.offer(3);
        assert_eq!(offer.link, Some(number(4)));
        server.accept(place(1), offer, THIRD);
        server.connect();
    }
}

/// "ADD LINK CONTINUATION reply from client (not first contact, [...] the server owes more [...])", and nothing comes:
/// "Treat as if client detected link failure on the link that the ADD LINK exchange is using. Send a DELETE LINK to
/// the server over another active link if one exists".
#[test]
fn keys_that_do_not_come_cost_the_link_that_owes_them() {
    for begins in [false, true] {
        let (mut client, new) = accepted();
        if begins {
            client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(3, 3)).emit());
            said(&mut client.flow);
        }
        client.flow.handle_timeout(at(LATER + 4_999));
        assert_eq!(said(&mut client.flow), []);
        client.flow.handle_timeout(at(LATER + 5_000));
        only_tests(&mut client.flow, 0);
        client.flow.handle_timeout(at(LATER + 9_999));
        assert_eq!(events(&mut client.flow), []);
        client.flow.handle_timeout(at(LATER + 10_000));
        let expected = [(1, 3, LOST), (1, 1, LOST)];
        assert_eq!(deletions(&mut client.flow), expected);
        let happened = events(&mut client.flow);
        let timeout = LinkFailure::Timeout(Exchange::AddLink);
        assert_eq!(happened[0], failed(0, timeout));
        assert!(happened.contains(&Event::LinkGone(new)));
        assert_eq!(up(&client.flow), [1]);
    }
}

/// The answer to the one message that is sent: a TEST LINK over the first link.
fn tested(flow: &mut Flow) -> TestLink {
    match said(flow)[..] {
        [(0, Llc::TestLink(test))] => TestLink {
            reply: true,
            ..test
        },
        ref other => panic!("no test: {other:?}"),
    }
}

/// It may be that only the exchange has failed: Linux gives one up silently when something else comes in between. A
/// TEST LINK tells, with another link and without one.
#[test]
fn a_link_is_tested_before_it_is_given_up() {
    for (works, others) in [(false, false), (true, false), (true, true)] {
        let mut client = Client::new(false);
        let second = client.join(SECOND);
        if !others {
            client.flow.handle_link_failed(second, at(2));
            client.delete(SECOND, LinkIx::FIRST);
        }
        client.now = LATER;
        let attempt = client.offer(THIRD, key(30));
        assert!(client.flow.link_made(attempt, Some(end(3)), at(LATER)));
        client.events();
        said(&mut client.flow);
        client.now = LATER + 5_000;
        client.flow.handle_timeout(at(client.now));
        assert_eq!(client.events(), []);
        let reply = tested(&mut client.flow);
        if works {
            client.receive(LinkIx::FIRST, &Llc::TestLink(reply).emit());
            assert_eq!(client.events(), [Event::LinkGone(attempt.link())]);
            assert_eq!(deletions(&mut client.flow), [(0, 3, LOST)]);
        }
        client.flow.handle_timeout(at(LATER + 10_000));
        assert_eq!(client.flow.is_usable(), works);
        assert_eq!(client.flow.is_link_up(second), others);
    }
}

/// The same of a server that offers a link, or waits for keys.
#[test]
fn a_link_over_which_an_offer_fails_is_tested() {
    for accepts in [false, true] {
        let (mut server, new, offer) = offering();
        if accepts {
            server.accept(LinkIx::FIRST, offer, THIRD);
            server.connect();
        }
        server.now = LATER + 5_000;
        server.flow.handle_timeout(at(server.now));
        let reply = tested(&mut server.flow);
        server.receive(LinkIx::FIRST, Llc::TestLink(reply));
        assert_eq!(events(&mut server.flow), [Event::LinkGone(new)]);
        assert_eq!(deletions(&mut server.flow), [(0, 3, LOST)]);
        server.receive(LinkIx::FIRST, Llc::DeleteLink(done(3)));
        server.flow.handle_timeout(at(LATER + 10_000));
        assert_eq!(up(&server.flow), [0, 1]);
    }
}

/// An answer that comes late has the exchange go on, and the answer to the TEST LINK behind it does not end that.
#[test]
fn a_late_answer_ends_the_doubt() {
    let (mut server, new, offer) = offering();
    server.now += 5_000;
    server.flow.handle_timeout(at(server.now));
    let test = tested(&mut server.flow);
    server.accept(LinkIx::FIRST, offer, THIRD);
    server.receive(LinkIx::FIRST, Llc::TestLink(test));
    server.connect();
    // It is doubted anew where it stalls again.
    server.now += 5_000;
    server.flow.handle_timeout(at(server.now));
    let test = tested(&mut server.flow);
    server.keys(LinkIx::FIRST, offer, 0);
    server.receive(LinkIx::FIRST, Llc::TestLink(test));
    assert_eq!(events(&mut server.flow), []);
    assert!(matches!(
        said(&mut server.flow)[..],
        [(place, Llc::ConfirmLink(_))] if place == new.get()
    ));
}

/// A peer that announces buffers in several messages, and begins again and again, does not keep the links as they are
/// for longer than one that does so once.
#[test]
fn exchanges_that_begin_anew_do_not_put_off_a_deletion() {
    let (mut server, second) = idle_server();
    let request = first_of_two();
    server.now = LATER;
    server.receive(LinkIx::FIRST, Llc::ConfirmRkey(request));
    server.flow.handle_link_failed(second, at(LATER + 1));
    assert_eq!(deletions(&mut server.flow), []);
    server.now = LATER + 4_000;
    server.receive(LinkIx::FIRST, Llc::ConfirmRkey(request));
    assert_eq!(deletions(&mut server.flow), []);
    server.now = LATER + 5_001;
    server.receive(LinkIx::FIRST, Llc::ConfirmRkey(request));
    assert_eq!(deletions(&mut server.flow), [(0, 2, LOST)]);
}

/// The only message that is sent is a TEST LINK, over this link.
fn only_tests(flow: &mut Flow, link: usize) {
    let sends = said(flow);
    assert!(
        matches!(sends[..], [(at, Llc::TestLink(_))] if at == link),
        "{sends:?}"
    );
}

/// "DELETE LINK from server (scope: single link)" without a reply: "The link over which the server sent the DELETE
/// LINK is no longer usable either. [...] If there are other surviving links in the link group, resend over a
/// surviving link. Also send a DELETE LINK over a surviving link for the link over which the server attempted to send
/// the initial DELETE LINK message". First a TEST LINK has to stay unanswered, too.
#[test]
fn a_server_whose_deletion_is_not_answered_repeats_it_over_another_link() {
    let mut server = Server::new();
    server.join(2, SECOND);
    server.join(3, THIRD);
    events(&mut server.flow);
    server.now = LATER;
    server.flow.handle_link_failed(place(2), at(LATER));
    assert_eq!(deletions(&mut server.flow), [(0, 3, LOST)]);
    assert_eq!(
        events(&mut server.flow),
        [failed(2, LinkFailure::Transport)]
    );
    server.flow.handle_timeout(at(LATER + 5_000));
    only_tests(&mut server.flow, 0);
    server.flow.handle_timeout(at(LATER + 9_999));
    assert_eq!(events(&mut server.flow), []);
    server.now = LATER + 10_000;
    server.flow.handle_timeout(at(server.now));
    let timeout = LinkFailure::Timeout(Exchange::DeleteLink);
    assert_eq!(events(&mut server.flow), [failed(0, timeout)]);
    assert_eq!(up(&server.flow), [1]);
    // One after the other.
    assert_eq!(deletions(&mut server.flow), [(1, 1, LOST)]);
    server.receive(place(1), Llc::DeleteLink(done(1)));
    assert_eq!(deletions(&mut server.flow), [(1, 3, LOST)]);
    server.receive(place(1), Llc::DeleteLink(done(3)));
    let happened = events(&mut server.flow);
    let gone = [0, 2].map(|link| Event::LinkGone(place(link)));
    assert_eq!(happened[..2], gone);
    assert!(matches!(happened[2..], [Event::MakeLink { .. }]));
}

/// "DELETE LINK from client", for which there is no request of the server: likewise.
#[test]
fn a_client_whose_deletion_is_not_answered_repeats_it_over_another_link() {
    let start = 10_000;
    let mut client = Client::new(false);
    client.join(SECOND);
    client.join(THIRD);
    client.now = start;
    client.flow.handle_link_failed(place(2), at(start));
    assert_eq!(deletions(&mut client.flow), [(0, 3, LOST)]);
    let gone = |link| Event::LinkGone(place(link));
    assert_eq!(
        client.events(),
        [failed(2, LinkFailure::Transport), gone(2)]
    );
    client.flow.handle_timeout(at(start + 5_000));
    only_tests(&mut client.flow, 0);
    client.flow.handle_timeout(at(start + 9_999));
    assert_eq!(client.events(), []);
    client.now = start + 10_000;
    client.flow.handle_timeout(at(client.now));
    let timeout = LinkFailure::Timeout(Exchange::DeleteLink);
    assert_eq!(client.events(), [failed(0, timeout), gone(0)]);
    assert_eq!(up(&client.flow), [1]);
    let expected = [(1, 1, LOST), (1, 3, LOST)];
    assert_eq!(deletions(&mut client.flow), expected);
    client.delete(11, place(1));
    client.delete(THIRD, place(1));
    assert_eq!(said(&mut client.flow).len(), 2);
    // Were either awaited still, the last link would be tested.
    client.flow.handle_timeout(at(start + 15_000));
    assert_eq!(said(&mut client.flow), []);
}

/// "If the scope of the request is to delete the entire link group, try resending on other links in the link group
/// until success is achieved."
#[test]
fn the_end_is_told_until_a_message_gets_through() {
    for lost in [false, true] {
        for succeeds in [false, true] {
            for (mut flow, _) in sides() {
                said(&mut flow);
                events(&mut flow);
                flow.shut_down(ShutDown::Operator, at(2));
                assert_eq!(events(&mut flow), [Event::Down(DownReason::Local)]);
                let [(0, Llc::DeleteLink(words))] = said(&mut flow)[..] else {
                    panic!("the end is told");
                };
                assert!(words.all && !words.reply);
                // Either of the two comes first.
                if lost {
                    flow.handle_link_failed(place(0), at(3));
                } else {
                    flow.handle_sent(place(0), Note::Last, false, at(3));
                }
                assert_eq!(events(&mut flow), []);
                assert_eq!(said(&mut flow), [(1, Llc::DeleteLink(words))]);
                assert!(flow.is_over());
                // The first one's, if it comes late, says nothing of the second one.
                flow.handle_sent(place(0), Note::Last, false, at(3));
                assert_eq!((events(&mut flow), said(&mut flow)), (vec![], vec![]));
                flow.handle_sent(place(1), Note::Last, succeeds, at(4));
                assert_eq!(said(&mut flow), []);
                // Who has heard it may have something on its way.
                if succeeds {
                    assert_eq!(events(&mut flow), []);
                    flow.handle_timeout(at(4 + u64::from(
                        smc_proto::timer::FlowTiming::DEFAULT.linger,
                    )));
                }
                assert_eq!(events(&mut flow), [Event::Release]);
            }
        }
    }
}

/// What has arrived is not said again when its link fails behind it.
#[test]
fn the_end_is_told_once() {
    for (mut flow, _) in sides() {
        flow.shut_down(ShutDown::Operator, at(2));
        said(&mut flow);
        events(&mut flow);
        flow.handle_sent(place(0), Note::Last, true, at(3));
        flow.handle_link_failed(place(0), at(4));
        assert_eq!(said(&mut flow), []);
        assert_eq!(events(&mut flow), [Event::Release]);
    }
}

/// A second link of the first contact without CONFIRM LINK: the server sends "a DELETE LINK to the client. Connection
/// data cannot flow in the first link in the link group, until the reply to this DELETE LINK is received"; the client
/// does "not consider the socket opened [...] until receiving confirmation from the server in the form of a DELETE
/// LINK request for this link and sending the reply".
#[test]
fn a_second_link_that_is_not_confirmed_is_deleted_before_data_flows() {
    let up = Event::FirstContact(LinkResult::Up);
    let mut server = Server::new();
    let (new, offer) = server.offer(2);
    server.accept(LinkIx::FIRST, offer, SECOND);
    server.connect();
    server.keys(LinkIx::FIRST, offer, 0);
    said(&mut server.flow);
    server.flow.handle_timeout(at(5_001));
    assert_eq!(events(&mut server.flow), [Event::LinkGone(new)]);
    assert_eq!(deletions(&mut server.flow), [(0, 2, LOST)]);
    assert!(!server.flow.is_usable());
    server.receive(LinkIx::FIRST, Llc::DeleteLink(done(2)));
    assert_eq!(events(&mut server.flow)[0], up);

    let mut client = Client::new(false);
    let attempt = client.offer(SECOND, key(21));
    assert!(client.flow.link_made(attempt, Some(end(2)), at(1)));
    client.receive(LinkIx::FIRST, &Llc::AddLinkCont(keys(2, 0)).emit());
    said(&mut client.flow);
    client.flow.handle_timeout(at(5_001));
    assert_eq!(client.events(), [Event::LinkGone(attempt.link())]);
    assert_eq!(deletions(&mut client.flow), [(0, 2, LOST)]);
    assert!(!client.flow.is_usable());
    client.delete(SECOND, LinkIx::FIRST);
    let [(0, Llc::DeleteLink(reply))] = said(&mut client.flow)[..] else {
        panic!("an answer");
    };
    assert_eq!((reply.reply, reply.link), (true, Some(number(2))));
    assert_eq!(client.events(), [up]);
}

/// Either side of a first contact whose second link has been accepted, and waits for keys.
fn without_keys() -> [(Flow, Vec<PeerRmb>); 2] {
    let mut client = Client::new(false);
    let attempt = client.offer(SECOND, key(21));
    assert!(client.flow.link_made(attempt, Some(end(2)), at(1)));
    let mut server = Server::new();
    let (_, offer) = server.offer(2);
    server.accept(LinkIx::FIRST, offer, SECOND);
    server.connect();
    [(client.flow, client.peers), (server.flow, server.peers)].map(|mut side| {
        said(&mut side.0);
        events(&mut side.0);
        side
    })
}

/// "ADD LINK CONTINUATION reply from client (first contact [...])" and the server owes more: "Clean up the SMC-R link,
/// and break the TCP connection". So does a server that waits for such a reply. First a TEST LINK has to stay unanswered,
/// too.
#[test]
fn a_first_contact_without_its_keys_fails() {
    for (mut flow, _) in without_keys() {
        flow.handle_timeout(at(5_000));
        assert_eq!(said(&mut flow), []);
        flow.handle_timeout(at(5_001));
        only_tests(&mut flow, 0);
        flow.handle_timeout(at(10_000));
        assert_eq!(events(&mut flow), []);
        flow.handle_timeout(at(10_001));
        let happened = events(&mut flow);
        let [Event::FirstContact(LinkResult::Failed(refusal))] = happened[..] else {
            panic!("{happened:?}");
        };
        // It is too late for a Decline: TCP is reset. That RDMA gets to the peer, CONFIRM LINK has shown.
        assert!(!refusal.may_decline);
        let failure = Failure::LinkFailed(refusal.diagnosis);
        assert_eq!(failure.trouble(flow.role(), true), None);
        assert!(flow.is_over());
        assert_eq!(said(&mut flow), []);
    }
}

/// A first contact whose link works goes on with that one, once the other one is deleted, or nobody says anything of it.
#[test]
fn a_first_contact_without_its_keys_goes_on_if_its_link_works() {
    for mut side in without_keys() {
        side.0.handle_timeout(at(5_001));
        let reply = tested(&mut side.0);
        receive(&mut side, 0, Llc::TestLink(reply));
        let flow = &mut side.0;
        assert_eq!(events(flow), [Event::LinkGone(place(1))]);
        assert_eq!(deletions(flow), [(0, 2, LOST)]);
        let answer = match flow.role() {
            Role::Server => done(2),
            Role::Client => DeleteLink {
                reply: false,
                ..done(2)
            },
        };
        receive(&mut side, 0, Llc::DeleteLink(answer));
        let happened = events(&mut side.0);
        assert_eq!(happened[0], Event::FirstContact(LinkResult::Up));
        assert!(side.0.is_usable());
    }
}

/// A client wants the only link deleted while a second one is offered: that is the end of the first contact.
#[test]
fn a_first_contact_without_a_link_fails() {
    let mut server = Server::new();
    let (_, offer) = server.offer(2);
    let wish = DeleteLink {
        reply: false,
        all: false,
        orderly: false,
        link: Some(number(1)),
        reason: LOST,
    };
    server.receive(LinkIx::FIRST, Llc::DeleteLink(wish));
    let refused = AddLink {
        reply: true,
        reject: Some(Reject::NoPath),
        ..offer
    };
    server.receive(LinkIx::FIRST, Llc::AddLink(refused));
    assert_eq!(deletions(&mut server.flow), [(0, 1, LOST)]);
    // What was offered is given up.
    assert_eq!(events(&mut server.flow), [Event::LinkGone(place(1))]);
    let reply = DeleteLink {
        reply: true,
        ..wish
    };
    server.receive(LinkIx::FIRST, Llc::DeleteLink(reply));
    let happened = events(&mut server.flow);
    let [Event::FirstContact(LinkResult::Failed(refusal))] = happened[..] else {
        panic!("{happened:?}");
    };
    assert!(!refusal.may_decline && server.flow.is_over());
}

/// A server with two links, whose client uses one buffer on each.
fn server_with_two_buffers() -> (Server, LinkIx) {
    let mut server = Server::new();
    let second = server.join(2, SECOND);
    for (link, rmb) in [(LinkIx::FIRST, 1), (second, 2)] {
        let element = Element {
            token: key(rmb),
            index: RmbeIndex::FIRST,
            size: RmbeSize::MIN,
            alert: AlertToken(rmb),
        };
        let _ = PeerTable::new(&mut server.peers)
            .claim(link, &element)
            .unwrap();
    }
    events(&mut server.flow);
    (server, second)
}

/// The buffers whose users are to be aborted.
fn gone(server: &mut Server) -> usize {
    let gone = |event: &&Event| matches!(event, Event::PeerRmbGone(_));
    events(&mut server.flow).iter().filter(gone).count()
}

/// The answers to DELETE RKEY.
fn forgotten(server: &mut Server) -> Vec<DeleteRkey> {
    let answer = |(_, message)| match message {
        Llc::DeleteRkey(answer) => Some(answer),
        _ => None,
    };
    said(&mut server.flow)
        .into_iter()
        .filter_map(answer)
        .collect()
}

/// A link fails on which a buffer was to be taken back: that nobody uses that one any more is no answer to what is asked
/// on another link.
#[test]
fn what_was_asked_on_a_failed_link_answers_nothing_else() {
    let (mut server, second) = server_with_two_buffers();
    let request = |rmb| Llc::DeleteRkey(DeleteRkey::request(RKey(rmb)));
    server.receive(LinkIx::FIRST, request(1));
    assert_eq!(gone(&mut server), 1);
    server.flow.handle_link_failed(LinkIx::FIRST, at(2));
    server.receive(second, request(2));
    assert_eq!(gone(&mut server), 1);
    server.flow.rmb_abandoned();
    assert_eq!(forgotten(&mut server), []);
    server.flow.rmb_abandoned();
    assert_eq!(
        forgotten(&mut server),
        [DeleteRkey::request(RKey(2)).answered(0)]
    );
}

/// The peer asks once more, over another link. The buffer is not known any more, but its users may still write to it.
#[test]
fn what_is_asked_again_waits_for_what_was_asked_before() {
    let (mut server, second) = server_with_two_buffers();
    let request = DeleteRkey::request(RKey(1));
    server.receive(LinkIx::FIRST, Llc::DeleteRkey(request));
    assert_eq!(gone(&mut server), 1);
    server.flow.handle_link_failed(LinkIx::FIRST, at(2));
    let again = DeleteRkey::request(RKey(9));
    server.receive(second, Llc::DeleteRkey(again));
    assert_eq!((gone(&mut server), forgotten(&mut server)), (0, vec![]));
    assert_eq!(server.flow.answering(), Some(second));
    server.flow.rmb_abandoned();
    assert_eq!(forgotten(&mut server), [again.answered(0x80)]);
}
