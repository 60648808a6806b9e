# SPDX-License-Identifier: GPL-2.0
"""shutdown(), close(), SO_LINGER, and what the other end sees."""

import os
import signal
import socket
import struct

from smcsock import read_exactly

from . import raw
from .connecting import limit
from .harness import pattern
from .sending import filled, small

SOL, TCP = socket.SOL_SOCKET, socket.IPPROTO_TCP


def linger(sock, on, seconds):
    """SO_LINGER"""
    sock.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", on, seconds))


def look(t, label, sock, awaited=0x2001):
    """What is to be seen of the other's end."""
    t.poll(label + " poll", sock, awaited)
    t.do(label + " recv", sock.recv, 10, raw.DONTWAIT)
    t.do(label + " recv", sock.recv, 10, raw.DONTWAIT)
    t.error_of(label + " SO_ERROR", sock)


def shutdown_of_writing(t):
    client, server = t.pair()
    client.send(b"last")
    t.do("shutdown", client.shutdown, socket.SHUT_WR)
    look(t, "peer", server)
    t.do("again", client.shutdown, socket.SHUT_WR)
    t.do("answer", server.send, b"answer")
    t.do("recv", client.recv, 10)
    t.do("the other, too", server.shutdown, socket.SHUT_WR)
    look(t, "end", client, 0x2011)
    t.do("after both", client.shutdown, socket.SHUT_RDWR)
    t.do("after both, peer", server.shutdown, socket.SHUT_RD)
    t.do("send", client.send, b"x", raw.NOSIGNAL)


def shutdown_of_reading(t):
    client, server = t.pair()
    server.send(b"before")
    t.arrived(client, 6)
    t.do("shutdown", client.shutdown, socket.SHUT_RD)
    t.poll("poll", client)
    t.do("recv", client.recv, 10)
    t.do("recv", client.recv, 10)
    t.do("peer sends", server.send, b"after")
    t.until(lambda: t.number(client, 0x541B) == 5, 4)
    t.do("recv", client.recv, 10, raw.DONTWAIT)
    t.do("send", client.send, b"still")
    t.do("peer reads", server.recv, 10)
    t.do("again", client.shutdown, socket.SHUT_RD)


def shutdown_of_both(t):
    client, server = t.pair()
    client.send(b"last")
    t.do("shutdown", client.shutdown, socket.SHUT_RDWR)
    t.poll("poll", client)
    t.do("recv", client.recv, 10)
    t.do("send", client.send, b"x", raw.NOSIGNAL)
    look(t, "peer", server)
    t.do("again", client.shutdown, socket.SHUT_RDWR)
    t.do("no such", client.shutdown, 3)
    t.do("no such", client.shutdown, -1)


def shutdown_of_both_with_unread(t):
    """What has not been read is no reason to cut the stream off."""
    client, server = t.pair()
    server.send(b"unread")
    t.arrived(client, 6)
    client.send(b"answer")
    t.do("shutdown", client.shutdown, socket.SHUT_RDWR)
    look(t, "peer", server)
    t.poll("poll", client)
    t.do("recv", client.recv, 10, raw.DONTWAIT)
    t.do("recv", client.recv, 10, raw.DONTWAIT)
    t.error_of("SO_ERROR", client)


def shutdown_of_both_with_unread_and_unsent(t):
    """All that was taken for sending gets there."""
    client, server = small(t)
    server.send(b"unread")
    t.arrived(client, 6)
    total = filled(t, client)
    t.do("shutdown", client.shutdown, socket.SHUT_RDWR)
    t.note("all of it", len(read_exactly(server, total)) == total)
    look(t, "peer", server)
    t.error_of("SO_ERROR", client)


def shutdown_of_both_and_data(t):
    """What the peer sends to a socket that was shut."""
    client, server = t.pair()
    client.shutdown(socket.SHUT_RDWR)
    t.poll("end", server, 0x2001)
    t.do("peer sends", server.send, b"late")
    t.until(lambda: t.number(client, 0x541B) == 4, 0.5)
    t.do("recv", client.recv, 10, raw.DONTWAIT)
    t.do("peer sends more", server.send, b"later", raw.NOSIGNAL)
    server.close()
    t.until(lambda: False, 0.3)
    t.do("recv", client.recv, 20, raw.DONTWAIT)


