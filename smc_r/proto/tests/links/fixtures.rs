// SPDX-License-Identifier: GPL-2.0

//! One side of a link group, whose peer says what a test has it say.

use smc_proto::{
    group::{
        Element,
        LinkEnd,
        LinkIx,
        OwnTable,
        PeerRmb,
        PeerSlot,
        PeerTable,
        Role, //
    },
    llc::{
        v2::{
            self,
            AddLinkExt,
            AddLinkV2,
            RTokenPairWire, //
        },
        AddLink,
        AddLinkCont,
        AddLinkLayout,
        ConfirmLink,
        DeleteLink,
        DeleteReason,
        Llc,
        RTokenPair,
        TestLink, //
    },
    llc_flow::{
        Attempt,
        Event,
        Flow,
        FlowParams,
        Version, //
    },
    timer::{
        FlowTiming,
        Time, //
    },
    wire::{
        AlertToken,
        ByteOrder,
        Gid,
        LinkNum,
        Mac,
        MtuCode,
        Psn,
        QpNum,
        RKey,
        RToken,
        RmbeIndex,
        RmbeSize, //
    },
};

pub fn end(port: u8) -> LinkEnd {
    LinkEnd {
        mac: Mac([2, 0, 0, 0, 0, port]),
        gid: Gid([port; 16]),
        qp: QpNum::new(u32::from(port) + 1).unwrap(),
        mtu: MtuCode::new(3).unwrap(),
        psn: Psn::truncate(9),
    }
}

pub fn key(number: u32) -> RToken {
    RToken {
        rkey: RKey(number),
        addr: u64::from(number) << 20,
    }
}

pub fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// A client whose server says what a test has it say. Its first link is on the ports 1 and 11, and it
/// knows one buffer of the server.
pub struct Client {
    pub flow: Flow,
    pub peers: Vec<PeerRmb>,
    pub rmb: PeerSlot,
    pub v2: bool,
    /// Where the server sends, and the key of its buffer there.
    pub via: (LinkIx, RToken),
    pub now: u64,
}

impl Client {
    pub fn new(v2: bool) -> Self {
        let flow = Flow::new(FlowParams {
            role: Role::Client,
            version: match v2 {
                false => Version::One,
                true => Version::Two { direct: true },
            },
            max_links: 3,
            max_connections: 9,
            user_id: 1,
            seed: 1,
            timing: FlowTiming::DEFAULT,
        });
        let mut peers = vec![PeerRmb::EMPTY; 8];
        let element = Element {
            token: key(1),
            index: RmbeIndex::FIRST,
            size: RmbeSize::MIN,
            alert: AlertToken(1),
        };
        let rmb = PeerTable::new(&mut peers).claim(LinkIx::FIRST, &element);
        let mut this = Self {
            flow: flow.with_further_links(),
            peers,
            rmb: rmb.unwrap().element().slot,
            v2,
            via: (LinkIx::FIRST, key(1)),
            now: 1,
        };
        assert!(this.flow.add_connection());
        this.flow.start(end(1), end(11), None, at(0));
        this.confirm(LinkIx::FIRST, 11, 1);
        this
    }

    pub fn receive(&mut self, link: LinkIx, bytes: &[u8]) {
        let mut table = PeerTable::new(&mut self.peers);
        self.flow
            .handle_received(link, bytes, &mut table, at(self.now));
    }

    pub fn confirm(&mut self, link: LinkIx, port: u8, max_links: u8) {
        let far = end(port);
        let request = ConfirmLink {
            reply: false,
            no_eye_catcher: true,
            mac: far.mac,
            gid: far.gid,
            qp: far.qp,
            link: LinkNum::new(port - 10).unwrap(),
            user_id: [7; 4],
            max_links: if port == 11 { 3 } else { max_links },
            max_connections: 9,
        };
        self.say(
            link,
            &Llc::ConfirmLink(request),
            &v2::Llc::ConfirmLink(request),
        );
    }

    pub fn say(&mut self, link: LinkIx, one: &Llc, two: &v2::Llc<'_>) {
        if !self.v2 {
            return self.receive(link, &one.emit());
        }
        let mut bytes = [0; 500];
        let len = two.emit(ByteOrder::Big, &mut bytes).unwrap();
        self.receive(link, &bytes[..len]);
    }

