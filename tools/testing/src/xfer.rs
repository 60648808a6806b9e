// SPDX-License-Identifier: GPL-2.0

//! `smc_xfer`: its options, and what a client and a server do with them.

use crate::errno;
use crate::event::{Io, Ready, Waiter};
use crate::report::{Expectation, Failure, Outcome, Report};
use crate::socket::Family;
use crate::socket::Mode;
use crate::transfer::{self, Plan, Tuning};
use clap::{Args, Parser, Subcommand, ValueEnum};
use socket2::{SockAddr, Socket};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Exit status after the time was over.
pub const EXIT_TIMEOUT: u8 = 124;

/// Transfer checked data over stream sockets.
///
/// Prints one line of JSON. Exit status: 0 all connections did what was expected, 1 they did not,
/// 2 wrong usage, 124 the time was over.
#[derive(Clone, Debug, Parser)]
#[command(name = "smc_xfer", version)]
pub struct Cli {
    /// Side to be.
    #[command(subcommand)]
    pub role: Role,
}

/// The two sides.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// Accept connections and serve them
    Server(ServerArgs),
    /// Connect and say what is transferred
    Client(ClientArgs),
}

/// Options of both sides.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// How sockets are asked for
    #[arg(long, value_enum, default_value_t = Family::Tcp)]
    pub family: Family,
    /// Use IPv4
    #[arg(short = '4', conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// Use IPv6
    #[arg(short = '6')]
    pub ipv6: bool,
    /// Local address
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,
    /// Port of the server; 0 lets the system choose (server only)
    #[arg(short, long, default_value_t = 5201)]
    pub port: u16,
    /// Number of connections
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// How to wait for sockets
    #[arg(long, value_enum, default_value_t = Io::Blocking)]
    pub io: Io,
    /// Seconds that everything may take
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Smallest read and write
    #[arg(long, default_value = "1", value_parser = chunk)]
    pub min_chunk: usize,
    /// Largest read and write
    #[arg(long, default_value = "64K", value_parser = chunk)]
    pub max_chunk: usize,
    /// Read the stream at so many bytes per second
    #[arg(long, value_name = "BYTES_PER_S", value_parser = rate)]
    pub slow_reader: Option<u64>,
    /// SO_SNDBUF, before connecting or listening
    #[arg(long, value_name = "SIZE", value_parser = chunk)]
    pub sndbuf: Option<usize>,
    /// SO_RCVBUF, before connecting or listening
    #[arg(long, value_name = "SIZE", value_parser = chunk)]
    pub rcvbuf: Option<usize>,
    /// TCP_NODELAY
    #[arg(long)]
    pub nodelay: bool,
    /// Every connection has to fail with this error, such as ECONNREFUSED
    #[arg(long, value_name = "NAME", value_parser = errno_name)]
    pub expect_errno: Option<i32>,
    /// Every connection has to be of this mode
    #[arg(long, value_enum, value_name = "MODE")]
    pub expect_mode: Option<Mode>,
}

/// Options of the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Options of both sides.
    #[command(flatten)]
    pub common: Common,
    /// File that appears, with the port number, when connections can be made
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Backlog of the listener
    #[arg(long, default_value_t = 1024)]
    pub backlog: i32,
}

/// Directions of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// From client to server
    Up,
    /// From server to client
    Down,
    /// Both at once
    Both,
}

/// Options of the client.
#[derive(Clone, Debug, Args)]
pub struct ClientArgs {
    /// Name or address of the server
    pub host: String,
    /// Options of both sides.
    #[command(flatten)]
    pub common: Common,
    /// Bytes per direction, with suffix K, M or G
    #[arg(short = 'n', long, default_value = "1M", value_parser = size)]
    pub bytes: u64,
    /// Directions
    #[arg(short, long, value_enum, default_value_t = Direction::Both)]
    pub direction: Direction,
    /// Connections open at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub parallel: u32,
    /// Seed of the stream
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The server sends back what it receives
    #[arg(long, conflicts_with = "direction")]
    pub echo: bool,
    /// Shut the sending side after the stream; the server closes
    #[arg(long)]
    pub half_close: bool,
    /// Send an urgent byte in the middle of the stream
    #[arg(long, conflicts_with_all = ["abort", "echo"])]
    pub urgent: bool,
    /// Reset the connection in the middle of the stream
    #[arg(long)]
    pub abort: bool,
    /// Seconds of silence between connecting and the transfer
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub idle: u64,
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1u64),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    number
        .checked_mul(unit)
        .filter(|size| *size <= 1 << 50)
        .ok_or_else(|| "too large".to_string())
}

