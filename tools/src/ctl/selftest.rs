// SPDX-License-Identifier: GPL-2.0

//! `smcctl selftest`: a connection over SMC inside this host.
//!
//! Two namespaces stand for two hosts. A thread each enters one of them and has a socket there.

use super::steps::{Report, Step, Verdict};
use super::table::bytes;
use super::{Failure, Output};
use crate::model::device::Device;
use crate::model::group::Link;
use crate::model::stats::Stats;
use crate::model::system::SystemInfo;
use crate::netlink::{Error, Kernel, Source};
use crate::sys;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use socket2::{Domain, Protocol, Socket, Type};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 4711;
/// Bytes that go there, and come back.
const AMOUNT: usize = 4 << 20;
const CHUNK: usize = 64 << 10;
/// A write or read that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a port may take to become active.
const PORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why it failed, and what to do.
struct Trouble {
    what: String,
    advice: &'static str,
}

fn trouble(what: impl Into<String>, advice: &'static str) -> Trouble {
    let what = what.into();
    Trouble { what, advice }
}

fn command(words: &[&str]) -> Result<(), Trouble> {
    let advice = "install iproute2; the step can be tried by hand";
    let shown = words.join(" ");
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.map_err(|error| trouble(format!("`{shown}`: {error}"), advice))?;
    if output.status.success() {
        return Ok(());
    }
    let said = crate::attr::text(output.stderr.trim_ascii());
    Err(trouble(format!("`{shown}`: {said}"), advice))
}

/// The two namespaces; they go away with it, and all that is in them.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    fn make() -> Result<Self, Trouble> {
        let pid = std::process::id();
        let names = ["a", "b"].map(|side| format!("smc-selftest-{pid}-{side}"));
        let hosts = Self { names };
        for name in &hosts.names {
            command(&["ip", "netns", "add", name])?;
        }
        let [a, b] = &hosts.names;
        command(&[
            "ip", "link", "add", "smc0", "netns", a, "type", "veth", "peer", "name", "smc0",
            "netns", b,
        ])?;
        for (name, address) in hosts.names.iter().zip([SERVER, CLIENT]) {
            let address = format!("{address}/24");
            command(&["ip", "-n", name, "address", "add", &address, "dev", "smc0"])?;
            command(&["ip", "-n", name, "link", "set", "lo", "up"])?;
            command(&["ip", "-n", name, "link", "set", "smc0", "up"])?;
        }
        Ok(hosts)
    }

    fn device(side: &str) -> String {
        format!("smcst{}{side}", std::process::id())
    }

    fn add_devices(&self) -> Result<(), Trouble> {
        for (name, side) in self.names.iter().zip(["a", "b"]) {
            let device = Self::device(side);
            command(&[
                "ip", "netns", "exec", name, "rdma", "link", "add", &device, "type", "rxe",
                "netdev", "smc0",
            ])?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not be there, if making it failed.
            let _ = command(&["ip", "netns", "delete", name]);
        }
    }
}

/// Does something in a namespace, on a thread of its own.
fn inside<T: Send>(
    name: &str,
    action: impl FnOnce() -> Result<T, Trouble> + Send,
) -> Result<T, Trouble> {
    let enter = || {
        let file = File::open(format!("/run/netns/{name}"))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok::<_, io::Error>(())
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter()
                .map_err(|error| trouble(format!("namespace {name}: {error}"), "run it as root"))?;
            action()
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(trouble("a thread panicked", "report this")))
    })
}

fn system(what: &'static str) -> impl Fn(io::Error) -> Trouble {
    move |error| trouble(format!("{what}: {error}"), "see `dmesg` and `smcctl check`")
}

fn asked(error: Error) -> Trouble {
    trouble(error.to_string(), "see `smcctl check`")
}

/// Waits until the module sees the device, and its port can be used.
fn wait_for_port(device: &str) -> Result<(), Trouble> {
    let mut kernel = Kernel::new().map_err(asked)?;
    let end = Instant::now() + PORT_TIMEOUT;
    loop {
        let devices = Device::read_all(&mut kernel).map_err(asked)?;
        let found = devices.iter().find(|other| other.name == device);
        if found.is_some_and(|device| device.ports.iter().any(|port| port.active)) {
            return Ok(());
        }
        if Instant::now() > end {
            let what = format!("{device} is not active after {} s", PORT_TIMEOUT.as_secs());
            return Err(trouble(what, "see `rdma link` and `dmesg`"));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Byte number `place` of the stream, without a short period.
fn pattern(place: usize) -> u8 {
    (place.wrapping_mul(0x9e37_79b1) >> 13) as u8
}

fn socket() -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::from(sys::AF_SMC),
        Type::STREAM,
        Some(Protocol::from(0)),
    )?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

fn listen() -> io::Result<Socket> {
    let socket = socket()?;
    socket.bind(&SocketAddr::from((SERVER, PORT)).into())?;
    socket.listen(1)?;
    Ok(socket)
}

/// Sends back what comes, until its end.
fn serve(listener: &Socket) -> io::Result<()> {
    let (mut socket, _) = listener.accept()?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; CHUNK];
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            count => socket.write_all(&buffer[..count])?,
        }
    }
}

/// What the client found out while it was connected.
struct Outcome {
    time: Duration,
    before: Stats,
    after: Stats,
    links: Vec<Link>,
}

