// SPDX-License-Identifier: GPL-2.0

//! `smc_peer`: a peer in user space that shows the SMC option and then misbehaves.
//!
//! It speaks TCP over frames of a packet socket, from an IPv4 address that no kernel has: it answers
//! ARP for the address, and the kernel of its own namespace, not being a router, ignores what
//! comes for it.

pub mod clc;
pub mod engine;
pub mod frame;
pub mod script;

use clap::{Args, Parser, Subcommand};
use clc::Identity;
use engine::{Ending, Host, Outcome};
use frame::End;
use script::{Step, MODES};
use serde::Serialize;
use smoltcp::phy::{self, Device, Medium, RawSocket, RxToken, TxToken};
use socket2::{SockFilter, SockRef};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// A peer that shows the SMC option in its SYN or SYN-ACK and then does what a script says.
///
/// Needs CAP_NET_RAW, and an IPv4 address that nobody has, in the network of the interface. Prints
/// one line of JSON. Exit status: 0 all connections came out as expected, 1 they did not, 2 wrong
/// usage, 3 the interface cannot be used.
#[derive(Clone, Debug, Parser)]
#[command(name = "smc_peer", version, after_long_help = modes_help())]
pub struct Cli {
    /// Side to be.
    #[command(subcommand)]
    pub role: Role,
}

/// The two sides.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// Connect to an SMC server
    Client(ClientArgs),
    /// Wait for SMC clients
    Server(ServerArgs),
    /// List the modes and their scripts
    Modes,
}

/// Options of both sides.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Network interface
    #[arg(short, long)]
    pub interface: String,
    /// Our address with the length of its prefix
    #[arg(short, long, value_name = "ADDRESS/BITS", value_parser = address)]
    pub address: (Ipv4Addr, u8),
    /// Our port, by default 5201 for servers and any for clients, whose first one it is
    #[arg(short = 'p', long)]
    pub own_port: Option<u16>,
    /// What to do: a mode (`smc_peer modes` lists them)
    #[arg(
        short,
        long,
        conflicts_with = "script",
        required_unless_present = "script"
    )]
    pub mode: Option<String>,
    /// What to do: steps, with commas between them
    #[arg(short, long)]
    pub script: Option<String>,
    /// Connections, all at once
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub connections: u16,
    /// Seconds that everything may take
    #[arg(short, long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// Do not show the option
    #[arg(long)]
    pub no_option: bool,
    /// Seed of random bytes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Every connection has to end in one of these ways
    #[arg(long, value_enum, value_delimiter = ',')]
    pub expect: Vec<Ending>,
    /// Every connection has to bring a decline; with a diagnosis if given
    #[arg(long, value_name = "CODE", num_args = 0..=1, default_missing_value = "")]
    pub expect_decline: Option<String>,
    /// Every connection has to end, or bring a decline, within so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub within: Option<f64>,
    /// File that appears when frames can be received
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
}

/// Options of the client.
#[derive(Clone, Debug, Args)]
pub struct ClientArgs {
    /// Have each connection say that it comes from another host
    #[arg(long)]
    pub many_hosts: bool,
    /// Address of the server
    pub host: Ipv4Addr,
    /// Port of the server
    pub port: u16,
    /// Options of both sides.
    #[command(flatten)]
    pub common: Common,
}

/// Options of the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Options of both sides.
    #[command(flatten)]
    pub common: Common,
}

/// An IPv4 address and the length of its prefix, written `ADDRESS/BITS`.
pub fn address(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let (address, bits) = text
        .split_once('/')
        .ok_or("the length of the prefix is missing")?;
    let bits = bits
        .parse()
        .ok()
        .filter(|bits| *bits <= 32)
        .ok_or("the prefix is too long")?;
    Ok((address.parse().map_err(|_| "not an IPv4 address")?, bits))
}

fn modes_help() -> String {
    let names: Vec<_> = MODES.iter().map(|mode| mode.0).collect();
    format!("Modes: {}", names.join(", "))
}

#[derive(Serialize)]
struct Report {
    result: &'static str,
    mode: String,
    wanted: u16,
    connections: Vec<Outcome>,
    failures: Vec<String>,
    seconds: f64,
}

