// SPDX-License-Identifier: GPL-2.0

//! Writes manual pages and shell completions of the tools into a folder. Not to be installed.

#![forbid(unsafe_code)]

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: smc_docs FOLDER");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smc_docs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> std::io::Result<()> {
    let completions = folder.join("completions");
    std::fs::create_dir_all(&completions)?;
    for (command, section) in [
        (smc_tools::ctl::Cli::command(), "8"),
        (smc_tools::compat::pnet::Cli::command(), "8"),
        (smc_tools::compat::ss::Cli::command(), "8"),
        (smc_tools::compat::smcr::Cli::command(), "8"),
        (smc_tools::run::Args::command(), "1"),
    ] {
        let name = command.get_name().to_string();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command.clone(), &name, &completions)?;
        }
        let manuals = folder.join(format!("man{section}"));
        std::fs::create_dir_all(&manuals)?;
        let mut command = command.disable_help_subcommand(true);
        command.build();
        write_manuals(&command, section, &manuals)?;
    }
    Ok(())
}

fn write_manuals(command: &Command, section: &str, folder: &Path) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone())
        .section(section)
        .generate_to(folder)?;
    command
        .get_subcommands()
        .try_for_each(|inner| write_manuals(inner, section, folder))
}
