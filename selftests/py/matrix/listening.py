# SPDX-License-Identifier: GPL-2.0
"""listen() and accept()."""

import fcntl
import os
import select
import socket
import struct

import nl
import suite

from . import raw
from .connecting import limit
from .harness import SIOCOUTQ, bits, pattern

SOL, TCP = socket.SOL_SOCKET, socket.IPPROTO_TCP
RESET = struct.pack("ii", 1, 0)


def program(*code):
    """struct sock_fprog, and what it points to."""
    filters = raw.buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    return struct.pack("HxxxxxxQ", len(code), raw.pointer(filters)), filters


def a_program_chooses_the_listener(t):
    """One of those that share a port. It may come before the address."""
    port = next(t.ports)
    first_of_all, _kept = program((6, 0, 0, 0))
    sockets = []
    for _ in range(2):
        sock = t.socket("left")
        sock.setsockopt(SOL, socket.SO_REUSEPORT, 1)
        if not sockets:
            t.do("attach", sock.setsockopt, SOL, 51, first_of_all)
        sock.bind((t.host("left"), port))
        sock.listen(30)
        sock.setblocking(False)
        sockets.append(sock)
    for _ in range(12):
        t.socket().connect((t.host("left"), port))
    t.until(lambda: False, 0.3)
    for number, sock in enumerate(sockets):
        count = 0
        while t.has(sock, 1, 0.3):
            sock.accept()
            count += 1
        t.note(f"connections of {number}", count)
    t.do("detach", sockets[0].setsockopt, SOL, 68, 1)
    t.do("again", sockets[0].setsockopt, SOL, 68, 1)
    t.do("without sharing", t.socket().setsockopt, SOL, 51, first_of_all)


def a_filter_of_an_ordinary_user(t):
    client, _ = t.pair()
    everything, _kept = program((6, 0, 0, 0xffff))
    t.do("as root", client.setsockopt, SOL, 26, everything)
    os.setresuid(65534, 65534, 65534)
    t.do("as nobody", client.setsockopt, SOL, 26, everything)


def syns_are_saved_or_not(t):
    listening = t.listener()
    for value in 1, 5, 0, -1, 2:
        t.do(f"TCP_SAVE_SYN {value}", listening.setsockopt, TCP, 27, value)
        t.note("is", listening.getsockopt(TCP, 27))


def accept_flags(t):
    listening = t.listener()
    for flags in 0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC, \
            socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC:
        client = t.socket()
        client.connect(listening.getsockname())
        fd = raw.accept4(listening, flags)
        t.note("nonblocking", bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK))
        t.note("flags", hex(fcntl.fcntl(fd, fcntl.F_GETFL)))
        t.note("close on exec", fcntl.fcntl(fd, fcntl.F_GETFD))
    t.do("no such flag", raw.accept4, listening, 1)
    t.socket().connect(listening.getsockname())
    t.do("bad pointer for the address", raw.call, "accept4", listening.fileno(),
         raw.ctypes.c_void_p(raw.BAD), raw.ctypes.c_void_p(raw.BAD), socket.SOCK_NONBLOCK)


def accept_gives_the_address(t):
    listening = t.listener()
    client = t.socket()
    client.connect(listening.getsockname())
    room, length = raw.buffer(64), raw.ctypes.c_int(64)
    fd = raw.call("accept4", listening.fileno(), room, raw.ctypes.byref(length), 0)
    t.note("length", length.value)
    t.note("family", struct.unpack("H", room.raw[:2])[0])
    t.note("same as the client's", socket.inet_ntoa(room.raw[4:8]) == client.getsockname()[0])
    t.note("port", struct.unpack(">H", room.raw[2:4])[0] == client.getsockname()[1])
    os.close(fd)


def accept_without_connection(t):
    listening = t.listener()
    listening.setblocking(False)
    t.do("nonblocking", raw.accept4, listening)
    listening.setblocking(True)
    listening.setsockopt(SOL, 20, limit(0.3))
    t.timed("with a limit", 0.3, 3, raw.accept4, listening)
    listening.setsockopt(SOL, 20, limit(0))
    seen = t.signal_soon()
    t.do("with a signal", raw.accept4, listening)
    t.note("signals", seen)
    seen = t.signal_soon(restart=True)
    client = t.socket()
    t.soon(client.connect, listening.getsockname(), after=0.8)
    t.timed("restarted", 0, 5, lambda: raw.accept4(listening) > 2)
    t.note("signals", seen)
    listening.setsockopt(SOL, 20, limit(20))
    seen = t.signal_soon(restart=True)
    t.do("with a limit, restarted", raw.accept4, listening)


