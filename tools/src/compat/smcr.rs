// SPDX-License-Identifier: GPL-2.0

//! `smcr`: shows what there is of SMC-R, and sets EIDs.

use crate::ctl::{self, table, text, Failure, Output};
use crate::model::device::{Device, Port};
use crate::model::group::{Group, Link};
use crate::model::stats::Stats;
use crate::model::system::SystemInfo;
use crate::netlink::Source;
use crate::uapi::{GroupType, LinkState, Role};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

const AFTER_HELP: &str = "\
Commands may be shortened, and `show` left out. Options in front may have one
dash, as in -details. Exit status: 0 success, 1 failure, 2 wrong usage,
3 SMC is not loaded, 4 not permitted";

/// Show link groups, links, devices and counters of SMC-R, and set EIDs.
#[derive(Clone, Debug, Parser)]
#[command(name = "smcr", version, after_help = AFTER_HELP, disable_version_flag = true)]
#[command(infer_subcommands = true, arg_required_else_help = true)]
pub struct Cli {
    /// Print version
    #[arg(short = 'v', short_alias = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Show more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub details: u8,
    /// Accepted for the sake of scripts: counters are always those since the start
    #[arg(short, long, global = true)]
    pub absolute: bool,
    /// Print JSON
    #[arg(short, long, global = true)]
    pub json: bool,
    /// What to show.
    #[command(subcommand)]
    pub object: Object,
}

/// The words of a command line as clap knows them: long options have two dashes, also such as are in front with
/// one, and be it by their first letters; and `help` among the last words asks for it, too.
pub fn arguments(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut object = false;
    let mut before = OsString::new();
    let mut changed = Vec::new();
    for (place, word) in words.enumerate() {
        let now = match word.to_str() {
            Some(text) if place > 0 && !object => with_two_dashes(text),
            Some("help") if object && !VALUES_FOLLOW.iter().any(|name| before == *name) => {
                Some("--help")
            }
            _ => None,
        };
        let is_option = word.as_bytes().starts_with(b"-");
        // The first word that is none, but not the name of the program.
        object |= place > 0 && !is_option;
        changed.push(now.map_or_else(|| word.clone(), OsString::from));
        before = word;
    }
    changed
}

/// After these words a name is a name.
const VALUES_FOLLOW: [&str; 5] = ["ibdev", "netdev", "type", "add", "del"];

/// A long option with one dash; short ones, and several of them in one word, stay as they are.
fn with_two_dashes(word: &str) -> Option<&'static str> {
    let long = [
        ("-details", "--details"),
        ("-ddetails", "-dd"),
        ("-absolute", "--absolute"),
        ("-version", "--version"),
        ("-help", "--help"),
    ];
    let fits = |name: &str| word.len() > 2 && word != "-dd" && name.starts_with(word);
    let found = long.iter().find(|(name, _)| fits(name));
    found.map(|(_, option)| *option)
}

/// What to show.
#[derive(Clone, Debug, Subcommand)]
pub enum Object {
    /// Versions and features
    Info {
        /// What to do with it
        #[command(subcommand)]
        action: Option<Show>,
    },
    /// Link groups
    #[command(infer_subcommands = true, args_conflicts_with_subcommands = true)]
    Linkgroup {
        /// What to do with them
        #[command(subcommand)]
        action: Option<GroupAction>,
        /// Those to show.
        #[command(flatten)]
        words: Words,
    },
    /// RDMA devices
    #[command(infer_subcommands = true, args_conflicts_with_subcommands = true)]
    Device {
        /// What to do with them
        #[command(subcommand)]
        action: Option<DeviceAction>,
        /// Those to show.
        #[command(flatten)]
        words: Words,
    },
    /// Counters
    #[command(infer_subcommands = true)]
    Stats {
        /// What to do with them
        #[command(subcommand)]
        action: Option<StatsAction>,
    },
    /// User-defined EIDs
    #[command(infer_subcommands = true)]
    Ueid {
        /// What to do with them
        #[command(subcommand)]
        action: Option<UeidAction>,
    },
}

