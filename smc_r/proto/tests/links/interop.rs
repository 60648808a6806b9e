// SPDX-License-Identifier: GPL-2.0

//! Link groups with peers that nobody here wrote: what Linux does, and what RFC 7609 asks for.
//!
//! `SMC_SEED=n` runs one seed, `SMC_RUNS=n` another number of runs than usual, `SMC_TEST_SCALE=n` so many times the
//! usual number.

use std::panic;

use crate::{
    linux::Stack,
    mixed::{
        Action,
        Pair,
        Setup,
        PEER,
        WE, //
    },
    rng::Rng,
    world::Stimulus,
};

/// Long enough for all timers but that of a group without connections.
const LONG: u64 = 200_000;

const TWO: Setup = Setup {
    stack: Stack::Linux,
    server: true,
    v2: false,
    ports: [2, 2],
    spare: [0, 0],
    rmbs: [1, 1],
};

/// Both peers in both roles. What version 2 is, no RFC says.
fn all(setup: Setup) -> Vec<Setup> {
    let mut setups = Vec::new();
    for (stack, v2) in [
        (Stack::Linux, false),
        (Stack::Linux, true),
        (Stack::Rfc, false),
    ] {
        for server in [true, false] {
            setups.push(Setup {
                stack,
                v2,
                server,
                ..setup
            });
        }
    }
    setups
}

fn checked(pair: &mut Pair) {
    if let Err(error) = pair.check() {
        panic!("{error}\n{:?}\n{:#?}", pair.setup, pair.log);
    }
}

/// A group whose first contact is complete.
fn settled(setup: Setup) -> Pair {
    let mut pair = Pair::new(setup);
    pair.run_until(1_500);
    assert_eq!(pair.first, Some(true), "{setup:?} {:#?}", pair.log);
    assert!(pair.peer.is_up, "{setup:?} {:#?}", pair.log);
    checked(&mut pair);
    pair
}

fn after(pair: &mut Pair, stimulus: Stimulus, ms: u64) {
    pair.stimulate(stimulus);
    let until = pair.now + ms;
    pair.run_until(until);
    checked(pair);
}

#[test]
fn first_contact() {
    for (ports, links) in [([1, 1], 1), ([2, 2], 2), ([1, 2], 2), ([2, 1], 2)] {
        for rmbs in [[0, 0], [1, 1], [1, 4], [5, 2]] {
            for setup in all(Setup { ports, rmbs, ..TWO }) {
                let mut pair = settled(setup);
                assert_eq!(pair.up().len(), links, "{setup:?} {:#?}", pair.log);
                assert_eq!(pair.peer.dropped, &[] as &[u8]);
                // And so it stays.
                pair.run_until(LONG);
                checked(&mut pair);
                assert_eq!(pair.up().len(), links, "{setup:?} {:#?}", pair.log);
                assert_eq!((pair.ups, pair.downs), (links, 0), "{:#?}", pair.log);
            }
        }
    }
}

#[test]
fn buffers_come_and_go() {
    for ports in [[1, 1], [2, 2], [2, 1]] {
        for setup in all(Setup { ports, ..TWO }) {
            let mut pair = settled(setup);
            for round in 0..20 {
                for h in [WE, PEER] {
                    // Both at once.
                    pair.stimulate(Stimulus::Announce(h));
                    pair.stimulate(Stimulus::Announce(1 - h));
                    if round % 3 == 2 {
                        pair.stimulate(Stimulus::Withdraw(h));
                    }
                    let until = pair.now + 50;
                    pair.run_until(until);
                    checked(&mut pair);
                }
            }
            assert_eq!((pair.refused, pair.peer.refused), (0, 0), "{:#?}", pair.log);
            assert_eq!(pair.confirmed.len(), pair.peer.known.len());
            assert_eq!(pair.confirmed.len(), 1 + 40 - 6);
            assert_eq!(pair.peer.own.len(), 1 + 40 - 6);
            assert_eq!(pair.peer.dropped, &[] as &[u8]);
        }
    }
}