def accept_on_others(t):
    t.do("fresh", raw.accept4, t.socket())
    t.do("bound", raw.accept4, t.bound())
    client, server = t.pair()
    t.do("client", raw.accept4, client)
    t.do("server", raw.accept4, server)
    client.close()
    server.close()


def connecting(t, listening, count):
    """So many sockets that have begun to connect."""
    clients = [t.socket() for _ in range(count)]
    for client in clients:
        client.setblocking(False)
        try:
            client.connect(listening.getsockname())
        except BlockingIOError:
            pass
    return clients


def backlog(t):
    """How many connect before somebody accepts, and that all of these are accepted."""
    for size in 0, 2:
        listening = t.listener(backlog=size)
        clients = connecting(t, listening, size + 1)
        for client in clients:
            t.poll("connected", client, 4)
            client.send(b"hello")
        for client in clients:
            fd = raw.accept4(listening)
            t.note("data", os.read(fd, 10))
        t.poll("poll", listening)


def backlog_overflow(t):
    """Who comes when the queue is full is not refused, and gets its turn."""
    listening = t.listener(backlog=0)
    clients = connecting(t, listening, 2)
    t.until(lambda: False, 0.5)
    for client in clients:
        t.error_of("SO_ERROR", client)
    for _ in clients:
        t.do("accept", lambda: raw.accept4(listening) > 2)
    for client in clients:
        t.poll("poll", client, 4)


def backlog_full(t):
    """Who comes when the queue is full waits for a place, for longer than a rendezvous may take; who
    has the last one is connected, and stays so."""
    listening = t.listener(backlog=2)
    clients = [t.socket() for _ in range(3)]
    for client in clients:
        t.do("connect", client.connect, listening.getsockname())
        # What the server still has to do for it is done: it has its place.
        t.until(lambda: False, 0.5)
    clients += connecting(t, listening, 1)
    t.until(lambda: False, 7)
    for client in clients:
        t.poll("poll", client)
        t.error_of("SO_ERROR", client)
    # What order they come in is another matter: they were not far apart.
    names = [client.getsockname() for client in clients]
    served = []
    for _ in range(4):
        fd = raw.accept4(listening)
        with socket.socket(fileno=os.dup(fd)) as server:
            number = names.index(server.getpeername())
        served.append(number)
        t.has(clients[number], 4, 10)
        t.do("send", clients[number].send, pattern(5, number))
        t.note("data", os.read(fd, 10) == pattern(5, number))
    t.note("served", sorted(served))


def listen_again(t):
    listening = t.listener(backlog=1)
    t.do("listen", listening.listen, 5)
    t.do("listen, negative", listening.listen, -1)
    t.do("listen, 0", listening.listen, 0)
    clients = [t.socket() for _ in range(1)]
    for client in clients:
        t.do("connect", client.connect, listening.getsockname())
    t.do("accept", lambda: raw.accept4(listening) > 2)
    t.note("accepting", listening.getsockopt(SOL, socket.SO_ACCEPTCONN))


def a_listener_is_no_connection(t):
    listening = t.listener()
    t.do("send", listening.send, b"x", raw.NOSIGNAL)
    t.do("recv", listening.recv, 1)
    t.do("recv, nothing", raw.recv, listening, 0)
    t.do("connect", listening.connect, (t.host("left"), 9))
    t.name("peer", listening.getpeername)
    t.do("bind", listening.bind, ("0.0.0.0", 0))
    for request in 0x541B, 0x5411, 0x894B, 0x8905:
        t.do(f"ioctl {request:#x}", t.number, listening, request)
    t.poll("poll", listening)
    t.error_of("SO_ERROR", listening)
    t.do("shutdown of writing", listening.shutdown, socket.SHUT_WR)
    t.poll("poll", listening)
    client = t.socket()
    t.do("connect to it", client.connect, listening.getsockname())
    t.do("accept", lambda: raw.accept4(listening) > 2)


