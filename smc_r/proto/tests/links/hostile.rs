// SPDX-License-Identifier: GPL-2.0

//! A peer that says anything at any time: the driver must not be led astray, whatever it is.

use std::collections::{BTreeMap, BTreeSet};

use smc_proto::{
    group::{
        Element,
        LinkEnd,
        LinkIx,
        OwnRmb,
        OwnTable,
        PeerElement,
        PeerRmb,
        PeerSlot,
        PeerTable,
        Role,
        Tokens,
        MAX_LINKS, //
    },
    handshake::LinkResult,
    llc::{
        v2::{
            self,
            AddLinkExt,
            AddLinkV2,
            DeleteRkeyV2,
            RKeyWire,
            RTokenPairWire,
            RequestAddLink, //
        },
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
        Attempt,
        Event,
        Flow,
        FlowParams,
        Note,
        Redundancy,
        RmbId,
        Sealing,
        ShutDown,
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
        List,
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

use super::rng::Rng;

/// What tells a reply from a request.
const REPLY: u8 = 0x80;

/// Types of messages, in either version.
const CONFIRM_LINK: u8 = 1;
const ADD_LINK: u8 = 2;

/// How far the driver has come with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Wanted,
    Made,
    Up,
    Down,
}

fn end(port: u8) -> LinkEnd {
    LinkEnd {
        mac: Mac([2, 0, 0, 0, 0, port]),
        gid: Gid([port; 16]),
        qp: QpNum::new(u32::from(port) + 1).unwrap(),
        mtu: MtuCode::new(3).unwrap(),
        psn: Psn::truncate(9),
    }
}

fn token(rng: &mut Rng) -> RToken {
    let rkey = rng.below(16) as u32;
    RToken {
        rkey: RKey(rkey),
        addr: u64::from(rkey) << 20,
    }
}

/// The peer's CONFIRM LINK. Each link has a port of its own, if all goes well.
fn confirm(number: LinkNum) -> ConfirmLink {
    let far = end(number.get().wrapping_add(9));
    ConfirmLink {
        reply: false,
        no_eye_catcher: true,
        mac: far.mac,
        gid: far.gid,
        qp: far.qp,
        link: number,
        user_id: [7; 4],
        max_links: 8,
        max_connections: 30,
    }
}

/// The peer's offer of a link.
fn offer(number: LinkNum) -> AddLink {
    let far = end(number.get().wrapping_add(9));
    AddLink {
        reply: false,
        reject: None,
        mac: far.mac,
        gid: far.gid,
        qp: far.qp,
        link: Some(number),
        mtu: Some(far.mtu),
        psn: far.psn,
        layout: AddLinkLayout::Deployed,
    }
}

/// Any message, of which many would be right at the right time: they are about the link at `place`.
fn message(rng: &mut Rng, place: u8) -> Llc {
    let reply = rng.percent(20);
    let kind = rng.below(16);
    // Only another link can be added or go, most often.
    let place = match kind {
        0..=5 => place.max(1),
        _ => place,
    };
    let own = LinkNum::new(place + 1).unwrap();
    let number = |rng: &mut Rng| match rng.percent(70) {
        true => Some(own),
        false => LinkNum::new(rng.below(7) as u8),
    };
    match kind {
        0 | 1 => Llc::ConfirmLink(ConfirmLink {
            reply,
            link: number(rng).unwrap_or(LinkNum::new(1).unwrap()),
            max_links: rng.below(9) as u8,
            max_connections: 0,
            ..confirm(own)
        }),
        2..=4 => Llc::AddLink(AddLink {
            reply,
            reject: (reply && rng.percent(20)).then_some(Reject::NoPath),
            link: number(rng),
            mtu: offer(own).mtu.filter(|_| !rng.percent(5)),
            ..offer(own)
        }),
        6 | 7 => Llc::AddLinkCont(AddLinkCont {
            reply,
            link: number(rng).unwrap_or(LinkNum::new(1).unwrap()),
            left: rng.pick(&[0, 1, 2, 3, 5, 255]),
            pairs: [0; 2].map(|_| RTokenPair {
                reference: token(rng).rkey,
                new: token(rng),
            }),
        }),
        5 => Llc::DeleteLink(DeleteLink {
            reply,
            all: rng.percent(5),
            orderly: rng.percent(50),
            link: number(rng),
            reason: DeleteReason::PATH_LOST,
        }),
        8 | 9 => Llc::ConfirmRkey(ConfirmRkey {
            reply,
            negative: reply && rng.percent(30),
            retry: reply && rng.percent(10),
            rtoken: token(rng),
            others: rng.pick(&[0, 1, 1, 2, 3, 7, 8]),
            entries: [0; 2].map(|_| LinkRToken {
                link: number(rng),
                rtoken: token(rng),
            }),
        }),
        10 | 11 => Llc::ConfirmRkeyCont(ConfirmRkeyCont {
            reply,
            negative: reply && rng.percent(30),
            left: rng.below(6) as u8,
            entries: [0; 3].map(|_| LinkRToken {
                link: number(rng),
                rtoken: token(rng),
            }),
        }),
        12 | 13 => Llc::DeleteRkey(DeleteRkey {
            reply,
            negative: reply && rng.percent(30),
            error_mask: 0x80,
            rkeys: List::from_slice(&[token(rng).rkey, token(rng).rkey][..rng.pick(&[1, 1, 2])]),
        }),
        _ => Llc::TestLink(TestLink {
            reply,
            ..TestLink::default()
        }),
    }
}

/// What version 2 makes of it. Lists may be long; what it does not know becomes a request for a link.
fn in_version_2(rng: &mut Rng, llc: &Llc) -> Vec<u8> {
    let some = [token(rng), token(rng)];
    let count = match rng.below(8) {
        0 => rng.below(256) as usize,
        few => few as usize / 2,
    };
    let tokens = some.iter().cycle().take(count);
    let pairs: Vec<_> = tokens
        .clone()
        .map(|new| RTokenPair {
            reference: some[0].rkey,
            new: *new,
        })
        .map(RTokenPairWire::from)
        .collect();
    let rkeys: Vec<_> = tokens.map(|token| RKeyWire::from(token.rkey)).collect();
    let gids = [end(12).gid, end(13).gid];
    let message = match llc {
        Llc::ConfirmLink(llc) => v2::Llc::ConfirmLink(*llc),
        Llc::AddLink(llc) => v2::Llc::AddLink(AddLinkV2 {
            base: *llc,
            ext: (!rng.percent(5)).then_some(AddLinkExt {
                direct: true,
                target_gid: end(1).gid,
                pairs: &pairs,
            }),
        }),
        Llc::DeleteLink(llc) => v2::Llc::DeleteLink(*llc),
        Llc::ConfirmRkey(llc) => v2::Llc::ConfirmRkey(*llc),
        Llc::TestLink(llc) => v2::Llc::TestLink(*llc),
        Llc::DeleteRkey(llc) => v2::Llc::DeleteRkey(DeleteRkeyV2 {
            reply: llc.reply,
            negative: llc.negative,
            errors: 1,
            rkeys: &rkeys,
        }),
        Llc::AddLinkCont(_) | Llc::ConfirmRkeyCont(_) => v2::Llc::RequestAddLink(RequestAddLink {
            reply: rng.percent(20),
            gids: &gids[..count.min(2)],
        }),
    };
    let order = match rng.percent(90) {
        true => ByteOrder::Big,
        false => ByteOrder::Little,
    };
    let mut bytes = vec![0; v2::MAX_LEN];
    let len = message.emit(order, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// The answer to a request of ours: the same, with an end of the peer's where it names one.
fn answer(rng: &mut Rng, message: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    bytes[3] |= REPLY;
    let gid = match bytes[0] & 0x0f {
        CONFIRM_LINK => 10,
        ADD_LINK => 12,
        _ => return bytes,
    };
    let number = match rng.percent(90) {
        true => bytes[gid + 19] % 10,
        false => rng.below(5) as u8,
    };
    let far = end(9 + number);
    bytes[4..10].copy_from_slice(&far.mac.0);
    bytes[gid..gid + 16].copy_from_slice(&far.gid.0);
    bytes[gid + 16..gid + 19].copy_from_slice(&far.qp.get().to_be_bytes()[1..]);
    bytes
}

/// What was asked for about a buffer of ours, and not answered yet.
#[derive(Default)]
struct Asked {
    announced: usize,
    withdrawn: usize,
}

struct Attack {
    flow: Flow,
    version: Version,
    rng: Rng,
    now: u64,
    slots: Vec<PeerRmb>,
    own: [Option<OwnRmb>; 3],
    links: BTreeMap<usize, Known>,
    /// What was asked for last at each place, on an unused port or any, and what may be answered late.
    attempts: BTreeMap<usize, (Attempt, bool)>,
    old: Vec<Attempt>,
    /// The place of the last one, and whether its queue pair is to be connected.
    newest: LinkIx,
    connect: Option<Attempt>,
    /// Our last messages that have an answer, the latest one first.
    said: Vec<(LinkIx, Vec<u8>)>,
    asked: BTreeMap<u16, Asked>,
    /// What connections use, and what of it the peer has taken away.
    elements: Vec<PeerElement>,
    gone: Vec<PeerSlot>,
    /// The connection of the first contact is there.
    first: bool,
    /// For so many steps no link has room for a message.
    full: u32,
    held: bool,
    sealing: Option<Sealing>,
    /// The links of which it was asked whether all has arrived.
    unconfirmed: BTreeSet<usize>,
    /// The first contact is over.
    started: bool,
    down: bool,
    released: bool,
    /// How many further links there were.
    reached: usize,
}

impl Attack {
    fn new(mut rng: Rng) -> Self {
        let version = match rng.below(4) {
            0 | 1 => Version::One,
            other => Version::Two { direct: other == 2 },
        };
        let max_links = rng.pick(&[8, 3, 2, 1]);
        let mut flow = Flow::new(FlowParams {
            role: rng.pick(&[Role::Server, Role::Client]),
            version,
            max_links: match version {
                Version::One => max_links.max(2),
                Version::Two { .. } => max_links,
            },
            max_connections: 30,
            user_id: 1,
            seed: 3,
            timing: FlowTiming::DEFAULT,
        })
        .with_further_links();
        let mut tokens = Tokens::EMPTY;
        LinkIx::all().for_each(|link| {
            tokens.set(
                link,
                RToken {
                    rkey: RKey(50),
                    addr: 1 << 30,
                },
            )
        });
        let now = 1_000;
        assert!(flow.add_connection());
        flow.start(end(1), end(10), None, Time::from_millis(now));
        Self {
            flow,
            version,
            rng,
            now,
            slots: vec![PeerRmb::EMPTY; 20],
            own: [0, 1, 2].map(|id| {
                Some(OwnRmb {
                    id: RmbId(id),
                    tokens,
                })
            }),
            links: BTreeMap::from([(0, Known::Up)]),
            attempts: BTreeMap::new(),
            old: Vec::new(),
            newest: LinkIx::FIRST,
            connect: None,
            said: Vec::new(),
            asked: BTreeMap::new(),
            elements: Vec::new(),
            gone: Vec::new(),
            first: true,
            full: 0,
            held: false,
            sealing: None,
            unconfirmed: BTreeSet::new(),
            started: false,
            down: false,
            released: false,
            reached: 0,
        }
    }

    fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn any_link(&mut self) -> LinkIx {
        LinkIx::new(self.rng.below(MAX_LINKS as u64) as usize).unwrap()
    }

    /// The peer speaks.
    fn receive(&mut self) {
        let rng = &mut self.rng;
        let place = rng.size(0, 7) as u8;
        let (link, mut bytes) = if rng.percent(50) && !self.said.is_empty() {
            let which = rng.size(0, self.said.len() as u32 - 1) as usize;
            let (link, request) = match rng.percent(80) {
                true => self.said.remove(which),
                false => self.said[which].clone(),
            };
            self.answer(link, &request)
        } else {
            let llc = message(rng, place);
            let link = match llc {
                Llc::ConfirmLink(_) => place,
                _ => rng.pick(&[0, 0, place]),
            };
            (LinkIx::new(link.into()).unwrap(), self.bytes(&llc))
        };
        let rng = &mut self.rng;
        if rng.percent(1) {
            // The first ones are the interesting ones.
            let place = rng.size(0, bytes.len() as u32 - 1) as usize;
            bytes[place] = rng.below(256) as u8;
            bytes.truncate(bytes.len() - rng.below(3) as usize * 22);
        }
        self.hear(link, &bytes);
    }

    fn hear(&mut self, link: LinkIx, bytes: &[u8]) {
        let now = self.time();
        let mut table = PeerTable::new(&mut self.slots);
        self.flow.handle_received(link, bytes, &mut table, now);
        self.settle();
    }

    fn bytes(&mut self, llc: &Llc) -> Vec<u8> {
        match self.version {
            Version::One => llc.emit().to_vec(),
            Version::Two { .. } => in_version_2(&mut self.rng, llc),
        }
    }

    /// The peer answers this message of ours, or goes on after it.
    fn answer(&mut self, link: LinkIx, message: &[u8]) -> (LinkIx, Vec<u8>) {
        match self.sequel(link, message) {
            Some((link, llc)) => (link, self.bytes(&llc)),
            None => (link, answer(&mut self.rng, message)),
        }
    }

    /// What a server goes on with after this reply to its offer.
    fn sequel(&self, link: LinkIx, message: &[u8]) -> Option<(LinkIx, Llc)> {
        let confirm = |number| Some((self.newest, Llc::ConfirmLink(confirm(number))));
        let keys = |number, left| {
            let keys = AddLinkCont {
                reply: false,
                link: number,
                left,
                pairs: [RTokenPair::default(); 2],
            };
            Some((link, Llc::AddLinkCont(keys)))
        };
        match (Llc::parse(message), v2::Llc::parse(message)) {
            (Ok(Llc::AddLink(llc)), _) if llc.reply && llc.reject.is_none() => keys(llc.link?, 3),
            (Ok(Llc::AddLinkCont(llc)), _) if llc.reply => match llc.left {
                0..=2 => confirm(llc.link),
                left => keys(llc.link, left - 2),
            },
            (_, Ok((v2::Llc::AddLink(llc), _))) if llc.base.reply && llc.base.reject.is_none() => {
                confirm(llc.base.link?)
            }
            _ => None,
        }
    }

    /// Both sides do what is next on the way to further links.
    fn help(&mut self) {
        let now = self.time();
        if let Some(attempt) = self.connect.take() {
            self.flow.link_connected(attempt, true, now);
        } else if let Some(place) = self.wanted() {
            self.make(Some(end(1 + place as u8)));
        } else if let Some((link, message)) = self.said.pop() {
            let (link, bytes) = self.answer(link, &message);
            self.hear(link, &bytes);
        } else if self.flow.role() == Role::Client {
            let number = (2..=8).find(|number| !self.links.contains_key(&(number - 1)));
            if let Some(number) = number.and_then(|number| LinkNum::new(number as u8)) {
                let bytes = self.bytes(&Llc::AddLink(offer(number)));
                self.hear(LinkIx::FIRST, &bytes);
            }
        }
    }

    /// The place of a link for which a queue pair is to be made.
    fn wanted(&self) -> Option<usize> {
        let mut links = self.links.iter();
        links
            .find(|(_, known)| **known == Known::Wanted)
            .map(|(place, _)| *place)
    }

    /// The queue pair that was asked for is there, or not.
    fn make(&mut self, made: Option<LinkEnd>) {
        let Some(link) = self.wanted() else {
            return;
        };
        let (attempt, spare_only) = self.attempts[&link];
        let made = made.filter(|end| !spare_only || !self.flow.is_port_taken(end.mac, end.gid));
        self.links.remove(&link);
        if self.flow.link_made(attempt, made, self.time()) && made.is_some() {
            self.links.insert(link, Known::Made);
        }
    }

    /// The peer names a buffer for a new connection, or a connection is over.
    fn connection(&mut self) {
        if self.rng.percent(50) && !self.elements.is_empty() {
            let which = self.rng.below(self.elements.len() as u64) as usize;
            return self.release(which);
        }
        if self.rng.percent(10) && std::mem::take(&mut self.first) {
            return self.flow.remove_connection(self.time());
        }
        let Some(link) = self.flow.choose_link(|_| Some(0)) else {
            return;
        };
        assert_eq!(self.links.get(&link.get()), Some(&Known::Up));
        let element = Element {
            token: token(&mut self.rng),
            index: RmbeIndex::FIRST,
            size: RmbeSize::MIN,
            alert: AlertToken(1),
        };
        if self.down || !self.flow.add_connection() {
            return;
        }
        match PeerTable::new(&mut self.slots).claim(link, &element) {
            Ok(claim) if !self.elements.contains(&claim.element()) => {
                self.elements.push(claim.element());
            }
            _ => self.flow.remove_connection(self.time()),
        }
    }

    fn release(&mut self, which: usize) {
        let element = self.elements.swap_remove(which);
        assert!(PeerTable::new(&mut self.slots).release(element));
        self.flow.remove_connection(self.time());
    }

    /// Nothing writes any more to what the peer has taken away.
    fn abandon(&mut self) {
        let Some(slot) = self.gone.pop() else {
            return;
        };
        while let Some(at) = self
            .elements
            .iter()
            .position(|element| element.slot == slot)
        {
            self.release(at);
        }
        self.flow.rmb_abandoned();
    }

    /// What is on its way out has come to rest.
    fn rest(&mut self) {
        if std::mem::take(&mut self.held) {
            self.flow.connections_held(self.time());
        } else if let Some(which) = self.sealing.take() {
            self.flow.links_sealed(which, self.time());
        }
    }

    /// Something happens here.
    fn local(&mut self) {
        let now = self.time();
        match self.rng.below(17) {
            0 | 1 => {
                let port = end(1 + self.rng.size(0, 7) as u8);
                let made = (!self.rng.percent(20)).then_some(port);
                self.make(made);
            }
            2 | 3 => {
                let link = self.any_link();
                if let Some((attempt, _)) = self.attempts.get(&link.get()) {
                    let ok = self.rng.percent(80);
                    self.flow.link_connected(*attempt, ok, now);
                }
            }
            // What is late has no effect.
            4 if !self.old.is_empty() => {
                let attempt = self.rng.pick(&self.old);
                assert!(!self.flow.link_made(attempt, Some(end(1)), now));
                self.flow.link_connected(attempt, true, now);
            }
            5 => {
                let id = self.rng.below(4) as u16;
                let token = token(&mut self.rng);
                if self.flow.announce(RmbId(id), token, now).is_ok() {
                    self.asked.entry(id).or_default().announced += 1;
                }
            }
            6 => {
                let id = self.rng.below(4) as u16;
                if self.flow.withdraw(RmbId(id), RKey(50), now).is_ok() {
                    self.asked.entry(id).or_default().withdrawn += 1;
                }
            }
            7 => {
                let link = self.any_link();
                self.flow.delete_link(link, now);
            }
            8 => {
                let port = end(1 + self.rng.below(4) as u8);
                self.flow.hint(port.mac, port.gid, now);
            }
            9 | 10 => self.connection(),
            11 => self.abandon(),
            12 => self.rest(),
            13 if self.rng.percent(20) => {
                let link = self.any_link();
                self.flow.handle_link_failed(link, now);
            }
            14 => {
                let link = self.any_link();
                self.flow.note_activity(link, now);
                let span = self.rng.pick(&[0, 1_000, 100_000]);
                self.flow.set_keepalive(span);
            }
            15 => {
                let link = self.any_link();
                let answered = self.flow.confirm_writes(link, now);
                assert!(!answered || self.links[&link.get()] == Known::Up);
                if answered {
                    self.unconfirmed.insert(link.get());
                }
            }
            16 if self.rng.percent(3) => {
                let why = [
                    ShutDown::LostPath,
                    ShutDown::Operator,
                    ShutDown::Program,
                    ShutDown::OutOfSync,
                ];
                self.flow.shut_down(self.rng.pick(&why), now);
            }
            16 => self.full = self.rng.size(0, 40),
            _ => {}
        }
    }

    /// Time passes: up to the next deadline, or only a moment.
    fn wait(&mut self) {
        if self.rng.percent(40) {
            self.now += u64::from(self.rng.size(0, 2_000));
        } else if let Some(deadline) = self.flow.next_deadline() {
            self.now = self.now.max(deadline.as_millis());
        }
        self.expire();
    }

    /// All timers that are due run out, and none is due again at once.
    fn expire(&mut self) {
        for _ in 0..8 {
            self.flow.handle_timeout(self.time());
            self.settle();
            if self
                .flow
                .next_deadline()
                .is_none_or(|deadline| deadline > self.time())
            {
                return;
            }
        }
        panic!("a timer does not stop");
    }

    fn events(&mut self) {
        let mut count = 0;
        while let Some(event) = self.flow.poll_event() {
            count += 1;
            assert!(count <= 48);
            assert!(!self.released, "{event:?} after the end");
            match event {
                Event::MakeLink {
                    attempt,
                    spare_only,
                }
                | Event::AcceptLink {
                    attempt,
                    spare_only,
                } => {
                    self.newest = attempt.link();
                    let link = self.newest.get();
                    let before = self.attempts.insert(link, (attempt, spare_only));
                    self.old.extend(before.map(|(attempt, _)| attempt));
                    let before = self.links.insert(link, Known::Wanted);
                    assert!(matches!(before, None | Some(Known::Wanted)), "{before:?}");
                }
                Event::ConnectLink(attempt) => {
                    self.connect = Some(attempt);
                    assert_eq!(self.attempts[&attempt.link().get()].0, attempt);
                    assert_eq!(self.links[&attempt.link().get()], Known::Made);
                }
                Event::LinkUp(link) => {
                    let before = self.links.insert(link.get(), Known::Up);
                    assert_eq!(before, Some(Known::Made));
                    self.reached += 1;
                }
                Event::LinkDown(link, _) => {
                    let before = self.links.insert(link.get(), Known::Down);
                    assert_eq!(before, Some(Known::Up));
                    self.unconfirmed.remove(&link.get());
                }
                Event::WritesArrived(link) => {
                    assert!(self.unconfirmed.remove(&link.get()), "nobody has asked");
                    assert_eq!(self.links[&link.get()], Known::Up);
                }
                Event::LinkGone(link) => {
                    let before = self.links.remove(&link.get());
                    assert!(
                        matches!(before, Some(Known::Made | Known::Down)),
                        "{before:?}"
                    );
                }
                Event::Down(_) => {
                    assert!(!self.down);
                    self.down = true;
                }
                Event::FirstContact(result) => {
                    assert!(!self.started);
                    self.started = true;
                    self.released = result != LinkResult::Up;
                }
                Event::Release => {
                    assert!(self.down);
                    self.released = true;
                }
                Event::RkeyConfirmed(id) | Event::RkeyRefused(id) => {
                    let asked = self.asked.get_mut(&id.0).unwrap();
                    asked.announced = asked.announced.checked_sub(1).expect("asked for");
                }
                Event::RkeyDeleted(id) => {
                    let asked = self.asked.get_mut(&id.0).unwrap();
                    asked.withdrawn = asked.withdrawn.checked_sub(1).expect("asked for");
                }
                Event::PeerRmbGone(slot) => self.gone.push(slot),
                Event::Hold => self.held = true,
                Event::Seal => self.sealing = Some(self.flow.sealing()),
                Event::Resume | Event::LinkWanted => {}
                Event::SpareFree => panic!("there was none"),
            }
        }
    }

    fn sends(&mut self) {
        let own = self.own;
        let own = OwnTable::new(&own);
        let mut count = 0;
        while let Some(send) = self.flow.poll_send_with(&own) {
            count += 1;
            assert!(count <= 24);
            let link = send.link;
            let known = self.links.get(&link.get());
            assert!(!self.released && known.is_some_and(|known| *known != Known::Wanted));
            let mut bytes = send.message.to_vec();
            if send.pairs > 0 {
                let mut more = vec![0; usize::from(send.pairs) * 16];
                assert_eq!(self.flow.write_pairs(&own, &mut more), more.len());
                bytes.extend(more);
            }
            match self.version {
                Version::One => assert!(Llc::parse(&bytes).is_ok()),
                Version::Two { .. } => {
                    let (_, order) = v2::Llc::parse(&bytes).unwrap();
                    let len = match order {
                        ByteOrder::Big => u16::from_be_bytes([bytes[1], bytes[2]]),
                        ByteOrder::Little => u16::from_le_bytes([bytes[1], bytes[2]]),
                    };
                    assert_eq!(usize::from(len), bytes.len());
                }
            }
            if self.rng.percent(4) {
                // There is no room on the link.
                self.flow.put_back();
                break;
            }
            if let Some(note) = send.note {
                let ok = !self.rng.percent(5);
                // The end of a group may take its time.
                if note != Note::Last || self.rng.percent(80) {
                    self.flow.handle_sent(link, note, ok, self.time());
                }
            }
            if bytes[3] & REPLY == 0 || self.sequel(link, &bytes).is_some() {
                self.said.truncate(7);
                self.said.insert(0, (link, bytes));
            }
        }
    }

    fn check(&self) {
        let up = |link: LinkIx| self.links.get(&link.get()) == Some(&Known::Up);
        for link in LinkIx::all() {
            assert!(
                up(link) || !self.flow.is_link_up(link),
                "{link:?} is not what it seems"
            );
            assert!(!self.flow.is_sealed(link) || self.flow.is_resting(link));
        }
        if let Some((from, to)) = self.flow.rebalance(|link| link.get() as u32) {
            assert!(from != to && up(from) && up(to));
        }
        let far = end(11);
        assert!(self.flow.find_link(&far).is_none_or(up));
        assert!(self.flow.find_port(far.mac, far.gid).is_none_or(up));
        if self.flow.redundancy() != Redundancy::None {
            assert!(self.flow.choose_link(|_| Some(0)).is_some_and(up));
        }
        assert!(self.flow.is_usable() <= (self.started && !self.down));
        assert_eq!(self.flow.is_over(), self.down || self.released);
    }

    fn settle(&mut self) {
        self.events();
        self.full = self.full.saturating_sub(1);
        if self.full == 0 {
            self.sends();
        }
        // What a completion has led to.
        self.events();
        self.check();
    }

    /// The peer's part of the first contact, most often.
    fn begin(&mut self) {
        if self.rng.percent(10) {
            return;
        }
        let reply = self.flow.role() == Role::Server;
        let max_links = self.rng.pick(&[8, 3, 2, 1]);
        let bytes = self.bytes(&Llc::ConfirmLink(ConfirmLink {
            reply,
            max_links,
            ..confirm(LinkNum::new(1).unwrap())
        }));
        self.hear(LinkIx::FIRST, &bytes);
    }

    fn run(&mut self) {
        self.begin();
        for _ in 0..self.rng.size(0, 80) {
            self.help();
            self.settle();
        }
        for _ in 0..400 {
            if self.rng.is_over() || self.released {
                break;
            }
            match self.rng.below(8) {
                0..=2 => self.local(),
                3 if self.rng.percent(20) => self.wait(),
                4 => self.help(),
                _ => self.receive(),
            }
            self.settle();
        }
        // The end: the peer says nothing any more, and nothing has to be waited for.
        self.full = 0;
        self.flow.shut_down(ShutDown::Program, self.time());
        self.settle();
        for _ in 0..20 {
            let Some(deadline) = self.flow.next_deadline() else {
                break;
            };
            self.now = self.now.max(deadline.as_millis());
            self.expire();
        }
        assert!(self.released, "the group does not end");
    }
}

/// One peer's life; tells how many further links came into use.
pub fn attack(rng: Rng) -> usize {
    let mut attack = Attack::new(rng);
    attack.run();
    attack.reached
}
