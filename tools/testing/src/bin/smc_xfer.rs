// SPDX-License-Identifier: GPL-2.0

//! Transfers checked data over stream sockets.

#![forbid(unsafe_code)]

use clap::Parser;
use smc_testing::xfer::Cli;
use std::io::Write;

fn main() {
    let cli = Cli::parse();
    if let Err(message) = cli.check() {
        eprintln!("smc_xfer: {message}");
        std::process::exit(2);
    }
    let (line, status) = cli.run();
    let _ = writeln!(std::io::stdout(), "{line}");
    // Ends threads that hang in system calls too.
    std::process::exit(i32::from(status));
}
