# SPDX-License-Identifier: GPL-2.0
"""Counts results in the KTAP a test prints."""

import re
import time

RESULT = re.compile(r"^(ok|not ok)\s+\d+\b(.*)$")
PLAN = re.compile(r"^1\.\.(\d+)")
SKIP = re.compile(r"#\s*SKIP\b\s*(.*)", re.IGNORECASE)


class Test:
    """One test program: what it said, and how it ended."""

    def __init__(self, name):
        self.name = name
        self.plan = None
        self.passed = self.failed = self.skipped = 0
        self.notes = []
        # Why something was skipped, in its own words.
        self.reasons = []
        self.started = time.monotonic()
        # Seconds from its beginning to its end.
        self.took = 0.0

    def line(self, text):
        """Takes a line of its output; nested results are indented and not counted again."""
        if match := PLAN.match(text):
            self.plan = int(match.group(1))
            self._skips(text)
        elif match := RESULT.match(text):
            rest = match.group(2)
            if self._skips(rest):
                self.skipped += 1
            elif match.group(1) == "ok":
                self.passed += 1
            else:
                self.failed += 1

    def _skips(self, text):
        """Whether a line says that something is skipped; keeps the reason."""
        match = SKIP.search(text)
        if match:
            self.reasons.append(match.group(1).strip())
        return bool(match)

    def fail(self, note):
        """Something outside its own results went wrong."""
        self.failed += 1
        self.notes.append(f"{self.name}: {note}")

    def end(self, code):
        """Holds its exit code against what it printed: nothing may end early and count as good."""
        self.took = time.monotonic() - self.started
        seen = self.passed + self.failed + self.skipped
        if code == 4 and self.failed == 0:
            if seen == 0:
                self.skipped += 1
                self.reasons = self.reasons or [""]
            return
        if code != 0 and self.failed == 0:
            self.fail(f"exit code {code}")
        elif self.plan is not None and seen != self.plan:
            self.fail(f"{self.plan} results were planned, {seen} came")
        elif seen == 0:
            self.passed += 1
