// SPDX-License-Identifier: GPL-2.0

//! Shows and sets up SMC on this host. Under the names smc_pnet, smcss and smcr it takes the options
//! that programs of these names have.

#![forbid(unsafe_code)]

use clap::Parser;
use smc_tools::compat::{pnet, smcr, ss};
use smc_tools::ctl::{self, Cli, Failure, EXIT_FAILURE};
use smc_tools::netlink::Kernel;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

/// A program with its options.
enum Program {
    Smcctl(Cli),
    SmcPnet(pnet::Cli),
    Smcss(ss::Cli),
    Smcr(smcr::Cli),
}

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called)
        .file_name()
        .and_then(|name| name.to_str());
    let (name, program) = match name {
        Some("smc_pnet") => ("smc_pnet", Program::SmcPnet(pnet::Cli::parse())),
        Some("smcss") => ("smcss", Program::Smcss(ss::Cli::parse())),
        Some("smcr") => {
            let words = smcr::arguments(std::env::args_os());
            ("smcr", Program::Smcr(smcr::Cli::parse_from(words)))
        }
        _ => ("smcctl", Program::Smcctl(Cli::parse())),
    };
    match run(&program) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_FAILURE),
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "{name}: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(program: &Program) -> Result<bool, Failure> {
    let mut stdout = std::io::stdout().lock();
    let json = match program {
        Program::Smcctl(cli) => cli.json,
        Program::SmcPnet(cli) => cli.json,
        Program::Smcss(cli) => cli.json,
        Program::Smcr(cli) => cli.json,
    };
    let is_terminal = stdout.is_terminal();
    let mut output = ctl::output(&mut stdout, json);
    // Scripts read what the other names say, and each line of it as one.
    if !matches!(program, Program::Smcctl(_)) && !is_terminal {
        output.width = None;
    }
    let kernel = &mut Kernel::new()?;
    match program {
        Program::Smcctl(cli) => return ctl::run(&cli.command, kernel, &mut output),
        Program::SmcPnet(cli) => pnet::run(cli, kernel, &mut output),
        Program::Smcss(cli) => ss::run(cli, kernel, &mut output),
        Program::Smcr(cli) => smcr::run(cli, kernel, &mut output),
    }?;
    Ok(true)
}
