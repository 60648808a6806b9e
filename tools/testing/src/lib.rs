// SPDX-License-Identifier: GPL-2.0

//! What the test programs share.

#![deny(unsafe_code)]

pub mod bench;
pub mod errno;
pub mod event;
pub mod peer;
pub mod report;
pub mod socket;
pub mod stream;
pub mod transfer;
pub mod xfer;
