// SPDX-License-Identifier: GPL-2.0

//! `smc_liar`: a peer in user space that speaks SMC-R over a real queue pair, correctly until its
//! script tells it to lie.

#![deny(unsafe_code)]

mod conn;
mod link;
mod script;
mod verbs;
mod world;

use clap::Parser;
use serde::Serialize;
use smc_testing::peer::address;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// A peer that speaks SMC-R over a real queue pair, correctly until its script tells it to lie.
///
/// Needs CAP_NET_RAW, an RDMA device, and an IPv4 address that nobody has, in the network of the
/// interface. Prints one line of JSON. Exit status: 0 all came out as the script says, 1 it did not, 2
/// wrong usage, 3 interface or device cannot be used.
#[derive(Debug, Parser)]
#[command(name = "smc_liar", version, after_long_help = script::HELP)]
struct Cli {
    /// Script; `-` for standard input
    script: PathBuf,
    /// Network interface
    #[arg(short, long)]
    interface: String,
    /// Our address for TCP, with the length of its prefix
    #[arg(short, long, value_name = "ADDRESS/BITS", value_parser = address)]
    address: (Ipv4Addr, u8),
    /// RDMA device
    #[arg(short, long)]
    device: String,
    /// The device's own address, whose GID is used
    #[arg(short, long)]
    gid: Ipv4Addr,
    /// Interface, device and its own address for further links
    #[arg(long, value_name = "INTERFACE,DEVICE,GID", value_parser = further)]
    further: Option<(String, String, Ipv4Addr)>,
    /// Words of the script to replace, as NAME=TEXT for `$NAME`
    #[arg(short = 'D', long = "define", value_name = "NAME=TEXT")]
    define: Vec<String>,
    /// Say on standard error what is done and what comes
    #[arg(long)]
    trace: bool,
}

#[derive(Serialize)]
struct Report {
    result: &'static str,
    /// Steps that were done.
    steps: usize,
    /// Where it failed: number and text of the line, and why.
    failed: Option<(usize, String, String)>,
    seconds: f64,
}

fn further(text: &str) -> Result<(String, String, Ipv4Addr), String> {
    match *text.split(',').collect::<Vec<_>>() {
        [interface, device, gid] => Ok((
            interface.into(),
            device.into(),
            gid.parse().map_err(|_| "the GID is no IPv4 address")?,
        )),
        _ => Err("INTERFACE,DEVICE,GID is wanted".into()),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let text = if cli.script.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(&cli.script)
    };
    let steps = match text
        .map_err(|error| error.to_string())
        .and_then(|text| script::parse(&text, &cli.define))
    {
        Ok(steps) => steps,
        Err(error) => {
            eprintln!("smc_liar: {}: {error}", cli.script.display());
            return ExitCode::from(2);
        }
    };
    let place = world::Place {
        interface: cli.interface,
        device: cli.device,
        address: cli.address,
        gid: cli.gid,
        trace: cli.trace,
        further: cli.further,
    };
    let mut world = match world::World::new(place) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("smc_liar: {error}");
            return ExitCode::from(3);
        }
    };
    let start = Instant::now();
    let (done, failed) = script::run(&mut world, &steps);
    world.end();
    let report = Report {
        result: if failed.is_none() { "pass" } else { "fail" },
        steps: done,
        failed,
        seconds: start.elapsed().as_secs_f64(),
    };
    let line = serde_json::to_string(&report).expect("numbers and strings can be written");
    println!("{line}");
    ExitCode::from(u8::from(report.failed.is_some()))
}
