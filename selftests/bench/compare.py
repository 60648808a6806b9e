# SPDX-License-Identifier: GPL-2.0
"""Measures all rows over all pairs, in rounds, and tells medians, spread and ratios.

In each round every pair has its turn at every row, beginning with another pair each time, so that what
changes on the machine meanwhile meets all of them. A ratio is that of two figures of the same round; the
median of these is told, and the range in which the middle half of them lies. This is no test: no figure
makes it fail.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

from pairs import PAIRS, RATIOS
from rows import ROWS


def first_line(path, start=""):
    """The rest of the first line of a file that begins so."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith(start):
            return line[len(start):].strip(" \t:")
    return ""


def facts():
    """The machine that this runs on, which may be a guest."""
    return {
        "kernel": platform.release(),
        "processor": first_line("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "memory_kib": int(first_line("/proc/meminfo", "MemTotal").split()[0]),
        "clock": first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "load": os.getloadavg(),
    }


def spread(values):
    """Median, extremes, and the middle half."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "low": low, "high": high}


def measure(pairs, rows, rounds, ms):
    """Gives by row and pair what each round has found."""
    found = {row.name: {pair.name: [] for pair in pairs} for row in rows}
    for number in range(rounds):
        started = time.monotonic()
        for row in rows:
            for place in range(len(pairs)):
                pair = pairs[(number + place) % len(pairs)]
                result = pair.measure(row, ms)
                if result:
                    found[row.name][pair.name].append(result)
        print(f"# round {number + 1} of {rounds}: {time.monotonic() - started:.0f} s", flush=True)
    return found


def judge(rows, pairs, found):
    """What is told of each row."""
    report = []
    for row in rows:
        by_pair = {name: results for name, results in found[row.name].items() if results}
        told = {"name": row.name, "text": row.text, "unit": "", "pairs": {}, "ratios": []}
        for name, results in by_pair.items():
            told["unit"] = results[0]["unit"]
            values = [result["value"] for result in results]
            told["pairs"][name] = {**spread(values), "values": values}
            for time_of in ("median_us", "p99_us"):
                times = [result[time_of] for result in results if time_of in result]
                if times:
                    told["pairs"][name][time_of] = statistics.median(times)
        for name, base, goal in RATIOS:
            if name in by_pair and base in by_pair:
                ratios = [one["value"] / two["value"] for one, two in zip(by_pair[name], by_pair[base])]
                told["ratios"].append({"pair": name, "base": base, "goal": goal, **spread(ratios)})
        report.append(told)
    return report


def show(report):
    """The report for people."""
    for row in report:
        print(f"# {row['text']}, {row['unit']}")
        for name, pair in row["pairs"].items():
            times = "".join(
                f", {what} {pair[key]:.0f} us" for key, what in (("median_us", "median"), ("p99_us", "99 %")) if key in pair)
            print(f"#   {name:10} {pair['median']:12.1f}  ({pair['min']:.1f} to {pair['max']:.1f}){times}")
        for ratio in row["ratios"]:
            goal = ""
            if ratio["goal"]:
                reached = "reached" if ratio["median"] >= ratio["goal"] else "NOT reached"
                goal = f", goal {ratio['goal']:.2f} {reached}"
            print(f"#   {ratio['pair']} / {ratio['base']}: {ratio['median']:.3f}"
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
    parser.add_argument("--ms", type=int, default=1000, help="length of one measurement")
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--pair", action="append", default=[])
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    pairs, rows = chosen(PAIRS, options.pair), chosen(ROWS, options.row)
    before = facts()
    try:
        for pair in pairs:
            pair.start()
        found = measure(pairs, rows, options.rounds, options.ms)
    finally:
        for pair in pairs:
            pair.stop()
    report = judge(rows, pairs, found)
    show(report)
    whole = {
        "machine": before,
        "rounds": options.rounds,
        "ms": options.ms,
        "pairs": {pair.name: pair.text for pair in pairs},
        "rows": report,
    }
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
