// SPDX-License-Identifier: GPL-2.0

//! The one line of JSON that a run prints.

use crate::errno;
use crate::socket::{Family, Mode};
use serde::Serialize;
use std::io;
use std::time::Duration;

/// At most this many connections and errors are listed one by one.
const LISTED: usize = 64;

/// What went wrong with a connection, and in which step.
#[derive(Debug)]
pub struct Failure {
    /// The step: `connect`, `receive` and so on.
    pub step: &'static str,
    /// The error; without a number if it was found by the test program itself.
    pub error: io::Error,
}

impl Failure {
    /// For `map_err`.
    pub fn at(step: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure { step, error }
    }

    /// A failure that the system did not report.
    pub fn found(step: &'static str, message: String) -> Failure {
        Failure {
            step,
            error: io::Error::other(message),
        }
    }
}

/// What a connection came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Bytes of payload that were sent.
    pub sent: u64,
    /// Bytes of payload that were received and checked.
    pub received: u64,
    /// What carried the data, if the connection came that far.
    pub mode: Option<Mode>,
    /// Time that connecting took, on the client.
    pub connect: Option<Duration>,
    /// Time from the first byte of payload to the last.
    pub transfer: Option<Duration>,
    /// The first error.
    pub failure: Option<Failure>,
}

#[derive(Debug, Default, Serialize)]
struct Modes {
    smc: u32,
    fallback: u32,
    tcp: u32,
    unknown: u32,
}

#[derive(Debug, Serialize)]
struct ListedError {
    connection: u32,
    step: &'static str,
    errno: Option<String>,
    message: String,
}

#[derive(Debug, Serialize)]
struct ListedConnection {
    connection: u32,
    mode: Option<Mode>,
    sent: u64,
    received: u64,
    connect_ms: Option<f64>,
    transfer_ms: Option<f64>,
}

/// The result of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    role: &'static str,
    family: Family,
    result: &'static str,
    wanted: u32,
    ok: u32,
    failed: u32,
    bytes_sent: u64,
    bytes_received: u64,
    seconds: f64,
    mbit_per_s: f64,
    connect_ms_mean: Option<f64>,
    connect_ms_max: Option<f64>,
    modes: Modes,
    connections: Vec<ListedConnection>,
    errors: Vec<ListedError>,
    #[serde(skip)]
    connect: Duration,
    #[serde(skip)]
    connected: u32,
    #[serde(skip)]
    expectation: Expectation,
}

