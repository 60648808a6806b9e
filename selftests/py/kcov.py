# SPDX-License-Identifier: GPL-2.0
"""What a thread's calls reach in those parts of the kernel that were built for KCOV."""

import fcntl
import mmap
import os

FILE = "/sys/kernel/debug/kcov"
# Of uapi/linux/kcov.h; the last one says that places are wanted, and no comparisons.
INIT_TRACE, ENABLE, DISABLE, TRACE_PC = 0x80086301, 0x6364, 0x6365, 0
# Places that are noted between `with` and its end; further ones are not.
WORDS = 1 << 16


class Coverage:
    """Of the thread that uses it: `with` it, calls are looked at, and `places` has the addresses that they came by."""

    def __init__(self):
        file = os.open(FILE, os.O_RDWR | os.O_CLOEXEC)
        self.file = file
        fcntl.ioctl(file, INIT_TRACE, WORDS)
        self.words = memoryview(mmap.mmap(file, 8 * WORDS)).cast("Q")
        self.places = frozenset()

    def __enter__(self):
        fcntl.ioctl(self.file, ENABLE, TRACE_PC)
        # The first word is their number.
        self.words[0] = 0
        return self

    def __exit__(self, *_):
        count = self.words[0]
        fcntl.ioctl(self.file, DISABLE, 0)
        self.places = frozenset(self.words[1:1 + count])
