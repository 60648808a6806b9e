// SPDX-License-Identifier: GPL-2.0

//! `smcctl transparent`: the switch that makes TCP sockets of a network namespace SMC sockets.

use super::{Failure, Output};
use clap::{Args, Subcommand};
use serde::Serialize;
use smc_bpf::{Error, State, Switch};

/// What to do with the switch.
#[derive(Clone, Debug, Subcommand)]
pub enum TransparentCommand {
    /// Make SMC sockets of the TCP sockets that programs of this namespace create from now on
    On,
    /// Leave TCP sockets alone again; those that are SMC sockets stay so
    Off(OffArgs),
    /// Show whether it is on here, and in how many namespaces
    Status,
}

/// Where to turn it off.
#[derive(Clone, Debug, Args)]
pub struct OffArgs {
    /// In all network namespaces, also in those that are gone
    #[arg(short, long)]
    pub all: bool,
}

/// How the switch stands, for output.
#[derive(Debug, Serialize)]
struct Shown {
    transparent: bool,
    namespaces: usize,
}

impl From<State> for Shown {
    fn from(state: State) -> Self {
        Shown {
            transparent: state.on,
            namespaces: state.namespaces,
        }
    }
}

impl Shown {
    fn text(&self) -> String {
        let others = self
            .namespaces
            .saturating_sub(usize::from(self.transparent));
        let plural = if others == 1 { "" } else { "s" };
        match (self.transparent, others) {
            (true, 0) => "on\n".into(),
            (false, 0) => "off\n".into(),
            (true, _) => format!("on here and in {others} other network namespace{plural}\n"),
            (false, _) => format!("off here, on in {others} other network namespace{plural}\n"),
        }
    }
}

pub(super) fn run(command: &TransparentCommand, output: &mut Output<'_>) -> Result<(), Failure> {
    let space = smc_bpf::this_namespace().map_err(|error| {
        Error::Refused("the number of this network namespace", error, String::new())
    })?;
    match command {
        TransparentCommand::On => {
            // Without SMC no program could make a TCP socket any more.
            crate::sys::smc_over_ip().map_err(Failure::NoSmc)?;
            Switch::open()?.on(space)?;
        }
        TransparentCommand::Off(OffArgs { all }) => match Switch::find()? {
            None => {}
            Some(switch) if *all => switch.off_everywhere()?,
            Some(switch) => switch.off(space)?,
        },
        TransparentCommand::Status => {
            let switch = Switch::find()?;
            let state = switch.map_or(Ok(State::default()), |switch| switch.state(space))?;
            let shown = Shown::from(state);
            return output.print(&shown, Shown::text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_stands() {
        for (on, namespaces, want) in [
            (false, 0, "off\n"),
            (true, 1, "on\n"),
            (true, 2, "on here and in 1 other network namespace\n"),
            (false, 2, "off here, on in 2 other network namespaces\n"),
        ] {
            let shown = Shown::from(State { on, namespaces });
            assert_eq!(shown.text(), want);
            let json = serde_json::to_value(&shown).unwrap();
            let object = serde_json::json!({ "transparent": on, "namespaces": namespaces });
            assert_eq!(json, object);
        }
    }
}
