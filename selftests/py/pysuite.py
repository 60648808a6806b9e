# SPDX-License-Identifier: GPL-2.0
"""Runs tests of Python's own test suite in several processes, and compares such runs.

run FILE WORKERS UNIT...   each test's outcome goes to FILE. A unit is a module, which MODULE:N divides into N
                           parts; or @FILE: those tests that did not pass in the run of that file; or
                           @FILE,OTHER: those of them that passed in the run of the other file
compare OURS PLAIN AGAIN LIST LEAST    tests that pass in PLAIN and neither in OURS nor in AGAIN must be in the list,
                           and the other way round; lines of it: test and reason, with a bar between them. A reason
                           that begins with "sometimes:" is for a test that may pass, too. LEAST tests must pass in
                           OURS or AGAIN
"""

import concurrent.futures
import faulthandler
import io
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
import unittest

# Seconds that a unit may take.
UNIT_LIMIT = 1200
# These ask for a network, but stay on this host.
ON_THIS_HOST = {"test_socketserver"}
# Tests of UDP-Lite, which new kernels lack, while the tests only ask whether Python knows it; and of VSOCK, which
# they take for usable where its module is loaded.
UNRELATED = re.compile("UDPLITE|VSOCK")
# What waits in vain fails; how long it waits is meant for machines that are not emulated.
PATIENCE = {"LOOPBACK_TIMEOUT": 40.0, "SHORT_TIMEOUT": 120.0}


class Outcomes(unittest.TestResult):
    """Outcomes by test; a test is as good as its worst part."""

    def __init__(self):
        super().__init__()
        self.found = {}
        self.said = {}
        self.took = {}

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

    def addDuration(self, test, elapsed):
        self.took[test.id()] = elapsed


