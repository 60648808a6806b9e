// SPDX-License-Identifier: GPL-2.0

//! Answers that come late, offers that follow each other, and links that go in a row.

use smc_proto::{
    group::{
        Element,
        LinkIx,
        OwnRmb,
        OwnTable,
        PeerRmb,
        PeerTable,
        Tokens,
        MAX_LINKS, //
    },
    handshake::LinkResult,
    llc::{
        v2,
        ConfirmRkey,
        ConfirmRkeyCont,
        DeleteLink,
        DeleteReason,
        LinkRToken,
        Llc,
        RTokenPair,
        Reject, //
    },
    llc_flow::{
        DownReason,
        Event,
        Flow,
        Note,
        Outgoing,
        Redundancy,
        RmbId, //
    },
    timer::{
        FlowTiming,
        Time, //
    },
    wire::{
        AlertToken,
        ByteOrder,
        LinkNum,
        RToken,
        RmbeIndex,
        RmbeSize, //
    },
};

use crate::{
    fixtures::{
        asked,
        at,
        confirmed,
        end,
        key,
        kind,
        place,
        said,
        server,
        Client,
        Server,
        SECOND,
        THIRD, //
    },
    world::{
        Action,
        Host,
        Setup,
        Stimulus,
        World, //
    },
};

#[test]
fn a_client_that_is_offered_nothing_goes_on() {
    for (v2, delivered) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut client = Client::new(v2);
        client.sends();
        if delivered {
            let note = Note::ConfirmLinkReply;
            client.flow.handle_sent(LinkIx::FIRST, note, true, at(2));
        }
        client.flow.handle_timeout(at(4_000));
        assert_eq!(client.events(), []);
        client.flow.handle_timeout(at(4_001));
        let events = client.events();
        if delivered {
            assert_eq!(events, [Event::FirstContact(LinkResult::Up)]);
            assert!(client.flow.is_usable() && !client.flow.is_link_up(place(1)));
        } else {
            assert!(
                matches!(events[..], [Event::FirstContact(LinkResult::Failed(_))]),
                "{events:?}"
            );
        }
    }
}

/// The program has closed while a second link was being made: the first contact is over, and the link is of use to others.
#[test]
fn a_second_link_is_made_though_nobody_wants_the_connection() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        client.sends();
        let attempt = client.offer(SECOND, key(u32::from(SECOND)));
        assert!(!client.flow.settle());
        assert!(client.flow.is_usable());
        assert_eq!(client.events(), [Event::FirstContact(LinkResult::Up)]);
        client.join_offered(attempt, SECOND);
        assert_eq!(client.flow.redundancy(), Redundancy::Full);
        let events = client.events();
        assert!(
            !events
                .iter()
                .any(|event| matches!(event, Event::FirstContact(_))),
            "{events:?}"
        );
        // Nothing of it is left that would take up the group.
        client
            .flow
            .announce(RmbId(1), key(50), at(client.now))
            .unwrap();
        assert!(client.flow.has_sends());
    }
}

/// The client has an offered link, and has to give it up. The server never knew it, or says nothing, as
/// Linux does.
#[test]
fn a_deletion_without_an_answer_is_not_waited_for_long() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        let attempt = client.offer(SECOND, key(21));
        assert!(client.flow.link_made(attempt, Some(end(2)), at(5)));
        client.sends();
        client.flow.handle_link_failed(attempt.link(), at(10));
        assert_eq!(client.sends(), [(0, kind(v2, 0x04))]);
        assert_eq!(client.events(), [Event::LinkGone(attempt.link())]);
        // The first contact is over when that is.
        client.flow.handle_timeout(at(5_009));
        assert_eq!(client.events(), []);
        client.flow.handle_timeout(at(5_010));
        assert_eq!(client.events(), [Event::FirstContact(LinkResult::Up)]);
        assert_eq!(client.sends(), []);
        // Nothing is left that would keep our keys from changing.
        client.flow.announce(RmbId(1), key(50), at(5_011)).unwrap();
        assert_eq!(client.sends(), [(0, kind(v2, 0x06))]);
    }
}

/// A client does not rely on a server to try again (RFC 7609 appendix C.7.1, "set a timer to send an ADD LINK to the
/// server if there is still an unused RNIC on the client side"): one that never does is asked to.
#[test]
fn a_client_that_lacks_a_link_asks_for_one() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        let second = client.join(SECOND);
        let lost = 20_000;
        client.now = lost;
        client.flow.handle_link_failed(second, at(lost));
        client.delete(SECOND, LinkIx::FIRST);
        client.sends();
        client.events();
        let mut tests = 0;
        while client.now < lost + 70_000 {
            client.now += 1_000;
            client.flow.handle_timeout(at(client.now));
            let events = client.events();
            if events == [Event::LinkWanted] {
                break;
            }
            assert_eq!(events, []);
            if client.flow.has_sends() {
                client.answer_test(LinkIx::FIRST);
                tests += 1;
            }
        }
        assert_eq!((client.now, tests), (lost + 60_000, 1));
        client.answer_test(LinkIx::FIRST);
        let free = end(2);
        assert!(!client.flow.is_port_taken(free.mac, free.gid));
        client.flow.hint(free.mac, free.gid, at(client.now));
        let question = if v2 { 0x25 } else { 0x02 };
        assert_eq!(client.sends(), [(0, question)]);
        client.join(SECOND);
        assert_eq!(client.flow.redundancy(), Redundancy::Full);
        // That is enough.
        assert_eq!(client.flow.next_deadline(), Some(at(client.now + 30_000)));
    }
}

/// What a client asks for comes back as a request of the server: one of its own in RFC 7609, and with Linux
/// that of the client as it was.
#[test]
fn the_servers_order_may_be_an_echo() {
    for v2 in [false, true] {
        for echo in [false, true] {
            let mut client = Client::new(v2);
            let second = client.join(SECOND);
            client.flow.handle_link_failed(second, at(20));
            let wish = client.flow.poll_send_with(&OwnTable::EMPTY).unwrap();
            assert_eq!(
                (wish.link, wish.message[0]),
                (LinkIx::FIRST, kind(v2, 0x04))
            );
            assert_eq!(client.sends(), []);
            if echo {
                client.receive(LinkIx::FIRST, &wish.message);
            } else {
                client.delete(SECOND, LinkIx::FIRST);
            }
            let reply = client.flow.poll_send_with(&OwnTable::EMPTY).unwrap();
            assert_eq!(reply.message[0], kind(v2, 0x04));
            // Done, for this link.
            assert_eq!(reply.message[3] & 0xc0, 0x80);
            assert_eq!(reply.message[4..9], [2, 0, 0, 0, 0]);
            assert_eq!(client.sends(), []);
            client.events();
            // Were it awaited still, the link that carried it would fail.
            client.flow.handle_timeout(at(20_000));
            assert_eq!(client.events(), []);
            assert!(client.flow.is_usable());
        }
    }
}

