# SPDX-License-Identifier: GPL-2.0
"""What happens at the same time, at random, for a bounded time: threads and processes that all come to an end, and
what has to be left of it: nothing.

SMC_TEST_SEED chooses the random numbers, SMC_TEST_SCALE for how many times as long it goes."""

import collections
import ctypes
import errno
import json
import mmap
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

import nl
import suite
from suite import LEFT, equal, run, wait_for

SCALE = int(os.environ.get("SMC_TEST_SCALE") or 1)
SEED = int(os.environ.get("SMC_TEST_SEED") or 7609)
# Seconds that anything may take which is not to hang.
BOUND = 60 * suite.SLOWER
# The end of a connection that was cut off, as either side may see it.
CUT = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ENOTCONN}
BLOCK = bytes((i * 7 + (i >> 8)) & 255 for i in range(65521)) * 3
# Of SMC_GEN_NETLINK, and of smc-rs.
STATS, FAULTS, LINKS_LOST = 7, 15, 33
libc = ctypes.CDLL(None, use_errno=True)


def pattern(place, length):
    """What a stream has there, up to 128 KiB of it."""
    start = place % 65521
    return BLOCK[start:start + length]


def stacks(process):
    """Where in the kernel the threads of a process are."""
    found = []
    for thread in os.listdir(f"/proc/{process}/task"):
        try:
            with open(f"/proc/{process}/task/{thread}/stack", encoding="ascii") as file:
                found += [f"# {process}/{thread}: {line.rstrip()}" for line in file]
        except OSError:
            pass
    return "\n".join(found)


class Race:
    """Functions that are repeated until the time is up. `seconds` is for a scale of 1."""

    def __init__(self, seconds=6):
        self.seed = SEED
        print(f"# SMC_TEST_SEED={SEED}", flush=True)
        self.end = time.monotonic() + seconds * SCALE
        self.over = mmap.mmap(-1, 1)
        self.count = collections.Counter()
        self.errors = []
        self.threads, self.children = [], []

    def goes_on(self):
        """Whether there is time, and nothing has failed."""
        return self.over[0] == 0 and time.monotonic() < self.end

    def stop(self):
        """There is no time left."""
        self.over[0] = 1

    def random(self):
        """Random numbers for the next one that takes part."""
        return random.Random(f"{self.seed} {len(self.threads)} {len(self.children)}")

    def thread(self, function, *arguments):
        """Has a thread call function(random, ...) again and again."""
        rng = self.random()

        def body():
            try:
                while self.goes_on():
                    function(rng, *arguments)
            except BaseException as error:  # pylint: disable=broad-exception-caught
                self.errors.append(error)
                self.stop()

        self.threads.append(threading.Thread(target=body, name=function.__name__, daemon=True))
        self.threads[-1].start()

    def follow(self, counters):
        """Counts by how much each of these counters, which a function gives, has grown from now on."""
        before = counters()

        def look(_):
            for name, now in counters().items():
                self.count[name] = now - before[name]
            time.sleep(0.3)

        self.thread(look)

    def process(self, function, *arguments):
        """The same in a process. They have to begin before threads do."""
        rng = self.random()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                while self.goes_on():
                    function(rng, *arguments)
                code = 0
            except BaseException:  # pylint: disable=broad-exception-caught
                print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
                self.stop()
            finally:
                os._exit(code)
        self.children.append((child, function.__name__))

    def finish(self, *needed):
        """Waits for the end, which all of them have to see; raises the first error. Of what is `needed`, some has to have
        been counted: threads go on for that on a slow machine."""
        limit = time.monotonic() + BOUND
        while self.goes_on():
            time.sleep(0.02)
            if time.monotonic() < limit and not all(self.count[name] for name in needed):
                self.end = max(self.end, time.monotonic() + 1)
        self.stop()
        limit = time.monotonic() + BOUND
        for thread in self.threads:
            thread.join(max(limit - time.monotonic(), 0.1))
            if thread.is_alive():
                print(stacks(os.getpid()), flush=True)
                frame = sys._current_frames().get(thread.ident)
                where = "".join(traceback.format_stack(frame)[-2:]) if frame else ""
                self.errors.insert(0, AssertionError(f"{thread.name} hangs: {where}"))
        for child, name in self.children:
            while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < limit:
                time.sleep(0.02)
            if ended == (0, 0):
                print(stacks(child), flush=True)
                os.kill(child, signal.SIGKILL)
                self.errors.append(AssertionError(f"{name} hangs"))
            elif ended[1]:
                self.errors.append(AssertionError(f"{name} ended with {os.waitstatus_to_exitcode(ended[1])}"))
        print("#", ", ".join(f"{name}: {count}" for name, count in sorted(self.count.items())), flush=True)
        if self.errors:
            raise self.errors[0]
        missing = [name for name in needed if not self.count[name]]
        assert not missing, f"never seen: {missing}"


