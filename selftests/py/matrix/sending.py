# SPDX-License-Identifier: GPL-2.0
"""send() and its relatives."""

import array
import mmap
import os
import select
import signal
import socket
import struct
import tempfile
import time

import suite
import unanswered
from smcsock import read_exactly

from . import raw
from .connecting import limit
from .harness import SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, pattern

SOL, TCP = socket.SOL_SOCKET, socket.IPPROTO_TCP
SO_ZEROCOPY = 60
BIG = 300000


def fill(sock):
    """Sends without blocking until there is no room; gives how much went."""
    total, block = 0, pattern(16384)
    while True:
        try:
            total += sock.send(block, raw.DONTWAIT)
        except BlockingIOError:
            return total


def filled(t, client):
    """The same, until nothing more goes for a while: what is on its way may make room. (TCP may find that
    a packet which is on its way finds no room at the peer.)"""
    total, last = fill(client), time.monotonic()
    while True:
        t.until(lambda: False, 0.15)
        still = t.number(client, SIOCOUTQ) == t.number(client, SIOCOUTQNSD)
        more = fill(client)
        total += more
        if more:
            last = time.monotonic()
        elif still or time.monotonic() > last + 3:
            return total


def small(t, **more):
    """A pair with small buffers."""
    def prepare(sock):
        sock.setsockopt(SOL, socket.SO_SNDBUF, 16384)
        sock.setsockopt(SOL, socket.SO_RCVBUF, 16384)
    return t.pair(client=prepare, server=prepare, **more)


def nothing_at_all(t):
    client, server = t.pair()
    t.do("send", client.send, b"")
    t.do("sendmsg without parts", raw.sendmsg, client, [])
    t.do("sendmsg of empty parts", raw.sendmsg, client, [(raw.BAD, 0), (raw.BAD, 0)])
    t.do("write", os.write, client.fileno(), b"")
    t.do("urgent", client.send, b"", raw.OOB)
    t.poll("poll of the peer", server)
    t.do("recv of nothing", raw.recv, server, 0, raw.DONTWAIT)
    t.do("peek of nothing", raw.recv, server, 0, raw.DONTWAIT | raw.PEEK)
    t.do("recvmsg of nothing", raw.recvmsg, server, [], raw.DONTWAIT)
    client.send(b"x")
    t.arrived(server, 1)
    t.do("recv of nothing, there is data", raw.recv, server, 0)
    t.do("read of nothing", os.read, server.fileno(), 0)
    t.do("recv", server.recv, 10)
    client.shutdown(socket.SHUT_WR)
    t.poll("end", server, 1)
    t.do("recv of nothing at the end", raw.recv, server, 0)
    t.do("send of nothing after shutdown", client.send, b"", raw.NOSIGNAL)


def scatter_and_gather(t):
    client, server = t.pair()
    parts = [pattern(n, n) for n in (1, 0, 5000, 3, 70000, 17)]
    whole = b"".join(parts)
    t.do("sendmsg", client.sendmsg, parts)
    rooms = [bytearray(n) for n in (10, 40000, 1, 0, 20000)]
    got, _, flags, addr = server.recvmsg_into(rooms, 0, raw.WAITALL)
    t.note("recvmsg", (got, flags, addr, b"".join(rooms)[:got] == whole[:got]))
    t.do("writev", os.writev, client.fileno(), [b"ab", b"", b"cde"])
    t.arrived(server, len(whole) - got + 5)
    t.do("readv", lambda: [os.readv(server.fileno(), rooms), rooms[0][:5]])
    t.do("too many parts", raw.sendmsg, client, [(raw.BAD, 0)] * 1025)
    t.do("negative count", raw.call, "writev", client.fileno(), None, -1)


