// SPDX-License-Identifier: GPL-2.0

//! Two connections face to face, over a fabric that takes its time.
//!
//! `SMC_SEED=n` runs one seed, `SMC_RUNS=n` another number of runs than usual.

mod hostile;
mod linux;
#[expect(dead_code, reason = "scripts are for the fuzzer")]
mod rng;
mod world;

use std::{
    cell::RefCell,
    panic, //
};

use rng::Rng;
use smc_proto::conn::{
    State,
    Timer, //
};
use world::{
    Config,
    Seen,
    World, //
};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a scenario with many seeds; returns how many of them ended without an error.
fn run(name: &str, runs: u64, scenario: impl Fn(u64) -> bool + panic::RefUnwindSafe) -> u64 {
    let seeds = match number("SMC_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SMC_RUNS").unwrap_or(runs) + 1,
    };
    let mut well = 0;
    for seed in seeds {
        match panic::catch_unwind(|| scenario(seed)) {
            Ok(ended_well) => well += u64::from(ended_well),
            Err(cause) => {
                eprintln!("{name} failed with SMC_SEED={seed}");
                panic::resume_unwind(cause);
            }
        }
    }
    well
}

/// The usual course: a phase of chaos, then quiet, then the end.
fn life(seed: u64, salt: u64, adapt: impl Fn(&mut Config, &mut Rng)) -> bool {
    let mut rng = Rng::new(seed ^ (salt << 40));
    let mut config = Config::plain(&mut rng);
    adapt(&mut config, &mut rng);
    let mut world = World::new(config, rng);
    for _ in 0..config.steps {
        world.step();
    }
    world.settle(&[Timer::Cork]);
    world.expect_all_delivered();
    let well = world.both_ended_well();
    world.finish();
    SEEN.with_borrow_mut(|seen| seen.add(&world.seen));
    well
}

thread_local! {
    /// What the runs of one test have come across.
    static SEEN: RefCell<Seen> = RefCell::default();
}

/// Makes sure that the runs of this test reached all that they are meant to reach.
fn expect_seen(states: &[State], errors: &[&str], timers: &[&str], flags: &[&str]) {
    if number("SMC_SEED").is_some() || number("SMC_RUNS").is_some() {
        return;
    }
    SEEN.with_borrow(|seen| {
        for s in states {
            assert!(seen.states.contains(s), "{s} never reached");
        }
        for e in errors {
            assert!(seen.errors.contains(*e), "error {e} never reached");
        }
        for t in timers {
            assert!(seen.timers.contains(*t), "timer {t} never ran out");
        }
        for f in flags {
            assert!(seen.flags.contains(f), "{f} never sent");
        }
    });
}

/// Runs a scenario in which nothing can go wrong with many seeds.
fn run_well(name: &str, scenario: impl Fn(u64) -> bool + panic::RefUnwindSafe) {
    let runs = 2000;
    let well = run(name, runs, scenario);
    if number("SMC_SEED").is_none() && number("SMC_RUNS").is_none() {
        assert_eq!(well, runs, "nothing can go wrong without a reason");
    }
}

#[test]
fn data_only() {
    run_well("data_only", |seed| life(seed, 1, |_, _| ()));
    let flags = ["B", "P", "U", "C", "3 writes", "unsignalled"];
    expect_seen(&[State::Active, State::Closed], &[], &["Cork"], &flags);
}

/// Readers that want less unread than there is room for: nothing gets stuck, and nothing is lost.
#[test]
fn receive_limits() {
    run_well("receive_limits", |seed| {
        life(seed, 11, |c, _| c.limits = true)
    });
    expect_seen(
        &[State::Active, State::Closed],
        &[],
        &[],
        &["B", "P", "U", "C"],
    );
    run("receive_limits, rough", 2000, |seed| {
        life(seed, 12, |c, rng| {
            c.limits = true;
            c.failover = true;
            c.several = rng.percent(50);
            c.early_close = rng.percent(50);
            c.abort = rng.percent(20);
        })
    });
}

/// The ring of a connection that has rested may come back smaller, and be larger again after that.
#[test]
fn ring_sizes() {
    run_well("ring_sizes", |seed| {
        life(seed, 13, |c, _| c.ring_changes = true)
    });
    expect_seen(&[], &[], &[], &["a ring of another size", "B", "P", "U"]);
    run("ring_sizes, rough", 2000, |seed| {
        life(seed, 14, |c, rng| {
            c.ring_changes = true;
            c.failover = true;
            c.several = rng.percent(50);
            c.early_close = rng.percent(50);
            c.abort = rng.percent(20);
        })
    });
}

#[test]
fn early_close() {
    run("early_close", 2000, |seed| {
        life(seed, 2, |c, _| c.early_close = true)
    });
    let states = [
        State::Active,
        State::PeerCloseWait1,
        State::PeerCloseWait2,
        State::AppCloseWait1,
        State::AppCloseWait2,
        State::AppFinCloseWait,
        State::PeerFinCloseWait,
        State::Closed,
    ];
    let flags = ["A", "B", "C", "D", "data+C", "data+D"];
    expect_seen(&states, &["reset by peer"], &[], &flags);
}

#[test]
fn aborts_and_resets() {
    run("aborts_and_resets", 2000, |seed| {
        life(seed, 3, |c, _| {
            c.early_close = true;
            c.abort = true;
        })
    });
    let states = [State::PeerAbortWait, State::ProcessAbort];
    let errors = ["reset by peer", "TCP connection reset"];
    let flags = ["A", "read before the error", "RST after C"];
    expect_seen(&states, &errors, &["AbortWait"], &flags);
}