#[test]
fn a_lost_link_is_replaced_when_the_port_is_back() {
    for setup in all(TWO) {
        for host in [WE, PEER] {
            for port in 0..2 {
                let mut pair = settled(setup);
                after(&mut pair, Stimulus::Cut(host, port), 40_000);
                assert_eq!(pair.down, None, "{setup:?} {:#?}", pair.log);
                after(&mut pair, Stimulus::Restore(host, port), LONG);
                assert_eq!(pair.up().len(), 2, "{setup:?} {:#?}", pair.log);
                assert_eq!(
                    pair.used().map(|ports| ports.len()),
                    [2, 2],
                    "{setup:?} {host} {port} {:#?}",
                    pair.log
                );
                for h in [WE, PEER] {
                    after(&mut pair, Stimulus::Announce(h), 500);
                }
            }
        }
    }
}

/// Either side notices first, or both at once, at any moment of an exchange.
#[test]
fn a_link_fails_at_any_moment() {
    for setup in all(TWO) {
        for other in [
            Stimulus::Announce(WE),
            Stimulus::Announce(PEER),
            Stimulus::Drain(WE),
            Stimulus::Drain(PEER),
        ] {
            for hosts in [&[WE][..], &[PEER], &[WE, PEER], &[PEER, WE]] {
                for step in 0..12 {
                    let mut pair = settled(setup);
                    pair.stimulate(Stimulus::Announce(PEER));
                    pair.run_until(2_000);
                    pair.stimulate(other);
                    for _ in 0..step {
                        if let Some(action) = pair.actions().first() {
                            pair.act(*action);
                        }
                    }
                    for host in hosts {
                        pair.stimulate(Stimulus::Fail(*host));
                    }
                    let until = pair.now + LONG;
                    pair.run_until(until);
                    checked(&mut pair);
                    let alive = pair.down.is_none() || matches!(other, Stimulus::Drain(_));
                    assert!(
                        alive,
                        "{setup:?} {other:?} {hosts:?} {step} {:#?}",
                        pair.log
                    );
                }
            }
        }
    }
}

/// Linux drops what does not fit into an exchange, which fails then.
#[test]
fn a_link_fails_while_another_is_added() {
    for host in [WE, PEER] {
        let mut ports = [2, 2];
        ports[host] = 1;
        for setup in all(Setup {
            ports,
            spare: [2 - ports[WE], 2 - ports[PEER]],
            rmbs: [6, 5],
            ..TWO
        }) {
            for step in 0..25 {
                // The first link, over which the new one is added, stays.
                let mut pair = settled(setup);
                assert_eq!(pair.up().len(), 2);
                pair.stimulate(Stimulus::Restore(host, 1));
                for _ in 0..step {
                    if let Some(action) = pair.actions().first() {
                        pair.act(*action);
                    }
                }
                pair.stimulate(Stimulus::Cut(1 - host, 1));
                let until = pair.now + LONG;
                pair.run_until(until);
                checked(&mut pair);
                assert_eq!(pair.down, None, "{setup:?} {step} {:#?}", pair.log);
            }
        }
    }
}

#[test]
fn a_link_that_is_silent_is_tested() {
    for setup in all(TWO) {
        let mut pair = settled(setup);
        pair.vanish();
        let until = pair.now + 40_000;
        pair.run_until(until);
        checked(&mut pair);
        assert_eq!(
            (pair.downs, pair.down),
            (1, None),
            "{setup:?} {:#?}",
            pair.log
        );
    }
}

/// A client of Linux starts nothing before it has a link or an answer.
#[test]
fn a_client_that_asks_for_a_link_gets_an_answer() {
    let mut pair = settled(Setup {
        v2: true,
        server: false,
        ports: [1, 1],
        spare: [0, 2],
        ..TWO
    });
    pair.stimulate(Stimulus::Restore(PEER, 1));
    // By the time that it asks, there is a second link, and no port of ours for another.
    after(&mut pair, Stimulus::Restore(PEER, 2), 1_000);
    assert_eq!(pair.up().len(), 2);
    after(&mut pair, Stimulus::Announce(PEER), 1_000);
    assert_eq!(pair.peer.refused, 0);
}

