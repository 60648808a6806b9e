// SPDX-License-Identifier: GPL-2.0

//! Messages that cross with an exchange under way (RFC 7609 section 3.5.5.3, where each row is a paragraph).

use smc_proto::{
    group::{
        LinkIx,
        OwnRmb,
        OwnTable,
        PeerRmb,
        PeerTable,
        Tokens, //
    },
    llc::{
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
        TestLink, //
    },
    llc_flow::{
        Attempt,
        DownReason,
        Event,
        Flow,
        RmbId, //
    },
    wire::{
        LinkNum,
        Psn,
        QpNum,
        RToken, //
    },
};

use crate::fixtures::{
    asked,
    at,
    confirmed,
    end,
    events,
    key,
    place,
    Client,
    Server,
    SECOND,
    THIRD, //
};

const FIRST: LinkIx = LinkIx::FIRST;
/// Long after the links have come.
const NOW: u64 = 20_000;

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum During {
    /// ADD LINK, and how far it is: our driver makes the link, the client answers, our driver connects the link, keys
    /// are exchanged, CONFIRM LINK.
    Make,
    Offer,
    Connect,
    Keys,
    Confirm,
    /// DELETE LINK of the server, or the client's request for it.
    Delete,
    /// An RKEY exchange that we have begun, or the peer has, in two messages.
    OurRkey,
    PeerRkey,
}
use During::*;

/// What comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrives {
    Test,
    DeleteAll,
    /// DELETE LINK for the second link.
    DeleteOne,
    /// ADD LINK of a client.
    Hint,
    Rkey,
    /// DELETE RKEY for a buffer that nothing uses.
    RkeyGone,
}
use Arrives::*;

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// An answer at once, and nothing else.
    Answered,
    /// "Negative response", to be repeated.
    Refused,
    Ignored,
    /// Nothing before the exchange is over, then at once.
    Queued,
    /// "Immediately clean up the link group."
    Over,
}
use Outcome::*;

fn number(link: u8) -> Option<LinkNum> {
    LinkNum::new(link)
}

fn message(arrives: Arrives) -> Llc {
    let delete = DeleteLink {
        reply: false,
        all: arrives == DeleteAll,
        orderly: true,
        link: number(2).filter(|_| arrives == DeleteOne),
        reason: DeleteReason::PROGRAM,
    };
    match arrives {
        Test => Llc::TestLink(TestLink {
            data: [7; 16],
            ..TestLink::default()
        }),
        DeleteAll | DeleteOne => Llc::DeleteLink(delete),
        Hint => Llc::AddLink(AddLink {
            reply: false,
            reject: None,
            mac: end(14).mac,
            gid: end(14).gid,
            qp: QpNum::default(),
            link: None,
            mtu: None,
            psn: Psn::default(),
            layout: AddLinkLayout::Deployed,
        }),
        Rkey => Llc::ConfirmRkey(announced()),
        RkeyGone => Llc::DeleteRkey(DeleteRkey::request(unused().rkey)),
    }
}

/// The key on the first link of a buffer that the peer takes back.
fn unused() -> RToken {
    key(90)
}

/// It has been announced, with keys for two links.
fn announce_unused(peers: &mut [PeerRmb]) {
    let mut tokens = Tokens::EMPTY;
    tokens.set(FIRST, unused());
    tokens.set(place(1), key(91));
    PeerTable::new(peers).add_all(FIRST, &tokens).unwrap();
}

fn knows_unused(peers: &mut [PeerRmb]) -> bool {
    let table = PeerTable::new(peers);
    table.find(FIRST, unused().rkey).is_some() || table.find(place(1), key(91).rkey).is_some()
}

/// A buffer of the peer, with keys for three links.
fn announced() -> ConfirmRkey {
    let entry = |link: u8| LinkRToken {
        link: number(link),
        rtoken: key(40 + u32::from(link)),
    };
    ConfirmRkey {
        others: 1,
        entries: [entry(2), LinkRToken::default()],
        ..ConfirmRkey::request(key(41))
    }
}

/// The same in two messages.
fn announced_in_two() -> (ConfirmRkey, ConfirmRkeyCont) {
    let one = announced();
    let request = ConfirmRkey {
        others: 3,
        entries: [one.entries[0]; 2],
        ..one
    };
    let goes_on = ConfirmRkeyCont {
        left: 1,
        entries: [one.entries[0]; 3],
        ..ConfirmRkeyCont::default()
    };
    (request, goes_on)
}

