# SPDX-License-Identifier: GPL-2.0
"""Judges the JSON of an iperf3 client: usage: iperf.py FILE SECONDS"""

import json
import sys


def main():
    """Prints the rate; 1 if there was a stall, an error or too short a test."""
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    if "error" in result:
        print(f"# iperf3: {result['error']}")
        return 1
    silent = []
    for part in ("sum", "sum_bidir_reverse"):
        quiet = 0
        for interval in result["intervals"]:
            # The last one may be a splinter.
            if part not in interval or interval["sum"]["seconds"] < 0.5:
                continue
            quiet = quiet + 1 if interval[part]["bytes"] == 0 else 0
            # A machine may stop for a second or two.
            if quiet == 3:
                silent.append(f"{interval[part]['start']:.1f} s")
    end = result["end"]
    for part in ("sum_received", "sum_received_bidir_reverse"):
        if part in end:
            print(f"# {end[part]['bits_per_second'] / 1e6:.1f} Mbit/s, {end[part]['bytes']} bytes")
            if end[part]["bytes"] == 0:
                silent.append("all")
    if silent:
        print(f"# nothing was transferred in three seconds up to {', '.join(silent)}")
    if len(result["intervals"]) < int(sys.argv[2]) - 1:
        print(f"# only {len(result['intervals'])} intervals")
        return 1
    return 1 if silent else 0


sys.exit(main())
