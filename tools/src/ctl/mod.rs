// SPDX-License-Identifier: GPL-2.0

//! `smcctl`: its options, and what its commands do.

mod apply;
mod check;
mod firewall;
mod iptables;
pub mod own;
pub mod selftest;
pub mod status;
pub mod steps;
pub mod table;
pub(crate) mod text;
pub mod transparent;
mod watch;
pub mod why;

use crate::model::device::Device;
use crate::model::group::{Group, Link};
use crate::model::own::Faults;
use crate::model::socket::SocketInfo;
use crate::model::system::{self, PnetEntry};
use crate::netlink::{Error, Source};
use crate::sys;
use crate::uapi::{command, pnet, Mode, State, GEN_FAMILY, OWN_FAMILY, PNET_FAMILY};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::fmt;
use std::io::{self, IsTerminal, Write};

pub use status::Status;

/// Exit status of failures without one of their own.
pub const EXIT_FAILURE: u8 = 1;
/// SMC is not loaded, or not the part that was asked.
pub const EXIT_NOT_LOADED: u8 = 3;
/// The caller is not allowed to do this.
pub const EXIT_NOT_PERMITTED: u8 = 4;

const AFTER_HELP: &str = "\
Exit status:
  0  success
  1  failure; for why, check and selftest: something is in the way of SMC
  2  wrong usage
  3  SMC, or its part for this command, is not loaded
  4  not permitted; changes need CAP_NET_ADMIN
130  interrupted by Ctrl-C; other signals: 128 and their number";