/// A link that the server deletes over itself is gone by the time of the answer: that goes over another one.
#[test]
fn the_answer_to_a_deletion_does_not_go_with_the_link() {
    for v2 in [false, true] {
        for via in [0, 1] {
            let mut client = Client::new(v2);
            let second = client.join(SECOND);
            client.delete(SECOND, place(via));
            let down = DownReason::PeerDeleted(DeleteReason::PATH_LOST);
            let gone = [Event::LinkDown(second, down), Event::LinkGone(second)];
            assert_eq!(client.events(), gone);
            let reply = client.flow.poll_send_with(&OwnTable::EMPTY).unwrap();
            assert_eq!(
                (reply.link, reply.message[0]),
                (LinkIx::FIRST, kind(v2, 0x04))
            );
            assert_eq!(reply.message[3] & 0x80, 0x80);
            assert_eq!(reply.message[4..9], [2, 0, 0, 0, 0]);
            assert_eq!(client.sends(), []);
        }
    }
}

/// The peer has taken a buffer, and a link has come meanwhile: it is announced again, with its key there.
#[test]
fn a_buffer_is_announced_again_for_a_link_that_came_meanwhile() {
    let mut client = Client::new(true);
    let second = client.join(SECOND);
    let mut tokens = Tokens::EMPTY;
    for link in 0..3 {
        tokens.set(place(link), key(500 + link as u32));
    }
    let own = [Some(OwnRmb {
        id: RmbId(5),
        tokens,
    })];
    let announced = |client: &mut Client| {
        let send = client.flow.poll_send_with(&OwnTable::new(&own)).unwrap();
        let Ok((v2::Llc::ConfirmRkey(request), _)) = v2::Llc::parse(&send.message) else {
            panic!("{:?}", send.message);
        };
        assert!(!client.flow.has_sends());
        let others = request.entries().iter().map(|entry| entry.rtoken.rkey.0);
        (request, others.collect::<Vec<_>>())
    };
    client.flow.announce(RmbId(5), key(500), at(30)).unwrap();
    let (request, others) = announced(&mut client);
    assert_eq!((request.rtoken, others), (key(500), vec![501]));
    let third = client.join(SECOND + 1);
    assert_eq!((second, third), (place(1), place(2)));
    let accepted = request.accepted();
    let answer = |client: &mut Client, accepted| {
        client.say(
            LinkIx::FIRST,
            &Llc::ConfirmRkey(accepted),
            &v2::Llc::ConfirmRkey(accepted),
        );
    };
    answer(&mut client, accepted);
    assert_eq!(client.events(), []);
    let (request, others) = announced(&mut client);
    assert_eq!((request.rtoken, others), (key(500), vec![501, 502]));
    answer(&mut client, request.accepted());
    assert_eq!(client.events(), [Event::RkeyConfirmed(RmbId(5))]);
}

#[test]
fn a_second_offer_keeps_its_keys() {
    let mut client = Client::new(true);
    client.offer(SECOND, key(21));
    let attempt = client.offer(SECOND, key(22));
    client.test(LinkIx::FIRST);
    let table = PeerTable::new(&mut client.peers);
    assert_eq!(table.token(client.rmb, attempt.link()), Some(key(22)));
}

/// A connection that is set up while its link goes finds the peer's buffer on others, by the key that it has
/// on the one that is gone.
#[test]
fn a_link_that_is_gone_is_known_until_its_place_is_taken() {
    let mut client = Client::new(true);
    let token = |client: &mut Client, place| {
        let rmb = client.rmb;
        PeerTable::new(&mut client.peers).token(rmb, place)
    };
    for port in 12..20 {
        let new = key(u32::from(port));
        let (before, old) = client.via;
        let attempt = client.offer(port, new);
        let place = attempt.link();
        assert_eq!(place.get(), usize::from(port) - 11, "none has been there");
        assert!(client.flow.link_made(attempt, Some(end(port - 10)), at(5)));
        client.confirm(place, port, 3);
        let knows = |client: &mut Client, port: u8, token: RToken| {
            let peers = PeerTable::new(&mut client.peers);
            let known = |link| peers.has(link, token);
            client.flow.find_place(&end(port), known)
        };
        assert_eq!(knows(&mut client, port, new), Some(place));
        // One that nobody has announced, whoever says that it is this peer's.
        assert_eq!(knows(&mut client, port, key(99)), None);
        client.delete(port - 1, place);
        client.sends();
        client.via = (place, new);

        client.test(place);
        let gone = end(port - 1);
        assert_eq!(client.flow.find_link(&gone), None);
        assert_eq!(knows(&mut client, port - 1, old), Some(before));
        assert_eq!(knows(&mut client, port - 1, key(99)), None);
        assert_eq!(token(&mut client, before), Some(old));
        let element = Element {
            token: old,
            index: RmbeIndex::new(port - 10).unwrap(),
            size: RmbeSize::MIN,
            alert: AlertToken(2),
        };
        let claim = PeerTable::new(&mut client.peers).claim(before, &element);
        assert_eq!(claim.unwrap().element().slot, client.rmb);
        assert_eq!(token(&mut client, place), Some(new));
    }
    let attempt = client.offer(20, key(20));
    assert_eq!(attempt.link(), LinkIx::FIRST, "none is left");
    assert_eq!(client.flow.find_place(&end(11), |_| true), None);
    assert_eq!(client.flow.find_place(&end(12), |_| true), Some(place(1)));
    assert_eq!(token(&mut client, LinkIx::FIRST), Some(key(20)));
}

