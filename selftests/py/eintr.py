# SPDX-License-Identifier: GPL-2.0
"""Calls that signals interrupt all the time: nothing is lost or doubled, and none hangs.

Calls go through ctypes, since Python repeats its own after a signal."""

import ctypes
import errno
import select
import signal
import socket
import struct
import sys
import threading

import smcsock as s

LIBC = ctypes.CDLL(None, use_errno=True)
AMOUNT = 1 << 20
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


def alarms():
    """Signals for this thread, the only one that takes them, every few milliseconds."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)


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
    alarms()
    send_all(fd, data)
    s.equal("end", b"", recv_all(fd, 1))
    quiet()
    s.say("server", INTERRUPTED)
    s.check(INTERRUPTED.get("accept"), "accept was never interrupted")
    s.check(INTERRUPTED.get("recv"), "recv was never interrupted")


def client(host, port):
    sock = s.smc_socket(host)
    sock.settimeout(None)
    address = struct.pack("=H2s4s8s", socket.AF_INET, struct.pack("!H", int(port)), socket.inet_aton(host), bytes(8))
    alarms()
    try:
        call("connect", sock.fileno(), address, 16)
    except InterruptedError:
        while True:
            if select.select([], [sock], [], 20)[1]:
                break
        s.equal("connect", 0, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    s.need_smc(sock)
    data = s.pattern(AMOUNT, 3)
    send_all(sock.fileno(), data)
    back = recv_all(sock.fileno(), AMOUNT)
    quiet()
    s.equal("what came back", data, back)
    sock.shutdown(socket.SHUT_WR)
    s.say("client", INTERRUPTED)
    s.check(INTERRUPTED.get("send") or INTERRUPTED.get("recv"), "no call was interrupted")


if __name__ == "__main__":
    assert threading.active_count() == 1
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
