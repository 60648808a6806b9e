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

/// The programs, and in which section their manuals are.
fn programs() -> [(Command, &'static str); 5] {
    [
        (smc_tools::ctl::Cli::command(), "8"),
        (smc_tools::compat::pnet::Cli::command(), "8"),
        (smc_tools::compat::ss::Cli::command(), "8"),
        (smc_tools::compat::smcr::Cli::command(), "8"),
        (smc_tools::run::Args::command(), "1"),
    ]
}

fn write(folder: &Path) -> std::io::Result<()> {
    let completions = folder.join("completions");
    std::fs::create_dir_all(&completions)?;
    for (command, section) in programs() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap_complete::Generator;

    /// The script of a shell for a program.
    fn script(shell: impl Generator, command: &Command) -> String {
        let mut bytes = Vec::new();
        let name = command.get_name().to_string();
        clap_complete::generate(shell, &mut command.clone(), name, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    /// Calls `check` with each command and the names that lead to it.
    fn each(command: &Command, path: &[&str], check: &mut dyn FnMut(&Command, &[&str])) {
        check(command, path);
        for inner in command.get_subcommands() {
            each(inner, &[path, &[inner.get_name()]].concat(), check);
        }
    }

    /// The options of a command, short and long ones by themselves.
    fn options(command: &Command) -> (Vec<char>, Vec<&str>) {
        let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
        let short = shown().filter_map(|arg| arg.get_short());
        (
            short.collect(),
            shown().filter_map(|arg| arg.get_long()).collect(),
        )
    }

    /// The command with what belongs to all that are below it, as it is for a user.
    fn built(mut command: Command) -> Command {
        command.build();
        command
    }

    /// Whether a word of a script begins so, and a name ends there.
    fn names(text: &str, begin: &str) -> bool {
        let mut after = text
            .match_indices(begin)
            .map(|(at, _)| &text[at + begin.len()..]);
        after.any(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '-'))
    }

    #[test]
    fn zsh_knows_each_command_and_option() {
        for (command, _) in programs() {
            let command = built(command);
            let script = script(Shell::Zsh, &command);
            each(&command, &[], &mut |inner, path| {
                if path.contains(&"help") {
                    return;
                }
                // A function lists what may follow.
                let name = [&[command.get_name()], path].concat().join("__subcmd__");
                let function = format!("\n_{name}_commands() {{\n");
                let list = script.split_once(&function).map(|(_, rest)| rest);
                let list = list.and_then(|rest| rest.split_once("\n}\n"));
                for below in inner.get_subcommands() {
                    let (list, _) = list.unwrap_or_else(|| panic!("no function {name}"));
                    let below = format!("\n'{}:", below.get_name());
                    assert!(list.contains(&below), "{below} is not in {list}");
                }
                // The options are in the branch of the last name, which others may have as well.
                let branches: Vec<_> = match path.last() {
                    Some(last) => script.split(&format!("({last})\n")).skip(1).collect(),
                    None => vec![script.as_str()],
                };
                let (short, long) = options(inner);
                let is_complete = |branch: &&str| {
                    let (branch, _) = branch.split_once("&& ret=0").unwrap_or_default();
                    // Those that exclude it stand in front, or a star if it may be repeated.
                    let fronts = ["'", ")", "*"];
                    let has = |option: String| {
                        let mut begins = fronts.iter().map(|front| format!("{front}{option}"));
                        begins.any(|begin| names(branch, &begin))
                    };
                    short.iter().all(|it| has(format!("-{it}")))
                        && long.iter().all(|it| has(format!("--{it}")))
                };
                assert!(
                    branches.iter().any(is_complete),
                    "{name}: {short:?} {long:?}"
                );
            });
        }
    }

    #[test]
    fn fish_knows_each_command_and_option() {
        for (command, _) in programs() {
            let command = built(command);
            let program = command.get_name();
            let script = script(Shell::Fish, &command);
            each(&command, &[], &mut |inner, path| {
                if path.contains(&"help") {
                    return;
                }
                // The lines for what has been typed so far.
                let lines = script.lines().filter(|line| {
                    line.starts_with(&format!("complete -c {program} "))
                        && match path {
                            [] if command.has_subcommands() => line.contains("_needs_command"),
                            [] => true,
                            [first, rest @ ..] => {
                                names(line, &format!("_using_subcommand {first}"))
                                    && rest.iter().all(|word| {
                                        names(line, &format!("__fish_seen_subcommand_from {word}"))
                                    })
                            }
                        }
                });
                let lines: Vec<_> = lines.collect();
                let said = |what: String| {
                    let is_there = lines.iter().any(|line| names(line, &what));
                    assert!(is_there, "{program} {path:?}:{what}");
                };
                let (short, long) = options(inner);
                short.iter().for_each(|it| said(format!(" -s {it}")));
                long.iter().for_each(|it| said(format!(" -l {it}")));
                for below in inner.get_subcommands() {
                    said(format!(" -a \"{}", below.get_name()));
                }
            });
        }
    }
}