def a_listener_is_shut(t):
    for how in socket.SHUT_RD, socket.SHUT_RDWR:
        listening = t.listener()
        waiting = t.socket()
        waiting.connect(listening.getsockname())
        t.do("shutdown", listening.shutdown, how)
        t.poll("poll", listening)
        t.do("accept", raw.accept4, listening)
        t.poll("poll of who waits", waiting, 16)
        t.do("recv of who waits", waiting.recv, 1)
        t.do("connect", t.socket().connect, listening.getsockname())
        t.name("own", listening.getsockname)
        t.do("again", listening.shutdown, how)
        t.do("listen", listening.listen, 1)
        t.do("connect", t.socket().connect, listening.getsockname())


def shutdown_wakes_accept(t):
    listening = t.listener()
    t.soon(listening.shutdown, socket.SHUT_RD)
    t.timed("accept", 0, 5, raw.accept4, listening)


def a_listener_closes(t):
    listening = t.listener()
    waiting = t.socket()
    waiting.connect(listening.getsockname())
    waiting.send(b"hello")
    addr = listening.getsockname()
    listening.close()
    t.poll("poll of who waits", waiting, 16)
    t.do("recv of who waits", waiting.recv, 1)
    t.do("connect", t.socket().connect, addr)


def accepted_after_its_end(t):
    """What became of a connection before somebody accepted it."""
    listening = t.listener()
    client = t.socket()
    client.connect(listening.getsockname())
    client.send(b"hello")
    client.close()
    t.poll("poll", listening, 1)
    server, _ = listening.accept()
    t.poll("poll of it", server, 0x2001)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)
    client = t.socket()
    client.connect(listening.getsockname())
    client.send(b"hello")
    t.has(listening, 1)
    t.until(lambda: t.number(client, SIOCOUTQ) == 0)
    t.until(lambda: False, 0.8)
    client.setsockopt(SOL, socket.SO_LINGER, RESET)
    client.close()
    t.poll("poll", listening, 1)
    server, _ = listening.accept()
    t.poll("poll of it", server, 16)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)
    t.name("peer", server.getpeername)


def each_is_accepted_once(t):
    """In which order does not matter: ours come as their rendezvous end."""
    listening = t.listener()
    for number in range(4):
        client = t.socket()
        client.connect(listening.getsockname())
        client.send(bytes([65 + number]))
    got = []
    for number in range(4):
        server, _ = listening.accept()
        got.append(server.recv(1))
    t.note("data", sorted(got))


def children_inherit(t):
    def prepare(sock):
        sock.setsockopt(TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(SOL, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(SOL, socket.SO_RCVLOWAT, 7)
        sock.setsockopt(SOL, 20, limit(3))
        sock.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 4))
        sock.setsockopt(TCP, 36, 1)
        sock.setsockopt(SOL, 29, 1)
        sock.setblocking(False)
    listening = t.listener(prepare=prepare)
    listening.setblocking(True)
    client, server = t.pair(listening=listening)
    for level, name in (TCP, socket.TCP_NODELAY), (SOL, socket.SO_KEEPALIVE), \
            (SOL, socket.SO_RCVLOWAT), (SOL, 20), (SOL, socket.SO_LINGER), (TCP, 36), (SOL, 29), \
            (SOL, socket.SO_ACCEPTCONN), (SOL, socket.SO_TYPE), (SOL, 39):
        t.do(f"option {level} {name}", server.getsockopt, level, name, 16)
    client.close()


def events_of_a_listener(t):
    listening = t.listener()
    for flags in 0, select.EPOLLET:
        epoll = select.epoll()
        epoll.register(listening, select.EPOLLIN | flags)
        t.note("nothing", epoll.poll(0.1) == [])
        for _ in range(2):
            t.socket().connect(listening.getsockname())
        # Both can be accepted by then.
        t.until(lambda: False, 1)
        t.note("first look", len(epoll.poll(3)))
        t.note("second look", len(epoll.poll(0.1)))
        raw.accept4(listening)
        t.note("after one", len(epoll.poll(0.1)))
        raw.accept4(listening)
        t.note("after both", len(epoll.poll(0.1)))
        t.socket().connect(listening.getsockname())
        t.note("one more", len(epoll.poll(3)))
        raw.accept4(listening)


