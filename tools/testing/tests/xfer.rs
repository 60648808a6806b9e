// SPDX-License-Identifier: GPL-2.0

//! Runs smc_xfer against itself over TCP on the loopback interface, and against misbehaving peers.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_smc_xfer");

struct Server {
    child: Child,
    port: String,
}

fn temporary(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    folder.join(format!("{name}-{}", std::process::id()))
}

fn server(name: &str, args: &[&str]) -> Server {
    let ready = temporary(name);
    let _ = std::fs::remove_file(&ready);
    let child = Command::new(PROGRAM)
        .args(["server", "--port", "0", "--timeout", "20", "--ready-file"])
        .arg(&ready)
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let port = loop {
        if let Ok(port) = std::fs::read_to_string(&ready) {
            break port.trim().to_string();
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "server {name} did not get ready"
        );
        std::thread::sleep(Duration::from_millis(5));
    };
    std::fs::remove_file(&ready).unwrap();
    Server { child, port }
}

fn result(child: Child) -> (i32, Value) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    (
        output.status.code().unwrap(),
        serde_json::from_str(&text).unwrap(),
    )
}

fn client(host: &str, port: &str, args: &[&str]) -> (i32, Value) {
    let child = Command::new(PROGRAM)
        .args(["client", host, "--timeout", "20", "--port", port])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    result(child)
}

/// Both sides in all ways of waiting, with these options for the client.
fn both_pass(name: &str, connections: &str, args: &[&str], bytes: (u64, u64)) {
    for io in ["blocking", "poll", "epoll"] {
        let common = ["--io", io, "-c", connections];
        let server = server(&format!("{name}-{io}"), &common);
        let (status, value) = client(
            "127.0.0.1",
            &server.port,
            &[&common[..], args, &["-n", "300K"]].concat(),
        );
        assert_eq!(
            (status, &value["result"]),
            (0, &"pass".into()),
            "{name} {io}: {value}"
        );
        assert_eq!(
            (&value["bytes_sent"], &value["bytes_received"]),
            (&bytes.0.into(), &bytes.1.into())
        );
        assert_eq!(value["modes"]["tcp"], value["wanted"]);
        let (status, value) = result(server.child);
        assert_eq!(
            (status, &value["result"]),
            (0, &"pass".into()),
            "{name} {io}: {value}"
        );
        assert_eq!(
            (&value["bytes_sent"], &value["bytes_received"]),
            (&bytes.1.into(), &bytes.0.into())
        );
    }
}

const N: u64 = 300 << 10;

#[test]
fn plain() {
    both_pass("both", "1", &[], (N, N));
    both_pass("up", "1", &["--direction", "up"], (N, 0));
    both_pass("down", "1", &["--direction", "down"], (0, N));
}

#[test]
fn many_connections() {
    both_pass("many", "12", &["--parallel", "5"], (12 * N, 12 * N));
}

#[test]
fn half_close_and_echo() {
    both_pass("half", "2", &["--half-close"], (2 * N, 2 * N));
    both_pass("echo", "2", &["--echo", "--half-close"], (2 * N, 2 * N));
    both_pass(
        "echo2",
        "2",
        &["--echo", "--max-chunk", "777"],
        (2 * N, 2 * N),
    );
}

#[test]
fn urgent() {
    both_pass("urgent", "3", &["--urgent"], (3 * N, 3 * N));
    both_pass(
        "urgent2",
        "1",
        &["--urgent", "--half-close", "--max-chunk", "10"],
        (N, N),
    );
}

#[test]
fn slow_readers() {
    both_pass("slow", "1", &["--slow-reader", "1M"], (N, N));
}

#[test]
fn abort_is_seen_as_a_reset() {
    for io in ["blocking", "poll", "epoll"] {
        let server = server(&format!("abort-{io}"), &["--io", io]);
        let (status, value) = client("127.0.0.1", &server.port, &["--abort", "--io", io]);
        assert_eq!(status, 0, "{value}");
        assert_eq!(value["bytes_sent"], 512 << 10);
        let (status, value) = result(server.child);
        assert_eq!(status, 0, "{value}");
    }
}

#[test]
fn ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: no IPv6 on this host");
        return;
    }
    let server = server("ipv6", &["-6"]);
    let (status, value) = client("::1", &server.port, &["-6"]);
    assert_eq!(status, 0, "{value}");
    assert_eq!(result(server.child).0, 0);
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

#[test]
fn expected_errno() {
    let port = free_port();
    let (status, value) = client("127.0.0.1", &port, &["--expect-errno", "ECONNREFUSED"]);
    assert_eq!(status, 0, "{value}");
    let args = ["--expect-errno", "ECONNREFUSED", "--io", "epoll"];
    assert_eq!(client("127.0.0.1", &port, &args).0, 0);
    let (status, value) = client("127.0.0.1", &port, &[]);
    assert_eq!(status, 1);
    assert_eq!(value["errors"][0]["errno"], "ECONNREFUSED");
    assert_eq!(value["errors"][0]["step"], "connect");
    assert_eq!(
        client("127.0.0.1", &port, &["--expect-errno", "ETIMEDOUT"]).0,
        1
    );
}

#[test]
fn expected_mode() {
    let server = server("mode", &["-c", "1", "--expect-mode", "smc"]);
    let (status, value) = client("127.0.0.1", &server.port, &["--expect-mode", "smc"]);
    assert_eq!(status, 1, "{value}");
    assert_eq!(result(server.child).0, 1);
}

#[test]
fn a_silent_server_is_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let start = Instant::now();
    let child = Command::new(PROGRAM)
        .args(["client", "127.0.0.1", "--timeout", "1", "--port", &port])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (status, value) = result(child);
    assert_eq!((status, &value["result"]), (124, &"timeout".into()));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_lying_server_fails_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut header = [0; 48];
        socket.read_exact(&mut header).unwrap();
        socket.write_all(&[0; 1000]).unwrap();
        // Until the client gives up.
        let _ = std::io::copy(&mut socket, &mut std::io::sink());
    });
    let (status, value) = client("127.0.0.1", &port, &["-n", "1000", "--direction", "down"]);
    assert_eq!(status, 1);
    let message = value["errors"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("wrong byte at offset"), "{message}");
    server.join().unwrap();
}

#[test]
fn garbage_and_early_ends_fail_the_server() {
    let server = server("garbage", &["-c", "2"]);
    let address = format!("127.0.0.1:{}", server.port);
    let mut socket = TcpStream::connect(&address).unwrap();
    socket.write_all(&[0x55; 48]).unwrap();
    drop(socket);
    drop(TcpStream::connect(&address).unwrap());
    let (status, value) = result(server.child);
    assert_eq!(status, 1);
    assert_eq!(value["failed"], 2, "{value}");
}
