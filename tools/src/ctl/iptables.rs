// SPDX-License-Identifier: GPL-2.0

//! What the legacy tables of iptables, which nft does not list, make of RoCE packets.
//!
//! Rules as `iptables-legacy-save` writes them are told as nft tells its own, so that both are judged in
//! the same way.

use super::firewall::{self, Program};
use super::steps::{Step, Verdict};
use crate::sys;
use serde_json::{json, Value};
use std::fs;
use std::io;
use std::process::{Command, Output};

/// The tables of one version of IP.
struct Tables {
    /// Names of the tables that there are.
    names: &'static str,
    /// Lists their rules.
    save: &'static str,
    /// As nft has it.
    family: &'static str,
    program: Program,
}

const TABLES: [Tables; 2] = [
    Tables {
        names: "/proc/net/ip_tables_names",
        save: "iptables-legacy-save",
        family: "ip",
        program: Program {
            step: "iptables",
            rules: "the legacy tables of iptables",
            list: "iptables-legacy-save",
            add: "iptables-legacy -I INPUT -p udp --dport 4791 -j ACCEPT",
        },
    },
    Tables {
        names: "/proc/net/ip6_tables_names",
        save: "ip6tables-legacy-save",
        family: "ip6",
        program: Program {
            step: "ip6tables",
            rules: "the legacy tables of ip6tables",
            list: "ip6tables-legacy-save",
            add: "ip6tables-legacy -I INPUT -p udp --dport 4791 -j ACCEPT",
        },
    },
];

/// A step for each version of IP that has such tables.
pub(super) fn steps() -> Vec<Step> {
    let step = |of: &Tables| {
        // The program would make tables where there are none.
        judge(of, fs::read_to_string(of.names), || {
            Command::new(sys::admin_program(of.save)).output()
        })
    };
    TABLES.iter().filter_map(step).collect()
}

/// What the names of the tables and the program that lists them say; `None` if there are no tables.
fn judge(
    of: &Tables,
    names: io::Result<String>,
    save: impl FnOnce() -> io::Result<Output>,
) -> Option<Step> {
    let unknown = |detail: String| Step::new(of.program.step, Verdict::Unknown, detail);
    let root = "only root can read the rules of the firewall";
    let names = match names {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(unknown(format!("{}: {error}", of.names)).advise(root)),
        Ok(names) => names,
    };
    let names: Vec<_> = names.split_whitespace().collect();
    if names.is_empty() {
        return None;
    }
    let output = match save() {
        Err(error) => {
            let names = crate::attr::text(names.join(", ").as_bytes());
            let detail = format!(
                "there are rules of the legacy iptables ({names}) that nft does not list; {}: {error}",
                of.save
            );
            let advice =
                "install iptables (on Debian), which has that program, or see by other means that \
                          UDP port 4791 is let in";
            return Some(unknown(detail).advise(advice));
        }
        Ok(output) if !output.status.success() => {
            let said = firewall::first_line(&output.stderr);
            return Some(unknown(format!("{}: {said}", of.save)).advise(root));
        }
        Ok(output) => output,
    };
    Some(
        match ruleset(&String::from_utf8_lossy(&output.stdout), of.family) {
            Ok(items) => firewall::judge(&json!({ "nftables": items }), &of.program),
            Err(line) => {
                let line = crate::attr::text(line.as_bytes());
                unknown(format!("{} says what is not understood: {line}", of.save))
                    .advise("see by other means that UDP port 4791 is let in")
            }
        },
    )
}