/// The queue pairs of a device that has come back have the numbers of those before.
#[test]
fn a_link_like_one_before_is_told_apart_by_its_keys() {
    let mut client = Client::new(true);
    let attempt = client.offer(SECOND, key(21));
    assert!(client.flow.link_made(attempt, Some(end(2)), at(5)));
    client.confirm(attempt.link(), SECOND, 3);
    client.delete(SECOND, LinkIx::FIRST);
    client.sends();
    let again = client.offer(SECOND, key(22));
    assert_ne!(attempt.link(), again.link());
    assert!(client.flow.link_made(again, Some(end(2)), at(5)));
    client.confirm(again.link(), SECOND, 3);
    let peers = PeerTable::new(&mut client.peers);
    for (token, expected) in [
        (key(21), Some(attempt.link())),
        (key(22), Some(again.link())),
        (key(23), None),
    ] {
        let known = |link| peers.has(link, token);
        let found = client.flow.find_place(&end(SECOND), known);
        assert_eq!(found, expected, "{token:?}");
    }
}

#[test]
fn a_late_answer_meets_nobody() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        let first = client.offer(SECOND, key(21));
        let second = client.offer(SECOND + 1, key(22));
        assert_eq!(first.link(), second.link(), "places are used again");
        client.sends();
        assert!(!client.flow.link_made(first, Some(end(2)), at(10)));
        assert!(!client.flow.link_made(first, None, at(10)));
        assert_eq!(client.sends(), []);
        assert!(client.flow.link_made(second, Some(end(3)), at(20)));
        let accepted = if v2 { 0x22 } else { 0x02 };
        assert_eq!(client.sends(), [(0, accepted)]);
        assert_eq!(client.flow.local_end(second.link()), Some(end(3)));
    }
}

/// One that comes when the server has given up is a no, even if our timer is as late as our driver. A server of Linux
/// waits 2 s.
#[test]
fn an_answer_behind_its_time_is_a_no() {
    for v2 in [false, true] {
        for (ms, late) in [(1_000, false), (1_001, true), (2_500, true)] {
            let mut client = Client::new(v2);
            let attempt = client.offer(SECOND, key(21));
            client.sends();
            assert!(client.flow.link_made(attempt, Some(end(2)), at(ms)));
            let answer = client.flow.poll_send_with(&OwnTable::EMPTY).unwrap();
            assert_eq!(answer.message[0], kind(v2, 0x02));
            let refused = answer.message[3] & 0x40 != 0;
            assert_eq!(refused, late, "{ms}");
            let gone = client.events().contains(&Event::LinkGone(attempt.link()));
            assert_eq!(gone, late, "{ms}");
        }
    }
}

/// ADD LINK finds no send slot: it comes again, with the keys that there are by then, and only as long as
/// the link is wanted.
#[test]
fn keys_wait_for_a_send_slot() {
    let mut client = Client::new(true);
    let first = client.offer(SECOND, key(21));
    let buffers = |links: &[LinkIx], ids: &[u16]| -> Vec<Option<OwnRmb>> {
        let entry = |id: &u16| {
            let mut tokens = Tokens::EMPTY;
            for link in links {
                tokens.set(*link, key(100 * link.get() as u32 + u32::from(*id)));
            }
            Some(OwnRmb {
                id: RmbId(*id),
                tokens,
            })
        };
        ids.iter().map(entry).collect()
    };
    let links = [LinkIx::FIRST, first.link()];
    // What is yielded, with its keys: place, bytes.
    let next = |client: &mut Client, own: &[Option<OwnRmb>]| {
        let own = OwnTable::new(own);
        let send = client.flow.poll_send_with(&own)?;
        let mut bytes = send.message.to_vec();
        let head = bytes.len();
        bytes.resize(head + usize::from(send.pairs) * 16, 0);
        let len = client.flow.write_pairs(&own, &mut bytes[head..]);
        assert_eq!(head + len, bytes.len());
        Some((send.link, bytes))
    };
    let keys_of = |bytes: &[u8]| {
        let (message, _) = v2::Llc::parse(bytes).unwrap();
        assert_eq!(bytes[1..3], (bytes.len() as u16).to_be_bytes());
        let v2::Llc::AddLink(message) = message else {
            panic!("{message:?}");
        };
        let pairs = message.ext.unwrap().pairs;
        assert_eq!(bytes[70..72], (pairs.len() as u16).to_be_bytes());
        let keys = pairs.iter().map(|pair| RTokenPair::from(*pair).new.rkey.0);
        (message.base.link.unwrap().get(), keys.collect::<Vec<_>>())
    };
    client.sends();
    assert!(client.flow.link_made(first, Some(end(2)), at(5)));
    // Another message is behind it.
    client.test(LinkIx::FIRST);
    for (ids, keys) in [
        (&[1, 2, 3][..], vec![101, 102, 103]),
        (&[1, 3], vec![101, 103]),
        (&[], vec![]),
        (&[4, 1, 3, 2], vec![104, 101, 103, 102]),
    ] {
        for _ in 0..2 {
            let own = buffers(&links, ids);
            let (link, bytes) = next(&mut client, &own).unwrap();
            assert_eq!((link, keys_of(&bytes)), (LinkIx::FIRST, (2, keys.clone())));
            client.flow.put_back();
        }
    }
    // Nothing is doubled by handing it back twice.
    client.flow.put_back();

    // The server begins anew: that answer is not for it.
    let second = client.offer(SECOND + 1, key(22));
    let own = buffers(&links, &[1, 2]);
    let (_, bytes) = next(&mut client, &own).unwrap();
    assert_eq!(bytes[0], 0x27, "only what was behind it");
    assert_eq!(next(&mut client, &own), None);
    assert!(client.flow.link_made(second, Some(end(3)), at(9)));
    let (_, bytes) = next(&mut client, &own).unwrap();
    assert_eq!(keys_of(&bytes), (3, vec![101, 102]));
    assert_eq!(next(&mut client, &own), None);
}

#[test]
fn a_slow_driver_does_not_keep_the_server_waiting() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        let attempt = client.offer(SECOND, key(21));
        client.sends();
        assert_eq!(client.flow.next_deadline(), Some(at(1_001)));
        client.flow.handle_timeout(at(1_001));
        assert_eq!(client.sends().len(), 1, "the offer is refused");
        assert!(!client.flow.link_made(attempt, Some(end(2)), at(1_002)));
    }
}

#[test]
fn nothing_counts_on_a_link_before_it_is_confirmed() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        let attempt = client.offer(SECOND, key(21));
        assert!(client.flow.link_made(attempt, Some(end(2)), at(5)));
        client.sends();
        let before = client.flow.counters().dropped;
        client.test(attempt.link());
        assert_eq!(client.sends(), []);
        assert_eq!(client.flow.counters().dropped, before + 1);
    }
}

