# SPDX-License-Identifier: GPL-2.0
"""Calls and flags of sockets; each case has both ends in one program, in one namespace per end.

usage: options.py CASE HOST NAMESPACE
The program runs in the client's namespace and makes the server's sockets for HOST in NAMESPACE.
"""

import array
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

import smcsock as s

PORT = 6900
CLONE_NEWNET = 0x40000000
SIOCOUTQNSD = 0x894B


class Server:
    """Runs a function in another network namespace, as sockets belong to where they were made."""

    def __init__(self, namespace):
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)

    def make(self, function, *args):
        """The function's result."""
        os.setns(self.there, CLONE_NEWNET)
        try:
            return function(*args)
        finally:
            os.setns(self.home, CLONE_NEWNET)


def pair(where, host):
    """Two ends of one connection over SMC: server's and client's, and no listener."""
    listener = where.make(s.listener, host, PORT)
    client = s.smc_socket(host)
    client.connect((host, PORT))
    server = s.accept(listener)
    listener.close()
    return server, s.need_smc(client)


def ioctl_int(sock, request):
    """An ioctl that gives a number."""
    value = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), request, value)
    return value[0]


def poll_now(sock, events=select.POLLIN | select.POLLOUT | select.POLLPRI | select.POLLRDHUP, wait=0):
    """The events of a socket."""
    poll = select.poll()
    poll.register(sock, events)
    return dict(poll.poll(wait)).get(sock.fileno(), 0)


def poll_events(where, host):
    """poll() tells what TCP's would."""
    fresh = s.smc_socket(host)
    s.equal("never connected", select.POLLOUT | select.POLLHUP, poll_now(fresh))
    fresh.close()
    listener = where.make(s.listener, host, PORT)
    s.equal("listener, nobody there", 0, poll_now(listener))
    client = s.smc_socket(host)
    client.connect((host, PORT))
    s.equal("listener", select.POLLIN, poll_now(listener, wait=20000))
    server = s.accept(listener)
    s.equal("listener, accepted", 0, poll_now(listener))
    listener.close()
    s.equal("connected", select.POLLOUT, poll_now(client))
    server.sendall(b"x")
    poll_until_in(client)
    s.equal("readable", select.POLLIN | select.POLLOUT, poll_now(client))
    client.recv(1)
    s.equal("read", select.POLLOUT, poll_now(client))
    server.shutdown(socket.SHUT_WR)
    s.until(lambda: poll_now(client) & select.POLLRDHUP, what="RDHUP")
    s.equal("half closed", select.POLLIN | select.POLLRDHUP | select.POLLOUT, poll_now(client))
    client.shutdown(socket.SHUT_WR)
    s.until(lambda: poll_now(client) & select.POLLHUP, what="HUP")
    server.close()


def poll_until_in(sock):
    """Waits until there is something to read."""
    return poll_now(sock, select.POLLIN, 20000)


def epoll_level(where, host):
    """Level-triggered: the event comes again while there is data."""
    server, client = pair(where, host)
    epoll = select.epoll()
    epoll.register(client, select.EPOLLIN)
    s.equal("silence", [], epoll.poll(0.2))
    server.sendall(b"abcdef")
    for _ in range(3):
        s.equal("event", [(client.fileno(), select.EPOLLIN)], epoll.poll(20))
    s.equal("data", b"abcdef", s.read_exactly(client, 6))
    s.equal("silence again", [], epoll.poll(0.2))


def fill(sock):
    """Sends until nothing more fits and nothing is on its way; how much that was."""
    sent, end = 0, time.monotonic() + s.LIMIT
    while True:
        still, more = ioctl_int(sock, s.SIOCOUTQ) == ioctl_int(sock, SIOCOUTQNSD), 0
        try:
            while True:
                more += sock.send(bytes(65536))
        except BlockingIOError:
            pass
        if still and not more:
            return sent
        sent += more
        s.check(time.monotonic() < end, "it is never full")
        time.sleep(0.01)


