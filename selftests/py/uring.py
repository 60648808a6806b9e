# SPDX-License-Identifier: GPL-2.0
"""io_uring without a library: a ring, and the numbers of its requests."""

import ctypes
import mmap
import os
import struct

POLL_ADD, SENDMSG, RECVMSG, ACCEPT, CANCEL, CONNECT, CLOSE, READ, WRITE = 6, 9, 10, 13, 14, 16, 19, 22, 23
SEND, RECV, SPLICE, SHUTDOWN, URING_CMD, SEND_ZC = 26, 27, 30, 34, 46, 47
SETUP, ENTER = 425, 426
# Flags of a request: it comes before the next one, or another thread of the kernel does it.
LINK, ASYNC = 4, 16
GET_EVENTS = 1

library = ctypes.CDLL(None, use_errno=True)


def syscall(*words):
    """A system call; OSError if it fails."""
    result = library.syscall(*words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def entry(op, fd, addr=0, length=0, offset=0, flags=0, priority=0, mark=0, how=0, other=0):
    """A request: `flags` are those of the operation, `how` those of the request; `mark` comes back with its result;
    `other` is the descriptor that splice reads from."""
    return struct.pack("=BBHiQQIIQHHi16x", op, how, priority, fd, offset, addr, length, flags, mark, 0, 0, other)


class Ring:
    """An io_uring. OSError where there is none, or not for this user."""

    def __init__(self, entries=8):
        params = (ctypes.c_ubyte * 120)()
        self.fd = syscall(SETUP, entries, params)
        words = struct.unpack("=30I", bytes(params))
        self.sq, self.cq = words[10:20], words[20:30]
        size = max(self.sq[6] + entries * 4, self.cq[5] + words[1] * 16)
        self.ring = mmap.mmap(self.fd, size, offset=0)
        self.entries = mmap.mmap(self.fd, entries * 64, offset=0x10000000)

    def word(self, offset):
        """A word of the ring."""
        return struct.unpack_from("=I", self.ring, offset)[0]

    def put(self, request):
        """Adds a request to those that the next call hands over."""
        tail = self.word(self.sq[1])
        place = tail & self.word(self.sq[2])
        struct.pack_into("=64s", self.entries, place * 64, request)
        struct.pack_into("=I", self.ring, self.sq[6] + place * 4, place)
        struct.pack_into("=I", self.ring, self.sq[1], tail + 1 & 0xFFFFFFFF)

    def enter(self, count, wait=0, flags=0):
        """Hands so many requests over, and waits for so many completions. Gives how many were taken."""
        return syscall(ENTER, self.fd, count, wait, flags, None, 0)

    def take(self):
        """A completion if there is one: its mark, the result, flags."""
        head = self.word(self.cq[0])
        if head == self.word(self.cq[1]):
            return None
        found = struct.unpack_from("=QiI", self.ring, self.cq[5] + (head & self.word(self.cq[2])) * 16)
        struct.pack_into("=I", self.ring, self.cq[0], head + 1 & 0xFFFFFFFF)
        return found
