// SPDX-License-Identifier: GPL-2.0

//! `smc_pnet`: shows and changes the table of pnet ids.

use crate::ctl::{Failure, Output};
use crate::model::system::PnetEntry;
use crate::netlink::Source;
use crate::uapi::{pnet, PNET_FAMILY};
use clap::Parser;
use std::io::{self, Write};

const AFTER_HELP: &str = "\
Without an option, all entries are shown. A line of an entry has the id, the
network interface, the RDMA device and its port; n/a and 255 stand for what an
entry does not have.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 SMC is not loaded,
4 not permitted";

/// Show and change the table of pnet ids, the names of physical networks.
///
/// A connection over a network interface can use the RDMA ports that have the
/// same pnet id.
#[derive(Clone, Debug, Parser)]
#[command(name = "smc_pnet", version, after_help = AFTER_HELP, disable_version_flag = true)]
#[command(group(clap::ArgGroup::new("action")))]
#[command(group(clap::ArgGroup::new("what").multiple(true)))]
pub struct Cli {
    /// Print version
    #[arg(short = 'v', short_alias = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Add an entry; at least one of -I and -D is needed
    #[arg(
        short,
        long,
        value_name = "PNETID",
        group = "action",
        requires = "what"
    )]
    pub add: Option<Option<String>>,
    /// Delete all entries of an id
    #[arg(short, long, value_name = "PNETID", group = "action")]
    pub delete: Option<Option<String>>,
    /// Show the entries of an id, or all
    #[arg(short, long, value_name = "PNETID", group = "action")]
    pub show: Option<Option<String>>,
    /// Delete all entries
    #[arg(short, long, group = "action")]
    pub flush: bool,
    /// Network interface of the entry
    #[arg(short = 'I', long, value_name = "NAME", group = "what")]
    pub interface: Option<String>,
    /// RDMA device of the entry
    #[arg(short = 'D', long, value_name = "NAME", group = "what")]
    pub ibdevice: Option<String>,
    /// Port of the RDMA device, by default (or 0) 1
    #[arg(short = 'P', long, value_name = "PORT",
          value_parser = clap::value_parser!(u8).range(0..=2))]
    pub ibport: Option<u8>,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// The id, which may stand anywhere
    #[arg(value_name = "PNETID", requires = "action", conflicts_with = "flush")]
    pub id: Option<String>,
}

impl Cli {
    /// The id, behind the option or by itself.
    fn id<'a>(&'a self, option: &'a Option<String>) -> Result<Option<&'a str>, Failure> {
        match (option, &self.id) {
            (Some(_), Some(other)) => Err(Failure::Value(format!("{other}: one id too many"))),
            (one, other) => Ok(one.as_deref().or(other.as_deref())),
        }
    }

    fn need_id<'a>(&'a self, option: &'a Option<String>) -> Result<&'a str, Failure> {
        let id = self.id(option)?;
        id.ok_or_else(|| Failure::Value("an id is needed".into()))
    }

    /// What was said and means nothing for entries that are not added.
    fn say_what_is_ignored(&self) {
        let port = self.ibport.map(|port| port.to_string());
        for (what, value) in [
            ("interface", &self.interface),
            ("device", &self.ibdevice),
            ("port", &port),
        ] {
            if let Some(value) = value {
                let _ = writeln!(io::stderr(), "smc_pnet: {what} {value} is ignored");
            }
        }
    }
}

fn entry_line(entry: &PnetEntry) -> String {
    let none = || "n/a".to_string();
    let port = match entry.device {
        Some(_) => entry.port.unwrap_or(1),
        None => 255,
    };
    format!(
        "{} {} {} {port}\n",
        entry.id,
        entry.interface.clone().unwrap_or_else(none),
        entry.device.clone().unwrap_or_else(none),
    )
}

/// Carries out what the options say.
pub fn run(cli: &Cli, source: &mut dyn Source, output: &mut Output<'_>) -> Result<(), Failure> {
    let named = |id: &str| PnetEntry {
        id: id.to_string(),
        ..PnetEntry::default()
    };
    let (command, attributes) = if let Some(id) = &cli.add {
        let entry = PnetEntry {
            interface: cli.interface.clone(),
            device: cli.ibdevice.clone(),
            port: cli.ibport.map(|port| port.max(1)),
            ..named(cli.need_id(id)?)
        };
        (pnet::ADD, entry.attributes())
    } else if let Some(id) = &cli.delete {
        let id = cli.need_id(id)?;
        cli.say_what_is_ignored();
        (pnet::DEL, named(id).attributes())
    } else if cli.flush {
        (pnet::FLUSH, Vec::new())
    } else {
        let id = cli.id(cli.show.as_ref().unwrap_or(&None))?;
        cli.say_what_is_ignored();
        let entries = match id {
            Some(id) => PnetEntry::read(source, id)?,
            None => PnetEntry::read_all(source)?,
        };
        return output.list("pnet_ids", &entries, |entries| {
            entries.iter().map(entry_line).collect()
        });
    };
    source
        .execute(PNET_FAMILY, command, &attributes)
        .map_err(|error| Failure::Refused(error, "see `smc_pnet` for what there is"))
}
