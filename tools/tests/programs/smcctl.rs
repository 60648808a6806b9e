// SPDX-License-Identifier: GPL-2.0

//! smcctl.

use crate::fake::{new, Damage, Fake};
use crate::snapshot;
use clap::Parser;
use smc_tools::ctl::{self, Cli, Failure, Output};
use smc_tools::netlink::{push_attribute, Error};
use smc_tools::uapi::{GEN_FAMILY, OWN_FAMILY, PNET_FAMILY};

/// What is said, and whether all is well.
fn outcome(source: &mut Fake, args: &str, width: Option<u16>) -> Result<(String, bool), Failure> {
    let cli =
        Cli::try_parse_from(std::iter::once("smcctl").chain(args.split_whitespace())).unwrap();
    let mut bytes = Vec::new();
    let mut output = Output {
        writer: &mut bytes,
        width,
        color: false,
        json: cli.json,
    };
    let good = ctl::run(&cli.command, source, &mut output)?;
    Ok((String::from_utf8(bytes).unwrap(), good))
}

fn run_on(source: &mut Fake, args: &str, width: Option<u16>) -> Result<String, Failure> {
    outcome(source, args, width).map(|(text, _)| text)
}

fn run(args: &str, width: Option<u16>) -> String {
    run_on(&mut Fake::default(), args, width).unwrap()
}

const COMMANDS: [&str; 14] = [
    "groups",
    "links",
    "devices",
    "stats",
    "sockets",
    "sockets -e",
    "ueid list",
    "pnet list",
    "handshake-limit",
    "peers",
    "faults",
    "rules list",
    "drain --list",
    "events",
];

#[test]
fn output_for_people() {
    for args in COMMANDS {
        snapshot(
            &format!("{}.txt", args.replace(' ', "_")),
            &run(args, Some(100)),
        );
    }
}

#[test]
fn output_as_json() {
    for args in COMMANDS.iter().filter(|args| !args.contains("-e")) {
        let text = run(&format!("--json {args}"), None);
        if *args == "events" {
            // An object in each line.
            for line in text.lines() {
                serde_json::from_str::<serde_json::Value>(line).unwrap();
            }
        } else {
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
        snapshot(&format!("{}.json", args.replace(' ', "_")), &text);
    }
}

/// Without the line that depends on the host.
#[test]
fn status() {
    let text: String = run("status", None)
        .lines()
        .filter(|line| !line.starts_with("Module"))
        .map(|line| format!("{line}\n"))
        .collect();
    snapshot("status.txt", &text);
    let mut value: serde_json::Value = serde_json::from_str(&run("status -j", None)).unwrap();
    assert!(value.as_object_mut().unwrap().remove("module").is_some());
    assert_eq!(value["module_version"], "0.1.0");
    snapshot("status.json", &format!("{value:#}\n"));
}

#[test]
fn tables_fit_eighty_columns() {
    // Events are lines of a log.
    for args in COMMANDS.iter().filter(|args| **args != "events") {
        let text = run(args, Some(80));
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{args}: {line}");
        }
    }
}

#[test]
fn filters() {
    let count = |args: &str| {
        let value: serde_json::Value = serde_json::from_str(&run(args, None)).unwrap();
        value["sockets"].as_array().unwrap().len()
    };
    assert_eq!(count("-j sockets"), 6);
    assert_eq!(count("-j sockets --listening"), 1);
    assert_eq!(count("-j sockets --connected"), 3);
    assert_eq!(count("-j sockets --connected --mode tcp"), 1);
    assert_eq!(count("-j sockets --mode smcd"), 1);
}

#[test]
fn changes_send_the_right_bytes() {
    let mut fake = Fake::default();
    let group = "0a00f1";
    let drain = format!("drain -g {group} -l 2");
    for args in [
        "ueid add LAB-EID-2",
        "ueid remove X",
        "ueid flush",
        "pnet add net1 -i eth0 -d rxe0 -p 2",
        "pnet remove NET1",
        "pnet flush",
        "handshake-limit on",
        "handshake-limit off",
        "rules remove 7",
        "rules flush",
        "drain -d rxe0 -p 1 --undo",
        &drain,
    ] {
        assert_eq!(run_on(&mut fake, args, None).unwrap(), "", "{args}");
    }
    let add = "rules add deny --peer 2001:db8::/32 --port 80-90 --side server --cgroup 7 -n 5";
    assert_eq!(run_on(&mut fake, add, None).unwrap(), "3\n");
    let eid = |id: &str| new().text(1, &format!("{id:<32}")).0;
    let want = [
        (GEN_FAMILY, 10, eid("LAB-EID-2")),
        (GEN_FAMILY, 11, eid("X")),
        (GEN_FAMILY, 12, vec![]),
        (
            PNET_FAMILY,
            2,
            new()
                .text(1, "NET1")
                .text(2, "eth0")
                .text(3, "rxe0")
                .u8(4, 2)
                .0,
        ),
        (PNET_FAMILY, 3, new().text(1, "NET1").0),
        (PNET_FAMILY, 4, vec![]),
        (GEN_FAMILY, 17, vec![]),
        (GEN_FAMILY, 18, vec![]),
        (OWN_FAMILY, 5, new().u32(5, 7).0),
        (OWN_FAMILY, 6, vec![]),
        (OWN_FAMILY, 10, {
            let mut bytes = new().text(18, "rxe0").u8(19, 1).0;
            push_attribute(&mut bytes, 20, &[]);
            bytes
        }),
        (OWN_FAMILY, 10, new().u32(16, 0x0a00f1).u8(17, 2).0),
        (OWN_FAMILY, 4, {
            let mut bytes = new().u32(5, 5).u8(6, 0).u8(7, 2).0;
            let address = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            push_attribute(&mut bytes, 8, &address);
            let rest = new().u8(9, 32).u16(10, 80).u16(11, 90).u64(12, 7);
            [bytes, rest.0].concat()
        }),
    ];
    assert_eq!(fake.executed, want);
}

