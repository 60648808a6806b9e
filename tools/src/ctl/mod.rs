// SPDX-License-Identifier: GPL-2.0

//! `smcctl`: its options, and what its commands do.

pub mod table;
mod text;

use crate::model::device::Device;
use crate::model::group::{Group, Link};
use crate::model::socket::SocketInfo;
use crate::model::stats::Stats;
use crate::model::system::{self, PnetEntry, SystemInfo};
use crate::netlink::{Error, Source};
use crate::sys;
use crate::uapi::{command, pnet, Mode, State, GEN_FAMILY, PNET_FAMILY};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// Exit status of failures without one of their own.
pub const EXIT_FAILURE: u8 = 1;
/// SMC is not loaded, or not the part that was asked.
pub const EXIT_NOT_LOADED: u8 = 3;
/// The caller is not allowed to do this.
pub const EXIT_NOT_PERMITTED: u8 = 4;

const AFTER_HELP: &str = "\
Exit status:
  0  success
  1  failure
  2  wrong usage
  3  SMC, or its part for this command, is not loaded
  4  not permitted; changes need CAP_NET_ADMIN";

/// Show and set up SMC on this host.
///
/// Works with every implementation that has the kernel's netlink interface for
/// SMC. What is shown belongs to the network namespace of the caller, as far as
/// the implementation tells namespaces apart.
#[derive(Clone, Debug, Parser)]
#[command(name = "smcctl", version, after_help = AFTER_HELP, arg_required_else_help = true)]
pub struct Cli {
    /// Print JSON
    #[arg(short, long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to show or to change.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show a summary
    Status,
    /// Show link groups
    Groups,
    /// Show the links of the link groups
    Links,
    /// Show RDMA devices and their ports
    Devices,
    /// Show counters of handshakes, fallbacks and data
    Stats,
    /// Show sockets
    Sockets(SocketsArgs),
    /// Show or change the user-defined EIDs of this host, which SMC-Rv2 needs
    #[command(subcommand)]
    Ueid(UeidCommand),
    /// Show or change the table of pnet ids
    #[command(subcommand)]
    Pnet(PnetCommand),
    /// Show or set whether handshakes are limited under congestion
    HandshakeLimit {
        /// Set it; without this, show it
        value: Option<Switch>,
    },
}

/// Which sockets to show.
#[derive(Clone, Debug, Default, Args)]
pub struct SocketsArgs {
    /// Only listening sockets
    #[arg(short, long)]
    pub listening: bool,
    /// Only sockets that are connected or about to be closed
    #[arg(short, long, conflicts_with = "listening")]
    pub connected: bool,
    /// Only sockets of this mode
    #[arg(short, long, value_enum)]
    pub mode: Option<ModeFilter>,
    /// Show user, inode, buffers and links too
    #[arg(short, long)]
    pub extended: bool,
}

/// Modes to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeFilter {
    /// SMC-R
    Smcr,
    /// Fallback to TCP
    Tcp,
    /// SMC-D
    Smcd,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Limit them
    On,
    /// Do not limit them
    Off,
}

/// What to do with EIDs.
#[derive(Clone, Debug, Subcommand)]
pub enum UeidCommand {
    /// Show them
    List,
    /// Add one
    Add {
        /// Upper-case letters, digits, dot and hyphen, at most 32 characters
        eid: String,
    },
    /// Remove one
    Remove {
        /// The EID
        eid: String,
    },
    /// Remove all
    Flush,
}

/// What to do with pnet ids.
#[derive(Clone, Debug, Subcommand)]
pub enum PnetCommand {
    /// Show the table
    List,
    /// Give an id to an interface, a device port, or both
    Add(PnetAddArgs),
    /// Remove all entries of an id
    Remove {
        /// The id
        id: String,
    },
    /// Remove all entries
    Flush,
}