def many_messages(t):
    client, server = t.pair()
    one, two = raw.buffer(b"first"), raw.buffer(b"second")
    t.do("sendmmsg", raw.sendmmsg, client, [[(one, 5)], [(two, 6)], [(one, 2), (two, 3)]])
    t.arrived(server, 16)
    t.do("recvmmsg", raw.recvmmsg, server, [5, 6, 5])
    t.do("sendmmsg with a bad one", raw.sendmmsg, client, [[(one, 5)], [(raw.BAD, 6)]])
    t.do("sendmmsg with a bad first", raw.sendmmsg, client, [[(raw.BAD, 5)], [(one, 5)]])
    t.arrived(server, 5)
    t.do("recvmmsg without blocking", raw.recvmmsg, server, [3, 3, 3], raw.DONTWAIT)
    t.do("and nothing there", raw.recvmmsg, server, [3], raw.DONTWAIT)
    client.send(b"abc")
    t.arrived(server, 3)
    t.do("waiting for one", raw.recvmmsg, server, [3, 3], raw.WAITFORONE)
    client.send(b"abc")
    t.arrived(server, 3)
    t.soon(client.send, b"def", after=0.5)
    t.do("with a time", raw.recvmmsg, server, [3, 3, 3][:2], 0, 0.2)
    client.send(b"abc")
    client.shutdown(socket.SHUT_WR)
    t.poll("end", server, 0x2001)
    t.do("to the end", raw.recvmmsg, server, [3, 3, 3])
    t.do("of no messages", raw.recvmmsg, server, [])
    signals = t.catch(signal.SIGPIPE)
    t.do("sendmmsg after shutdown", raw.sendmmsg, client, [[(one, 5)], [(two, 6)]])
    t.note("signals", signals)


def more_and_records(t):
    client, server = t.pair()
    t.do("MSG_MORE", client.send, b"one ", raw.MORE)
    t.do("and the rest", client.send, b"two")
    t.arrived(server, 7)
    t.do("recv", server.recv, 20)
    t.do("MSG_EOR", client.send, b"three ", raw.EOR)
    t.do("and another", client.send, b"four")
    t.arrived(server, 10)
    data, _, flags, addr = server.recvmsg(20)
    t.note("recvmsg", (data, flags, addr))
    t.do("MSG_MORE alone", client.send, b"five", raw.MORE)
    t.do("arrives in the end", server.recv, 20)
    t.do("other flags", client.send, b"six", 4 | 0x800 | 0x10)
    t.do("recv", server.recv, 20)
    t.do("MSG_TRUNC and MSG_WAITALL", client.send, b"seven", raw.TRUNC | raw.WAITALL)
    t.do("recv", server.recv, 20)


def to_an_address(t):
    """The address of a stream's message means nothing."""
    client, server = t.pair()
    t.do("connected", client.sendto, b"x", (t.host("right"), 9))
    t.do("recv", server.recv, 10)
    t.do("bad address", raw.call, "sendto", client.fileno(), raw.buffer(b"y"), 1, 0,
         raw.buffer(bytes(16)), 16)
    t.do("short address", raw.call, "sendto", client.fileno(), raw.buffer(b"z"), 1, 0,
         raw.buffer(bytes(16)), 1)
    t.do("bad pointer", raw.call, "sendto", client.fileno(), raw.buffer(b"z"), 1, 0,
         raw.ctypes.c_void_p(raw.BAD), 16)
    t.settled(server)
    t.do("recv", server.recv, 10, raw.DONTWAIT)
    seen = t.catch(signal.SIGPIPE)
    t.do("not connected", t.socket().sendto, b"x", (t.host("left"), 9))
    t.note("signals", seen)


def not_connected(t):
    seen = t.catch(signal.SIGPIPE)
    for name, sock in ("fresh", t.socket()), ("bound", t.bound()):
        for flags in 0, raw.NOSIGNAL, raw.DONTWAIT | raw.NOSIGNAL, raw.OOB | raw.NOSIGNAL, \
                raw.MORE | raw.NOSIGNAL:
            t.do(f"{name} send {flags:#x}", sock.send, b"x", flags)
        t.do(name + " send of nothing", sock.send, b"", raw.NOSIGNAL)
        for flags in 0, raw.DONTWAIT, raw.PEEK, raw.OOB, raw.ERRQUEUE, raw.WAITALL:
            t.do(f"{name} recv {flags:#x}", sock.recv, 1, flags)
        t.do(name + " recv of nothing", raw.recv, sock, 0)
        for request in SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, 0x8905:
            t.do(f"{name} ioctl {request:#x}", t.number, sock, request)
        t.poll(name + " poll", sock)
        t.error_of(name + " SO_ERROR", sock)
        for how in range(4):
            t.do(f"{name} shutdown {how}", sock.shutdown, how)
    t.note("signals", seen)


