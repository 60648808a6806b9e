# SPDX-License-Identifier: GPL-2.0
"""recv() and its relatives."""

import os
import socket
import struct
import time

from smcsock import read_exactly

from . import raw
from .connecting import limit
from .harness import SIOCINQ, pattern

SOL, TCP = socket.SOL_SOCKET, socket.IPPROTO_TCP
SO_PEEK_OFF, TCP_INQ = 42, 36


def with_data(t, data=b"hello world", **more):
    """A pair, and data that has arrived at the server."""
    client, server = t.pair(**more)
    client.sendall(data)
    t.arrived(server, len(data))
    return client, server


def flags_of_reading(t):
    client, server = with_data(t)
    t.do("peek", server.recv, 5, raw.PEEK)
    t.do("peek more", server.recv, 50, raw.PEEK)
    t.do("peek, all of it", raw.recv, server, 11, raw.PEEK | raw.WAITALL)
    t.do("peek without blocking", server.recv, 3, raw.PEEK | raw.DONTWAIT)
    t.do("peek and truncate", raw.recv, server, 5, raw.PEEK | raw.TRUNC)
    t.do("truncate", raw.recv, server, 6, raw.TRUNC)
    t.do("the rest", server.recv, 50)
    t.do("without blocking", server.recv, 5, raw.DONTWAIT)
    t.do("peek without blocking", server.recv, 5, raw.DONTWAIT | raw.PEEK)
    t.do("truncate without blocking", raw.recv, server, 5, raw.DONTWAIT | raw.TRUNC)
    t.do("all, without blocking", server.recv, 5, raw.DONTWAIT | raw.WAITALL)
    client.send(b"abc")
    t.arrived(server, 3)
    t.do("all, without blocking, some", server.recv, 5, raw.DONTWAIT | raw.WAITALL)
    client.send(b"abc")
    t.arrived(server, 3)
    t.do("unknown flags", server.recv, 5, 0x4 | 0x8 | 0x400000)
    client.send(b"abc")
    t.do("nosignal, eor, more", server.recv, 5, raw.NOSIGNAL | raw.EOR | raw.MORE)
    t.do("error queue", server.recv, 5, raw.ERRQUEUE)
    client.send(b"abc")
    t.do("cmsg_cloexec", server.recv, 5, raw.CMSG_CLOEXEC)


def truncating_into_nothing(t):
    client, server = with_data(t)
    t.do("no memory needed", raw.call, "recv", server.fileno(), None, raw.LONG(5), raw.TRUNC)
    t.do("the rest", server.recv, 50)
    client.send(b"x" * 100000)
    client.close()
    t.do("all", raw.call, "recv", server.fileno(), None, raw.LONG(100000), raw.TRUNC | raw.WAITALL)
    t.do("end", raw.call, "recv", server.fileno(), None, raw.LONG(10), raw.TRUNC)


def waiting_for_all(t):
    client, server = t.pair()
    client.send(b"one ")
    t.soon(client.send, b"two")
    t.do("in two pieces", raw.recv, server, 7, raw.WAITALL)
    client.send(b"one ")
    t.soon(client.send, b"two three")
    t.do("more than all", raw.recv, server, 7, raw.WAITALL)
    t.do("the rest", server.recv, 20)
    data = pattern(500000)
    t.soon(client.sendall, data, after=0)
    t.do("a lot", raw.recv, server, 500000, raw.WAITALL)
    client.send(b"part")
    t.arrived(server, 4)
    server.setsockopt(SOL, 20, limit(0.3))
    t.timed("with a limit", 0.3, 3, raw.recv, server, 7, raw.WAITALL)
    server.setsockopt(SOL, 20, limit(0))
    client.send(b"part")
    t.arrived(server, 4)
    seen = t.signal_soon()
    t.do("with a signal", raw.recv, server, 7, raw.WAITALL)
    client.send(b"part")
    t.arrived(server, 4)
    seen += t.signal_soon(restart=True)
    t.do("with a signal, not restarted", raw.recv, server, 7, raw.WAITALL)
    t.note("signals", seen)
    client.send(b"part")
    t.soon(client.shutdown, socket.SHUT_WR)
    t.do("to the end", raw.recv, server, 7, raw.WAITALL)
    t.do("the end", raw.recv, server, 7, raw.WAITALL)


