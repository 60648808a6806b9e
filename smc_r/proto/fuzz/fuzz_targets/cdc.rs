// SPDX-License-Identifier: GPL-2.0

//! Any bytes as a CDC message and as TCP options.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| smc_proto_fuzz::cdc(bytes));
