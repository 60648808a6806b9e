// SPDX-License-Identifier: GPL-2.0

//! The protocol core of SMC-R: formats, states and arithmetic of RFC 7609.
//!
//! Nothing in this crate does input or output, allocates, looks at a clock or sleeps. Bytes and
//! events go in, values come out; who sends them, when, and under which lock is up to the caller.
//! The same files are compiled into the kernel module and as an ordinary crate for the tests.
//!
//! What a peer sent becomes a value of a bounded type or a [`wire::ParseError`], which knows the
//! reaction the protocol demands. Behind the parsers no format check is left to be done.
//!
//! * Formats: [`tcp_option`], [`clc`] (rendezvous over the TCP connection), [`llc`] (link control)
//!   and [`cdc`] (data control), made of the types of [`wire`].
//! * One connection: [`conn`], over the ring arithmetic of [`cursor`] and [`ring`].

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![deny(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

#[cfg(test)]
extern crate std;

pub mod backoff;
pub mod cdc;
pub mod clc;
pub mod conn;
pub mod cursor;
pub mod diagnosis;
pub mod error;
pub mod gid;
pub mod group;
pub mod handshake;
pub mod list;
pub mod llc;
pub mod llc_flow;
pub mod ring;
pub mod rmb;
pub mod tcp_option;
pub mod timer;
pub mod wire;
