// SPDX-License-Identifier: GPL-2.0

//! `smcctl apply`: settings from a file, for the time of the boot.
//!
//! A line is a command of smcctl that changes something, or a setting of net.smc. All lines are read
//! before the first is carried out; then each is, whatever became of those before.

use super::{Cli, Command, Failure, Output, PnetCommand, UeidCommand};
use crate::ctl::own::RulesCommand;
use crate::ctl::transparent::TransparentCommand;
use crate::model::own::Rule;
use crate::model::system::{self, PnetEntry};
use crate::netlink::{Error, Source};
use crate::sys;
use crate::uapi::OWN_FAMILY;
use clap::{Args, Parser};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The file to apply.
#[derive(Clone, Debug, Args)]
pub struct ApplyArgs {
    /// The file
    #[arg(default_value = "/etc/smc-rs.conf")]
    pub file: PathBuf,
    /// Only look whether the file can be understood
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// What a line asks for.
enum Action {
    Command(Box<Command>),
    Sysctl(String, String),
}

/// What became of a line.
#[derive(Debug, Serialize)]
struct Outcome {
    line: usize,
    words: String,
    /// Why it was not carried out.
    error: Option<String>,
}

/// Reads a line; `None` if it says nothing.
fn parse(line: &str) -> Result<Option<Action>, String> {
    let words: Vec<_> = line
        .split('#')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    match words.as_slice() {
        [] => return Ok(None),
        ["sysctl", name, value] => {
            let name = name.strip_prefix("net.smc.").unwrap_or(name);
            if !name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            {
                return Err(format!("`{name}` is no name of a setting in net.smc"));
            }
            return Ok(Some(Action::Sysctl(name.into(), (*value).into())));
        }
        ["sysctl", ..] => return Err("expected `sysctl NAME VALUE`".into()),
        _ => {}
    }
    let cli = Cli::try_parse_from(std::iter::once("smcctl").chain(words.iter().copied()));
    let cli = cli.map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_string()
    })?;
    match cli.command {
        Command::Pnet(PnetCommand::List)
        | Command::Ueid(UeidCommand::List)
        | Command::Rules(RulesCommand::List)
        | Command::Transparent(TransparentCommand::Status)
        | Command::HandshakeLimit { value: None } => {}
        Command::Pnet(_)
        | Command::Ueid(_)
        | Command::Rules(_)
        | Command::Transparent(_)
        | Command::HandshakeLimit { .. } => {
            return Ok(Some(Action::Command(Box::new(cli.command))));
        }
        Command::Drain(ref args) if !args.list => {
            return Ok(Some(Action::Command(Box::new(cli.command))));
        }
        _ => {}
    }
    Err("this command changes nothing".into())
}

/// Does the command only remove what a module may not even have?
fn flushes(command: &Command) -> bool {
    matches!(command, Command::Rules(RulesCommand::Flush))
}

/// Whether there is already what the command adds, in all its parts. (The kernel refuses with the same error what
/// is only alike, such as another rule of the same number.)
fn is_there(command: &Command, source: &mut dyn Source) -> Result<bool, Failure> {
    Ok(match command {
        Command::Pnet(PnetCommand::Add(args)) => {
            let entries = PnetEntry::read_all(source)?;
            let id = args.id.trim().to_ascii_uppercase();
            let mut of_id = entries.iter().filter(|entry| entry.id == id);
            let interface = args.interface.as_ref();
            let device = args.device.as_ref();
            let port = Some(args.port.unwrap_or(1));
            // What is added with both may be shown as two.
            interface.is_none_or(|_| of_id.clone().any(|it| it.interface.as_ref() == interface))
                && device
                    .is_none_or(|_| of_id.any(|it| it.device.as_ref() == device && it.port == port))
        }
        Command::Ueid(UeidCommand::Add { eid }) => system::ueids(source)?.contains(eid),
        Command::Rules(RulesCommand::Add(args)) => {
            let mut wanted = args.rule()?;
            let any_number = wanted.number == 0;
            Rule::read_all(source)?.iter().any(|rule| {
                if any_number {
                    wanted.number = rule.number;
                }
                *rule == wanted
            })
        }
        _ => false,
    })
}

/// Whether it adds a rule without a number, of which the kernel takes any number.
fn adds_at_the_end(command: &Command) -> bool {
    matches!(command, Command::Rules(RulesCommand::Add(args)) if args.number.is_none())
}

fn carry_out(action: &Action, folder: &Path, source: &mut dyn Source) -> Result<(), String> {
    match action {
        Action::Sysctl(name, value) => {
            fs::write(folder.join(name), value).map_err(|error| format!("net.smc.{name}: {error}"))
        }
        Action::Command(command) => {
            if adds_at_the_end(command) && is_there(command, source).unwrap_or(false) {
                return Ok(());
            }
            // The numbers of rules are of no interest.
            let mut output = Output {
                writer: &mut std::io::sink(),
                width: None,
                color: false,
                json: false,
            };
            match super::run(command, source, &mut output) {
                // Somebody did it before, unless it is something else that is in the way.
                Err(Failure::Refused(Error::Kernel(sys::EEXIST, _), _))
                    if is_there(command, source).unwrap_or(false) =>
                {
                    Ok(())
                }
                // The kernel's own module has none: so there are none left.
                Err(Failure::Netlink(Error::NoFamily(OWN_FAMILY))) if flushes(command) => Ok(()),
                Err(failure) => Err(failure.to_string()),
                Ok(_) => Ok(()),
            }
        }
    }
}

