// SPDX-License-Identifier: GPL-2.0

//! smc_run, as far as a host without SMC lets it come: the programs that it starts are real ones.

use std::fmt::Write;
use std::process::{Command, Output};

/// What a shell says to a script, in which `$smc_run` starts a program.
fn shell(script: &str) -> Output {
    // A file will do for the library: the dynamic linker says that it is none, and goes on.
    let run = concat!(
        env!("CARGO_BIN_EXE_smc_run"),
        " --library ",
        env!("CARGO_MANIFEST_DIR"),
        "/Cargo.toml"
    );
    Command::new("sh")
        .args(["-c", script])
        .env("smc_run", run)
        .env("KEPT", "as it was")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        write!(text, "{}: {said}", output.status).unwrap();
    }
    text
}

/// Signals are for the program what they were for smc_run.
#[test]
fn sigpipe_stays_what_it_was() {
    for trap in ["", "trap '' PIPE;", "trap '' INT;", "trap '' PIPE HUP;"] {
        let ignored = |with: &str| {
            let script = format!("{trap} {with} grep SigIgn /proc/self/status");
            text(&shell(&script))
        };
        assert_eq!(ignored("$smc_run"), ignored(""), "{trap}");
    }
}

#[test]
fn words_and_environment_with_sigpipe_ignored() {
    let output = shell(
        "trap '' PIPE; \
         $smc_run -d -r 1 sh -c 'printf \"%s,\" \"$@\" \"$KEPT\" \"$SMC_DEBUG\" \"$SMC_RCVBUF\"' x -d 'a b' ''",
    );
    assert_eq!(text(&output), "-d,a b,,as it was,1,1,");
    let code = |program: &str| {
        shell(&format!("trap '' PIPE; $smc_run {program}"))
            .status
            .code()
    };
    assert_eq!(code("/nonexistent"), Some(127));
    assert_eq!(code("nonexistent-program"), Some(127));
    assert_eq!(code("/etc"), Some(126));
    assert_eq!(code("false"), Some(1));
}

/// Options that do not exist are not taken for a program.
#[test]
fn wrong_options_have_a_status_of_their_own() {
    for words in ["--requre true", "-x true", "-r 64X true", ""] {
        let output = shell(&format!("$smc_run {words}"));
        assert_eq!(output.status.code(), Some(125), "{words}");
    }
    assert_eq!(
        text(&shell("$smc_run -r1 echo -r1 -x -- -d")),
        "-r1 -x -- -d\n"
    );
}

/// What cannot be said is not said.
#[test]
fn standard_error_may_be_full() {
    assert_eq!(text(&shell("$smc_run echo done 2>/dev/full")), "done\n");
    let code = |script: &str| shell(script).status.code();
    assert_eq!(code("$smc_run nonexistent-program 2>/dev/full"), Some(127));
    assert_eq!(code("$smc_run --nonsense 2>/dev/full"), Some(125));
}