/// A text for people, and the exit status.
pub fn run(cli: &Cli) -> (String, u8) {
    let (common, server) = match &cli.role {
        Role::Modes => return (modes_text(), 0),
        Role::Client(args) => (&args.common, Some(args)),
        Role::Server(args) => (&args.common, None),
    };
    let wire = Wire::open(&common.interface);
    let (mut wire, mac) = match wire {
        Ok(wire) => wire,
        Err(error) => return (format!("smc_peer: {}: {error}", common.interface), 3),
    };
    let own = End {
        mac,
        ip: common.address.0.octets(),
        port: common
            .own_port
            .unwrap_or(if server.is_some() { some_port() } else { 5201 }),
    };
    let identity = Identity {
        mac,
        ip: own.ip,
        prefix: common.address.1,
    };
    let start = Instant::now();
    let host = match server {
        Some(args) => client_of(args, own, &identity, start),
        None => server_of(common, own, &identity),
    };
    let mut host = match host {
        Ok(host) => host,
        Err(message) => return (format!("smc_peer: {message}"), 2),
    };
    if let Some(file) = &common.ready_file {
        if let Err(error) = std::fs::write(file, "ready\n") {
            return (format!("smc_peer: {}: {error}", file.display()), 3);
        }
    }
    let end = start + Duration::from_secs(common.timeout);
    if let Err(error) = wire.drive(&mut host, end) {
        return (format!("smc_peer: {}: {error}", common.interface), 3);
    }
    report(common, &host, start)
}

fn client_of(
    args: &ClientArgs,
    own: End,
    identity: &Identity,
    start: Instant,
) -> Result<Host, String> {
    let other = End {
        mac: [0; 6],
        ip: args.host.octets(),
        port: args.port,
    };
    let scripts = scripts_of(args, identity)?;
    let option = !args.common.no_option;
    Ok(Host::client(own, other, option, scripts, start))
}

fn server_of(common: &Common, own: End, identity: &Identity) -> Result<Host, String> {
    let steps = script_of(common, false, identity)?;
    let count = usize::from(common.connections);
    Ok(Host::server(own, !common.no_option, steps, count))
}

/// A port that another run has hardly used a moment ago.
fn some_port() -> u16 {
    let time = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    30_000 + (time.as_millis() % 25_000) as u16
}

fn modes_text() -> String {
    let mode = |(name, client, server, purpose): &(&str, &str, &str, &str)| {
        format!("{name}: {purpose}\n  client: {client}\n  server: {server}\n")
    };
    MODES
        .iter()
        .map(mode)
        .collect::<String>()
        .trim_end()
        .to_string()
}

/// What each connection of a client does.
fn scripts_of(args: &ClientArgs, identity: &Identity) -> Result<Vec<Vec<Step>>, String> {
    (1..=args.common.connections)
        .map(|number| {
            let identity = if args.many_hosts {
                identity.other(number)
            } else {
                *identity
            };
            script_of(&args.common, true, &identity)
        })
        .collect()
}

fn script_of(common: &Common, client: bool, identity: &Identity) -> Result<Vec<Step>, String> {
    let text = match (&common.script, &common.mode) {
        (Some(script), _) => script.as_str(),
        (None, Some(name)) => {
            let mode = MODES.iter().find(|mode| mode.0 == name);
            let mode = mode.ok_or_else(|| format!("`{name}` is not a mode"))?;
            if client {
                mode.1
            } else {
                mode.2
            }
        }
        (None, None) => "",
    };
    script::parse(text, identity, common.seed)
}

fn judge(common: &Common, outcome: &Outcome) -> Result<(), String> {
    let port = outcome.port;
    if !common.expect.is_empty() && !common.expect.contains(&outcome.end) {
        return Err(format!("port {port}: ended as {:?}", outcome.end));
    }
    if let Some(code) = &common.expect_decline {
        let wanted = |text: &Option<String>| code.is_empty() || text.as_deref() == Some(code);
        let declined = outcome
            .messages
            .iter()
            .any(|seen| seen.kind == "decline" && wanted(&seen.diagnosis));
        if !declined {
            return Err(format!("port {port}: no decline {code}"));
        }
    }
    match common.within {
        Some(limit) if outcome.seconds > limit => {
            Err(format!("port {port}: took {:.3} s", outcome.seconds))
        }
        _ => Ok(()),
    }
}

fn report(common: &Common, host: &Host, start: Instant) -> (String, u8) {
    let now = Instant::now();
    let connections = host.outcomes(now);
    let mut failures: Vec<_> = connections
        .iter()
        .filter_map(|outcome| judge(common, outcome).err())
        .collect();
    if connections.len() < usize::from(common.connections) {
        failures.push(format!("only {} connections were there", connections.len()));
    }
    let pass = failures.is_empty();
    let report = Report {
        result: if pass { "pass" } else { "fail" },
        mode: common.mode.clone().unwrap_or_else(|| "script".into()),
        wanted: common.connections,
        connections,
        failures,
        seconds: (now - start).as_secs_f64(),
    };
    let line = serde_json::to_string(&report).expect("numbers and strings can be written");
    (line, u8::from(!pass))
}