def waiting_for_all_and_reset(t):
    client, server = t.pair()
    client.send(b"part")
    t.arrived(server, 4)
    client.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    t.soon(client.close)
    t.do("recv", raw.recv, server, 7, raw.WAITALL)
    t.do("recv", raw.recv, server, 7, raw.WAITALL)
    t.do("recv", raw.recv, server, 7, raw.WAITALL)


def peeking_for_all(t):
    client, server = with_data(t, b"abc")
    t.soon(client.send, b"def")
    t.do("peek", raw.recv, server, 6, raw.PEEK | raw.WAITALL)
    server.setsockopt(SOL, 20, limit(0.3))
    t.timed("with a limit", 0.3, 3, raw.recv, server, 9, raw.PEEK | raw.WAITALL)
    t.soon(client.shutdown, socket.SHUT_WR)
    server.setsockopt(SOL, 20, limit(5))
    t.timed("to the end", 0, 3, raw.recv, server, 9, raw.PEEK | raw.WAITALL)
    t.do("recv", server.recv, 10)


def without_data(t):
    client, server = t.pair()
    server.setsockopt(SOL, 20, limit(0.3))
    t.timed("with a limit", 0.3, 3, raw.recv, server, 7)
    t.timed("peek with a limit", 0.3, 3, raw.recv, server, 7, raw.PEEK)
    seen = t.signal_soon(after=0.1, restart=True)
    server.setsockopt(SOL, 20, limit(10))
    t.do("with a limit and a signal", raw.recv, server, 7)
    server.setsockopt(SOL, 20, limit(0))
    seen += t.signal_soon()
    t.do("with a signal", raw.recv, server, 7)
    seen += t.signal_soon(restart=True)
    t.soon(client.send, b"late", after=0.8)
    t.timed("restarted", 0, 5, raw.recv, server, 7)
    t.note("signals", seen)
    server.setblocking(False)
    t.do("nonblocking", raw.recv, server, 7)
    t.do("read", os.read, server.fileno(), 7)


def what_the_message_says(t):
    client, server = with_data(t)
    data, control, flags, addr = server.recvmsg(5, 100)
    t.note("recvmsg", (data, control, flags, addr))
    data, addr = server.recvfrom(50)
    t.note("recvfrom", (data, addr))
    client.send(b"abc")
    room, length = raw.buffer(64), raw.ctypes.c_int(64)
    t.do("with room for an address", raw.call, "recvfrom", server.fileno(), raw.buffer(9), 9, 0,
         room, raw.ctypes.byref(length))
    t.note("its length", length.value)


def bad_pointers_when_reading(t):
    client, server = with_data(t)
    bad = raw.ctypes.c_void_p(raw.BAD)
    t.do("recv", raw.call, "recv", server.fileno(), bad, raw.LONG(10), 0)
    t.do("peek", raw.call, "recv", server.fileno(), bad, raw.LONG(10), raw.PEEK)
    room = raw.buffer(100)
    t.do("first part bad", raw.recvmsg, server, [(raw.BAD, 5), (room, 100)])
    t.do("second part bad", raw.recvmsg, server, [(room, 5), (raw.BAD, 100)])
    t.note("what came", room.raw[:5])
    t.do("the rest", server.recv, 50, raw.DONTWAIT)
    t.do("bad header", raw.call, "recvmsg", server.fileno(), bad, 0)


def memory_that_ends_when_reading(t):
    # All of these end within TCP's first segment, wherever it cuts.
    for name, before, flags in ("recv", 100, 0), ("recv", 1000, 0), ("WAITALL", 100, raw.WAITALL):
        client, server = with_data(t, pattern(20000))
        start, _keep = raw.edge(before)
        got = t.do(f"{name} of {before} and more", raw.call, "recv", server.fileno(),
                   raw.ctypes.c_void_p(start), raw.LONG(20000), flags)
        t.do("the rest", raw.recv, server, 20000 - (got or 0), raw.WAITALL)
        t.do("nothing more", server.recv, 1, raw.DONTWAIT)


def read_only_memory(t):
    client, server = with_data(t)
    start, _keep = raw.edge(0, 1)
    t.do("recv", raw.call, "recv", server.fileno(), raw.ctypes.c_void_p(start), raw.LONG(5), 0)
    t.do("the rest", server.recv, 50)


