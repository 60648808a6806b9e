// SPDX-License-Identifier: GPL-2.0

//! `smc_bench`: how fast a kind of socket is.
//!
//! A client does one thing for some seconds, or some times, and prints the result as a line of JSON. The
//! server does what the first bytes of each connection ask for, until it is killed. Nothing here knows what
//! is compared with what, nor how often.

use crate::socket::{Family, Mode};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use socket2::{SockAddr, Socket};
use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Measure one thing over one kind of stream socket.
#[derive(Clone, Debug, Parser)]
#[command(name = "smc_bench", version)]
pub struct Cli {
    /// Side to be.
    #[command(subcommand)]
    pub role: Role,
}

/// The two sides.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// Serve clients until killed
    Server(Common),
    /// Measure, and print the result
    Client(ClientArgs),
    /// Measure what each line of the input asks for (options of client), and print a line for each
    Jobs(Common),
}

/// Options of both sides.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Address to listen on, or to connect to
    pub address: IpAddr,
    /// How sockets are asked for
    #[arg(long, value_enum, default_value_t = Family::Tcp)]
    pub family: Family,
    /// Port of the server
    #[arg(short, long, default_value_t = 5301)]
    pub port: u16,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Bytes from client to server, in Mbit/s
    Bulk,
    /// A message there and one back, one at a time, per second
    Requests,
    /// Connections one after the other, each with a byte there and back, per second
    Connects,
    /// So many connections that do nothing: the kernel memory of each end, in KiB, where server and client
    /// run on one kernel
    Idle,
}

/// Options of the client.
#[derive(Clone, Debug, Args)]
pub struct ClientArgs {
    /// Options of both sides.
    #[command(flatten)]
    pub common: Common,
    /// What it is to do.
    #[command(flatten)]
    pub job: Job,
}

/// A line of input.
#[derive(Clone, Debug, Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    job: Job,
}

/// One measurement.
#[derive(Clone, Debug, Args)]
pub struct Job {
    /// What to measure
    #[arg(long, value_enum)]
    pub what: What,
    /// Connections at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub streams: u32,
    /// Bytes of a message; for bulk, of a write
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub size: u32,
    /// Milliseconds that are measured
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub ms: u64,
    /// Milliseconds before them that do not count
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub warm_up: u64,
    /// Bytes, requests or connections of each stream, however long they take
    #[arg(long, conflicts_with = "ms")]
    pub count: Option<u64>,
}

/// What a client says.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    what: What,
    unit: &'static str,
    value: f64,
    /// What carried the data; all connections have the same.
    mode: Mode,
    /// Times of single requests or connections in microseconds: median, and of the slowest hundredth.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<f64>,
}

/// The most that a server reads at once.
const CHUNK: usize = 1 << 17;

/// How long a step may take before a side gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the first bytes of a connection ask the server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Take everything, and tell how much it was.
    Take,
    /// Send messages of that size back.
    Echo(u32),
    /// Send a byte, and keep the connection.
    Hold,
    /// Close what is kept, then send a byte.
    Release,
}

impl Wish {
    const LEN: usize = 8;
    const MAGIC: [u8; 3] = *b"SMB";

    fn emit(self) -> [u8; Self::LEN] {
        let (kind, size) = match self {
            Wish::Take => (0, 0),
            Wish::Echo(size) => (1, size),
            Wish::Hold => (2, 0),
            Wish::Release => (3, 0),
        };
        let mut bytes = [0; Self::LEN];
        bytes[..3].copy_from_slice(&Self::MAGIC);
        bytes[3] = kind;
        bytes[4..].copy_from_slice(&size.to_be_bytes());
        bytes
    }

    fn parse(bytes: [u8; Self::LEN]) -> io::Result<Self> {
        let size = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match (bytes[..3] == Self::MAGIC, bytes[3]) {
            (true, 0) => Ok(Wish::Take),
            (true, 1) if (1..=1 << 24).contains(&size) => Ok(Wish::Echo(size)),
            (true, 2) => Ok(Wish::Hold),
            (true, 3) => Ok(Wish::Release),
            _ => Err(io::Error::other("not a client of this program")),
        }
    }
}

