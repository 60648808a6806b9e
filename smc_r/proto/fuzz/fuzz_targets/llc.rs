// SPDX-License-Identifier: GPL-2.0

//! Any bytes as an LLC message.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| smc_proto_fuzz::llc(bytes));
