# SPDX-License-Identifier: GPL-2.0
"""connect(), bind() and the names of sockets."""

import errno
import select
import socket
import struct
from collections import Counter

import nl

from . import raw
from .harness import ALL_BITS, bits, shown

SOL, TCP = socket.SOL_SOCKET, socket.IPPROTO_TCP
UNSPEC = struct.pack("H14x", socket.AF_UNSPEC)
SO_SNDTIMEO, SO_PEEK_OFF = 21, 42
# Where packets of the client's host are lost: there is a neighbour by that address, for its card.
NOWHERE, UNREACHABLE, PROHIBITED, FAR = "10.79.{}.77", "10.80.0.1", "10.80.1.1", "10.81.0.1"


def limit(seconds):
    """A time limit of a socket."""
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def nonblocking(sock):
    """Makes it so."""
    sock.setblocking(False)
    return sock


def code(call, *args):
    """The error of a call as connect_ex() gives it."""
    number = call(*args)
    return errno.errorcode.get(number, number)


def result(call, *args):
    """What a call gives, or how it fails, as text."""
    try:
        return shown(call(*args))
    except OSError as error:
        return shown(error)


def connect_raw(sock, addr):
    """connect() to an address in bytes."""
    return raw.call("connect", sock.fileno(), raw.buffer(addr), len(addr))


def inet(host, port):
    """struct sockaddr_in"""
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) \
        + bytes(8)


def nowhere(t):
    """An address that never answers."""
    return NOWHERE.format(t.net), 9


def refused(t):
    sock = t.socket()
    addr = t.host("left"), next(t.ports)
    t.do("connect", sock.connect, addr)
    t.error_of("SO_ERROR", sock)
    t.poll("poll", sock)
    t.do("connect", sock.connect, addr)
    t.name("peer", sock.getpeername)
    listening = t.listener()
    t.do("connect to a listener", sock.connect, listening.getsockname())
    t.do("send", sock.send, b"x")


def refused_without_blocking(t):
    sock = nonblocking(t.socket())
    addr = t.host("left"), next(t.ports)
    t.do("connect", sock.connect, addr)
    t.poll("poll", sock, 8)
    t.error_of("SO_ERROR", sock)
    t.error_of("SO_ERROR", sock)
    t.poll("poll after SO_ERROR", sock)
    t.do("connect tells", sock.connect, addr)
    t.poll("poll", sock)
    t.do("connect", sock.connect, addr)
    t.poll("poll", sock, 8)
    t.do("connect tells the error", sock.connect, addr)
    t.poll("poll", sock)
    t.do("connect", sock.connect, addr)
    t.poll("poll", sock, 8)
    t.do("send tells the error", sock.send, b"x", raw.NOSIGNAL)
    t.do("send", sock.send, b"x", raw.NOSIGNAL)
    t.do("recv", sock.recv, 1)


def refused_at_once(t):
    """Over the loopback device the answer is there before connect() returns: the next call knows. Mostly: where
    processors are busy it may be left to ksoftirqd, with TCP too."""
    addr, seen = ("127.0.0.1", next(t.ports)), Counter()
    for _ in range(10):
        sock, poll = nonblocking(t.socket()), select.poll()
        poll.register(sock, ALL_BITS)
        seen[(
            *(result(sock.connect, addr) for _ in range(3)),
            result(code, sock.getsockopt, SOL, socket.SO_ERROR),
            *(result(sock.connect, addr) for _ in range(2)),
            bits(dict(poll.poll(0)).get(sock.fileno(), 0)),
            result(sock.send, b"x", raw.NOSIGNAL),
        )] += 1
    t.note("mostly", seen.most_common(1)[0][0])


def refused_told_by_recv(t):
    sock = nonblocking(t.socket())
    t.do("connect", sock.connect, (t.host("left"), next(t.ports)))
    t.poll("poll", sock, 8)
    t.do("recv tells the error", sock.recv, 1)
    t.do("recv", sock.recv, 1)
    t.error_of("SO_ERROR", sock)