def after_shutdown(t):
    seen = t.catch(signal.SIGPIPE)
    client, server = t.pair()
    client.send(b"before")
    client.shutdown(socket.SHUT_WR)
    t.do("send", client.send, b"x")
    t.note("signals", seen)
    t.do("send without a signal", client.send, b"x", raw.NOSIGNAL)
    t.do("urgent", client.send, b"x", raw.NOSIGNAL | raw.OOB)
    t.do("write", os.write, client.fileno(), b"x")
    t.note("signals", seen)
    t.error_of("SO_ERROR", client)
    t.do("recv", server.recv, 20)
    t.do("recv", server.recv, 20)
    t.do("the other direction", server.send, b"answer")
    t.do("recv", client.recv, 20)
    t.poll("poll", client)
    t.poll("poll of the peer", server)


def to_who_has_closed(t):
    seen = t.catch(signal.SIGPIPE)
    client, server = t.pair()
    server.close()
    t.poll("poll", client, 0x2000)
    t.do("first send", client.send, b"x")
    t.poll("poll", client, 16)
    t.do("second send", client.send, b"x")
    t.note("signals", seen)
    t.do("third send", client.send, b"x", raw.NOSIGNAL)
    t.error_of("SO_ERROR", client)
    t.do("recv", client.recv, 1)


def to_who_closes_meanwhile(t):
    """The peer closes while the data is being read: it was taken, as it is from who sends a moment before."""
    seen = t.catch(signal.SIGPIPE)
    client, server = t.pair()
    try:
        def sends(address):
            return raw.call("send", client.fileno(), raw.ctypes.c_void_p(address), raw.LONG(5), 0)

        with unanswered.during(sends) as got:
            server.close()
            # TCP hears of it when the call is over.
            t.has(client, 0x2000, 1)
    except suite.Skipped as missing:
        t.note("nothing", str(missing))
        return
    t.note("send", got)
    t.poll("poll", client, 16)
    t.note("signals", seen)
    t.do("second send", client.send, b"x")
    t.note("signals", seen)


def to_who_has_reset(t):
    seen = t.catch(signal.SIGPIPE)
    for first in "send", "recv", "SO_ERROR", "peek":
        client, server = t.pair()
        server.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        t.poll("poll", client, 16)
        calls = {"send": lambda: client.send(b"x"), "recv": lambda: client.recv(1),
                 "peek": lambda: client.recv(1, raw.PEEK),
                 "SO_ERROR": lambda: client.getsockopt(SOL, socket.SO_ERROR)}
        t.do(f"{first} first", calls[first])
        t.poll("poll", client)
        for name, call in calls.items():
            t.do(name, call)
        t.do("send", client.send, b"x")
        t.do("recv", client.recv, 1)
        t.do("shutdown", client.shutdown, socket.SHUT_RDWR)
    t.note("signals", seen)


def bad_pointers(t):
    client, server = t.pair()
    good = raw.buffer(b"a" * 100)
    t.do("send", raw.call, "send", client.fileno(), raw.ctypes.c_void_p(raw.BAD), 10, 0)
    t.do("first part bad", raw.sendmsg, client, [(raw.BAD, 10), (good, 100)])
    t.do("second part bad", raw.sendmsg, client, [(good, 100), (raw.BAD, 10), (good, 100)])
    t.do("urgent", raw.call, "send", client.fileno(), raw.ctypes.c_void_p(raw.BAD), 10, raw.OOB)
    t.until(lambda: t.number(server, SIOCINQ) >= 100, 4)
    t.do("recv", server.recv, 1000, raw.DONTWAIT)
    t.do("bad header", raw.call, "sendmsg", client.fileno(), raw.ctypes.c_void_p(raw.BAD), 0)
    t.do("still in order", client.send, b"after")
    t.do("recv", server.recv, 1000)


