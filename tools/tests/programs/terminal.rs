// SPDX-License-Identifier: GPL-2.0

//! smcctl on a pseudo-terminal: as wide as that is, and with colours there alone.

use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
use rustix::termios::{tcsetwinsize, Winsize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_smcctl");

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS");
    command
}

/// What a command says to a terminal of so many columns.
fn on_terminal(mut command: Command, columns: u16) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&terminal, size).unwrap();
    let other = OpenOptions::new()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let mut child = command.stdout(other).spawn().unwrap();
    // Its copy of the other end would keep the terminal open.
    drop(command);
    let mut text = Vec::new();
    // Linux ends such a stream with an error.
    let _ = File::from(terminal).read_to_end(&mut text);
    child.wait().unwrap();
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

fn without_colors(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| {
        text + part.split_once('m').map_or("", |(_, rest)| rest)
    })
}

#[test]
fn as_wide_as_the_terminal() {
    // Whatever there is on this host, it fits.
    let text = on_terminal(command(&["check"]), 40);
    assert!(!text.is_empty());
    for line in without_colors(&text).lines() {
        assert!(line.chars().count() <= 40, "{line}");
    }
}

#[test]
fn colours_are_for_terminals() {
    let text = on_terminal(command(&["check"]), 80);
    assert!(text.contains("\x1b["), "{text}");
    let mut refused = command(&["check"]);
    refused.env("NO_COLOR", "1");
    assert!(!on_terminal(refused, 80).contains('\x1b'));
    let mut dumb = command(&["check"]);
    dumb.env("TERM", "dumb");
    assert!(!on_terminal(dumb, 80).contains('\x1b'));
    let piped = command(&["check"]).output().unwrap();
    assert!(!piped.stdout.is_empty() && !piped.stdout.contains(&0x1b));
}

#[test]
fn json_has_no_colours() {
    let text = on_terminal(command(&["--json", "check"]), 40);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(value["steps"].is_array());
}

/// A reader that goes away is no failure.
#[test]
fn closed_pipes() {
    let mut child = command(&["check"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    assert!(status.code().is_some_and(|code| code <= 1), "{status}");
}

/// The program is one, with several names.
#[test]
fn other_names() {
    use std::os::unix::process::CommandExt;
    for (name, word) in [
        ("smc_pnet", "pnet ids"),
        ("smcss", "SMC sockets"),
        ("/usr/bin/smcr", "link groups"),
        ("smcctl", "selftest"),
    ] {
        let output = Command::new(PROGRAM)
            .arg0(name)
            .arg("--help")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.contains(word),
            "{name}: {text}"
        );
    }
}
