// SPDX-License-Identifier: GPL-2.0

//! The rendezvous of connections, the LLC exchanges of link groups, and what both remember.

mod client;
mod facts;
mod flow;
mod hostile;
mod linux;
mod pair;
#[path = "../sim/rng.rs"]
#[expect(dead_code, reason = "scripts are enough here")]
mod rng;
mod server;
mod tables;
mod talk;
mod v2;
mod world;

use proptest::prelude::*;
use rng::Rng;

/// What is scripted for a fuzzer can be shrunk, too.
fn script(limit: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..limit)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_engine_survives_any_peer(script in script(2_000)) {
        hostile::engine(Rng::scripted(&script));
    }

    #[test]
    fn a_rendezvous_survives_any_peer(script in script(200)) {
        hostile::rendezvous(Rng::scripted(&script));
    }

    #[test]
    fn two_engines_agree_in_any_order(script in script(400)) {
        hostile::two(Rng::scripted(&script));
    }
}
