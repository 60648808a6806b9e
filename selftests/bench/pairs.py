# SPDX-License-Identifier: GPL-2.0
"""Who is compared with whom: pairs of a server and a client, and how one measures between them.

A pair is a class with `name`, `text`, `start()`, `stop()`, and `measure(row, ms)`, which gives a dict
with `value`, `unit` and, if known, `median_us` and `p99_us`, or None for rows that are not for it. One that
measures by other means than smc_bench needs no more than these. The hosts are those that `bench` makes.
"""

import json
import subprocess
import time

# The server's address on each pair of hosts.
SERVER = "10.71.0.1"


class Sockets:
    """smc_bench on both ends."""

    def __init__(self, name, text, hosts, families, mode, port):
        self.name, self.text = name, text
        self.hosts, self.families, self.mode, self.port = hosts, families, mode, port
        self.server = None

    def _command(self, end, role, *words):
        return ["ip", "netns", "exec", self.hosts[end], "smc_bench", role, SERVER, "--port", str(self.port),
                "--family", self.families[end], *words]

    def start(self):
        self.server = subprocess.Popen(self._command(0, "server"))
        end = time.monotonic() + 30
        listening = ["ip", "netns", "exec", self.hosts[0], "ss", "-tlnH", f"sport = :{self.port}"]
        while not subprocess.run(listening, capture_output=True, check=True).stdout:
            if self.server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name}: the server does not listen")
            time.sleep(0.05)

    def stop(self):
        if self.server:
            self.server.kill()
            self.server.wait()

    def measure(self, row, ms):
        done = subprocess.run(
            self._command(1, "client", *row.words(ms)), capture_output=True, text=True, timeout=120 + ms / 100,
            check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name}, {row.name}: {done.stderr.strip()}")
        result = json.loads(done.stdout)
        # A figure of something else would be worse than none.
        if result["mode"] != self.mode:
            raise RuntimeError(f"{self.name}, {row.name}: connections are {result['mode']}, not {self.mode}")
        return result


PLAIN, RDMA = ("plainA", "plainB"), ("rdmaA", "rdmaB")

PAIRS = [
    Sockets("tcp", "TCP sockets", PLAIN, ("tcp", "tcp"), "tcp", 5301),
    Sockets("fallback", "SMC sockets on both ends, fallen back", PLAIN, ("smc", "smc"), "fallback", 5302),
    Sockets("client", "an SMC socket as client, fallen back, of a TCP server", PLAIN, ("tcp", "smc"), "fallback",
            5303),
    Sockets("server", "an SMC socket as server, fallen back, of a TCP client", PLAIN, ("smc", "tcp"), "tcp", 5304),
    Sockets("smc", "SMC sockets over SMC-R", RDMA, ("smc", "smc"), "smc", 5305),
]

# What is divided by what, and the ratio that is aimed at, if there is one.
RATIOS = [
    ("fallback", "tcp", 0.95),
    ("client", "tcp", 0.95),
    ("server", "tcp", 0.95),
    ("smc", "tcp", None),
]
