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