/// Show and set up SMC on this host.
///
/// Works with every implementation that has the kernel's netlink interface for
/// SMC; rules, drain and events need the module smc_r. What is shown belongs to
/// the network namespace of the caller, as far as the implementation tells
/// namespaces apart.
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
    /// Tell whether connections to a peer can use SMC, and if not, what to do
    ///
    /// Looks at everything on this host that decides about it, in the order in which a connection
    /// meets it. With --port, connects as well, and tells what became of that.
    Why(why::WhyArgs),
    /// Look for what keeps this host from using SMC
    Check,
    /// Make a connection over SMC inside this host, in network namespaces of its own
    ///
    /// Makes two namespaces, a pair of virtual cards and a software RDMA device (rdma_rxe) on each,
    /// moves data over SMC, compares it, and takes everything away. Needs root, `ip` and `rdma`.
    ///
    /// With --device, tests an RDMA device that the host has: a connection with itself, from a namespace of
    /// its own whose loopback interface is in the network of the device's port; a port without a pnet id
    /// gets one meanwhile. The card sends to itself what it sends (hardware loopback), and needs no cable to
    /// do so but where its port would not be active without.
    Selftest(selftest::SelftestArgs),
    /// Show peers: connections over SMC and over TCP, and why the latter
    ///
    /// Where SMC fails in a way that it is likely to do again, connections with the peer are plain TCP
    /// for a while, and longer after each further failure; see net.smc.smcr_peer_backoff. AVOIDED says
    /// for how long still.
    Peers(own::PeersArgs),
    /// Show link groups
    Groups,
    /// Show the links of the link groups
    Links,
    /// Show RDMA devices and their ports
    Devices,
    /// Show counters of handshakes, fallbacks and data
    Stats(watch::StatsArgs),
    /// Show how often peers broke the protocol, went away or could not be reached
    Faults,
    /// Show events as they happen: links, link groups, fallbacks to TCP
    Events(own::EventsArgs),
    /// Show sockets
    Sockets(SocketsArgs),
    /// Show or change the user-defined EIDs of this host, which SMC-Rv2 needs
    #[command(subcommand)]
    Ueid(UeidCommand),
    /// Show or change the table of pnet ids
    #[command(subcommand)]
    Pnet(PnetCommand),
    /// Show or change the rules about which connections may use SMC
    #[command(subcommand, visible_alias = "policy")]
    Rules(own::RulesCommand),
    /// Take a device, a link group or a link out of use without harm to its connections
    Drain(own::DrainArgs),
    /// Apply settings from a file, as at boot
    ///
    /// Each line is a command of smcctl that changes something (pnet, ueid, rules, drain,
    /// transparent, handshake-limit), or `sysctl NAME VALUE` for a setting of net.smc. All lines are read before
    /// the first is carried out. What exists already counts as done.
    Apply(apply::ApplyArgs),
    /// Make SMC sockets of all TCP sockets of a network namespace, without smc_run
    ///
    /// Turns on a small BPF program in the kernel, which stays until it is turned off or the host is
    /// booted. It concerns all programs in the network namespace of the caller, also those without a C
    /// library, and the sockets that they create with socket() from then on: a server that runs has to be
    /// started again. Sockets of the kernel and of io_uring stay as they are. Turn it off before SMC is
    /// unloaded for good: without it programs there could create no TCP sockets.
    #[command(subcommand)]
    Transparent(transparent::TransparentCommand),
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
    /// The kernel, with a next step that depends on what was asked.
    Refused(Error, &'static str),
    /// A value that the kernel would not take.
    Value(String),
    /// Only root can do this.
    NotRoot(&'static str),
    /// There are no SMC sockets.
    NoSmc(io::Error),
    /// The switch for TCP sockets.
    Switch(smc_bpf::Error),
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

impl From<smc_bpf::Error> for Failure {
    fn from(error: smc_bpf::Error) -> Self {
        Failure::Switch(error)
    }
}

impl Failure {
    /// What the kernel said, if it was the kernel.
    fn error(&self) -> Option<&Error> {
        match self {
            Failure::Netlink(error) | Failure::Refused(error, _) => Some(error),
            _ => None,
        }
    }

    /// The exit status for it.
    pub fn exit_code(&self) -> u8 {
        match (self, self.error()) {
            (_, Some(Error::NoFamily(_))) => EXIT_NOT_LOADED,
            (_, Some(Error::Kernel(sys::EPERM | sys::EACCES, _))) => EXIT_NOT_PERMITTED,
            (Failure::NotRoot(_) | Failure::Switch(smc_bpf::Error::NotPermitted(_)), _) => {
                EXIT_NOT_PERMITTED
            }
            (Failure::NoSmc(_), _) => EXIT_NOT_LOADED,
            (Failure::Value(_), _) => 2,
            _ => EXIT_FAILURE,
        }
    }

    /// Whether the reader of the output has gone away, which is no failure.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    fn hint(&self) -> Option<&'static str> {
        match self.error() {
            Some(Error::NoFamily(GEN_FAMILY | PNET_FAMILY)) => return Some(sys::NO_SMC_HINT),
            Some(Error::NoFamily(OWN_FAMILY)) => {
                return Some(
                    "this needs the module smc_r (`modprobe smc_r`); the kernel's own \
                     module smc does not have it",
                )
            }
            Some(Error::NoFamily(_)) => return Some("load the module with `modprobe smc_diag`"),
            Some(Error::Kernel(sys::EPERM | sys::EACCES, _)) => {
                return Some("this needs CAP_NET_ADMIN; run it as root");
            }
            Some(Error::Kernel(sys::EOPNOTSUPP, _)) => {
                return Some("the module that is loaded does not have this; see `smcctl status`");
            }
            _ => {}
        }
        match self {
            Failure::Refused(_, hint) => Some(hint),
            Failure::NoSmc(_) => Some(sys::NO_SMC_HINT),
            Failure::Switch(error) => Some(error.hint()),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Netlink(error) | Failure::Refused(error, _) => write!(f, "{error}")?,
            Failure::Value(message) => write!(f, "{message}")?,
            Failure::NotRoot(why) => write!(f, "not permitted: {why}\nhint: run it as root")?,
            Failure::NoSmc(error) => write!(f, "no SMC socket can be created: {error}")?,
            Failure::Switch(error) => write!(f, "{error}")?,
            Failure::Output(error) => write!(f, "output: {error}")?,
        }
        self.hint()
            .into_iter()
            .try_for_each(|hint| write!(f, "\nhint: {hint}"))
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
    /// Use colours.
    pub color: bool,
    /// Print JSON.
    pub json: bool,
}

impl Output<'_> {
    /// Prints a line at once: JSON without line breaks in it, or text.
    fn line<T: Serialize + fmt::Display>(&mut self, value: &T) -> Result<(), Failure> {
        if self.json {
            serde_json::to_writer(&mut self.writer, value).map_err(io::Error::from)?;
            self.writer.write_all(b"\n")?;
        } else {
            writeln!(self.writer, "{value}")?;
        }
        Ok(self.writer.flush()?)
    }

    /// Prints a report; tells whether it is good.
    fn report(&mut self, report: &steps::Report) -> Result<bool, Failure> {
        let (width, color) = (self.width, self.color);
        self.print(report, |report| report.text(width, color))?;
        Ok(report.good)
    }

    pub(crate) fn print<T: Serialize>(
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
    pub(crate) fn list<T: Serialize>(
        &mut self,
        name: &'static str,
        items: &[T],
        text: impl FnOnce(&[T]) -> String,
    ) -> Result<(), Failure> {
        let object = std::collections::BTreeMap::from([(name, items)]);
        self.print(&object, |_| text(items))
    }
}

/// Carries out a command. Gives false if it found something wrong with the host, and said so.
pub fn run(
    command: &Command,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<bool, Failure> {
    match command {
        Command::Why(args) => return why::run(args, source, output),
        Command::Apply(args) => return apply::run(args, source, output),
        Command::Check => return check::run(source, output),
        Command::Selftest(args) => return selftest::run(args, source, output),
        Command::Rules(command) => own::run_rules(command, source, output),
        Command::Drain(args) => own::run_drain(args, source, output),
        Command::Peers(args) => own::run_peers(args, source, output),
        Command::Events(args) => own::run_events(args, source, output),
        Command::Stats(args) => watch::run(args, source, output),
        Command::Ueid(command) => run_ueid(command, source, output),
        Command::Pnet(command) => run_pnet(command, source, output),
        Command::Transparent(command) => transparent::run(command, output),
        Command::HandshakeLimit { value } => run_limit(*value, source, output),
        _ => show(command, source, output),
    }?;
    Ok(true)
}

/// The commands that only show something.
fn show(
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
        Command::Faults => {
            let faults = Faults::read(source)?;
            output.print(&faults, text::faults)
        }
        Command::Groups => {
            let groups = Group::read_all(source)?;
            output.list("groups", &groups, |groups| text::groups(groups, width))
        }
        Command::Links => {
            let links = read_links(source)?;
            output.list("links", &links, |links| text::links(links, width))
        }
        Command::Devices => {
            let devices = read_devices(source)?;
            output.list("devices", &devices, |devices| text::devices(devices, width))
        }
        Command::Sockets(args) => {
            let mut sockets = SocketInfo::read_all(source)?;
            sockets.retain(|socket| args.wants(socket));
            output.list("sockets", &sockets, |sockets| {
                text::sockets(sockets, args.extended, width)
            })
        }
        _ => Ok(()),
    }
}

/// The links, with the names of their interfaces.
pub(crate) fn read_links(source: &mut dyn Source) -> Result<Vec<Link>, Error> {
    let mut links = Link::read_all(source)?;
    for link in &mut links {
        link.interface = sys::interface(link.ifindex);
    }
    Ok(links)
}

/// The devices, with the names of their interfaces.
pub(crate) fn read_devices(source: &mut dyn Source) -> Result<Vec<Device>, Error> {
    let mut devices = Device::read_all(source)?;
    for port in devices.iter_mut().flat_map(|device| &mut device.ports) {
        port.interface = sys::interface(port.ifindex);
    }
    Ok(devices)
}

fn run_limit(
    value: Option<Switch>,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
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
    source
        .execute(GEN_FAMILY, number, &attributes.map_err(Failure::Value)?)
        .map_err(|error| Failure::Refused(error, "see `smcctl ueid list`; there is room for four"))
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
    source
        .execute(PNET_FAMILY, number, &attributes)
        .map_err(|error| Failure::Refused(error, "see `smcctl pnet list`"))
}

/// The output to standard output: as wide as the terminal, and in colours if it is one.
pub fn output<'a>(stdout: &'a mut io::StdoutLock<'static>, json: bool) -> Output<'a> {
    let size = rustix::termios::tcgetwinsize(&*stdout).ok();
    let terminal = size.map(|size| size.ws_col).filter(|columns| *columns > 0);
    Output {
        width: output_width(terminal),
        color: wants_color(stdout.is_terminal()),
        json,
        writer: stdout,
    }
}

/// Colours are for terminals that have them, and for people who did not refuse them.
fn wants_color(terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Columns to fill: what `COLUMNS` says, or the terminal, or no limit.
pub fn output_width(terminal: Option<u16>) -> Option<u16> {
    let wanted = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    wanted.filter(|width| *width > 0).or(terminal)
}