#[test]
fn an_asymmetric_link_that_is_left_alone_takes_its_port() {
    let mut client = Client::new(true);
    let attempt = client.offer(SECOND, key(21));
    assert!(client.flow.link_made(attempt, Some(end(1)), at(5)));
    client.confirm(attempt.link(), SECOND, 3);
    let shared = end(1);
    assert!(client.flow.is_port_taken(shared.mac, shared.gid));
    // The server has yet to say so.
    client.flow.handle_link_failed(LinkIx::FIRST, at(6));
    assert!(client.flow.is_port_taken(shared.mac, shared.gid));
}

#[test]
fn the_limit_of_links_is_agreed_on_once() {
    for max_links in [0, 2, 7] {
        let mut client = Client::new(true);
        let attempt = client.offer(SECOND, key(21));
        assert!(client.flow.link_made(attempt, Some(end(2)), at(5)));
        client.confirm(attempt.link(), SECOND, max_links);
        assert!(client.flow.is_link_up(attempt.link()));
        assert_eq!(client.flow.max_links(), 3);
    }
}

fn settled(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.run_until(20_000);
    checked(&mut world);
    world
}

fn checked(world: &mut World) {
    if let Err(error) = world.check() {
        panic!("{error}\n{:#?}", world.log);
    }
}

fn versions(setup: Setup) -> [Setup; 2] {
    [setup, Setup { v2: true, ..setup }]
}

#[test]
fn a_key_is_deleted_where_there_is_one() {
    for setup in versions(Setup {
        max_links: [3, 3],
        ports: [3, 3],
        ..Setup::TWO
    }) {
        let mut world = settled(setup);
        assert_eq!(world.up(0).len(), 3);
        world.stimulate(Stimulus::Announce(0));
        let until = world.now + 100;
        world.run_until(until);
        let id = *world.hosts[0].confirmed.last().unwrap();
        assert_eq!(world.hosts[0].confirmed.len(), 2);
        world.stimulate(Stimulus::Cut(0, 0));
        let until = world.now + 100;
        world.run_until(until);
        // The link that carries requests now has no key for the buffer.
        for rmb in world.hosts[0].own.iter_mut().flatten() {
            if rmb.id == RmbId(id) {
                rmb.tokens.forget(place(1));
            }
        }
        world.stimulate(Stimulus::Withdraw(0));
        let until = world.now + 100;
        world.run_until(until);
        assert!(world.hosts[0].deleted.contains(&id), "{:#?}", world.log);
        checked(&mut world);
    }
}

/// Groups in which it takes two messages to announce a buffer.
const FOUR: Setup = Setup {
    ports: [4, 4],
    max_links: [4, 4],
    ..Setup::TWO
};

/// What answers CONFIRM RKEY CONTINUATION.
fn is_continued(message: &[u8]) -> bool {
    message[0] == 0x08 && message[3] & 0x80 != 0
}

/// Either host loses a link before, between and after the messages that announce a buffer. No deletion begins
/// between them (RFC 7609 section 3.5.5.3).
#[test]
fn a_link_fails_while_a_buffer_is_announced() {
    let cases = (0..2).flat_map(|h| (0..2).map(move |loser| (h, loser)));
    for (h, loser) in cases {
        for link in 0..4 {
            for steps in 0..12 {
                let mut world = settled(FOUR);
                assert_eq!(world.up(0).len(), 4);
                world.change = |message| {
                    let negative = message[3] & 0x20 != 0;
                    assert!(!(is_continued(message) && negative), "refused half-way");
                };
                world.stimulate(Stimulus::Announce(h));
                for _ in 0..steps {
                    if let Some(action) = world.actions().first() {
                        world.act(*action);
                    }
                }
                let qp = world.qp_of(loser, place(link)).unwrap();
                world.fail(loser, qp);
                world.act(Action::Notice(loser, qp));
                world.run_until(world.now + 1_000);
                checked(&mut world);
                assert_eq!(world.hosts[h].confirmed.len(), 2);
            }
        }
    }
}

/// A server that has a link to delete, and waits for the client's exchange to do so, begins none of its own.
#[test]
fn a_deletion_comes_before_what_a_server_has_to_announce() {
    let mut world = settled(FOUR);
    world.stimulate(Stimulus::Announce(1));
    for _ in 0..2 {
        world.step();
    }
    let qp = world.qp_of(0, place(1)).unwrap();
    world.fail(0, qp);
    world.act(Action::Notice(0, qp));
    world.stimulate(Stimulus::Announce(0));
    let actions = world.actions();
    let sends = |action: &Action| matches!(action, Action::Deliver(0, _));
    assert!(!actions.iter().any(sends), "{actions:?} {:#?}", world.log);
    world.run_until(world.now + 1_000);
    checked(&mut world);
    let confirmed = world.hosts.each_ref().map(|host| host.confirmed.len());
    assert_eq!(confirmed, [2, 2]);
}

/// A refused continuation does not say whether it is worth another try: it gets some.
#[test]
fn a_buffer_is_announced_again_if_its_continuation_is_refused() {
    for h in 0..2 {
        for recovers in [false, true] {
            let mut world = settled(FOUR);
            world.change = |message| {
                if is_continued(message) {
                    message[3] |= 0x20;
                }
            };
            world.stimulate(Stimulus::Announce(h));
            world.run_until(world.now + 150);
            let Host {
                waiting, confirmed, ..
            } = &world.hosts[h];
            assert_eq!((waiting.len(), confirmed.len()), (1, 1), "{:#?}", world.log);
            if recovers {
                world.change = |_| ();
            }
            world.run_until(world.now + 100);
            let Host {
                refused, confirmed, ..
            } = &world.hosts[h];
            let expected = if recovers { (0, 2) } else { (1, 1) };
            assert_eq!((refused.len(), confirmed.len()), expected);
            let received = world.hosts[1 - h].flow.counters().received;
            world.run_until(world.now + 1_000);
            assert_eq!(world.hosts[1 - h].flow.counters().received, received);
        }
    }
}

/// Both hosts test all their links at once, and one of them finds no free send slot: its own tests in the queue
/// leave room for all answers.
#[test]
fn all_links_are_tested_at_once() {
    for h in 0..2 {
        let mut world = settled(Setup {
            ports: [8, 8],
            max_links: [8, 8],
            ..Setup::TWO
        });
        world.run_until(30_999);
        world.stimulate(Stimulus::Busy(h));
        world.act(Action::Time);
        world.stimulate(Stimulus::Announce(1 - h));
        let is_room = |action: &Action| *action == Action::Room(h);
        while let Some(action) = world.actions().into_iter().find(|one| !is_room(one)) {
            world.act(action);
        }
        assert!(world.actions().iter().any(is_room));
        world.run_until(50_000);
        checked(&mut world);
        for host in &world.hosts {
            let counters = host.flow.counters();
            assert_eq!((counters.probes, counters.dropped), (8, 0));
            assert_eq!(host.downs, 0, "{:#?}", world.log);
        }
        assert_eq!(world.hosts[1 - h].confirmed.len(), 2);
    }
}

