// SPDX-License-Identifier: GPL-2.0

//! Any bytes as a CDC message, and as the options of a TCP header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_proto::{cdc::Cdc, tcp_option};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Cdc::parse(bytes) {
        assert_eq!(Cdc::parse(&message.emit()), Ok(message));
        let _ = message.to_string();
    }
    if tcp_option::find(bytes) {
        assert!(bytes.windows(4).any(|id| id == [0xe2, 0xd4, 0xc3, 0xd9]));
    }
});
