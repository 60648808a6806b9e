# SPDX-License-Identifier: GPL-2.0
"""poll(), select(), epoll and SIGIO."""

import fcntl
import os
import select
import signal
import socket
import struct

from smcsock import read_exactly

from . import raw
from .harness import bits
from .sending import filled, small

SOL = socket.SOL_SOCKET
F_SETSIG = 10


def bits_of_states(t):
    t.poll("fresh", t.socket())
    t.poll("bound", t.bound())
    client, server = t.pair()
    t.poll("connected", client)
    client.send(b"x")
    t.poll("data", server, 1)
    server.recv(1)
    t.poll("no data", server)
    client.shutdown(socket.SHUT_WR)
    t.poll("shut for writing", client)
    t.poll("peer shut", server, 0x2001)
    server.shutdown(socket.SHUT_WR)
    t.poll("both", server, 16)
    t.poll("both, client", client, 16)
    client, server = t.pair()
    client.shutdown(socket.SHUT_RD)
    t.poll("shut for reading", client)
    t.poll("its peer", server)
    client.shutdown(socket.SHUT_RDWR)
    t.poll("shut for both", client)
    t.poll("its peer", server, 0x2001)
    client, server = t.pair()
    client.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    t.poll("reset", server, 16)
    t.error_of("SO_ERROR", server)
    t.poll("reset, told", server)


def only_what_is_asked(t):
    client, server = t.pair()
    client.send(b"x")
    client.shutdown(socket.SHUT_WR)
    t.poll("all", server, 0x2001)
    for mask in 1, 4, 2, 0x2000, 0, 64, 256:
        t.poll(f"asked for {bits(mask)}", server, 0, 0, mask)


def edge(t):
    """Edge triggered: each arrival once."""
    client, server = t.pair()
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
    fd = server.fileno()

    def look(label, seconds=0.2):
        t.note(label, [(bits(event), number == fd) for number, event in epoll.poll(seconds)])
    look("at first")
    look("again")
    client.send(b"abc")
    t.arrived(server, 3)
    look("data", 10)
    look("the same data")
    server.recv(1)
    look("partly read")
    client.send(b"d")
    t.arrived(server, 3)
    look("more data", 10)
    server.recv(10)
    look("all read")
    client.shutdown(socket.SHUT_WR)
    t.poll("end", server, 0x2001)
    look("end", 10)
    look("the same end")
    server.recv(1)
    look("end read")


def edge_of_writing(t):
    """Edge triggered, with windows that fill: there is an event when there is room again."""
    client, server = small(t)
    epoll = select.epoll()
    epoll.register(client, select.EPOLLOUT | select.EPOLLET)
    t.note("at first", len(epoll.poll(0.2)))
    total = filled(t, client)
    epoll.poll(0)
    t.note("full", len(epoll.poll(0.1)))
    read_exactly(server, total)
    t.note("room", len(epoll.poll(10)))
    t.poll("poll", client, 4)
    t.do("send", client.send, b"x")


