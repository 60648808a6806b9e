// SPDX-License-Identifier: GPL-2.0

//! What was looked at, one step after the other, and what came of it: the output of `why`, `check`
//! and `selftest`.

use super::table::wrap;
use serde::Serialize;

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is as it should be.
    Pass,
    /// It is neither good nor bad.
    Note,
    /// It could not be found out.
    Unknown,
    /// It may be in the way.
    Warning,
    /// It is in the way.
    Failure,
}

impl Verdict {
    /// What stands in front of the line, and its colour as the terminal wants it.
    fn mark(self) -> (&'static str, &'static str) {
        match self {
            Verdict::Pass => ("ok", "32"),
            Verdict::Note => ("-", "0"),
            Verdict::Unknown => ("?", "36"),
            Verdict::Warning => ("warn", "33"),
            Verdict::Failure => ("FAIL", "1;31"),
        }
    }
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What was looked at.
    pub name: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Step {
    /// A step without advice.
    pub fn new(name: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self {
            name,
            verdict,
            detail: detail.into(),
            advice: None,
        }
    }

    /// Adds what to do.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// All steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// None of them failed.
    pub good: bool,
    /// What all that means.
    pub conclusion: String,
}

impl Report {
    /// Puts steps together. `good` and `bad` are the conclusions; the latter is followed by the name
    /// of the first step that failed.
    pub fn new(steps: Vec<Step>, good: String, bad: &str) -> Self {
        let failed = steps.iter().find(|step| step.verdict == Verdict::Failure);
        let conclusion = match failed {
            Some(step) => format!("{bad} ({}: {})", step.name, step.detail),
            None => good,
        };
        Self {
            good: failed.is_none(),
            steps,
            conclusion,
        }
    }

    /// The report for people.
    pub fn text(&self, width: Option<u16>, color: bool) -> String {
        let names = self.steps.iter().map(|step| step.name.len());
        let names = names.max().unwrap_or_default();
        let indent = 4 + 2 + names + 2;
        let mut text = String::new();
        for step in &self.steps {
            let (mark, code) = step.verdict.mark();
            let mark = paint(&format!("{mark:<4}"), code, color);
            let mut lines = wrap(&step.detail, width, indent);
            if let Some(advice) = &step.advice {
                lines.extend(wrap(&format!("next: {advice}"), width, indent));
            }
            for (place, line) in lines.iter().enumerate() {
                if place == 0 {
                    text += &format!("{mark}  {:<names$}  {line}\n", step.name);
                } else {
                    text += &format!("{:indent$}{line}\n", "");
                }
            }
        }
        text += "\n";
        let code = if self.good { "32" } else { "1;31" };
        for line in wrap(&self.conclusion, width, 0) {
            text += &paint(&line, code, color);
            text += "\n";
        }
        text
    }
}

/// Text in a colour, if colours are wanted.
pub fn paint(text: &str, code: &str, color: bool) -> String {
    if color && code != "0" {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let steps = vec![
            Step::new("module", Verdict::Pass, "loaded"),
            Step::new("device", Verdict::Failure, "no RDMA port belongs to eth0")
                .advise("add one with rdma link add"),
        ];
        Report::new(steps, "fine".into(), "not fine")
    }

    #[test]
    fn text() {
        let want = "ok    module  loaded\n\
                    FAIL  device  no RDMA port\n              belongs to eth0\n              \
                    next: add one with\n              rdma link add\n\n\
                    not fine (device: no RDMA port\nbelongs to eth0)\n";
        assert_eq!(report().text(Some(32), false), want);
    }

    #[test]
    fn colours_only_where_wanted() {
        assert!(!report().text(None, false).contains('\x1b'));
        let painted = report().text(None, true);
        assert!(
            painted.contains("\x1b[1;31mFAIL\x1b[0m  device"),
            "{painted}"
        );
    }
}
