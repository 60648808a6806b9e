// SPDX-License-Identifier: GPL-2.0

//! A peer that says anything at any time: the driver must not be led astray, whatever it is.

use std::collections::BTreeMap;

use smc_proto::{
    group::{
        LinkEnd,
        LinkIx,
        OwnRmb,
        OwnTable,
        PeerRmb,
        PeerTable,
        Role,
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
        Reject,
        TestLink, //
    },
    llc_flow::{
        Attempt,
        Event,
        Flow,
        FlowParams,
        Note,
        RmbId,
        Version, //
    },
    timer::{
        FlowTiming,
        Time, //
    },
    wire::{
        Gid,
        LinkNum,
        Mac,
        MtuCode,
        Psn,
        QpNum,
        RKey,
        RToken, //
    },
};

use crate::rng::Rng;

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
    let rkey = rng.below(12) as u32;
    RToken {
        rkey: RKey(rkey),
        addr: u64::from(rkey) << 20,
    }
}

fn number(rng: &mut Rng) -> Option<LinkNum> {
    LinkNum::new(rng.below(7) as u8)
}

/// Any message, of which many would be right at the right time.
fn message(rng: &mut Rng) -> Llc {
    let reply = rng.percent(50);
    let far = end(10 + rng.below(4) as u8);
    match rng.below(9) {
        0 => Llc::ConfirmLink(ConfirmLink {
            reply,
            no_eye_catcher: !rng.percent(3),
            mac: far.mac,
            gid: far.gid,
            qp: far.qp,
            link: number(rng).unwrap_or(LinkNum::new(1).unwrap()),
            user_id: [7; 4],
            max_links: rng.below(9) as u8,
            max_connections: 0,
        }),
        1 | 2 => Llc::AddLink(AddLink {
            reply,
            reject: (reply && rng.percent(20)).then_some(Reject::NoPath),
            mac: far.mac,
            gid: far.gid,
            qp: far.qp,
            link: number(rng),
            mtu: (!rng.percent(5)).then_some(far.mtu),
            psn: far.psn,
            layout: AddLinkLayout::Deployed,
        }),
        3 => Llc::AddLinkCont(AddLinkCont {
            reply,
            link: number(rng).unwrap_or(LinkNum::new(1).unwrap()),
            left: rng.pick(&[0, 1, 2, 3, 255]),
            pairs: [0; 2].map(|_| RTokenPair {
                reference: token(rng).rkey,
                new: token(rng),
            }),
        }),
        4 => Llc::DeleteLink(DeleteLink {
            reply,
            all: rng.percent(2),
            orderly: rng.percent(50),
            link: number(rng),
            reason: DeleteReason::PATH_LOST,
        }),
        5 => Llc::ConfirmRkey(ConfirmRkey {
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
        6 => Llc::ConfirmRkeyCont(ConfirmRkeyCont {
            reply,
            negative: reply && rng.percent(30),
            left: rng.below(6) as u8,
            entries: [0; 3].map(|_| LinkRToken {
                link: number(rng),
                rtoken: token(rng),
            }),
        }),
        7 => Llc::DeleteRkey(DeleteRkey::request(token(rng).rkey)),
        _ => Llc::TestLink(TestLink {
            reply,
            ..TestLink::default()
        }),
    }
}

/// One peer's life; tells for how many links there was a queue pair.
fn attack(seed: u64) -> usize {
    let mut rng = Rng::new(seed ^ (12 << 40));
    let role = rng.pick(&[Role::Server, Role::Client]);
    let mut flow = Flow::new(FlowParams {
        role,
        version: Version::One,
        max_links: 8,
        max_connections: 9,
        user_id: 1,
        seed,
        timing: FlowTiming::DEFAULT,
    })
    .with_further_links();
    let mut slots = vec![PeerRmb::EMPTY; 8];
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
    let own = [0, 1, 2].map(|id| {
        Some(OwnRmb {
            id: RmbId(id),
            tokens,
        })
    });
    let own = OwnTable::new(&own);
    let mut now = 1_000;
    let time = Time::from_millis;
    assert!(flow.add_connection());
    let first = LinkEnd {
        qp: end(10).qp,
        ..end(10)
    };
    flow.start(end(1), first, None, time(now));
    let mut links = BTreeMap::from([(0, Known::Up)]);
    // What was asked for last at each place, and what may be answered late.
    let mut attempts = BTreeMap::<usize, Attempt>::new();
    let mut old = Vec::<Attempt>::new();
    let (mut reached, mut over, mut started) = (0, false, false);
    for _ in 0..rng.size(10, 400) {
        match rng.below(12) {
            0 => {
                let pending = links.iter().find(|(_, known)| **known == Known::Wanted);
                if let Some(link) = pending.map(|(link, _)| LinkIx::new(*link).unwrap()) {
                    let port = 1 + rng.below(4) as u8;
                    let made = (!rng.percent(20)).then(|| end(port));
                    links.remove(&link.get());
                    if made.is_some() {
                        links.insert(link.get(), Known::Made);
                    }
                    if flow.link_made(attempts[&link.get()], made, time(now)) {
                        reached += usize::from(made.is_some());
                    } else {
                        links.remove(&link.get());
                    }
                }
            }
            1 if rng.percent(20) && !old.is_empty() => {
                let attempt = rng.pick(&old);
                assert!(!flow.link_made(attempt, Some(end(1)), time(now)));
                flow.link_connected(attempt, true, time(now));
            }
            1 => {
                let any = rng.below(9) as usize;
                if let Some(attempt) = attempts.get(&any) {
                    flow.link_connected(*attempt, rng.percent(80), time(now));
                }
            }
            2 if rng.percent(10) => {
                if let Some(deadline) = flow.next_deadline() {
                    now = now.max(deadline.as_millis());
                    flow.handle_timeout(time(now));
                }
            }
            3 => {
                let _ = flow.announce(RmbId(rng.below(3) as u16), token(&mut rng), time(now));
            }
            4 if rng.percent(20) => {
                let link = LinkIx::new(rng.below(9) as usize).unwrap();
                flow.delete_link(link, time(now));
            }
            5 if rng.percent(20) => flow.hint(end(4).mac, end(4).gid, time(now)),
            6 if rng.percent(5) => {
                let link = LinkIx::new(rng.below(9) as usize).unwrap();
                flow.handle_link_failed(link, time(now));
            }
            _ => {
                let link = LinkIx::new(rng.below(4) as usize).unwrap();
                let mut llc = message(&mut rng);
                // Help it over the first contact.
                if let (Llc::ConfirmLink(llc), false) = (&mut llc, started) {
                    llc.mac = first.mac;
                    llc.gid = first.gid;
                    llc.qp = first.qp;
                    llc.link = LinkNum::new(1).unwrap();
                }
                let mut table = PeerTable::new(&mut slots);
                flow.handle_received(link, &llc.emit(), &mut table, time(now));
            }
        }
        let mut count = 0;
        while let Some(event) = flow.poll_event() {
            count += 1;
            assert!(count <= 48);
            match event {
                Event::MakeLink { attempt, .. } | Event::AcceptLink { attempt, .. } => {
                    let link = attempt.link();
                    old.extend(attempts.insert(link.get(), attempt));
                    let before = links.insert(link.get(), Known::Wanted);
                    assert!(matches!(before, None | Some(Known::Wanted)), "{before:?}");
                }
                Event::ConnectLink(attempt) => {
                    assert_eq!(attempts[&attempt.link().get()], attempt);
                    assert_eq!(links[&attempt.link().get()], Known::Made);
                }
                Event::LinkUp(link) => {
                    assert_eq!(links.insert(link.get(), Known::Up), Some(Known::Made));
                }
                Event::LinkDown(link, _) => {
                    assert_eq!(links.insert(link.get(), Known::Down), Some(Known::Up));
                }
                Event::LinkGone(link) => {
                    let before = links.remove(&link.get());
                    assert!(
                        matches!(before, Some(Known::Made | Known::Down)),
                        "{before:?}"
                    );
                }
                Event::Down(_) => over = true,
                Event::FirstContact(result) => {
                    started = true;
                    over |= !matches!(result, smc_proto::handshake::LinkResult::Up);
                }
                Event::Release => {
                    over = true;
                    links.clear();
                }
                _ => {}
            }
        }
        if over {
            return reached;
        }
        let up = |link: LinkIx| links.get(&link.get()) == Some(&Known::Up);
        for link in LinkIx::all() {
            assert!(
                up(link) || !flow.is_link_up(link),
                "{link:?} is not what it seems"
            );
        }
        let mut count = 0;
        while let Some(send) = flow.poll_send_with(&own) {
            count += 1;
            assert!(count <= 24);
            if let Some(note) = send.note.filter(|note| *note != Note::Last) {
                flow.handle_sent(LinkIx::FIRST, note, true, time(now));
            }
        }
    }
    reached
}

#[test]
fn any_messages_at_any_time() {
    let mut reached = 0;
    for seed in 1..4_000 {
        match std::panic::catch_unwind(|| attack(seed)) {
            Ok(some) => reached += some,
            Err(cause) => {
                eprintln!("any_messages_at_any_time failed with seed {seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    assert!(reached > 100, "{reached} links were made");
}
