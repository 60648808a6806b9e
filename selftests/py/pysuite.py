# SPDX-License-Identifier: GPL-2.0
"""Runs modules of Python's own test suite, and compares two such runs.

run FILE MODULE...    each test's outcome goes to FILE
compare PLAIN OURS LIST    tests that pass in the first and not in the second must be in the list, and the
                      other way round; lines of it: module, test, reason, with bars between them. A reason that
                      begins with "sometimes:" is for a test that may pass, too
"""

import faulthandler
import importlib
import io
import json
import sys
import time
import unittest

# Seconds that one module may take.
MODULE_LIMIT = 400


# These ask for a network, but stay on this host.
ON_THIS_HOST = {"test_socketserver"}


class Outcomes(unittest.TestResult):
    """Outcomes by test; a test is as good as its worst part."""

    def __init__(self):
        super().__init__()
        self.found = {}
        self.said = {}

    def _note(self, test, outcome, error=None):
        name = test.id() if hasattr(test, "id") else str(test)
        worse = self.found.get(name) in ("failed", "error")
        if not worse:
            self.found[name] = outcome
        if error:
            self.said[name] = self._exc_info_to_string(error, test)[-600:]

    def addSuccess(self, test):
        self._note(test, "ok")

    def addFailure(self, test, err):
        self._note(test, "failed", err)

    def addError(self, test, err):
        self._note(test, "error", err)

    def addSkip(self, test, reason):
        self._note(test, "skipped")
        self.said[test.id()] = str(reason)

    def addExpectedFailure(self, test, err):
        self._note(test, "ok")

    def addUnexpectedSuccess(self, test):
        self._note(test, "failed")

    def addSubTest(self, test, subtest, err):
        if err:
            self._note(test, "failed", err)


def run(file, modules):
    from test import support

    outcomes = {}
    for name in modules:
        started = time.monotonic()
        support.use_resources = ["network"] if name in ON_THIS_HOST else []
        faulthandler.dump_traceback_later(MODULE_LIMIT, exit=True)
        result = Outcomes()
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{name}")
        except unittest.SkipTest as reason:
            print(f"# {name}: skipped: {reason}", flush=True)
            continue
        stdout, sys.stdout = sys.stdout, io.StringIO()
        try:
            suite.run(result)
        finally:
            sys.stdout = stdout
            faulthandler.cancel_dump_traceback_later()
        outcomes[name] = {"found": result.found, "said": result.said}
        count = {}
        for outcome in result.found.values():
            count[outcome] = count.get(outcome, 0) + 1
        print(f"# {name}: {count}, {time.monotonic() - started:.0f} s", flush=True)
        with open(file, "w") as out:
            json.dump(outcomes, out)


def compare(plain, ours, listed):
    with open(plain) as one, open(ours) as two:
        plain, ours = json.load(one), json.load(two)
    known = {}
    with open(listed) as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                module, test, reason = (part.strip() for part in line.split("|"))
                known[module, test] = reason
    wrong = 0
    for module, there in plain.items():
        here = ours.get(module)
        if here is None:
            print(f"# {module}: did not end")
            wrong += 1
            continue
        good = {test for test, outcome in there["found"].items() if outcome == "ok"}
        still = {test for test, outcome in here["found"].items() if outcome == "ok"}
        for test in sorted(good - still):
            if (module, test) not in known:
                wrong += 1
                print(f"# {test}: {here['found'].get(test, 'not run')}")
                print("#   " + here["said"].get(test, "").replace("\n", "\n#   "))
        for (where, test), reason in sorted(known.items()):
            if where != module or test not in still or reason.startswith("sometimes:"):
                continue
            wrong += 1
            print(f"# {test}: is listed, but passes")
    return wrong


def main():
    command, *rest = sys.argv[1:]
    if command == "run":
        run(rest[0], rest[1:])
    elif compare(*rest):
        sys.exit(1)


if __name__ == "__main__":
    main()
