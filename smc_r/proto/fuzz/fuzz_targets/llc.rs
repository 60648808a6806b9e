// SPDX-License-Identifier: GPL-2.0

//! Any bytes as an LLC message of either version.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_proto::llc::{kind, v2, Kind, Llc};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Llc::parse(bytes) {
        assert_eq!(kind(bytes[0]), Kind::Llc(message.kind()));
        assert_eq!(Llc::parse(&message.emit()), Ok(message));
        let _ = message.to_string();
    }
    if let Ok((message, order)) = v2::Llc::parse(bytes) {
        assert_eq!(kind(bytes[0]), Kind::LlcV2(message.kind()));
        let mut out = vec![0; v2::MAX_LEN];
        // Only what is longer than any message allowed cannot be written.
        match message.emit(order, &mut out) {
            Some(len) => assert_eq!(v2::Llc::parse(&out[..len]).unwrap().0, message),
            None => assert!(bytes.len() > v2::MAX_LEN),
        }
    }
});