/// Keeps UDP away from a socket. What goes by RDMA on the same interface would fill it while this program is held up, and a
/// reset for which there is no room then does not come again.
#[expect(unsafe_code, reason = "the crate's socket lends no descriptor")]
fn without_udp(socket: &RawSocket) -> io::Result<()> {
    const HALF_AT: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const BYTE_AT: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const TAKE: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let filter = [
        SockFilter::new(HALF_AT, 0, 0, 12),
        SockFilter::new(IS, 0, 3, libc::ETH_P_IP as u32),
        SockFilter::new(BYTE_AT, 0, 0, 23),
        SockFilter::new(IS, 0, 1, libc::IPPROTO_UDP as u32),
        SockFilter::new(TAKE, 0, 0, 0),
        SockFilter::new(TAKE, 0, 0, u32::MAX),
    ];
    // SAFETY: The socket is open for as long as it is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    SockRef::from(&fd).attach_filter(&filter)
}

/// A network interface, frame by frame.
pub struct Wire(RawSocket);

impl Wire {
    /// The interface of this name, and its MAC address.
    pub fn open(interface: &str) -> io::Result<(Wire, [u8; 6])> {
        let file = Path::new("/sys/class/net").join(interface).join("address");
        let text = std::fs::read_to_string(file)?;
        let mut mac = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut mac {
            let part = parts
                .next()
                .and_then(|part| u8::from_str_radix(part, 16).ok());
            *byte = part.ok_or_else(|| io::Error::other("not an Ethernet interface"))?;
        }
        let socket = RawSocket::new(interface, Medium::Ethernet)?;
        without_udp(&socket)?;
        Ok((Wire(socket), mac))
    }

    /// Lets the host run until it is done or the time is over.
    fn drive(&mut self, host: &mut Host, end: Instant) -> io::Result<()> {
        loop {
            let now = Instant::now();
            host.poll(now);
            self.send(host.take_frames());
            if host.is_done() {
                return Ok(());
            }
            if now >= end {
                host.abandon(now);
                self.send(host.take_frames());
                return Ok(());
            }
            let next = host
                .deadline()
                .unwrap_or(end)
                .min(end)
                .saturating_duration_since(now);
            let wait = smoltcp::time::Duration::from_micros(next.as_micros() as u64 + 1);
            phy::wait(self.0.as_raw_fd(), Some(wait))?;
            self.receive(host);
        }
    }

    /// Lets the host do what is due now, and waits for nothing.
    pub fn step(&mut self, host: &mut Host) {
        self.receive(host);
        host.poll(Instant::now());
        self.send(host.take_frames());
    }

    fn receive(&mut self, host: &mut Host) {
        while let Some((token, _)) = self.0.receive(smoltcp::time::Instant::ZERO) {
            token.consume(|bytes| host.handle(bytes, Instant::now()));
            self.send(host.take_frames());
        }
    }

    fn send(&mut self, frames: Vec<Vec<u8>>) {
        for frame in frames {
            if let Some(token) = self.0.transmit(smoltcp::time::Instant::ZERO) {
                token.consume(frame.len(), |bytes| bytes.copy_from_slice(&frame));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("smc_peer").chain(args.split_whitespace()))
    }

    #[test]
    fn options() {
        for good in [
            "client 192.0.2.1 5201 -i eth0 -a 192.0.2.9/24 -m silent -c 20",
            "client 192.0.2.1 5201 -i eth0 -a 192.0.2.9/24 -s proposal,fin --expect rst,fin",
            "server -i eth0 -a 192.0.2.9/24 -p 80 -m decline --expect-decline --within 3",
            "server -i eth0 -a 192.0.2.9/24 -m decline --expect-decline 0x03010000",
            "modes",
        ] {
            assert!(parse(good).is_ok(), "{good}: {:?}", parse(good).err());
        }
        for bad in [
            "",
            "client 192.0.2.1 5201 -i eth0 -a 192.0.2.9/24",
            "server -i eth0 -a 192.0.2.9 -m silent",
            "server -i eth0 -a 192.0.2.9/33 -m silent",
            "server -i eth0 -a 192.0.2.9/24 -m silent -s fin",
            "server -i eth0 -a 192.0.2.9/24 -m silent --expect nonsense",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there() {
        let cli = parse("server -i nosuchif0 -a 192.0.2.9/24 -m silent").unwrap();
        assert_eq!(run(&cli).1, 3);
    }

    #[test]
    fn modes_are_listed() {
        let (text, status) = run(&parse("modes").unwrap());
        assert_eq!(status, 0);
        assert_eq!(text.matches("client: ").count(), MODES.len());
    }
}