def memory_that_ends(t):
    """The data is longer than the memory that is there."""
    client, server = t.pair()
    for before in 100, 5000:
        start, _keep = raw.edge(before)
        got = t.do(f"send of {before} and more", raw.call, "send", client.fileno(),
                   raw.ctypes.c_void_p(start), raw.LONG(before + 4000), 0)
        if got:
            t.note("same as came", len(read_exactly(server, got)) == got)
    t.do("still in order", client.send, b"after")
    t.do("recv", server.recv, 1000)


def no_room(t):
    client, server = small(t)
    total = filled(t, client)
    t.note("sent some", total > 8192)
    t.poll("poll", client)
    t.do("send", client.send, b"x", raw.DONTWAIT)
    t.do("sendmsg", raw.sendmsg, client, [(raw.buffer(b"x"), 1)], raw.DONTWAIT)
    client.setsockopt(SOL, 21, limit(0.3))
    t.timed("with a limit", 0.3, 3, client.send, b"x")
    client.setsockopt(SOL, 21, limit(0))
    seen = t.signal_soon()
    t.do("with a signal", raw.send, client, b"x")
    seen += t.signal_soon(restart=True)
    t.soon(read_exactly, server, total, after=0.8)
    t.do("restarted", raw.send, client, b"y")
    t.note("signals", seen)
    for thread in t.threads:
        thread.join()
    t.do("the last byte", server.recv, 10)
    t.poll("poll", client, 4)


def part_of_it(t):
    """A call that has sent something says so, whatever ends it."""
    client, server = small(t)
    client.setsockopt(SOL, 21, limit(0.4))
    data = pattern(2000000)
    got = raw.send(client, data)
    t.note("with a limit, some", 0 < got < len(data))
    t.note("all of that comes", read_exactly(server, got) == data[:got])
    client.setsockopt(SOL, 21, limit(0))
    for restart in False, True:
        t.signal_soon(restart=restart)
        got = raw.send(client, data)
        t.note("with a signal, some", 0 < got < len(data))
        t.note("all of that comes", read_exactly(server, got) == data[:got])
    # That all has been read, the sender has to hear first.
    select.select([], [client], [], 5)
    got = raw.send(client, data, raw.DONTWAIT)
    t.note("without blocking, some", 0 < got < len(data))
    t.note("all of that comes", read_exactly(server, got) == data[:got])
    t.note("nothing more", t.number(server, SIOCINQ))


def signals_in_other_calls(t):
    """Calls that move data by other means, or several messages: interrupted, or with what they have done."""
    client, server = t.pair()
    there, here = os.pipe()
    none, length = raw.ctypes.c_void_p(), raw.ctypes.c_size_t
    seen = t.signal_soon()
    t.do("recvmmsg", raw.recvmmsg, server, [3, 3])
    client.send(b"abc")
    t.arrived(server, 3)
    seen += t.signal_soon()
    t.do("recvmmsg with some", raw.recvmmsg, server, [3, 3])
    seen += t.signal_soon()
    t.do("peek for all", raw.recv, server, 10, raw.PEEK | raw.WAITALL)
    client, server = small(t)
    filled(t, client)
    seen += t.signal_soon()
    t.do("sendmmsg", raw.sendmmsg, client, [[(raw.buffer(b"x"), 1)], [(raw.buffer(b"y"), 1)]])
    os.write(here, b"data")
    seen += t.signal_soon()
    t.do("splice into", raw.call, "splice", there, none, client.fileno(), none, length(4), 0)
    with tempfile.TemporaryFile() as file:
        file.write(b"data")
        file.flush()
        seen += t.signal_soon()
        t.do("sendfile", raw.call, "sendfile", client.fileno(), file.fileno(), none, length(4))
    t.note("signals", seen)


