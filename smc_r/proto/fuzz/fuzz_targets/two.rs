// SPDX-License-Identifier: GPL-2.0

//! Any bytes as what two hosts do to a link group.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| smc_proto_fuzz::two(bytes));