def signals_of_a_listener(t):
    import signal
    seen = t.catch(signal.SIGIO)
    listening = t.listener()
    fcntl.fcntl(listening, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(listening, fcntl.F_SETFL, os.O_ASYNC)
    t.socket().connect(listening.getsockname())
    t.note("came", t.until(lambda: seen))
    t.note("accept", raw.accept4(listening) > 2)


def deferred(t):
    def prepare(sock):
        sock.setsockopt(TCP, socket.TCP_DEFER_ACCEPT, 5)
    listening = t.listener(prepare=prepare)
    client = t.socket()
    t.do("connect", client.connect, listening.getsockname())
    t.until(lambda: False, 0.3)
    t.poll("poll before data", listening)
    client.send(b"hello")
    t.poll("poll", listening, 1)
    server, _ = listening.accept()
    t.do("recv", server.recv, 10)


def the_order_of_accept(t):
    """First come, first served, whoever closes, sends or goes meanwhile."""
    listening = t.listener()
    clients = []
    for number in range(6):
        client = t.socket()
        client.connect(listening.getsockname())
        client.send(bytes([number]))
        clients.append(client)
        # What the server still has to do for it is done.
        t.until(lambda: False, 0.6)
    clients[1].shutdown(socket.SHUT_WR)
    clients[4].send(b"more")
    t.until(lambda: False, 0.2)
    for client in clients:
        server, addr = listening.accept()
        t.note("the next one", addr == client.getsockname())
        t.note("its data", server.recv(1))
    t.poll("no more", listening)


def the_order_of_accept_and_resets(t):
    """Who has gone keeps its place; what it sent can be read."""
    listening = t.listener()
    for number in range(3):
        client = t.socket()
        client.connect(listening.getsockname())
        client.send(bytes([number]))
        t.until(lambda: t.number(client, SIOCOUTQ) == 0)
        # What the server still has to do for it is done.
        t.until(lambda: False, 0.8)
        if number == 1:
            client.close()
            t.until(lambda: False, 0.5)
    for _ in range(3):
        server, _ = listening.accept()
        t.do("data", server.recv, 5)


def reset_before_accept(t):
    """What has become of a connection that nobody had yet is told by its socket."""
    listening = t.listener()
    client = t.socket()
    client.setsockopt(SOL, socket.SO_LINGER, RESET)
    client.connect(listening.getsockname())
    # What the server still has to do for it is done.
    t.until(lambda: False, 0.8)
    client.close()
    t.until(lambda: False, 0.5)
    server, _ = listening.accept()
    t.poll("poll", server, 16)
    t.error_of("SO_ERROR", server)
    t.error_of("again", server)
    t.poll("poll", server)
    t.do("recv", server.recv, 5)


def reset_at_once(t):
    """The same of clients of TCP that go when nobody has taken them in yet, as far as that can be had."""
    listening, told = t.listener(backlog=50), set()
    for _ in range(30):
        with nl.inside("right"), socket.socket() as client:
            client.setsockopt(SOL, socket.SO_LINGER, RESET)
            client.connect(listening.getsockname())
    for _ in range(30):
        server, _ = listening.accept()
        t.has(server, 16)
        told.add(server.getsockopt(SOL, socket.SO_ERROR))
    t.note("errors", sorted(told))


def ended_from_outside(t):
    """An administrator ends the listener: whoever waits for connections learns of it."""
    def end(listening):
        suite.run("ip", "netns", "exec", "left", "ss", "-K", "state", "listening",
                  f"sport = :{listening.getsockname()[1]}")
    listening = t.listener()
    t.soon(end, listening)
    t.do("accept", listening.accept)
    t.poll("poll", listening, 16)
    t.error_of("SO_ERROR", listening)
    t.poll("poll", listening)
    t.do("again", listening.accept)
    polled = t.listener()
    poll = select.poll()
    poll.register(polled, select.POLLIN)
    t.soon(end, polled)
    t.note("woken", [bits(found) for _, found in poll.poll(10000)])
    t.do("accept", polled.accept)


SCRIPTS = [
    a_program_chooses_the_listener, a_filter_of_an_ordinary_user, syns_are_saved_or_not,
    accept_flags, accept_gives_the_address, accept_without_connection, accept_on_others, backlog,
    backlog_overflow, backlog_full, listen_again, a_listener_is_no_connection, a_listener_is_shut,
    shutdown_wakes_accept, a_listener_closes, accepted_after_its_end, each_is_accepted_once,
    children_inherit, events_of_a_listener, signals_of_a_listener, deferred, the_order_of_accept,
    the_order_of_accept_and_resets, reset_before_accept, reset_at_once, ended_from_outside,
]
