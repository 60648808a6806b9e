// SPDX-License-Identifier: GPL-2.0

//! How link groups come about, grow, shrink and end, without anything in the way.

use crate::world::{
    Setup,
    Stimulus,
    World, //
};

/// Long enough for all timers but that of a group without connections.
const LONG: u64 = 150_000;

fn settled(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.run_until(5_000);
    assert_eq!(world.hosts[0].first, Some(true), "{:#?}", world.log);
    assert_eq!(world.hosts[1].first, Some(true), "{:#?}", world.log);
    checked(&mut world);
    world
}

fn checked(world: &mut World) {
    if let Err(error) = world.check() {
        panic!("{error}\n{:#?}", world.log);
    }
}

fn after(world: &mut World, stimulus: Stimulus, ms: u64) {
    world.stimulate(stimulus);
    let until = world.now + ms;
    world.run_until(until);
    checked(world);
}

fn versions(setup: Setup) -> [Setup; 2] {
    [setup, Setup { v2: true, ..setup }]
}

#[test]
fn two_links_at_first_contact() {
    for setup in versions(Setup::TWO) {
        let world = settled(setup);
        assert_eq!(world.up(0).len(), 2);
        assert_eq!(world.now, 5_000);
    }
}

/// In ADD LINK of version 2, Linux has its own GID where that of the client's port should be.
#[test]
fn the_target_of_an_offer_is_not_looked_at() {
    let setup = Setup {
        v2: true,
        ..Setup::TWO
    };
    let foreign: fn(&mut [u8]) = |message| {
        if message[0] == 0x22 && message.len() >= 72 {
            message[46..62].fill(0xab);
        }
    };
    let own: fn(&mut [u8]) = |message| {
        if message[0] == 0x22 && message.len() >= 72 {
            message.copy_within(12..28, 46);
        }
    };
    for change in [foreign, own] {
        let mut world = World::new(setup);
        world.change = change;
        world.run_until(5_000);
        checked(&mut world);
        assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
    }
}

#[test]
fn one_port_each_is_one_link() {
    for setup in versions(Setup {
        ports: [1, 1],
        ..Setup::TWO
    }) {
        let mut world = settled(setup);
        assert_eq!(world.up(0).len(), 1);
        // The server tries again and again.
        let before = world.steps;
        world.run_until(10 * LONG);
        checked(&mut world);
        assert_eq!(world.up(0).len(), 1);
        assert!(world.steps > before + 40);
    }
}

#[test]
fn a_missing_port_makes_an_asymmetric_link() {
    for ports in [[1, 2], [2, 1]] {
        for setup in versions(Setup {
            ports,
            spare: [2 - ports[0], 2 - ports[1]],
            ..Setup::TWO
        }) {
            let mut world = settled(setup);
            assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
            let host = usize::from(ports[1] == 1);
            let number = world.up(0).last().unwrap().0;
            assert_eq!(number, 2);
            // The port comes: a symmetric link replaces the asymmetric one.
            after(&mut world, Stimulus::Restore(host, 1), 1_000);
            let numbers: Vec<u8> = world.up(0).iter().map(|link| link.0).collect();
            assert_eq!(numbers.len(), 2, "{:#?}", world.log);
            assert!(!numbers.contains(&2), "{numbers:?}");
        }
    }
}

#[test]
fn up_to_eight_links() {
    for (max, expected) in [([2, 8], 2), ([8, 3], 3), ([5, 5], 5), ([8, 8], 8)] {
        let mut world = settled(Setup {
            max_links: max,
            ports: [8, 8],
            rmbs: [9, 4],
            ..Setup::TWO
        });
        assert_eq!(world.up(0).len(), expected, "{:#?}", world.log);
        // Buffers announced now need continuations.
        for h in [0, 1, 0, 1] {
            after(&mut world, Stimulus::Announce(h), 500);
        }
        assert_eq!(world.hosts[0].confirmed.len(), 11);
        assert_eq!(world.hosts[1].confirmed.len(), 6);
        after(&mut world, Stimulus::Withdraw(0), 500);
        assert_eq!(world.hosts[0].deleted.len(), 1);
    }
}