def everything_by_edges(t):
    """A transfer that is driven by edges alone."""
    client, server = small(t)
    epoll = select.epoll()
    for sock in client, server:
        sock.setblocking(False)
    epoll.register(client, select.EPOLLOUT | select.EPOLLET)
    epoll.register(server, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    left, got, ended = 400000, 0, False
    while not ended:
        events = epoll.poll(5)
        if not events:
            break
        for number, _ in events:
            try:
                while number == client.fileno() and left:
                    left -= client.send(b"x" * min(left, 5000))
                    if not left:
                        client.shutdown(socket.SHUT_WR)
                while number == server.fileno() and not ended:
                    data = server.recv(3000)
                    got += len(data)
                    ended = not data
            except BlockingIOError:
                pass
    t.note("left, got, ended", (left, got, ended))


def everything_by_levels(t):
    """The same with poll(), a byte read at a time now and then."""
    client, server = small(t)
    for sock in client, server:
        sock.setblocking(False)
    poll = select.poll()
    poll.register(client, select.POLLOUT)
    poll.register(server, select.POLLIN)
    left, got, turns = 100000, 0, 0
    while got < 100000:
        events = poll.poll(5000)
        if not events:
            break
        for number, _ in events:
            if number == client.fileno():
                left -= client.send(b"x" * min(left, 3000))
                if not left:
                    poll.unregister(client)
            else:
                turns += 1
                got += len(server.recv(1 if turns % 7 == 0 else 3000))
    t.note("left, got", (left, got))


def once(t):
    client, server = t.pair()
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN | select.EPOLLONESHOT)
    client.send(b"x")
    t.note("first", len(epoll.poll(10)))
    t.note("no more", len(epoll.poll(0.1)))
    epoll.modify(server, select.EPOLLIN | select.EPOLLONESHOT)
    t.note("again", len(epoll.poll(10)))
    other = select.epoll()
    t.do("exclusive", other.register, server, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    t.note("exclusive event", len(other.poll(10)))


def nested(t):
    client, server = t.pair()
    inner, outer = select.epoll(), select.epoll()
    inner.register(server, select.EPOLLIN)
    outer.register(inner, select.EPOLLIN)
    t.note("nothing", len(outer.poll(0.1)))
    client.send(b"x")
    t.note("data", len(outer.poll(10)))
    t.do("twice", inner.register, server, select.EPOLLIN)


def waking(t):
    """Who waits already is woken."""
    for name, act, mask in (("data", lambda c, s: c.send(b"x"), select.POLLIN),
                            ("urgent", lambda c, s: c.send(b"x", raw.OOB), select.POLLPRI),
                            ("end", lambda c, s: c.shutdown(socket.SHUT_WR), 0x2000),
                            ("close", lambda c, s: c.close(), select.POLLIN),
                            ("own shutdown", lambda c, s: s.shutdown(socket.SHUT_RD),
                             select.POLLIN),
                            ("both ends", lambda c, s: (c.shutdown(socket.SHUT_WR),
                                                        s.shutdown(socket.SHUT_WR)), 0)):
        client, server = t.pair()
        poll = select.poll()
        poll.register(server, mask)
        t.soon(act, client, server, after=0.2)
        t.timed(name, 0, 3, lambda: [bits(event) for _, event in poll.poll(4000)])


def select_and_limits(t):
    client, server = t.pair()
    t.note("nothing", select.select([server], [], [], 0.1)[0] == [])
    t.note("writable", select.select([], [server], [], 0)[1] == [server])
    t.soon(client.send, b"x")
    t.timed("readable", 0, 3, lambda: select.select([server], [], [], 4)[0] == [server])
    fresh = t.socket()
    got = select.select([fresh], [fresh], [fresh], 0)
    t.note("fresh", [bool(part) for part in got])
    seen = t.signal_soon(signal.SIGALRM)
    poll = raw.buffer(struct.pack("ihh", client.fileno(), 1, 0))
    t.do("poll and a signal", raw.call, "poll", poll, 1, 30000)
    t.note("signals", seen)


def sigio(t):
    client, server = t.pair()
    seen = t.catch(signal.SIGIO)
    fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(server, fcntl.F_SETFL, fcntl.fcntl(server, fcntl.F_GETFL) | os.O_ASYNC)
    t.until(lambda: False, 0.1)
    seen.clear()
    client.send(b"x")
    t.note("data", t.until(lambda: seen))
    server.recv(1)
    t.until(lambda: False, 0.1)
    seen.clear()
    client.shutdown(socket.SHUT_WR)
    t.note("end", t.until(lambda: seen))
    t.until(lambda: False, 0.1)
    fcntl.fcntl(server, fcntl.F_SETFL, fcntl.fcntl(server, fcntl.F_GETFL) & ~os.O_ASYNC)
    seen.clear()
    server.close()
    t.note("no more", seen)


def asks_for_signals(sock):
    """F_SETOWN and O_ASYNC"""
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETFL, fcntl.fcntl(sock, fcntl.F_GETFL) | os.O_ASYNC)


def sigio_from_before_connect(t):
    """Who asks before connect() gets signals for its end, for data, room and the peer's end."""
    seen = t.catch(signal.SIGIO)
    listening = t.listener()
    sock = t.socket()
    sock.setblocking(False)
    asks_for_signals(sock)
    t.until(lambda: False, 0.1)
    seen.clear()
    t.do("connect", sock.connect, listening.getsockname())
    t.note("connected", t.until(lambda: seen))
    t.has(sock, 4)
    server, _ = listening.accept()
    t.kept.append(server)
    t.check(sock, server)
    t.until(lambda: False, 0.3)
    seen.clear()
    server.send(b"x")
    t.note("data", t.until(lambda: seen))
    t.arrived(sock, 1)
    t.do("recv", sock.recv, 10)
    t.until(lambda: False, 0.1)
    seen.clear()
    server.shutdown(socket.SHUT_WR)
    t.note("end", t.until(lambda: seen))
    t.poll("poll", sock, 0x2001)
    refused = t.socket()
    refused.setblocking(False)
    asks_for_signals(refused)
    t.until(lambda: False, 0.1)
    seen.clear()
    t.do("connect in vain", refused.connect, (t.host("left"), next(t.ports)))
    t.note("refused", t.until(lambda: seen))
    t.poll("poll", refused, 8)


