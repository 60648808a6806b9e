// SPDX-License-Identifier: GPL-2.0

//! Both ends together, with everything that can go wrong in between.
//!
//! Whatever happens, both applications must end up in the same world: both on RDMA, both on TCP
//! with nothing lost or added at the start of the stream, or both with an error.

use crate::world::{
    consistent,
    went_down,
    Fate,
    Fault,
    Host,
    Setup,
    Stack,
    World, //
};
use smc_proto::{
    group::{
        PeerTable,
        Role, //
    },
    handshake::Fallback,
    llc::DeleteReason,
    llc_flow::{
        DownReason,
        Event,
        LinkFailure,
        RmbId, //
    },
    wire::Diagnosis, //
};

/// Long enough for all timers of a rendezvous.
const LONG: u64 = 60_000;

/// Version 1 and version 2, each with Linux at either end, too.
fn setups() -> [Setup; 7] {
    [
        Setup::V1,
        Setup {
            client: Stack::Linux,
            ..Setup::V1
        },
        Setup {
            server: Stack::Linux,
            ..Setup::V1
        },
        Setup::V2,
        Setup {
            v2: Some(1),
            ..Setup::V2
        },
        Setup {
            client: Stack::Linux,
            ..Setup::V2
        },
        Setup {
            server: Stack::Linux,
            ..Setup::V2
        },
    ]
}

fn faults() -> Vec<Fault> {
    use Role::{Client, Server};
    let mut all = vec![
        Fault::LinkBreaks,
        Fault::PortsDown,
        Fault::TcpResets,
        Fault::Refuses(Client),
        Fault::Refuses(Server),
        Fault::GoesDumb(Client),
        Fault::GoesDumb(Server),
    ];
    for span in [500, 2_000, 4_500, 5_500, 7_000, 12_000] {
        all.push(Fault::TcpStalls(span));
        all.push(Fault::Sleeps(Client, span));
        all.push(Fault::Sleeps(Server, span));
    }
    all
}

fn established() -> World {
    established_with(Setup::V1)
}

fn established_with(setup: Setup) -> World {
    let mut world = World::with(setup, &[]);
    world.run(1_000);
    assert!(matches!(world.client.fate, Fate::Smc(_)), "{setup:?}");
    assert!(matches!(world.server.fate, Fate::Smc(_)));
    world
}

#[test]
fn first_contact() {
    setups().into_iter().for_each(first_contact_with);
}

fn first_contact_with(setup: Setup) {
    let mut world = established_with(setup);
    consistent(&world).unwrap();
    assert!(world.steps < 20, "{} steps", world.steps);
    assert!(world.now <= 2_000);
    let (Fate::Smc(server), Fate::Smc(client)) = (world.client.fate, world.server.fate) else {
        unreachable!();
    };
    assert!(server.first_contact && client.first_contact);
    assert_eq!(server.v2.is_some(), setup.v2.is_some());
    assert_eq!(client.v2.is_some(), setup.v2.is_some());
    assert!(!world.server.spare_held);
    for host in [&mut world.client, &mut world.server] {
        let held = host.claimed.unwrap();
        assert!(PeerTable::new(&mut host.rmbs).is_claimed(held));
        assert_eq!(
            host.flow
                .as_ref()
                .unwrap()
                .link_number(smc_proto::group::LinkIx::FIRST)
                .unwrap()
                .get(),
            1
        );
    }
}

// A peer may register the buffer that CLC has told of as late as that.
#[test]
fn nothing_is_established_before_confirm_link() {
    for setup in setups() {
        for dumb in [None, Some(Role::Client), Some(Role::Server)] {
            let faults = dumb.map(|role| (0, Fault::GoesDumb(role)));
            let mut world = World::with(setup, faults.as_slice());
            while world.step(LONG) {
                for host in [&world.client, &world.server] {
                    let is_smc = matches!(host.fate, Fate::Smc(_));
                    assert!(host.confirmed || !is_smc, "{setup:?} {dumb:?}");
                }
            }
            for host in [&world.client, &world.server] {
                let is_smc = matches!(host.fate, Fate::Smc(_));
                assert_eq!(is_smc, dumb.is_none(), "{setup:?} {dumb:?}");
            }
        }
    }
}