/// An entry to add.
#[derive(Clone, Debug, Args)]
pub struct PnetAddArgs {
    /// Letters and digits, at most 16
    pub id: String,
    /// Network interface
    #[arg(short, long, required_unless_present = "device")]
    pub interface: Option<String>,
    /// RDMA device
    #[arg(short, long)]
    pub device: Option<String>,
    /// Port of the device
    #[arg(short, long, requires = "device", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub port: Option<u8>,
}

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The kernel, or the way to it.
    Netlink(Error),
    /// A value that the kernel would not take.
    Value(String),
    /// The output cannot be written.
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Netlink(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

impl Failure {
    /// The exit status for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Netlink(Error::NoFamily(_)) => EXIT_NOT_LOADED,
            Failure::Netlink(Error::Kernel(sys::EPERM | sys::EACCES, _)) => EXIT_NOT_PERMITTED,
            Failure::Value(_) => 2,
            _ => EXIT_FAILURE,
        }
    }

    /// Whether the reader of the output has gone away, which is no failure.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Failure::Netlink(Error::NoFamily(GEN_FAMILY | PNET_FAMILY)) => Some(sys::NO_SMC_HINT),
            Failure::Netlink(Error::NoFamily(_)) => {
                Some("hint: load the module with `modprobe smc_diag`")
            }
            Failure::Netlink(Error::Kernel(sys::EPERM | sys::EACCES, _)) => {
                Some("hint: this needs CAP_NET_ADMIN; run it as root")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Netlink(error) => write!(f, "{error}")?,
            Failure::Value(message) => write!(f, "{message}")?,
            Failure::Output(error) => write!(f, "output: {error}")?,
        }
        self.hint()
            .into_iter()
            .try_for_each(|hint| write!(f, "\n{hint}"))
    }
}

/// The host in short.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// Module that is loaded.
    pub module: Option<&'static str>,
    /// What it is capable of.
    pub system: SystemInfo,
    /// User-defined EIDs.
    pub ueids: Vec<String>,
    /// Handshakes are limited under congestion.
    pub handshake_limit: Option<bool>,
    /// RDMA devices.
    pub devices: usize,
    /// Ports that can be used.
    pub active_ports: usize,
    /// Link groups.
    pub groups: usize,
    /// Links.
    pub links: usize,
    /// Links that can be used.
    pub active_links: usize,
    /// Connections over SMC-R.
    pub connections: u64,
    /// Handshakes that succeeded so far.
    pub handshakes: u64,
    /// Handshakes that failed so far.
    pub handshake_errors: u64,
    /// Connections that fell back to TCP so far.
    pub fallbacks: u64,
}

/// Takes the refusal of a command that an implementation does not have for the lack of an answer.
fn if_supported<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::Kernel(errno, _)) if errno == sys::EOPNOTSUPP => Ok(None),
        other => other.map(Some),
    }
}

impl Status {
    fn read(source: &mut dyn Source) -> Result<Self, Error> {
        let system = SystemInfo::read(source)?;
        let devices = Device::read_all(source)?;
        let ports = devices.iter().flat_map(|device| &device.ports);
        let groups = Group::read_all(source)?;
        let links = Link::read_all(source)?;
        let stats = Stats::read(source)?;
        Ok(Self {
            module: sys::module(),
            system,
            ueids: if_supported(system::ueids(source))?.unwrap_or_default(),
            handshake_limit: if_supported(system::handshake_limit(source))?.flatten(),
            devices: devices.len(),
            active_ports: ports.filter(|port| port.active).count(),
            groups: groups.len(),
            links: links.len(),
            active_links: links.iter().filter(|link| link.state.0 == 3).count(),
            connections: groups
                .iter()
                .map(|group| u64::from(group.connections))
                .sum(),
            handshakes: stats.smcr.handshakes(),
            handshake_errors: stats
                .client_handshake_errors
                .saturating_add(stats.server_handshake_errors),
            fallbacks: stats
                .fallbacks
                .client
                .saturating_add(stats.fallbacks.server),
        })
    }
}

impl SocketsArgs {
    fn wants(&self, socket: &SocketInfo) -> bool {
        let mode = match self.mode {
            None => true,
            Some(ModeFilter::Smcr) => socket.mode == Mode(0),
            Some(ModeFilter::Tcp) => socket.mode == Mode(1),
            Some(ModeFilter::Smcd) => socket.mode == Mode(2),
        };
        let listening = socket.state == State(10);
        let idle = listening || socket.state == State(2) || socket.state == State(7);
        mode && (!self.listening || listening) && (!self.connected || !idle)
    }
}

/// Where output goes.
pub struct Output<'a> {
    /// The stream.
    pub writer: &'a mut dyn Write,
    /// Columns of the terminal, if it is one.
    pub width: Option<u16>,
    /// Print JSON.
    pub json: bool,
}