/// What is sent next, where a buffer of ours has a key on each link.
fn next(flow: &mut Flow) -> Option<(usize, Llc)> {
    let mut tokens = Tokens::EMPTY;
    for link in 0..8 {
        tokens.set(place(link), key(500 + link as u32));
    }
    let id = RmbId(5);
    let own = [Some(OwnRmb { id, tokens })];
    let send = flow.poll_send_with(&OwnTable::new(&own))?;
    Some((send.link.get(), Llc::parse(&send.message).unwrap()))
}

fn said(flow: &mut Flow) -> Vec<(usize, Llc)> {
    std::iter::from_fn(|| next(flow)).collect()
}

/// The one message that is sent, which announces our buffer.
fn our_request(flow: &mut Flow) -> ConfirmRkey {
    match said(flow)[..] {
        [(0, Llc::ConfirmRkey(request))] if !request.reply => request,
        ref other => panic!("no announcement: {other:?}"),
    }
}

/// A server in the middle of an exchange.
struct Serving {
    server: Server,
    during: During,
    /// The link that is offered.
    new: Option<(LinkIx, AddLink)>,
    /// What the driver has been asked to connect.
    connect: Option<Attempt>,
    request: Option<ConfirmRkey>,
}

impl Serving {
    fn new(during: During) -> Self {
        let mut server = Server::new();
        server.join(2, SECOND);
        server.now = NOW;
        let mut this = Self {
            server,
            during,
            new: None,
            connect: None,
            request: None,
        };
        match during {
            Make => {}
            Offer | Connect | Keys | Confirm => this.add(during),
            Delete => {
                this.server.join(3, THIRD);
                // An operator's wish: the link is not replaced at once.
                let wish = DeleteLink {
                    reply: false,
                    all: false,
                    orderly: true,
                    link: number(3),
                    reason: DeleteReason::OPERATOR,
                };
                this.server.receive(FIRST, Llc::DeleteLink(wish));
                assert_eq!(said(&mut this.server.flow), [(0, Llc::DeleteLink(wish))]);
            }
            OurRkey | PeerRkey => {
                let (attempt, _) = asked(&mut this.server.flow);
                assert!(this.server.flow.link_made(attempt, None, at(NOW)));
                this.begin_rkey();
            }
        }
        // The attempt to add a link is asked for by its driver.
        if during != Make {
            events(&mut this.server.flow);
        }
        this
    }

    fn begin_rkey(&mut self) {
        let flow = &mut self.server.flow;
        if self.during == OurRkey {
            flow.announce(RmbId(5), key(500), at(NOW)).unwrap();
            self.request = Some(our_request(flow));
        } else {
            let (request, _) = announced_in_two();
            self.server.receive(FIRST, Llc::ConfirmRkey(request));
            assert_eq!(said(&mut self.server.flow).len(), 1);
        }
    }

    /// The addition of a third link goes on up to this step.
    fn add(&mut self, until: During) {
        let steps = [Offer, Connect, Keys, Confirm];
        let from = match self.new {
            Some(_) => steps.iter().position(|step| *step == self.during).unwrap() + 1,
            None => 0,
        };
        let until = steps.iter().position(|step| *step == until).unwrap() + 1;
        for step in &steps[from..until] {
            if *step == Offer {
                self.new = Some(self.server.offer(3));
                continue;
            }
            let (_, offer) = self.new.unwrap();
            let server = &mut self.server;
            match step {
                Connect => {
                    server.accept(FIRST, offer, THIRD);
                    let [Event::ConnectLink(attempt)] = events(&mut server.flow)[..] else {
                        panic!("nothing to connect");
                    };
                    self.connect = Some(attempt);
                    continue;
                }
                Keys => {
                    let attempt = self.connect.unwrap();
                    server.flow.link_connected(attempt, true, at(NOW));
                }
                _ => server.keys(FIRST, offer, 0),
            }
            assert_eq!(said(&mut server.flow).len(), 1);
        }
    }

