# SPDX-License-Identifier: GPL-2.0
"""Sockets as files: dup(), fork(), passing, and calls that are not for sockets alone."""

import array
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import stat
import struct
import termios

from . import raw

SOL = socket.SOL_SOCKET


def duplicates(t):
    client, server = t.pair()
    other = client.dup()
    client.close()
    t.do("send by the other", other.send, b"hello")
    t.do("recv", server.recv, 10)
    t.poll("poll of the peer", server)
    third = other.dup()
    t.do("shutdown by one", other.shutdown, socket.SHUT_WR)
    t.do("the other is shut", third.send, b"x", raw.NOSIGNAL)
    t.do("recv", server.recv, 10)
    other.close()
    t.do("answer", server.send, b"answer")
    t.do("recv by the last", third.recv, 10)
    third.close()
    t.poll("poll of the peer", server, 16, t.never)


def flags_are_shared(t):
    client, _ = t.pair()
    other = client.dup()
    fcntl.fcntl(client, fcntl.F_SETFL, os.O_NONBLOCK)
    t.do("nonblocking", raw.recv, other, 1)
    t.do("back by ioctl", fcntl.ioctl, other.fileno(), termios.FIONBIO, struct.pack("i", 0))
    t.note("flags", hex(fcntl.fcntl(client, fcntl.F_GETFL)))
    t.do("append", fcntl.fcntl, client, fcntl.F_SETFL, os.O_APPEND)
    t.note("flags", hex(fcntl.fcntl(client, fcntl.F_GETFL)))


