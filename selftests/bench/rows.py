# SPDX-License-Identifier: GPL-2.0
"""What is measured, in terms that do not depend on who measures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One thing to measure: `what` is bulk, requests, connects or idle. More is better, but where `less` is."""

    name: str
    text: str
    what: str
    size: int = 1
    streams: int = 1
    less: bool = False

    @property
    def once(self):
        """Measured once, before the rounds: the buffers that stay for later connections would be all that the
        next time finds."""
        return self.what == "idle"

    def words(self, ms):
        """The options of smc_bench."""
        return ["--what", self.what, "--size", str(self.size), "--streams", str(self.streams), "--ms", str(ms)]


ROWS = [
    Row("bulk-1", "bulk, 1 stream", "bulk", 65536),
    Row("bulk-10", "bulk, 10 streams", "bulk", 65536, 10),
    Row("request-1", "requests of 1 byte", "requests", 1),
    Row("request-4k", "requests of 4 KiB", "requests", 4096),
    Row("connect", "connects", "connects"),
    Row("memory", "kernel memory of each end of a connection, of 1,000 that are idle", "idle", streams=1000, less=True),
]