    /// The exchange comes to its end.
    fn finish(&mut self) {
        match self.during {
            Make | Offer | Connect | Keys | Confirm => {
                self.add(Confirm);
                let Llc::ConfirmLink(first) = confirmed() else {
                    unreachable!();
                };
                let far = end(THIRD);
                let reply = ConfirmLink {
                    mac: far.mac,
                    gid: far.gid,
                    qp: far.qp,
                    link: number(3).unwrap(),
                    ..first
                };
                let (new, _) = self.new.unwrap();
                self.server.receive(new, Llc::ConfirmLink(reply));
                assert!(self.server.flow.is_link_up(new));
            }
            Delete => {
                let done = DeleteLink {
                    reply: true,
                    all: false,
                    orderly: true,
                    link: number(3),
                    reason: DeleteReason::DONE,
                };
                self.server.receive(FIRST, Llc::DeleteLink(done));
            }
            OurRkey => {
                let accepted = self.request.unwrap().accepted();
                self.server.receive(FIRST, Llc::ConfirmRkey(accepted));
            }
            PeerRkey => {
                let (_, goes_on) = announced_in_two();
                self.server.receive(FIRST, Llc::ConfirmRkeyCont(goes_on));
            }
        }
    }

    /// What is begun after the end of the exchange: DELETE LINK of the second link, or ADD LINK.
    fn next(&mut self) -> (bool, bool) {
        let sends = said(&mut self.server.flow);
        let deletes = sends.iter().any(|(_, message)| {
            matches!(message, Llc::DeleteLink(delete) if !delete.reply && delete.link == number(2))
        });
        let adds = events(&mut self.server.flow)
            .iter()
            .any(|event| matches!(event, Event::MakeLink { .. }));
        (deletes, adds)
    }
}

/// The answer to what came in; true if it is accepted.
fn answer(arrives: Arrives, accepted: bool) -> Llc {
    match message(arrives) {
        Llc::TestLink(test) => Llc::TestLink(TestLink {
            reply: true,
            ..test
        }),
        Llc::ConfirmRkey(request) if accepted => Llc::ConfirmRkey(request.accepted()),
        Llc::ConfirmRkey(request) => Llc::ConfirmRkey(request.refused(true)),
        Llc::DeleteRkey(request) => Llc::DeleteRkey(request.answered(0)),
        other => panic!("there is no answer to {other:?}"),
    }
}

const AT_SERVER: [(&[During], Arrives, Outcome); 14] = [
    (&[Make, Offer, Connect, Keys, Confirm], Test, Answered),
    (&[Delete, OurRkey, PeerRkey], Test, Answered),
    (&[Make, Offer, Connect, Keys, Confirm], DeleteAll, Over),
    (&[Delete, OurRkey, PeerRkey], DeleteAll, Over),
    (&[Offer, Connect, Keys, Confirm], Hint, Ignored),
    (&[Make, Offer, Connect, Keys, Confirm], DeleteOne, Queued),
    (&[Offer, Connect, Keys, Confirm], Rkey, Refused),
    (&[Delete], Hint, Queued),
    (&[Delete], DeleteOne, Queued),
    (&[Delete], Rkey, Refused),
    (&[OurRkey, PeerRkey], Hint, Queued),
    (&[OurRkey, PeerRkey], DeleteOne, Queued),
    // A change of links does not depend on a buffer that goes: its keys go with it, on all of them.
    (&[Make, Offer, Connect, Keys, Confirm], RkeyGone, Answered),
    (&[Delete, OurRkey, PeerRkey], RkeyGone, Answered),
];

#[test]
fn what_a_server_does_with_what_crosses() {
    for (all, arrives, outcome) in AT_SERVER {
        for during in all {
            // What follows if nothing comes in between.
            let mut alone = Serving::new(*during);
            alone.finish();
            assert_eq!(alone.next(), (false, false), "{during:?}");

            let mut this = Serving::new(*during);
            if *during == Make {
                // What the driver is asked for is left to it.
                let (attempt, _) = asked(&mut this.server.flow);
                crossing(&mut this, arrives, outcome);
                if outcome != Over {
                    made(&mut this, attempt);
                }
            } else {
                crossing(&mut this, arrives, outcome);
            }
            if outcome != Over {
                this.finish();
                let queued = outcome == Queued;
                let expected = (queued && arrives == DeleteOne, queued && arrives == Hint);
                assert_eq!(this.next(), expected, "{during:?} {arrives:?}");
            }
        }
    }
}

