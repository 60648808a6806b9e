# SPDX-License-Identifier: GPL-2.0
"""The same by io_uring."""

import ctypes
import errno
import os
import socket
import struct

import uring
from smcsock import read_exactly
from uring import ACCEPT, CANCEL, CONNECT, POLL_ADD, RECV, RECVMSG, SEND, SEND_ZC, SENDMSG, SHUTDOWN, SPLICE, URING_CMD

from . import raw
from .harness import bits, pattern

MULTISHOT_ACCEPT, MULTISHOT_POLL = 1, 1


class Ring(uring.Ring):
    """One whose requests are numbered."""

    def __init__(self):
        super().__init__()
        self.kept = []
        self.number = 0

    def start(self, *words, **more):
        """Submits a request; gives its number."""
        self.number += 1
        self.put(uring.entry(*words, mark=self.number, **more))
        self.enter(1)
        return self.number

    def end(self):
        """Waits for a completion: its request, the result, flags."""
        while (found := self.take()) is None:
            self.enter(0, 1, uring.GET_EVENTS)
        return found

    def do(self, *words, **more):
        """Makes a request, and waits: the result, or the error's name."""
        self.start(*words, **more)
        return named(self.end()[1])


def named(result):
    """A result, or the name of an error."""
    return errno.errorcode[-result] if result < 0 else result


def ring_sends_and_receives(t):
    client, server = t.pair()
    ring = Ring()
    out, room = raw.buffer(b"hello"), raw.buffer(100)
    t.note("send", ring.do(SEND, client.fileno(), raw.pointer(out), 5))
    t.arrived(server, 5)
    t.note("recv", ring.do(RECV, server.fileno(), raw.pointer(room), 100))
    t.note("data", room.raw[:5])
    ring.start(RECV, server.fileno(), raw.pointer(room), 100)
    t.soon(client.send, b"late")
    t.note("recv, waiting", named(ring.end()[1]))
    t.note("nothing", ring.do(RECV, server.fileno(), raw.pointer(room), 100, flags=raw.DONTWAIT))
    ring.start(RECV, server.fileno(), raw.pointer(room), 8, flags=raw.WAITALL)
    client.send(b"1234")
    t.soon(client.send, b"5678")
    t.note("all", named(ring.end()[1]))
    t.note("data", room.raw[:8])
    client.send(b"abc")
    t.arrived(server, 3)
    t.note("peek", ring.do(RECV, server.fileno(), raw.pointer(room), 100, flags=raw.PEEK))
    t.note("bad pointer", ring.do(RECV, server.fileno(), raw.BAD, 100))
    t.note("recv", ring.do(RECV, server.fileno(), raw.pointer(room), 100))
    t.note("send from a bad pointer", ring.do(SEND, client.fileno(), raw.BAD, 5))
    t.note("shutdown", ring.do(SHUTDOWN, client.fileno(), 0, socket.SHUT_WR))
    t.note("end", ring.do(RECV, server.fileno(), raw.pointer(room), 100))
    t.note("send after it", ring.do(SEND, client.fileno(), raw.pointer(out), 5, flags=raw.NOSIGNAL))
    t.note("not connected", ring.do(RECV, t.socket().fileno(), raw.pointer(room), 5))


def ring_counts(t):
    """What ioctl() counts."""
    client, server = t.pair()
    ring = Ring()
    client.send(b"hello")
    t.arrived(server, 5)
    for name, count in ("SIOCINQ", 0), ("SIOCOUTQ", 1), ("no such", 77):
        t.note(name, ring.do(URING_CMD, server.fileno(), 0, 0, count))


def ring_messages(t):
    client, server = t.pair()
    ring = Ring()
    out = [raw.buffer(b"one "), raw.buffer(b"two")]
    message = raw.header([(out[0], 4), (out[1], 3)])
    t.note("sendmsg", ring.do(SENDMSG, client.fileno(), ctypes.addressof(message), 1))
    t.arrived(server, 7)
    rooms = [raw.buffer(3), raw.buffer(100)]
    control = raw.buffer(100)
    server.setsockopt(socket.IPPROTO_TCP, 36, 1)
    message = raw.header([(rooms[0], 3), (rooms[1], 2)], control)
    t.note("recvmsg", ring.do(RECVMSG, server.fileno(), ctypes.addressof(message), 1))
    t.note("data", (rooms[0].raw, rooms[1].raw[:2], message.flags, message.controllen))


def ring_connects_and_accepts(t):
    listening = t.listener()
    ring = Ring()
    asked = ring.start(ACCEPT, listening.fileno())
    client = t.socket()
    host, port = listening.getsockname()
    addr = raw.buffer(struct.pack("=H", socket.AF_INET) + struct.pack(">H", port)
                      + socket.inet_aton(host) + bytes(8))
    connect = ring.start(CONNECT, client.fileno(), raw.pointer(addr), 0, 16)
    got = dict([ring.end()[:2], ring.end()[:2]])
    t.note("connect", named(got[connect]))
    t.note("accept", got[asked] > 2)
    t.check(client)
    server = socket.socket(fileno=got[asked])
    client.send(b"hello")
    t.do("recv", server.recv, 10)
    refused = t.socket()
    addr = raw.buffer(struct.pack("=H", socket.AF_INET) + struct.pack(">H", next(t.ports))
                      + socket.inet_aton(host) + bytes(8))
    t.note("refused", ring.do(CONNECT, refused.fileno(), raw.pointer(addr), 0, 16))
    many = ring.start(ACCEPT, listening.fileno(), priority=MULTISHOT_ACCEPT)
    for _ in range(3):
        t.socket().connect(listening.getsockname())
        number, result, flags = ring.end()
        t.note("accept", (number == many, result > 2, flags & 2))
    t.note("accept of a connection", ring.do(ACCEPT, server.fileno()))