/// The only thing to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Show {
    /// Show it
    Show,
}

/// What to do with link groups.
#[derive(Clone, Debug, Subcommand)]
pub enum GroupAction {
    /// Show them
    Show(Words),
    /// Show their links
    LinkShow(Words),
}

/// What to do with devices.
#[derive(Clone, Debug, Subcommand)]
pub enum DeviceAction {
    /// Show them
    Show(Words),
}

/// Which ones to show.
#[derive(Clone, Debug, Default, Args)]
pub struct Words {
    /// `all`, `type smcr`, `ibdev DEVICE`, `netdev INTERFACE`, the number of a group or the name of a
    /// device or interface; of several, all have to fit
    #[arg(value_name = "FILTER")]
    pub words: Vec<String>,
}

/// What the words say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Filter<'a> {
    /// A group, device or interface.
    any: Option<&'a str>,
    device: Option<&'a str>,
    interface: Option<&'a str>,
}

/// Groups are named by their number, with or without zeroes in front.
fn same_group(id: &str, wanted: &str) -> bool {
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    number(wanted).is_some() && number(id) == number(wanted)
}

impl Words {
    fn filter(&self) -> Result<Filter<'_>, Failure> {
        let mut filter = Filter::default();
        let mut words = self.words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let (place, value) = match word {
                "all" => continue,
                "type" if words.next() == Some("smcr") => continue,
                "type" => return Err(Failure::Value("type: can only be `smcr`".into())),
                "ibdev" => (&mut filter.device, words.next()),
                "netdev" => (&mut filter.interface, words.next()),
                name => (&mut filter.any, Some(name)),
            };
            let Some(value) = value else {
                return Err(Failure::Value(format!("{word}: needs a name")));
            };
            if place.replace(value).is_some() {
                return Err(Failure::Value(format!("{value}: one too many")));
            }
        }
        Ok(filter)
    }
}

impl Filter<'_> {
    /// Whether something on a device and interface is wanted.
    fn fits(&self, group: Option<&str>, device: &str, interface: Option<&String>) -> bool {
        let interface = interface.map(String::as_str);
        let is_any = |any| {
            any == device
                || Some(any) == interface
                || group.is_some_and(|group| same_group(group, any))
        };
        self.any.is_none_or(is_any)
            && self.device.is_none_or(|wanted| wanted == device)
            && self
                .interface
                .is_none_or(|wanted| Some(wanted) == interface)
    }

    fn has_link(&self, link: &Link) -> bool {
        self.fits(Some(&link.group), &link.device, link.interface.as_ref())
    }

    fn keep_groups(&self, groups: &mut Vec<Group>, links: &[Link]) {
        groups.retain(|group| {
            let by_number = Filter {
                device: None,
                interface: None,
                ..*self
            };
            let without_link = self.device.is_none()
                && self.interface.is_none()
                && by_number.fits(Some(&group.id), "", None);
            let mut of_group = links.iter().filter(|link| link.group == group.id);
            without_link || of_group.any(|link| self.has_link(link))
        });
    }

    fn keep_ports(&self, devices: &mut [Device]) {
        for device in devices {
            let name = &device.name;
            device
                .ports
                .retain(|port| self.fits(None, name, port.interface.as_ref()));
        }
    }
}

/// What to do with counters.
#[derive(Clone, Debug, Subcommand)]
pub enum StatsAction {
    /// Show them
    Show,
    /// Print them as JSON
    Json,
}

/// What to do with EIDs.
#[derive(Clone, Debug, Subcommand)]
pub enum UeidAction {
    /// Show them
    Show,
    /// Add one
    Add {
        /// The EID
        eid: String,
    },
    /// Delete one
    Del {
        /// The EID
        eid: String,
    },
    /// Delete all
    Flush,
}

fn role(role: Role) -> String {
    match role {
        Role(0) => "CLNT".into(),
        Role(1) => "SERV".into(),
        other => other.to_string(),
    }
}