/// The driver's answer, and the offer that it leads to.
fn made(this: &mut Serving, attempt: Attempt) {
    let flow = &mut this.server.flow;
    assert!(flow.link_made(attempt, Some(end(3)), at(NOW)));
    let [(0, Llc::AddLink(offer))] = said(flow)[..] else {
        panic!("no offer");
    };
    this.new = Some((attempt.link(), offer));
    this.during = Offer;
}

/// The message comes in, and has its effect.
fn crossing(this: &mut Serving, arrives: Arrives, outcome: Outcome) {
    if arrives == RkeyGone {
        announce_unused(&mut this.server.peers);
    }
    this.server.receive(FIRST, message(arrives));
    assert!(!knows_unused(&mut this.server.peers));
    let sends = said(&mut this.server.flow);
    let happened = events(&mut this.server.flow);
    let what = format!("{:?} {arrives:?}: {sends:?} {happened:?}", this.during);
    match outcome {
        Answered => assert_eq!(sends, [(0, answer(arrives, true))], "{what}"),
        Refused => assert_eq!(sends, [(0, answer(arrives, false))], "{what}"),
        Ignored | Queued => assert_eq!(sends, [], "{what}"),
        Over => {
            // A client of Linux waits for the same from its server.
            assert!(
                matches!(sends[..], [(0, Llc::DeleteLink(delete))] if delete.all),
                "{what}"
            );
            let down = Event::Down(DownReason::PeerDeleted(DeleteReason::PROGRAM));
            assert_eq!(happened, [down], "{what}");
            return;
        }
    }
    assert_eq!(happened, [], "{what}");
}

/// Both sides announce buffers at a time: neither disturbs the other.
#[test]
fn announcements_of_both_sides_cross() {
    let mut this = Serving::new(OurRkey);
    this.server.receive(FIRST, message(Rkey));
    assert_eq!(said(&mut this.server.flow), [(0, answer(Rkey, true))]);
    this.finish();
    let taken = [Event::RkeyConfirmed(RmbId(5))];
    assert_eq!(events(&mut this.server.flow), taken);

    let (mut client, request) = announcing();
    client.receive(FIRST, &message(Rkey).emit());
    assert_eq!(said(&mut client.flow), [(0, answer(Rkey, true))]);
    client.receive(FIRST, &Llc::ConfirmRkey(request.accepted()).emit());
    assert_eq!(client.events(), taken);
}

/// A client of two links that has announced a buffer.
fn announcing() -> (Client, ConfirmRkey) {
    let mut client = Client::new(false);
    client.join(SECOND);
    client.now = NOW;
    client.flow.announce(RmbId(5), key(500), at(NOW)).unwrap();
    let request = our_request(&mut client.flow);
    assert_eq!((request.rtoken, request.others), (key(500), 1));
    (client, request)
}

/// ADD LINK CONTINUATION of a server that has no buffers.
fn no_keys() -> Llc {
    Llc::AddLinkCont(AddLinkCont {
        reply: false,
        link: number(3).unwrap(),
        left: 0,
        pairs: [RTokenPair::default(); 2],
    })
}

/// The rest of an offer's exchange, on the client's side.
fn come_into_use(client: &mut Client, attempt: Attempt) {
    assert!(client.flow.link_made(attempt, Some(end(3)), at(NOW)));
    assert_eq!(said(&mut client.flow).len(), 1);
    client.receive(FIRST, &no_keys().emit());
    assert_eq!(said(&mut client.flow).len(), 1);
    client.confirm(attempt.link(), THIRD, 3);
    assert!(client.flow.is_link_up(attempt.link()));
}

/// "Process the ADD LINK. Client will receive a negative CONFIRM RKEY from the server and will have to redo this
/// CONFIRM RKEY exchange after the ADD LINK exchange completes." Where Linux accepts it, it lacks a key.
#[test]
fn a_client_announces_again_after_an_offer_that_crossed() {
    for refused in [false, true] {
        let (mut client, request) = announcing();
        let attempt = client.offer(THIRD, key(30));
        let answer = if refused {
            request.refused(true)
        } else {
            request.accepted()
        };
        client.receive(FIRST, &Llc::ConfirmRkey(answer).emit());
        assert_eq!(said(&mut client.flow), []);
        // Not before the link is there, however long that takes.
        client.now = NOW + 500;
        client.flow.handle_timeout(at(client.now));
        assert_eq!(said(&mut client.flow), []);
        if !refused {
            // Our answer to the offer brings all keys of a buffer that the server knows.
            assert_eq!(client.events(), [Event::RkeyConfirmed(RmbId(5))]);
            continue;
        }
        come_into_use(&mut client, attempt);
        let sends = said(&mut client.flow);
        let [(at_new, Llc::ConfirmLink(_)), (0, Llc::ConfirmRkey(again))] = sends[..] else {
            panic!("{sends:?}");
        };
        assert_eq!(at_new, attempt.link().get());
        assert_eq!((again.reply, again.others), (false, 2));
        client.receive(FIRST, &Llc::ConfirmRkey(again.accepted()).emit());
        assert!(client.events().contains(&Event::RkeyConfirmed(RmbId(5))));
    }
}