impl Common {
    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    fn socket(&self) -> io::Result<Socket> {
        let socket = self.family.socket(&self.address())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    fn serve(&self) -> io::Result<()> {
        let listener = self.socket()?;
        listener.set_reuse_address(true)?;
        listener.bind(&SockAddr::from(self.address()))?;
        listener.listen(1024)?;
        listener.set_read_timeout(None)?;
        loop {
            let (socket, _) = listener.accept()?;
            thread::spawn(move || serve_one(socket));
        }
    }

    fn connect(&self, wish: Wish) -> io::Result<Socket> {
        let mut socket = self.socket()?;
        socket.connect(&SockAddr::from(self.address()))?;
        socket.set_tcp_nodelay(true)?;
        socket.write_all(&wish.emit())?;
        Ok(socket)
    }
}

/// The connections that clients want kept. No thread does that, since its memory would be counted.
static HELD: Mutex<Vec<Socket>> = Mutex::new(Vec::new());

fn serve_one(mut socket: Socket) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut wish = [0; Wish::LEN];
    socket.read_exact(&mut wish)?;
    socket.set_tcp_nodelay(true)?;
    match Wish::parse(wish)? {
        Wish::Take => {
            let mut buffer = vec![0; CHUNK];
            let mut taken = 0u64;
            loop {
                match socket.read(&mut buffer)? {
                    0 => return socket.write_all(&taken.to_be_bytes()),
                    n => taken += n as u64,
                }
            }
        }
        Wish::Echo(size) => {
            let mut message = vec![0; size as usize];
            while receive(&mut socket, &mut message)? {
                socket.write_all(&message)?;
            }
            Ok(())
        }
        Wish::Hold => {
            socket.write_all(&[1])?;
            held().push(socket);
            Ok(())
        }
        Wish::Release => {
            held().clear();
            socket.write_all(&[1])
        }
    }
}

fn held() -> std::sync::MutexGuard<'static, Vec<Socket>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills the buffer; false if the stream ends before it begins.
fn receive(socket: &mut Socket, buffer: &mut [u8]) -> io::Result<bool> {
    match socket.read(buffer)? {
        0 => Ok(false),
        n => socket.read_exact(&mut buffer[n..]).map(|()| true),
    }
}

/// What one connection, or one row of them, has done.
struct Done {
    mode: Mode,
    /// Bytes or events, and how long they took.
    count: u64,
    took: Duration,
    times: Vec<Duration>,
}

/// When a measurement is over.
#[derive(Clone, Copy)]
enum End {
    At(Instant),
    After(u64),
}

impl End {
    fn reached(self, done: u64) -> bool {
        match self {
            End::At(time) => Instant::now() >= time,
            End::After(count) => done >= count,
        }
    }
}

impl ClientArgs {
    fn measure(&self) -> io::Result<Outcome> {
        if self.job.what == What::Idle {
            return self.idle();
        }
        let together = Arc::new(Barrier::new(self.job.streams as usize));
        let threads: Vec<_> = (0..self.job.streams)
            .map(|_| {
                let (this, together) = (self.clone(), together.clone());
                thread::spawn(move || match this.job.what {
                    What::Bulk => this.bulk(&together),
                    What::Requests => this.requests(&together),
                    What::Connects | What::Idle => this.connects(&together),
                })
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            all.push(
                thread
                    .join()
                    .map_err(|_| io::Error::other("a thread panicked"))??,
            );
        }
        summary(self.job.what, &all)
    }

    fn warm_until(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.job.warm_up)
    }

    /// The end of what begins now.
    fn end(&self) -> End {
        match self.job.count {
            Some(count) => End::After(count),
            None => End::At(Instant::now() + Duration::from_millis(self.job.ms)),
        }
    }

    /// The clock runs from the first byte that counts until the server has told that it has them all, so
    /// that no buffer helps.
    fn bulk(&self, together: &Barrier) -> io::Result<Done> {
        let socket = self.common.connect(Wish::Take);
        together.wait();
        let mut socket = socket?;
        let data = vec![0x5a; self.job.size as usize];
        let mut before = 0u64;
        let warm_until = self.warm_until();
        while Instant::now() < warm_until {
            before += socket.write(&data)? as u64;
        }
        let (start, end) = (Instant::now(), self.end());
        let mut sent = 0u64;
        while !end.reached(sent) {
            sent += socket.write(&data)? as u64;
        }
        socket.shutdown(Shutdown::Write)?;
        let mut taken = [0; 8];
        socket.read_exact(&mut taken)?;
        if u64::from_be_bytes(taken) != before + sent {
            return Err(io::Error::other("the server has not got everything"));
        }
        Ok(Done {
            mode: Mode::of(&socket, self.common.family),
            count: sent,
            took: start.elapsed(),
            times: Vec::new(),
        })
    }

    fn requests(&self, together: &Barrier) -> io::Result<Done> {
        let socket = self.common.connect(Wish::Echo(self.job.size));
        together.wait();
        let mut socket = socket?;
        let mode = Mode::of(&socket, self.common.family);
        let mut message = vec![0x5a; self.job.size as usize];
        self.repeat(mode, || {
            socket.write_all(&message)?;
            socket.read_exact(&mut message)
        })
    }