fn chunk(text: &str) -> Result<usize, String> {
    match size(text)? {
        size @ 1..=0x0400_0000 => Ok(size as usize),
        _ => Err("out of range 1 to 64M".into()),
    }
}

fn rate(text: &str) -> Result<u64, String> {
    size(text).and_then(|rate| {
        if rate > 0 {
            Ok(rate)
        } else {
            Err("zero".into())
        }
    })
}

fn errno_name(text: &str) -> Result<i32, String> {
    errno::by_name(text).ok_or_else(|| "not an error name known here".into())
}

impl Common {
    fn tuning(&self, seed: u64) -> Tuning {
        Tuning {
            io: self.io,
            min_chunk: self.min_chunk,
            max_chunk: self.max_chunk.max(self.min_chunk),
            slow_reader: self.slow_reader,
            seed,
        }
    }

    fn expectation(&self) -> Expectation {
        Expectation {
            errno: self.expect_errno,
            mode: self.expect_mode,
        }
    }

    fn fits(&self, address: &SocketAddr) -> bool {
        !(self.ipv4 && address.is_ipv6() || self.ipv6 && address.is_ipv4())
    }

    fn socket(&self, address: &SocketAddr) -> Result<Socket, Failure> {
        let socket = self.family.socket(address).map_err(Failure::at("socket"))?;
        let options = Failure::at("option");
        let set = || {
            if let Some(size) = self.sndbuf {
                socket.set_send_buffer_size(size)?;
            }
            if let Some(size) = self.rcvbuf {
                socket.set_recv_buffer_size(size)?;
            }
            if self.nodelay {
                socket.set_tcp_nodelay(true)?;
            }
            socket.set_nonblocking(self.io != Io::Blocking)
        };
        set().map_err(options)?;
        Ok(socket)
    }
}

/// Something that runs in a thread and adds its connections to the report.
type Job = Box<dyn FnOnce(&Arc<Mutex<Report>>) -> Result<(), Failure> + Send>;

fn add(report: &Mutex<Report>, id: u32, outcome: Outcome) {
    report
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .add(id, outcome);
}

impl Cli {
    /// Checks what the parser of the options does not.
    pub fn check(&self) -> Result<(), String> {
        match &self.role {
            Role::Client(args)
                if args.urgent && (args.bytes < 2 || args.direction == Direction::Down) =>
            {
                Err("--urgent needs at least two bytes from client to server".into())
            }
            Role::Client(args)
                if args.abort && (args.bytes < 2 || args.direction == Direction::Down) =>
            {
                Err("--abort needs at least two bytes from client to server".into())
            }
            Role::Client(args) if args.common.port == 0 => Err("--port is needed".into()),
            _ => Ok(()),
        }
    }

    /// Does it all, in bounded time. Gives the line to print and the exit status.
    pub fn run(self) -> (String, u8) {
        let (role, common, job): (_, _, Job) = match self.role {
            Role::Server(args) => {
                let common = args.common.clone();
                (
                    "server",
                    common,
                    Box::new(move |report| serve(&args, report)),
                )
            }
            Role::Client(args) => {
                let common = args.common.clone();
                (
                    "client",
                    common,
                    Box::new(move |report| connect_all(&args, report)),
                )
            }
        };
        let report = Report::new(
            role,
            common.family,
            common.connections,
            common.expectation(),
        );
        let report = Arc::new(Mutex::new(report));
        let start = Instant::now();
        let (done, wait) = mpsc::channel();
        let shared = Arc::clone(&report);
        // Not joined: at the end of the time it may hang in a system call.
        std::thread::spawn(move || {
            if let Err(failure) = job(&shared) {
                let outcome = Outcome {
                    failure: Some(failure),
                    ..Outcome::default()
                };
                add(&shared, u32::MAX, outcome);
            }
            let _ = done.send(());
        });
        let in_time = wait
            .recv_timeout(Duration::from_secs(common.timeout))
            .is_ok();
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        let (line, pass) = report.finish(start.elapsed(), in_time);
        let status = match (in_time, pass) {
            (false, _) => EXIT_TIMEOUT,
            (true, true) => 0,
            (true, false) => 1,
        };
        (line, status)
    }
}