impl Output<'_> {
    fn print<T: Serialize>(
        &mut self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            serde_json::to_writer_pretty(&mut self.writer, value).map_err(io::Error::from)?;
            self.writer.write_all(b"\n")?;
        } else {
            self.writer.write_all(text(value).as_bytes())?;
        }
        Ok(self.writer.flush()?)
    }

    /// Like `print`, for a list, which JSON shows as an object with one member.
    fn list<T: Serialize>(
        &mut self,
        name: &'static str,
        items: &[T],
        text: impl FnOnce(&[T]) -> String,
    ) -> Result<(), Failure> {
        let object = std::collections::BTreeMap::from([(name, items)]);
        self.print(&object, |_| text(items))
    }
}

/// Carries out a command.
pub fn run(
    command: &Command,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let width = output.width;
    match command {
        Command::Status => {
            let status = Status::read(source)?;
            output.print(&status, text::status)
        }
        Command::Groups => {
            let groups = Group::read_all(source)?;
            output.list("groups", &groups, |groups| text::groups(groups, width))
        }
        Command::Links => {
            let mut links = Link::read_all(source)?;
            links
                .iter_mut()
                .for_each(|link| link.interface = sys::interface(link.ifindex));
            output.list("links", &links, |links| text::links(links, width))
        }
        Command::Devices => {
            let mut devices = Device::read_all(source)?;
            for port in devices.iter_mut().flat_map(|device| &mut device.ports) {
                port.interface = sys::interface(port.ifindex);
            }
            output.list("devices", &devices, |devices| text::devices(devices, width))
        }
        Command::Stats => {
            let stats = Stats::read(source)?;
            output.print(&stats, |stats| text::stats(stats, width))
        }
        Command::Sockets(args) => {
            let mut sockets = SocketInfo::read_all(source)?;
            sockets.retain(|socket| args.wants(socket));
            output.list("sockets", &sockets, |sockets| {
                text::sockets(sockets, args.extended, width)
            })
        }
        Command::Ueid(command) => run_ueid(command, source, output),
        Command::Pnet(command) => run_pnet(command, source, output),
        Command::HandshakeLimit { value } => {
            let command = match value {
                None => {
                    let limit = system::handshake_limit(source)?;
                    let object = std::collections::BTreeMap::from([("handshake_limit", limit)]);
                    return output.print(&object, |_| format!("{}\n", text::switch(limit)));
                }
                Some(Switch::On) => command::ENABLE_HS_LIMITATION,
                Some(Switch::Off) => command::DISABLE_HS_LIMITATION,
            };
            Ok(source.execute(GEN_FAMILY, command, &[])?)
        }
    }
}

fn run_ueid(
    command: &UeidCommand,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let (number, attributes) = match command {
        UeidCommand::List => {
            let ids = system::ueids(source)?;
            return output.list("ueids", &ids, |ids| {
                ids.iter().map(|id| format!("{id}\n")).collect()
            });
        }
        UeidCommand::Add { eid } => (command::ADD_UEID, system::eid_attribute(eid)),
        UeidCommand::Remove { eid } => (command::REMOVE_UEID, system::eid_attribute(eid)),
        UeidCommand::Flush => (command::FLUSH_UEID, Ok(Vec::new())),
    };
    Ok(source.execute(GEN_FAMILY, number, &attributes.map_err(Failure::Value)?)?)
}

fn run_pnet(
    command: &PnetCommand,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let width = output.width;
    let entry = |id: &str| PnetEntry {
        id: id.to_string(),
        ..PnetEntry::default()
    };
    let (number, attributes) = match command {
        PnetCommand::List => {
            let entries = PnetEntry::read_all(source)?;
            return output.list("pnet_ids", &entries, |entries| text::pnet(entries, width));
        }
        PnetCommand::Add(args) => {
            let entry = PnetEntry {
                interface: args.interface.clone(),
                device: args.device.clone(),
                port: args.port,
                ..entry(&args.id)
            };
            (pnet::ADD, entry.attributes())
        }
        PnetCommand::Remove { id } => (pnet::DEL, entry(id).attributes()),
        PnetCommand::Flush => (pnet::FLUSH, Vec::new()),
    };
    Ok(source.execute(PNET_FAMILY, number, &attributes)?)
}

/// Columns to fill: what `COLUMNS` says, or the terminal, or no limit.
pub fn output_width(terminal: Option<u16>) -> Option<u16> {
    let wanted = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    wanted.filter(|width| *width > 0).or(terminal)
}
