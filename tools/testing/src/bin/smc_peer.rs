// SPDX-License-Identifier: GPL-2.0

//! A peer in user space that shows the SMC option and then misbehaves.

#![forbid(unsafe_code)]

use clap::Parser;
use smc_testing::peer::{run, Cli};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let (text, status) = run(&Cli::parse());
    let _ = if status < 2 {
        writeln!(std::io::stdout(), "{text}")
    } else {
        writeln!(std::io::stderr(), "{text}")
    };
    ExitCode::from(status)
}