def shutdown_wakes(t):
    client, server = t.pair()
    t.soon(client.shutdown, socket.SHUT_RD)
    t.timed("own", 0, 3, raw.recv, client, 10)
    t.soon(client.shutdown, socket.SHUT_WR)
    t.timed("peer", 0, 3, raw.recv, server, 10)


def linger_of_zero(t):
    client, server = t.pair()
    linger(client, 1, 0)
    t.do("close", client.close)
    look(t, "peer", server, 16)
    t.do("send", server.send, b"x", raw.NOSIGNAL)


def linger_of_zero_with_data(t):
    client, server = small(t)
    filled(t, client)
    linger(client, 1, 0)
    t.timed("close", 0, 2, client.close)
    t.poll("poll", server, 16)
    end = None
    for _ in range(100):
        try:
            if not raw.recv(server, 65536):
                end = "end of file"
                break
        except ConnectionResetError:
            end = "reset"
            break
    t.note("ends by", end)


def linger_of_zero_behind_data(t):
    for number in range(7):
        client, server = t.pair()
        linger(client, 1, 0)
        client.send(b"last words")
        if number % 2:
            client.shutdown(socket.SHUT_WR)
        client.close()
        t.do("peer", server.recv, 100)
        t.do("then", server.recv, 100)


def linger_of_zero_and_shutdown(t):
    client, server = t.pair()
    linger(client, 1, 0)
    client.send(b"abc")
    client.shutdown(socket.SHUT_WR)
    t.poll("peer", server, 0x2001)
    client.close()
    t.until(lambda: False, 0.3)
    look(t, "then", server, 16)


def linger_with_time(t):
    client, server = t.pair()
    linger(client, 1, 5)
    client.send(b"abc")
    t.timed("all read in time", 0, 3, client.close)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)


def linger_waits(t):
    client, server = small(t)
    total = filled(t, client)
    linger(client, 1, 5)
    thread = t.soon(lambda: t.kept.append(read_exactly(server, total + 1)), after=0.5)
    t.timed("close", 0, 4, client.close)
    thread.join()
    t.note("all of it", len(t.kept.pop()) == total)


def close_with_much(t, on, seconds, limits, blocking=True):
    """Nobody reads while it closes; what is left comes all the same."""
    client, server = small(t)
    total = filled(t, client)
    linger(client, on, seconds)
    if not blocking:
        client.setblocking(False)
    t.timed("close", *limits, client.close)
    t.note("nothing is lost", len(read_exactly(server, total + 1)) == total)


def linger_gives_up(t):
    close_with_much(t, 1, 1, (0.9, 3))


def linger_without_blocking(t):
    close_with_much(t, 1, 1, (0.9, 3), blocking=False)


def linger_and_signal(t):
    client, server = small(t)
    total = filled(t, client)
    linger(client, 1, 20)
    seen = t.signal_soon()
    fd = client.detach()
    t.timed("close", 0, 10, raw.call, "close", fd)
    t.note("signals", seen)
    t.note("nothing is lost", len(read_exactly(server, total + 1)) == total)


def linger_off(t):
    close_with_much(t, 0, 9, (0, 1))


def close_with_unread(t):
    client, server = t.pair()
    server.send(b"unread")
    t.arrived(client, 6)
    client.send(b"sent")
    t.arrived(server, 4)
    client.close()
    t.poll("poll", server, 16)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)


def close_at_once(t):
    client, server = t.pair()
    data = pattern(30000)
    client.sendall(data)
    client.close()
    t.note("same", read_exactly(server, 30001) == data)
    look(t, "then", server)


def close_after_the_peer(t):
    client, server = t.pair()
    client.close()
    t.do("recv", server.recv, 10)
    t.do("close", server.close)