    /// An offer, with the key of the buffer in version 2.
    pub fn say_offer(&mut self, port: u8, token: RToken) {
        let far = end(port);
        let base = AddLink {
            reply: false,
            reject: None,
            mac: far.mac,
            gid: far.gid,
            qp: far.qp,
            link: LinkNum::new(port - 10),
            mtu: Some(far.mtu),
            psn: far.psn,
            layout: AddLinkLayout::Deployed,
        };
        let pairs = [RTokenPairWire::from(RTokenPair {
            reference: self.via.1.rkey,
            new: token,
        })];
        let ext = Some(AddLinkExt {
            direct: true,
            target_gid: end(1).gid,
            pairs: &pairs,
        });
        let two = v2::Llc::AddLink(AddLinkV2 { base, ext });
        self.say(self.via.0, &Llc::AddLink(base), &two);
    }

    /// An offer for which the driver is asked for a link.
    pub fn offer(&mut self, port: u8, token: RToken) -> Attempt {
        self.say_offer(port, token);
        let mut asked = None;
        while let Some(event) = self.flow.poll_event() {
            if let Event::AcceptLink { attempt, .. } = event {
                asked = Some(attempt);
            }
        }
        asked.expect("the driver is asked for a link")
    }

    /// A further link of ours comes into use.
    pub fn join(&mut self, port: u8) -> LinkIx {
        let attempt = self.offer(port, key(u32::from(port)));
        self.join_offered(attempt, port);
        self.events();
        attempt.link()
    }

    /// The same with a link that has been offered, with `key(port)` for the buffer.
    pub fn join_offered(&mut self, attempt: Attempt, port: u8) {
        let own = Some(end(port - 10));
        assert!(self.flow.link_made(attempt, own, at(self.now)));
        self.sends();
        if !self.v2 {
            let pair = RTokenPair {
                reference: self.via.1.rkey,
                new: key(u32::from(port)),
            };
            let keys = AddLinkCont {
                reply: false,
                link: LinkNum::new(port - 10).unwrap(),
                left: 1,
                pairs: [pair, RTokenPair::default()],
            };
            self.receive(self.via.0, &Llc::AddLinkCont(keys).emit());
            self.sends();
        }
        self.confirm(attempt.link(), port, 3);
        assert!(self.flow.is_link_up(attempt.link()));
        self.sends();
    }

    /// The server deletes a link, and says so over another one.
    pub fn delete(&mut self, port: u8, via: LinkIx) {
        let order = DeleteLink {
            reply: false,
            all: false,
            orderly: false,
            link: LinkNum::new(port - 10),
            reason: DeleteReason::PATH_LOST,
        };
        self.say(via, &Llc::DeleteLink(order), &v2::Llc::DeleteLink(order));
    }

    pub fn test(&mut self, link: LinkIx) {
        let test = TestLink {
            data: [3; 16],
            ..TestLink::default()
        };
        self.say(link, &Llc::TestLink(test), &v2::Llc::TestLink(test));
    }

    /// Answers the TEST LINK that is sent over a link.
    pub fn answer_test(&mut self, link: LinkIx) {
        let send = self.flow.poll_send_with(&OwnTable::EMPTY).expect("a test");
        assert_eq!(send.link, link);
        let one = Llc::parse(&send.message);
        let two = v2::Llc::parse(&send.message);
        let test = match (one, two) {
            (Ok(Llc::TestLink(test)), _) | (_, Ok((v2::Llc::TestLink(test), _))) => test,
            _ => panic!("{:?}", send.message),
        };
        let reply = TestLink {
            reply: true,
            ..test
        };
        self.say(link, &Llc::TestLink(reply), &v2::Llc::TestLink(reply));
    }

    pub fn events(&mut self) -> Vec<Event> {
        events(&mut self.flow)
    }

    /// What is sent, by place and first byte.
    pub fn sends(&mut self) -> Vec<(usize, u8)> {
        let mut sends = Vec::new();
        while let Some(send) = self.flow.poll_send_with(&OwnTable::EMPTY) {
            sends.push((send.link.get(), send.message[0]));
        }
        sends
    }
}

pub const SECOND: u8 = 12;
pub const THIRD: u8 = 13;

/// The type of a message, in either version.
pub fn kind(v2: bool, kind: u8) -> u8 {
    kind | (u8::from(v2) << 5)
}

pub fn place(number: usize) -> LinkIx {
    LinkIx::new(number).unwrap()
}

/// A server whose first link is on the ports 1 and 11.
pub fn server() -> Flow {
    let flow = Flow::new(FlowParams {
        role: Role::Server,
        version: Version::One,
        max_links: 3,
        max_connections: 9,
        user_id: 1,
        seed: 1,
        timing: FlowTiming {
            test_link: 0,
            ..FlowTiming::DEFAULT
        },
    });
    let mut flow = flow.with_further_links();
    assert!(flow.add_connection());
    flow.start(end(1), end(11), None, at(0));
    flow
}