def unreachable(t):
    for host in UNREACHABLE, PROHIBITED, "203.0.113.7":
        sock = t.socket()
        t.do("connect to " + host, sock.connect, (host, 9))
        t.error_of("SO_ERROR", sock)
        t.poll("poll", sock)
    # A host on the way says so; what TCP does with that depends on whether it is busy just then.
    t.do("connect to " + FAR, t.socket().connect, (FAR, 9))


def wrong_addresses(t):
    sock = t.socket()
    t.do("of the other family", connect_raw, sock, struct.pack("HHI16xI", socket.AF_INET6, 9, 0, 0))
    t.do("of no family", connect_raw, sock, struct.pack("H14x", 77))
    t.do("too short", connect_raw, sock, inet("127.0.0.1", 9)[:8])
    t.do("one byte", connect_raw, sock, b"\2")
    t.do("broadcast", sock.connect, ("255.255.255.255", 9))
    t.do("multicast", sock.connect, ("224.0.0.1", 9))
    t.do("anything", sock.connect, ("0.0.0.0", 9))
    t.do("port 0", sock.connect, (t.host("left"), 0))
    t.do("bad pointer", raw.call, "connect", sock.fileno(), raw.ctypes.c_void_p(raw.BAD), 16)
    six = t.socket(family=6)
    t.do("IPv4 on IPv6", connect_raw, six, inet("127.0.0.1", 9))
    t.do("short for IPv6", connect_raw, six, struct.pack("H14x", socket.AF_INET6))


def timed_out(t):
    sock = t.socket()
    sock.setsockopt(TCP, socket.TCP_SYNCNT, 1)
    t.timed("connect", 0.9, 9, sock.connect, nowhere(t))
    t.error_of("SO_ERROR", sock)
    t.poll("poll", sock)
    t.do("connect to a listener", sock.connect, t.listener().getsockname())


def connect_takes_as_long_as_allowed(t):
    sock = t.socket()
    sock.setsockopt(SOL, SO_SNDTIMEO, limit(0.3))
    t.timed("connect", 0.3, 3, sock.connect, nowhere(t))
    t.poll("poll", sock)
    t.timed("again", 0, 3, sock.connect, nowhere(t))
    t.do("without blocking", nonblocking(sock).connect, nowhere(t))
    t.error_of("SO_ERROR", sock)


def while_connecting(t):
    sock = nonblocking(t.socket())
    t.do("connect", sock.connect, nowhere(t))
    t.do("again", sock.connect, nowhere(t))
    t.poll("poll", sock)
    t.do("send", sock.send, b"x")
    t.do("recv", sock.recv, 1)
    t.name("own", sock.getsockname)
    t.name("peer", sock.getpeername)
    t.do("bind", sock.bind, ("0.0.0.0", 0))
    t.do("listen", sock.listen, 1)
    t.do("accept", raw.accept4, sock)
    for request in 0x541B, 0x5411, 0x894B, 0x8905:
        t.do(f"ioctl {request:#x}", t.number, sock, request)
    t.do("peek", sock.recv, 1, raw.PEEK)
    t.do("oob", sock.recv, 1, raw.OOB)
    t.do("errqueue", sock.recv, 1, raw.ERRQUEUE)
    t.do("shutdown", sock.shutdown, socket.SHUT_WR)
    t.poll("poll", sock)
    t.error_of("SO_ERROR", sock)
    t.do("connect after shutdown", sock.connect, (t.host("left"), next(t.ports)))


def shut_while_connecting(t):
    for how in socket.SHUT_RD, socket.SHUT_RDWR:
        sock = nonblocking(t.socket())
        t.do("connect", sock.connect, nowhere(t))
        t.do("shutdown", sock.shutdown, how)
        t.poll("poll", sock)
        t.error_of("SO_ERROR", sock)
        t.do("send", sock.send, b"x", raw.NOSIGNAL)
        t.do("recv", sock.recv, 1)


def connect_without_blocking(t):
    listening = t.listener()
    sock = nonblocking(t.socket())
    t.do("connect", sock.connect, listening.getsockname())
    t.poll("poll", sock, 4)
    t.error_of("SO_ERROR", sock)
    t.do("connect tells", sock.connect, listening.getsockname())
    t.do("connect", sock.connect, listening.getsockname())
    t.check(sock)
    t.do("send", sock.send, b"x")
    t.name("peer", sock.getpeername)