/// What is saved, as nft lists it; else the first line that is not understood.
fn ruleset<'a>(saved: &'a str, family: &str) -> Result<Vec<Value>, &'a str> {
    let mut items = Vec::new();
    let mut table = "";
    let mut chains = Vec::new();
    for line in saved.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') || line == "COMMIT" {
            continue;
        }
        if let Some(name) = line.strip_prefix('*') {
            table = name;
            chains.clear();
            continue;
        }
        let words = words(line);
        let mut words = words.iter().map(String::as_str);
        let first = words.next().unwrap_or_default();
        if let Some(name) = first.strip_prefix(':') {
            let mut chain = json!({"family": family, "table": table, "name": name});
            match words.next().ok_or(line)? {
                // One that others call.
                "-" => {}
                policy => {
                    chain["hook"] = json!(name.to_lowercase());
                    chain["policy"] = json!(policy.to_lowercase());
                }
            }
            chains.push(name.to_string());
            items.push(json!({ "chain": chain }));
        } else if first == "-A" {
            let chain = words.next().ok_or(line)?;
            let parts = parts(&words.collect::<Vec<_>>(), family, &chains).ok_or(line)?;
            let rule = json!({"family": family, "table": table, "chain": chain, "expr": parts});
            items.push(json!({ "rule": rule }));
        } else {
            return Err(line);
        }
    }
    Ok(items)
}

/// The words of a line; one in quotes may have anything in it.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().extend(letters.next()),
            letter if letter.is_whitespace() && !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Modules whose options say everything that they do.
const PLAIN: [&str; 7] = [
    "udp",
    "tcp",
    "multiport",
    "conntrack",
    "state",
    "comment",
    "addrtype",
];

/// Targets after which the next rule decides.
const GOES_ON: [&str; 19] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DSCP",
    "HL",
    "IDLETIMER",
    "LOG",
    "MARK",
    "NFLOG",
    "NOTRACK",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TOS",
    "TRACE",
    "TTL",
];

/// A condition as nft has it.
fn condition(not: bool, left: &Value, right: &Value) -> Value {
    json!({"match": {"op": if not { "!=" } else { "==" }, "left": left, "right": right}})
}

/// One that depends on what is not known.
fn unknown(about: &str) -> Value {
    condition(false, &json!({ about: null }), &Value::Null)
}

/// A port, or the first and the last one of several.
fn ports(text: &str) -> Option<Value> {
    let number = |text: &str| text.parse::<u16>().ok();
    match text.split_once(':') {
        Some((first, last)) => Some(json!({"range": [number(first)?, number(last)?]})),
        None => number(text).map(|port| json!(port)),
    }
}

/// The words of a list, as nft writes them.
fn list(text: &str) -> Value {
    let words: Vec<_> = text.split(',').map(str::to_lowercase).collect();
    json!({ "set": words })
}

/// What a rule asks for and does, without the chain that it is in; `None` if a word is missing.
fn parts(words: &[&str], family: &str, chains: &[String]) -> Option<Vec<Value>> {
    let mut parts = Vec::new();
    let mut words = words.iter().copied().peekable();
    let mut not = false;
    let mut module = String::new();
    let payload =
        |protocol: &str, field: &str| json!({"payload": {"protocol": protocol, "field": field}});
    while let Some(word) = words.next() {
        if word == "!" {
            not = true;
            continue;
        }
        let part = match word {
            "-m" => {
                let name = words.next()?;
                module = format!("-m {name}");
                (!PLAIN.contains(&name)).then(|| unknown(&module))
            }
            "-p" => {
                let name = words.next()?;
                let protocol = name
                    .parse::<u8>()
                    .map_or_else(|_| json!(name), |number| json!(number));
                Some(condition(
                    not,
                    &json!({"meta": {"key": "l4proto"}}),
                    &protocol,
                ))
            }
            "-i" => Some(condition(
                not,
                &json!({"meta": {"key": "iifname"}}),
                &json!(words.next()?),
            )),
            "-s" | "-d" => {
                let field = if word == "-s" { "saddr" } else { "daddr" };
                Some(condition(
                    not,
                    &payload(family, field),
                    &json!(words.next()?),
                ))
            }
            // The protocol is asked before.
            "--dport" => {
                let ports = ports(words.next()?)?;
                Some(condition(not, &payload("th", "dport"), &ports))
            }
            "--dports" => {
                let ports: Option<Vec<_>> = words.next()?.split(',').map(ports).collect();
                Some(condition(
                    not,
                    &payload("th", "dport"),
                    &json!({"set": ports?}),
                ))
            }
            "--ctstate" | "--state" => Some(condition(
                not,
                &json!({"ct": {"key": "state"}}),
                &list(words.next()?),
            )),
            "--dst-type" => Some(condition(
                not,
                &json!({"fib": {"result": "type", "flags": ["daddr"]}}),
                &list(words.next()?),
            )),
            "--comment" => {
                words.next()?;
                None
            }
            // The options of a target come last.
            "-j" | "-g" => {
                parts.push(target(words.next()?, word == "-g", chains));
                return Some(parts);
            }
            _ => {
                while words
                    .peek()
                    .is_some_and(|next| *next != "!" && !next.starts_with('-'))
                {
                    words.next();
                }
                Some(unknown(if module.is_empty() { word } else { &module }))
            }
        };
        parts.extend(part);
        not = false;
    }
    Some(parts)
}