fn send_and_compare() -> Result<Outcome, Trouble> {
    let mut kernel = Kernel::new().map_err(asked)?;
    let before = Stats::read(&mut kernel).map_err(asked)?;
    let socket = socket().map_err(system("socket"))?;
    let peer = SocketAddr::from((SERVER, PORT));
    socket.connect(&peer.into()).map_err(system("connect"))?;
    let started = Instant::now();
    let writer = || -> io::Result<()> {
        for start in (0..AMOUNT).step_by(CHUNK) {
            let chunk: Vec<_> = (start..start + CHUNK).map(pattern).collect();
            (&socket).write_all(&chunk)?;
        }
        Ok(())
    };
    let reader = || -> io::Result<Option<usize>> {
        let mut buffer = vec![0; CHUNK];
        let mut place = 0;
        while place < AMOUNT {
            let count = (&socket).read(&mut buffer)?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            for byte in &buffer[..count] {
                if *byte != pattern(place) {
                    return Ok(Some(place));
                }
                place += 1;
            }
        }
        Ok(None)
    };
    let (written, read) = thread::scope(|scope| {
        let writing = scope.spawn(writer);
        let read = reader();
        if !matches!(read, Ok(None)) {
            // The writer may wait for room that never comes.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        (writing.join(), read)
    });
    if let Some(place) = read.map_err(system("receive"))? {
        return Err(trouble(
            format!("byte {place} is wrong"),
            "report this, with `dmesg`",
        ));
    }
    match written {
        Ok(written) => written.map_err(system("send"))?,
        Err(_) => return Err(trouble("a thread panicked", "report this")),
    }
    Ok(Outcome {
        time: started.elapsed(),
        before,
        after: Stats::read(&mut kernel).map_err(asked)?,
        links: Link::read_all(&mut kernel).map_err(asked)?,
    })
}

fn transfer(hosts: &Hosts) -> Result<Outcome, Trouble> {
    let [a, b] = &hosts.names;
    let listener = inside(a, || listen().map_err(system("listen")))?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener));
        let result = inside(b, send_and_compare);
        if result.is_err() {
            let _ = listener.shutdown(std::net::Shutdown::Both);
        }
        let served = serving.join();
        let result = result?;
        match served {
            Ok(served) => served.map_err(system("server"))?,
            Err(_) => return Err(trouble("a thread panicked", "report this")),
        }
        Ok(result)
    })
}

/// What shows that it was SMC.
fn proof(result: &Outcome) -> Step {
    let name = "SMC";
    let handshakes = |stats: &Stats| stats.smcr.handshakes();
    if handshakes(&result.after) > handshakes(&result.before) {
        let links: Vec<_> = result
            .links
            .iter()
            .map(|link| format!("link {} on {}/{}", link.id, link.device, link.port))
            .collect();
        let sent = result
            .after
            .smcr
            .tx
            .bytes
            .saturating_sub(result.before.smcr.tx.bytes);
        let detail = format!("SMC-R, {} sent over {}", bytes(sent), links.join(", "));
        return Step::new(name, Verdict::Pass, detail);
    }
    let reasons = &result.after.fallbacks.reasons;
    let Some(entry) = reasons.first() else {
        return Step::new(
            name,
            Verdict::Failure,
            "the connection was TCP, without a reason",
        );
    };
    let step = Step::new(
        name,
        Verdict::Failure,
        format!("the connection was TCP: {}", entry.reason),
    );
    match entry.reason.advice() {
        Some(advice) => step.advise(advice),
        None => step,
    }
}

fn steps(source: &mut dyn Source) -> Result<Vec<Step>, Error> {
    let mut steps = Vec::new();
    let note = |steps: &mut Vec<Step>, name, good: &str, outcome: &Result<(), Trouble>| {
        steps.push(match outcome {
            Ok(()) => Step::new(name, Verdict::Pass, good),
            Err(trouble) => Step::new(name, Verdict::Failure, &trouble.what).advise(trouble.advice),
        });
        outcome.is_ok()
    };
    let system = SystemInfo::read(source)?;
    let module = sys::module().unwrap_or("SMC");
    let version = format!("{module}, SMC-R {}.{}", system.version, system.release);
    steps.push(Step::new("module", Verdict::Pass, version));
    let hosts = Hosts::make();
    let (hosts, made) = match hosts {
        Ok(hosts) => (Some(hosts), Ok(())),
        Err(trouble) => (None, Err(trouble)),
    };
    note(
        &mut steps,
        "hosts",
        "two network namespaces with a pair of cards",
        &made,
    );
    let Some(hosts) = hosts else {
        return Ok(steps);
    };
    let ready = hosts.add_devices().and_then(|()| {
        let sides = hosts.names.iter().zip(["a", "b"]);
        let mut ready =
            sides.map(|(name, side)| inside(name, || wait_for_port(&Hosts::device(side))));
        ready.try_for_each(|outcome| outcome)
    });
    if !note(
        &mut steps,
        "devices",
        "a software RDMA device on each, active",
        &ready,
    ) {
        return Ok(steps);
    }
    match transfer(&hosts) {
        Err(trouble) => {
            note(&mut steps, "data", "", &Err(trouble));
        }
        Ok(result) => {
            steps.push(proof(&result));
            let rate = (2 * AMOUNT) as f64 / result.time.as_secs_f64().max(0.001);
            let detail = format!(
                "{} there and back without a wrong byte, {}/s",
                bytes(AMOUNT as u64),
                bytes(rate as u64)
            );
            steps.push(Step::new("data", Verdict::Pass, detail));
        }
    }
    Ok(steps)
}

pub(super) fn run(source: &mut dyn Source, output: &mut Output<'_>) -> Result<bool, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::NotRoot(
            "the selftest makes network namespaces and devices",
        ));
    }
    let report = Report::new(
        steps(source)?,
        "SMC-R works inside this host".into(),
        "SMC-R does not work inside this host",
    );
    output.report(&report)
}
