// SPDX-License-Identifier: GPL-2.0

//! Runs this test program again with the library preloaded, and looks at what its sockets became.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output};

const INNER: &str = "SMC_PRELOAD_TEST_INNER";

fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let path = program.parent().unwrap().join("libsmc_preload.so");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

fn run(variables: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "inner", "--nocapture", "--test-threads=1"])
        .env_remove("SMC_DEBUG")
        .env("LD_PRELOAD", library())
        .env(INNER, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// Does nothing by itself; in the second run it is the program under test.
#[test]
fn inner() {
    if std::env::var_os(INNER).is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(move || drop(TcpStream::connect(address).unwrap())))
        .collect();
    for thread in threads {
        drop(listener.accept().unwrap());
        thread.join().unwrap();
    }
    drop(UdpSocket::bind("127.0.0.1:0").unwrap());
    if let Ok(v6) = TcpListener::bind("[::1]:0") {
        drop(v6);
    }
}

#[test]
fn a_program_works_with_or_without_smc_and_is_silent() {
    let output = run(&[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains("libsmc-preload"), "{errors}");
}

#[test]
fn each_stream_socket_is_reported_and_no_other() {
    let output = run(&[("SMC_DEBUG", "1")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let lines: Vec<_> = errors
        .lines()
        .filter(|line| line.starts_with("libsmc-preload: "))
        .collect();
    let v4 = lines
        .iter()
        .filter(|line| line.contains("socket(2, 524289, 0) -> "))
        .count();
    assert_eq!(v4, 5, "one listener and four connections: {errors}");
    let v6 = lines
        .iter()
        .filter(|line| line.contains("socket(10, 524289, 0) -> "))
        .count();
    assert!(v6 <= 1 && lines.len() == v4 + v6, "{errors}");
    for line in lines {
        assert!(line.contains("AF_SMC"), "{line}");
    }
}

#[test]
fn debug_zero_is_silent() {
    let output = run(&[
        ("SMC_DEBUG", "0"),
        ("SMC_SNDBUF", "64K"),
        ("SMC_RCVBUF", "nonsense"),
    ]);
    assert!(output.status.success());
    assert!(!String::from_utf8_lossy(&output.stderr).contains("libsmc-preload"));
}
