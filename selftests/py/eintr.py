# SPDX-License-Identifier: GPL-2.0
"""Calls that signals interrupt all the time: nothing is lost or doubled, and none hangs.

Calls go through ctypes, since Python repeats its own after a signal. Each end waits with what would let a call of the
other one go on until that has been interrupted: so each of them is, however fast the host is."""

import ctypes
import errno
import fcntl
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
INTERRUPTED = {}
# Calls of the server after whose first interruption it reads nothing until that call of the client has had one.
THEN = {"recv": "send", "splice": "sendfile"}


class Ends:
    """This end and the other one, which tell each other by files."""
    own = other = base = None

    @classmethod
    def tell(cls, what, text=""):
        path = f"{cls.base}.{cls.own}.{what}"
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(text)
        os.rename(f"{path}.new", path)

    @classmethod
    def told(cls, what):
        """Waits until the other end has said so; gives its text."""
        path = f"{cls.base}.{cls.other}.{what}"
        s.until(lambda: os.path.exists(path), what=f"{what} of the {cls.other}")
        with open(path, encoding="ascii") as file:
            return file.read()


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
        if INTERRUPTED[name] == 1:
            Ends.tell(name)
            if Ends.own == "server" and name in THEN:
                Ends.told(THEN[name])
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


def fill(fd):
    """Sends until there is no more room at either end; gives how much."""
    sent = before = 0
    content = s.pattern(AMOUNT, 5)
    while True:
        n = LIBC.send(fd, content[sent:], len(content) - sent, socket.MSG_DONTWAIT)
        if n > 0:
            sent += n
            continue
        s.equal("send() without room", errno.EAGAIN, ctypes.get_errno())
        if sent == before:
            return sent
        before = sent
        # The other end may not have told yet that there is room.
        time.sleep(0.2)


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


def server(host, port):
    sock = s.listener(host, int(port))
    sock.settimeout(None)
    s.touch(Ends.base)
    alarms()
    fd = call("accept", sock.fileno(), None, None)
    data = recv_all(fd, AMOUNT)
    quiet()
    s.equal("content", s.pattern(AMOUNT, 3), data)
    Ends.told("poll")
    alarms()
    send_all(fd, data)
    data = splice_all(fd, AMOUNT)
    quiet()
    s.equal("content of a pipe", s.pattern(AMOUNT, 4), data)
    Ends.tell("all")
    # Nothing but a signal can have ended that call: it waits for what does not fit in here to be read.
    amount = int(Ends.told("closed"))
    alarms()
    data = recv_all(fd, amount)
    s.equal("end", b"", recv_all(fd, 1))
    quiet()
    s.equal("content of the last", s.pattern(AMOUNT, 5)[:amount], data)
    s.say("server", INTERRUPTED)
    for name in "accept", "recv", "splice":
        s.check(INTERRUPTED.get(name), f"{name} was never interrupted")


def client(host, port):
    Ends.told("accept")
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
    Ends.told("recv")
    alarms()
    data = s.pattern(AMOUNT, 3)
    send_all(sock.fileno(), data)
    wait_readable(sock.fileno())
    back = recv_all(sock.fileno(), AMOUNT)
    quiet()
    s.equal("what came back", data, back)
    Ends.told("splice")
    alarms()
    send_file(sock.fileno(), s.pattern(AMOUNT, 4))
    quiet()
    Ends.told("all")
    amount = fill(sock.fileno())
    left = struct.unpack("i", fcntl.ioctl(sock.fileno(), s.SIOCOUTQ, bytes(4)))[0]
    s.check(left > 0, "all is sent before close() waits for that")
    # A signal ends the wait, which would be longer than this test, and the rest is sent all the same.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    alarms()
    call("close", sock.detach())
    quiet()
    Ends.tell("closed", str(amount))
    s.say("client", f"{INTERRUPTED}; {left} of {amount} bytes left in close()")
    for name in "connect", "send", "poll", "sendfile":
        s.check(INTERRUPTED.get(name), f"{name} was never interrupted")


if __name__ == "__main__":
    assert threading.active_count() == 1
    Ends.own, *where, Ends.base = sys.argv[1:]
    Ends.other = {"server": "client", "client": "server"}[Ends.own]
    {"server": server, "client": client}[Ends.own](*where)
