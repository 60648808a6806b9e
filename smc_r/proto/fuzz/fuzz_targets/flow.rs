// SPDX-License-Identifier: GPL-2.0

//! Any bytes as the life of a link group with one link.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| smc_proto_fuzz::flow(bytes));
