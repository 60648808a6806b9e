// SPDX-License-Identifier: GPL-2.0

//! The programs on constructed answers of the kernel, against recorded output, on answers that are
//! cut short or damaged, and on a terminal.
//!
//! With `SMC_TOOLS_BLESS=1` in the environment, the output is recorded instead.

mod compat;
mod fake;
mod run;
mod smcctl;
mod terminal;

use std::path::Path;

/// Compares with what was recorded.
fn snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name);
    if std::env::var_os("SMC_TOOLS_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == want, "{name} is now:\n{text}\nand was:\n{want}");
}
