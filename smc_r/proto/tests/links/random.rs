// SPDX-License-Identifier: GPL-2.0

//! Link groups whose ports come and go at random.
//!
//! `SMC_SEED=n` runs one seed, `SMC_RUNS=n` another number of runs than usual, `SMC_TEST_SCALE=n`
//! so many times the usual number.

use std::panic;

use crate::{
    rng::Rng,
    world::{
        Action,
        Setup,
        Stimulus,
        World, //
    },
};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The scale of runs that are meant to be long.
const LONG: u64 = 12;

/// How often something happened.
#[derive(Default)]
struct Counts {
    steps: usize,
    /// Keys had to wait for a send slot.
    waits: usize,
    /// Data came over a link that was about to be deleted.
    broken_seals: usize,
    /// Most links at a time.
    links: usize,
    /// Connections went to another link.
    moves: usize,
    /// A port went while something was under way, such as the end of another link.
    overlaps: usize,
}

/// A group and its ports, with so many connections that are busy all the time. Every fourth group has many links,
/// and all have eight where that is asked for.
fn life(seed: u64, streams: usize, eight: bool) -> Counts {
    let mut rng = Rng::new(seed ^ (11 << 40));
    let many = eight || seed % 4 == 0;
    let v2 = rng.percent(30) && !many;
    // Fewest of either.
    let (few_ports, few_links) = match 4 + rng.below(5) as u32 {
        _ if eight => (8, 8),
        number if many => (number, number),
        _ => (1, 2),
    };
    let ports = [0; 2].map(|_| rng.size(few_ports, 8) as usize);
    let mut world = World::new(Setup {
        v2,
        max_links: [0; 2].map(|_| rng.size(few_links, 8) as u8),
        ports,
        spare: [0; 2],
        rmbs: [0; 2].map(|_| rng.size(1, 20).max(streams as u32) as u16),
        streams,
        ..Setup::TWO
    });
    world.run_until(5_000);
    assert_eq!(world.hosts[0].first, Some(true));
    let mut links = world.up(0).len();
    let mut overlaps = 0;
    for _ in 0..rng.size(20, 120) {
        let h = rng.below(2) as usize;
        let port = rng.below(ports[h] as u64) as usize;
        match rng.below(10) {
            0..=2 => world.stimulate(Stimulus::Announce(h)),
            3 => world.stimulate(Stimulus::Withdraw(h)),
            4..=5 => {
                // Nobody may have noticed yet what was cut before. But some link has to stay.
                if world.survives(h, port) {
                    overlaps += usize::from(!(world.is_quiet() && world.check().is_ok()));
                    world.stimulate(Stimulus::Cut(h, port));
                }
            }
            6..=7 => world.stimulate(Stimulus::Restore(h, port)),
            // A drain means that another link is there, which nobody knows to be dead.
            8 if world.is_quiet() && world.check().is_ok() => {
                world.stimulate(Stimulus::Drain(h));
            }
            9 => world.stimulate(Stimulus::Busy(h)),
            _ => {}
        }
        for _ in 0..rng.size(0, 40) {
            world.applications(&mut rng);
            let actions = world.actions();
            if actions.is_empty() {
                break;
            }
            world.act(rng.pick(&actions));
        }
        if rng.percent(40) {
            let until = world.now + u64::from(rng.size(10, 70_000));
            world.run_until(until);
        } else if rng.percent(10) && world.actions().is_empty() {
            world.act(Action::Time);
        }
        links = links.max(world.up(0).len());
        assert!(
            !world.hosts[0].down && !world.hosts[1].down,
            "the group ended: {:#?}",
            world.log
        );
    }
    let until = world.now + 200_000;
    world.run_until(until);
    world.finish_streams();
    let until = world.now + 1_000;
    world.run_until(until);
    if let Err(error) = world.check() {
        panic!("{error}\n{:#?}", world.log);
    }
    assert!(world.hosts[0].flow.is_usable());
    if eight {
        assert_eq!(links, 8, "{:#?}", world.log);
        all_come_back(&mut world);
    }
    let streams = world.hosts.iter().flat_map(|host| &host.streams);
    Counts {
        moves: streams.map(|stream| stream.moves).sum(),
        steps: world.steps,
        waits: world.hosts.iter().map(|host| host.put_back).sum(),
        broken_seals: world.broken_seals,
        links,
        overlaps,
    }
}