def cut_off_while_sending(t):
    client, server = small(t)
    server.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    data = pattern(2000000)
    # Not before some of it is there, however slow the machine is.
    t.soon(lambda: t.arrived(server, 1) and server.close(), after=1)
    got = raw.send(client, data)
    t.note("some", 0 < got < len(data))
    t.poll("poll", client, 16)
    t.do("the error", client.send, b"x", raw.NOSIGNAL)
    t.do("and then", client.send, b"x", raw.NOSIGNAL)
    client, server = small(t)
    filled(t, client)
    server.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    t.soon(server.close)
    t.do("nothing sent", raw.send, client, b"x", raw.NOSIGNAL)


def shut_while_sending(t):
    seen = t.catch(signal.SIGPIPE)
    client, server = small(t)
    filled(t, client)
    t.soon(client.shutdown, socket.SHUT_WR)
    t.timed("send", 0, 5, raw.send, client, b"x")
    t.note("signals", seen)


def blocking_sends_all(t):
    client, server = small(t)
    data = pattern(BIG)
    got = []
    thread = t.soon(lambda: got.append(read_exactly(server, BIG)), after=0.2)
    t.do("send", raw.send, client, data)
    thread.join()
    t.note("same", got[0] == data)
    thread = t.soon(lambda: got.append(read_exactly(server, BIG)), after=0.2)
    cut = raw.buffer(data)
    t.do("gathered", raw.sendmsg, client, [(raw.pointer(cut) + at, 1000)
                                           for at in range(0, BIG, 1000)])
    thread.join()
    t.note("same", got[1] == data)


def queues(t):
    """What SIOCOUTQ and the others say."""
    client, server = small(t)
    t.note("empty", [t.number(client, which) for which in (SIOCINQ, SIOCOUTQ, SIOCOUTQNSD)])
    client.send(b"x" * 1000)
    t.arrived(server, 1000)
    t.note("arrived", t.number(server, SIOCINQ))
    t.until(lambda: t.number(client, SIOCOUTQ) == 0)
    t.note("sent", [t.number(client, which) for which in (SIOCOUTQ, SIOCOUTQNSD)])
    total = filled(t, client)
    outq, unsent = t.number(client, SIOCOUTQ), t.number(client, SIOCOUTQNSD)
    t.note("full", (outq > 0, unsent > 0, outq >= unsent))
    t.note("all is somewhere", outq + t.number(server, SIOCINQ) >= total)
    read_exactly(server, total + 1000)
    t.until(lambda: t.number(client, SIOCOUTQ) == 0)
    t.note("empty", [t.number(client, which) for which in (SIOCOUTQ, SIOCOUTQNSD)])
    client.send(b"abc")
    t.arrived(server, 3)
    t.do("peek", server.recv, 2, raw.PEEK)
    t.note("after peek", t.number(server, SIOCINQ))
    t.do("read", server.recv, 2)
    t.note("after read", t.number(server, SIOCINQ))
    client.shutdown(socket.SHUT_WR)
    t.poll("shut", server, 0x2000)
    t.note("at the end with data", t.number(server, SIOCINQ))
    server.recv(2)
    t.note("at the end", t.number(server, SIOCINQ))
    t.until(lambda: t.number(client, SIOCOUTQ) == 0)
    t.note("after shutdown", [t.number(client, which) for which in (SIOCOUTQ, SIOCOUTQNSD)])