#[test]
fn a_third_link_that_fails_is_tried_again() {
    let mut world = settled(Setup {
        max_links: [3, 3],
        ports: [3, 3],
        ..Setup::TWO
    });
    assert_eq!(world.up(0).len(), 3, "{:#?}", world.log);
    world.silent = Some(2);
    world.run_until(2 * LONG);
    checked(&mut world);
    // Given up, and tried in vain.
    assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
    let number = world.hosts[0].ups;
    world.silent = None;
    // A minute, twice as long, and so on.
    let until = world.now + 20 * 60_000;
    world.run_until(until);
    checked(&mut world);
    assert_eq!(world.up(0).len(), 3, "{:#?}", world.log);
    assert_eq!(world.hosts[0].ups, number + 1);
}

/// Memory, say, is short when a third link is to be made.
#[test]
fn a_third_link_that_cannot_be_made_is_tried_again() {
    let setup = Setup {
        max_links: [3, 3],
        spare: [1, 1],
        ..Setup::TWO
    };
    for setup in versions(setup) {
        for host in 0..2 {
            let mut world = settled(setup);
            world.hosts[host].cannot_make = true;
            world.stimulate(Stimulus::Restore(0, 2));
            after(&mut world, Stimulus::Restore(1, 2), 1_000);
            assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
            let until = world.now + 2 * 60_000;
            world.run_until(until);
            assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
            world.hosts[host].cannot_make = false;
            // A minute, twice as long, and so on.
            let until = world.now + 16 * 60_000;
            world.run_until(until);
            checked(&mut world);
            assert_eq!(world.up(0).len(), 3, "{:#?}", world.log);
        }
    }
}

#[test]
fn version_two_stops_at_three_links() {
    let world = settled(Setup {
        v2: true,
        max_links: [8, 8],
        ports: [8, 8],
        rmbs: [200, 3],
        ..Setup::TWO
    });
    assert_eq!(world.up(0).len(), 3, "{:#?}", world.log);
}

#[test]
fn an_asymmetric_link_makes_way_for_the_eighth() {
    let mut world = settled(Setup {
        max_links: [8, 8],
        ports: [8, 7],
        spare: [0, 1],
        ..Setup::TWO
    });
    let client_ports = |world: &World| -> std::collections::BTreeSet<usize> {
        world.up(1).iter().map(|link| link.1).collect()
    };
    assert_eq!((world.up(1).len(), client_ports(&world).len()), (8, 7));
    after(&mut world, Stimulus::Restore(1, 7), LONG);
    assert_eq!((world.up(1).len(), client_ports(&world).len()), (8, 8));
}

#[test]
fn all_buffers_are_known_on_all_links() {
    for rmbs in [[0, 0], [1, 2], [2, 1], [255, 1], [3, 255], [255, 255]] {
        for setup in versions(Setup { rmbs, ..Setup::TWO }) {
            let world = settled(setup);
            assert_eq!(world.up(0).len(), 2);
        }
    }
}

#[test]
fn a_lost_link_is_replaced_when_the_port_is_back() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            for port in 0..2 {
                let mut world = settled(setup);
                after(&mut world, Stimulus::Cut(host, port), 40_000);
                // The other host's ports are both there: an asymmetric link steps in.
                assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
                assert_eq!(world.hosts[0].downs, 1);
                assert_eq!(world.hosts[1].downs, 1);
                after(&mut world, Stimulus::Restore(host, port), LONG);
                assert_eq!(world.up(0).len(), 2);
                let ports: Vec<usize> = world.up(host).iter().map(|link| link.1).collect();
                assert!(ports.contains(&0) && ports.contains(&1), "{:#?}", world.log);
                for h in 0..2 {
                    after(&mut world, Stimulus::Announce(h), 500);
                }
            }
        }
    }
}

#[test]
fn a_link_can_be_taken_out_of_use() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            let mut world = settled(setup);
            world.stimulate(Stimulus::Drain(host));
            let until = world.now + 1_000;
            world.run_until(until);
            checked(&mut world);
            assert_eq!(world.hosts.each_ref().map(|h| h.downs), [1, 1]);
        }
    }
}

#[test]
fn the_end_takes_all_links() {
    for setup in versions(Setup::TWO) {
        for host in 0..2 {
            let mut world = settled(setup);
            after(&mut world, Stimulus::ShutDown(host), LONG);
            assert!(world.hosts.iter().all(|host| host.released));
        }
    }
}

#[test]
fn link_numbers_come_back_late() {
    let mut world = settled(Setup::TWO);
    for round in 0..300 {
        let port = round % 2;
        after(&mut world, Stimulus::Cut(0, port), 1_000);
        after(&mut world, Stimulus::Restore(0, port), 1_000);
        assert!(world.up(0).len() >= 2, "{:#?}", world.log);
    }
    assert!(world.hosts[0].ups > 255);
}