/// Answers that wait for a send slot of a link take no room once it has failed.
#[test]
fn what_waits_for_a_link_goes_with_it() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        let second = client.join(SECOND);
        let dropped = client.flow.counters().dropped;
        for _ in 0..30 {
            client.test(second);
        }
        client.test(LinkIx::FIRST);
        // One to each link, an RKEY exchange and a change of the links are waiting.
        let waiting = MAX_LINKS as u64 + 2;
        assert_eq!(client.flow.counters().dropped, dropped + 31 - waiting);
        client.flow.handle_link_failed(second, at(20));
        client.test(LinkIx::FIRST);
        let sends = [(0, kind(v2, 0x04)), (0, kind(v2, 0x07))];
        assert_eq!(client.sends(), sends);
    }
}

/// Linux says that all is in order even then.
#[test]
fn a_link_that_a_client_has_lost_is_left_at_once() {
    let (lost, unwanted) = (DeleteReason::PATH_LOST, DeleteReason::PROGRAM);
    for setup in versions(Setup::TWO) {
        for (orderly, reason) in [
            (false, lost),
            (true, lost),
            (false, unwanted),
            (true, unwanted),
        ] {
            let mut world = settled(setup);
            let wish = DeleteLink {
                reply: false,
                all: false,
                orderly,
                link: world.hosts[0].flow.link_number(place(1)),
                reason,
            };
            let mut bytes = Llc::DeleteLink(wish).emit();
            if setup.v2 {
                let wish = v2::Llc::DeleteLink(wish);
                wish.emit(ByteOrder::Big, &mut bytes).unwrap();
            }
            // No deletion begins before this is answered.
            world.stimulate(Stimulus::Announce(0));
            let now = world.time();
            let server = &mut world.hosts[0];
            let mut table = PeerTable::new(&mut server.peers);
            server
                .flow
                .handle_received(LinkIx::FIRST, &bytes, &mut table, now);
            world.settle(0);
            let left = !world.hosts[0].flow.is_link_up(place(1));
            assert_eq!(left, !orderly || reason == lost, "{:#?}", world.log);
            // Either way it goes, and another one comes.
            let until = world.now + 1_000;
            world.run_until(until);
            checked(&mut world);
            assert_eq!(world.hosts.each_ref().map(|h| h.downs), [1, 1]);
            assert_eq!(world.up(0).len(), 2);
        }
    }
}

#[test]
fn the_last_link_is_never_taken_out_of_use() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            for order in [[0, 1], [1, 0]] {
                let mut world = settled(setup);
                let now = world.time();
                let done = order.map(|link| world.hosts[host].flow.delete_link(place(link), now));
                assert_eq!(done, [true, false]);
                world.settle(host);
                let until = world.now + 2_000;
                world.run_until(until);
                checked(&mut world);
                assert_eq!(world.up(0).len(), 1, "{:#?}", world.log);
                assert!(!world.hosts[host].flow.is_over());
            }
        }
    }
}

#[test]
fn a_link_stays_if_its_stand_in_is_dead() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            let mut world = settled(setup);
            // What asks the first link whether it works, and all else over it, is lost.
            world.stimulate(Stimulus::Lose);
            world.stimulate(Stimulus::Drain(host));
            let until = world.now + 10_000;
            world.run_until(until);
            checked(&mut world);
            assert!(!world.hosts[host].flow.is_over(), "{:#?}", world.log);
            assert!(world.hosts[host].flow.is_link_up(place(1)));
        }
    }
}

/// Has a host drain its second link, while messages come in over it for so many milliseconds; whether it
/// was there all the time.
fn drained_under_load(world: &mut World, host: usize, ms: u64) -> bool {
    world.stimulate(Stimulus::Drain(host));
    let end = world.now + ms;
    while world.now < end {
        let now = world.time();
        world.hosts[host].flow.note_activity(place(1), now);
        world.run_until(world.now + 3);
        checked(world);
        if !world.hosts[host].flow.is_link_up(place(1)) {
            return false;
        }
    }
    true
}

#[test]
fn a_link_goes_when_nothing_comes_any_more() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            let mut world = settled(setup);
            assert!(drained_under_load(&mut world, host, 450));
            world.run_until(world.now + 40);
            checked(&mut world);
            assert!(!world.hosts[host].flow.is_link_up(place(1)));
        }
    }
}

#[test]
fn a_link_that_never_comes_to_rest_goes_all_the_same() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            let mut world = settled(setup);
            assert!(!drained_under_load(&mut world, host, 510));
        }
    }
}

/// The stand-in fails while a link comes to rest: it stays, and connections go on over it.
#[test]
fn a_link_at_rest_stays_if_it_is_the_last() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            for wait in [3, 30] {
                let mut world = settled(setup);
                drained_under_load(&mut world, host, wait);
                let qp = world.qp_of(host, place(0)).unwrap();
                world.fail(host, qp);
                world.run_until(world.now + 1_000);
                checked(&mut world);
                assert!(!world.hosts[host].flow.is_over(), "{:#?}", world.log);
                assert!(world.hosts[host].flow.is_link_up(place(1)));
                assert!(!world.hosts[host].held, "{:#?}", world.log);
            }
        }
    }
}

/// Has a host drain its second link, until that is sealed. Gives the queue pairs of both links, and when it would be
/// gone.
fn drained_until_sealed(world: &mut World, host: usize) -> ([u32; 2], u64) {
    let end = world.now + 400;
    world.stimulate(Stimulus::Drain(host));
    let qps = [place(0), place(1)].map(|link| world.qp_of(host, link).unwrap());
    while !world.hosts[host].qps[&qps[1]].sealed {
        assert!(world.now < end, "{:#?}", world.log);
        world.step();
    }
    (qps, end)
}

