// SPDX-License-Identifier: GPL-2.0

//! Orders in which the messages of two hosts can cross, all of them within small bounds.
//!
//! A run takes the first of the actions that are possible, except where a script says otherwise.
//! The explorer tries every script with so many exceptions, none or one, for each pair of stimuli, which come at
//! any moment. With `SMC_DEEP=1` there are up to three.

use crate::world::{
    Action,
    Setup,
    Stimulus,
    World, //
};

/// What is tried.
struct Plan<'a> {
    setup: Setup,
    /// Set up before the exploration begins.
    settled: bool,
    /// Stimuli, each with the step at which it comes.
    stimuli: &'a [(usize, Stimulus)],
    /// The group goes on, with all the links that its ports allow.
    survives: bool,
}

/// Runs one script, and tells how many actions were possible at each step.
fn run(plan: &Plan<'_>, script: &[(usize, usize)]) -> Vec<usize> {
    let mut world = World::new(plan.setup);
    if plan.settled {
        world.run_until(5_000);
        // Something that can be withdrawn.
        for h in 0..2 {
            world.stimulate(Stimulus::Announce(h));
            world.run_until(world.now + 100);
        }
    }
    let end = world.now + 200_000;
    let mut choices = Vec::new();
    let mut step = 0;
    loop {
        for (_, stimulus) in plan.stimuli.iter().filter(|(at, _)| *at == step) {
            world.stimulate(*stimulus);
        }
        let actions = world.actions();
        let left = plan.stimuli.iter().any(|(at, _)| *at > step);
        if actions.is_empty() && !left {
            break;
        }
        let chosen = script
            .iter()
            .find(|(at, _)| *at == step)
            .map_or(0, |(_, choice)| *choice);
        if let Some(action) = actions.get(chosen).or(actions.first()) {
            world.act(*action);
        } else {
            world.act(Action::Time);
        }
        choices.push(actions.len());
        step += 1;
        assert!(step < 5_000, "no end: {:#?}", world.log);
    }
    world.run_until(end);
    let has = |is: fn(&Stimulus) -> bool| plan.stimuli.iter().any(|(_, one)| is(one));
    let lossy = has(|one| *one == Stimulus::Lose);
    let lost = plan
        .stimuli
        .iter()
        .filter(|(_, one)| *one == Stimulus::Lose);
    if lossy && has(|one| matches!(one, Stimulus::Restore(..))) || lost.count() > 1 {
        // A client is refused for as long as the server waits for the answer to what has got lost. Its connection stays
        // on TCP then; the next one does not.
        let refused = std::mem::take(&mut world.hosts[1].refused);
        if !refused.is_empty() && world.hosts[1].flow.is_usable() {
            world.stimulate(Stimulus::Announce(1));
            world.run_until(world.now + 10_000);
        }
    }
    let mut result = world.check();
    if plan.survives && result.is_ok() {
        result = world.check_redundancy(lossy);
    }
    if result.is_err() {
        panic!(
            "{:?} {:?} {script:?}: {result:?}\n{:#?}",
            plan.setup, plan.stimuli, world.log
        );
    }
    choices
}

/// Tries all scripts with up to `depth` exceptions that begin with `script`.
fn explore(plan: &Plan<'_>, script: &mut Vec<(usize, usize)>, depth: usize) -> usize {
    let choices = run(plan, script);
    let mut runs = 1;
    if depth == 0 {
        return runs;
    }
    let from = script.last().map_or(0, |(step, _)| step + 1);
    for (step, count) in choices.iter().enumerate().skip(from) {
        for choice in 1..*count {
            script.push((step, choice));
            runs += explore(plan, script, depth - 1);
            script.pop();
        }
    }
    runs
}

fn deep() -> bool {
    std::env::var("SMC_DEEP").is_ok()
}

fn stimuli() -> Vec<Stimulus> {
    let mut all = Vec::new();
    for h in 0..2 {
        all.extend([
            Stimulus::Announce(h),
            Stimulus::Withdraw(h),
            Stimulus::Cut(h, 0),
            Stimulus::Cut(h, 1),
            Stimulus::Restore(h, 2),
            Stimulus::Drain(h),
            Stimulus::Fail(h),
            Stimulus::Busy(h),
        ]);
    }
    all
}