/// All ports are there again, and so are eight links.
fn all_come_back(world: &mut World) {
    for h in 0..2 {
        for port in 0..8 {
            world.stimulate(Stimulus::Restore(h, port));
        }
    }
    let until = world.now + 200_000;
    world.run_until(until);
    if let Err(error) = world.check().and(world.check_redundancy(false)) {
        panic!("{error}\n{:#?}", world.log);
    }
    assert_eq!(world.up(0).len(), 8);
}

fn lives(name: &str, runs: u64, streams: usize, eight: bool) {
    let scale = number("SMC_TEST_SCALE").unwrap_or(1);
    let seeds = match number("SMC_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SMC_RUNS").unwrap_or(runs * scale) + 1,
    };
    let mut sum = Counts::default();
    for seed in seeds {
        match panic::catch_unwind(|| life(seed, streams, eight)) {
            Ok(counts) => {
                sum.steps += counts.steps;
                sum.waits += counts.waits;
                sum.broken_seals += counts.broken_seals;
                sum.links = sum.links.max(counts.links);
                sum.moves += counts.moves;
                sum.overlaps += counts.overlaps;
            }
            Err(cause) => {
                eprintln!("{name} failed with SMC_SEED={seed}");
                panic::resume_unwind(cause);
            }
        }
    }
    let Counts {
        steps,
        waits,
        broken_seals,
        links,
        moves,
        overlaps,
    } = sum;
    println!(
        "{name}: {steps} steps, up to {links} links, keys waited {waits} times, {broken_seals} seals broken, \
         {moves} moves, {overlaps} cuts that overlap"
    );
    let usual = number("SMC_SEED").is_none() && number("SMC_RUNS").is_none();
    assert!(!usual || links >= 6, "{links} links at most");
    assert!(
        !usual || overlaps > 0,
        "no cut came while another one was seen to"
    );
    assert!(
        !usual || eight || scale < LONG || steps >= 1_000_000,
        "{steps} steps only"
    );
    // Those of version 2, which has no eight links.
    assert!(!usual || eight || waits > 0, "there always was room");
    assert!(
        !usual || streams == 0 || (broken_seals > 0 && moves > 0),
        "no seal was broken, or no connection moved"
    );
}

#[test]
fn ports_come_and_go() {
    lives("ports_come_and_go", 400, 0, false);
}

#[test]
fn streams_survive() {
    lives("streams_survive", 150, 6, false);
}

/// Connections over eight links, of which some are cut all the time.
#[test]
fn streams_over_eight_links_survive() {
    lives("streams_over_eight_links_survive", 12, 12, true);
}

/// Another link comes while connections are busy, and some go on there: whatever their devices take their time for, no
/// message comes before one that was posted earlier, as [`World::receive`] looks at each.
#[test]
fn nothing_is_overtaken_by_connections_that_move() {
    let mut moves = 0;
    for seed in 0..200 {
        let mut rng = Rng::new(seed ^ (12 << 40));
        let mut world = World::new(Setup {
            v2: rng.percent(50),
            ports: [1; 2],
            spare: [1; 2],
            rmbs: [4; 2],
            streams: 4,
            ..Setup::TWO
        });
        world.run_until(5_000);
        for round in 0..400 {
            if round == 100 {
                world.stimulate(Stimulus::Restore(0, 1));
                world.stimulate(Stimulus::Restore(1, 1));
            }
            world.applications(&mut rng);
            let actions = world.actions();
            if !actions.is_empty() {
                world.act(rng.pick(&actions));
            }
        }
        let until = world.now + 10_000;
        world.run_until(until);
        assert_eq!(world.up(0).len(), 2, "{:#?}", world.log);
        world.finish_streams();
        let streams = world.hosts.iter().flat_map(|host| &host.streams);
        moves += streams.map(|stream| stream.moves).sum::<usize>();
    }
    assert!(moves >= 400, "{moves} moves");
}