/// The stand-in fails when the link is sealed already: it stays, and is opened again.
#[test]
fn a_sealed_link_is_opened_if_it_is_the_last() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            let mut world = settled(setup);
            let (qps, end) = drained_until_sealed(&mut world, host);
            assert!(world.hosts[host].flow.is_link_up(place(1)));
            world.fail(host, qps[0]);
            world.run_until(end + 1_000);
            checked(&mut world);
            assert!(world.hosts[host].flow.is_link_up(place(1)));
            assert!(!world.hosts[host].qps[&qps[1]].sealed);
            assert!(!world.hosts[host].held, "{:#?}", world.log);
        }
    }
}

/// The stand-in fails while a link is sealed that a connection of the peer is still on: both are lost, and with them the
/// group, which both sides know.
#[test]
fn the_group_ends_if_the_stand_in_fails_while_a_sealed_link_is_written_to() {
    let setup = Setup {
        streams: 2,
        rmbs: [2; 2],
        ..Setup::TWO
    };
    for setup in versions(setup) {
        for host in 0..2 {
            let mut world = settled(setup);
            let (_, end) = drained_until_sealed(&mut world, host);
            let peer = 1 - host;
            world.fail(peer, world.qp_of(peer, place(0)).unwrap());
            for number in 0..2 {
                world.send(peer, number, 10);
            }
            world.post_streams(peer);
            world.run_until(end + 10_000);
            checked(&mut world);
            assert_eq!(world.broken_seals, 1, "{:#?}", world.log);
            for host in &world.hosts {
                assert!(host.flow.is_over(), "{:#?}", world.log);
            }
        }
    }
}

/// From a link that failed, Linux goes to none of the same port of its own.
#[test]
fn a_link_is_not_sealed_if_the_other_one_ends_at_the_same_port() {
    let setup = Setup {
        ports: [2, 1],
        ..Setup::TWO
    };
    for setup in versions(setup) {
        let mut world = settled(setup);
        world.stimulate(Stimulus::Drain(0));
        let until = world.now + 400;
        while world.now < until && world.hosts[0].flow.is_link_up(place(1)) {
            assert!(!world.hosts[0].flow.is_sealed(place(1)));
            world.step();
        }
        assert!(
            !world.hosts[0].flow.is_link_up(place(1)),
            "{:#?}",
            world.log
        );
    }
}

/// What is said of connections while a link goes: they are held in front of it, and go on after it.
#[test]
fn connections_are_held_while_a_link_goes() {
    let mut client = Client::new(true);
    let attempt = client.offer(SECOND, key(21));
    assert!(client.flow.link_made(attempt, Some(end(2)), at(1)));
    let second = attempt.link();
    client.confirm(second, SECOND, 3);
    client.sends();
    client.events();
    assert!(client.flow.is_link_up(second));
    assert!(client.flow.delete_link(second, at(1)));
    assert_eq!(client.events(), []);
    client.answer_test(LinkIx::FIRST);
    assert_eq!(client.events(), [Event::Hold]);
    assert!(client.flow.is_resting(second));
    assert!(!client.flow.is_resting(LinkIx::FIRST));
    // Nothing is asked before they are held.
    assert_eq!(client.sends(), []);
    client.flow.connections_held(at(50));
    client.answer_test(second);
    // Before it is deleted, nothing comes over it any more that would be confirmed.
    assert_eq!(client.events(), [Event::Seal]);
    assert!(client.flow.is_sealed(second));
    assert!(!client.flow.is_sealed(LinkIx::FIRST));
    assert_eq!(client.sends(), []);
    // One that is about others.
    let none = Client::new(true).flow.sealing();
    client.flow.links_sealed(none, at(59));
    assert_eq!(client.sends(), []);
    let which = client.flow.sealing();
    client.flow.links_sealed(which, at(60));
    client.answer_test(second);
    // DELETE LINK, over the other link.
    assert_eq!(client.sends(), [(0, 0x24)]);
    assert_eq!(client.events(), []);
    // The server says nothing: they do not wait for ever.
    let mut now = 1;
    while let Some(next) = client.flow.next_deadline().map(Time::as_millis) {
        assert!(next <= 4_000, "{next}");
        now = next.max(now);
        client.flow.handle_timeout(at(now));
        if client.events().contains(&Event::Resume) {
            break;
        }
    }
    assert_eq!(now, 3_001);
    assert!(!client.flow.is_sealed(second));
}

/// The link that was to show that it works is deleted by the server: another one has to.
#[test]
fn another_link_stands_in_if_the_first_choice_goes() {
    for v2 in [false, true] {
        for links in [2, 3] {
            let mut client = Client::new(v2);
            let second = client.join(SECOND);
            let last = if links == 3 {
                client.join(THIRD)
            } else {
                second
            };
            client.sends();
            client.events();
            assert!(client.flow.delete_link(last, at(1)));
            assert!(client.flow.is_doomed(last));
            assert_eq!(client.sends(), [(0, kind(v2, 0x07))]);
            client.delete(11, second);
            let reply = client.flow.poll_send_with(&OwnTable::EMPTY).unwrap();
            assert_eq!((reply.link, reply.message[0]), (second, kind(v2, 0x04)));
            if links == 3 {
                client.answer_test(second);
                assert!(client.events().contains(&Event::Hold));
                assert!(client.flow.is_resting(last));
            } else {
                // The last one stays.
                assert_eq!(client.sends(), []);
                assert!(!client.flow.is_doomed(last) && client.flow.is_link_up(last));
            }
        }
    }
}

/// That all has arrived over a link is told by the answer to a TEST LINK that was sent after somebody asked, and by no other.
#[test]
fn writes_are_confirmed_by_a_test_that_follows_them() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        // Before the first contact is over, no connection has anywhere to go.
        client.sends();
        assert!(!client.flow.confirm_writes(LinkIx::FIRST, at(1)));
        assert_eq!(client.sends(), []);
        let second = client.join(SECOND);
        assert!(client.flow.confirm_writes(LinkIx::FIRST, at(2)));
        assert_eq!(client.events(), []);
        // The one that is under way was sent before.
        assert!(client.flow.confirm_writes(LinkIx::FIRST, at(3)));
        client.answer_test(LinkIx::FIRST);
        assert_eq!(client.events(), []);
        client.answer_test(LinkIx::FIRST);
        assert_eq!(client.events(), [Event::WritesArrived(LinkIx::FIRST)]);
        // Nobody asks any more.
        assert_eq!(client.sends(), []);
        // Each link speaks for itself, and those alone that are there.
        assert!(client.flow.confirm_writes(second, at(4)));
        client.answer_test(second);
        assert_eq!(client.events(), [Event::WritesArrived(second)]);
        assert!(!client.flow.confirm_writes(place(2), at(5)));
        assert_eq!(client.sends(), []);
        // One that fails tells of that instead.
        assert!(client.flow.confirm_writes(second, at(6)));
        client.flow.handle_link_failed(second, at(6));
        let events = client.events();
        assert!(matches!(events[0], Event::LinkDown(link, _) if link == second));
        assert!(!events.contains(&Event::WritesArrived(second)));
    }
}