class Echo:
    """A server that gives back what it gets, on as many connections as there come, until each of them has ended."""

    def __init__(self, race, space="left", address=LEFT, port=7300):
        self.race = race
        self.listening = suite.listener(space, address, port)
        self.listening.setblocking(False)
        self.address = address, port
        self.socks = {}
        self.poll = select.epoll()
        self.poll.register(self.listening, select.EPOLLIN)
        self.ending, self.errors = threading.Event(), []
        # For longer than the race goes on: its clients have to get their answers.
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        """Serves until all clients are gone, which each connection has to learn."""
        end = None
        try:
            while end is None or (self.socks and time.monotonic() < end):
                if end is None and self.ending.is_set():
                    end = time.monotonic() + BOUND
                self.once()
        except BaseException as error:  # pylint: disable=broad-exception-caught
            self.errors.append(error)
            self.race.stop()

    def once(self):
        """Does what there is to be done."""
        for number, _ in self.poll.poll(0.05, 16):
            if number == self.listening.fileno():
                try:
                    sock, _ = self.listening.accept()
                except OSError as error:
                    assert error.errno in CUT | {errno.EAGAIN}, error
                    continue
                self.race.count["accepted"] += 1
                sock.setblocking(False)
                self.socks[sock.fileno()] = sock
                self.poll.register(sock, select.EPOLLIN)
            elif number in self.socks:
                self.serve(self.socks[number])

    def serve(self, sock):
        """One connection has something to say."""
        try:
            data = sock.recv(4096)
            if data:
                sock.send(data)
                return
        except BlockingIOError:
            return
        except OSError as error:
            assert error.errno in CUT, error
        self.poll.unregister(sock)
        del self.socks[sock.fileno()]
        sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """All clients are gone."""
        self.ending.set()
        self.thread.join(2 * BOUND)
        left = [suite.uses_smc(sock) for sock in self.socks.values()]
        for sock in [*self.socks.values(), self.listening]:
            sock.close()
        self.poll.close()
        assert not self.thread.is_alive(), "the server hangs"
        if self.errors:
            raise self.errors[0]
        assert not left, f"connections whose clients are gone know nothing of it: {left}"


def abort(sock):
    """Closes with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def has_device(space):
    """Whether a host has its RDMA device."""
    return os.path.exists(f"/sys/class/infiniband/rx{space}")


def until_active():
    """Waits for the devices of both hosts."""
    for space in "left", "right":
        suite.until_active(f"rx{space}")


def begin():
    """Both hosts have their devices, and the modules are loaded; gives what was in use before that."""
    unload()
    if not all(os.path.exists(f"/run/netns/{space}") for space in ("left", "right")):
        suite.remove_hosts()
        suite.add_hosts()
    for space in "left", "right":
        if not has_device(space):
            suite.add_rxe(space)
    until_active()
    before = suite.resources()
    suite.load("smc_r", "smc_diag")
    for space in "left", "right":
        # What fails by turns is not to be remembered.
        suite.set_sysctl(space, smcr_peer_backoff=0)
    return before


def connections():
    """Sockets of both hosts, and connections of all groups."""
    def shown(what, *there):
        return json.loads(run(*there, "smcctl", "--json", what))[what]

    sockets = [shown("sockets", "ip", "netns", "exec", space) for space in ("left", "right")]
    return sum(map(len, sockets)) + sum(group["connections"] for group in shown("groups"))


def counters():
    """What the module has counted, of both hosts together. Without a program, which would have all sockets of this one for
    a moment."""
    sums = collections.Counter()
    for space in "left", "right":
        with nl.Family("SMC_GEN_NETLINK", space) as family:
            ((_, data),) = family.dump(STATS)
        facts = dict(nl.parse(dict(nl.parse(data))[STATS]))
        made = dict(nl.parse(facts[2]))
        with nl.Family("smc-rs", space) as family:
            (faults,) = family.do(FAULTS)
        sums.update({"rendezvous that led to SMC": nl.number(made[7]) + nl.number(made[8]),
                     "rendezvous that failed": nl.number(facts[3]) + nl.number(facts[4]),
                     "links that were lost": nl.number(faults[LINKS_LOST])})
    return sums


def works(port=7399):
    """Whether new connections use SMC. A host whose device went has lost its link groups, which the other one learns
    when it offers them for the next connection."""
    with suite.listener("left", LEFT, port) as listening:
        found = [suite.fresh(listening)]
        while found[-1] == (False, suite.OUT_OF_SYNC) and len(found) < 5:
            found.append(suite.fresh(listening))
        equal((True, 0), found[-1], f"a connection after all that: {found}")


def end(before):
    """Nothing is left."""
    for space in "left", "right":
        if not has_device(space):
            suite.add_rxe(space)
    until_active()
    works()
    wait_for(lambda: connections() == 0, BOUND)
    for name in "smc_diag", "smc_r":
        wait_for(lambda name=name: not suite.in_use(name), BOUND)
        try:
            run("rmmod", name, timeout=BOUND)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{name} does not go") from error
    wait_for(lambda: suite.resources() == before)


def racing(case):
    """A case that begins and ends so."""
    def whole():
        before = begin()
        case()
        end(before)

    whole.__name__ = case.__name__
    return whole


def unload():
    """Unloads what a case that failed has left."""
    suite.unload(*(name for name in ("smc_diag", "smc_r") if os.path.exists(f"/sys/module/{name}")))


def tear_down():
    """Whatever a case has left."""
    suite.remove_hosts()
    unload()
