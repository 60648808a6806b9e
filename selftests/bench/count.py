# SPDX-License-Identifier: GPL-2.0
"""count.py COUNTS --json FILE [--repeat N]: counts instructions of the guest it runs in.

The plugin insns.c, in the emulator, writes to the file COUNTS what was executed on each page of the modules
since the last mark. Each kind of work is done twice, little and much of it, and what a unit costs is the difference
of the two counts by that of the two amounts: connections, warming up and starting programs drop out.
"""

import argparse
import ctypes
import json
import mmap
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from facts import facts
from hosts import Here, Host
from pairs import SERVER, Sockets

# See insns.c; the instruction, and one that returns.
MARK = bytes([0x0F, 0x1F, 0x84, 0x00]) + b"SMCn" + bytes([0xC3])
PAGE = 4096
# The modules whose work is compared: SMC itself, and what it makes the device do.
OURS = ("smc_r", "smc")
DEVICE = ("ib_core", "rdma_rxe")
MIB = 1 << 20


@dataclass(frozen=True)
class Work:
    """A kind of work: how much of it is little and much, in units that figures are told of."""

    name: str
    text: str
    unit: str
    goal: float
    options: str
    little: int
    much: int
    # Of what smc_bench counts.
    unit_size: int = 1

    def words(self, amount):
        """The options of smc_bench; all streams together do that much."""
        return [*self.options.split(), "--count", str(amount * self.unit_size), "--warm-up", "0"]


WORKS = [
    Work("bulk-1", "bulk, 1 stream", "MiB", 0.7, "--what bulk --size 65536", 4, 20, MIB),
    Work("bulk-10", "bulk, 10 streams", "MiB", 0.7, "--what bulk --size 65536 --streams 10", 10, 30, MIB // 10),
    Work("request-1", "requests of 1 byte", "request", 0.6, "--what requests --size 1", 50, 350),
    Work("request-4k", "requests of 4 KiB", "request", 0.6, "--what requests --size 4096", 50, 350),
    Work("connect", "connects", "connection", 0.6, "--what connects", 10, 50),
]


class Counter:
    """The plugin's file, and marks."""

    def __init__(self, path):
        self.path = Path(path)
        self.code = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.code.write(MARK)
        self.call = ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(self.code)))
        self.phases = 0

    def mark(self):
        """What was executed since the last mark: by address of a page, and in the whole `guest`."""
        self.call()
        self.phases += 1
        number, end = self.phases - 1, time.monotonic() + 20
        while f"\n{number} end\n" not in "\n" + (text := self.path.read_text(encoding="ascii")):
            if time.monotonic() > end:
                raise RuntimeError(f"the emulator has not told of phase {number}: is the plugin loaded?")
            time.sleep(0.05)
        lines = [line.split() for line in text.splitlines()]
        return {line[1]: int(line[2]) for line in lines if line[0] == str(number) and len(line) == 3}


class Modules:
    """Which module an address belongs to."""

    def __init__(self):
        self.known = []
        for line in Path("/proc/modules").read_text(encoding="ascii").splitlines():
            name, size, *_, base = line.split(" (")[0].split()
            self.known.append((int(base, 16), int(size), name))
        self.known.sort(reverse=True)

    def name(self, address):
        """The nearest one below, if it reaches so far."""
        for base, size, name in self.known:
            if base <= address:
                return name if address < base + size else "other"
        return "other"

    def sums(self, counts):
        """By module."""
        sums = {"guest": counts.get("guest", 0)}
        for page, count in counts.items():
            if page != "guest":
                name = self.name(int(page, 16))
                sums[name] = sums.get(name, 0) + count
        return sums


def settle(hosts):
    """Until connections are over that end in the background."""
    end = time.monotonic() + 30
    while any(group["connections"] for host in hosts for group in json.loads(host.run("smcctl", "--json", "groups"))["groups"]):
        if time.monotonic() > end:
            raise RuntimeError("connections do not end")
        time.sleep(0.1)


def packets(hosts):
    """Packets that the devices have sent."""
    return sum(
        int(path.read_text(encoding="ascii"))
        for path in Path("/sys/class/infiniband").glob("rxe*/ports/1/hw_counters/sent_pkts")) if hosts else 0


def once(pair, counter, modules, work, amount):
    """What that much of it costs, by module, and in packets."""
    settle(set(pair.hosts))
    counter.mark()
    before = packets(pair.hosts)
    pair.ask(work.words(amount), 300)
    settle(set(pair.hosts))
    after = packets(pair.hosts)
    return {**modules.sums(counter.mark()), "packets": after - before}


def cost(pair, counter, modules, work):
    """Of one unit."""
    little, much = (once(pair, counter, modules, work, amount) for amount in (work.little, work.much))
    units = work.much - work.little
    return {name: (much.get(name, 0) - little.get(name, 0)) / units for name in set(little) | set(much)}


def total(costs):
    """SMC and its use of the device."""
    return sum(costs.get(name, 0) for name in OURS + DEVICE)


def count(pair, counter, repeat):
    """Costs of each kind of work: medians of some tries, and how far these are apart."""
    told = {}
    for work in WORKS:
        pair.ask(work.words(work.little), 300)
        # After what came with the first connection, a module perhaps.
        modules = Modules()
        tries = [cost(pair, counter, modules, work) for _ in range(repeat)]
        names = set().union(*tries)
        median = {name: statistics.median(one.get(name, 0) for one in tries) for name in names}
        totals = sorted(total(one) for one in tries)
        told[work.name] = {
            "text": work.text,
            "unit": work.unit,
            "goal": work.goal,
            "smc": sum(median.get(name, 0) for name in OURS),
            **{name: median.get(name, 0) for name in DEVICE},
            "total": statistics.median(totals),
            "totals": totals,
            "guest": median["guest"],
            "packets": median["packets"],
        }
        print(f"# {work.text}: {told[work.name]['total']:.0f} instructions per {work.unit}", flush=True)
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts")
    parser.add_argument("--json", required=True)
    parser.add_argument("--server", default="", help="namespace of the server")
    parser.add_argument("--client", default="")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    here = Here()
    server, client = Host(here, options.server), Host(here, options.client)
    pair = Sockets("smc", "SMC sockets", (server, "smc"), (client, "smc"), "smc", 5301, SERVER)
    try:
        pair.start()
        found = count(pair, Counter(options.counts), options.repeat)
        if problem := pair.prove():
            raise RuntimeError(problem)
    finally:
        pair.stop()
    whole = {"guest": facts(), "repeat": options.repeat, "works": found}
    Path(options.json).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