    fn connects(&self, together: &Barrier) -> io::Result<Done> {
        together.wait();
        let mut mode = None;
        let mut done = self.repeat(Mode::Unknown, || {
            let mut socket = self.common.connect(Wish::Echo(1))?;
            let mut byte = [0x5a];
            socket.write_all(&byte)?;
            socket.read_exact(&mut byte)?;
            same_mode(&mut mode, Mode::of(&socket, self.common.family))
        })?;
        done.mode = mode.unwrap_or(Mode::Unknown);
        Ok(done)
    }

    /// Opens connections one after the other, keeps all of them, and looks what is free then.
    fn idle(&self) -> io::Result<Outcome> {
        let before = settled_use()?;
        let mut mode = None;
        let mut sockets = Vec::new();
        for _ in 0..self.job.streams {
            let mut socket = self.common.connect(Wish::Hold)?;
            socket.read_exact(&mut [0])?;
            same_mode(&mut mode, Mode::of(&socket, self.common.family))?;
            sockets.push(socket);
        }
        let kib = settled_use()? as f64 - before as f64;
        self.common.connect(Wish::Release)?.read_exact(&mut [0])?;
        Ok(Outcome {
            what: What::Idle,
            unit: "KiB",
            value: kib / 2.0 / f64::from(self.job.streams),
            mode: mode.unwrap_or(Mode::Unknown),
            median_us: None,
            p99_us: None,
        })
    }

    /// Repeats an action for as long, or as often, as is wanted, and times each.
    fn repeat(&self, mode: Mode, mut action: impl FnMut() -> io::Result<()>) -> io::Result<Done> {
        let warm_until = self.warm_until();
        while Instant::now() < warm_until {
            action()?;
        }
        let (start, end) = (Instant::now(), self.end());
        let mut times = Vec::new();
        let mut last = start;
        while !end.reached(times.len() as u64) {
            action()?;
            let now = Instant::now();
            times.push(now - last);
            last = now;
        }
        Ok(Done {
            mode,
            count: times.len() as u64,
            took: last - start,
            times,
        })
    }
}

/// All connections of a measurement have to be alike.
fn same_mode(known: &mut Option<Mode>, now: Mode) -> io::Result<()> {
    if *known.get_or_insert(now) != now {
        return Err(io::Error::other("connections of different modes"));
    }
    Ok(())
}

/// The memory in use, in KiB, without what only keeps files; once what ends in the background had time to.
fn settled_use() -> io::Result<u64> {
    thread::sleep(Duration::from_secs(1));
    let read = |path| std::fs::read_to_string(path);
    let kept =
        kept_by_processors(&read("/proc/zoneinfo")?) * (rustix::param::page_size() as u64 / 1024);
    used(&read("/proc/meminfo")?)
        .and_then(|used| used.checked_sub(kept))
        .ok_or_else(|| io::Error::other("/proc/meminfo is not understood"))
}

/// Memory that is neither free nor keeps a file, in KiB.
fn used(meminfo: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = meminfo.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    field("MemTotal:")?
        .checked_sub(field("MemFree:")?)?
        .checked_sub(field("Buffers:")?)?
        .checked_sub(field("Cached:")?)
}

/// Free pages that processors keep to themselves, megabytes of them at times, which MemFree does not count.
fn kept_by_processors(zoneinfo: &str) -> u64 {
    let counts = zoneinfo
        .lines()
        .filter_map(|line| line.trim().strip_prefix("count:"));
    counts
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum()
}

/// Joins what the connections have done. Each has its own time, so rates are added.
fn summary(what: What, all: &[Done]) -> io::Result<Outcome> {
    let mode = all.first().map_or(Mode::Unknown, |done| done.mode);
    if all.iter().any(|done| done.mode != mode) {
        return Err(io::Error::other("connections of different modes"));
    }
    let rate: f64 = all
        .iter()
        .map(|done| done.count as f64 / done.took.as_secs_f64().max(1e-9))
        .sum();
    let mut times: Vec<_> = all.iter().flat_map(|done| &done.times).copied().collect();
    times.sort_unstable();
    // The smallest that so much of all do not exceed.
    let at = |share: f64| {
        let place = (times.len() as f64 * share).ceil() as usize;
        let time = times.get(place.saturating_sub(1))?;
        Some(time.as_nanos() as f64 / 1000.0)
    };
    let (unit, value) = match what {
        What::Bulk => ("Mbit/s", rate * 8.0 / 1e6),
        What::Requests | What::Connects | What::Idle => ("1/s", rate),
    };
    Ok(Outcome {
        what,
        unit,
        value,
        mode,
        median_us: at(0.5),
        p99_us: at(0.99),
    })
}