fn spawn(job: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().stack_size(256 << 10).spawn(job)
}

fn serve(args: &ServerArgs, report: &Arc<Mutex<Report>>) -> Result<(), Failure> {
    let common = &args.common;
    let any = if common.ipv6 { "::" } else { "0.0.0.0" };
    let address = common
        .bind
        .unwrap_or_else(|| any.parse().expect("an address"));
    let address = SocketAddr::new(address, common.port);
    let listener = common.socket(&address)?;
    listener
        .set_reuse_address(true)
        .map_err(Failure::at("option"))?;
    listener
        .bind(&address.into())
        .map_err(Failure::at("bind"))?;
    listener
        .listen(args.backlog)
        .map_err(Failure::at("listen"))?;
    if let Some(file) = &args.ready_file {
        let port = listener.local_addr().map_err(Failure::at("name"))?;
        let port = port.as_socket().map_or(0, |address| address.port());
        let new = file.with_extension("new");
        std::fs::write(&new, format!("{port}\n")).map_err(Failure::at("ready file"))?;
        std::fs::rename(&new, file).map_err(Failure::at("ready file"))?;
    }

    let mut waiter = match common.io {
        Io::Blocking => None,
        io => Some(Waiter::new(io, &listener).map_err(Failure::at("epoll"))?),
    };
    let mut threads = Vec::new();
    for number in 0..common.connections {
        let socket = match accept(&listener, waiter.as_mut()) {
            Ok(socket) => socket,
            Err(error) => {
                let failure = Some(Failure {
                    step: "accept",
                    error,
                });
                add(
                    report,
                    number,
                    Outcome {
                        failure,
                        ..Outcome::default()
                    },
                );
                continue;
            }
        };
        let report = Arc::clone(report);
        let common = common.clone();
        let serve = move || {
            let mut outcome = Outcome::default();
            let mut id = None;
            let nonblocking = socket.set_nonblocking(common.io != Io::Blocking);
            let tuning = common.tuning((u64::from(number) << 32) | 1);
            let ran = nonblocking.map_err(Failure::at("option")).and_then(|()| {
                transfer::server(&socket, common.family, &tuning, &mut id, &mut outcome)
            });
            outcome.failure = ran.err();
            drop(socket);
            add(&report, id.unwrap_or(number), outcome);
        };
        threads.push(spawn(serve).map_err(Failure::at("thread"))?);
    }
    for thread in threads {
        if thread.join().is_err() {
            return Err(Failure::found(
                "thread",
                "a connection's thread panicked".into(),
            ));
        }
    }
    Ok(())
}

