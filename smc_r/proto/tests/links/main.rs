// SPDX-License-Identifier: GPL-2.0

//! Link groups with several links: the LLC engines of two hosts face to face.

mod breaches;
mod collisions;
mod edges;
mod explore;
mod fixtures;
mod groups;
mod hostile;
mod interop;
mod linux;
mod mixed;
mod order;
mod random;
#[path = "../sim/rng.rs"]
#[expect(dead_code, reason = "scripts are for the fuzzer")]
mod rng;
mod streams;
mod world;

use rng::Rng;

#[test]
fn any_messages_at_any_time() {
    let mut reached = 0;
    for seed in 1..1_000 {
        match std::panic::catch_unwind(|| hostile::attack(Rng::new(seed ^ (12 << 40)))) {
            Ok(some) => reached += some,
            Err(cause) => {
                eprintln!("any_messages_at_any_time failed with seed {seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    assert!(reached > 500, "{reached} links came into use");
}