def connect_interrupted(t):
    sock = t.socket()
    seen = t.signal_soon()
    t.do("connect", connect_raw, sock, inet(*nowhere(t)))
    t.note("signals", seen)
    t.poll("poll", sock)
    t.do("again, without blocking", nonblocking(sock).connect, nowhere(t))
    sock.setblocking(True)
    sock.setsockopt(SOL, SO_SNDTIMEO, limit(10))
    seen = t.signal_soon(restart=True)
    t.do("again, to be restarted", connect_raw, sock, inet(*nowhere(t)))
    t.note("signals", seen)


def connect_restarted(t):
    sock = t.socket()
    sock.setsockopt(TCP, socket.TCP_SYNCNT, 1)
    seen = t.signal_soon(restart=True)
    t.timed("connect", 0.9, 9, connect_raw, sock, inet(*nowhere(t)))
    t.note("signals", seen)


def connected_already(t):
    client, server = t.pair()
    for name, sock in ("client", client), ("server", server):
        t.do(name + " connect", sock.connect, (t.host("left"), 9))
        t.do(name + " bind", sock.bind, ("0.0.0.0", 0))
        t.do(name + " listen", sock.listen, 1)
        t.do(name + " accept", raw.accept4, sock)
    client.send(b"still there")
    t.do("recv", server.recv, 20)


def dissolve_fresh_and_bound(t):
    sock = t.socket()
    t.do("fresh", connect_raw, sock, UNSPEC)
    t.name("own", sock.getsockname)
    sock.bind((t.host("right"), next(t.ports)))
    t.do("bound", connect_raw, sock, UNSPEC)
    t.name("own", sock.getsockname)
    t.do("short", connect_raw, sock, UNSPEC[:2])
    t.do("connect", sock.connect, t.listener().getsockname())
    t.name("own", sock.getsockname)


def dissolve_while_connecting(t):
    sock = nonblocking(t.socket())
    t.do("connect", sock.connect, nowhere(t))
    t.do("dissolve", connect_raw, sock, UNSPEC)
    t.poll("poll", sock)
    t.error_of("SO_ERROR", sock)
    t.name("own", sock.getsockname)
    sock.setblocking(True)
    t.do("connect", sock.connect, t.listener().getsockname())
    t.name("peer", sock.getpeername)


def dissolve_connected(t):
    client, server = t.pair()
    server.send(b"unread")
    t.arrived(client, 6)
    t.do("dissolve", connect_raw, client, UNSPEC)
    t.poll("poll", client)
    t.poll("poll of the peer", server, 16)
    t.do("recv of the peer", server.recv, 1)
    t.do("recv", client.recv, 1, raw.DONTWAIT)
    t.do("send", client.send, b"x", raw.NOSIGNAL)
    t.error_of("SO_ERROR", client)
    t.name("own", client.getsockname)
    t.name("peer", client.getpeername)
    listening = t.listener()
    t.do("connect", client.connect, listening.getsockname())
    other, _ = listening.accept()
    client.send(b"hello")
    t.do("recv", other.recv, 10)
    t.name("peer", client.getpeername)


def dissolve_accepted(t):
    client, server = t.pair()
    t.do("dissolve", connect_raw, server, UNSPEC)
    t.poll("poll of the peer", client, 16)
    t.do("recv of the peer", client.recv, 1)
    t.name("own", server.getsockname)


def dissolve_listener(t):
    listening = t.listener()
    sock = t.socket()
    sock.connect(listening.getsockname())
    t.do("dissolve", connect_raw, listening, UNSPEC)
    t.do("accept", raw.accept4, listening)
    t.poll("poll", listening)
    t.poll("poll of the client", sock, 16)
    t.do("recv of the client", sock.recv, 1)
    t.name("own", listening.getsockname)
    t.do("listen", listening.listen, 1)
    t.name("own", listening.getsockname)
    t.note("accepting", listening.getsockopt(SOL, socket.SO_ACCEPTCONN))


