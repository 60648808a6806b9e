// SPDX-License-Identifier: GPL-2.0

//! `smcctl check`: what keeps this host from using SMC.

use super::steps::{Report, Step, Verdict};
use super::table::bytes;
use super::{read_devices, Failure, Output};
use crate::model::device::{Device, Port};
use crate::model::group::Group;
use crate::model::own;
use crate::model::socket::SocketInfo;
use crate::model::system::SystemInfo;
use crate::netlink::{Error, Source};
use crate::sys;
use serde_json::Value;
use std::process::Command;

/// Port of UDP that RoCE version 2 uses.
const ROCE_PORT: u64 = 4791;
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
    steps.extend(device_steps(&devices));
    // Hardware keeps RoCE packets away from the firewall of the host.
    if devices.iter().any(|device| device.pci.is_none()) {
        steps.push(firewall());
    }
    steps.push(memory(&Group::read_all(source)?, sys::available_memory()));
    Ok(steps)
}

fn device_steps(devices: &[Device]) -> Vec<Step> {
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
        steps.extend(port_steps(device, port));
    }
    steps
}

fn port_steps(device: &str, port: &Port) -> Vec<Step> {
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
    let mtu = port.interface.as_deref().and_then(sys::mtu);
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
    let output = match Command::new("nft").args(["-j", "list", "ruleset"]).output() {
        Err(error) => {
            return Step::new(name, Verdict::Unknown, format!("nft: {error}"))
                .advise("see by other means that UDP port 4791 is let in");
        }
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = crate::attr::text(said.lines().next().unwrap_or_default().as_bytes());
            return Step::new(name, Verdict::Unknown, format!("nft: {said}"))
                .advise("only root can read the rules of the firewall");
        }
        Ok(output) => output,
    };
    match serde_json::from_slice(&output.stdout) {
        Ok(ruleset) => judge_firewall(&ruleset),
        Err(error) => Step::new(name, Verdict::Unknown, format!("answer of nft: {error}")),
    }
}

/// Whether an expression is a match of the port, alone or in a set or range.
fn names_port(expression: &Value) -> bool {
    let matched = &expression["match"];
    if matched["left"]["payload"]["field"] != "dport" || matched["op"] == "!=" {
        return false;
    }
    fn contains(value: &Value) -> bool {
        if let Some([first, last]) = value["range"].as_array().map(Vec::as_slice) {
            let (first, last) = (first.as_u64(), last.as_u64());
            return first.is_some_and(|first| first <= ROCE_PORT)
                && last.is_some_and(|last| last >= ROCE_PORT);
        }
        value.as_u64() == Some(ROCE_PORT)
            || value["set"]
                .as_array()
                .is_some_and(|set| set.iter().any(contains))
    }
    contains(&matched["right"])
}

/// Judges what nft lists. This is not the kernel's evaluation: what is told is whether chains for
/// incoming packets drop by default, and whether a rule names the port.
fn judge_firewall(ruleset: &Value) -> Step {
    let name = "firewall";
    let items = ruleset["nftables"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let has = |rule: &Value, verdicts: &[&str]| {
        let expressions = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
        expressions
            .iter()
            .any(|part| verdicts.iter().any(|verdict| part.get(verdict).is_some()))
    };
    let expressions = |rule: &Value| rule["expr"].as_array().cloned().unwrap_or_default();
    let of_port: Vec<_> = items
        .iter()
        .map(|item| &item["rule"])
        .filter(|rule| expressions(rule).iter().any(names_port))
        .collect();
    if let Some(rule) = of_port.iter().find(|rule| has(rule, &["drop", "reject"])) {
        let detail = format!(
            "a rule in {} {} drops UDP port {ROCE_PORT}",
            rule["table"], rule["chain"]
        );
        return Step::new(name, Verdict::Failure, detail.replace('"', ""))
            .advise("let that port in, for RoCE");
    }
    // A chain drops the rest by its policy, or by a last rule without a condition.
    let drops = |chain: &&Value| {
        let mut of_chain = items.iter().map(|item| &item["rule"]).filter(|rule| {
            ["family", "table"]
                .iter()
                .all(|key| rule[key] == chain[key])
                && rule["chain"] == chain["name"]
        });
        let last = of_chain.next_back();
        chain["policy"] == "drop"
            || last.is_some_and(|rule| {
                has(rule, &["drop", "reject"])
                    && !expressions(rule)
                        .iter()
                        .any(|part| part.get("match").is_some())
            })
    };
    let chains = items.iter().map(|item| &item["chain"]);
    let mut chains = chains.filter(|chain| {
        chain["hook"] == "input" || chain["hook"] == "prerouting" || chain["hook"] == "ingress"
    });
    match chains.find(drops) {
        Some(chain) if of_port.is_empty() => {
            let detail = format!(
                "the chain {} {} drops by default, and no rule names UDP port {ROCE_PORT}",
                chain["table"], chain["name"]
            );
            Step::new(name, Verdict::Warning, detail.replace('"', "")).advise(format!(
                "let it in, as with `nft add rule ... udp dport {ROCE_PORT} accept`"
            ))
        }
        _ => Step::new(
            name,
            Verdict::Pass,
            format!("nothing in nftables keeps UDP port {ROCE_PORT} out"),
        ),
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
    use serde_json::json;

    fn chain(policy: &str) -> Value {
        json!({"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter",
                         "hook": "input", "prio": 0, "policy": policy}})
    }

    fn rule(right: Value, verdict: &str) -> Value {
        json!({"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}},
                       "right": right}},
            {verdict: null}]}})
    }

    fn verdict(items: &[Value]) -> Verdict {
        judge_firewall(&json!({ "nftables": items })).verdict
    }

    #[test]
    fn firewalls() {
        assert_eq!(verdict(&[]), Verdict::Pass);
        assert_eq!(verdict(&[chain("accept")]), Verdict::Pass);
        assert_eq!(verdict(&[chain("drop")]), Verdict::Warning);
        assert_eq!(
            verdict(&[chain("drop"), rule(json!(4791), "accept")]),
            Verdict::Pass
        );
        assert_eq!(
            verdict(&[chain("accept"), rule(json!(4791), "drop")]),
            Verdict::Failure
        );
        assert_eq!(
            verdict(&[chain("accept"), rule(json!(4790), "drop")]),
            Verdict::Pass
        );
        let set = json!({"set": [22, {"range": [4000, 5000]}]});
        assert_eq!(
            verdict(&[chain("accept"), rule(set, "reject")]),
            Verdict::Failure
        );
        let rest = json!({"rule": {"family": "inet", "table": "filter", "chain": "input",
                                   "expr": [{"reject": null}]}});
        assert_eq!(verdict(&[chain("accept"), rest]), Verdict::Warning);
        assert_eq!(
            judge_firewall(&json!({"nftables": 7})).verdict,
            Verdict::Pass
        );
    }

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
        let steps = device_steps(&[]);
        assert!(steps.len() == 1 && steps[0].verdict == Verdict::Failure);
    }
}