def files_are_sent(t):
    client, server = t.pair()
    data = pattern(200001)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        thread = t.soon(lambda: t.kept.append(read_exactly(server, 200001)), after=0.1)
        t.do("sendfile", os.sendfile, client.fileno(), file.fileno(), 0, 200001)
        thread.join()
        t.note("same", t.kept.pop() == data)
        t.do("past the end", os.sendfile, client.fileno(), file.fileno(), 300000, 10)
        t.do("part", os.sendfile, client.fileno(), file.fileno(), 200000, 10)
        t.do("recv", server.recv, 10)
        seen = t.catch(signal.SIGPIPE)
        client.shutdown(socket.SHUT_WR)
        t.do("after shutdown", os.sendfile, client.fileno(), file.fileno(), 0, 10)
        t.note("signals", seen)
        fresh = t.socket()
        t.do("not connected", os.sendfile, fresh.fileno(), file.fileno(), 0, 10)
        client, server = small(t)
        client.setblocking(False)
        total = filled(t, client)
        t.do("no room", os.sendfile, client.fileno(), file.fileno(), 0, 10)
        t.note("from a socket", type(t.do("sendfile", os.sendfile, file.fileno(), server.fileno(),
                                          None, 10)).__name__)
        t.note("total", total > 0)


def splice_into(t):
    client, server = t.pair()
    there, here = os.pipe()
    data = pattern(60000)
    os.write(here, data)
    t.do("splice", os.splice, there, client.fileno(), 60000)
    t.do("same", lambda: read_exactly(server, 60000) == data)
    t.do("empty pipe", os.splice, there, client.fileno(), 10, None, None, 2)
    os.write(here, b"more")
    t.do("announced", os.splice, there, client.fileno(), 4, None, None, 4)
    t.do("recv", server.recv, 10)
    t.do("with an offset", os.splice, there, client.fileno(), 10, None, 0)
    client.shutdown(socket.SHUT_WR)
    os.write(here, b"late")
    seen = t.catch(signal.SIGPIPE)
    t.do("after shutdown", os.splice, there, client.fileno(), 4)
    t.note("signals", seen)
    t.do("vmsplice and splice", lambda: os.splice(there, t.socket().fileno(), 4))


def splice_from(t):
    client, server = t.pair()
    there, here = os.pipe()
    data = pattern(50000)
    client.sendall(data)
    t.arrived(server, 50000)
    total = b""
    while len(total) < 50000:
        got = os.splice(server.fileno(), here, 50000 - len(total))
        total += os.read(there, got)
    t.note("same", total == data)
    server.setblocking(False)
    t.do("nothing there, nonblocking", os.splice, server.fileno(), here, 10)
    server.setblocking(True)
    t.soon(client.send, b"late")
    t.timed("waiting", 0, 5, os.splice, server.fileno(), here, 10)
    t.do("read", os.read, there, 10)
    client.send(b"tail")
    client.close()
    t.poll("end", server, 0x2001)
    t.do("the rest", os.splice, server.fileno(), here, 100)
    t.do("the end", os.splice, server.fileno(), here, 100)
    t.do("not connected", os.splice, t.socket().fileno(), here, 100)
    server.setsockopt(SOL, 20, limit(0.2))
    client, server = t.pair()
    server.setsockopt(SOL, 20, limit(0.3))
    t.timed("with a limit", 0.3, 3, os.splice, server.fileno(), here, 10)
    t.soon(client.shutdown, socket.SHUT_WR)
    server.setsockopt(SOL, 20, limit(0))
    t.timed("the end comes", 0, 3, os.splice, server.fileno(), here, 10)


def completions(sock):
    """What has been completed: ranges, kind, whether copied."""
    found = []
    while True:
        try:
            data, control, flags, _ = sock.recvmsg(100, 512, raw.ERRQUEUE | raw.DONTWAIT)
        except BlockingIOError:
            return found
        for level, kind, content in control:
            code, origin, what, how, _, first, last = struct.unpack_from("IBBBBII", content)
            found.append((data, hex(flags), level, kind, code, origin, what,
                          "completed" if how in (0, 1) else how,
                          first, last, len(content)))


