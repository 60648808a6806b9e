// SPDX-License-Identifier: GPL-2.0

//! What the fuzzer starts from and has found, run once, and some damage to it.

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::{
    fs,
    path::Path, //
};
use targets::rng::Rng;

/// Runs a target over its part of the corpus, and over each entry so many times cut off and with wrong bytes.
fn replay(name: &str, target: fn(&[u8]), times: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let mut entries: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    assert!(!entries.is_empty());
    for (number, path) in entries.iter().enumerate() {
        let bytes = fs::read(path).unwrap();
        target(&bytes);
        let mut rng = Rng::new(number as u64);
        for _ in 0..times {
            let mut damaged = bytes.clone();
            for _ in 0..rng.size(1, 4) {
                if let Some(place) = damaged.len().checked_sub(1) {
                    damaged[rng.below(place as u64 + 1) as usize] = rng.next() as u8;
                }
            }
            damaged.truncate(damaged.len() - rng.size(0, damaged.len() as u32) as usize);
            target(&damaged);
        }
    }
}

#[test]
fn cdc() {
    replay("cdc", targets::cdc, 200);
}

#[test]
fn clc() {
    replay("clc", targets::clc, 200);
}

#[test]
fn conn() {
    replay("conn", targets::conn, 200);
}

#[test]
fn flow() {
    replay("flow", targets::flow, 40);
}

#[test]
fn links() {
    replay("links", targets::links, 10);
}

#[test]
fn llc() {
    replay("llc", targets::llc, 200);
}

#[test]
fn rendezvous() {
    replay("rendezvous", targets::rendezvous, 100);
}

#[test]
fn two() {
    replay("two", targets::two, 10);
}
