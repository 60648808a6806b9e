# SPDX-License-Identifier: GPL-2.0
"""What is measured, in terms that do not depend on who measures. More is better in every row."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One thing to measure: `what` is bulk, requests or connects."""

    name: str
    text: str
    what: str
    size: int
    streams: int = 1

    def words(self, ms):
        """The options of smc_bench."""
        return ["--what", self.what, "--size", str(self.size), "--streams", str(self.streams), "--ms", str(ms)]


ROWS = [
    Row("bulk-1", "bulk, 1 stream", "bulk", 65536),
    Row("bulk-10", "bulk, 10 streams", "bulk", 65536, 10),
    Row("request-1", "requests of 1 byte", "requests", 1),
    Row("request-4k", "requests of 4 KiB", "requests", 4096),
    Row("connect", "connects", "connects", 1),
]
