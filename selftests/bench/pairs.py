# SPDX-License-Identifier: GPL-2.0
"""Who is compared with whom: pairs of a server and a client, and how one measures between them.

A pair is a class with `name`, `text`, `start()`, `stop()`, `takes(row)`, `measure(row, ms)`, which gives a dict
with `value`, `unit` and, if known, `median_us` and `p99_us`, and `prove()`, which gives a text if something was
not what it should be. The hosts are those that `bench` makes.
"""

import json

from hosts import Failed, Host

# The server's address on a cable within a guest.
SERVER = "10.71.0.1"


class Sockets:
    """smc_bench on both ends: (host, family) of server and of client."""

    def __init__(self, name, text, server, client, mode, port, address=SERVER):
        self.name, self.text = name, text
        self.hosts, self.families = (server[0], client[0]), (server[1], client[1])
        self.mode, self.port, self.address = mode, port, address
        self.server = self.client = None
        self.before = None
        self.is_measured = False

    def _words(self, end, role):
        return ["smc_bench", role, self.address, "--port", str(self.port), "--family", self.families[end]]

    def start(self):
        self.before = self._counts()
        self.server = self.hosts[0].start(*self._words(0, "server"))
        self.hosts[0].until_listening(self.port, self.name)
        self.client = self.hosts[1].start(*self._words(1, "jobs"))
        self.ask(["--what", "requests", "--size", "1", "--count", "5", "--warm-up", "0"], 30)
        self._prove(1)

    def stop(self):
        for process in (self.client, self.server):
            if process:
                process.stop()
        self.server = self.client = None

    def _counts(self):
        """What the kernels on both ends have counted: connections accelerated in version 2, which all of these
        should be, in version 1, and others."""
        counts = []
        for host, family, role in zip(self.hosts, self.families, ("server", "client")):
            if family == "tcp":
                counts.append(None)
                continue
            stats = json.loads(host.run("smcctl", "--json", "stats"))
            smcr = stats["smcr"]
            counts.append((smcr[f"{role}_v2"], smcr[f"{role}_v1"], stats["fallbacks"][role]))
        return counts

    def _prove(self, least):
        """That connections, so many at least, were what they should be: what the sockets say is not enough, as C's
        do not tell much."""
        for end, (before, now) in enumerate(zip(self.before, self._counts())):
            if now is None:
                continue
            v2, v1, fallback = (late - early for early, late in zip(before, now))
            wanted, others = (v2, v1 + fallback) if self.mode == "smc" else (fallback, v2 + v1)
            if wanted < least or others:
                raise Failed(
                    f"{self.name}: {('server', 'client')[end]}'s connections: {v2} in version 2, {v1} in version 1, "
                    f"{fallback} fallbacks; {self.mode} is wanted")

    def prove(self):
        """The same, of all since the start, where there was anything to measure."""
        if not self.is_measured:
            return None
        try:
            self._prove(2)
        except Failed as problem:
            return str(problem)
        return None

    def ask(self, words, timeout):
        if not self.client:
            raise Failed(f"{self.name}: there is no client")
        result = json.loads(self.client.ask(" ".join(words), timeout))
        if "error" in result:
            raise Failed(f"{self.name}, {' '.join(words)}: {result['error']}")
        # A figure of something else would be worse than none.
        if result["mode"] != self.mode:
            raise Failed(f"{self.name}: connections are {result['mode']}, not {self.mode}")
        return result

    def takes(self, row):
        # Memory of both ends is that of one kernel; sockets that fell back have TCP's and a little more.
        return not row.once or (
            self.hosts[0].guest is self.hosts[1].guest and (self.mode == "smc" or self.families == ("tcp", "tcp")))

    def measure(self, row, ms):
        self.is_measured = True
        return self.ask(row.words(ms), 600 if row.once else 120 + ms / 100)


