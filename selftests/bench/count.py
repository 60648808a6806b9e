# SPDX-License-Identifier: GPL-2.0
"""count.py COUNTS --json FILE [--repeat N] [--work NAME...] [--functions N]: counts instructions of the guest.

The plugin insns.c, in the emulator, writes to the file COUNTS what was executed in each place of the modules
since the last mark: by default a page, so that functions can be told apart only if it was asked for less. Each
kind of work is done twice, little and much of it, and what a unit costs is the difference of the two counts by that
of the two amounts: connections, warming up and starting programs drop out.
"""

import argparse
import bisect
import ctypes
import json
import mmap
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from facts import facts
from hosts import Here, Host
from pairs import SERVER, Sockets, plain_pairs

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

# What sockets that fell back are compared with TCP's in. A unit of bulk is larger: it costs TCP little.
PLAIN = [
    Work("bulk-1", "bulk, 1 stream", "MiB", 1.05, "--what bulk --size 65536", 40, 240, MIB),
    Work("request-1", "requests of 1 byte", "request", 1.05, "--what requests --size 1", 200, 1200),
    Work("request-4k", "requests of 4 KiB", "request", 1.05, "--what requests --size 4096", 200, 1200),
    Work("connect", "connects", "connection", 1.05, "--what connects", 20, 120),
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
        """What was executed since the last mark: by address of a place, and in the whole `guest`."""
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

    def __init__(self, places=None):
        self.known, self.symbols, self.places = [], [], places
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

    def sums(self, counts, functions):
        """By module; by function as well if that is wanted."""
        sums = {"guest": counts.get("guest", 0)}
        for place, count in counts.items():
            if place == "guest":
                continue
            address = int(place, 16)
            for name in (self.name(address), *([self._function(address)] if functions else [])):
                sums[name] = sums.get(name, 0) + count
        return sums

    def _function(self, address):
        """The module and the function; of some functions the place in it as well."""
        if not self.symbols:
            lines = (line.split() for line in Path("/proc/kallsyms").read_text(encoding="ascii").splitlines())
            self.symbols = sorted((int(line[0], 16), f"{line[3][1:-1]} {line[2]}") for line in lines if len(line) == 4)
        place = bisect.bisect_right(self.symbols, (address, "~"))
        if not place:
            return "other"
        start, name = self.symbols[place - 1]
        return f"{name}+{address - start:#x}" if self.places and self.places in name else name


def settle(hosts):
    """Until connections are over that end in the background."""
    end = time.monotonic() + 30
    while any(group["connections"] for host in hosts for group in json.loads(host.run("smcctl", "--json", "groups"))["groups"]):
        if time.monotonic() > end:
            raise RuntimeError("connections do not end")
        time.sleep(0.1)


def device_counters():
    """What the devices have counted: packets, completions, what was repeated."""
    sums = {}
    for path in Path("/sys/class/infiniband").glob("rxe*/ports/1/hw_counters/*"):
        if path.name != "lifespan":
            name = f"device {path.name}"
            sums[name] = sums.get(name, 0) + int(path.read_text(encoding="ascii"))
    return sums


def once(pair, counter, sums, work, amount):
    """What that much of it costs, by module, and in counters of the devices."""
    settle(set(pair.hosts))
    counter.mark()
    before = device_counters()
    pair.ask(work.words(amount), 300)
    settle(set(pair.hosts))
    after = device_counters()
    return {**sums(counter.mark()), **{name: after[name] - before[name] for name in after}}


def cost(pair, counter, sums, work):
    """Of one unit."""
    little, much = (once(pair, counter, sums, work, amount) for amount in (work.little, work.much))
    units = work.much - work.little
    return {name: (much.get(name, 0) - little.get(name, 0)) / units for name in set(little) | set(much)}


def total(costs):
    """SMC and its use of the device."""
    return sum(costs.get(name, 0) for name in OURS + DEVICE)


def largest(costs, number):
    """The functions that cost most, and what the devices have counted."""
    functions = sorted(((cost, name) for name, cost in costs.items() if " " in name and name[:7] != "device "), reverse=True)
    for cost, name in functions[:number]:
        print(f"#   {cost:10.0f} {name}")
    for name, cost in sorted(costs.items()):
        if name.startswith("device ") and cost:
            print(f"#   {cost:10.2f} {name}")


def count(pair, counter, options):
    """Costs of each kind of work: medians of some tries, and how far these are apart."""
    told = {}
    for work in (work for work in WORKS if work.name in (options.work or work.name)):
        pair.ask(work.words(work.little), 300)
        # After what came with the first connection, a module perhaps.
        modules = Modules(options.places)

        def sums(counts, modules=modules):
            return modules.sums(counts, options.functions)

        tries = [cost(pair, counter, sums, work) for _ in range(options.repeat)]
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
            "packets": median.get("device sent_pkts", 0),
        }
        print(f"# {work.text}: {told[work.name]['total']:.0f} instructions per {work.unit}, "
              f"{told[work.name]['smc']:.0f} of them of SMC; {told[work.name]['packets']:.1f} packets", flush=True)
        if options.functions:
            largest(median, options.functions)
    return told


def count_plain(pairs, counter, options):
    """What the whole guest executes for sockets of TCP, and for SMC sockets that have fallen back. Whose turn it is
    changes from try to try."""
    told = {pair.name: {"text": pair.text, "works": {}} for pair in pairs}
    for work in (work for work in PLAIN if work.name in (options.work or work.name)):
        tries = [[cost(pair, counter, dict, work)["guest"] for pair in pairs] for _ in range(options.repeat)]
        for pair, costs in zip(pairs, zip(*tries)):
            told[pair.name]["works"][work.name] = {
                "text": work.text, "unit": work.unit, "guest": statistics.median(costs), "tries": costs}
            print(f"# {work.text}, {pair.text}: {statistics.median(costs):.0f} instructions per {work.unit}", flush=True)
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts")
    parser.add_argument("--json", required=True)
    parser.add_argument("--server", default="", help="namespace of the server")
    parser.add_argument("--client", default="")
    parser.add_argument("--plain", nargs=2, metavar="HOST", help="namespaces without RDMA, of a server and a client")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", action="append", choices=[work.name for work in WORKS], help="only this; again for more")
    parser.add_argument("--functions", type=int, default=0, metavar="N",
                        help="tell the N functions that cost most, of accelerated sockets alone; the plugin has to count"
                             " by 16 bytes (shift=4)")
    parser.add_argument("--places", metavar="NAME", help="with --functions: tell places within functions with this in their names")
    options = parser.parse_args()
    here = Here()
    server, client = Host(here, options.server), Host(here, options.client)
    counter = Counter(options.counts)
    pair = Sockets("smc", "SMC sockets", (server, "smc"), (client, "smc"), "smc", 5301, SERVER)
    try:
        pair.start()
        found = count(pair, counter, options)
        if problem := pair.prove():
            raise RuntimeError(problem)
    finally:
        pair.stop()
    whole = {"guest": facts(), "repeat": options.repeat, "works": found}
    if options.plain and not options.functions:
        pairs = plain_pairs(*(Host(here, name) for name in options.plain))
        try:
            for pair in pairs:
                pair.start()
            whole["plain"] = count_plain(pairs, counter, options)
            if problem := next(filter(None, (pair.prove() for pair in pairs)), None):
                raise RuntimeError(problem)
        finally:
            for pair in pairs:
                pair.stop()
    Path(options.json).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
