// SPDX-License-Identifier: GPL-2.0

//! Any bytes as the course of a connection.

#![no_main]

#[path = "../../tests/sim/hostile.rs"]
mod hostile;
#[path = "../../tests/sim/rng.rs"]
#[allow(dead_code)] // others use more of it
mod rng;
#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::conn(bytes));