def low_mark(t):
    def prepare(sock):
        sock.setsockopt(SOL, socket.SO_RCVLOWAT, 5)
    client, server = t.pair()
    prepare(server)
    t.note("read", server.getsockopt(SOL, socket.SO_RCVLOWAT))
    client.send(b"abc")
    t.arrived(server, 3)
    t.poll("too little", server)
    t.do("without blocking", server.recv, 10, raw.DONTWAIT)
    t.do("peek without blocking", server.recv, 10, raw.DONTWAIT | raw.PEEK)
    client.send(b"abc")
    # TCP's reader counts what it has copied already twice: more than the mark has to follow.
    t.soon(client.send, b"defgh")
    t.timed("blocking", 0, 3, raw.recv, server, 10)
    client.send(b"abc")
    t.arrived(server, 3)
    t.timed("less than that wanted", 0, 3, raw.recv, server, 2)
    server.setsockopt(SOL, 20, limit(0.3))
    t.timed("with a limit", 0.3, 3, raw.recv, server, 10)
    client.send(b"abcdef")
    t.poll("enough", server, 1)
    t.do("recv", server.recv, 3)
    t.poll("too little again", server)
    client.shutdown(socket.SHUT_WR)
    t.poll("the end", server, 0x2001)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)
    for value in 0, -1, 1 << 30, 1:
        t.do(f"set {value}", server.setsockopt, SOL, socket.SO_RCVLOWAT, value)
        t.note("is", min(server.getsockopt(SOL, socket.SO_RCVLOWAT), 100))


def low_mark_above_the_room(t):
    """More than may ever be there at once, and nothing is taken: half of the room is enough."""
    client, server = t.pair()
    t.do("set", server.setsockopt, SOL, socket.SO_RCVLOWAT, 100000)
    t.soon(client.sendall, bytes(150000), after=0)
    t.timed("peek", 0, 8, lambda: len(server.recv(200000, raw.PEEK)) >= 30000)
    # TCP does not wake a reader who wants less than the mark when that is there.
    server.setsockopt(SOL, socket.SO_RCVLOWAT, 1)
    t.do("all of it", lambda: len(read_exactly(server, 150000)))


def low_mark_wakes_poll(t):
    import select
    client, server = t.pair()
    server.setsockopt(SOL, socket.SO_RCVLOWAT, 4)
    poll = select.poll()
    poll.register(server, select.POLLIN)
    first = t.soon(client.send, b"ab", after=0.1)
    t.soon(lambda: (first.join(), client.send(b"cd")), after=0.5)
    t.timed("poll", 0, 5, lambda: [event for _, event in poll.poll(4000)])
    t.do("lower", server.setsockopt, SOL, socket.SO_RCVLOWAT, 1)
    t.do("recv", server.recv, 10)
    client.send(b"ab")
    t.poll("again", server, 1)


def peek_offset(t):
    client, server = with_data(t, b"0123456789")
    t.note("at first", server.getsockopt(SOL, SO_PEEK_OFF))
    t.do("set", server.setsockopt, SOL, SO_PEEK_OFF, 2)
    t.do("is", server.getsockopt, SOL, SO_PEEK_OFF)
    t.do("peek", server.recv, 3, raw.PEEK)
    t.do("is", server.getsockopt, SOL, SO_PEEK_OFF)
    t.do("peek", server.recv, 3, raw.PEEK)
    t.do("recv", server.recv, 4)
    t.do("is", server.getsockopt, SOL, SO_PEEK_OFF)
    t.do("peek", server.recv, 30, raw.PEEK | raw.DONTWAIT)
    t.do("peek at the end", server.recv, 30, raw.PEEK | raw.DONTWAIT)
    client.send(b"more")
    t.until(lambda: t.number(server, SIOCINQ) == 10)
    t.do("peek", server.recv, 30, raw.PEEK)
    t.soon(client.send, b"late")
    t.do("peek, waiting", server.recv, 30, raw.PEEK)
    t.do("none", server.setsockopt, SOL, SO_PEEK_OFF, -1)
    t.do("peek", server.recv, 30, raw.PEEK)
    t.do("recv", server.recv, 30)
    fresh = t.socket()
    t.do("on a fresh one", fresh.setsockopt, SOL, SO_PEEK_OFF, 7)
    t.do("is", fresh.getsockopt, SOL, SO_PEEK_OFF)
    t.do("listening", t.listener().setsockopt, SOL, SO_PEEK_OFF, 7)