#[test]
fn failover() {
    run("failover", 2000, |seed| {
        life(seed, 4, |c, rng| {
            c.failover = true;
            c.early_close = rng.percent(30);
        })
    });
    expect_seen(&[], &[], &[], &["F"]);
}

#[test]
fn several_links() {
    run("several_links", 3000, |seed| {
        life(seed, 10, |c, rng| {
            c.failover = true;
            c.several = true;
            c.early_close = rng.percent(40);
            c.abort = rng.percent(10);
        })
    });
    expect_seen(&[], &[], &[], &["F", "held", "another ring"]);
}

#[test]
fn link_death() {
    run("link_death", 2000, |seed| {
        life(seed, 5, |c, rng| {
            c.death = true;
            c.early_close = rng.percent(50);
        })
    });
    expect_seen(&[], &["link failed"], &[], &["read before the error"]);
}

#[test]
fn everything_at_once() {
    run("everything_at_once", 2000, |seed| {
        life(seed, 6, |c, rng| {
            c.early_close = true;
            c.abort = rng.percent(30);
            c.failover = rng.percent(50);
            c.hasty_timers = true;
        })
    });
    let timers = ["Cork", "Drain", "CloseWait", "AbortWait"];
    expect_seen(&[], &["timed out"], &timers, &["quiet end"]);
}

#[test]
fn slow_reader() {
    let runs = 300;
    let well = run("slow_reader", runs, |seed| {
        let mut rng = Rng::new(seed ^ (9 << 40));
        let config = Config::plain(&mut rng);
        let mut world = World::new(config, rng);
        world.close_on_a_slow_reader();
        world.expect_all_delivered();
        let well = world.both_ended_well();
        world.finish();
        SEEN.with_borrow_mut(|seen| seen.add(&world.seen));
        well
    });
    if number("SMC_SEED").is_none() && number("SMC_RUNS").is_none() {
        assert_eq!(well, runs, "nothing may be lost");
    }
    expect_seen(&[], &[], &["Drain"], &["slow reader", "quiet end"]);
}

#[test]
fn hostile_peer() {
    let violations = run("hostile_peer", 6000, |seed| {
        hostile::attack(Rng::new(seed ^ (7 << 40))).is_some()
    });
    if number("SMC_SEED").is_none() {
        assert!(violations > 0, "no attack was noticed");
    }
}

/// The same kinds of life as above, with a peer that does as Linux does.
#[test]
fn linux_peer() {
    use linux::{
        Met,
        Rules,
        Talk, //
    };
    thread_local! {
        static MET: RefCell<Met> = RefCell::default();
    }
    let runs = 4800;
    for (salt, rules) in [
        Rules::default(),
        Rules {
            urgent: true,
            ends: true,
            ..Rules::default()
        },
        Rules {
            ends: true,
            aborts: true,
            ..Rules::default()
        },
        Rules {
            failover: true,
            urgent: true,
            ..Rules::default()
        },
        Rules {
            ends: true,
            aborts: true,
            failover: true,
            urgent: true,
            ..Rules::default()
        },
        Rules {
            failover: true,
            quiet: true,
            ..Rules::default()
        },
        Rules {
            urgent: true,
            ends: true,
            limits: true,
            ..Rules::default()
        },
        Rules {
            ends: true,
            aborts: true,
            failover: true,
            urgent: true,
            quiet: false,
            limits: true,
        },
    ]
    .into_iter()
    .enumerate()
    {
        let well = run("linux_peer", runs / 8, |seed| {
            let mut rng = Rng::new(seed ^ ((10 + salt as u64) << 40));
            let steps = rng.size(20, 1500);
            let mut talk = Talk::new(rules, rng);
            let well = talk.run(steps);
            MET.with_borrow_mut(|met| met.add(&talk.met));
            well
        });
        let has_reason = rules.aborts || rules.failover && rules.urgent;
        if number("SMC_SEED").is_none() && number("SMC_RUNS").is_none() && !has_reason {
            assert_eq!(well, runs / 8, "nothing can go wrong without a reason");
        }
    }
    if number("SMC_SEED").is_none() && number("SMC_RUNS").is_none() {
        let met = MET.with_borrow(|met| *met);
        assert!(met.all(), "not all of its habits were met: {met:?}");
    }
}

/// What a bulk transfer costs: messages of the sender and of the receiver, and completions.
#[test]
fn bulk_is_cheap() {
    const BYTES: u32 = 1 << 20;
    run("bulk_is_cheap", 5, |seed| {
        let mut rng = Rng::new(seed ^ (8 << 40));
        let config = Config {
            ring: [65536; 2],
            element: [65536; 2],
            base: 0,
            max_transmit: 0,
            no_slot: 0,
            urgent: false,
            cork: false,
            greedy: true,
            ..Config::plain(&mut rng)
        };
        let mut world = World::new(config, rng);
        world.give(0, BYTES);
        world.settle(&[Timer::Cork]);
        world.expect_all_delivered();
        let [sender, reader] = &world.hosts;
        assert_eq!(reader.read, u64::from(BYTES));
        // Half a ring is 32 KiB: 32 of them, and at most as many consumer updates.
        assert!(sender.messages <= 35, "{} messages", sender.messages);
        assert!(reader.messages <= 35, "{} updates", reader.messages);
        assert!(sender.signals + reader.signals <= sender.messages + reader.messages);
        true
    });
}