def dissolve_after_reset(t):
    client, server = t.pair()
    server.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    t.poll("poll", client, 16)
    t.do("dissolve", connect_raw, client, UNSPEC)
    t.poll("poll", client)
    t.error_of("SO_ERROR", client)
    listening = t.listener()
    t.do("connect", client.connect, listening.getsockname())
    other, _ = listening.accept()
    other.send(b"hello")
    t.do("recv", client.recv, 10)


def connect_after_the_end(t):
    """A connection that is over has to be dissolved before the next one."""
    listening = t.listener()
    client, server = t.pair(listening=listening)
    server.close()
    client.recv(1)
    t.do("peer closed: connect", client.connect, listening.getsockname())
    client, server = t.pair(listening=listening)
    server.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    t.poll("poll", client, 16)
    t.do("peer reset: connect", client.connect, listening.getsockname())
    t.do("again", client.connect, listening.getsockname())
    client, server = t.pair(listening=listening)
    client.shutdown(socket.SHUT_RDWR)
    t.do("shut: connect", client.connect, listening.getsockname())


def bind_errors(t):
    port = next(t.ports)
    first, second = t.socket("left"), t.socket("left")
    here = t.host("left"), port
    t.do("bind", first.bind, here)
    t.do("taken", second.bind, here)
    t.do("taken by another address", second.bind, ("0.0.0.0", port))
    t.do("twice", first.bind, (t.host("left"), next(t.ports)))
    t.do("not ours", second.bind, ("10.99.0.1", port))
    t.do("too short", raw.call, "bind", second.fileno(), raw.buffer(inet(*here)), 8)
    t.do("of the other family", raw.call, "bind", second.fileno(),
         raw.buffer(struct.pack("HHI16xI", socket.AF_INET6, 9, 0, 0)), 28)
    t.do("unspecified, any", raw.call, "bind", second.fileno(),
         raw.buffer(struct.pack(">HHI8x", 0, next(t.ports), 0)), 16)
    third = t.socket("left")
    t.do("unspecified, own", raw.call, "bind", third.fileno(),
         raw.buffer(struct.pack(">HH", 0, port) + socket.inet_aton(here[0]) + bytes(8)), 16)
    t.do("bad pointer", raw.call, "bind", third.fileno(), raw.ctypes.c_void_p(raw.BAD), 16)
    t.do("on the loopback device", third.bind, ("127.0.0.1", port))


def addresses_are_reused(t):
    port = next(t.ports)
    here = t.host("left"), port

    def reusing(sock):
        sock.setsockopt(SOL, socket.SO_REUSEADDR, 1)
    first = t.bound(port=port, prepare=reusing)
    second = t.socket("left")
    t.do("the other does not", second.bind, here)
    reusing(second)
    t.do("both do", second.bind, here)
    t.do("listen", first.listen, 1)
    t.do("the other, too", second.listen, 1)
    third = t.socket("left")
    reusing(third)
    t.do("while one listens", third.bind, here)
    first.close()
    t.do("after it", second.listen, 1)


def ports_are_shared(t):
    here = t.host("left"), next(t.ports)
    socks = [t.socket("left") for _ in range(3)]
    for sock in socks[:2]:
        sock.setsockopt(SOL, socket.SO_REUSEPORT, 1)
    for sock in socks:
        t.do("bind", sock.bind, here)
    for sock in socks[:2]:
        t.do("listen", sock.listen, 8)
        sock.setblocking(False)
    clients = [t.socket() for _ in range(8)]
    for client in clients:
        client.connect(here)
    got = 0

    def taken():
        nonlocal got
        for sock in socks[:2]:
            try:
                t.kept.append(sock.accept()[0])
                got += 1
            except BlockingIOError:
                pass
        return got == 8
    t.until(taken)
    t.note("accepted by both", got)


def an_address_is_used_again(t):
    """Not while there is a connection. Which end's TCP keeps the port after that is not told by who closes first."""
    listening = t.listener()
    here = listening.getsockname()
    client, server = t.pair(listening=listening)
    listening.close()
    sock = t.socket("left")
    t.do("while connected", sock.bind, here)
    sock.setsockopt(SOL, socket.SO_REUSEADDR, 1)
    t.do("if one of both has SO_REUSEADDR", sock.bind, here)
    server.send(b"x")
    t.do("recv", client.recv, 1)


