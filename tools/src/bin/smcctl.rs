// SPDX-License-Identifier: GPL-2.0

//! Shows and sets up SMC on this host.

#![forbid(unsafe_code)]

use clap::Parser;
use smc_tools::ctl::{self, Cli, Failure, Output};
use smc_tools::netlink::Kernel;
use std::io::IsTerminal;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("smcctl: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let stdout = std::io::stdout();
    let terminal = stdout
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(&stdout).ok());
    let terminal = terminal
        .flatten()
        .map(|size| size.ws_col)
        .filter(|columns| *columns > 0);
    let mut writer = std::io::BufWriter::new(stdout.lock());
    let width = ctl::output_width(terminal);
    let mut output = Output {
        writer: &mut writer,
        width,
        json: cli.json,
    };
    ctl::run(&cli.command, &mut Kernel::new()?, &mut output)
}