#[test]
fn linux_speaks_version_1_in_its_own_way() {
    // Type, length, and byte 7: the Proposal's paths, or F.
    let said = |host: &Host| -> Vec<(u8, usize, u8)> {
        let all = host.clc.iter();
        all.map(|bytes| (bytes[4], bytes.len(), bytes[7])).collect()
    };
    let mtu = |host: &Host| host.clc[1][50] & 0xf;
    let [ours, client, server, ..] = setups();
    let world = established_with(ours);
    assert_eq!(said(&world.client), [(1, 52, 0x10), (3, 68, 0x18)]);
    assert_eq!(mtu(&world.client), 5);
    let mut world = established_with(client);
    assert_eq!(said(&world.client), [(1, 92, 0x28), (3, 68, 0x18)]);
    assert_eq!(mtu(&world.client), 3);
    world.reconnect();
    world.run(1_000);
    assert_eq!(
        said(&world.client)[2..],
        [(1, 92, 0x28), (3, 68, 0x10)],
        "F"
    );

    for (role, setup) in [(Role::Client, client), (Role::Server, server)] {
        let mut world = World::with(setup, &[(0, Fault::Refuses(role))]);
        world.run(LONG);
        consistent(&world).unwrap();
        let decline = said(world.host(role)).pop();
        assert_eq!(decline, Some((4, 44, 0x20)));
    }
}

#[test]
fn subsequent_contact() {
    setups().into_iter().for_each(subsequent_contact_with);
}

fn subsequent_contact_with(setup: Setup) {
    let mut world = established_with(setup);
    world.reconnect();
    world.run(1_000);
    for host in [&world.client, &world.server] {
        let Fate::Smc(peer) = host.fate else {
            panic!("{:?}", host.fate);
        };
        assert!(!peer.first_contact);
        assert_eq!(host.flow.as_ref().unwrap().connections(), 2);
    }
}

#[test]
fn a_client_that_forgot_the_group_is_out_of_sync() {
    let mut world = established();
    world.client.flow = None;
    world.reconnect();
    world.run(LONG);
    consistent(&world).unwrap();
    let (Fate::Tcp(client), Fate::Tcp(server)) = (world.client.fate, world.server.fate) else {
        panic!("{:?} {:?}", world.client.fate, world.server.fate);
    };
    assert_eq!(client.reason, Diagnosis::OUT_OF_SYNC);
    assert_eq!(
        server,
        Fallback {
            reason: Diagnosis::PEER_DECLINED,
            peer_diagnosis: Some(Diagnosis::OUT_OF_SYNC),
            out_of_sync: true,
            may_cross: false
        }
    );
    assert!(went_down(&world.server, DownReason::Local));
}

#[test]
fn a_client_without_the_link_is_not_out_of_sync() {
    let mut world = established();
    world.client.flow.as_mut().unwrap().abandon(true);
    world.reconnect();
    world.run(1_000);
    consistent(&world).unwrap();
    let (Fate::Tcp(client), Fate::Tcp(server)) = (world.client.fate, world.server.fate) else {
        panic!("{:?} {:?}", world.client.fate, world.server.fate);
    };
    assert_eq!(client.reason, Diagnosis::UNKNOWN_LINK);
    assert_eq!(server.peer_diagnosis, Some(Diagnosis::UNKNOWN_LINK));
    assert!(!client.out_of_sync && !server.out_of_sync);
    // The server keeps the group.
    assert!(world.server.flow.as_ref().unwrap().is_usable());
}

#[test]
fn a_group_is_at_rest_between_tests_of_its_link() {
    let mut world = established();
    world.run(LONG);
    let before = world.steps;
    world.run(10 * LONG);
    consistent(&world).unwrap();
    let probes = world.client.flow.as_ref().unwrap().counters().probes
        + world.server.flow.as_ref().unwrap().counters().probes;
    // One per half minute; each is four steps: the timer, the request, the reply, completions.
    assert!((15..=25).contains(&probes), "{probes}");
    assert!(world.steps - before <= 6 * 22, "{}", world.steps - before);
}

#[test]
fn buffers_are_announced_and_known() {
    setups().into_iter().for_each(buffers_with);
}

