// SPDX-License-Identifier: GPL-2.0

//! Any bytes as the course of a rendezvous.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| smc_proto_fuzz::rendezvous(bytes));