def an_address_is_used_again_at_once(t):
    """SO_REUSEADDR is for servers that start again, whoever has closed first: what is left of connections
    does not matter, a listener does."""
    def reusing(sock):
        sock.setsockopt(SOL, socket.SO_REUSEADDR, 1)
    listening = t.listener(prepare=reusing)
    here = listening.getsockname()
    for first in "server", "client":
        client, server = t.pair(listening=listening)
        ends = (server, client) if first == "server" else (client, server)
        ends[0].close()
        ends[1].recv(1)
        ends[1].close()
        sock = t.socket("left")
        reusing(sock)
        t.do(f"closed by the {first} first", sock.bind, here)
        t.do("while one listens", sock.listen, 1)
        sock.close()
    # One connection is left.
    client, server = t.pair(listening=listening)
    listening.close()
    sock = t.socket("left")
    reusing(sock)
    t.do("with a connection", sock.bind, here)
    t.do("listens again", sock.listen, 4)
    second, other = t.pair(listening=sock)
    for one in client, second:
        one.send(b"x")
    t.do("the old one", server.recv, 5)
    t.do("the new one", other.recv, 5)


def an_address_after_a_reset(t):
    """Nothing is left of a connection that was reset."""
    listening = t.listener()
    here = listening.getsockname()
    client, server = t.pair(listening=listening)
    listening.close()
    server.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    t.do("bind", t.socket("left").bind, here)
    t.do("recv", client.recv, 1)


def names_in_every_state(t):
    sock = t.socket("left")
    for state, change in (("fresh", lambda: None),
                          ("bound", lambda: sock.bind((t.host("left"), next(t.ports)))),
                          ("listening", lambda: sock.listen(4))):
        change()
        t.name(state + " own", sock.getsockname)
        t.name(state + " peer", sock.getpeername)
    client, server = t.pair(listening=sock)
    for state, change in (("connected", lambda: None),
                          ("half closed", lambda: client.shutdown(socket.SHUT_WR)),
                          ("half closed by the peer", lambda: server.recv(1)),
                          ("shut", lambda: (server.shutdown(socket.SHUT_WR),
                                            t.has(client, 16), t.has(server, 16))),
                          ("seen", lambda: client.recv(1))):
        change()
        for name, one in ("client", client), ("server", server):
            t.name(f"{state} own of {name}", one.getsockname)
            t.name(f"{state} peer of {name}", one.getpeername)
    client, server = t.pair(listening=sock)
    server.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    t.poll("reset", client, 16)
    t.name("reset own", client.getsockname)
    t.name("reset peer", client.getpeername)
    t.do("short room", short_name, client)
    t.do("bad pointer", raw.call, "getsockname", client.fileno(), raw.ctypes.c_void_p(raw.BAD),
         raw.ctypes.byref(raw.ctypes.c_int(16)))


def short_name(sock):
    """getsockname() with room for four bytes: the length that it would need."""
    length = raw.ctypes.c_int(4)
    room = raw.buffer(16)
    raw.call("getsockname", sock.fileno(), room, raw.ctypes.byref(length))
    return length.value, room.raw[4:]


def over_ipv6(t):
    listening = t.listener(family=6)
    client, server = t.pair(family=6, listening=listening)
    t.both_names(client, server)
    client.sendall(b"x" * 100000)
    t.do("recv", raw.recv, server, 100000, raw.WAITALL)
    refusing = t.socket(family=6)
    t.do("refused", refusing.connect, (t.host("left", 6), next(t.ports)))
    t.do("no route", t.socket(family=6).connect, ("2001:db8::7", 9))
    t.do("link local without a card", t.socket(family=6).connect, ("fe80::77", 9))


