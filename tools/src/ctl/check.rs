// SPDX-License-Identifier: GPL-2.0

//! `smcctl check`: what keeps this host from using SMC.

use super::firewall::{self, ROCE_PORT};
use super::iptables;
use super::steps::{Report, Step, Verdict};
use super::table::bytes;
use super::{read_devices, Failure, Output};
use crate::model::device::{Device, Port};
use crate::model::group::Group;
use crate::model::own;
use crate::model::socket::SocketInfo;
use crate::model::system::SystemInfo;
use crate::netlink::{Error, Interface, Source};
use crate::sys;
use std::process::Command;

/// What headers take of a packet, at most, beside the data of RDMA.
const HEADERS: u32 = 96;
/// Share of the memory that buffers may take before that is worth a word.
const MEMORY_SHARE: u64 = 4;

pub(super) fn run(source: &mut dyn Source, output: &mut Output<'_>) -> Result<bool, Failure> {
    let steps = steps(source)?;
    let report = Report::new(
        steps,
        "this host can use SMC-R".into(),
        "this host cannot use SMC-R",
    );
    output.report(&report)
}

fn steps(source: &mut dyn Source) -> Result<Vec<Step>, Error> {
    let mut steps = Vec::new();
    match SystemInfo::read(source) {
        Err(Error::NoFamily(_)) => {
            steps.push(
                Step::new("module", Verdict::Failure, "no SMC module is loaded")
                    .advise(sys::NO_SMC_HINT),
            );
            return Ok(steps);
        }
        system => {
            let system = system?;
            let version = own::version(source).ok().flatten();
            let name = sys::module().unwrap_or("SMC");
            let version = version.map_or(String::new(), |version| format!(" {version}"));
            steps.push(Step::new(
                "module",
                Verdict::Pass,
                format!(
                    "{name}{version}, SMC-R {}.{}",
                    system.version, system.release
                ),
            ));
        }
    }
    steps.push(match sys::smc_available() {
        Ok(()) => Step::new("sockets", Verdict::Pass, "AF_SMC sockets can be made"),
        Err(error) => Step::new("sockets", Verdict::Failure, format!("AF_SMC: {error}"))
            .advise("see `dmesg`, and the policy of SELinux or seccomp for this program"),
    });
    steps.push(match SocketInfo::read_all(source) {
        Ok(_) => Step::new("smc_diag", Verdict::Pass, "sockets can be listed"),
        Err(error) => Step::new("smc_diag", Verdict::Warning, error.to_string())
            .advise("load it with `modprobe smc_diag`, to see sockets"),
    });
    let devices = read_devices(source)?;
    steps.extend(device_steps(&devices, &source.interfaces()?));
    // Hardware keeps RoCE packets away from the firewall of the host.
    if devices.iter().any(|device| device.pci.is_none()) {
        steps.push(firewall());
        steps.extend(iptables::steps());
    }
    steps.push(memory(&Group::read_all(source)?, sys::available_memory()));
    Ok(steps)
}

fn device_steps(devices: &[Device], interfaces: &[Interface]) -> Vec<Step> {
    let ports: Vec<_> = devices
        .iter()
        .flat_map(|device| device.ports.iter().map(|port| (device.name.as_str(), port)))
        .collect();
    if ports.is_empty() {
        let step = Step::new("devices", Verdict::Failure, "there is no RDMA device");
        return vec![step.advise(
            "load the driver of the RoCE card, or make a software device: \
             `rdma link add NAME type rxe netdev IFACE`",
        )];
    }
    let active = ports.iter().filter(|(_, port)| port.active).count();
    let detail = format!("{} ports of RDMA devices, {active} active", ports.len());
    let verdict = if active == 0 {
        Verdict::Failure
    } else {
        Verdict::Pass
    };
    let mut steps = vec![Step::new("devices", verdict, detail)];
    if active == 0 {
        steps[0] = steps[0]
            .clone()
            .advise("set the interfaces up, and look at the cables");
    }
    for (device, port) in ports {
        steps.extend(port_steps(device, port, interfaces));
    }
    steps
}