/// The same where the first contact is over for the client alone: its CONFIRM LINK for the second link is on its way, and
/// may get lost.
#[test]
fn a_client_that_asks_in_a_first_contact_gets_an_answer() {
    for lost in [false, true] {
        let mut pair = Pair::new(Setup {
            v2: true,
            server: false,
            ports: [2, 1],
            spare: [0, 1],
            ..TWO
        });
        while !pair.peer.is_up {
            let action = pair.actions()[0];
            pair.act(action);
        }
        assert_eq!(pair.first, None);
        pair.stimulate(Stimulus::Restore(PEER, 1));
        let first = pair.peer.links[0].qp;
        pair.act(Action::Deliver(PEER, first));
        assert_eq!(pair.first, None);
        if lost {
            pair.stimulate(Stimulus::Cut(WE, 1));
        }
        pair.run_until(2_000);
        checked(&mut pair);
        assert_eq!(pair.first, Some(true), "{:#?}", pair.log);
        if lost {
            pair.stimulate(Stimulus::Restore(WE, 1));
            pair.run_until(3_000);
        }
        // Its port is not forgotten.
        assert_eq!(pair.used().map(|ports| ports.len()), [2, 2]);
        after(&mut pair, Stimulus::Announce(PEER), 1_000);
        assert_eq!(pair.peer.refused, 0);
    }
}

/// It asks while a link is being deleted: DELETE LINK waits for the answer, and so do those that follow.
#[test]
fn a_client_that_asks_while_a_link_goes_gets_an_answer() {
    for step in 0..12 {
        let mut pair = settled(Setup {
            v2: true,
            server: false,
            ports: [2, 1],
            spare: [0, 1],
            ..TWO
        });
        pair.stimulate(Stimulus::Drain(WE));
        for _ in 0..step {
            let action = pair.actions().first().copied();
            pair.act(action.unwrap_or(Action::Time));
        }
        after(&mut pair, Stimulus::Restore(PEER, 1), 1_000);
        assert_eq!(pair.downs, 1, "{step} {:#?}", pair.log);
        assert_eq!(pair.used().map(|ports| ports.len()), [2, 2]);
        after(&mut pair, Stimulus::Announce(PEER), 1_000);
        assert_eq!(pair.peer.refused, 0);
    }
}

/// Its question gets lost with its link: DELETE LINK has to wait.
#[test]
fn a_client_that_does_not_delete_a_link_is_tested() {
    let mut pair = settled(Setup {
        v2: true,
        server: false,
        ports: [2, 1],
        spare: [0, 1],
        ..TWO
    });
    pair.stimulate(Stimulus::Cut(WE, 0));
    pair.stimulate(Stimulus::Restore(PEER, 1));
    let until = pair.now + LONG;
    pair.run_until(until);
    checked(&mut pair);
    assert_eq!(pair.down, None, "{:#?}", pair.log);
}

#[test]
fn a_link_is_taken_out_of_use() {
    for setup in all(TWO) {
        for host in [WE, PEER] {
            let mut pair = settled(setup);
            after(&mut pair, Stimulus::Drain(host), 1_000);
            assert_eq!(
                (pair.downs, pair.down),
                (1, None),
                "{setup:?} {:#?}",
                pair.log
            );
            assert_eq!(pair.peer.dropped, &[] as &[u8]);
            after(&mut pair, Stimulus::Announce(host), 1_000);
        }
    }
}

#[test]
fn the_end_takes_all_links() {
    for setup in all(TWO) {
        for hosts in [&[WE][..], &[PEER], &[WE, PEER], &[PEER, WE]] {
            let mut pair = settled(setup);
            pair.stimulate(Stimulus::Announce(1 - hosts[0]));
            for host in hosts {
                pair.stimulate(Stimulus::ShutDown(*host));
            }
            let until = pair.now + 10_000;
            pair.run_until(until);
            checked(&mut pair);
            assert!(
                pair.peer.is_over && pair.released,
                "{setup:?} {:#?}",
                pair.log
            );
        }
    }
}

/// What a test of thousands of steps did.
#[derive(Default)]
struct Sum {
    steps: usize,
    ups: usize,
    announced: usize,
    refused: usize,
}

