# SPDX-License-Identifier: GPL-2.0
"""Calls that signals interrupt all the time: nothing is lost or doubled, and none hangs.

Calls go through ctypes, since Python repeats its own after a signal."""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

import smcsock as s

LIBC = ctypes.CDLL(None, use_errno=True)
AMOUNT = 1 << 20
# Sent last, by a client that closes and waits for it to arrive.
LAST = 200000
INTERRUPTED = {}


def call(name, *args):
    """The call until a signal leaves it alone; counts those that it does not."""
    while True:
        result = getattr(LIBC, name)(*args)
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, f"{name}: {errno.errorcode.get(code, code)}")
        INTERRUPTED[name] = INTERRUPTED.get(name, 0) + 1
        if name == "connect":
            # It goes on by itself.
            raise InterruptedError(code, name)


def send_all(fd, data):
    at = 0
    while at < len(data):
        at += call("send", fd, data[at:at + 20000], min(20000, len(data) - at), 0)


def recv_all(fd, amount):
    parts, buffer = [], ctypes.create_string_buffer(30000)
    while amount:
        n = call("recv", fd, buffer, min(amount, 30000), 0)
        if n == 0:
            break
        parts.append(buffer.raw[:n])
        amount -= n
    return b"".join(parts)


def send_file(fd, data):
    """By sendfile()."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        left = len(data)
        while left:
            left -= call("sendfile", fd, file.fileno(), None, ctypes.c_size_t(left))


def splice_all(fd, amount):
    """By splice() into a pipe."""
    parts, (out, into) = [], os.pipe()
    while amount:
        n = call("splice", fd, None, into, None, ctypes.c_size_t(min(amount, 30000)), 0)
        if n == 0:
            break
        amount -= n
        while n:
            parts.append(os.read(out, n))
            n -= len(parts[-1])
    os.close(out)
    os.close(into)
    return b"".join(parts)


def wait_readable(fd):
    """By poll()."""
    entry = ctypes.create_string_buffer(struct.pack("ihh", fd, select.POLLIN, 0), 8)
    s.equal("what poll() says", 1, call("poll", entry, ctypes.c_ulong(1), 20000))


def alarms(seconds=0.003):
    """Signals for this thread, the only one that takes them, every few milliseconds."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


def quiet():
    signal.setitimer(signal.ITIMER_REAL, 0)


def server(host, port, ready):
    sock = s.listener(host, int(port))
    sock.settimeout(None)
    s.touch(ready)
    alarms()
    fd = call("accept", sock.fileno(), None, None)
    data = recv_all(fd, AMOUNT)
    quiet()
    s.equal("content", s.pattern(AMOUNT, 3), data)
    # For as long, the client waits in poll().
    time.sleep(0.1)
    alarms()
    send_all(fd, data)
    data = splice_all(fd, AMOUNT)
    quiet()
    s.equal("content of a pipe", s.pattern(AMOUNT, 4), data)
    # For as long, it waits in close().
    time.sleep(0.1)
    alarms()
    data = recv_all(fd, LAST)
    s.equal("end", b"", recv_all(fd, 1))
    quiet()
    s.equal("content of the last", s.pattern(LAST, 5), data)
    s.say("server", INTERRUPTED)
    s.check(INTERRUPTED.get("accept"), "accept was never interrupted")
    s.check(INTERRUPTED.get("recv"), "recv was never interrupted")


def client(host, port):
    sock = s.smc_socket(host)
    sock.settimeout(None)
    address = struct.pack("=H2s4s8s", socket.AF_INET, struct.pack("!H", int(port)), socket.inet_aton(host), bytes(8))
    # It may not take long.
    alarms(0.001)
    try:
        call("connect", sock.fileno(), address, 16)
    except InterruptedError:
        while True:
            if select.select([], [sock], [], 20)[1]:
                break
        s.equal("connect", 0, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    s.need_smc(sock)
    alarms()
    data = s.pattern(AMOUNT, 3)
    send_all(sock.fileno(), data)
    wait_readable(sock.fileno())
    back = recv_all(sock.fileno(), AMOUNT)
    quiet()
    s.equal("what came back", data, back)
    alarms()
    send_file(sock.fileno(), s.pattern(AMOUNT, 4))
    send_all(sock.fileno(), s.pattern(LAST, 5))
    # A signal ends the wait, and the rest is sent all the same.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    call("close", sock.detach())
    quiet()
    s.say("client", INTERRUPTED)
    for name in "connect", "poll":
        s.check(INTERRUPTED.get(name), f"{name} was never interrupted")
    s.check(INTERRUPTED.get("send") or INTERRUPTED.get("recv"), "no call with data was interrupted")


if __name__ == "__main__":
    assert threading.active_count() == 1
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