/// A link comes to rest of which somebody asks: that all has arrived is told before the link is down.
#[test]
fn writes_are_confirmed_before_a_link_goes() {
    let mut client = Client::new(true);
    let second = client.join(SECOND);
    assert!(client.flow.delete_link(second, at(1)));
    client.answer_test(LinkIx::FIRST);
    assert_eq!(client.events(), [Event::Hold]);
    client.flow.connections_held(at(50));
    // The TEST LINK of the rest is under way.
    assert!(client.flow.confirm_writes(second, at(50)));
    client.answer_test(second);
    assert_eq!(client.events(), [Event::Seal]);
    let which = client.flow.sealing();
    client.flow.links_sealed(which, at(50));
    // One answer for both.
    client.answer_test(second);
    assert_eq!(client.events(), [Event::WritesArrived(second)]);
    client.delete(SECOND, LinkIx::FIRST);
    let events = client.events();
    assert!(
        matches!(events[0], Event::LinkDown(link, _) if link == second),
        "{events:?}"
    );
}

#[test]
fn a_link_that_does_not_last_is_not_replaced_at_once() {
    for setup in versions(Setup::TWO) {
        let mut world = settled(setup);
        let lose = |world: &mut World, ms: u64| {
            let further = (1..MAX_LINKS)
                .rev()
                .find_map(|at| world.qp_of(0, place(at)));
            world.fail(0, further.unwrap());
            let until = world.now + ms;
            world.run_until(until);
            checked(world);
            world.up(0).len()
        };
        assert_eq!(lose(&mut world, 100), 2, "{:#?}", world.log);
        assert_eq!(lose(&mut world, 4_000), 1, "{:#?}", world.log);
        let until = world.now + 2_000;
        world.run_until(until);
        assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
    }
}

#[test]
fn an_offer_without_an_answer_leaves_one_link() {
    let mut flow = server();
    let mut peers = vec![PeerRmb::EMPTY; 8];
    let mut table = PeerTable::new(&mut peers);
    flow.handle_received(LinkIx::FIRST, &confirmed().emit(), &mut table, at(1));
    let (attempt, _) = asked(&mut flow);
    assert!(flow.link_made(attempt, Some(end(2)), at(2)));
    let offer = std::iter::from_fn(|| flow.poll_send()).last().unwrap();
    assert_eq!(offer.message[0], 0x02);
    flow.handle_timeout(at(5_001));
    assert_eq!(flow.poll_event(), None);
    flow.handle_timeout(at(5_002));
    let events: Vec<Event> = std::iter::from_fn(|| flow.poll_event()).collect();
    assert_eq!(
        events,
        [
            Event::LinkGone(attempt.link()),
            Event::FirstContact(LinkResult::Up)
        ]
    );
    assert!(flow.is_usable() && !flow.is_link_up(attempt.link()));
}

/// A port that appears during the first contact is tried when that is over, and not a minute later.
#[test]
fn a_port_that_comes_early_is_not_forgotten() {
    for comes in [false, true] {
        let mut flow = server();
        let mut peers = vec![PeerRmb::EMPTY; 8];
        let mut table = PeerTable::new(&mut peers);
        flow.handle_received(LinkIx::FIRST, &confirmed().emit(), &mut table, at(1));
        let (attempt, _) = asked(&mut flow);
        assert!(flow.could_use_port());
        if comes {
            flow.hint(end(3).mac, end(3).gid, at(1));
        }
        assert!(flow.link_made(attempt, Some(end(1)), at(2)));
        let sends = std::iter::from_fn(|| flow.poll_send_with(&OwnTable::EMPTY));
        let offer = sends.last().unwrap();
        let Llc::AddLink(offer) = Llc::parse(&offer.message).unwrap() else {
            panic!("the link is offered");
        };
        let refusal = Llc::AddLink(offer.rejection(Reject::NoPath));
        let mut table = PeerTable::new(&mut peers);
        flow.handle_received(LinkIx::FIRST, &refusal.emit(), &mut table, at(3));
        let makes = |event| matches!(event, Event::MakeLink { .. });
        assert_eq!(std::iter::from_fn(|| flow.poll_event()).any(makes), comes);
    }
}

#[test]
fn a_server_that_looks_for_a_port_disturbs_nobody() {
    let mut flow = server();
    let mut peers = vec![PeerRmb::EMPTY; 8];
    let mut say = |flow: &mut Flow, message: Llc, now| {
        let mut table = PeerTable::new(&mut peers);
        flow.handle_received(LinkIx::FIRST, &message.emit(), &mut table, now);
        let mut answers = Vec::new();
        while let Some(send) = flow.poll_send_with(&OwnTable::EMPTY) {
            answers.push(Llc::parse(&send.message).unwrap());
        }
        answers
    };
    say(&mut flow, confirmed(), at(1));
    // The client, on its one port, declines a link to the only one that we have.
    let (attempt, spare_only) = asked(&mut flow);
    assert!(!spare_only, "the client may have two ports");
    assert!(flow.link_made(attempt, Some(end(1)), at(2)));
    let Some(Outgoing { message, .. }) = flow.poll_send_with(&OwnTable::EMPTY) else {
        panic!("the link is offered");
    };
    let Llc::AddLink(offer) = Llc::parse(&message).unwrap() else {
        panic!("the link is offered");
    };
    let refusal = Llc::AddLink(offer.rejection(Reject::NoPath));
    say(&mut flow, refusal, at(3));
    assert!(flow.is_usable());

    assert_eq!(FlowTiming::DEFAULT.link_retry, 60_000);
    assert_eq!(
        std::iter::from_fn(|| flow.poll_event()).last(),
        Some(Event::FirstContact(LinkResult::Up))
    );
    flow.handle_timeout(at(60_002));
    assert_eq!(flow.poll_event(), None);
    flow.handle_timeout(at(60_003));
    let (attempt, spare_only) = asked(&mut flow);
    assert!(spare_only, "a client with two ports would have said so");
    // The client does not know that we look for one: what it announces is taken.
    let announced = Llc::ConfirmRkey(ConfirmRkey::request(key(5)));
    let answers = say(&mut flow, announced, at(60_010));
    assert_eq!(
        answers,
        [Llc::ConfirmRkey(ConfirmRkey::request(key(5)).accepted())]
    );
    assert!(flow.link_made(attempt, None, at(60_020)));
    assert!(!flow.has_sends(), "there is nothing to say");
    // A port appears, and another one while the first one is tried.
    flow.hint(end(2).mac, end(2).gid, at(60_030));
    let (attempt, _) = asked(&mut flow);
    flow.hint(end(3).mac, end(3).gid, at(60_040));
    flow.hint(end(3).mac, end(3).gid, at(60_041));
    assert_eq!(flow.poll_event(), None);
    assert!(flow.link_made(attempt, None, at(60_050)));
    let (attempt, _) = asked(&mut flow);
    assert!(flow.link_made(attempt, None, at(60_060)));
    assert_eq!(flow.poll_event(), None);
}