/// What is done with the packet.
fn target(name: &str, goes: bool, chains: &[String]) -> Value {
    match name {
        _ if chains.iter().any(|chain| chain == name) => {
            json!({ if goes { "goto" } else { "jump" }: {"target": name} })
        }
        "ACCEPT" | "DROP" | "REJECT" | "RETURN" => json!({ name.to_lowercase(): null }),
        _ if GOES_ON.contains(&name) => json!({"log": null}),
        _ => json!({ format!("-j {name}"): null }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const OLD: &Tables = &TABLES[0];

    /// A program that ends so.
    fn ends(status: i32, stdout: &str, stderr: &str) -> io::Result<Output> {
        Ok(Output {
            status: ExitStatus::from_raw(status << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    /// What comes of a table with these lines.
    fn step_of(of: &Tables, table: &str, lines: &str) -> Step {
        let saved = format!(
            "# Generated by iptables-save v1.8.11\n*{table}\n{lines}\nCOMMIT\n# Completed\n"
        );
        judge(of, Ok(format!("{table}\n")), || ends(0, &saved, "")).unwrap()
    }

    /// The same for the chain INPUT and its rules.
    fn input(policy: &str, rules: &[&str]) -> Verdict {
        let rules: String = rules.iter().map(|rule| format!("-A {rule}\n")).collect();
        let lines = format!(
            ":INPUT {policy} [1:60]\n:FORWARD DROP [0:0]\n:OUTPUT DROP [0:0]\n:MORE - [0:0]\n{rules}"
        );
        step_of(OLD, "filter", &lines).verdict
    }

    #[test]
    fn hosts_without_such_tables_are_not_asked() {
        let asked = || -> io::Result<Output> { panic!("the program makes tables") };
        let absent = io::Error::from(io::ErrorKind::NotFound);
        assert!(judge(OLD, Err(absent), asked).is_none());
        assert!(judge(OLD, Ok(String::new()), asked).is_none());
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let unsure = |names, save: io::Result<Output>, words: &[&str]| {
            let step = judge(OLD, names, || save).unwrap();
            assert_eq!((step.name, step.verdict), ("iptables", Verdict::Unknown));
            let said = format!("{} {}", step.detail, step.advice.unwrap());
            for word in words {
                assert!(said.contains(word), "{said}");
            }
        };
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        unsure(Err(denied), ends(0, "", ""), &["ip_tables_names", "root"]);
        let names = || Ok("nat\nfilter\n".to_string());
        let absent = Err(io::Error::from(io::ErrorKind::NotFound));
        let words = ["nat, filter", "iptables-legacy-save: ", "install"];
        unsure(names(), absent, &words);
        let refused = ends(1, "", "Permission denied (you must be root)\nmore\n");
        unsure(names(), refused, &["you must be root)", "root"]);
        for odd in [
            "nonsense",
            ":INPUT",
            "-A",
            "-A INPUT -j",
            "-A INPUT --dport x",
        ] {
            let saved = format!("*filter\n{odd}\n");
            unsure(names(), ends(0, &saved, ""), &["not understood", odd]);
        }
    }

    #[test]
    fn ports_and_protocols() {
        assert_eq!(input("ACCEPT", &[]), Verdict::Pass);
        assert_eq!(input("DROP", &[]), Verdict::Failure);
        for (condition, is_meant) in [
            ("-p udp -m udp --dport 4791", true),
            ("-p udp -m udp --dport 4000:5000", true),
            ("-p udp -m udp --dport 53", false),
            ("-p udp -m udp ! --dport 4791", false),
            ("-p udp -m multiport --dports 53,4790:4792", true),
            ("-p udp -m multiport ! --dports 53,4790:4792", false),
            ("-p udp", true),
            ("-p 17", true),
            ("! -p udp", false),
            ("-p tcp -m tcp --dport 4791", false),
            ("-p tcp -m tcp --tcp-flags SYN,ACK SYN", false),
            ("-i lo", false),
            ("! -i lo", true),
            ("-m conntrack --ctstate RELATED,ESTABLISHED", false),
            ("-m state --state NEW", true),
            ("-m addrtype --dst-type LOCAL", true),
            ("-m addrtype ! --dst-type LOCAL", false),
            (r#"-m comment --comment "-j DROP \"all\" of them""#, true),
        ] {
            let (good, bad) = if is_meant {
                (Verdict::Pass, Verdict::Failure)
            } else {
                (Verdict::Failure, Verdict::Pass)
            };
            let accepts = format!("INPUT {condition} -j ACCEPT");
            assert_eq!(input("DROP", &[&accepts]), good, "{accepts}");
            let refuses =
                format!("INPUT {condition} -j REJECT --reject-with icmp-port-unreachable");
            assert_eq!(input("ACCEPT", &[&refuses]), bad, "{refuses}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for condition in [
            "-s 192.0.2.0/24",
            "! -d 192.0.2.1/32",
            "-i eth0",
            "-p udp -m udp --sport 1",
            "-m limit --limit 5/min",
            "-m recent --rcheck --seconds 60 --name bad --mask 255.255.255.255 --rsource",
            "-m rpfilter",
            "-f",
        ] {
            for (policy, target) in [("ACCEPT", "DROP"), ("DROP", "ACCEPT")] {
                let rule = format!("INPUT {condition} -j {target}");
                assert_eq!(input(policy, &[&rule]), Verdict::Warning, "{rule}");
            }
        }
        let queue = step_of(
            OLD,
            "filter",
            ":INPUT ACCEPT [0:0]\n-A INPUT -j NFQUEUE --queue-num 1",
        );
        assert!(queue.verdict == Verdict::Warning, "{queue:?}");
        assert!(queue.detail.contains("-j NFQUEUE in ip filter INPUT"));
        assert!(queue.advice.unwrap().contains("iptables-legacy-save"));
    }

    #[test]
    fn chains() {
        assert_eq!(input("ACCEPT", &["MORE -j DROP"]), Verdict::Pass);
        for rules in [
            ["INPUT -j MORE", "MORE -p udp -j DROP"],
            ["INPUT -g MORE", "MORE -p udp -j DROP"],
            ["INPUT -j LOG --log-prefix \"-j ACCEPT \"", "INPUT -j DROP"],
            ["INPUT", "INPUT -j DROP"],
        ] {
            assert_eq!(input("ACCEPT", &rules), Verdict::Failure, "{rules:?}");
        }
        let rules = ["INPUT -j MORE", "MORE -j RETURN", "INPUT -j ACCEPT"];
        assert_eq!(input("DROP", &rules), Verdict::Pass);
        assert_eq!(input("ACCEPT", &["FORWARD -j DROP"]), Verdict::Pass);
    }

    /// What a container engine leaves, and tables that come before.
    #[test]
    fn other_tables() {
        let docker = ":PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:DOCKER - [0:0]\n\
                      -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
                      -A DOCKER -i docker0 -j RETURN\n\
                      -A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 172.17.0.2:80";
        assert_eq!(step_of(OLD, "nat", docker).verdict, Verdict::Pass);
        let drops = ":PREROUTING ACCEPT [0:0]\n-A PREROUTING -p udp -m udp --dport 4791 -j DROP";
        let step = step_of(OLD, "raw", drops);
        assert_eq!(step.verdict, Verdict::Failure);
        assert!(step.detail.contains("ip raw PREROUTING drops UDP port"));
        assert!(step.advice.unwrap().contains("iptables-legacy -I"));
        // Of IPv6 alone.
        let step = step_of(&TABLES[1], "raw", drops);
        assert_eq!((step.name, step.verdict), ("ip6tables", Verdict::Warning));
    }
}
