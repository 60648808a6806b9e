// SPDX-License-Identifier: GPL-2.0

//! `smcss`: shows sockets. Columns stand where scripts expect them, the mode in the seventh.

use crate::ctl::{Failure, Output};
use crate::model::socket::{ConnectionInfo, Cursor, DmbInfo, LinkInfo, SocketInfo};
use crate::netlink::Source;
use crate::uapi::{Mode, Role, State};
use clap::Parser;
use std::net::SocketAddr;

const AFTER_HELP: &str = "\
The mode is SMCR, SMCD, or TCP with the code of the reason; behind a slash comes
the code that the peer gave. `smcctl sockets` says them in words.
In the column Shutd, R and W stand for directions that are shut.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 smc_diag is not loaded";

/// Show SMC sockets.
#[derive(Clone, Debug, Parser)]
#[command(name = "smcss", version, after_help = AFTER_HELP, disable_version_flag = true)]
#[command(args_override_self = true)]
pub struct Cli {
    /// Print version
    #[arg(short = 'v', short_alias = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Show all sockets, also those that listen or were never connected
    #[arg(short, long)]
    pub all: bool,
    /// Show listening sockets only
    #[arg(short, long, conflicts_with = "all")]
    pub listening: bool,
    /// Show buffers, cursors and flags too
    #[arg(
        short,
        long,
        alias = "extended",
        short_alias = 'e',
        conflicts_with = "listening"
    )]
    pub debug: bool,
    /// Do not shorten addresses
    #[arg(short = 'W', long)]
    pub wide: bool,
    /// Show sockets that use SMC-D only, and their buffers
    #[arg(short = 'D', long, conflicts_with_all = ["smcr", "listening"])]
    pub smcd: bool,
    /// Show sockets that use SMC-R only, and their links
    #[arg(short = 'R', long, conflicts_with = "listening")]
    pub smcr: bool,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
}

const ADDRESS_WIDTH: usize = 23;

const INIT: State = State(2);
const CLOSED: State = State(7);
const LISTEN: State = State(10);

impl Cli {
    fn wants(&self, socket: &SocketInfo) -> bool {
        let state = match socket.state {
            LISTEN => self.all || self.listening,
            INIT => self.all,
            _ => !self.listening,
        };
        let mode = (!self.smcd || socket.mode == Mode(2)) && (!self.smcr || socket.mode == Mode(0));
        state && mode
    }

    fn address(&self, address: SocketAddr) -> String {
        let text = format!("{}:{}", address.ip(), address.port());
        let count = text.chars().count();
        if self.wide || count <= ADDRESS_WIDTH {
            return text;
        }
        let port = format!("..:{}", address.port());
        let room = ADDRESS_WIDTH.saturating_sub(port.len());
        format!("{}{port}", text.chars().take(room).collect::<String>())
    }

    fn titles(&self) -> String {
        let mut text = format!(
            "{:<14} {:<5} {:<7} {:<23} {:<23} {:<4} {:<4}",
            "State", "UID", "Inode", "Local Address", "Peer Address", "Intf", "Mode"
        );
        if self.debug {
            text +=
                " Shutd Token    Sndbuf   Rcvbuf   Peerbuf  rxprod-Cursor rxcons-Cursor rxFlags \
                     txprod-Cursor txcons-Cursor txFlags txprep-Cursor txsent-Cursor txfin-Cursor";
        }
        if self.smcr {
            text += " Role IB-device       Port Linkid GID                                      \
                     Peer-GID";
        }
        if self.smcd {
            text += " GID              Token            Peer-GID         Peer-Token       Linkid";
        }
        text.trim_end().to_string() + "\n"
    }