const THREE: Setup = Setup {
    ports: [2, 2],
    spare: [1, 1],
    max_links: [3, 3],
    rmbs: [3, 1],
    ..Setup::TWO
};

/// Groups in which it takes two messages to announce a buffer.
const FOUR: Setup = Setup {
    ports: [4, 4],
    spare: [0, 0],
    max_links: [4, 4],
    ..THREE
};

#[test]
fn a_first_contact_in_any_order() {
    let mut runs = 0;
    for v2 in [false, true] {
        for ports in [[1, 1], [1, 2], [2, 1], [2, 2], [3, 3]] {
            let setup = Setup {
                v2,
                ports,
                spare: [3 - ports[0], 3 - ports[1]],
                ..THREE
            };
            for first in stimuli() {
                for at in 0..15 {
                    let gone =
                        matches!(first, Stimulus::Cut(_, port) if port >= ports[0].min(ports[1]));
                    let plan = Plan {
                        setup,
                        settled: false,
                        stimuli: &[(at, first)],
                        // Without its first link, a group does not come about.
                        survives: !gone
                            && !matches!(first, Stimulus::Cut(_, 0) | Stimulus::Fail(_)),
                    };
                    runs += explore(&plan, &mut Vec::new(), if deep() { 3 } else { 1 });
                }
            }
        }
    }
    assert!(runs > 2_000, "{runs} runs");
}

/// What may come second: the end of the group, too.
fn seconds() -> Vec<Stimulus> {
    let ends = [0, 1].map(Stimulus::ShutDown);
    stimuli().into_iter().chain(ends).collect()
}

#[test]
fn exchanges_that_collide() {
    let mut runs = 0;
    for v2 in [false, true] {
        let setup = Setup { v2, ..THREE };
        for first in stimuli() {
            for second in seconds() {
                for at in 0..12 {
                    // A port each of the two hosts may be gone, but never both of one.
                    let plan = Plan {
                        setup,
                        settled: true,
                        stimuli: &[(0, first), (at, second)],
                        survives: survives(first, second),
                    };
                    let some = usize::from(at % 3 == 0);
                    let depth = if deep() { 1 + some } else { some };
                    runs += explore(&plan, &mut Vec::new(), depth);
                }
            }
        }
    }
    assert!(runs > 5_000, "{runs} runs");
}

#[test]
fn announcements_in_two_messages_collide() {
    let mut runs = 0;
    for h in 0..2 {
        for other in seconds() {
            for at in 0..12 {
                for (first, second) in [
                    (Stimulus::Announce(h), other),
                    (other, Stimulus::Announce(h)),
                ] {
                    let plan = Plan {
                        setup: FOUR,
                        settled: true,
                        stimuli: &[(0, first), (at, second)],
                        survives: survives(first, second),
                    };
                    let some = deep() || at % 4 == 1;
                    runs += explore(&plan, &mut Vec::new(), usize::from(some));
                }
            }
        }
    }
    assert!(runs > 2_000, "{runs} runs");
}

