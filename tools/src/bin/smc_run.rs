// SPDX-License-Identifier: GPL-2.0

//! Runs a program with SMC sockets in place of its TCP sockets.

use clap::Parser;
use smc_tools::run::{exec, ignores_sigpipe, say, Args, EXIT_FAILURE};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored when the program came to run.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before `main`, and so before the standard library ignores SIGPIPE itself.
extern "C" fn look() {
    let ignored = std::fs::read_to_string("/proc/self/status");
    let ignored = ignored.is_ok_and(|status| ignores_sigpipe(&status));
    SIGPIPE_IGNORED.store(ignored, Ordering::Relaxed);
}

#[used]
#[link_section = ".init_array"]
static LOOK: extern "C" fn() = look;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            // Status 2 would look like one of the program's.
            return ExitCode::from(if error.use_stderr() { EXIT_FAILURE } else { 0 });
        }
    };
    let error = exec(&args, SIGPIPE_IGNORED.load(Ordering::Relaxed));
    say(format_args!("{error}"));
    ExitCode::from(error.exit_code())
}