    fn line(&self, socket: &SocketInfo) -> String {
        let mut text = format!(
            "{:<14} {:05} {:07}",
            state(socket.state),
            socket.uid,
            socket.inode,
        );
        if socket.state != INIT {
            text += &format!(" {:<23}", self.address(socket.local));
        }
        // Nothing else is decided before there is a connection, or when it is over.
        if socket.state != INIT && socket.state != LISTEN {
            let peer = self.address(socket.peer);
            text += &format!(" {peer:<23} {:04x}", socket.ifindex);
            if socket.state != CLOSED {
                text += &format!(" {:<4}", mode(socket));
                text += &self.details(socket);
            }
        }
        text.trim_end().to_string() + "\n"
    }

    fn details(&self, socket: &SocketInfo) -> String {
        // Behind the mode of TCP is the reason for it, and no more.
        if socket.mode == Mode(1) {
            return String::new();
        }
        let shut = self.debug.then(|| shut(socket));
        let connection = socket.connection.as_ref().filter(|_| self.debug);
        let link = socket.link.as_ref().filter(|_| self.smcr);
        let dmb = socket.dmb.as_ref().filter(|_| self.smcd);
        [
            shut,
            connection.map(connection_columns),
            link.map(link_columns),
            dmb.map(dmb_columns),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn link_columns(link: &LinkInfo) -> String {
    let role = if link.role == Role(1) { "SERV" } else { "CLNT" };
    format!(
        " {role} {:<15} {:02x}   {:02x}     {:<40} {}",
        link.device, link.port, link.link, link.gid, link.peer_gid
    )
}

fn dmb_columns(dmb: &DmbInfo) -> String {
    format!(
        " {:016x} {:016x} {:016x} {:016x} {:08x}",
        dmb.gid, dmb.token, dmb.peer_gid, dmb.peer_token, dmb.group
    )
}

fn state(state: State) -> String {
    match state {
        State(24) => "APPFINCLOSEWAIT1".into(),
        other => other.to_string(),
    }
}

fn mode(socket: &SocketInfo) -> String {
    match (socket.mode, &socket.fallback) {
        (Mode(0), _) => "SMCR".into(),
        (Mode(2), _) => "SMCD".into(),
        (_, Some(fallback)) if fallback.peer_diagnosis.0 != 0 => format!(
            "TCP 0x{:08x}/0x{:08x}",
            fallback.reason.0, fallback.peer_diagnosis.0
        ),
        (_, Some(fallback)) => format!("TCP 0x{:08x}", fallback.reason.0),
        _ => "TCP".into(),
    }
}

fn shut(socket: &SocketInfo) -> String {
    let receive = if socket.shut_receive { 'R' } else { '<' };
    let send = if socket.shut_send { 'W' } else { '>' };
    format!("  {receive}-{send} ")
}

fn connection_columns(info: &ConnectionInfo) -> String {
    let cursor = |cursor: Cursor| format!("{:04x}:{:08x}", cursor.wrap, cursor.count);
    let received = [info.rx_producer, info.rx_consumer].map(cursor).join(" ");
    let sent = [info.tx_producer, info.tx_consumer].map(cursor).join(" ");
    let buffer = [info.prepared, info.sent, info.confirmed]
        .map(cursor)
        .join(" ");
    format!(
        " {:08x} {:08x} {:08x} {:08x} {received} {:02x}:{:02x}   {sent} {:02x}:{:02x}   {buffer}",
        info.token,
        info.sndbuf,
        info.rmbe,
        info.peer_rmbe,
        info.rx_producer_flags,
        info.rx_state_flags,
        info.tx_producer_flags,
        info.tx_state_flags,
    )
}

/// Carries out what the options say.
pub fn run(cli: &Cli, source: &mut dyn Source, output: &mut Output<'_>) -> Result<(), Failure> {
    let mut sockets = SocketInfo::read_all(source)?;
    sockets.retain(|socket| cli.wants(socket));
    output.list("sockets", &sockets, |sockets| {
        let lines = sockets.iter().map(|socket| cli.line(socket));
        std::iter::once(cli.titles()).chain(lines).collect()
    })
}
