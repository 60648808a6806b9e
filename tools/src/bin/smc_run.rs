// SPDX-License-Identifier: GPL-2.0

//! Runs a program with SMC sockets in place of its TCP sockets.

use clap::Parser;
use smc_tools::run::{exec, Args, EXIT_FAILURE};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            // Status 2 would look like one of the program's.
            return ExitCode::from(if error.use_stderr() { EXIT_FAILURE } else { 0 });
        }
    };
    let error = exec(&args);
    eprintln!("smc_run: {error}");
    ExitCode::from(error.exit_code())
}