#[test]
fn bad_values_are_usage_errors() {
    for line in [
        "ueid add lower",
        // Folders, but of no control group.
        "rules add deny --cgroup /",
        "rules add deny --cgroup /proc/self",
        "rules add deny --cgroup /nonexistent",
    ] {
        let failure = run_on(&mut Fake::default(), line, None).unwrap_err();
        assert_eq!(failure.exit_code(), 2, "{line}");
    }
    for bad in [
        "",
        "nonsense",
        "pnet add NET1",
        "pnet add NET1 -i eth0 -p 1",
        "pnet add N -d rxe0 -p 3",
        "sockets -l -c",
        "handshake-limit maybe",
        "ueid add",
        "rules add",
        "rules add deny --peer 1.2.3.4/33",
        "rules add deny -n 0",
        "rules add deny --port 9-8",
        "drain",
        "drain -d rxe0 -g 1",
        "drain -p 1",
        "drain -g xyz",
        "drain -g 1 -l 1 --undo",
        "stats --count 1",
        "stats --watch 0",
        "why",
        "why nonsense",
    ] {
        let args = std::iter::once("smcctl").chain(bad.split_whitespace());
        assert!(Cli::try_parse_from(args).is_err(), "{bad}");
    }
}

#[test]
fn failures_have_hints_and_statuses() {
    let cases = [
        (Error::NoFamily(GEN_FAMILY), 3, "modprobe smc_r"),
        (Error::NoFamily("sock_diag"), 3, "modprobe smc_diag"),
        (Error::NoFamily(OWN_FAMILY), 3, "needs the module smc_r"),
        (Error::Kernel(95, None), 1, "does not have this"),
        (Error::Kernel(1, None), 4, "CAP_NET_ADMIN"),
        (Error::Kernel(17, Some("id exists".into())), 1, "id exists"),
    ];
    for (error, status, text) in cases {
        let failure = Failure::from(error);
        assert_eq!(failure.exit_code(), status);
        assert!(failure.to_string().contains(text), "{failure}");
    }
    let pipe = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
    assert!(pipe.is_closed_pipe());
}

#[test]
fn counters_again_and_again() {
    let text = run("stats --watch 0.1 --count 2", Some(80));
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains("SENT/s"), "{text}");
    let text = run("-j stats --watch 0.1 --count 2", None);
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&value["tx_bytes"], &value["connections"]),
            (&0.into(), &34.into())
        );
    }
    assert_eq!(text.lines().count(), 2);
}

/// A rule that denies is found, and said.
#[test]
fn why_not() {
    let (text, good) = outcome(&mut Fake::default(), "-j why 198.51.100.1", None).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["good"], good);
    let names: Vec<_> = value["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| &step["name"])
        .collect();
    assert_eq!(names[..4], ["module", "rules", "route", "pnet id"]);
}

/// Whatever comes, there is an answer or an error, and no panic.
#[test]
fn damaged_answers() {
    let commands = [
        "status",
        "groups",
        "links",
        "devices",
        "stats",
        "sockets -e",
        "ueid list",
        "pnet list",
        "peers",
        "rules list",
        "drain --list",
        "events",
        "why 192.0.2.2",
    ];
    let mut errors = 0;
    for args in commands {
        for length in 0..420 {
            let damage: Damage = Box::new(move |mut bytes: Vec<u8>| {
                bytes.truncate(length);
                bytes
            });
            let mut fake = Fake {
                damage: Some(damage),
                ..Fake::default()
            };
            errors += usize::from(run_on(&mut fake, args, Some(80)).is_err());
        }
        for at in 0..420 {
            for value in [0x00, 0x1b, 0xff] {
                let damage: Damage = Box::new(move |mut bytes: Vec<u8>| {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = value;
                    }
                    bytes
                });
                let mut fake = Fake {
                    damage: Some(damage),
                    ..Fake::default()
                };
                match run_on(&mut fake, args, Some(80)) {
                    Ok(text) => assert!(!text.contains('\x1b')),
                    Err(_) => errors += 1,
                }
            }
        }
    }
    assert!(errors > 1000, "damage was noticed only {errors} times");
}

