// SPDX-License-Identifier: GPL-2.0

//! Commands for what only the module smc_r has: rules, peers, draining, events.

use super::{text, Failure, Output};
use crate::model::own::{
    DrainTarget, Drained, Event, FailedPeer, PeerFallback, Ports, Prefix, Rule,
};
use crate::model::socket::SocketInfo;
use crate::netlink::{push_attribute, Error, Notice, Source};
use crate::uapi::own::{self, attr};
use crate::uapi::{Mode, Side, State, OWN_EVENTS, OWN_FAMILY};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

/// What to do with rules.
#[derive(Clone, Debug, Subcommand)]
pub enum RulesCommand {
    /// Show them, in the order in which they are tried
    List,
    /// Add one; prints its number
    Add(RuleArgs),
    /// Remove one
    Remove {
        /// Its number
        number: u32,
    },
    /// Remove all
    Flush,
}

/// Whether a rule allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Action {
    /// Connections may use SMC
    Allow,
    /// Connections have to be plain TCP
    Deny,
}

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SideArg {
    /// Programs of this host connect
    Client,
    /// Programs of this host accept
    Server,
}

/// A rule to add. It fits connections that fit all that is given.
#[derive(Clone, Debug, Args)]
pub struct RuleArgs {
    /// What it says
    #[arg(value_enum)]
    pub action: Action,
    /// Place among the others; without this, behind them
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    pub number: Option<u32>,
    /// Address of the peer, or ADDRESS/LENGTH
    #[arg(short, long, value_name = "PREFIX")]
    pub peer: Option<Prefix>,
    /// Port of the service, or FIRST-LAST
    #[arg(long, value_name = "PORTS")]
    pub port: Option<Ports>,
    /// Only if this host is on this side
    #[arg(short, long, value_enum)]
    pub side: Option<SideArg>,
    /// Control group of the program, as folder of the cgroup2 file system or as number
    #[arg(short, long, value_name = "FOLDER")]
    pub cgroup: Option<String>,
}

/// What to drain.
#[derive(Clone, Debug, Args)]
#[command(group(clap::ArgGroup::new("target").required(true)))]
pub struct DrainArgs {
    /// Show what is drained
    #[arg(long, group = "target")]
    pub list: bool,
    /// RDMA device
    #[arg(short, long, group = "target")]
    pub device: Option<String>,
    /// Only this port of the device
    #[arg(short, long, requires = "device")]
    pub port: Option<u8>,
    /// Link group, as `smcctl groups` shows it
    #[arg(short, long, group = "target", value_parser = parse_group)]
    pub group: Option<u32>,
    /// Only this link of the group, which cannot be undone
    #[arg(short, long, requires = "group", conflicts_with = "undo")]
    pub link: Option<u8>,
    /// Take it back into use
    #[arg(short, long, conflicts_with = "list")]
    pub undo: bool,
}

/// Whether to show peers.
#[derive(Clone, Debug, Default, Args)]
pub struct PeersArgs {
    /// Forget with whom SMC failed a short time ago: the next connections try it again
    #[arg(short, long)]
    pub flush: bool,
}

/// Which events to show.
#[derive(Clone, Debug, Default, Args)]
pub struct EventsArgs {
    /// End after so many
    #[arg(short, long, value_name = "NUMBER")]
    pub count: Option<u64>,
}

fn parse_group(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| "expected a hexadecimal number".into())
}

/// The kind of the file system, as `statfs()` tells it.
const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;

fn cgroup(text: &str) -> Result<u64, Failure> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let wrong = |why: &dyn fmt::Display| Failure::Value(format!("control group {text}: {why}"));
    let data = std::fs::metadata(text).map_err(|error| wrong(&error))?;
    let system = rustix::fs::statfs(text).map_err(|error| wrong(&error))?;
    // Numbers of other folders mean nothing, or another group.
    if !data.is_dir() || system.f_type != CGROUP2_MAGIC {
        return Err(wrong(&"no folder of the cgroup2 file system"));
    }
    Ok(data.ino())
}

impl RuleArgs {
    pub(super) fn rule(&self) -> Result<Rule, Failure> {
        Ok(Rule {
            number: self.number.unwrap_or_default(),
            allow: self.action == Action::Allow,
            side: Side(match self.side {
                None => 0,
                Some(SideArg::Client) => 1,
                Some(SideArg::Server) => 2,
            }),
            peer: self.peer,
            ports: self.port,
            cgroup: self.cgroup.as_deref().map(cgroup).transpose()?,
        })
    }
}