def half_closed_peer_dies(t):
    """After a half close, an abort of the other end is an error to who still reads."""
    client, server = t.pair()
    client.shutdown(socket.SHUT_WR)
    t.poll("end", server, 0x2001)
    server.send(b"part")
    t.arrived(client, 4)
    linger(server, 1, 0)
    server.close()
    t.poll("poll", client, 16)
    t.do("recv", client.recv, 10)
    t.do("recv", client.recv, 10)
    t.do("recv", client.recv, 10)


def a_process_dies(t):
    for data, unread in (b"", b""), (b"rest", b""), (b"", b"unread"):
        client, server = t.pair()
        if unread:
            server.send(unread)
            t.arrived(client, len(unread))
        pid = os.fork()
        if pid == 0:
            server.close()
            if data:
                client.send(data)
            signal.pause()
        client.close()
        t.arrived(server, len(data))
        t.until(lambda: False, 0.2)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        t.poll("poll", server, 0x2001)
        t.do("recv", server.recv, 10)
        t.do("recv", server.recv, 10)


def errors_are_told_once(t):
    client, server = t.pair()
    linger(server, 1, 0)
    server.close()
    t.poll("poll", client, 16)
    t.error_of("SO_ERROR", client)
    t.error_of("SO_ERROR", client)
    t.poll("poll", client)
    t.do("recv", client.recv, 1)
    t.do("send", client.send, b"x", raw.NOSIGNAL)
    t.do("shutdown", client.shutdown, socket.SHUT_WR)
    t.name("peer", client.getpeername)
    t.do("ioctl", t.number, client, 0x541B)
    t.do("set an option", client.setsockopt, TCP, socket.TCP_NODELAY, 1)


def user_timeout(t):
    """Data that nobody takes ends the connection after that time."""
    client, server = t.pair()
    t.do("set", client.setsockopt, TCP, socket.TCP_USER_TIMEOUT, 1000)
    t.do("read", client.getsockopt, TCP, socket.TCP_USER_TIMEOUT)
    client.send(b"x")
    t.do("recv", server.recv, 1)


def state_by_tcp_info(t):
    client, server = t.pair()

    def state(label, sock):
        t.note(label, sock.getsockopt(TCP, socket.TCP_INFO, 8)[0])
    state("connected", client)
    t.note("fresh", t.socket().getsockopt(TCP, socket.TCP_INFO, 8)[0])
    t.note("listening", t.listener().getsockopt(TCP, socket.TCP_INFO, 8)[0])
    client.shutdown(socket.SHUT_WR)
    t.poll("end", server, 0x2001)
    t.until(lambda: client.getsockopt(TCP, socket.TCP_INFO, 8)[0] == 5)
    state("half closed", client)
    state("its peer", server)
    linger(server, 1, 0)
    server.close()
    t.poll("reset", client, 16)
    state("reset", client)


def limits_of_options(t):
    client, _ = t.pair()
    for name, value in ("negative", struct.pack("ll", -1, 0)), ("wrong", struct.pack("ll", 0, -1)), \
            ("short", b"abcd"), ("fine", limit(2.5)):
        t.do(f"SO_RCVTIMEO {name}", client.setsockopt, SOL, 20, value)
        t.do(f"SO_SNDTIMEO {name}", client.setsockopt, SOL, 21, value)
        t.do("is", client.getsockopt, SOL, 20, 16)
        t.do("is", client.getsockopt, SOL, 21, 16)


SCRIPTS = [
    shutdown_of_writing, shutdown_of_reading, shutdown_of_both, shutdown_of_both_with_unread,
    shutdown_of_both_with_unread_and_unsent, shutdown_of_both_and_data,
    shutdown_wakes, linger_of_zero, linger_of_zero_with_data, linger_of_zero_behind_data, linger_of_zero_and_shutdown,
    linger_with_time, linger_waits, linger_gives_up, linger_without_blocking, linger_and_signal,
    linger_off, close_with_unread, close_at_once, close_after_the_peer, half_closed_peer_dies,
    a_process_dies, errors_are_told_once, user_timeout, state_by_tcp_info, limits_of_options,
]