def mapped_addresses(t):
    """IPv6 sockets that talk IPv4."""
    listening = t.listener(family=6, host="::")
    port = listening.getsockname()[1]
    client = t.socket()
    t.do("IPv4 to an IPv6 listener", client.connect, (t.host("left"), port))
    server, _ = listening.accept()
    t.check(client, server)
    t.both_names(client, server)
    client.send(b"hello")
    t.do("recv", server.recv, 10)
    four = t.listener()
    mapped = t.socket(family=6)
    t.do("mapped to an IPv4 listener", mapped.connect,
         ("::ffff:" + t.host("left"), four.getsockname()[1]))
    server, _ = four.accept()
    t.check(mapped, server)
    t.both_names(mapped, server)
    server.send(b"hello")
    t.do("recv", mapped.recv, 10)
    bound = t.socket("left", 6)
    t.do("bind mapped", bound.bind, ("::ffff:" + t.host("left"), next(t.ports)))
    bound.listen(4)
    t.name("own", bound.getsockname)
    client = t.socket()
    t.do("connect to it", client.connect, (t.host("left"), bound.getsockname()[1]))
    server, _ = bound.accept()
    t.check(client, server)
    t.both_names(client, server)
    server.send(b"hello")
    t.do("recv", client.recv, 10)
    both = t.listener(family=6, host="::")
    mapped = t.socket(family=6)
    t.do("mapped to a listener for both", mapped.connect,
         ("::ffff:" + t.host("left"), both.getsockname()[1]))
    server, _ = both.accept()
    t.check(mapped, server)
    t.both_names(mapped, server)
    mapped.send(b"hello")
    t.do("recv", server.recv, 10)


def ipv6_only(t):
    def only(sock):
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listening = t.listener(family=6, host="::", prepare=only)
    port = listening.getsockname()[1]
    t.do("IPv4 to it", t.socket().connect, (t.host("left"), port))
    t.do("IPv6 to it", t.socket(family=6).connect, (t.host("left", 6), port))
    sock = t.socket(family=6)
    only(sock)
    t.do("mapped", sock.connect, ("::ffff:" + t.host("left"), port))
    t.do("IPv4 beside it", t.socket("left").bind, ("0.0.0.0", port))
    both = t.socket("left", 6)
    port = next(t.ports)
    both.bind(("::", port))
    t.do("IPv4 beside one for both", t.socket("left").bind, ("0.0.0.0", port))


def wildcard_and_loopback(t):
    listening = t.listener(host="0.0.0.0")
    client, server = t.pair(listening=listening, addr=(t.host("left"), listening.getsockname()[1]))
    t.name("own", server.getsockname)
    t.name("peer of the client", client.getpeername)
    listening = t.socket("left")
    t.do("listen unbound", listening.listen, 1)
    t.name("own", listening.getsockname)
    local = t.socket("left")
    t.do("connect by 0.0.0.0", local.connect, ("0.0.0.0", listening.getsockname()[1]))
    t.name("peer", local.getpeername)
    server, _ = listening.accept()
    server.send(b"hello")
    t.do("recv", local.recv, 10)


def a_socket_connects_to_itself(t):
    sock = t.bound()
    t.do("connect", sock.connect, sock.getsockname())
    t.do("send", sock.send, b"hello", raw.NOSIGNAL)
    t.do("recv", sock.recv, 10, raw.DONTWAIT)
    t.name("peer", sock.getpeername)


def bound_to_a_device(t):
    listening = t.listener()
    for device, host, seconds in ((f"right{t.card}", "right", 20), ("lo", "loopback", 0.5)):
        sock = t.socket()
        sock.setsockopt(SOL, socket.SO_BINDTODEVICE, device.encode())
        sock.setsockopt(SOL, SO_SNDTIMEO, limit(seconds))
        t.do("connect by " + host, sock.connect, listening.getsockname())
    t.do("no such device", t.socket().setsockopt, SOL, socket.SO_BINDTODEVICE, b"nosuch")


def recv_waits_by_its_own_limit(t):
    sock = nonblocking(t.socket())
    t.do("connect", sock.connect, nowhere(t))
    sock.setblocking(True)
    sock.setsockopt(SOL, 20, limit(0.3))
    t.timed("recv", 0.3, 3, sock.recv, 1)
    sock.setsockopt(SOL, 20, limit(0))
    sock.setsockopt(SOL, SO_SNDTIMEO, limit(0.3))
    t.timed("send", 0.3, 3, sock.send, b"x")