pub(super) fn run_rules(
    command: &RulesCommand,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let width = output.width;
    match command {
        RulesCommand::List => {
            let rules = Rule::read_all(source)?;
            output.list("rules", &rules, |rules| text::rules(rules, width))
        }
        RulesCommand::Add(args) => {
            let number = args
                .rule()?
                .add(source)
                .map_err(|error| Failure::Refused(error, "see `smcctl rules list`"))?;
            let object = BTreeMap::from([("rule", number)]);
            output.print(&object, |_| format!("{number}\n"))
        }
        RulesCommand::Remove { number } => {
            let mut attributes = Vec::new();
            push_attribute(&mut attributes, attr::RULE, &number.to_ne_bytes());
            source
                .execute(OWN_FAMILY, own::RULE_DELETE, &attributes)
                .map_err(|error| Failure::Refused(error, "see `smcctl rules list`"))
        }
        RulesCommand::Flush => Ok(source.execute(OWN_FAMILY, own::RULE_FLUSH, &[])?),
    }
}

pub(super) fn run_drain(
    args: &DrainArgs,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let width = output.width;
    let target = match (&args.device, args.group) {
        (Some(device), _) => DrainTarget::Device(device.clone(), args.port),
        (None, Some(group)) => DrainTarget::Group(group, args.link),
        (None, None) => {
            let drained = Drained::read_all(source)?;
            return output.list("drained", &drained, |items| text::drained(items, width));
        }
    };
    source
        .execute(OWN_FAMILY, own::DRAIN, &target.attributes(args.undo))
        .map_err(|error| Failure::Refused(error, "see `smcctl devices` and `smcctl links`"))
}

pub(super) fn run_peers(
    args: &PeersArgs,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    if args.flush {
        return Ok(source.execute(OWN_FAMILY, own::PEER_FLUSH, &[])?);
    }
    let width = output.width;
    let peers = Peer::read_all(source)?;
    output.list("peers", &peers, |peers| text::peers(peers, width))
}

pub(super) fn run_events(
    args: &EventsArgs,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let mut left = args.count;
    let mut outcome = Ok(());
    if left == Some(0) {
        return outcome;
    }
    source.events(OWN_FAMILY, OWN_EVENTS, &mut |notice| {
        let event = match &notice {
            Notice::Lost => Ok(Some(Event::Lost)),
            Notice::Unloaded => Ok(Some(Event::Unloaded)),
            Notice::Message(message) => Event::decode(message),
        };
        outcome = match event {
            Err(error) => Err(Failure::from(Error::from(error))),
            // Of a later module.
            Ok(None) => return ControlFlow::Continue(()),
            Ok(Some(event)) => output.line(&event),
        };
        left = left.map(|left| left - 1);
        if outcome.is_err() || left == Some(0) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    outcome
}

/// What there is with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Connections over SMC-R.
    pub smcr: u64,
    /// Connections over SMC-D.
    pub smcd: u64,
    /// Connections of SMC sockets over TCP.
    pub tcp: u64,
    /// What the module remembers of connections that became TCP.
    pub fallbacks: Vec<PeerFallback>,
    /// What it remembers of failures that make it leave the peer alone for a while.
    pub failures: Vec<FailedPeer>,
}

impl Peer {
    /// Puts together what is connected and what fell back.
    pub fn collect(
        sockets: &[SocketInfo],
        fallbacks: &[PeerFallback],
        failures: &[FailedPeer],
    ) -> Vec<Self> {
        let mut peers = BTreeMap::new();
        let mut peer = |address: IpAddr, change: &mut dyn FnMut(&mut Self)| {
            let address = address.to_canonical();
            change(peers.entry(address).or_insert(Self {
                address,
                smcr: 0,
                smcd: 0,
                tcp: 0,
                fallbacks: Vec::new(),
                failures: Vec::new(),
            }));
        };
        let idle = [State(2), State(7), State(10)];
        for socket in sockets
            .iter()
            .filter(|socket| !idle.contains(&socket.state))
        {
            peer(socket.peer.ip(), &mut |peer| match socket.mode {
                Mode(0) => peer.smcr += 1,
                Mode(2) => peer.smcd += 1,
                _ => peer.tcp += 1,
            });
        }
        for fallback in fallbacks {
            peer(fallback.address, &mut |peer| {
                peer.fallbacks.push(fallback.clone());
            });
        }
        for failure in failures {
            peer(failure.address, &mut |peer| {
                peer.failures.push(failure.clone());
            });
        }
        peers.into_values().collect()
    }

    /// Asks the kernel. Either part may be missing, but not both.
    pub fn read_all(source: &mut dyn Source) -> Result<Vec<Self>, Error> {
        let fallbacks = PeerFallback::read_all(source);
        let sockets = SocketInfo::read_all(source);
        // Other modules, and older ones, do not have it.
        let failures = match super::status::if_supported(FailedPeer::read_all(source)) {
            Err(Error::NoFamily(_)) => None,
            failures => failures?,
        };
        match (sockets, fallbacks) {
            (Err(error), Err(_)) => Err(error),
            (Err(error), _) | (_, Err(error)) if !matches!(error, Error::NoFamily(_)) => Err(error),
            (sockets, fallbacks) => Ok(Self::collect(
                &sockets.unwrap_or_default(),
                &fallbacks.unwrap_or_default(),
                &failures.unwrap_or_default(),
            )),
        }
    }
}