/// "When a peer knows that one of these exchanges is in progress, it must not start another": not even one that has
/// waited for a send slot since before.
#[test]
fn an_announcement_without_a_send_slot_waits_for_the_offer_that_overtakes_it() {
    for put_back in [false, true] {
        let mut client = Client::new(false);
        client.join(SECOND);
        client.now = NOW;
        client.flow.announce(RmbId(5), key(500), at(NOW)).unwrap();
        if put_back {
            assert!(next(&mut client.flow).is_some());
            client.flow.put_back();
        }
        let attempt = client.offer(THIRD, key(30));
        assert_eq!(said(&mut client.flow), []);
        come_into_use(&mut client, attempt);
        let sends = said(&mut client.flow);
        assert!(
            matches!(
                sends[..],
                [(2, Llc::ConfirmLink(_)), (0, Llc::ConfirmRkey(request))] if request.others == 2
            ),
            "{sends:?}"
        );
    }
}

/// "Process the DELETE LINK", likewise.
#[test]
fn a_client_announces_again_after_a_deletion_that_crossed() {
    let (mut client, request) = announcing();
    client.delete(SECOND, FIRST);
    let sends = said(&mut client.flow);
    assert!(
        matches!(sends[..], [(0, Llc::DeleteLink(delete))] if delete.reply),
        "{sends:?}"
    );
    assert!(!client.flow.is_link_up(place(1)));
    client.events();
    let refused = request.refused(true);
    client.receive(FIRST, &Llc::ConfirmRkey(refused).emit());
    assert_eq!(said(&mut client.flow), []);
    client.flow.handle_timeout(at(NOW + 99));
    assert_eq!(said(&mut client.flow), []);
    client.flow.handle_timeout(at(NOW + 100));
    let again = our_request(&mut client.flow);
    assert_eq!((again.rtoken, again.others), (key(500), 0));
}

/// A client in the middle of an exchange.
fn client_in(during: During) -> Client {
    if during == OurRkey {
        return announcing().0;
    }
    let mut client = Client::new(false);
    client.join(SECOND);
    client.now = NOW;
    match during {
        Delete => client.flow.handle_link_failed(place(1), at(NOW)),
        PeerRkey => {
            let (request, _) = announced_in_two();
            client.receive(FIRST, &Llc::ConfirmRkey(request).emit());
        }
        _ => {
            let attempt = client.offer(THIRD, key(30));
            if during != Make {
                assert!(client.flow.link_made(attempt, Some(end(3)), at(NOW)));
            }
            said(&mut client.flow);
            if during == Confirm {
                client.receive(FIRST, &no_keys().emit());
            }
        }
    }
    said(&mut client.flow);
    client.events();
    client
}

#[test]
fn a_client_answers_a_test_and_takes_back_and_the_end_at_any_time() {
    for during in [Make, Keys, Confirm, Delete, OurRkey, PeerRkey] {
        let mut client = client_in(during);
        announce_unused(&mut client.peers);
        for arrives in [Test, RkeyGone] {
            client.receive(FIRST, &message(arrives).emit());
            let sends = said(&mut client.flow);
            assert_eq!(sends, [(0, answer(arrives, true))], "{during:?}");
            assert_eq!(client.events(), []);
        }
        assert!(!knows_unused(&mut client.peers));
        client.receive(FIRST, &message(DeleteAll).emit());
        let down = Event::Down(DownReason::PeerDeleted(DeleteReason::PROGRAM));
        assert_eq!(client.events(), [down, Event::Release], "{during:?}");
        assert_eq!(said(&mut client.flow), []);
    }
}