/// What has to come out for the run to pass.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    /// Every connection fails with this error number.
    pub errno: Option<i32>,
    /// Every connection that works is of this mode.
    pub mode: Option<Mode>,
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl Report {
    /// An empty report for a run that wants this number of connections.
    pub fn new(role: &'static str, family: Family, wanted: u32, expectation: Expectation) -> Self {
        Self {
            role,
            family,
            result: "timeout",
            wanted,
            ok: 0,
            failed: 0,
            bytes_sent: 0,
            bytes_received: 0,
            seconds: 0.0,
            mbit_per_s: 0.0,
            connect_ms_mean: None,
            connect_ms_max: None,
            modes: Modes::default(),
            connections: Vec::new(),
            errors: Vec::new(),
            connect: Duration::ZERO,
            connected: 0,
            expectation,
        }
    }

    /// Adds a connection.
    pub fn add(&mut self, connection: u32, mut outcome: Outcome) {
        if outcome.failure.is_none() {
            outcome.failure = self.unexpected(&outcome);
        } else if self.is_expected(&outcome) {
            outcome.failure = None;
        }
        self.bytes_sent += outcome.sent;
        self.bytes_received += outcome.received;
        match outcome.mode {
            Some(Mode::Smc) => self.modes.smc += 1,
            Some(Mode::Fallback) => self.modes.fallback += 1,
            Some(Mode::Tcp) => self.modes.tcp += 1,
            Some(Mode::Unknown) => self.modes.unknown += 1,
            None => {}
        }
        if let Some(connect) = outcome.connect {
            self.connect += connect;
            self.connected += 1;
            self.connect_ms_mean = Some(millis(self.connect / self.connected));
            let max = self.connect_ms_max.unwrap_or(0.0);
            self.connect_ms_max = Some(max.max(millis(connect)));
        }
        if self.connections.len() < LISTED {
            self.connections.push(ListedConnection {
                connection,
                mode: outcome.mode,
                sent: outcome.sent,
                received: outcome.received,
                connect_ms: outcome.connect.map(millis),
                transfer_ms: outcome.transfer.map(millis),
            });
        }
        match outcome.failure {
            None => self.ok += 1,
            Some(failure) => {
                self.failed += 1;
                if self.errors.len() < LISTED {
                    self.errors.push(ListedError {
                        connection,
                        step: failure.step,
                        errno: errno::name(&failure.error),
                        message: failure.error.to_string(),
                    });
                }
            }
        }
    }

    fn is_expected(&self, outcome: &Outcome) -> bool {
        let errno = outcome
            .failure
            .as_ref()
            .and_then(|failure| failure.error.raw_os_error());
        errno.is_some() && errno == self.expectation.errno
    }

    fn unexpected(&self, outcome: &Outcome) -> Option<Failure> {
        if let Some(errno) = self.expectation.errno {
            let error = io::Error::from_raw_os_error(errno);
            let message = format!("no error, {} was expected", errno::name(&error)?);
            return Some(Failure::found("expect", message));
        }
        let mode = self.expectation.mode?;
        if outcome.mode == Some(mode) {
            return None;
        }
        let message = format!("mode is {:?}, {mode:?} was expected", outcome.mode);
        Some(Failure::found("expect", message))
    }

    /// Connections added so far.
    pub fn done(&self) -> u32 {
        self.ok + self.failed
    }

    /// Ends the run and gives the line to print and whether the run passed.
    pub fn finish(&mut self, elapsed: Duration, in_time: bool) -> (String, bool) {
        let pass = in_time && self.failed == 0 && self.ok == self.wanted;
        self.result = match (in_time, pass) {
            (false, _) => "timeout",
            (true, true) => "pass",
            (true, false) => "fail",
        };
        self.seconds = (elapsed.as_secs_f64() * 1e6).round() / 1e6;
        let bits = (self.bytes_sent + self.bytes_received) as f64 * 8.0;
        self.mbit_per_s = (bits / elapsed.as_secs_f64().max(1e-9) / 1e4).round() / 100.0;
        let line = serde_json::to_string(self).expect("numbers and strings can be written");
        (line, pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(expectation: Expectation) -> Report {
        Report::new("client", Family::Smc, 1, expectation)
    }

    fn failed(errno: i32) -> Outcome {
        let error = io::Error::from_raw_os_error(errno);
        Outcome {
            failure: Some(Failure {
                step: "connect",
                error,
            }),
            ..Outcome::default()
        }
    }

    fn passed(report: &mut Report) -> bool {
        report.finish(Duration::from_secs(1), true).1
    }

    #[test]
    fn success_and_failure() {
        let mut good = report(Expectation::default());
        good.add(0, Outcome::default());
        assert!(passed(&mut good));
        let mut bad = report(Expectation::default());
        bad.add(0, failed(111));
        let (line, pass) = bad.finish(Duration::from_secs(1), true);
        assert!(!pass);
        assert!(line.contains(r#""errno":"ECONNREFUSED""#), "{line}");
        assert!(line.contains(r#""result":"fail""#), "{line}");
        assert!(!line.contains('\n'));
    }

    #[test]
    fn missing_connections_fail() {
        assert!(!passed(&mut report(Expectation::default())));
    }

    #[test]
    fn time_out_fails() {
        let mut late = report(Expectation::default());
        late.add(0, Outcome::default());
        assert!(!late.finish(Duration::from_secs(1), false).1);
    }

    #[test]
    fn expected_errors() {
        let expectation = Expectation {
            errno: Some(111),
            mode: None,
        };
        for (outcome, pass) in [
            (failed(111), true),
            (failed(110), false),
            (Outcome::default(), false),
        ] {
            let mut report = report(expectation.clone());
            report.add(0, outcome);
            assert_eq!(passed(&mut report), pass);
        }
    }

    #[test]
    fn expected_modes() {
        let expectation = Expectation {
            errno: None,
            mode: Some(Mode::Smc),
        };
        for (mode, pass) in [
            (Some(Mode::Smc), true),
            (Some(Mode::Fallback), false),
            (None, false),
        ] {
            let mut report = report(expectation.clone());
            report.add(
                0,
                Outcome {
                    mode,
                    ..Outcome::default()
                },
            );
            assert_eq!(passed(&mut report), pass);
        }
    }
}
