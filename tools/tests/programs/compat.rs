// SPDX-License-Identifier: GPL-2.0

//! smc_pnet, smcss and smcr.

use crate::fake::{new, Fake};
use crate::snapshot;
use clap::Parser;
use smc_tools::compat::{pnet, smcr, ss};
use smc_tools::ctl::{Failure, Output};
use smc_tools::uapi::PNET_FAMILY;

/// Runs a program by its command line, on a terminal of so many columns.
fn run_on(source: &mut Fake, line: &str, width: Option<u16>) -> Result<String, Failure> {
    let words: Vec<_> = line.split_whitespace().collect();
    let mut bytes = Vec::new();
    let mut output = Output {
        writer: &mut bytes,
        width,
        color: false,
        json: words.iter().any(|word| ["-j", "--json"].contains(word)),
    };
    match words[0] {
        "smc_pnet" => pnet::run(
            &pnet::Cli::try_parse_from(words).unwrap(),
            source,
            &mut output,
        ),
        "smcss" => ss::run(
            &ss::Cli::try_parse_from(words).unwrap(),
            source,
            &mut output,
        ),
        _ => smcr::run(&smcr_cli(line).unwrap(), source, &mut output),
    }?;
    Ok(String::from_utf8(bytes).unwrap())
}

fn smcr_cli(line: &str) -> Result<smcr::Cli, clap::Error> {
    smcr::Cli::try_parse_from(smcr::arguments(line.split_whitespace().map(Into::into)))
}

fn run(line: &str, width: Option<u16>) -> String {
    run_on(&mut Fake::default(), line, width).unwrap()
}

const LINES: [&str; 15] = [
    "smc_pnet",
    "smc_pnet -s net2",
    "smcss",
    "smcss -a",
    "smcss -l",
    "smcss -aW",
    "smcss -dR",
    "smcss -eD",
    "smcr info show",
    "smcr linkgroup",
    "smcr -d linkgroup show 00000200",
    "smcr linkgroup link-show",
    "smcr -d linkgroup link-show 200",
    "smcr -d device",
    "smcr ueid show",
];

#[test]
fn output_for_people() {
    for line in LINES {
        let name = line.replace(' ', "_");
        snapshot(&format!("{name}.txt"), &run(line, Some(100)));
    }
}

#[test]
fn output_as_json() {
    for line in LINES {
        let text = run(&format!("{line} --json"), None);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
    let json: serde_json::Value = serde_json::from_str(&run("smcr stats json", None)).unwrap();
    assert_eq!(json["smcr"]["tx"]["bytes"], 12_345);
    assert!(run("smcr stats", Some(80)).contains("SMC-R"));
}

/// Scripts read the mode and its reason by their place.
#[test]
fn modes_stand_where_scripts_look() {
    let text = run("smcss", None);
    let rows: Vec<Vec<_>> = text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][6], "SMCR");
    assert_eq!(rows[1][6..], ["TCP", "0x05000000/0x03030008"]);
    // What was never connected has addresses, what is closed no mode.
    assert_eq!(rows[3][3..], ["0.0.0.0:0", "0.0.0.0:0", "0000"]);
    // Where there is no connection over SMC, nothing is said of it.
    let debug = run("smcss -d -d", None);
    let lines: Vec<_> = debug.lines().zip(text.lines()).skip(1).collect();
    assert_ne!(lines[0].0, lines[0].1);
    assert_eq!(lines[1].0, lines[1].1);
    assert_eq!(lines[3].0, lines[3].1);
}

#[test]
fn filters() {
    let count = |line: &str| run(line, None).lines().count() - 1;
    assert_eq!(count("smcss -a"), 6);
    assert_eq!(count("smcss -a -a --all"), 6);
    assert_eq!(count("smcss"), 4);
    assert_eq!(count("smcss -l"), 1);
    assert_eq!(count("smcss -R"), 1);
    assert_eq!(count("smcss -D"), 1);
    assert_eq!(count("smcr device show mlx5_0"), 2);
    assert_eq!(count("smcr dev show nothing"), 0);
    assert_eq!(count("smcr linkgroup link-show rxe_eth0"), 3);
    assert_eq!(count("smcr linkgroup show nothing"), 0);
}

