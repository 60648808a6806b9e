# SPDX-License-Identifier: GPL-2.0
"""Random programs of system calls and netlink requests, guided by what they reach in our modules: those that reach
something new are kept, changed, and put together.

usage: guided.py SEED SECONDS KNOWN [KEPT]
Runs where the namespaces `left` and `right` are, with KCOV and modules that were built for it. It begins with the
programs of the file KNOWN; the best of those that it has kept go to the file KEPT. Without KEPT, the known ones are
run again and again, on any kernel.

KCOV tells what the calls of a thread reach, and nothing of what work items and softirqs do for it.

In either host, one thread runs programs, and another one makes random calls on the same descriptors, so a program
need not reach the same again."""

import base64
import collections
import random
import struct
import sys
import threading
import time
import warnings

import callfuzz
import choices
import kcov
import nl
import nlfuzz

OURS = "smc-rs"
FAMILIES = {"SMC_GEN_NETLINK": nlfuzz.EID_KINDS, "SMC_PNETID": nlfuzz.PNET_KINDS, OURS: nlfuzz.OWN_KINDS}
RULE_FLUSH, DRAIN, PNET_FLUSH, EID_ADD, EID_FLUSH, LIMIT_OFF = 6, 10, 4, 10, 12, 18
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
# With it, connections use version 2.
EID = nl.attribute(1, b"GUIDED".ljust(32) + b"\0")
HOSTS = "left", "right"
# Calls of a program, and programs after which what they have set is taken back.
CALLS, RESTORE = 12, 100
# Programs that are written down, and how long they may be, in bytes.
BEST, LONGEST = 120, 300


class Programs(callfuzz.Thread):
    """A thread that runs programs."""

    def __init__(self, seed, space, whole):
        super().__init__(seed, space)
        # For what is not a program's.
        self.own = self.rng
        # Those of the host, and that of the whole system, where devices are drained.
        self.families = {name: nl.Family(name, space) for name in FAMILIES}
        self.whole = whole
        self.diag = nl.Link(NETLINK_SOCK_DIAG, space=space)
        self.runs = 0

    def ask(self):
        """A netlink request."""
        name = self.rng.choice([*FAMILIES, OURS])
        family = self.whole if name == OURS and self.rng.random() < 0.5 else self.families[name]
        payload = nlfuzz.request(self.rng, list(family.commands), FAMILIES[name])
        return answered(family.link, family.id, self.rng.choice([nl.ACK, nl.ACK, nl.DUMP, nl.DUMP | nl.ACK]), payload)

    def list_sockets(self):
        """A request to the diag module."""
        size = self.rng.choice([56, 56, 56, 0, 1, 55, 57, 400])
        family = self.rng.choice([43, 43, 43, 2, 0])
        request = struct.pack("=BBBBI", family, 0, self.rng.getrandbits(8), 0, self.rng.getrandbits(32))
        flags = self.rng.choice([nl.DUMP, nl.DUMP, nl.ACK])
        return answered(self.diag, SOCK_DIAG_BY_FAMILY, flags, (request + bytes(400))[:size])

    def program(self, given):
        """Runs the program that comes of these bytes, and of others if they do not last. Gives all of them."""
        self.rng = choices.Choices(given, self.own)
        for _ in range(self.rng.randrange(1, CALLS)):
            if self.rng.random() < 0.15:
                self.count(self.rng.choice([self.ask, self.ask, self.list_sockets]))
            else:
                self.one()
        self.runs += 1
        if self.runs % RESTORE == 0:
            self.restore()
        return bytes(self.rng.taken)

    def restore(self):
        """Takes back what keeps connections from using SMC."""
        ours, generic, pnet = (self.families[name] for name in (OURS, "SMC_GEN_NETLINK", "SMC_PNETID"))
        ours.do(RULE_FLUSH)
        for device in "rxleft", "rxright":
            self.whole.do(DRAIN, nl.attribute(18, nl.text(device)), nl.attribute(20))
        pnet.do(PNET_FLUSH)
        generic.do(EID_FLUSH)
        generic.do(EID_ADD, EID)
        generic.do(LIMIT_OFF)


def answered(link, kind, flags, payload):
    """Asks; no answer at all is no answer."""
    try:
        link.request(kind, flags, payload)
    except TimeoutError:
        raise AssertionError(f"no answer to {payload.hex()}") from None
    return 0


