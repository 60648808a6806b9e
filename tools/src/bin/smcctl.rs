// SPDX-License-Identifier: GPL-2.0

//! Shows and sets up SMC on this host.

#![forbid(unsafe_code)]

use clap::Parser;
use smc_tools::ctl::{self, Cli, Failure, EXIT_FAILURE};
use smc_tools::netlink::Kernel;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_FAILURE),
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("smcctl: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: &Cli) -> Result<bool, Failure> {
    let mut stdout = std::io::stdout().lock();
    let mut output = ctl::output(&mut stdout, cli.json);
    ctl::run(&cli.command, &mut Kernel::new()?, &mut output)
}