def peek_offset_set_before(t):
    def prepare(sock):
        sock.setsockopt(SOL, SO_PEEK_OFF, 1)
    client, server = t.pair(client=prepare, server=prepare)
    for name, one, other in ("client", client, server), ("server", server, client):
        t.do(name, one.getsockopt, SOL, SO_PEEK_OFF)
        other.send(b"abc")
        t.arrived(one, 3)
        t.do(name + " peek", one.recv, 10, raw.PEEK)


def how_much_is_left(t):
    """TCP_INQ"""
    client, server = with_data(t, b"0123456789")
    t.do("set", server.setsockopt, TCP, TCP_INQ, 1)
    t.do("recvmsg", server.recvmsg, 4, 100)
    t.do("peek", server.recvmsg, 4, 100, raw.PEEK)
    t.do("no room", server.recvmsg, 1, 0)
    t.do("little room", server.recvmsg, 1, 18)
    t.do("the rest", server.recvmsg, 40, 100)
    t.do("nothing", server.recvmsg, 40, 100, raw.DONTWAIT)
    client.send(b"abc")
    client.shutdown(socket.SHUT_WR)
    t.poll("end", server, 0x2001)
    t.do("recvmsg", server.recvmsg, 2, 100)
    t.do("recvmsg", server.recvmsg, 2, 100)
    t.do("recvmsg at the end", server.recvmsg, 2, 100)


def recently(control):
    """A time stamp, judged."""
    said = []
    for level, kind, data in control:
        size = len(data) // 16
        times = []
        for at in range(size):
            sec, part = struct.unpack_from("qq", data, at * 16)
            times.append("none" if sec == 0 else
                         "now" if abs(time.time() - sec) < 30 and 0 <= part < 1e9 else "wrong")
        said.append((level, kind, len(data), times))
    return said


def stamping(t, client, server):
    """Until what comes bears a time: the kernel begins to look at the clock a little after it was asked."""
    def stamped():
        client.send(b"?")
        t.arrived(server, 1)
        return server.recvmsg(10, 200)[1]
    return t.until(stamped)


def time_stamps(t):
    client, server = t.pair()
    client.send(b"before")
    t.arrived(server, 6)
    for name, option in ("SO_TIMESTAMP", 29), ("SO_TIMESTAMPNS", 35), ("SO_TIMESTAMP_NEW", 63), \
            ("SO_TIMESTAMPNS_NEW", 64):
        t.do("set " + name, server.setsockopt, SOL, option, 1)
        server.recv(6) if t.number(server, SIOCINQ) else None
        stamping(t, client, server)
        client.send(b"abcd")
        t.arrived(server, 4)
        t.do("peek " + name, lambda: recently(server.recvmsg(2, 200, raw.PEEK)[1]))
        t.do("recvmsg " + name, lambda: recently(server.recvmsg(2, 200)[1]))
        t.do("recvmsg, short " + name, lambda: recently(server.recvmsg(1, 20)[1]))
        t.do("no room " + name, server.recvmsg, 1, 0)
        t.do("unset " + name, server.setsockopt, SOL, option, 0)
    client.send(b"x")
    t.do("no more of them", server.recvmsg, 10, 200)


def stamps_of_software(t):
    """SO_TIMESTAMPING of received data."""
    client, server = t.pair()
    for option in 37, 65:
        t.do("set", server.setsockopt, SOL, option, 8 | 16)
        stamping(t, client, server)
        client.send(b"abcd")
        t.arrived(server, 4)
        t.do("recvmsg", lambda: recently(server.recvmsg(10, 200)[1]))
    t.do("with the other", server.setsockopt, SOL, 35, 1)
    client.send(b"abcd")
    t.arrived(server, 4)
    t.do("recvmsg", lambda: recently(server.recvmsg(10, 200)[1]))


def stamps_and_what_is_left(t):
    client, server = t.pair()
    server.setsockopt(SOL, 29, 1)
    stamping(t, client, server)
    server.setsockopt(TCP, TCP_INQ, 1)
    client.send(b"abcd")
    t.arrived(server, 4)
    t.do("recvmsg", lambda: [item[:3] for item in recently(server.recvmsg(3, 200)[1])])