fn port_steps(device: &str, port: &Port, interfaces: &[Interface]) -> Vec<Step> {
    let name = format!("{device}/{}", port.port);
    if !port.active {
        return vec![Step::new(
            "port",
            Verdict::Warning,
            format!("{name} is not active"),
        )];
    }
    let gids = sys::gids(device, port.port);
    let v2 = gids.iter().filter(|gid| gid.kind.contains("v2")).count();
    let mut steps = vec![if gids.is_empty() {
        Step::new("GIDs", Verdict::Warning, format!("{name} has none"))
            .advise("give its interface an IP address")
    } else {
        let detail = format!("{name} has {}, {v2} of them for RoCE v2", gids.len());
        Step::new("GIDs", Verdict::Pass, detail)
    }];
    let mut of_port = interfaces
        .iter()
        .filter(|one| port.interface.as_ref() == Some(&one.name));
    let mtu = of_port.next().and_then(|one| one.mtu);
    steps.extend(mtu.map(|mtu| mtu_step(&name, mtu)));
    steps
}

/// RDMA packets carry the largest power of two that fits, up to 4096 bytes.
fn mtu_step(name: &str, mtu: u32) -> Step {
    let room = mtu.saturating_sub(HEADERS);
    let carries = [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|size| *size <= room);
    let Some(carries) = carries else {
        let detail = format!("{name}: {mtu} bytes are too few for RDMA");
        return Step::new("MTU", Verdict::Failure, detail).advise("set it to 1500 at least");
    };
    let detail = format!("{name}: {mtu}, so RDMA packets carry {carries} bytes");
    match carries {
        4096 => Step::new("MTU", Verdict::Pass, detail),
        1024 | 2048 => Step::new("MTU", Verdict::Note, detail)
            .advise("where the network has jumbo frames, 9000 is faster"),
        _ => Step::new("MTU", Verdict::Warning, detail).advise("set it to 1500 or more"),
    }
}

fn firewall() -> Step {
    let name = "firewall";
    let output = match Command::new(sys::admin_program("nft"))
        .args(["-j", "list", "ruleset"])
        .output()
    {
        Err(error) => {
            return Step::new(name, Verdict::Unknown, format!("nft: {error}")).advise(format!(
                "see by other means that UDP port {ROCE_PORT} is let in"
            ));
        }
        Ok(output) if !output.status.success() => {
            let said = firewall::first_line(&output.stderr);
            return Step::new(name, Verdict::Unknown, format!("nft: {said}"))
                .advise("only root can read the rules of the firewall");
        }
        Ok(output) => output,
    };
    match serde_json::from_slice(&output.stdout) {
        Ok(ruleset) => firewall::judge(&ruleset, &firewall::NFT),
        Err(error) => Step::new(name, Verdict::Unknown, format!("answer of nft: {error}")),
    }
}

/// Buffers are memory of the kernel that is never swapped out. Limits of processes (RLIMIT_MEMLOCK)
/// do not apply to it.
fn memory(groups: &[Group], available: Option<u64>) -> Step {
    let sizes = groups
        .iter()
        .flat_map(|group| [group.sndbuf_bytes, group.rmb_bytes]);
    let used: u64 = sizes.flatten().fold(0, u64::saturating_add);
    let Some(available) = available else {
        return Step::new(
            "memory",
            Verdict::Unknown,
            format!("{} in buffers", bytes(used)),
        );
    };
    let detail = format!(
        "{} locked in buffers, {} available; `ulimit -l` does not matter",
        bytes(used),
        bytes(available)
    );
    if used > available / MEMORY_SHARE {
        Step::new("memory", Verdict::Warning, detail)
            .advise("lower net.smc.rmem and net.smc.wmem, or use fewer connections")
    } else {
        Step::new("memory", Verdict::Pass, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets() {
        for (mtu, verdict, carries) in [
            (9000, Verdict::Pass, "4096"),
            (1500, Verdict::Note, "1024"),
            (600, Verdict::Warning, "256"),
            (200, Verdict::Failure, "too few"),
        ] {
            let step = mtu_step("rxe0/1", mtu);
            assert_eq!(step.verdict, verdict, "{mtu}");
            assert!(step.detail.contains(carries), "{step:?}");
        }
    }

    #[test]
    fn buffers() {
        let group = Group {
            sndbuf_bytes: Some(1 << 30),
            ..Group::default()
        };
        assert_eq!(memory(&[], Some(1 << 30)).verdict, Verdict::Pass);
        assert_eq!(memory(&[group], Some(2 << 30)).verdict, Verdict::Warning);
        assert_eq!(memory(&[], None).verdict, Verdict::Unknown);
    }

    #[test]
    fn hosts_without_devices() {
        let steps = device_steps(&[], &[]);
        assert!(steps.len() == 1 && steps[0].verdict == Verdict::Failure);
    }
}