class Guided(Programs):
    """One that looks where they get."""

    def __init__(self, seed, space, whole, known):
        super().__init__(seed, space, whole)
        self.kept, self.reached = list(known), set()
        # What each program that was kept was the first to reach.
        self.first = [set() for _ in known]

    def run(self, end, dismissed):
        """Programs, until the time is up."""
        self.ident = threading.get_native_id()
        coverage = kcov.Coverage()
        for place, given in enumerate(self.kept):
            if time.monotonic() < end:
                self.look(coverage, given, self.first[place])
        while time.monotonic() < end:
            found = set()
            given = self.look(coverage, self.next(), found)
            if found:
                self.kept.append(given)
                self.first.append(found)
        self.done = True
        dismissed.wait()

    def next(self):
        """A new program, or one that is like some that were kept: rather one of the latest."""
        if not self.kept or self.own.random() < 0.1:
            return b""
        place = max(self.own.randrange(len(self.kept)) for _ in range(2))
        return choices.changed(self.kept[place], self.own, self.kept)

    def look(self, coverage, given, found):
        """Runs a program. `found` gets what nobody had reached before it."""
        with coverage:
            taken = self.program(given)
        found |= coverage.places - self.reached
        self.reached |= found
        return taken

    def best(self):
        """Programs that have found most; the first ones do so easily."""
        order = sorted(range(len(self.kept)), key=lambda place: len(self.first[place]), reverse=True)
        return [self.kept[place] for place in order if self.first[place] and len(self.kept[place]) <= LONGEST][:BEST]


class Known(Programs):
    """One that runs those that are known."""

    def __init__(self, seed, space, whole, known):
        super().__init__(seed, space, whole)
        self.known = known

    def run(self, end, dismissed):
        """All of them once, and then until the time is up."""
        self.ident = threading.get_native_id()
        while self.runs < len(self.known) or time.monotonic() < end:
            self.program(self.known[self.runs % len(self.known)] if self.known else b"")
        self.done = True
        dismissed.wait()


def worker(number, seed, end, known, kept):
    """Host `number`. Gives what is wrong, or nothing."""
    space = HOSTS[number]
    whole = nl.Family(OURS)
    callfuzz.enter(space)
    first = (Guided if kept else Known)(f"{seed} {space}", space, whole, known)
    first.restore()
    threads = [first, callfuzz.Thread(f"{seed} {space} beside", space)]
    dismissed = threading.Event()
    bodies = [threading.Thread(target=thread.run, args=(end, dismissed), daemon=True) for thread in threads]
    for body in bodies:
        body.start()
    wrong = callfuzz.attend(threads, bodies)
    if wrong:
        return wrong
    dismissed.set()
    first.restore()
    callfuzz.tell(space, threads)
    if kept:
        print(f"# {space}: {first.runs} programs, {len(first.kept)} kept, of {len(known)} known ones", flush=True)
        write(f"{kept}.{space}", first.best())
        with open(f"{kept}.{space}.places", "w", encoding="ascii") as file:
            file.writelines(f"{place:x}\n" for place in first.reached)
    else:
        print(f"# {space}: {first.runs} programs", flush=True)
    return ""


def read(name):
    """The programs of a file."""
    with open(name, encoding="ascii") as file:
        return [base64.b64decode(line) for line in file if not line.startswith("#")]


def write(name, programs):
    """Writes programs to a file."""
    with open(name, "w", encoding="ascii") as file:
        file.write("# SPDX-License-Identifier: GPL-2.0\n# Programs of guided.py\n")
        file.writelines(base64.b64encode(program).decode() + "\n" for program in programs)


def summary(kept):
    """How much of our modules was reached, by either host; the best programs of both go to one file."""
    places = set()
    for space in HOSTS:
        with open(f"{kept}.{space}.places", encoding="ascii") as file:
            places |= {int(line, 16) for line in file}
    symbols = []
    with open("/proc/kallsyms", encoding="ascii") as file:
        for words in map(str.split, file):
            if len(words) == 4 and words[3].startswith("[smc_") and words[1] in "tT":
                symbols.append((int(words[0], 16), words[3].strip("[]")))
    symbols.sort()
    functions = collections.Counter(module for _, module in symbols)
    reached = {max((symbol for symbol in symbols if symbol[0] <= place), default=None) for place in places}
    for module, count in sorted(functions.items()):
        those = sum(1 for symbol in reached if symbol and symbol[1] == module)
        print(f"# {module}: {those} of {count} functions reached", flush=True)
    print(f"# {len(places)} places reached", flush=True)
    # Those that found most come first in either.
    turns = [program for two in zip(*(read(f"{kept}.{space}") for space in HOSTS)) for program in two]
    write(kept, turns[:BEST])
    return len(places)


def main():
    """Starts the workers; exits with 1 if something hangs or dies, or if next to nothing was reached."""
    warnings.simplefilter("ignore", DeprecationWarning)
    seed, seconds, known, kept = (*sys.argv[1:], None)[:4]
    callfuzz.share()
    end = time.monotonic() + float(seconds)
    programs = read(known)
    random.Random(seed).shuffle(programs)
    well = callfuzz.workers(len(HOSTS), lambda number: worker(number, seed, end, programs, kept), end)
    if well and kept:
        well = summary(kept) > 1000
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