/// What may be left out, and options as scripts spell them.
#[test]
fn other_spellings() {
    let mut seen = 0;
    for (one, other) in [
        ("linkgroup all", "linkgroup show all"),
        ("linkgroup 200", "linkgroup show 200"),
        ("linkgroup ibdev rxe_eth0", "linkgroup show ibdev rxe_eth0"),
        ("link netdev x", "linkgroup show netdev x"),
        ("device all", "device show"),
        ("device netdev eth0", "device show netdev eth0"),
        ("dev ibdev mlx5_0", "device show ibdev mlx5_0"),
        ("-details device", "-d device"),
        ("-det device", "-d device"),
        ("-ddetails linkgroup", "-dd linkgroup"),
        ("-absolute stats", "-a stats"),
        ("-ad stats json", "-a -d stats json"),
        (
            "-dd linkgroup link 200",
            "--details linkgroup link-show 200",
        ),
    ] {
        let [one, other] = [one, other].map(|words| run(&format!("smcr {words}"), None));
        assert_eq!(one, other);
        seen += one.len();
    }
    assert!(seen > 1000);
    let kind = |line: &str| smcr_cli(line).unwrap_err().kind();
    for line in ["-version", "-ver", "-v", "--version", "-details -version"] {
        let kind = kind(&format!("smcr {line}"));
        assert_eq!(kind, clap::error::ErrorKind::DisplayVersion, "{line}");
    }
    for line in [
        "help",
        "-help",
        "linkgroup help",
        "linkgroup show help",
        "linkgroup all help",
        "device help",
        "device show help",
        "info help",
        "info show help",
        "stats help",
        "ueid help",
    ] {
        let kind = kind(&format!("smcr {line}"));
        assert_eq!(kind, clap::error::ErrorKind::DisplayHelp, "{line}");
    }
    for line in ["-vdetails", "-x", "-detailsx", "-link linkgroup"] {
        assert!(smcr_cli(&format!("smcr {line}")).is_err(), "{line}");
    }
    // Names are names.
    assert_eq!(run("smcr device show ibdev help", None).lines().count(), 1);
}

/// The words of the originals.
#[test]
fn filters_by_keyword() {
    let count = |line: &str| run(&format!("smcr {line}"), None).lines().count() - 1;
    for (words, links, groups) in [
        ("all", 3, 2),
        ("type smcr", 3, 2),
        ("all type smcr", 3, 2),
        ("200", 1, 1),
        ("ibdev rxe_eth0", 3, 2),
        ("all ibdev rxe_eth0", 3, 2),
        ("200 ibdev rxe_eth0", 1, 1),
        ("100 type smcr ibdev rxe_eth0", 2, 1),
        ("ibdev mlx5_0", 0, 0),
        ("netdev nothing0", 0, 0),
        ("200 netdev nothing0", 0, 0),
    ] {
        assert_eq!(
            count(&format!("linkgroup link-show {words}")),
            links,
            "{words}"
        );
        assert_eq!(count(&format!("linkgroup show {words}")), groups, "{words}");
    }
    for (words, ports) in [
        ("all", 3),
        ("type smcr", 3),
        ("ibdev mlx5_0", 2),
        ("all type smcr ibdev rxe_eth0", 1),
        ("ibdev nothing", 0),
        ("netdev nothing0", 0),
    ] {
        assert_eq!(count(&format!("device show {words}")), ports, "{words}");
    }
    for bad in [
        "ibdev",
        "netdev",
        "type",
        "type smcd",
        "100 200",
        "ibdev a ibdev b",
    ] {
        for what in [
            "linkgroup",
            "linkgroup show",
            "linkgroup link-show",
            "device",
            "device show",
        ] {
            let line = format!("smcr {what} {bad}");
            let answer = run_on(&mut Fake::default(), &line, None);
            assert!(matches!(answer, Err(Failure::Value(_))), "{line}");
        }
    }
}