def sigio_from_before_listen(t):
    """The same for a socket that is to listen; those that it accepts do not take the wish over."""
    seen = t.catch(signal.SIGIO)
    listening = t.bound()
    asks_for_signals(listening)
    listening.listen(4)
    t.until(lambda: False, 0.1)
    seen.clear()
    client = t.socket()
    client.connect(listening.getsockname())
    t.note("to be accepted", t.until(lambda: seen))
    fd = raw.accept4(listening)
    server = socket.socket(fileno=fd)
    t.check(client, server)
    t.note("asked for it", bool(fcntl.fcntl(server, fcntl.F_GETFL) & os.O_ASYNC))
    t.until(lambda: False, 0.3)
    seen.clear()
    client.send(b"x")
    t.arrived(server, 1)
    t.until(lambda: False, 0.2)
    t.note("not asked for", seen)
    asks_for_signals(server)
    t.until(lambda: False, 0.1)
    seen.clear()
    client.send(b"x")
    t.note("asked for", t.until(lambda: seen))


def a_lowered_mark_wakes(t):
    """SO_RCVLOWAT: what is there is enough of a sudden."""
    client, server = t.pair()
    server.setsockopt(SOL, socket.SO_RCVLOWAT, 100)
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN)
    client.send(b"x" * 50)
    t.arrived(server, 50)
    t.note("below", len(epoll.poll(0.3)))
    server.setsockopt(SOL, socket.SO_RCVLOWAT, 1)
    t.note("lowered", len(epoll.poll(10)))
    server.setsockopt(SOL, socket.SO_RCVLOWAT, 100)
    poll = select.poll()
    poll.register(server, select.POLLIN)
    t.soon(server.setsockopt, SOL, socket.SO_RCVLOWAT, 1)
    t.note("lowered while poll waits", len(poll.poll(10000)))


def little_room_is_no_room(t):
    """A program that writes as much as it likes where it was told of room is not to wait."""
    client, server = small(t)
    total = filled(t, client)
    some = total // 12
    read_exactly(server, some)
    t.until(lambda: False, 0.5)
    t.poll("a little was read", client)
    read_exactly(server, total - some)
    t.poll("all was read", client, 4)


def sigio_for_room_after_a_part(t):
    """What is taken of a call may be all that goes: that there is room for the rest is told by a signal."""
    client, server = small(t)
    seen = t.catch(signal.SIGIO)
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    client.setblocking(False)
    sent = client.send(bytes(1 << 20))
    # Once: there may be room as soon as something moves on to where the peer reads.
    read_exactly(server, sent)
    t.note("room", t.until(lambda: seen))


def sigio_for_room(t):
    client, server = small(t)
    seen = t.catch(signal.SIGIO)
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    total = filled(t, client)
    t.until(lambda: False, 0.1)
    seen.clear()
    read_exactly(server, total)
    t.note("room", t.until(lambda: seen))


def signal_with_a_reason(t):
    """F_SETSIG: the signal tells descriptor and events."""
    client, server = t.pair()
    number = signal.SIGRTMIN + 3
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    fcntl.fcntl(server, F_SETSIG, number)
    fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(server, fcntl.F_SETFL, fcntl.fcntl(server, fcntl.F_GETFL) | os.O_ASYNC)
    client.send(b"x")
    found = None
    for _ in range(5):
        found = signal.sigtimedwait([number], 3)
        if found is None or found.si_band & 1:
            break
    t.note("data", found and (bits(found.si_band), found.si_code))
    client.close()
    found = signal.sigtimedwait([number], 3)
    bands = 0
    while found is not None:
        bands |= found.si_band
        found = signal.sigtimedwait([number], 0.3)
    t.note("end", bits(bands))


def connecting_by_epoll(t):
    listening = t.listener()
    sock = t.socket()
    sock.setblocking(False)
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    t.note("fresh", [bits(event) for _, event in epoll.poll(0.1)])
    t.do("connect", sock.connect, listening.getsockname())
    t.note("connected", [bits(event) for _, event in epoll.poll(10)])
    t.error_of("SO_ERROR", sock)
    refusing = t.socket()
    refusing.setblocking(False)
    epoll.unregister(sock)
    epoll.register(refusing, select.EPOLLOUT)
    t.do("connect", refusing.connect, (t.host("left"), next(t.ports)))
    t.note("refused", [bits(event) for _, event in epoll.poll(10)])


SCRIPTS = [
    bits_of_states, only_what_is_asked, edge, edge_of_writing, everything_by_edges,
    everything_by_levels, once, nested, waking, select_and_limits, sigio, sigio_from_before_connect,
    sigio_from_before_listen, sigio_for_room, sigio_for_room_after_a_part, a_lowered_mark_wakes, little_room_is_no_room,
    signal_with_a_reason, connecting_by_epoll,
]
