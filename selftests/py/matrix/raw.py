# SPDX-License-Identifier: GPL-2.0
"""System calls as they are: nothing is repeated after a signal, and pointers may be bad."""

import ctypes
import mmap
import os

LIBC = ctypes.CDLL(None, use_errno=True)
LONG = ctypes.c_ssize_t
LONG_ONES = "send", "sendto", "sendmsg", "recv", "recvfrom", "recvmsg", "writev", "syscall"
BAD = 8  # an address where nothing is

PEEK, WAITALL, TRUNC, OOB, DONTWAIT, MORE = 2, 0x100, 0x20, 1, 0x40, 0x8000
NOSIGNAL, ERRQUEUE, ZEROCOPY, EOR, WAITFORONE = 0x4000, 0x2000, 0x4000000, 0x80, 0x10000
CMSG_CLOEXEC = 0x40000000


class Vec(ctypes.Structure):
    """struct iovec"""
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Msg(ctypes.Structure):
    """struct msghdr"""
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32),
                ("iov", ctypes.POINTER(Vec)), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int)]


class MMsg(ctypes.Structure):
    """struct mmsghdr"""
    _fields_ = [("msg", Msg), ("len", ctypes.c_uint)]


class Span(ctypes.Structure):
    """struct timespec"""
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


def call(name, *args):
    """A call of the C library; an error is raised."""
    function = getattr(LIBC, name)
    function.restype = LONG if name in LONG_ONES else ctypes.c_int
    got = function(*args)
    if got < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return got


def buffer(content):
    """Memory with bytes, or so many zeros."""
    return ctypes.create_string_buffer(content, content if isinstance(content, int)
                                       else len(content))


def pointer(thing):
    """Its address; an integer is one."""
    return thing if isinstance(thing, int) else ctypes.addressof(thing)


def send(sock, data, flags=0):
    """send()"""
    return call("send", sock.fileno(), buffer(data), LONG(len(data)), flags)


def recv(sock, length, flags=0):
    """recv(): the bytes."""
    room = buffer(max(length, 1))
    got = call("recv", sock.fileno(), room, LONG(length), flags)
    return room.raw[:got] if not flags & TRUNC else got


def vector(parts):
    """An array of struct iovec of pairs of memory and length."""
    return (Vec * len(parts))(*[Vec(pointer(thing), length) for thing, length in parts])


def header(parts, control=None):
    """A struct msghdr, with what it points to."""
    vec = vector(parts)
    message = Msg(None, 0, vec, len(parts), pointer(control) if control else None,
                  len(control) if control else 0, 0)
    message.keep = vec, parts, control
    return message


def sendmsg(sock, parts, flags=0, control=None):
    """sendmsg()"""
    return call("sendmsg", sock.fileno(), ctypes.byref(header(parts, control)), flags)


def recvmsg(sock, parts, flags=0):
    """recvmsg()"""
    return call("recvmsg", sock.fileno(), ctypes.byref(header(parts)), flags)


def many(messages):
    """An array of struct mmsghdr; each message is a list of memory and length."""
    headers = [header(parts) for parts in messages]
    array = (MMsg * len(headers))(*[MMsg(one, 0) for one in headers])
    array.keep = headers
    return array


def sendmmsg(sock, messages, flags=0):
    """sendmmsg(): how many, and the length of each."""
    array = many(messages)
    got = call("sendmmsg", sock.fileno(), array, len(messages), flags)
    return got, [one.len for one in array]


def recvmmsg(sock, lengths, flags=0, seconds=None):
    """recvmmsg(): how many, and what came in each."""
    rooms = [buffer(length) for length in lengths]
    array = many([[(room, length)] for room, length in zip(rooms, lengths)])
    limit = None if seconds is None else ctypes.byref(Span(int(seconds), int(seconds % 1 * 1e9)))
    got = call("recvmmsg", sock.fileno(), array, len(lengths), flags, limit)
    return got, [room.raw[:one.len] for room, one in zip(rooms, array)]


def accept4(sock, flags=0):
    """accept4(): a file descriptor."""
    return call("accept4", sock.fileno(), None, None, flags)


def edge(before, after=0):
    """An address with so many good bytes before memory that is not there, and the memory."""
    size = mmap.PAGESIZE
    pages = -(-max(before, 1) // size)
    whole = mmap.mmap(-1, (pages + 1) * size)
    start = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    end = start + pages * size
    ctypes.memset(start, 0x61, pages * size)
    call("mprotect", ctypes.c_void_p(end), ctypes.c_size_t(size), after)
    return end - before, whole
