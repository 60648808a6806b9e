// SPDX-License-Identifier: GPL-2.0

//! Any bytes as a CDC message and as TCP options.

#![no_main]

#[path = "../../tests/sim/hostile.rs"]
mod hostile;
#[path = "../../tests/sim/rng.rs"]
#[allow(dead_code)] // others use more of it
mod rng;
#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::cdc(bytes));