/// A client that begins to announce a buffer and does not go on keeps a link waiting no longer than its timer.
#[test]
fn an_announcement_that_does_not_go_on_is_not_waited_for_long() {
    let mut server = Server::new();
    server.join(2, SECOND);
    let mut flow = server.flow;
    let (attempt, _) = asked(&mut flow);
    assert!(flow.link_made(attempt, None, at(2)));
    let mut peers = vec![PeerRmb::EMPTY; 8];
    let entry = LinkRToken {
        link: LinkNum::new(2),
        rtoken: key(6),
    };
    let begins = ConfirmRkey {
        others: 3,
        entries: [entry; 2],
        ..ConfirmRkey::request(key(5))
    };
    let mut table = PeerTable::new(&mut peers);
    let request = Llc::ConfirmRkey(begins).emit();
    flow.handle_received(LinkIx::FIRST, &request, &mut table, at(10));
    assert_eq!(said(&mut flow), [(0, Llc::ConfirmRkey(begins.accepted()))]);
    while flow.poll_event().is_some() {}
    flow.hint(end(3).mac, end(3).gid, at(20));
    assert_eq!(flow.poll_event(), None);
    assert_eq!(flow.next_deadline(), Some(at(5_010)));
    flow.handle_timeout(at(5_010));
    asked(&mut flow);
    // Too late.
    let dropped = flow.counters().dropped;
    let continues = ConfirmRkeyCont {
        left: 1,
        entries: [entry; 3],
        ..ConfirmRkeyCont::default()
    };
    let mut table = PeerTable::new(&mut []);
    let continues = Llc::ConfirmRkeyCont(continues).emit();
    flow.handle_received(LinkIx::FIRST, &continues, &mut table, at(5_011));
    assert_eq!(flow.counters().dropped, dropped + 1);
}

/// A client whose link takes nothing says once that it has a port, however often it finds one.
#[test]
fn hints_that_wait_do_not_pile_up() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        client.offer(SECOND, key(21));
        client.flow.handle_timeout(at(100_000));
        client.sends();
        client.events();
        for port in 0..30 {
            let port = end(2 + port % 2);
            client.flow.hint(port.mac, port.gid, at(100_000));
        }
        let hint = client.flow.poll_send().unwrap();
        let gid = if v2 { 28 } else { 12 };
        assert_eq!(hint.message[gid..gid + 16], end(3).gid.0);
        // It finds no send slot.
        client.flow.put_back();
        let port = end(4);
        client.flow.hint(port.mac, port.gid, at(100_000));
        let hint = client.flow.poll_send().unwrap();
        assert_eq!(hint.message[gid..gid + 16], port.gid.0);
        assert_eq!(client.flow.poll_send(), None);
    }
}

/// A server that has no other link says so: that is the answer to a client's hint, and another one is not.
#[test]
fn a_no_to_a_hint_is_its_answer() {
    let mut client = Client::new(true);
    client.offer(SECOND, key(21));
    client.flow.handle_timeout(at(100_000));
    let port = end(2);
    client.flow.hint(port.mac, port.gid, at(100_000));
    client.sends();
    let dropped = client.flow.counters().dropped;
    for more in [0, 1] {
        client.say(
            LinkIx::FIRST,
            &Llc::ConfirmRkey(ConfirmRkey::request(key(40))),
            &v2::Llc::RequestAddLink(v2::RequestAddLink {
                reply: true,
                gids: &[],
            }),
        );
        assert_eq!(client.flow.counters().dropped, dropped + more);
        assert_eq!(client.sends(), []);
    }
}

/// A server that offers a link again and again, while no answer can be sent, is not heard after a while.
#[test]
fn answers_to_offers_do_not_pile_up() {
    for v2 in [false, true] {
        let mut client = Client::new(v2);
        client.sends();
        let mut asked = 0;
        for _ in 0..30 {
            client.say_offer(SECOND, key(21));
            for event in client.events() {
                if let Event::AcceptLink { attempt, .. } = event {
                    asked += 1;
                    assert!(client.flow.link_made(attempt, Some(end(2)), at(5)));
                }
            }
        }
        assert_eq!(asked, MAX_LINKS + 2);
    }
}

/// Where nothing can be sent, a link that is silent is not tested, and its timer is not due all the time.
#[test]
fn a_test_that_cannot_be_sent_is_not_due() {
    let mut world = settled(Setup {
        max_links: [8; 2],
        ports: [8; 2],
        ..Setup::TWO
    });
    assert_eq!(world.up(0).len(), 8);
    let host = &mut world.hosts[0];
    let mut table = PeerTable::new(&mut host.peers);
    let test = Llc::TestLink(Default::default()).emit();
    let mut now = at(world.now);
    // As many as are answered.
    for _ in 0..12 {
        host.flow
            .handle_received(LinkIx::FIRST, &test, &mut table, now);
    }
    LinkIx::all().for_each(|link| host.flow.note_activity(link, now));
    now = host.flow.next_deadline().unwrap();
    host.flow.handle_timeout(now);
    let next = host.flow.next_deadline().unwrap();
    assert!(next > now, "{next:?} is not later than {now:?}");
    // As soon as there is room, it is.
    while host.flow.poll_send().is_some() {}
    assert_eq!(host.flow.next_deadline(), Some(now));
    host.flow.handle_timeout(now);
    assert!(host.flow.has_sends());
    assert_eq!(host.flow.next_deadline(), Some(next));
}