impl Cli {
    /// Does it; gives what to print.
    pub fn run(&self) -> io::Result<Option<String>> {
        match &self.role {
            Role::Server(common) => common.serve().map(|()| None),
            Role::Client(client) => {
                let outcome = client.measure()?;
                Ok(Some(serde_json::to_string(&outcome)?))
            }
            Role::Jobs(common) => jobs(common, io::stdin().lock(), io::stdout()).map(|()| None),
        }
    }
}

/// Answers each line; one that fails with what was wrong.
fn jobs(common: &Common, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    for line in input.lines() {
        let answer = match Line::try_parse_from(line?.split_whitespace()) {
            Ok(Line { job }) => {
                let common = common.clone();
                ClientArgs { common, job }
                    .measure()
                    .map_err(|e| e.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let answer = match answer {
            Ok(outcome) => serde_json::to_string(&outcome)?,
            Err(error) => serde_json::json!({ "error": error }).to_string(),
        };
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes() {
        for wish in [
            Wish::Take,
            Wish::Echo(1),
            Wish::Echo(1 << 24),
            Wish::Hold,
            Wish::Release,
        ] {
            assert_eq!(Wish::parse(wish.emit()).unwrap(), wish);
        }
        assert!(Wish::parse(Wish::Echo(0).emit()).is_err());
        assert!(Wish::parse(*b"GET / HT").is_err());
    }

    #[test]
    fn rates_are_added_and_times_sorted() {
        let done = |count: u64, ms: u64| Done {
            mode: Mode::Tcp,
            count,
            took: Duration::from_millis(ms),
            times: (1..=count).rev().map(Duration::from_micros).collect(),
        };
        let outcome = summary(What::Requests, &[done(100, 1000), done(100, 500)]).unwrap();
        assert!((outcome.value - 300.0).abs() < 0.1);
        assert_eq!(outcome.median_us, Some(50.0));
        assert_eq!(outcome.p99_us, Some(99.0));
        let mut other = done(1, 1);
        other.mode = Mode::Smc;
        assert!(summary(What::Bulk, &[done(1, 1), other]).is_err());
    }

    /// A server of this process.
    fn server() -> Common {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let socket = Socket::from(stream.unwrap());
                thread::spawn(move || serve_one(socket));
            }
        });
        Common {
            address: "127.0.0.1".parse().unwrap(),
            family: Family::Tcp,
            port,
        }
    }

    #[test]
    fn over_loopback() {
        let common = server();
        for (what, streams, size) in [
            (What::Bulk, 2, 4096),
            (What::Requests, 1, 1),
            (What::Requests, 3, 5000),
            (What::Connects, 1, 1),
        ] {
            let job = Job {
                what,
                streams,
                size,
                ms: 30,
                warm_up: 5,
                count: None,
            };
            let common = common.clone();
            let outcome = ClientArgs { common, job }.measure().unwrap();
            assert!(outcome.value > 0.0);
            assert_eq!(outcome.mode, Mode::Tcp);
            assert_eq!(outcome.median_us.is_some(), what != What::Bulk);
        }
    }

    #[test]
    fn jobs_are_answered_line_by_line() {
        let common = server();
        let input = "--what requests --size 3 --count 7 --warm-up 0\n--what nothing\n--what idle --streams 2\n";
        let mut output = Vec::new();
        jobs(&common, input.as_bytes(), &mut output).unwrap();
        let answers: Vec<serde_json::Value> = output
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert_eq!(answers.len(), 3);
        assert_eq!(answers[0]["what"], "requests");
        assert!(answers[1]["error"].as_str().unwrap().contains("nothing"));
        assert_eq!(answers[2]["mode"], "tcp");
        assert!(held().is_empty());
    }

    #[test]
    fn a_count_is_kept_to() {
        let job = Job {
            what: What::Requests,
            streams: 1,
            size: 1,
            ms: 1,
            warm_up: 0,
            count: Some(9),
        };
        let common = server();
        let done = ClientArgs { common, job }
            .requests(&Barrier::new(1))
            .unwrap();
        assert_eq!((done.count, done.times.len()), (9, 9));
    }

    #[test]
    fn memory_in_use() {
        let text = "MemTotal: 1000 kB\nMemFree:  300 kB\nBuffers: 10 kB\nCached: 90 kB\nSwapCached: 5 kB\n";
        assert_eq!(used(text), Some(600));
        assert_eq!(used("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn pages_of_processors() {
        let text = "Node 0, zone   DMA32\n  pages free     7\n  pagesets\n    cpu: 0\n              count:    12\n              \
                    high:     13\n    cpu: 1\n              count:    3\n";
        assert_eq!(kept_by_processors(text), 15);
        assert_eq!(kept_by_processors(""), 0);
    }
}