def the_end(t):
    client, server = with_data(t, b"last")
    client.close()
    t.poll("poll", server, 0x2001)
    t.do("peek", server.recv, 10, raw.PEEK)
    t.do("recv", server.recv, 10)
    t.do("peek at the end", server.recv, 10, raw.PEEK)
    for flags in 0, raw.DONTWAIT, raw.WAITALL, raw.TRUNC:
        t.do(f"end {flags:#x}", raw.recv, server, 10, flags)
    t.do("bad pointer", raw.call, "recv", server.fileno(), raw.ctypes.c_void_p(raw.BAD), 10, 0)
    t.poll("poll", server)
    t.error_of("SO_ERROR", server)


def reset_with_data(t):
    client, server = with_data(t, b"lost?")
    client.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    t.poll("poll", server, 16)
    t.note("queued", t.number(server, SIOCINQ))
    t.do("peek", server.recv, 10, raw.PEEK)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)


def reset_while_reading(t):
    client, server = t.pair()
    client.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    t.soon(client.close)
    t.timed("recv", 0, 5, raw.recv, server, 10)
    t.do("recv", raw.recv, server, 10)
    t.poll("poll", server)


def two_readers(t):
    """Each byte goes to one."""
    client, server = t.pair()
    got = []
    threads = [t.soon(lambda: got.append(raw.recv(server, 1)), after=0) for _ in range(2)]
    t.until(lambda: False, 0.5)
    client.send(b"ab")
    for thread in threads:
        thread.join(5)
    t.note("together", sorted(got))


def reader_and_closer(t):
    """close() by another thread does not end a recv() under way; shutdown() does."""
    client, server = t.pair()
    t.soon(server.shutdown, socket.SHUT_RD)
    t.timed("shutdown", 0, 5, raw.recv, server, 10)
    client, server = t.pair()
    t.soon(os.close, server.detach(), after=0.2)
    t.poll("peer of who has closed", client, 0x2000)


def signals_in_reading_calls(t):
    """readv(), read() and splice() are started again after a signal, or not, and tell of what they have."""
    client, server = t.pair()
    room, here = raw.buffer(100), os.pipe()
    vec = raw.vector([(room, 10), (raw.pointer(room) + 10, 90)])
    none = None

    def splice():
        return raw.call("splice", server.fileno(), none, here[1], none, raw.ctypes.c_size_t(100), 0)

    calls = {
        "read": lambda: raw.call("read", server.fileno(), room, raw.ctypes.c_size_t(100)),
        "readv": lambda: raw.call("readv", server.fileno(), vec, 2),
        "splice": splice,
    }
    for name, call in calls.items():
        seen = t.signal_soon(after=0.2)
        t.do(name, call)
        t.note("signals", seen)
        seen = t.signal_soon(after=0.2, restart=True)
        t.soon(client.send, b"data", after=0.4)
        t.do(name + ", restarted", call)
        t.note("signals", seen)
        # Long enough for the signal to come first.
        server.setsockopt(SOL, 20, struct.pack("ll", 20, 0))
        seen = t.signal_soon(after=0.2, restart=True)
        t.do(name + ", with a limit", call)
        t.note("signals", seen)
        server.setsockopt(SOL, 20, bytes(16))
    # What has come before the signal counts.
    server.setsockopt(SOL, socket.SO_RCVLOWAT, 50)
    client.send(b"some")
    t.until(lambda: t.number(server, SIOCINQ) == 4)
    for name in "read", "readv":
        seen = t.signal_soon(after=0.2, restart=True)
        t.do(name + ", some there", calls[name])
        t.note("signals", seen)
        client.send(b"some")
        t.until(lambda: t.number(server, SIOCINQ) >= 4)


SCRIPTS = [
    flags_of_reading, truncating_into_nothing, waiting_for_all, waiting_for_all_and_reset,
    peeking_for_all, without_data, what_the_message_says, bad_pointers_when_reading,
    memory_that_ends_when_reading, read_only_memory, low_mark, low_mark_above_the_room, low_mark_wakes_poll, peek_offset,
    peek_offset_set_before, how_much_is_left, time_stamps, stamps_of_software,
    stamps_and_what_is_left, the_end, reset_with_data, reset_while_reading, two_readers,
    reader_and_closer, signals_in_reading_calls,
]
