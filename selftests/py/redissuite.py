# SPDX-License-Identifier: GPL-2.0
"""Runs redis' own tests, of which several suites at once, and compares such runs.

run SOURCE FILE SUITES SKIPPED GROUP...    each test's outcome goes to FILE. A group is one or more units of redis'
                           tests, with + between them; SUITES of them run at once. SKIPPED is a file with the names
                           of tests to leave out, or empty
missed OURS [PLAIN]        the units with tests that did not pass in OURS (but in PLAIN)
compare LIST LEAST PLAIN OURS...    tests that pass in PLAIN and in none of OURS must be in the list, and the other way
                           round; lines of it: unit, test, reason, with bars between them. A reason that begins
                           with "sometimes:" is for a test that may pass, too. LEAST tests must pass in OURS
"""

import concurrent.futures
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import time

# Seconds without any news from the tests, and seconds for a group.
SILENCE, LIMIT = 500, 1500
# Ports of a suite, and those it starts with.
PORTS, FIRST = 1000, 15100
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What the lines look like that count.
OK = re.compile(r"\[ok\]: (.*) \((\d+) ms\)$")
ERROR = re.compile(r"\[err\]: (.*) in tests/.*\.tcl$")
UNIT = re.compile(r"Testing (\w+/\S+)$")
DONE = re.compile(r"\[\d+/\d+ done\]: (\S+) \((\d+) seconds\)$")
OTHER = re.compile(r"\[(exception|TIMEOUT|err)\]: ?(.*)$")


def prepare(source, number):
    """A folder as redis' sources would be after building."""
    folder = f"suite{number}"
    shutil.copytree(f"{source}/tests", f"{folder}/tests")
    shutil.copy(f"{source}/redis.conf", folder)
    os.mkdir(f"{folder}/src")
    for name in ("server", "cli", "benchmark", "check-rdb", "check-aof"):
        os.symlink(f"/usr/bin/redis-{name}", f"{folder}/src/redis-{name}")
    return folder


def go(folder, number, group, skipped, found, said):
    """Runs a group; notes the outcome of each test, and of each unit as that of a test with no name. Gives back how
    long each test took."""
    units = group.split("+")
    command = ["timeout", "-k", "5", str(LIMIT), "tclsh", "tests/test_helper.tcl", "--clients", "1", "--durable"]
    command += ["--timeout", str(SILENCE), "--baseport", str(FIRST + PORTS * number), "--portcount", str(PORTS - 100)]
    if skipped:
        command += ["--skipfile", skipped]
    took = []
    for unit in units:
        command += ["--single", unit]
        found[unit, ""] = "did not end"
    unit, last = units[0], None
    with subprocess.Popen(command, cwd=folder, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            line = COLOUR.sub("", line.rstrip("\n"))
            if match := UNIT.match(line):
                unit, last = match[1], None
            elif match := OK.match(line):
                found.setdefault((unit, match[1]), "ok")
                took.append((int(match[2]) / 1000, match[1]))
                last = None
            elif match := ERROR.match(line):
                last = unit, match[1]
                found[last], said[last] = "failed", ""
                print(f"# {unit} | {match[1]}: failed", flush=True)
            elif match := DONE.match(line):
                found[match[1], ""] = "ok"
                last = None
            elif match := OTHER.match(line):
                last = unit, ""
                print(f"# {unit}: {line}", flush=True)
                found[last], said[last] = "failed", match[2]
            elif line.startswith("[") or line.startswith("Execution time") or line.startswith("==="):
                last = None
            elif last and len(said[last]) < 600:
                said[last] += "\n" + line
    return took


def serve(source, number, skipped, groups, found, said):
    folder = prepare(source, number)
    while True:
        try:
            group = groups.get_nowait()
        except queue.Empty:
            break
        started = time.monotonic()
        took = go(folder, number, group, skipped, found, said)
        mine = [outcome for (unit, test), outcome in found.items() if unit in group.split("+") and test]
        bad = len(mine) - mine.count("ok")
        longest = ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(took, reverse=True)[:3])
        total = time.monotonic() - started
        print(f"# {group}: {mine.count('ok')} ok, {bad} failed, {total:.0f} s; {longest}", flush=True)
    shutil.rmtree(folder)


def run(source, file, suites, skipped, *wanted):
    groups = queue.Queue()
    for group in wanted:
        groups.put(group)
    found, said = {}, {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        numbers = range(min(int(suites), len(wanted)))
        for done in [pool.submit(serve, source, n, skipped, groups, found, said) for n in numbers]:
            done.result()
    good = sum(outcome == "ok" for (_, test), outcome in found.items() if test)
    print(f"# all: {good} ok, {sum(outcome != 'ok' for outcome in found.values())} not")
    with open(file, "w") as out:
        json.dump([[*key, outcome, said.get(key, "")] for key, outcome in found.items()], out)


def load(*files):
    """The outcomes of runs; the best one of a test counts."""
    found, said = {}, {}
    for file in files:
        with open(file) as lines:
            for unit, test, outcome, words in json.load(lines):
                if found.get((unit, test)) != "ok":
                    found[unit, test], said[unit, test] = outcome, words
    return found, said


def missed(ours, plain=None):
    found, _ = load(ours)
    there = load(plain)[0] if plain else None
    units = {unit for (unit, test), outcome in found.items()
             if outcome != "ok" and (there is None or there.get((unit, test)) == "ok")}
    print(*sorted(units))


def compare(listed, least, plain, *ours):
    known = {}
    with open(listed) as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                unit, test, reason = (part.strip() for part in line.split("|"))
                known[unit, test] = reason
    first, words = load(ours[0])
    best, said = load(*ours)
    there, _ = load(plain)
    wrong = 0
    passed = sum(outcome == "ok" for (_, test), outcome in best.items() if test)
    if passed < int(least):
        wrong += 1
        print(f"# {passed} tests passed with SMC, fewer than {least}")
    for key, outcome in sorted(best.items()):
        title = " | ".join(key)
        if outcome == "ok":
            if first.get(key, "ok") != "ok":
                print(f"# {title}: {first[key]}, and passed when it was run again")
                print("#   " + words[key].replace("\n", "\n#   "))
        elif key in known or there.get(key) != "ok":
            print(f"# {title}: {outcome}, " + (f"listed: {known[key]}" if key in known else "with TCP, too"))
        else:
            wrong += 1
            print(f"# {title}: {outcome}, passes with TCP")
            print("#   " + said[key].replace("\n", "\n#   "))
    for key, reason in sorted(known.items()):
        if best.get(key, "ok") == "ok" and not reason.startswith("sometimes:"):
            wrong += 1
            print(f"# {' | '.join(key)}: is listed, but " + ("passes" if key in best else "does not exist"))
    return wrong


def main():
    command, *rest = sys.argv[1:]
    if command == "run":
        run(*rest)
    elif command == "missed":
        missed(*rest)
    elif compare(*rest):
        sys.exit(1)


if __name__ == "__main__":
    main()