#[test]
fn settings_of_a_file() {
    let folder = std::env::temp_dir().join(format!("smcctl-apply-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("good");
    std::fs::write(
        &file,
        "# all\npnet flush\n\npnet add net1 -i eth0 # card\nrules add deny\n",
    )
    .unwrap();
    let mut fake = Fake::default();
    let words = format!("apply {}", file.display());
    let text = run_on(&mut fake, &format!("{words} --dry-run"), None).unwrap();
    assert!(
        text.ends_with("3 settings understood\n") && fake.executed.is_empty(),
        "{text}"
    );
    let text = run_on(&mut fake, &words, None).unwrap();
    assert!(text.ends_with("3 settings applied\n"), "{text}");
    let sent: Vec<_> = fake
        .executed
        .iter()
        .map(|(family, number, _)| (*family, *number))
        .collect();
    assert_eq!(sent, [(PNET_FAMILY, 4), (PNET_FAMILY, 2), (OWN_FAMILY, 4)]);

    // Nothing is done if a line is wrong; all that are wrong are named.
    let file = folder.join("bad");
    std::fs::write(&file, "pnet flush\nstatus\nnonsense\n").unwrap();
    let mut fake = Fake::default();
    let failure = run_on(&mut fake, &format!("apply {}", file.display()), None).unwrap_err();
    let text = failure.to_string();
    assert!(
        text.contains("bad:2: ") && text.contains("bad:3: ") && fake.executed.is_empty(),
        "{text}"
    );
    assert_eq!(failure.exit_code(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(run_on(&mut Fake::default(), &words, None).is_err());
}

/// What exists is not added again; what is in the way is not taken for it.
#[test]
fn settings_that_exist() {
    let file = std::env::temp_dir().join(format!("smcctl-apply-exist-{}", std::process::id()));
    let apply = |line: &str| {
        // Who adds a rule through it asks, and is refused as well.
        let mut fake = Fake {
            refused: vec![
                (GEN_FAMILY, 10, 17),
                (PNET_FAMILY, 2, 17),
                (OWN_FAMILY, 4, 17),
            ],
            ..Fake::default()
        };
        std::fs::write(&file, line).unwrap();
        let words = format!("apply {}", file.display());
        let (_, good) = outcome(&mut fake, &words, None).unwrap();
        (good, fake.executed.len())
    };
    for line in [
        "ueid add LAB-EID-1",
        "pnet add NET1 --interface eth0",
        "pnet add net2 --device mlx5_0 --port 2",
        "rules add deny -n 1 --side server --peer 192.0.2.2/24 --port 80-90 --cgroup 4711",
        "rules add allow -n 9",
    ] {
        assert_eq!(apply(line), (true, 1), "{line}");
    }
    for line in [
        "ueid add LAB-EID-2",
        "pnet add NET2 --interface eth0",
        "pnet add NET1 --interface eth1",
        "pnet add net2 --device mlx5_0",
        "pnet add net1 --interface eth0 --device mlx5_0",
        "rules add deny -n 1",
        "rules add deny -n 9",
        "rules add allow -n 1",
        "rules add deny",
    ] {
        assert_eq!(apply(line), (false, 1), "{line}");
    }
    // The kernel is not even asked: it would add another one.
    for line in [
        "rules add allow",
        "rules add deny --side server --peer 192.0.2.2/24 --port 80-90 --cgroup 4711",
    ] {
        assert_eq!(apply(line), (true, 0), "{line}");
    }
    std::fs::remove_file(&file).unwrap();
}

/// Each line with what became of it: carried out, there already, refused.
#[test]
fn settings_of_a_file_as_json() {
    let file = std::env::temp_dir().join(format!("smcctl-apply-json-{}", std::process::id()));
    let lines = "# all\npnet flush\n\nueid add LAB-EID-1   # there already\n  pnet add net1 -i eth0\nrules flush\n";
    std::fs::write(&file, lines).unwrap();
    let words = format!("apply {}", file.display());
    let mut fake = Fake {
        refused: vec![(GEN_FAMILY, 10, 17), (PNET_FAMILY, 2, 1)],
        ..Fake::default()
    };
    let mut check = |args: &str, name: &str, is_good: bool| {
        let (text, good) = outcome(&mut fake, args, Some(80)).unwrap();
        assert_eq!(good, is_good, "{text}");
        snapshot(name, &text.replace(&file.display().to_string(), "FILE"));
        fake.executed.len()
    };
    assert_eq!(check(&format!("-j {words}"), "apply.json", false), 4);
    assert_eq!(check(&words, "apply.txt", false), 8);
    // Nothing more is asked of the kernel.
    let dry = format!("-j {words} --dry-run");
    assert_eq!(check(&dry, "apply_--dry-run.json", true), 8);
    std::fs::remove_file(&file).unwrap();
}