fn kind(kind: GroupType) -> String {
    match kind.0 {
        0 => "NONE".into(),
        1 => "SINGLE".into(),
        2 => "SYM".into(),
        3 => "ASYMP".into(),
        4 => "ASYML".into(),
        _ => kind.to_string(),
    }
}

fn link_state(state: LinkState) -> String {
    match state.0 {
        0 => "UNUSED".into(),
        1 => "INACTIVE".into(),
        2 => "ACTIVATING".into(),
        3 => "ACTIVE".into(),
        _ => state.to_string(),
    }
}

/// A number in hexadecimal digits, but for none.
fn vlan(id: u8) -> String {
    if id == 0 {
        return "0".into();
    }
    format!("{id:#x}")
}

/// A word for every column in front: scripts count them.
fn interface(name: Option<&String>) -> String {
    name.map_or_else(|| "n/a".to_string(), String::clone)
}

/// The kind of a card, by its vendor and device; a word where there is no card.
fn card(device: &Device) -> String {
    let pci = device.pci.as_ref();
    let numbers = pci.and_then(|pci| Some((pci.vendor?, pci.device?)));
    numbers.map_or("n/a".into(), |(vendor, device)| {
        format!("{vendor:04x}:{device:04x}")
    })
}

fn groups_text(groups: &[Group], details: bool, width: Option<u16>) -> String {
    let mut titles = vec!["LG-ID", "LG-Role", "LG-Type", ">VLAN", ">#Conns", "PNET-ID"];
    if details {
        titles.extend(["Version", "EID", "Peer-Host", ">Sndbufs", ">RMBs"]);
    }
    let or_empty = |text: Option<&String>| text.cloned().unwrap_or_default();
    let rows = groups.iter().map(|group| {
        let mut row = vec![
            group.id.clone(),
            role(group.role),
            kind(group.kind),
            vlan(group.vlan_id),
            group.connections.to_string(),
            or_empty(group.pnet_id.as_ref()),
        ];
        if details {
            let v2 = group.v2.as_ref();
            let release = v2.map_or(String::new(), |v2| format!(".{}", v2.release));
            let bytes = |count: Option<u64>| count.map_or(String::new(), table::bytes);
            row.extend([
                format!("{}{release}", group.version()),
                or_empty(v2.and_then(|v2| v2.eid.as_ref())),
                or_empty(v2.and_then(|v2| v2.peer_host.as_ref())),
                bytes(group.sndbuf_bytes),
                bytes(group.rmb_bytes),
            ]);
        }
        row
    });
    table::table(&titles, rows.collect(), width)
}

fn links_text(links: &[Link], details: bool, width: Option<u16>) -> String {
    let mut titles = vec![
        "LG-ID",
        ">Link",
        "Net-Dev",
        "IB-Dev",
        ">IB-P",
        "Link-State",
        ">#Conns",
    ];
    if details {
        titles.extend(["UID", "Peer-UID", "GID", "Peer-GID"]);
    }
    let rows = links.iter().map(|link| {
        let mut row = vec![
            link.group.clone(),
            link.id.to_string(),
            interface(link.interface.as_ref()),
            link.device.clone(),
            link.port.to_string(),
            link_state(link.state),
            link.connections.to_string(),
        ];
        if details {
            row.extend([
                link.uid.clone(),
                link.peer_uid.clone(),
                table::gid(&link.gid),
                table::gid(&link.peer_gid),
            ]);
        }
        row
    });
    table::table(&titles, rows.collect(), width)
}

