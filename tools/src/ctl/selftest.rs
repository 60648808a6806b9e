// SPDX-License-Identifier: GPL-2.0

//! `smcctl selftest`: a connection over SMC inside this host.
//!
//! Two namespaces stand for two hosts, or one of its own for both ends where a device of the host is to be
//! used. A thread each enters one of them and has a socket there. Whatever is made is on a list before, and
//! taken away at the end or when a signal comes.

use super::steps::{Report, Step, Verdict};
use super::table::bytes;
use super::{Failure, Output};
use crate::model::device::Device;
use crate::model::group::{Group, Link};
use crate::model::stats::Stats;
use crate::model::system::{self, PnetEntry, SystemInfo};
use crate::netlink::{Error, Kernel, Source};
use crate::sys;
use crate::uapi::{command as request, pnet, GEN_FAMILY, PNET_FAMILY};
use clap::Args;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use socket2::{Domain, Protocol, Socket, Type};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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

/// What to test.
#[derive(Clone, Debug, Default, Args)]
pub struct SelftestArgs {
    /// Test this RDMA device of the host, not software devices made for it
    #[arg(short, long)]
    pub device: Option<String>,
    /// Port of the device
    #[arg(short, long, requires = "device", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub port: u8,
}

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

/// What there is to take away, and whether that is over.
#[derive(Default)]
struct Made {
    spaces: Vec<String>,
    pnet_id: Option<String>,
    eid: Option<String>,
}

/// Adds or removes an enterprise ID.
fn change_eid(request: u8, eid: &str) -> Result<(), Trouble> {
    let failed = |why: String| trouble(format!("the EID {eid}: {why}"), "see `smcctl ueid list`");
    let attributes = system::eid_attribute(eid).map_err(failed)?;
    Kernel::new()
        .and_then(|mut kernel| kernel.execute(GEN_FAMILY, request, &attributes))
        .map_err(|error| failed(error.to_string()))
}

/// Whether the module speaks over software devices in version 2 alone, and has no EID for that: version
/// 1 of the kernel's own takes GIDs of RoCE v1, which those devices do not have.
fn lacks_eid(module: Option<&str>, eids: &[String]) -> bool {
    module != Some("smc_r") && eids.is_empty()
}

impl Made {
    /// What was not made after all is not missed.
    fn take_away(&mut self) {
        for name in self.spaces.drain(..) {
            let _ = command(&["ip", "netns", "delete", &name]);
        }
        if let Some(id) = self.pnet_id.take() {
            let entry = PnetEntry {
                id,
                ..PnetEntry::default()
            };
            let _ = Kernel::new()
                .and_then(|mut kernel| kernel.execute(PNET_FAMILY, pnet::DEL, &entry.attributes()));
        }
        if let Some(eid) = self.eid.take() {
            let _ = change_eid(request::REMOVE_UEID, &eid);
        }
    }
}

/// Namespaces, an entry of the table of pnet ids, and an enterprise ID; they go away with it, and all that is in them.
struct Hosts {
    names: [String; 2],
    made: Arc<Mutex<Made>>,
    /// The signal that has come, or 0.
    signal: Arc<AtomicUsize>,
}