/// Whether a link is left after both.
fn survives(first: Stimulus, second: Stimulus) -> bool {
    if [first, second]
        .iter()
        .any(|one| matches!(one, Stimulus::ShutDown(_)))
    {
        return false;
    }
    let lost = |stimulus| match stimulus {
        Stimulus::Cut(_, port) => Some(port),
        Stimulus::Fail(_) => Some(0),
        // A drain takes the second link.
        Stimulus::Drain(_) => Some(1),
        _ => None,
    };
    match (lost(first), lost(second)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

/// Those that leave all links alone.
fn harmless() -> impl Iterator<Item = Stimulus> {
    stimuli().into_iter().filter(|one| {
        matches!(
            one,
            Stimulus::Announce(_)
                | Stimulus::Withdraw(_)
                | Stimulus::Restore(..)
                | Stimulus::Busy(_)
        )
    })
}

/// With two links, a message that gets lost costs one of them at most, and that comes back. With one it may be the end.
#[test]
fn a_message_is_lost() {
    for v2 in [false, true] {
        let setup = Setup { v2, ..THREE };
        for stimulus in stimuli() {
            for at in 1..20 {
                let plan = Plan {
                    setup,
                    settled: true,
                    stimuli: &[(0, stimulus), (at, Stimulus::Lose)],
                    survives: harmless().any(|one| one == stimulus),
                };
                explore(&plan, &mut Vec::new(), usize::from(deep()));
            }
        }
    }
}

#[test]
fn a_message_is_lost_where_exchanges_collide() {
    let every = if deep() { 1 } else { 4 };
    for v2 in [false, true] {
        let setup = Setup { v2, ..THREE };
        for (first, second) in harmless().flat_map(|one| harmless().map(move |other| (one, other)))
        {
            for at in (0..12).step_by(every) {
                for lost in (1..20).step_by(every) {
                    let plan = Plan {
                        setup,
                        settled: true,
                        stimuli: &[(0, first), (at, second), (lost, Stimulus::Lose)],
                        survives: true,
                    };
                    explore(&plan, &mut Vec::new(), 0);
                }
            }
        }
    }
}

/// With four links, two messages that get lost cost two of them at most, and those that are left carry on; that of an
/// exchange in two messages is repeated from its beginning.
#[test]
fn messages_of_announcements_in_two_are_lost() {
    let every = if deep() { 1 } else { 3 };
    let mut runs = 0;
    for h in 0..2 {
        for other in harmless() {
            for lost in 1..16 {
                for again in (lost..16).step_by(every) {
                    let plan = Plan {
                        setup: FOUR,
                        settled: true,
                        stimuli: &[
                            (0, Stimulus::Announce(h)),
                            (1, other),
                            (lost, Stimulus::Lose),
                            (again, Stimulus::Lose),
                        ],
                        survives: true,
                    };
                    runs += explore(&plan, &mut Vec::new(), usize::from(deep()));
                }
            }
        }
    }
    assert!(runs > 500, "{runs} runs");
}

/// Two messages that get lost may cost a group its two links; either side knows, and keeps nothing.
#[test]
fn two_messages_are_lost() {
    let every = if deep() { 1 } else { 4 };
    for v2 in [false, true] {
        let setup = Setup { v2, ..THREE };
        for stimulus in stimuli() {
            for lost in 1..16 {
                for again in (lost..20).step_by(every) {
                    let plan = Plan {
                        setup,
                        settled: true,
                        stimuli: &[
                            (0, stimulus),
                            (lost, Stimulus::Lose),
                            (again, Stimulus::Lose),
                        ],
                        survives: false,
                    };
                    explore(&plan, &mut Vec::new(), 0);
                }
            }
        }
    }
}

#[test]
fn a_message_of_the_first_contact_is_lost() {
    for v2 in [false, true] {
        let setup = Setup { v2, ..THREE };
        // A client to which the offer of a link has got lost goes on, and what it announces is refused for as long
        // as the server waits for the answer.
        let is_taken = |one: &Stimulus| *one != Stimulus::Announce(1);
        for stimulus in stimuli().into_iter().filter(is_taken) {
            for at in 0..12 {
                for lost in 0..20 {
                    let plan = Plan {
                        setup,
                        settled: false,
                        stimuli: &[(lost, Stimulus::Lose), (at, stimulus)],
                        survives: false,
                    };
                    explore(&plan, &mut Vec::new(), usize::from(deep()));
                }
            }
        }
    }
}

#[test]
fn the_end_is_told_over_another_link() {
    for v2 in [false, true] {
        for h in 0..2 {
            for (host, port) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                for at in 0..6 {
                    let plan = Plan {
                        setup: Setup { v2, ..THREE },
                        settled: true,
                        stimuli: &[(0, Stimulus::ShutDown(h)), (at, Stimulus::Cut(host, port))],
                        survives: false,
                    };
                    explore(&plan, &mut Vec::new(), 1);
                }
            }
        }
    }
}