def epoll_edge(where, host):
    """Edge-triggered: one event for each arrival, also for the room to write."""
    server, client = pair(where, host)
    epoll = select.epoll()
    client.setblocking(False)
    epoll.register(client, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    s.equal("first", [(client.fileno(), select.EPOLLOUT)], epoll.poll(1))
    s.equal("no second", [], epoll.poll(0.2))
    for _ in range(3):
        server.sendall(b"123")
        event = epoll.poll(20)
        s.check(event and event[0][1] & select.EPOLLIN, f"no edge: {event}")
    s.equal("data", b"123" * 3, s.read_exactly(client, 9))
    # What is on its way to the peer makes room for a while, which is an edge each time.
    sent = fill(client)
    epoll.poll(0)
    s.equal("full", [], epoll.poll(0.3))
    thread = threading.Thread(target=s.read_exactly, args=(server, sent))
    thread.start()
    event = epoll.poll(20)
    s.check(event and event[0][1] & select.EPOLLOUT, f"no edge for room: {event}")
    thread.join()


def nonblocking(where, host):
    """EINPROGRESS, EALREADY, EISCONN; accept4 and reads say EAGAIN."""
    listener = where.make(s.listener, host, PORT)
    listener.setblocking(False)
    try:
        listener.accept()
        raise AssertionError("accepted nobody")
    except BlockingIOError:
        pass
    client = s.smc_socket(host, blocking=False)
    s.equal("first", "EINPROGRESS", s.name_of_code(client.connect_ex((host, PORT))))
    second = s.name_of_code(client.connect_ex((host, PORT)))
    s.check(second in ("EALREADY", "EISCONN", "0"), f"second connect(): {second}")
    s.check(poll_now(client, select.POLLOUT, 10000) & select.POLLOUT, "never writable")
    s.equal("SO_ERROR", 0, client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    # The first call after the end of the rendezvous may say so, the next one says EISCONN.
    third = s.name_of_code(client.connect_ex((host, PORT)))
    s.check(third in ("0", "EISCONN"), f"third connect(): {third}")
    s.equal("fourth", "EISCONN", s.name_of_code(client.connect_ex((host, PORT))))
    s.check(poll_now(listener, select.POLLIN, 10000), "nobody to accept")
    server = s.accept(listener)
    s.need_smc(client)
    try:
        client.recv(1)
        raise AssertionError("read nothing")
    except BlockingIOError:
        pass
    server.sendall(b"x")
    s.check(poll_until_in(client), "not readable")
    s.equal("data", b"x", client.recv(1, socket.MSG_DONTWAIT))
    listener.close()
    refused = s.smc_socket(host, blocking=False)
    s.equal("to nobody", "EINPROGRESS", s.name_of_code(refused.connect_ex((host, PORT + 7))))
    s.check(poll_now(refused, select.POLLOUT, 10000) & select.POLLERR, "no POLLERR")
    s.equal("error", 111, refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    s.equal("error is told once", 0, refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def flags(where, host):
    """MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_DONTWAIT."""
    server, client = pair(where, host)
    server.sendall(b"0123456789")
    s.until(lambda: ioctl_int(client, s.SIOCINQ) == 10, what="10 bytes")
    s.equal("peek", b"01234", client.recv(5, socket.MSG_PEEK))
    s.equal("peek again", b"0123456789", client.recv(50, socket.MSG_PEEK))
    s.equal("truncated", 3, client.recv_into(bytearray(3), 3, socket.MSG_TRUNC))
    s.equal("after it", b"345", client.recv(3))
    timer = threading.Timer(0.5, server.sendall, [b"abcdef"])
    timer.start()
    s.real_blocking(client)
    s.equal("all", b"6789abcd", client.recv(8, socket.MSG_WAITALL))
    s.equal("rest", b"ef", client.recv(8))
    timer.join()
    server.sendall(b"end")
    server.close()
    s.equal("all until the end", b"end", client.recv(8, socket.MSG_WAITALL))
    s.equal("end", b"", client.recv(8, socket.MSG_WAITALL))


def peek_wrap(where, host):
    """MSG_PEEK shows the same bytes, wherever in the ring they are."""
    server, client = pair(where, host)
    data = s.pattern(30011)
    for _ in range(40):
        thread = threading.Thread(target=server.sendall, args=(data,))
        thread.start()
        s.until(lambda: ioctl_int(client, s.SIOCINQ) == len(data), what="data")
        s.equal("peeked", data, client.recv(len(data), socket.MSG_PEEK))
        s.equal("read", data, s.read_exactly(client, len(data)))
        thread.join()


def urgent(where, host):
    """MSG_OOB: out of band, SIOCATMARK, POLLPRI; and in line."""
    server, client = pair(where, host)
    server.sendall(b"abc")
    server.send(b"deF", socket.MSG_OOB)
    server.sendall(b"ghi")
    s.until(lambda: poll_now(client) & select.POLLPRI, what="POLLPRI")
    s.equal("urgent", b"F", client.recv(1, socket.MSG_OOB))
    got = b""
    while len(got) < 8:
        part = client.recv(100)
        got += part
        if got == b"abcde":
            s.equal("at the mark", 1, ioctl_int(client, 0x8905))
    s.equal("stream", b"abcdeghi", got)
    client.setblocking(False)
    try:
        client.recv(1, socket.MSG_OOB)
        raise AssertionError("the urgent byte came twice")
    except OSError as error:
        s.equal("no urgent byte", "EINVAL", s.name_of(error))
    client.settimeout(s.LIMIT)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    server.send(b"xY", socket.MSG_OOB)
    server.sendall(b"z")
    s.equal("in line", b"xYz", s.read_exactly(client, 3))
    # A peek that waits for more ends at the mark, whatever is behind it.
    for inline in 1, 0:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
        server.send(b"abC", socket.MSG_OOB)
        server.sendall(b"d")
        s.real_blocking(client)
        both = socket.MSG_PEEK | socket.MSG_WAITALL
        s.equal(f"peek, in line {inline}", b"ab", client.recv(10, both))
        s.equal("the same", b"ab", client.recv(10))
        client.settimeout(s.LIMIT)
        rest = b"Cd" if inline else b"d"
        s.equal("behind the mark", rest, s.read_exactly(client, len(rest)))


def queues(where, host):
    """SIOCINQ, SIOCOUTQ."""
    server, client = pair(where, host)
    s.equal("nothing in", 0, ioctl_int(server, s.SIOCINQ))
    s.equal("nothing out", 0, ioctl_int(client, s.SIOCOUTQ))
    client.sendall(b"x" * 5000)
    s.until(lambda: ioctl_int(server, s.SIOCINQ) == 5000, what="5000 bytes")
    s.equal("some read", b"x" * 2000, server.recv(2000))
    s.equal("the rest", 3000, ioctl_int(server, s.SIOCINQ))
    s.equal("read", 3000, len(s.read_exactly(server, 3000)))
    s.until(lambda: ioctl_int(client, s.SIOCOUTQ) == 0, what="an empty send queue")
    client.setblocking(False)
    sent = 0

    def fill():
        nonlocal sent
        try:
            while True:
                sent += client.send(bytes(65536))
        except BlockingIOError:
            # Our buffer may be full for a moment only, until its data is at the peer.
            return ioctl_int(client, s.SIOCOUTQ) > 0

    s.until(fill, what="SIOCOUTQ with full buffers")
    s.equal("all of it", sent, len(s.read_exactly(server, sent)))


def sendfile(where, host):
    """sendfile() into a socket."""
    server, client = pair(where, host)
    data = s.pattern(700001)
    with open("/tmp/smc-sendfile", "w+b") as file:
        file.write(data)
        file.flush()
        got = []
        thread = threading.Thread(target=lambda: got.append(s.read_exactly(server, len(data))))
        thread.start()
        s.real_blocking(client)
        offset = 0
        while offset < len(data):
            offset += os.sendfile(client.fileno(), file.fileno(), offset, len(data) - offset)
        thread.join()
    os.unlink("/tmp/smc-sendfile")
    s.check(got[0] == data, "data differs")


def splice(where, host):
    """splice() from a socket into a pipe, and from a pipe into a socket."""
    server, client = pair(where, host)
    s.real_blocking(server)
    s.real_blocking(client)
    data = s.pattern(200003)
    out_r, out_w = os.pipe()
    in_r, in_w = os.pipe()

    def feed():
        view = memoryview(data)
        while view:
            count = os.write(in_w, view[:4096])
            view = view[count:]
            while count:
                count -= os.splice(in_r, client.fileno(), count)

    thread = threading.Thread(target=feed)
    thread.start()
    got = bytearray()
    while len(got) < len(data):
        count = os.splice(server.fileno(), out_w, 8192)
        s.check(count > 0, f"splice() gave {count}")
        while count:
            part = os.read(out_r, count)
            got += part
            count -= len(part)
    thread.join()
    s.check(bytes(got) == data, "data differs")
    client.close()
    s.equal("end", 0, os.splice(server.fileno(), out_w, 10))


def names(where, host):
    """getsockname(), getpeername(), SO_DOMAIN and the like."""
    server, client = pair(where, host)
    s.equal("server's own", (host, PORT), server.getsockname()[:2])
    s.equal("client's peer", (host, PORT), client.getpeername()[:2])
    s.equal("client's own", client.getsockname()[:2], server.getpeername()[:2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for sock in (server, client):
        s.equal("SO_DOMAIN", family, sock.getsockopt(socket.SOL_SOCKET, s.SO_DOMAIN))
        s.equal("SO_TYPE", socket.SOCK_STREAM, sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE))
        s.equal("SO_PROTOCOL", s.IPPROTO_SMC, sock.getsockopt(socket.SOL_SOCKET, s.SO_PROTOCOL))
        s.equal("SO_ACCEPTCONN", 0, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    unconnected = s.smc_socket(host)
    try:
        unconnected.getpeername()
        raise AssertionError("a peer without connection")
    except OSError as error:
        s.equal("not connected", "ENOTCONN", s.name_of(error))


def duplicated(where, host):
    """dup() and fork(): the connection ends with the last descriptor."""
    server, client = pair(where, host)
    other = client.dup()
    client.close()
    other.sendall(b"by the copy")
    s.equal("data", b"by the copy", s.read_exactly(server, 11))
    child = os.fork()
    if child == 0:
        time.sleep(0.5)
        other.sendall(b"by the child")
        os._exit(0)
    other.close()
    s.equal("data", b"by the child", s.read_exactly(server, 12))
    s.equal("end", b"", server.recv(1))
    s.equal("child", (child, 0), os.waitpid(child, 0))


def passed(where, host):
    """SCM_RIGHTS: a connection goes to another process, which ends it."""
    server, client = pair(where, host)
    left, right = socket.socketpair()
    child = os.fork()
    if child == 0:
        server.close()
        client.close()
        _, fds, _, _ = socket.recv_fds(right, 1, 1)
        os.write(fds[0], b"passed on")
        os._exit(0)
    socket.send_fds(left, [b"x"], [client.fileno()])
    s.equal("data", b"passed on", s.read_exactly(server, 9))
    os.waitpid(child, 0)
    client.close()
    s.equal("end", b"", server.recv(1))


def timeouts(where, host):
    """SO_RCVTIMEO, SO_SNDTIMEO, and signals."""
    server, client = pair(where, host)
    client.settimeout(None)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 400000))
    started = time.monotonic()
    try:
        client.recv(1)
        raise AssertionError("read nothing")
    except BlockingIOError:
        pass
    s.check(0.3 < time.monotonic() - started < 20, "SO_RCVTIMEO")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 400000))
    started = time.monotonic()
    try:
        while True:
            client.send(bytes(100000))
    except BlockingIOError:
        pass
    s.check(0.3 < time.monotonic() - started < 15, "SO_SNDTIMEO")

    class Alarm(Exception):
        """The signal came."""

    def ring(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, ring)
    server.settimeout(None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        while True:
            server.recv(1 << 20)
    except Alarm:
        pass


def buffers(where, host):
    """SO_SNDBUF and SO_RCVBUF are kept; SO_REUSEADDR, SO_KEEPALIVE and TCP options are readable."""
    for sock in (s.smc_socket(host), *pair(where, host)):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        s.equal("SO_KEEPALIVE", 1, sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        for value in (1, 0, 1):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, value)
            s.equal("TCP_NODELAY", value, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
        s.equal("TCP_KEEPIDLE", 77, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
        s.check(len(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)) >= 92, "TCP_INFO")
        s.check(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 0, "SO_RCVBUF")
    sock = s.smc_socket(host)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 40000)
    s.equal("SO_RCVBUF", 80000, sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50000)
    s.equal("SO_SNDBUF", 100000, sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))


def corked(where, host):
    """MSG_MORE and TCP_CORK hold data back for a moment at most, and lose none."""
    server, client = pair(where, host)
    client.send(b"a", socket.MSG_MORE)
    client.send(b"b")
    s.equal("more", b"ab", s.read_exactly(server, 2))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    client.sendall(b"cd")
    client.sendall(b"ef")
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    s.equal("corked", b"cdef", s.read_exactly(server, 4))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    client.sendall(b"gh")
    client.close()
    s.equal("corked at the end", b"gh", s.read_exactly(server, 3))


def vectors(where, host):
    """sendmsg() and recvmsg() with many parts."""
    server, client = pair(where, host)
    parts = [s.pattern(n, n) for n in range(1, 300, 7)]
    s.equal("sent", sum(map(len, parts)), client.sendmsg(parts))
    buffers_ = [bytearray(len(part)) for part in parts]
    s.real_blocking(server)
    got = server.recvmsg_into(buffers_, 0, socket.MSG_WAITALL)
    s.equal("received", sum(map(len, parts)), got[0])
    s.equal("data", b"".join(parts), b"".join(buffers_))


def main():
    """Runs one case."""
    case, host, namespace = sys.argv[1:4]
    function = globals()[case]
    sys.argv[1:] = [case]
    s.run({case: lambda: function(Server(namespace), host)})


main()