def in_two_processes(t):
    client, server = t.pair()
    pid = os.fork()
    if pid == 0:
        server.close()
        client.send(b"child")
        data = client.recv(10)
        os._exit(7 if data == b"to any" else 1)
    t.do("recv", server.recv, 10)
    server.send(b"to any")
    t.note("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    t.do("parent", client.send, b"parent")
    t.do("recv", server.recv, 10)
    t.poll("poll", server)


def a_child_accepts(t):
    listening = t.listener()
    pid = os.fork()
    if pid == 0:
        one, _ = listening.accept()
        one.send(one.recv(10) + b"!")
        os._exit(0)
    client = t.socket()
    client.connect(listening.getsockname())
    t.do("send", client.send, b"hello")
    t.do("recv", client.recv, 10)
    t.note("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    t.do("end", client.recv, 10)


def passed_on(t):
    """Given to another process by SCM_RIGHTS, while data is under way."""
    client, server = t.pair()
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        client.close()
        server.close()
        _, fds, _, _ = socket.recv_fds(there, 10, 1)
        one = socket.socket(fileno=fds[0])
        one.send(b"other " + one.recv(10))
        os._exit(0)
    client.send(b"hello")
    t.arrived(server, 5)
    socket.send_fds(here, [b"x"], [server.fileno()])
    server.close()
    t.do("recv", client.recv, 20)
    t.note("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    t.do("end", client.recv, 10)


def lost_on_the_way(t):
    """Sent by SCM_RIGHTS, and never received."""
    client, server = t.pair()
    here, there = socket.socketpair()
    socket.send_fds(here, [b"x"], [server.fileno()])
    server.close()
    t.poll("on its way", client)
    there.close()
    here.close()
    t.poll("gone", client, 0x2001)
    t.do("recv", client.recv, 10)


def as_files(t):
    client, server = t.pair()
    fd = client.fileno()
    t.do("write", os.write, fd, b"hello")
    t.do("read", os.read, server.fileno(), 10)
    t.do("lseek", os.lseek, fd, 0, 0)
    t.do("pread", os.pread, fd, 1, 0)
    t.do("pwrite", os.pwrite, fd, b"x", 0)
    t.do("fsync", os.fsync, fd)
    t.do("ftruncate", os.ftruncate, fd, 0)
    t.note("mode", stat.filemode(os.fstat(fd).st_mode))
    t.note("size", os.fstat(fd).st_size)
    t.do("mmap", lambda: mmap.mmap(fd, 4096))
    t.do("fallocate", os.posix_fallocate, fd, 0, 10)
    t.do("lock", fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    t.note("name", os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
    t.do("open again", os.open, f"/proc/self/fd/{fd}", os.O_RDWR)
    t.do("fchmod", os.fchmod, fd, 0o600)
    t.do("readv of nothing", os.readv, fd, [bytearray(0)])


def requests(t):
    """ioctl() in all states."""
    client, server = t.pair()
    client.send(b"abc")
    t.arrived(server, 3)
    for name, sock in ("connected", server), ("fresh", t.socket()), ("listening", t.listener()):
        for request in 0x541B, 0x5411, 0x894B, 0x8905, 0x8904, 0x5401, 0x1234:
            t.do(f"{name} {request:#x}", t.number, sock, request)
        t.do(name + " bad pointer", raw.call, "ioctl", sock.fileno(), 0x541B,
             ctypes.c_void_p(raw.BAD))
        t.do(name + " set owner",
             lambda: len(fcntl.ioctl(sock.fileno(), 0x8902, struct.pack("i", os.getpid()))))
        t.note(name + " owner", fcntl.fcntl(sock, fcntl.F_GETOWN) == os.getpid())
        t.do(name + " time stamp", fcntl.ioctl, sock.fileno(), 0x8906, bytes(16))
        for request in 0x8910, 0x8913, 0x8912, 0x8933:
            t.do(f"{name} card {request:#x}", lambda: len(fcntl.ioctl(
                sock.fileno(), request, b"lo".ljust(40, b"\0"))))


def options_of_any_socket(t):
    client, server = t.pair()
    for name, sock in ("client", client), ("server", server), ("listening", t.listener()):
        for option in 3, 30, 39:
            t.do(f"{name} option {option}", sock.getsockopt, SOL, option)
        t.do(name + " credentials", sock.getsockopt, SOL, 17, 12)
        t.do(name + " peer groups", sock.getsockopt, SOL, 59, 64)
    t.do("no room", raw.call, "getsockopt", client.fileno(), SOL, 3, ctypes.c_void_p(raw.BAD),
         ctypes.byref(ctypes.c_int(4)))
    t.do("no length", raw.call, "getsockopt", client.fileno(), SOL, 3, raw.buffer(4), None)
    t.do("negative", raw.call, "setsockopt", client.fileno(), SOL, 3, raw.buffer(4), -1)


def socketpairs(t):
    protocol = 0 if t.kind == "tcp" else 256
    t.do("socketpair", socket.socketpair, socket.AF_INET, socket.SOCK_STREAM, protocol)


def kinds_of_sockets(t):
    protocol = 6 if t.kind == "tcp" else 256
    for kind in socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, 77:
        t.do(f"type {kind}", socket.socket, socket.AF_INET, kind, protocol)
    for flags in socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC:
        fd = raw.call("socket", socket.AF_INET, socket.SOCK_STREAM | flags, protocol)
        t.note("flags", (bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK),
                         fcntl.fcntl(fd, fcntl.F_GETFD)))


def signals_to_owners(t):
    """The owner of one descriptor is the owner of all; a group is told, too."""
    client, server = t.pair()
    seen = t.catch(signal.SIGURG)
    fcntl.fcntl(server, fcntl.F_SETOWN, -os.getpgid(0))
    client.send(b"X", raw.OOB)
    t.note("signals", t.until(lambda: seen) and seen)
    t.do("nobody", fcntl.fcntl, server, fcntl.F_SETOWN, 0)
    client.send(b"Y", raw.OOB)
    t.poll("poll", server, 2)
    t.until(lambda: False, 0.2)
    t.note("signals", seen)


def descriptors_of_a_stream(t):
    """A TCP stream passes no descriptors on."""
    client, server = t.pair()
    t.do("send", client.sendmsg, [b"x"], [(SOL, socket.SCM_RIGHTS, array.array("i", [1]))])
    t.do("recv", server.recvmsg, 10, 100)


SCRIPTS = [
    duplicates, flags_are_shared, in_two_processes, a_child_accepts, passed_on, lost_on_the_way,
    as_files, requests, options_of_any_socket, socketpairs, kinds_of_sockets, signals_to_owners,
    descriptors_of_a_stream,
]