class Verbs:
    """What the RDMA device does when programs use it by themselves: ib_write_bw and ib_send_lat of perftest. These
    want to be told how much to do, which they are by what they did last."""

    name = "verbs"
    text = "no sockets: ib_write_bw, and ib_send_lat with events"
    # A message of that size takes so many microseconds, at first.
    TOOLS = {"bulk": ("ib_write_bw", 10000.0), "requests": ("ib_send_lat", 2000.0)}

    def __init__(self, server, client):
        self.server, self.client = server, client
        self.took = {}

    def start(self):
        pass

    def stop(self):
        pass

    def prove(self):
        return None

    def takes(self, row):
        return row.what in self.TOOLS

    def measure(self, row, ms):
        tool, took = self.TOOLS[row.what]
        took = self.took.get(row.name, took)
        words = [tool, "-F", "-s", str(row.size), "-n", str(max(20, round(ms * 1000 / took / row.streams)))]
        if row.what == "bulk":
            # It cannot wait for events: perftest has that for what the other side takes part in only.
            words += ["-q", str(row.streams), "--report_gbits"]
        else:
            words += ["-e"]
        server = self.server.start(*words, "-d", "rxea0")
        try:
            self.server.until_listening(18515, tool)
            table = self.client.run(*words, "-d", "rxeb0", SERVER, timeout=120 + ms / 100)
        finally:
            server.stop()
        # The last line that begins with a number: it begins with the size of a message, and how many there were.
        numbers = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()][-1]
        figures = [float(number) for number in numbers]
        if row.what == "bulk":
            rate = figures[3] * 1000
            self.took[row.name] = row.size * 8 / rate
            return {"value": rate, "unit": "Mbit/s"}
        # Times are those of one way.
        self.took[row.name] = 2 * figures[5]
        return {"value": 1e6 / (2 * figures[5]), "unit": "1/s", "median_us": 2 * figures[4], "p99_us": 2 * figures[7]}


def plain_pairs(server, client):
    """TCP, and SMC sockets that fall back, on one end or on both: the hosts have no RDMA device."""
    return [
        Sockets("tcp", "TCP sockets", (server, "tcp"), (client, "tcp"), "tcp", 5301),
        Sockets("fallback", "SMC sockets on both ends, fallen back", (server, "smc"), (client, "smc"), "fallback", 5302),
        Sockets("client", "an SMC socket as client, fallen back, of a TCP server", (server, "tcp"), (client, "smc"),
                "fallback", 5303),
        Sockets("server", "an SMC socket as server, fallen back, of a TCP client", (server, "smc"), (client, "tcp"),
                "tcp", 5304),
    ]


def all_pairs(here, there, address_here, address_there):
    """Those of both guests."""
    server, client = Host(here, "rdmaA"), Host(here, "rdmaB")
    a, b = Host(here), Host(there)
    return [
        *plain_pairs(Host(here, "plainA"), Host(here, "plainB")),
        Sockets("smc", "SMC sockets over SMC-R", (server, "smc"), (client, "smc"), "smc", 5305),
        Verbs(server, client),
        Sockets("tcp-c", "TCP sockets on the kernel with the C implementation", (b, "tcp"), (b, "tcp"), "tcp", 5306),
        Sockets("c", "SMC sockets of the C implementation, over SMC-R", (b, "smc"), (b, "smc"), "smc", 5307),
        Sockets("tcp-x", "TCP sockets, between the guests", (b, "tcp"), (a, "tcp"), "tcp", 5308, address_there),
        Sockets("ours-c", "between the guests: SMC sockets of ours as client, of C as server", (b, "smc"), (a, "smc"),
                "smc", 5309, address_there),
        Sockets("c-ours", "between the guests: SMC sockets of C as client, of ours as server", (a, "smc"), (b, "smc"),
                "smc", 5310, address_here),
    ]


# What is divided by what, and the ratio that is aimed at, if there is one, in rows that begin so.
RATIOS = [
    ("fallback", "tcp", 0.95, ("",)),
    ("client", "tcp", 0.95, ("",)),
    ("server", "tcp", 0.95, ("",)),
    ("smc", "tcp", None, ("",)),
    ("c", "tcp-c", None, ("",)),
    ("smc", "c", 1.0, ("",)),
    ("smc", "verbs", 0.9, ("bulk",)),
    ("smc", "verbs", None, ("request",)),
    # Those between the guests have the cable between these, which costs more than anything else.
    ("ours-c", "tcp-x", None, ("",)),
    ("c-ours", "tcp-x", None, ("",)),
]