def zerocopy(t):
    client, server = t.pair()
    t.do("not asked for", client.send, b"plain", raw.ZEROCOPY)
    t.until(lambda: False, 0.2)
    t.note("no completion", completions(client))
    t.do("asked for", client.setsockopt, SOL, SO_ZEROCOPY, 1)
    t.do("read", client.getsockopt, SOL, SO_ZEROCOPY)
    t.do("bad value", client.setsockopt, SOL, SO_ZEROCOPY, 5)
    data = mmap.mmap(-1, 100000)
    data.write(pattern(100000))
    thread = t.soon(lambda: t.kept.append(read_exactly(server, 300005)), after=0.1)
    done = []

    def all_of(last):
        done.extend(completions(client))
        return done and done[-1][-2] >= last
    for number in range(3):
        t.do("send", client.send, data, raw.ZEROCOPY)
    thread.join()
    t.until(lambda: all_of(2))
    t.note("ranges", sorted({n for one in done for n in range(one[-3], one[-2] + 1)}))
    t.note("what they say", sorted({one[:7] + one[-1:] for one in done}))
    t.note("same", t.kept.pop()[5:] == bytes(data) * 3)
    t.do("without the flag", client.send, b"x")
    t.do("the same by sendmsg", client.sendmsg, [b"ab", b"cd"], [], raw.ZEROCOPY)
    done.clear()
    t.until(lambda: all_of(3))
    t.note("number", [one[-3:-1] for one in done])
    server.recv(5, raw.WAITALL)
    client.send(b"y", raw.ZEROCOPY)
    server.recv(1)
    t.poll("poll tells", client, 8)
    t.note("drained", len(completions(client)))
    t.poll("poll afterwards", client)
    t.do("send of nothing", client.send, b"", raw.ZEROCOPY)
    fresh = t.socket()
    t.do("on a fresh one", fresh.setsockopt, SOL, SO_ZEROCOPY, 1)


def zerocopy_over_ipv6(t):
    client, server = t.pair(family=6)
    client.setsockopt(SOL, SO_ZEROCOPY, 1)
    t.do("send", client.send, b"hello", raw.ZEROCOPY)
    t.do("recv", read_exactly, server, 5)
    done = []
    t.until(lambda: done.extend(completions(client)) or done)
    t.note("what it says", [one[:7] for one in done])


def control_messages(t):
    client, server = t.pair()
    t.do("time stamps wanted", client.sendmsg, [b"a"], [(SOL, 37, struct.pack("I", 2))])
    t.do("mark", client.sendmsg, [b"b"], [(SOL, 36, struct.pack("I", 5))])
    t.do("of the IP level", client.sendmsg, [b"c"], [(socket.IPPROTO_IP, 1, struct.pack("i", 16))])
    t.do("descriptors", client.sendmsg, [b"d"], [(SOL, socket.SCM_RIGHTS, array.array("i", [0]))])
    t.do("unknown", client.sendmsg, [b"e"], [(SOL, 999, b"abcd")])
    t.do("short", raw.sendmsg, client, [(raw.buffer(b"f"), 1)], 0, raw.buffer(bytes(3)))
    t.do("bad length", raw.sendmsg, client, [(raw.buffer(b"g"), 1)], 0,
         raw.buffer(struct.pack("Qii", 1000, SOL, 36)))
    t.settled(server)
    t.do("recv", server.recv, 20, raw.DONTWAIT)


def held_back(t):
    """Small data, corked and not, arrives in order and at once when let go."""
    client, server = t.pair()
    client.setsockopt(TCP, socket.TCP_CORK, 1)
    client.send(b"a")
    client.send(b"b")
    client.setsockopt(TCP, socket.TCP_CORK, 0)
    t.do("recv", raw.recv, server, 2, raw.WAITALL)
    client.send(b"c", raw.MORE)
    client.shutdown(socket.SHUT_WR)
    t.do("shutdown lets go", server.recv, 10)
    t.do("end", server.recv, 10)


SCRIPTS = [
    nothing_at_all, scatter_and_gather, many_messages, more_and_records, to_an_address,
    not_connected, after_shutdown, to_who_has_closed, to_who_closes_meanwhile, to_who_has_reset, bad_pointers,
    memory_that_ends, no_room, part_of_it, signals_in_other_calls, cut_off_while_sending, shut_while_sending,
    blocking_sends_all, queues, files_are_sent, splice_into, splice_from, zerocopy,
    zerocopy_over_ipv6,
    control_messages, held_back,
]
