# SPDX-License-Identifier: GPL-2.0
"""What a thread's calls reach in those parts of the kernel that were built for KCOV."""

import ctypes
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
        # Python's own function refuses: a file of debugfs looks empty.
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        start = library.mmap(None, 8 * WORDS, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
        if start == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "KCOV cannot be mapped")
        self.words = memoryview((ctypes.c_uint64 * WORDS).from_address(start)).cast("B").cast("Q")
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