def options_while_connecting(t):
    """What is set then counts afterwards."""
    listening = t.listener()
    sock = nonblocking(t.socket())
    t.do("connect", sock.connect, listening.getsockname())
    sock.setsockopt(SOL, socket.SO_KEEPALIVE, 1)
    t.poll("poll", sock, 4)
    t.check(sock)
    port = f":{sock.getsockname()[1]:04X}"

    def has_keepalive():
        with nl.inside("right"), open("/proc/thread-self/net/tcp", encoding="ascii") as file:
            lines = [line.split() for line in file]
        return any(words[1].endswith(port) and words[5].startswith("02:") for words in lines)
    t.note("keepalive", t.until(has_keepalive, 5))


def after_a_refused_fast_open(t):
    """The socket can be used for something else."""
    sock = t.socket()
    sock.setsockopt(TCP, socket.TCP_FASTOPEN_CONNECT, 1)
    t.do("connect", sock.connect, (t.host("left"), next(t.ports)))
    t.do("send", sock.send, b"x", raw.NOSIGNAL)
    t.do("bind", sock.bind, (t.host("right"), next(t.ports)))
    t.do("listen", sock.listen)


def where_peeking_begins_is_forgotten(t):
    client, _ = t.pair()
    client.setsockopt(SOL, SO_PEEK_OFF, 3)
    t.do("dissolve", connect_raw, client, UNSPEC)
    t.note("SO_PEEK_OFF", client.getsockopt(SOL, SO_PEEK_OFF))


def a_port_is_chosen_at_connect(t):
    sock = t.socket()
    sock.setsockopt(socket.IPPROTO_IP, 24, 1)
    sock.bind((t.host("right"), 0))
    t.name("own", sock.getsockname)
    sock.connect(t.listener().getsockname())
    t.name("own", sock.getsockname)


def dissolving_wakes(t):
    """Another thread ends the connection that this one waits at."""
    for awaited in select.POLLIN, 0:
        client, _ = t.pair()
        poll = select.poll()
        poll.register(client, awaited)
        t.soon(connect_raw, client, UNSPEC)
        t.timed("woken", 0.5, 2, lambda: [bits(found & select.POLLHUP) for _, found in poll.poll(10000)])


def connect_again_with_fast_open(t):
    """A socket with that option is never ours: TCP itself says how the first one ended, once."""
    listening = t.listener()
    sock = t.socket()
    t.do("option", sock.setsockopt, socket.IPPROTO_TCP, 23, 5)
    sock.setblocking(False)
    t.do("connect", sock.connect, listening.getsockname())
    t.note("connected", t.has(sock, 4))
    t.do("again", sock.connect, listening.getsockname())
    t.do("once more", sock.connect, listening.getsockname())
    blocking = t.socket()
    blocking.setsockopt(socket.IPPROTO_TCP, 23, 5)
    t.do("connect", blocking.connect, listening.getsockname())
    t.do("again", blocking.connect, listening.getsockname())


SCRIPTS = [
    refused, refused_without_blocking, refused_at_once, refused_told_by_recv, unreachable, wrong_addresses, timed_out,
    connect_takes_as_long_as_allowed, while_connecting, shut_while_connecting,
    connect_without_blocking, connect_interrupted, connect_restarted, connected_already,
    dissolve_fresh_and_bound, dissolve_while_connecting, dissolve_connected, dissolve_accepted,
    dissolve_listener, dissolve_after_reset, connect_after_the_end, bind_errors,
    addresses_are_reused, ports_are_shared, an_address_is_used_again, an_address_is_used_again_at_once,
    an_address_after_a_reset, names_in_every_state, over_ipv6,
    mapped_addresses, ipv6_only, wildcard_and_loopback, a_socket_connects_to_itself,
    bound_to_a_device, a_port_is_chosen_at_connect, recv_waits_by_its_own_limit, options_while_connecting,
    after_a_refused_fast_open, connect_again_with_fast_open, dissolving_wakes, where_peeking_begins_is_forgotten,
]