fn devices_text(devices: &[Device], details: bool, width: Option<u16>) -> String {
    let mut titles = vec![
        "Net-Dev", "IB-Dev", ">IB-P", "IB-State", "Type", "Crit", ">#Links", "PNET-ID",
    ];
    if details {
        titles.extend(["PCI-ID", "Vendor", "Device"]);
    }
    let row = |device: &Device, port: &Port| {
        let by_user = if port.pnet_id_by_user { "*" } else { "" };
        let pnet_id = port.pnet_id.as_ref();
        let mut row = vec![
            interface(port.interface.as_ref()),
            device.name.clone(),
            port.port.to_string(),
            if port.active { "ACTIVE" } else { "INACTIVE" }.into(),
            card(device),
            if device.critical { "Yes" } else { "No" }.into(),
            port.links.to_string(),
            pnet_id.map_or(String::new(), |id| format!("{by_user}{id}")),
        ];
        if details {
            let pci = device.pci.as_ref();
            let hex = |number: Option<u16>| number.map_or(String::new(), |n| format!("{n:#06x}"));
            row.extend([
                pci.map_or(String::new(), |pci| pci.id.clone()),
                hex(pci.and_then(|pci| pci.vendor)),
                hex(pci.and_then(|pci| pci.device)),
            ]);
        }
        row
    };
    let ports = devices
        .iter()
        .flat_map(|device| device.ports.iter().map(move |port| row(device, port)));
    table::table(&titles, ports.collect(), width)
}

fn info_text(info: &SystemInfo) -> String {
    let versions = if info.smcr_v2 { "v1 v2" } else { "v1" };
    let version = format!("{}.{}", info.version, info.release);
    let host = info.host.as_deref().unwrap_or("n/a");
    let rows = [
        ("SMC Version:", version.as_str()),
        ("SMC Hostname:", host),
        ("SMC-R Features:", versions),
    ];
    // Scripts look for what is behind the colon.
    rows.iter()
        .map(|(name, value)| format!("{name:<18}{value}\n"))
        .collect()
}

/// Carries out what the words say.
pub fn run(cli: &Cli, source: &mut dyn Source, output: &mut Output<'_>) -> Result<(), Failure> {
    let (width, details) = (output.width, cli.details > 0);
    let ueid = match &cli.object {
        Object::Info { .. } => {
            let info = SystemInfo::read(source)?;
            return output.print(&info, info_text);
        }
        Object::Linkgroup { action, words } => {
            let all = GroupAction::Show(words.clone());
            return run_groups(action.as_ref().unwrap_or(&all), details, source, output);
        }
        Object::Device { action, words } => {
            let mut devices = ctl::read_devices(source)?;
            let words = match action {
                Some(DeviceAction::Show(words)) => words,
                None => words,
            };
            words.filter()?.keep_ports(&mut devices);
            devices.retain(|device| !device.ports.is_empty());
            return output.list("devices", &devices, |devices| {
                devices_text(devices, details, width)
            });
        }
        Object::Stats { action } => {
            let stats = Stats::read(source)?;
            output.json |= matches!(action, Some(StatsAction::Json));
            return output.print(&stats, |stats| text::stats(stats, width));
        }
        Object::Ueid { action } => match action {
            None | Some(UeidAction::Show) => ctl::UeidCommand::List,
            Some(UeidAction::Add { eid }) => ctl::UeidCommand::Add { eid: eid.clone() },
            Some(UeidAction::Del { eid }) => ctl::UeidCommand::Remove { eid: eid.clone() },
            Some(UeidAction::Flush) => ctl::UeidCommand::Flush,
        },
    };
    ctl::run(&ctl::Command::Ueid(ueid), source, output).map(drop)
}

fn run_groups(
    action: &GroupAction,
    details: bool,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let width = output.width;
    match action {
        GroupAction::Show(words) => {
            let filter = words.filter()?;
            let mut groups = Group::read_all(source)?;
            if filter != Filter::default() {
                filter.keep_groups(&mut groups, &ctl::read_links(source)?);
            }
            output.list("groups", &groups, |groups| {
                groups_text(groups, details, width)
            })
        }
        GroupAction::LinkShow(words) => {
            let filter = words.filter()?;
            let mut links = ctl::read_links(source)?;
            links.retain(|link| filter.has_link(link));
            output.list("links", &links, |links| links_text(links, details, width))
        }
    }
}