/// A group and its ports. Links fail only while another one works, unless all is allowed.
fn life(seed: u64, wild: bool) -> Sum {
    let mut rng = Rng::new(seed ^ (13 << 40));
    let setups = all(Setup {
        ports: [0; 2].map(|_| 1 + rng.below(2) as usize),
        spare: [0; 2].map(|_| rng.below(2) as usize),
        rmbs: [0; 2].map(|_| rng.size(1, 6) as u16),
        ..TWO
    });
    let setup = rng.pick(&setups);
    let mut pair = settled(setup);
    for _ in 0..rng.size(20, 120) {
        event(&mut pair, &mut rng, wild);
        for _ in 0..rng.size(0, 40) {
            let actions = pair.actions();
            if actions.is_empty() {
                break;
            }
            pair.act(rng.pick(&actions));
        }
        if rng.percent(40) {
            let until = pair.now + u64::from(rng.size(10, 70_000));
            pair.run_until(until);
        } else if rng.percent(10) && pair.actions().is_empty() {
            pair.act(Action::Time);
        }
        let ended = pair.down.is_some() || pair.peer.is_over;
        assert!(wild || !ended, "the group ended: {setup:?} {:#?}", pair.log);
    }
    let until = pair.now + LONG;
    pair.run_until(until);
    checked(&mut pair);
    assert!(wild || pair.is_quiet());
    Sum {
        steps: pair.steps,
        ups: pair.ups,
        announced: pair.confirmed.len() + pair.peer.own.len(),
        refused: pair.refused + pair.peer.refused + pair.peer.asked_again,
    }
}

/// Something happens to a group.
fn event(pair: &mut Pair, rng: &mut Rng, wild: bool) {
    let h = rng.below(2) as usize;
    let count = pair.setup.ports[h] + pair.setup.spare[h];
    let port = rng.below(count as u64) as usize;
    // Some link has to stay for as long as it takes to tell of another one's end.
    let calm = wild || (pair.is_quiet() && pair.check().is_ok());
    let others = |port| wild || pair.used()[h].iter().any(|used| *used != port);
    match rng.below(10) {
        0..=2 => pair.stimulate(Stimulus::Announce(h)),
        3 => pair.stimulate(Stimulus::Withdraw(h)),
        4 if calm && others(port) => pair.stimulate(Stimulus::Cut(h, port)),
        5 if calm && others(0) => pair.stimulate(Stimulus::Fail(h)),
        6..=7 => pair.stimulate(Stimulus::Restore(h, port)),
        8 if calm => pair.stimulate(Stimulus::Drain(h)),
        9 if wild && rng.percent(3) => pair.stimulate(Stimulus::ShutDown(h)),
        _ => {}
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn lives(name: &str, runs: u64, wild: bool) -> Sum {
    let scale = number("SMC_TEST_SCALE").unwrap_or(1);
    let seeds = match number("SMC_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SMC_RUNS").unwrap_or(runs * scale) + 1,
    };
    let mut sum = Sum::default();
    for seed in seeds {
        match panic::catch_unwind(|| life(seed, wild)) {
            Ok(one) => {
                sum.steps += one.steps;
                sum.ups += one.ups;
                sum.announced += one.announced;
                sum.refused += one.refused;
            }
            Err(cause) => {
                eprintln!("{name} failed with SMC_SEED={seed}");
                panic::resume_unwind(cause);
            }
        }
    }
    println!(
        "{name}: {} steps, {} links, {} buffers, {} refusals",
        sum.steps, sum.ups, sum.announced, sum.refused
    );
    sum
}

fn usual() -> bool {
    number("SMC_SEED").is_none() && number("SMC_RUNS").is_none()
}

#[test]
fn ports_come_and_go() {
    let sum = lives("ports_come_and_go", 500, false);
    assert!(!usual() || (sum.ups > 1_500 && sum.refused > 0));
}

#[test]
fn everything_comes_and_goes() {
    let sum = lives("everything_comes_and_goes", 1_000, true);
    assert!(!usual() || sum.ups > 1_500);
}
