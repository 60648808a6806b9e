// SPDX-License-Identifier: GPL-2.0

//! Counters, once or again and again.

use super::table::bytes;
use super::{text, Failure, Output};
use crate::model::group::Group;
use crate::model::stats::Stats;
use crate::netlink::{Error, Source};
use clap::Args;
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// How to show counters.
#[derive(Clone, Debug, Default, Args)]
pub struct StatsArgs {
    /// Show what changes, a line every so many seconds
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = parse_seconds)]
    pub watch: Option<Duration>,
    /// End after so many lines
    #[arg(short, long, value_name = "NUMBER", requires = "watch")]
    pub count: Option<u64>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.1..=86400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds between 0.1 and 86400".into())
}

/// What changed between two looks at the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Change {
    /// Time between them.
    pub seconds: f64,
    /// Handshakes that succeeded.
    pub handshakes: u64,
    /// Connections that fell back to TCP.
    pub fallbacks: u64,
    /// Handshakes that failed.
    pub errors: u64,
    /// Connections over SMC-R at the end.
    pub connections: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Calls that sent them.
    pub tx_calls: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Calls that received them.
    pub rx_calls: u64,
    /// How often a buffer was full, ours or the peer's.
    pub full: u64,
}

const TITLES: &str =
    "  SMC-R   TCP FAILED   CONNS      SENT/s  CALLS/s  RECEIVED/s  CALLS/s   FULL";

impl Change {
    /// The difference of two looks. What seems to go backwards counts as nothing.
    fn between(before: &Stats, after: &Stats, connections: u64, time: Duration) -> Self {
        let sum = |stats: &Stats| {
            let (tx, rx) = (&stats.smcr.tx, &stats.smcr.rx);
            [
                stats.smcr.handshakes(),
                stats
                    .fallbacks
                    .client
                    .saturating_add(stats.fallbacks.server),
                stats
                    .client_handshake_errors
                    .saturating_add(stats.server_handshake_errors),
                tx.bytes,
                tx.calls,
                rx.bytes,
                rx.calls,
                [tx.buffers, rx.buffers]
                    .iter()
                    .map(|buffers| buffers.own_full.saturating_add(buffers.peer_full))
                    .fold(0, u64::saturating_add),
            ]
        };
        let (before, after) = (sum(before), sum(after));
        let change = |place: usize| after[place].saturating_sub(before[place]);
        Self {
            seconds: time.as_secs_f64(),
            handshakes: change(0),
            fallbacks: change(1),
            errors: change(2),
            connections,
            tx_bytes: change(3),
            tx_calls: change(4),
            rx_bytes: change(5),
            rx_calls: change(6),
            full: change(7),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |count: u64| (count as f64 / self.seconds.max(0.001)) as u64;
        write!(
            f,
            "{:>7}{:>6}{:>7}{:>8}{:>12}{:>9}{:>12}{:>9}{:>7}",
            self.handshakes,
            self.fallbacks,
            self.errors,
            self.connections,
            bytes(rate(self.tx_bytes)),
            rate(self.tx_calls),
            bytes(rate(self.rx_bytes)),
            rate(self.rx_calls),
            self.full,
        )
    }
}

fn connections(source: &mut dyn Source) -> Result<u64, Error> {
    let groups = Group::read_all(source)?;
    Ok(groups
        .iter()
        .map(|group| u64::from(group.connections))
        .sum())
}

/// How many lines stand below the titles before these come again.
const PAGE: u64 = 20;

pub(super) fn run(
    args: &StatsArgs,
    source: &mut dyn Source,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let width = output.width;
    let mut before = Stats::read(source)?;
    let Some(pause) = args.watch else {
        return output.print(&before, |stats| text::stats(stats, width));
    };
    let mut then = Instant::now();
    for line in 0..args.count.unwrap_or(u64::MAX) {
        if line % PAGE == 0 && !output.json {
            writeln!(output.writer, "{TITLES}")?;
            output.writer.flush()?;
        }
        std::thread::sleep(pause);
        let after = Stats::read(source)?;
        let now = Instant::now();
        let connections = connections(source)?;
        output.line(&Change::between(&before, &after, connections, now - then))?;
        (before, then) = (after, now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let before = Stats::default();
        let mut after = Stats::default();
        after.smcr.client_v1 = 3;
        after.smcr.tx.bytes = 3 << 20;
        after.smcr.rx.calls = 10;
        after.fallbacks.server = 2;
        let change = Change::between(&before, &after, 7, Duration::from_secs(2));
        assert_eq!((change.handshakes, change.tx_bytes), (3, 3 << 20));
        let line = change.to_string();
        assert_eq!(line.len(), TITLES.len());
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["3", "2", "0", "7", "1.5", "MiB", "0", "0", "B", "5", "0"]
        );
        // Counters of a module that was loaded anew.
        let change = Change::between(&after, &before, 0, Duration::from_secs(1));
        assert_eq!(change.handshakes, 0);
    }

    #[test]
    fn pauses() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "NaN", "inf", "x", "1e9"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