#[test]
fn changes_send_the_right_bytes() {
    let mut fake = Fake::default();
    for line in [
        "smc_pnet -a net1 -I eth0",
        "smc_pnet --add net1 -D mlx5_0 -P 2",
        "smc_pnet -a net1 -I eth0 -D mlx5_0",
        "smc_pnet -d net1",
        "smc_pnet -f",
        // The id by itself, and ports that mean nothing or the first one.
        "smc_pnet -a -I eth0 net1",
        "smc_pnet net1 --add -I eth0",
        "smc_pnet -anet1 -I eth0 -P 1",
        "smc_pnet --add=net1 -D mlx5_0 -P 0",
        "smc_pnet net1 -d",
        "smc_pnet -d -I eth0 net1",
        "smc_pnet -f -I eth0",
        "smcr ueid add LAB-1",
        "smcr ueid del LAB-1",
        "smcr ueid flush",
    ] {
        assert_eq!(run_on(&mut fake, line, None).unwrap(), "", "{line}");
    }
    let name = || new().text(1, "NET1");
    let want = [
        (2, name().text(2, "eth0").0),
        (2, name().text(3, "mlx5_0").u8(4, 2).0),
        (2, name().text(2, "eth0").text(3, "mlx5_0").u8(4, 1).0),
        (3, name().0),
        (4, vec![]),
        (2, name().text(2, "eth0").0),
        (2, name().text(2, "eth0").0),
        (2, name().text(2, "eth0").0),
        (2, name().text(3, "mlx5_0").u8(4, 1).0),
        (3, name().0),
        (3, name().0),
        (4, vec![]),
    ];
    let sent: Vec<_> = fake
        .executed
        .iter()
        .filter(|(family, ..)| *family == PNET_FAMILY)
        .collect();
    for ((_, command, bytes), want) in sent.iter().zip(&want) {
        assert_eq!((command, bytes), (&want.0, &want.1));
    }
    assert_eq!((sent.len(), fake.executed.len()), (12, 15));
}

/// With and without an id, wherever it stands; what belongs to entries to be added is passed over.
#[test]
fn pnet_ids_are_shown() {
    let show = |line: &str| run(line, None);
    for line in ["--show", "-s", "-I eth0", "-s -I eth0 -P 1", "-P 0"] {
        assert_eq!(
            show("smc_pnet"),
            show(&format!("smc_pnet {line}")),
            "{line}"
        );
    }
    for line in [
        "--show net2",
        "net2 -s",
        "-snet2",
        "--show=net2",
        "-s net2 -I eth0 -D x",
    ] {
        let line = format!("smc_pnet {line}");
        assert_eq!(show("smc_pnet -s net2"), show(&line), "{line}");
    }
    assert_eq!(show("smc_pnet -s NET1").lines().count(), 1);
    assert_eq!(show("smc_pnet -s net"), "");
}

#[test]
fn wrong_usage() {
    for bad in ["-d", "-a -I eth0", "-d a b", "-s a b", "-a a -I eth0 b"] {
        let answer = run_on(&mut Fake::default(), &format!("smc_pnet {bad}"), None);
        assert!(matches!(answer, Err(Failure::Value(_))), "{bad}");
    }
    for bad in [
        "smc_pnet -a net1",
        "smc_pnet -a net1 -P 1",
        "smc_pnet -a net1 -D rxe0 -P 3",
        "smc_pnet -a net1 -D rxe0 -P x",
        "smc_pnet -f -s net1",
        "smc_pnet -f net1",
        "smc_pnet -s -s",
        "smc_pnet something",
        "smc_pnet something -I eth0",
    ] {
        assert!(
            pnet::Cli::try_parse_from(bad.split_whitespace()).is_err(),
            "{bad}"
        );
    }
    for bad in [
        "smcss -D -R",
        "smcss -a -l",
        "smcss -l -d",
        "smcss -l -R",
        "smcss x",
    ] {
        assert!(
            ss::Cli::try_parse_from(bad.split_whitespace()).is_err(),
            "{bad}"
        );
    }
    for bad in ["smcr", "smcr nothing", "smcr ueid add", "smcr stats reset"] {
        assert!(smcr_cli(bad).is_err(), "{bad}");
    }
}
