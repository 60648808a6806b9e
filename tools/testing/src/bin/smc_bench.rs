// SPDX-License-Identifier: GPL-2.0

//! Measures one thing over one kind of stream socket.

#![forbid(unsafe_code)]

use clap::Parser;
use smc_testing::bench::Cli;
use std::io::Write;

fn main() {
    match Cli::parse().run() {
        Ok(Some(line)) => {
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        Ok(None) => {}
        Err(error) => {
            eprintln!("smc_bench: {error}");
            std::process::exit(1);
        }
    }
}