def ring_polls(t):
    client, server = t.pair()
    ring = Ring()
    t.note("out", bits(ring.do(POLL_ADD, server.fileno(), flags=4)))
    ring.start(POLL_ADD, server.fileno(), flags=1 | 0x2000)
    t.soon(client.send, b"x")
    t.note("in", bits(ring.end()[1]))
    server.recv(1)
    asked = ring.start(POLL_ADD, server.fileno(), length=MULTISHOT_POLL, flags=1)
    for _ in range(2):
        client.send(b"x")
        number, result, flags = ring.end()
        t.note("each", (number == asked, bits(result), flags & 2))
        server.recv(1)
    client.close()
    t.note("end", bits(ring.end()[1] & (1 | 0x2000)))


def ring_is_cancelled(t):
    client, server = t.pair()
    ring = Ring()
    room = raw.buffer(10)
    asked = ring.start(RECV, server.fileno(), raw.pointer(room), 10)
    cancel = ring.start(CANCEL, -1, asked)
    got = dict([ring.end()[:2], ring.end()[:2]])
    t.note("recv", named(got[asked]))
    t.note("cancel", named(got[cancel]))
    client.send(b"still")
    t.do("recv", server.recv, 10)


def ring_and_signals(t):
    """A signal ends the waiting for a request, not the request."""
    client, server = t.pair()
    ring = Ring()
    room = raw.buffer(100)

    def wait():
        return ring.enter(0, 1, uring.GET_EVENTS)

    for restart in False, True:
        asked = ring.start(RECV, server.fileno(), raw.pointer(room), 8, flags=raw.WAITALL)
        client.send(b"half")
        t.until(lambda: False, 0.2)
        seen = t.signal_soon(after=0.2, restart=restart)
        if restart:
            def later(seen=seen):
                t.until(lambda: seen)
                client.send(b"rest")
            t.soon(later)
        t.do("wait", wait)
        t.note("signals", seen)
        if not restart:
            client.send(b"rest")
        number, result, _ = ring.end()
        t.note("recv", (number == asked, named(result), room.raw[:8]))
    listening = t.listener()
    asked = ring.start(ACCEPT, listening.fileno())
    seen = t.signal_soon(after=0.2)
    t.do("wait for a connection", wait)
    t.note("signals", seen)
    other = t.socket()
    other.connect(listening.getsockname())
    number, result, _ = ring.end()
    t.note("accept", (number == asked, result > 2))
    asked = ring.start(POLL_ADD, server.fileno(), flags=1)
    seen = t.signal_soon(after=0.2)
    t.do("wait for data", wait)
    t.note("signals", seen)
    client.send(b"x")
    number, result, _ = ring.end()
    t.note("poll", (number == asked, bits(result)))
    t.note("splice", splice(ring, server.fileno(), os.pipe()[1], 1))


def ring_sends_a_lot(t):
    client, server = t.pair()
    ring = Ring()
    data = pattern(400000)
    out = raw.buffer(data)
    ring.start(SEND, client.fileno(), raw.pointer(out), 400000, flags=raw.WAITALL)
    # The ring's news may interrupt a call that waits for all.
    got = read_exactly(server, 400000)
    t.note("send", named(ring.end()[1]))
    t.note("same", got == data)


def ring_sends_without_copy(t):
    client, server = t.pair()
    ring = Ring()
    out = raw.buffer(b"hello")
    ring.start(SEND_ZC, client.fileno(), raw.pointer(out), 5)
    _, result, flags = ring.end()
    t.note("send", (named(result), flags & 2))
    if flags & 2:
        _, result, flags = ring.end()
        t.note("notification", bool(flags & 8))
    t.note("recv", server.recv(10) if result >= 0 else "nothing")


def ring_splices(t):
    client, server = t.pair()
    ring = Ring()
    there, here = os.pipe()
    client.send(b"hello")
    t.arrived(server, 5)
    t.note("from a socket", splice(ring, server.fileno(), here, 5))
    t.do("read", os.read, there, 10)
    os.write(here, b"back")
    t.note("to a socket", splice(ring, there, server.fileno(), 4))
    t.do("recv", client.recv, 10)


def splice(ring, source, target, length):
    """The request has the source where others have the memory and a field behind."""
    # Pipes and sockets have no offsets.
    none = 0xFFFFFFFFFFFFFFFF
    return ring.do(SPLICE, target, none, length, none, other=source)


SCRIPTS = [
    ring_counts, ring_sends_and_receives, ring_messages, ring_connects_and_accepts, ring_polls,
    ring_is_cancelled, ring_and_signals, ring_sends_a_lot, ring_sends_without_copy, ring_splices,
]