def tests_in(suite):
    """The single tests, in their order."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def work():
    """Runs what it is asked for, line by line; an answer in JSON for each."""
    from test import support

    for name, seconds in PATIENCE.items():
        setattr(support, name, seconds)
    # Tests print, and so do programs they start.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, part, parts, *tests = json.loads(line)
        support.use_resources = ["network"] if name in ON_THIS_HOST else []
        faulthandler.dump_traceback_later(UNIT_LIMIT, exit=True)
        result = Outcomes()
        try:
            loader = unittest.defaultTestLoader
            suite = loader.loadTestsFromNames(tests) if tests else loader.loadTestsFromName(f"test.{name}")
            suite = [test for test in tests_in(suite) if not UNRELATED.search(test.id())]
            suite = unittest.TestSuite(suite[part::parts])
            stdout, sys.stdout = sys.stdout, io.StringIO()
            try:
                suite.run(result)
            finally:
                sys.stdout = stdout
        except unittest.SkipTest as reason:
            result.found[f"test.{name}"], result.said[f"test.{name}"] = "skipped", str(reason)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"found": result.found, "said": result.said, "took": result.took}), file=answers, flush=True)


def worker():
    """A process that works, in a folder of its own."""
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "work"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tempfile.mkdtemp(dir=os.getcwd()),
    )


def serve(units, outcomes):
    """Has the units done by one process after the other, until there are none."""
    process = worker()
    while True:
        try:
            unit = units.get_nowait()
        except queue.Empty:
            break
        name, part, parts, *_ = unit
        title = name if parts == 1 else f"{name} ({part + 1} of {parts})"
        started = time.monotonic()
        try:
            print(json.dumps(unit), file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            answer = json.loads(answer)
        else:
            # It says on its standard error where it was.
            whole = f"test.{name}"
            words = f"{title}: exit code {process.wait()}"
            answer = {"found": {whole: "did not end"}, "said": {whole: words}, "took": {}}
            process = worker()
        for what, values in answer.items():
            outcomes[what].update(values)
        print(f"# {title}: {counts(answer['found'])}, {time.monotonic() - started:.0f} s", flush=True)
    process.stdin.close()
    process.wait()


def counts(found):
    """How many of each outcome."""
    outcomes = list(found.values())
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes))) or "nothing"


def load(file):
    """What a run has found, by test."""
    with open(file) as lines:
        return json.load(lines)["found"]


def place(name):
    """What can be run for a name: fixtures stand for all tests of their class."""
    return re.sub(r"^\w+ \((.*)\)$", r"\1", name)


def passing(name, found):
    """The tests of that name that passed: of a class for its fixture, of a module where that is the name."""
    whole = place(name)
    return [test for test, outcome in found.items()
            if outcome == "ok" and (test == whole or test.startswith(whole + "."))]


def again(file, other=None):
    """The tests that did not pass in that run (but in the other one), by module."""
    there = load(other) if other else None
    modules = {}
    for name, outcome in load(file).items():
        if outcome != "ok":
            for test in [place(name)] if there is None else passing(name, there):
                if match := re.match(r"test\.((?:test_asyncio\.)?\w+)", test):
                    modules.setdefault(match[1], []).append(test)
    return [(module, 0, 1, *dict.fromkeys(tests)) for module, tests in modules.items()]


def run(file, workers, *wanted):
    units = queue.Queue()
    for unit in wanted:
        if unit.startswith("@"):
            found = again(*unit[1:].split(","))
        else:
            name, _, parts = unit.partition(":")
            found = [(name, part, int(parts or 1)) for part in range(int(parts or 1))]
        for one in found:
            units.put(one)
    outcomes = {"found": {}, "said": {}, "took": {}}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in [pool.submit(serve, units, outcomes) for _ in range(int(workers))]:
            done.result()
    longest = sorted(outcomes["took"].items(), key=lambda item: -item[1])[:5]
    print("# all: " + counts(outcomes["found"]))
    print("# longest: " + ", ".join(f"{name.removeprefix('test.')} {seconds:.0f} s" for name, seconds in longest))
    with open(file, "w") as out:
        json.dump(outcomes, out)


def compare(ours, plain, more, listed, least):
    with open(ours) as lines:
        ours = json.load(lines)
    found, said, plain, more = ours["found"], ours["said"], load(plain), load(more)
    known = {}
    with open(listed) as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                test, reason = (part.strip() for part in line.split("|"))
                known[test] = reason
    wrong = 0
    passed = len({name for run in (found, more) for name, outcome in run.items() if outcome == "ok"})
    if passed < int(least):
        wrong += 1
        print(f"# {passed} tests passed with SMC, fewer than {least}")
    for name, outcome in sorted(found.items()):
        # A fixture is no test: it stands for those of its class. A unit that did not end, or a module that cannot be
        # loaded, is nothing to compare.
        passes = passing(name, plain)
        lost = outcome == "did not end" or not place(name).startswith("test.")
        # A fixture has an outcome of its own only where it failed.
        passed_again = all(more.get(test) == "ok" for test in passes) and more.get(name, "ok") == "ok"
        if outcome != "ok" and passes and passed_again:
            found[name] = "ok"
            print(f"# {name}: {outcome}, and passed when it was run again")
            print("#   " + said.get(name, "").replace("\n", "\n#   "))
            continue
        if lost or outcome != "ok" and passes and name not in known:
            wrong += 1
            print(f"# {name}: {outcome}")
            print("#   " + said.get(name, "").replace("\n", "\n#   "))
        elif outcome not in ("ok", "skipped"):
            print(f"# {name}: {outcome}, " + (f"listed: {known[name]}" if name in known else "with TCP, too"))
    for test, reason in sorted(known.items()):
        if found.get(test) not in ("ok", None) or reason.startswith("sometimes:"):
            continue
        wrong += 1
        print(f"# {test}: is listed, but " + ("passes" if test in found else "does not exist"))
    return wrong


def main():
    command, *rest = sys.argv[1:]
    if command == "run":
        run(*rest)
    elif command == "work":
        work()
    elif compare(*rest):
        sys.exit(1)


if __name__ == "__main__":
    main()
