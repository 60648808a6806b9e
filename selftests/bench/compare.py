# SPDX-License-Identifier: GPL-2.0
"""Measures all rows over all pairs, in rounds, and tells medians, spread and ratios.

In each round every pair has its turn at every row, beginning with another pair each time, so that what
changes on the machine meanwhile meets all of them. A ratio is that of two figures of the same round; the
median of these is told, and the range in which the middle half of them lies. This is no test: no figure
makes it fail, but pairs do that were not what they should be.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from hosts import Failed, Here, There
from pairs import RATIOS, all_pairs
from rows import ROWS

BENCH = Path(__file__).resolve().parent


def facts(guest):
    """What that guest is."""
    code, out, err = guest.run(["python3", str(BENCH / "facts.py")])
    return json.loads(out) if code == 0 else {"error": err}


def spread(values):
    """Median, extremes, and the middle half."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "low": low, "high": high}


def measure(pairs, rows, rounds, ms):
    """Gives by row and pair what each round has found, None where it failed, and what went wrong."""
    found = {row.name: {pair.name: [] for pair in pairs} for row in rows}
    problems = []

    def fails(error):
        problems.append(str(error))
        print(f"# FAILED {error}", flush=True)

    def turn(row, pair):
        if not pair.takes(row):
            return
        result = None
        try:
            result = pair.measure(row, ms)
        except Failed as error:
            fails(error)
            # What it left behind must not meet the next measurement.
            try:
                pair.stop()
                pair.start()
            except Failed as again:
                fails(again)
        found[row.name][pair.name].append(result)

    for row in rows:
        for pair in (pair for pair in pairs if row.once and pair.takes(row)):
            started = time.monotonic()
            turn(row, pair)
            print(f"# {row.text}, {pair.name}: {time.monotonic() - started:.0f} s", flush=True)
    for number in range(rounds):
        started = time.monotonic()
        for row in rows:
            for place in range(0 if row.once else len(pairs)):
                turn(row, pairs[(number + place) % len(pairs)])
        print(f"# round {number + 1} of {rounds}: {time.monotonic() - started:.0f} s", flush=True)
    return found, problems


def judge(rows, pairs, found):
    """What is told of each row."""
    report = []
    for row in rows:
        by_pair = {name: results for name, results in found[row.name].items() if any(results)}
        if not by_pair:
            continue
        told = {"name": row.name, "text": row.text, "unit": "", "less_is_better": row.less, "pairs": {}, "ratios": []}
        for name, results in by_pair.items():
            good = [result for result in results if result]
            told["unit"] = good[0]["unit"]
            values = [result["value"] for result in good]
            told["pairs"][name] = {**spread(values), "values": values, "failed": len(results) - len(good)}
            for time_of in ("median_us", "p99_us"):
                times = [result[time_of] for result in good if time_of in result]
                if times:
                    told["pairs"][name][time_of] = statistics.median(times)
        for name, base, goal, beginnings in RATIOS:
            if name in by_pair and base in by_pair and row.name.startswith(beginnings):
                ratios = [one["value"] / two["value"] for one, two in zip(by_pair[name], by_pair[base]) if one and two]
                if row.less:
                    ratios = [1 / ratio for ratio in ratios]
                if ratios:
                    told["ratios"].append({"pair": name, "base": base, "goal": goal, **spread(ratios)})
        report.append(told)
    return report


def show(report):
    """The report for people."""
    for row in report:
        print(f"# {row['text']}, {row['unit']}{', less is better' if row['less_is_better'] else ''}")
        for name, pair in row["pairs"].items():
            times = "".join(
                f", {what} {pair[key]:.0f} us" for key, what in (("median_us", "median"), ("p99_us", "99 %")) if key in pair)
            failed = f", {pair['failed']} FAILED" if pair["failed"] else ""
            print(f"#   {name:10} {pair['median']:12.1f}  ({pair['min']:.1f} to {pair['max']:.1f}){times}{failed}")
        for ratio in row["ratios"]:
            goal = ""
            if ratio["goal"]:
                reached = "reached" if ratio["median"] >= ratio["goal"] else "NOT reached"
                goal = f", goal {ratio['goal']:.2f} {reached}"
            one, two = ratio["pair"], ratio["base"]
            if row["less_is_better"]:
                one, two = two, one
            print(f"#   {one} / {two}: {ratio['median']:.3f}"
                  f"  (half of them {ratio['low']:.3f} to {ratio['high']:.3f}){goal}")


def chosen(things, names):
    """Those of these names, or all."""
    unknown = set(names) - {thing.name for thing in things}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    return [thing for thing in things if not names or thing.name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ms", type=int, default=600, help="length of one measurement")
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--pair", action="append", default=[])
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    here, there = Here(), There(os.environ["VM_PEER"])
    every = all_pairs(here, there, os.environ["VM_LOCAL"], os.environ["VM_PEER"])
    pairs, rows = chosen(every, options.pair), chosen(ROWS, options.row)
    guests = {guest.name: facts(guest) for guest in (here, there)}
    for name, guest in guests.items():
        print(f"# guest {name}: Linux {guest['kernel']}, {guest['machine']}, {guest['processors']} processors", flush=True)
    try:
        for pair in pairs:
            pair.start()
        found, problems = measure(pairs, rows, options.rounds, options.ms)
        problems += [problem for pair in pairs if (problem := pair.prove())]
    finally:
        for pair in pairs:
            pair.stop()
    report = judge(rows, pairs, found)
    show(report)
    for problem in problems:
        print(f"# problem: {problem}")
    whole = {
        "guests": guests,
        "rounds": options.rounds,
        "ms": options.ms,
        "pairs": {pair.name: pair.text for pair in pairs},
        "rows": report,
        "problems": problems,
    }
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
