# SPDX-License-Identifier: GPL-2.0
"""Memory that does not answer, as that of a file system in user space may not: calls that use it wait."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import struct
import threading

import suite

# A system call, and its ioctl()s.
USERFAULTFD, UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE = 323, 0xc018aa3f, 0xc020aa00, 0xc020aa04


@contextlib.contextmanager
def during(call):
    """What happens while `call(address)` waits for a page which nobody has yet; in the end it is there. Gives the list of
    what the call returns then, or the name of its error."""
    libc = ctypes.CDLL(None, use_errno=True)
    told = libc.syscall(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    if told < 0:
        raise suite.Skipped("this kernel has no userfaultfd")
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(place)
    fcntl.ioctl(told, UFFDIO_API, struct.pack("=3Q", 0xAA, 0, 0))
    fcntl.ioctl(told, UFFDIO_REGISTER, struct.pack("=4Q", address, mmap.PAGESIZE, 1, 0))
    got = []

    def calls():
        try:
            got.append(call(address))
        except OSError as error:
            got.append(errno.errorcode[error.errno])

    caller = threading.Thread(target=calls, daemon=True)
    caller.start()
    try:
        assert select.select([told], [], [], 20)[0], "nobody reads the memory"
        yield got
        assert caller.is_alive(), "the call has ended"
    finally:
        fcntl.ioctl(told, UFFDIO_ZEROPAGE, struct.pack("=4Q", address, mmap.PAGESIZE, 0, 0))
        caller.join(20)
        os.close(told)
        del place
    assert got, "the call does not end"