impl Hosts {
    /// None yet. From here on signals do not end the program before everything is taken away.
    fn new() -> Result<Self, Trouble> {
        let pid = std::process::id();
        let names = ["a", "b"].map(|side| format!("smc-selftest-{pid}-{side}"));
        let made = Arc::new(Mutex::new(Made::default()));
        let numbers = [SIGHUP, SIGINT, SIGTERM];
        let failed = |error| trouble(format!("signals: {error}"), "report this");
        let signal = Arc::new(AtomicUsize::new(0));
        for number in numbers {
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)
                .map_err(failed)?;
        }
        let mut signals = Signals::new(numbers).map_err(failed)?;
        let theirs = made.clone();
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held for good: nothing more is made.
                let mut made = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                made.take_away();
                std::process::exit(128 + signal);
            }
        });
        Ok(Self {
            names,
            made,
            signal,
        })
    }

    /// Makes something that is to be taken away; `note` puts it on the list.
    fn make(
        &self,
        note: impl FnOnce(&mut Made),
        action: impl FnOnce() -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut made);
        action()
    }

    fn make_space(&self, name: &str) -> Result<(), Trouble> {
        self.make(
            |made| made.spaces.push(name.into()),
            || command(&["ip", "netns", "add", name]),
        )?;
        command(&["ip", "-n", name, "link", "set", "lo", "up"])
    }

    /// The kernel's own module has one list of EIDs for the host.
    fn make_eid(&self, source: &mut dyn Source) -> Result<(), Trouble> {
        // A module without version 2 has none.
        let eids = super::status::if_supported(system::ueids(source));
        let eids = eids.map_err(asked)?.unwrap_or_default();
        if !lacks_eid(sys::module(), &eids) {
            return Ok(());
        }
        let eid = format!("SMCTEST{}", std::process::id());
        self.make(
            |made| made.eid = Some(eid.clone()),
            || change_eid(request::ADD_UEID, &eid),
        )
    }

    fn make_pair(&self) -> Result<(), Trouble> {
        for name in &self.names {
            self.make_space(name)?;
        }
        let [a, b] = &self.names;
        command(&[
            "ip", "link", "add", "smc0", "netns", a, "type", "veth", "peer", "name", "smc0",
            "netns", b,
        ])?;
        for (name, address) in self.names.iter().zip([SERVER, CLIENT]) {
            let address = format!("{address}/24");
            command(&["ip", "-n", name, "address", "add", &address, "dev", "smc0"])?;
            command(&["ip", "-n", name, "link", "set", "smc0", "up"])?;
        }
        Ok(())
    }

    /// A namespace whose own addresses are in the network of a port of the host.
    fn make_at(&mut self, device: &str, number: u8) -> Result<(), Trouble> {
        let mut kernel = Kernel::new().map_err(asked)?;
        let devices = Device::read_all(&mut kernel).map_err(asked)?;
        let found = devices.iter().find(|other| other.name == device);
        let Some(found) = found else {
            let what = format!("there is no RDMA device {device}");
            return Err(trouble(what, "see `smcctl devices`"));
        };
        let port = found.ports.iter().find(|port| port.port == number);
        let Some(port) = port.filter(|port| port.active) else {
            let what = format!("port {number} of {device} is not active");
            return Err(trouble(what, "see `rdma link` and `smcctl check`"));
        };
        let id = match &port.pnet_id {
            Some(id) => id.clone(),
            None => {
                let id = format!("SMCTEST{}", std::process::id());
                let entry = PnetEntry {
                    id: id.clone(),
                    device: Some(device.into()),
                    port: Some(number),
                    ..PnetEntry::default()
                };
                self.make(
                    |made| made.pnet_id = Some(id.clone()),
                    || {
                        kernel
                            .execute(PNET_FAMILY, pnet::ADD, &entry.attributes())
                            .map_err(|error| {
                                trouble(
                                    format!("a pnet id for {device}: {error}"),
                                    "run it in the initial network namespace, as root",
                                )
                            })
                    },
                )?;
                id
            }
        };
        let [a, b] = &mut self.names;
        b.clone_from(a);
        let name = a.clone();
        self.make_space(&name)?;
        inside(&name, || {
            let entry = PnetEntry {
                id,
                interface: Some("lo".into()),
                ..PnetEntry::default()
            };
            Kernel::new()
                .and_then(|mut kernel| kernel.execute(PNET_FAMILY, pnet::ADD, &entry.attributes()))
                .map_err(asked)
        })
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
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.take_away();
        // What it ended may have been a program that was waited for; that is no result.
        let signal = self.signal.load(Ordering::Relaxed);
        if signal != 0 {
            std::process::exit(128 + signal as i32);
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

fn listen(address: Ipv4Addr) -> io::Result<Socket> {
    let socket = socket()?;
    socket.bind(&SocketAddr::from((address, PORT)).into())?;
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

fn send_and_compare(address: Ipv4Addr) -> Result<Outcome, Trouble> {
    let mut kernel = Kernel::new().map_err(asked)?;
    let before = Stats::read(&mut kernel).map_err(asked)?;
    let old = Link::read_all(&mut kernel).map_err(asked)?;
    let socket = socket().map_err(system("socket"))?;
    let peer = SocketAddr::from((address, PORT));
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
    let time = started.elapsed();
    let here = smc_bpf::this_namespace().map_err(system("network namespace"))?;
    let groups = Group::read_all(&mut kernel).map_err(asked)?;
    let links = Link::read_all(&mut kernel).map_err(asked)?;
    Ok(Outcome {
        time,
        before,
        after: Stats::read(&mut kernel).map_err(asked)?,
        links: of_own_groups(&old, &groups, here, links),
    })
}

/// The links of the connection that was tried. The kernel's own module lists the groups of all namespaces,
/// those of other connections too: new groups of this namespace, which nobody else knows, are meant. Some versions
/// do not say in which namespace a group is.
fn of_own_groups(old: &[Link], groups: &[Group], here: u64, mut links: Vec<Link>) -> Vec<Link> {
    let elsewhere = |link: &Link| {
        groups.iter().any(|group| {
            group.id == link.group && group.net_cookie.is_some_and(|cookie| cookie != here)
        })
    };
    let is_new = |link: &Link| old.iter().all(|old| old.group != link.group);
    links.retain(|link| is_new(link) && !elsewhere(link));
    links
}

fn transfer(hosts: &Hosts, address: Ipv4Addr) -> Result<Outcome, Trouble> {
    let [a, b] = &hosts.names;
    let listener = inside(a, || listen(address).map_err(system("listen")))?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener));
        let result = inside(b, || send_and_compare(address));
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

/// What shows that it was SMC, over the device that it had to be.
fn proof(result: &Outcome, wanted: &SelftestArgs) -> Step {
    let name = "SMC";
    let handshakes = |stats: &Stats| stats.smcr.handshakes();
    if handshakes(&result.after) > handshakes(&result.before) {
        let wrong = |link: &&Link| {
            let device = wanted.device.as_ref();
            device.is_some_and(|device| *device != link.device || wanted.port != link.port)
        };
        if result.links.is_empty() {
            let step = Step::new(name, Verdict::Failure, "no new link group has a link");
            return step.advise("see `dmesg`");
        }
        if let Some(link) = result.links.iter().find(wrong) {
            let detail = format!("the link is on {}/{}", link.device, link.port);
            let step = Step::new(name, Verdict::Failure, detail);
            return step.advise("its network has several ports; see `smcctl devices`");
        }
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

/// What both ways have to say about the data.
fn data(result: Result<Outcome, Trouble>, args: &SelftestArgs) -> Vec<Step> {
    let result = match result {
        Ok(result) => result,
        Err(trouble) => {
            let step = Step::new("data", Verdict::Failure, trouble.what);
            return vec![step.advise(trouble.advice)];
        }
    };
    let rate = (2 * AMOUNT) as f64 / result.time.as_secs_f64().max(0.001);
    let detail = format!(
        "{} there and back without a wrong byte, {}/s",
        bytes(AMOUNT as u64),
        bytes(rate as u64)
    );
    vec![
        proof(&result, args),
        Step::new("data", Verdict::Pass, detail),
    ]
}

fn steps(args: &SelftestArgs, source: &mut dyn Source) -> Result<Vec<Step>, Error> {
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
    let mut hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(trouble) => {
            note(&mut steps, "hosts", "", &Err(trouble));
            return Ok(steps);
        }
    };
    if let Err(trouble) = hosts.make_eid(source) {
        note(&mut steps, "EID", "", &Err(trouble));
        return Ok(steps);
    }
    if let Some(device) = &args.device {
        let made = hosts.make_at(device, args.port);
        let good = format!(
            "a network namespace, whose own addresses are in the network of {device}/{}",
            args.port
        );
        if note(&mut steps, "host", &good, &made) {
            let result = transfer(&hosts, Ipv4Addr::LOCALHOST).map_err(|failed| Trouble {
                advice: "the card has to take packets for itself (loopback); see `dmesg`, and the \
                         counters in /sys/class/infiniband",
                ..failed
            });
            steps.extend(data(result, args));
        }
        return Ok(steps);
    }
    let made = hosts.make_pair();
    let good = "two network namespaces with a pair of cards";
    if !note(&mut steps, "hosts", good, &made) {
        return Ok(steps);
    }
    let ready = hosts.add_devices().and_then(|()| {
        let sides = hosts.names.iter().zip(["a", "b"]);
        let mut ready =
            sides.map(|(name, side)| inside(name, || wait_for_port(&Hosts::device(side))));
        ready.try_for_each(|outcome| outcome)
    });
    if note(
        &mut steps,
        "devices",
        "a software RDMA device on each, active",
        &ready,
    ) {
        steps.extend(data(transfer(&hosts, SERVER), args));
    }
    Ok(steps)
}

pub(super) fn run(
    args: &SelftestArgs,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<bool, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::NotRoot(
            "the selftest makes network namespaces and devices",
        ));
    }
    let good = match &args.device {
        Some(device) => format!("SMC-R works over {device}"),
        None => "SMC-R works inside this host".into(),
    };
    let bad = match &args.device {
        Some(device) => format!("SMC-R does not work over {device}"),
        None => "SMC-R does not work inside this host".into(),
    };
    let report = Report::new(steps(args, source)?, good, &bad);
    output.report(&report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(group: &str, device: &str) -> Link {
        Link {
            group: group.into(),
            device: device.into(),
            port: 1,
            ..Link::default()
        }
    }

    fn outcome(links: Vec<Link>) -> Outcome {
        let mut after = Stats::default();
        after.smcr.client_v1 = 1;
        Outcome {
            time: Duration::from_secs(1),
            before: Stats::default(),
            after,
            links,
        }
    }

    #[test]
    fn only_new_groups_of_the_own_namespace_prove_something() {
        let group = |id: &str, net_cookie| Group {
            id: id.into(),
            net_cookie,
            ..Group::default()
        };
        let old = [link("00000100", "mlx5_0")];
        let all = || {
            vec![
                link("00000100", "mlx5_0"),
                link("00000200", "rxe0"),
                link("00000300", "mlx5_1"),
            ]
        };
        // The third is somebody else's, and was made meanwhile.
        let groups = [
            group("00000100", Some(7)),
            group("00000200", Some(7)),
            group("00000300", Some(1)),
        ];
        let links = of_own_groups(&old, &groups, 7, all());
        assert_eq!(links, [link("00000200", "rxe0")]);
        let silent = ["00000100", "00000200", "00000300"].map(|id| group(id, None));
        assert_eq!(of_own_groups(&old, &silent, 7, all()).len(), 2);
        let wanted = |device: &str| SelftestArgs {
            device: Some(device.into()),
            port: 1,
        };
        let verdict = |links: &[Link], args| proof(&outcome(links.to_vec()), &args).verdict;
        assert_eq!(verdict(&links, wanted("rxe0")), Verdict::Pass);
        assert_eq!(verdict(&links, wanted("mlx5_0")), Verdict::Failure);
        assert_eq!(verdict(&[], SelftestArgs::default()), Verdict::Failure);
    }

    #[test]
    fn the_module_of_the_kernel_needs_an_eid() {
        assert!(lacks_eid(Some("smc"), &[]));
        assert!(lacks_eid(None, &[]), "built in");
        assert!(!lacks_eid(Some("smc"), &["LAB-1".into()]));
        assert!(!lacks_eid(Some("smc_r"), &[]));
    }
}