fn buffers_with(setup: Setup) {
    let mut world = established_with(setup);
    for id in 1..=3 {
        world.announce(Role::Client, RmbId(id));
        world.announce(Role::Server, RmbId(id));
    }
    world.run(1_000);
    for host in [&mut world.client, &mut world.server] {
        for id in 1..=3 {
            assert!(host.events.contains(&Event::RkeyConfirmed(RmbId(id))));
        }
        assert_eq!(PeerTable::new(&mut host.rmbs).len(), 4);
    }
}

#[test]
fn either_side_can_end_the_group() {
    let roles = [Role::Client, Role::Server];
    for (role, setup) in roles
        .into_iter()
        .flat_map(|role| setups().map(|setup| (role, setup)))
    {
        let mut world = established_with(setup);
        world.shut_down(role);
        world.run(LONG);
        consistent(&world).unwrap();
        let reason = DownReason::PeerDeleted(DeleteReason::OPERATOR);
        assert!(went_down(world.host(role), DownReason::Local));
        assert!(went_down(world.host(role.peer()), reason));
    }
}

#[test]
fn a_silent_death_of_the_link_is_noticed() {
    let mut world = established();
    let at = world.steps;
    world = World::new(&[(at, Fault::LinkBreaks)]);
    world.run(2 * LONG);
    consistent(&world).unwrap();
    for host in [&world.client, &world.server] {
        let failures = [
            DownReason::LinkFailed(LinkFailure::Transport),
            DownReason::LinkFailed(LinkFailure::Timeout(
                smc_proto::llc_flow::Exchange::TestLink,
            )),
        ];
        assert!(
            failures.iter().any(|reason| went_down(host, *reason)),
            "{:?}",
            host.events
        );
    }
}

/// How often each outcome was seen.
#[derive(Debug, Default)]
struct Tally {
    smc: usize,
    tcp: usize,
    failed: usize,
    crossed: usize,
}

impl Tally {
    fn run(&mut self, faults: &[(usize, Fault)]) {
        self.run_with(Setup::V1, faults);
    }

    fn run_with(&mut self, setup: Setup, faults: &[(usize, Fault)]) {
        let mut world = World::with(setup, faults);
        world.run(LONG);
        if let Err(error) = consistent(&world) {
            panic!("{setup:?} {faults:?}: {error}");
        }
        match world.client.fate {
            Fate::Smc(_) => self.smc += 1,
            Fate::Tcp(fallback) => {
                self.tcp += 1;
                let Fate::Tcp(other) = world.server.fate else {
                    unreachable!();
                };
                // One declines, or both at once.
                let own = [fallback, other].map(|side| side.peer_diagnosis.is_none());
                assert_ne!(own, [false, false]);
                self.crossed += usize::from(own == [true, true]);
            }
            _ => self.failed += 1,
        }
    }
}

#[test]
fn one_fault_at_any_moment() {
    for setup in setups() {
        let steps = established_with(setup).steps;
        let mut tally = Tally::default();
        for fault in faults() {
            for step in 0..=steps {
                tally.run_with(setup, &[(step, fault)]);
            }
        }
        // The faults have to matter, and not always in the same way.
        assert!(
            tally.smc > 50 && tally.tcp > 10 && tally.failed > 50,
            "{setup:?}: {tally:?}"
        );
    }
}

#[test]
fn two_faults_at_any_moments() {
    let steps = established().steps;
    let mut tally = Tally::default();
    let faults = faults();
    for (i, first) in faults.iter().enumerate() {
        for second in &faults[i + 1..] {
            for one in 0..=steps {
                // Every moment of the first, some of the second.
                for other in (one % 3..=steps + 3).step_by(3) {
                    tally.run(&[(one, *first), (other, *second)]);
                }
            }
        }
    }
    assert!(
        tally.smc > 500 && tally.tcp > 500 && tally.failed > 500,
        "{tally:?}"
    );
    assert!(tally.crossed > 0, "{tally:?}");
}

#[test]
fn a_fault_on_a_subsequent_contact() {
    let steps = {
        let mut world = established();
        let before = world.steps;
        world.reconnect();
        world.run(1_000);
        world.steps - before
    };
    for fault in faults() {
        for step in 0..=steps {
            let mut world = established();
            world.reconnect();
            world.later(step, fault);
            world.run(3 * LONG);
            if let Err(error) = consistent(&world) {
                panic!("{fault:?} at {step}: {error}");
            }
        }
    }
}
