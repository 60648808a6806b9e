# SPDX-License-Identifier: GPL-2.0
"""What two hosts that talk with nobody else have counted agrees, since the counters of the second one began.

usage: balance.py STATS
STATS.a and STATS.b are what `smcctl --json stats` prints; STATS.a.before is that of the first one when the second began.
"""

import json
import os
import sys


def read(path):
    """Connections by role, and bytes by direction."""
    if path.endswith(".before") and not os.path.exists(path):
        return {name: 0 for name in ("client", "server", "tx", "rx")}
    with open(path, encoding="ascii") as file:
        smcr = json.load(file)["smcr"]
    return {
        "client": smcr["client_v1"] + smcr["client_v2"],
        "server": smcr["server_v1"] + smcr["server_v2"],
        "tx": smcr["tx"]["bytes"],
        "rx": smcr["rx"]["bytes"],
    }


def main():
    path = sys.argv[1]
    before, ours, theirs = (read(f"{path}.{end}") for end in ("a.before", "a", "b"))
    ours = {name: count - before[name] for name, count in ours.items()}
    failed = False
    for what, one, other in (
        ("connections that a made", ours["client"], theirs["server"]),
        ("connections that b made", theirs["client"], ours["server"]),
    ):
        print(f"# {what}: {one}; the other side: {other}")
        failed |= one != other
    for what, sent, received in (
        ("bytes from a to b", ours["tx"], theirs["rx"]),
        ("bytes from b to a", theirs["tx"], ours["rx"]),
    ):
        print(f"# {what}: {sent} sent, {received} received")
        failed |= not 0 <= sent - received <= sent // 100
    sys.exit(failed)


if __name__ == "__main__":
    main()