/// Its client's answer to CONFIRM LINK.
pub fn confirmed() -> Llc {
    let far = end(11);
    Llc::ConfirmLink(ConfirmLink {
        reply: true,
        no_eye_catcher: true,
        mac: far.mac,
        gid: far.gid,
        qp: far.qp,
        link: LinkNum::new(1).unwrap(),
        user_id: [7; 4],
        max_links: 3,
        max_connections: 9,
    })
}

/// What its driver is asked for.
pub fn asked(flow: &mut Flow) -> (Attempt, bool) {
    let mut asked = None;
    while let Some(event) = flow.poll_event() {
        if let Event::MakeLink {
            attempt,
            spare_only,
        } = event
        {
            asked = Some((attempt, spare_only));
        }
    }
    asked.expect("the driver is asked for a link")
}

/// A server whose client says what a test has it say, in version 1.
pub struct Server {
    pub flow: Flow,
    pub peers: Vec<PeerRmb>,
    pub now: u64,
}

impl Server {
    /// The client has answered CONFIRM LINK: a second link is to be offered.
    pub fn new() -> Self {
        let mut this = Self {
            flow: server(),
            peers: vec![PeerRmb::EMPTY; 8],
            now: 1,
        };
        this.receive(LinkIx::FIRST, confirmed());
        said(&mut this.flow);
        this
    }

    pub fn receive(&mut self, link: LinkIx, message: Llc) {
        let mut table = PeerTable::new(&mut self.peers);
        let now = at(self.now);
        self.flow
            .handle_received(link, &message.emit(), &mut table, now);
    }

    /// The driver makes the link that it is asked for, on this port.
    pub fn offer(&mut self, port: u8) -> (LinkIx, AddLink) {
        let (attempt, _) = asked(&mut self.flow);
        let now = at(self.now);
        assert!(self.flow.link_made(attempt, Some(end(port)), now));
        match said(&mut self.flow)[..] {
            [(_, Llc::AddLink(offer))] => (attempt.link(), offer),
            ref other => panic!("no offer: {other:?}"),
        }
    }

    /// The client takes the offer up, on its port of this number.
    pub fn accept(&mut self, via: LinkIx, offer: AddLink, port: u8) {
        let far = end(port);
        let reply = AddLink {
            reply: true,
            mac: far.mac,
            gid: far.gid,
            qp: far.qp,
            ..offer
        };
        self.receive(via, Llc::AddLink(reply));
    }

    /// The driver connects the link that it is asked to, and the server begins to send its keys.
    pub fn connect(&mut self) {
        let [Event::ConnectLink(attempt)] = events(&mut self.flow)[..] else {
            panic!("nothing to connect");
        };
        self.flow.link_connected(attempt, true, at(self.now));
        assert!(matches!(
            said(&mut self.flow)[..],
            [(_, Llc::AddLinkCont(_))]
        ));
    }

    /// The client's answer to ADD LINK CONTINUATION.
    pub fn keys(&mut self, via: LinkIx, offer: AddLink, left: u8) {
        let keys = AddLinkCont {
            reply: true,
            link: offer.link.unwrap(),
            left,
            pairs: [RTokenPair::default(); 2],
        };
        self.receive(via, Llc::AddLinkCont(keys));
    }

    /// A further link comes into use, between the ports `port` and `far`.
    pub fn join(&mut self, port: u8, far: u8) -> LinkIx {
        let (link, offer) = self.offer(port);
        self.accept(LinkIx::FIRST, offer, far);
        self.connect();
        self.keys(LinkIx::FIRST, offer, 0);
        let far = end(far);
        let Llc::ConfirmLink(confirmed) = confirmed() else {
            unreachable!();
        };
        let reply = ConfirmLink {
            mac: far.mac,
            gid: far.gid,
            qp: far.qp,
            link: offer.link.unwrap(),
            ..confirmed
        };
        self.receive(link, Llc::ConfirmLink(reply));
        assert!(self.flow.is_link_up(link));
        said(&mut self.flow);
        link
    }
}

/// What has happened.
pub fn events(flow: &mut Flow) -> Vec<Event> {
    std::iter::from_fn(|| flow.poll_event()).collect()
}

/// What is sent in version 1, by place.
pub fn said(flow: &mut Flow) -> Vec<(usize, Llc)> {
    let next = || flow.poll_send_with(&OwnTable::EMPTY);
    std::iter::from_fn(next)
        .map(|send| (send.link.get(), Llc::parse(&send.message).unwrap()))
        .collect()
}