/// Where settings of net.smc are.
const SETTINGS: &str = "/proc/sys/net/smc";

pub(super) fn run(
    args: &ApplyArgs,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<bool, Failure> {
    let shown = args.file.display();
    let text = fs::read_to_string(&args.file)
        .map_err(|error| Failure::Value(format!("{shown}: {error}")))?;
    let mut actions = Vec::new();
    let mut wrong = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        match parse(line) {
            Ok(None) => {}
            Ok(Some(action)) => actions.push((number, line.trim().to_string(), action)),
            Err(error) => wrong.push(format!("{shown}:{number}: {error}")),
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::Value(wrong.join("\n")));
    }
    let mut outcomes = Vec::new();
    for (line, words, action) in actions {
        let outcome = if args.dry_run {
            Ok(())
        } else {
            carry_out(&action, Path::new(SETTINGS), source)
        };
        let error = outcome.err();
        outcomes.push(Outcome { line, words, error });
    }
    let failed = outcomes.iter().filter(|outcome| outcome.error.is_some());
    let good = failed.clone().count() == 0;
    let lines: String = failed
        .filter_map(|outcome| {
            let error = outcome.error.as_ref()?;
            Some(format!(
                "{shown}:{}: {}: {error}\n",
                outcome.line, outcome.words
            ))
        })
        .collect();
    let count = outcomes.len();
    output.list("lines", &outcomes, |_| {
        if good {
            let done = if args.dry_run {
                "understood"
            } else {
                "applied"
            };
            format!("{shown}: {count} settings {done}\n")
        } else {
            lines
        }
    })?;
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Address, Interface, Message, Notice, Route};
    use std::net::IpAddr;
    use std::ops::ControlFlow;

    /// A kernel that has all families but one.
    struct Without(&'static str);

    impl Source for Without {
        fn dump(&mut self, _: &'static str, _: u8) -> Result<Vec<Message>, Error> {
            unreachable!()
        }
        fn execute(&mut self, family: &'static str, _: u8, _: &[u8]) -> Result<(), Error> {
            if family == self.0 {
                Err(Error::NoFamily(family))
            } else {
                Ok(())
            }
        }
        fn query(&mut self, _: &'static str, _: u8, _: &[u8]) -> Result<Vec<Message>, Error> {
            unreachable!()
        }
        fn sockets(&mut self, _: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
            unreachable!()
        }
        fn events(
            &mut self,
            _: &'static str,
            _: &'static str,
            _: &mut dyn FnMut(Notice) -> ControlFlow<()>,
        ) -> Result<(), Error> {
            unreachable!()
        }
        fn route(&mut self, _: IpAddr) -> Result<Route, Error> {
            unreachable!()
        }
        fn addresses(&mut self) -> Result<Vec<Address>, Error> {
            unreachable!()
        }
        fn interfaces(&mut self) -> Result<Vec<Interface>, Error> {
            unreachable!()
        }
    }

    fn works(line: &str, without: &'static str) -> bool {
        let action = parse(line).unwrap().unwrap();
        carry_out(&action, Path::new("/nonexistent"), &mut Without(without)).is_ok()
    }

    #[test]
    fn what_the_module_does_not_have_needs_no_removing() {
        assert!(works("rules flush", OWN_FAMILY));
        assert!(!works("rules remove 1", OWN_FAMILY));
        assert!(!works("drain -d rxe0", OWN_FAMILY));
        // Without these there is no module.
        assert!(!works("pnet flush", crate::uapi::PNET_FAMILY));
        assert!(!works("ueid flush", crate::uapi::GEN_FAMILY));
    }

    #[test]
    fn lines() {
        for nothing in ["", "   ", "# pnet flush", "  # x"] {
            assert!(
                parse(nothing).is_ok_and(|action| action.is_none()),
                "{nothing}"
            );
        }
        for good in [
            "pnet add NET1 -i eth0 # the first card",
            "pnet flush",
            "ueid add LAB-1",
            "rules add deny --port 80",
            "policy flush",
            "handshake-limit on",
            "transparent on",
            "transparent off --all",
            "drain -d rxe0",
            "sysctl rmem 65536",
            "sysctl net.smc.wmem 65536",
        ] {
            assert!(parse(good).is_ok_and(|action| action.is_some()), "{good}");
        }
        for bad in [
            "pnet list",
            "status",
            "handshake-limit",
            "transparent",
            "transparent status",
            "drain --list",
            "apply other",
            "nonsense",
            "pnet add NET1",
            "sysctl rmem",
            "sysctl ../ipv4/ip_forward 1",
            "sysctl net.ipv4.ip_forward 1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    /// By the names that the module has.
    #[test]
    fn all_settings_are_known() {
        let source = include_str!("../../../smc_r/netns.rs");
        let names = source.split("Knob::").skip(1).filter_map(|knob| {
            let (_, name) = knob.split_once("(c\"")?;
            name.split('"').next()
        });
        let names: Vec<_> = names.collect();
        assert!(names.len() >= 16 && names.contains(&"smcr_v1_gids"));
        for name in names {
            let line = format!("sysctl net.smc.{name} 1");
            assert!(parse(&line).is_ok_and(|action| action.is_some()), "{line}");
        }
    }

    #[test]
    fn the_example_is_understood() {
        let example = include_str!("../../systemd/smc-rs.conf.example");
        // What is commented out as well.
        for line in example.lines() {
            let line = line
                .strip_prefix('#')
                .filter(|rest| !rest.starts_with(' '))
                .unwrap_or(line);
            assert!(parse(line).is_ok(), "{line}");
        }
    }
}