fn accept(listener: &Socket, mut waiter: Option<&mut Waiter>) -> io::Result<Socket> {
    let input = Ready {
        input: true,
        ..Ready::default()
    };
    loop {
        match (listener.accept(), waiter.as_mut()) {
            (Ok((socket, _)), _) => return Ok(socket),
            (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
            (Err(error), Some(waiter)) if error.kind() == io::ErrorKind::WouldBlock => {
                waiter.blocked(input);
                waiter.wait(listener, input, Duration::from_secs(1))?;
            }
            (Err(error), _) => return Err(error),
        }
    }
}

fn resolve(args: &ClientArgs) -> Result<SocketAddr, Failure> {
    let port = args.common.port;
    let mut found = (args.host.as_str(), port)
        .to_socket_addrs()
        .map_err(Failure::at("resolve"))?;
    found
        .find(|address| args.common.fits(address))
        .ok_or_else(|| Failure::found("resolve", "no address of the family wanted".into()))
}

fn connect_all(args: &ClientArgs, report: &Arc<Mutex<Report>>) -> Result<(), Failure> {
    let address = resolve(args)?;
    let next = Arc::new(AtomicU32::new(0));
    let workers = args.parallel.min(args.common.connections);
    let mut threads = Vec::new();
    for _ in 0..workers {
        let args = args.clone();
        let report = Arc::clone(report);
        let next = Arc::clone(&next);
        let work = move || loop {
            let id = next.fetch_add(1, Ordering::Relaxed);
            if id >= args.common.connections {
                return;
            }
            let mut outcome = Outcome::default();
            outcome.failure = one_client(&args, &address, id, &mut outcome).err();
            add(&report, id, outcome);
        };
        threads.push(spawn(work).map_err(Failure::at("thread"))?);
    }
    for thread in threads {
        if thread.join().is_err() {
            return Err(Failure::found(
                "thread",
                "a connection's thread panicked".into(),
            ));
        }
    }
    Ok(())
}

fn one_client(
    args: &ClientArgs,
    address: &SocketAddr,
    id: u32,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let common = &args.common;
    let socket = common.socket(address)?;
    if let Some(local) = common.bind {
        socket
            .bind(&SocketAddr::new(local, 0).into())
            .map_err(Failure::at("bind"))?;
    }
    let start = Instant::now();
    connect(&socket, &(*address).into(), common.io).map_err(Failure::at("connect"))?;
    outcome.connect = Some(start.elapsed());
    std::thread::sleep(Duration::from_secs(args.idle));

    let up = args.echo || args.direction != Direction::Down;
    let down = args.echo || args.direction != Direction::Up;
    let plan = Plan {
        seed: args.seed.wrapping_add(u64::from(id)),
        up: if up { args.bytes } else { 0 },
        down: if down { args.bytes } else { 0 },
        id,
        half_close: args.half_close,
        echo: args.echo,
        urgent: args.urgent,
        abort: args.abort,
    };
    transfer::client(
        &socket,
        common.family,
        &plan,
        &common.tuning(plan.seed),
        outcome,
    )
}

fn connect(socket: &Socket, address: &SockAddr, io: Io) -> io::Result<()> {
    match socket.connect(address) {
        Err(error)
            if io != Io::Blocking && error.raw_os_error() == errno::by_name("EINPROGRESS") => {}
        result => return result,
    }
    let mut waiter = Waiter::new(io, socket)?;
    let output = Ready {
        output: true,
        ..Ready::default()
    };
    while !waiter.wait(socket, output, Duration::from_secs(1))?.output {}
    socket.take_error()?.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, String> {
        let cli = Cli::try_parse_from(std::iter::once("smc_xfer").chain(args.iter().copied()))
            .map_err(|error| error.to_string())?;
        cli.check()?;
        Ok(cli)
    }

    #[test]
    fn sizes_with_units() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("3k"), Ok(3072));
        assert_eq!(size("1G"), Ok(1 << 30));
        for bad in ["", "K", "-1", "1T", "99999999999G", "é"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(chunk("0").is_err() && chunk("65M").is_err());
    }

    #[test]
    fn options() {
        assert!(parse(&["client", "::1", "-6", "-n", "1G", "--echo", "--io", "epoll"]).is_ok());
        assert!(parse(&["server", "--family", "inet-smc", "-p", "0", "-c", "3"]).is_ok());
        assert!(parse(&["client", "h", "--expect-errno", "ECONNREFUSED"]).is_ok());
        for bad in [
            &["client"][..],
            &["client", "h", "-4", "-6"],
            &["client", "h", "--expect-errno", "ENOSUCH"],
            &["client", "h", "--urgent", "--bytes", "1"],
            &["client", "h", "--abort", "--direction", "down"],
            &["client", "h", "--connections", "0"],
            &["server", "--timeout", "0"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
