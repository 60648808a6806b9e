# SPDX-License-Identifier: GPL-2.0
"""How connections end; one program for the server and one for the client of each case."""

import os
import select
import socket
import struct
import threading
import time

import smcsock as s


def pair(role, host, port, ready):
    """Our end of one connection."""
    if role == "server":
        listener = s.listener(host, int(port))
        s.touch(ready)
        child = s.accept(listener)
        listener.close()
        return child
    return s.connect(host, int(port))


def report(name, action):
    """Prints how a call ended: `name=ECONNRESET`, `name=0`."""
    try:
        result = action()
    except OSError as error:
        s.say(f"{name}={s.name_of(error)}")
        return None
    s.say(f"{name}={len(result) if isinstance(result, bytes) else 'ok'}")
    return result


def half_close(role, *where):
    """The client shuts its sending side, and still gets all of a later answer."""
    sock = pair(role, *where)
    if role == "server":
        data = s.read_exactly(sock, 1 << 30)
        s.equal("request", s.pattern(200000), data)
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLRDHUP | select.POLLOUT)
        events = dict(poll.poll(5000)).get(sock.fileno(), 0)
        s.check(events & select.POLLRDHUP, f"no POLLRDHUP at the end: {events:#x}")
        s.check(events & select.POLLOUT, f"cannot write after the peer's half close: {events:#x}")
        s.check(not events & select.POLLHUP, f"POLLHUP with an open direction: {events:#x}")
        time.sleep(0.5)
        sock.sendall(s.pattern(300000, 2))
        sock.close()
    else:
        sock.sendall(s.pattern(200000))
        sock.shutdown(socket.SHUT_WR)
        report("send", lambda: sock.send(b"x", socket.MSG_NOSIGNAL))
        sock.getpeername()
        s.equal("answer", s.pattern(300000, 2), s.read_exactly(sock, 1 << 30))
        s.equal("end", b"", sock.recv(10))


def wait_flag(ready, name):
    """Waits until the other side has come to a place."""
    s.until(lambda: os.path.exists(f"{ready}.{name}"), 20, f"the flag {name}")


def close_with_data(role, *where):
    """close() right after send() does not wait for the reader: everything arrives, then the end."""
    sock = pair(role, *where)
    if role == "server":
        wait_flag(where[2], "closed")
        data = s.read_exactly(sock, 1 << 30)
        s.equal("length", 100000, len(data))
        s.equal("data", s.pattern(100000), data)
    else:
        sock.sendall(s.pattern(100000))
        sock.close()
        s.touch(f"{where[2]}.closed")


def read_all(sock, amount):
    """The server of the two below: nothing is lost, and then comes the end."""
    data = s.read_exactly(sock, 1 << 30)
    s.check(data == s.pattern(amount), f"data differs, {len(data)} bytes")
    s.equal("end", b"", sock.recv(1))


def linger(role, *where):
    """SO_LINGER with a time: close() waits for the reader of what does not fit."""
    sock, ready = pair(role, *where), where[2]
    if role == "server":
        wait_flag(ready, "waits")
        read_all(sock, 100000)
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
    sock.sendall(s.pattern(100000))
    closing = threading.Thread(target=sock.close)
    closing.start()
    closing.join(1.5)
    s.check(closing.is_alive(), "close() did not wait for the reader")
    s.touch(f"{ready}.waits")
    closing.join(20)
    s.check(not closing.is_alive(), "close() waits although all has been read")


def linger_limit(role, *where):
    """SO_LINGER with a time: close() waits no longer than that, and still nothing is lost."""
    sock, ready = pair(role, *where), where[2]
    if role == "server":
        wait_flag(ready, "closed")
        read_all(sock, 100000)
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
    sock.sendall(s.pattern(100000))
    started = time.monotonic()
    sock.close()
    took = time.monotonic() - started
    s.check(took > 0.9, f"close() waited {took} s for the reader, not 1 s")
    s.touch(f"{ready}.closed")


def unread_and_sending(role, *where):
    """close() with unread data drops what was not sent: the peer is told so after what it got."""
    sock = pair(role, *where)
    if role == "client":
        s.until(lambda: sock.recv(5, socket.MSG_PEEK) == b"aaaaa", what="data")
        sock.sendall(s.pattern(100000))
        sock.close()
        s.touch(f"{where[2]}.closed")
        return
    sock.sendall(b"a" * 5)
    # Nothing is read before: that would make room for the rest.
    wait_flag(where[2], "closed")
    got = bytearray()
    try:
        while True:
            part = sock.recv(65536)
            if not part:
                s.say("recv=0")
                break
            got += part
    except OSError as error:
        s.say(f"recv={s.name_of(error)}")
    s.check(len(got) < 100000 and bytes(got) == s.pattern(100000)[:len(got)], "data differs")


def slow_reader(role, *where):
    """A reader that rests: the writer waits, close() loses nothing."""
    sock = pair(role, *where)
    amount = 3 << 20
    if role == "server":
        got = bytearray()
        for _ in range(8):
            time.sleep(0.3)
            got += sock.recv(20000)
        got += s.read_exactly(sock, 1 << 30)
        s.equal("length", amount, len(got))
        s.check(bytes(got) == s.pattern(amount), "data differs")
    else:
        sock.setblocking(False)
        data, sent, full = memoryview(s.pattern(amount)), 0, 0
        while sent < amount:
            try:
                sent += sock.send(data[sent:])
            except BlockingIOError:
                full += 1
                s.check(select.select([], [sock], [], s.LIMIT)[1], "not writable again")
        s.check(full > 0, "the buffers were never full")
        sock.close()


def killed(role, *where):
    """The client is killed while both sides send (see the shell)."""
    sock = pair(role, *where)
    if role == "client":
        with open(where[2] + ".pid", "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
        sock.sendall(b"y" * 1000)
        time.sleep(60)
    s.equal("first data", b"y" * 1000, s.read_exactly(sock, 1000))
    s.touch(where[2] + ".read")
    if os.environ["SIDE"] == "reader":
        # Unread data at the peer's death: a reset, as TCP does it.
        started = time.monotonic()
        data = b"z" * 65536

        def fill():
            while True:
                sock.send(data, socket.MSG_NOSIGNAL)

        report("send", fill)
        s.check(time.monotonic() - started < 15, "the error came late")
        report("again", lambda: sock.send(b"x", socket.MSG_NOSIGNAL))
        report("recv", lambda: sock.recv(10))
    else:
        # Nothing unread: the end of the stream.
        report("recv", lambda: sock.recv(10))
    sock.close()


def abort(role, *where):
    """SO_LINGER {1, 0} and close()."""
    sock = pair(role, *where)
    if role == "client":
        sock.sendall(b"a" * 10)
        s.equal("answer", b"b", sock.recv(1))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        return
    s.equal("first data", b"a" * 10, s.read_exactly(sock, 10))
    sock.sendall(b"b")
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    events = dict(poll.poll(15000)).get(sock.fileno(), 0)
    s.check(events & select.POLLERR and events & select.POLLHUP, f"events after a reset: {events:#x}")
    report("recv", lambda: sock.recv(10))
    report("again", lambda: sock.recv(10))
    report("send", lambda: sock.send(b"x", socket.MSG_NOSIGNAL))


def unread(role, *where):
    """close() with unread data resets the peer, as RFC 2525 asks of TCP."""
    sock = pair(role, *where)
    if role == "client":
        s.until(lambda: sock.recv(5, socket.MSG_PEEK) == b"aaaaa", what="data")
        sock.close()
        return
    sock.sendall(b"a" * 5)
    report("recv", lambda: sock.recv(10))


def shutdown_read(role, *where):
    """SHUT_RD: reads end at once; SHUT_RDWR on both sides ends the connection."""
    sock = pair(role, *where)
    if role == "server":
        sock.shutdown(socket.SHUT_RD)
        report("recv", lambda: sock.recv(10))
        sock.sendall(b"still")
        sock.shutdown(socket.SHUT_RDWR)
        report("send", lambda: sock.send(b"x", socket.MSG_NOSIGNAL))
    else:
        s.equal("data", b"still", s.read_exactly(sock, 5))
        s.equal("end", b"", sock.recv(1))
        sock.shutdown(socket.SHUT_RDWR)


def woken(role, *where):
    """A blocked recv() and a blocked send() end when another thread shuts the socket down."""
    import threading

    sock = s.real_blocking(pair(role, *where))
    if role == "server":
        thread = threading.Timer(1, lambda: sock.shutdown(socket.SHUT_RDWR))
        thread.start()
        started = time.monotonic()
        report("recv", lambda: sock.recv(10))
        s.check(time.monotonic() - started < 10, "recv() was not woken")
        thread.join()
        sock.close()
    else:
        report("peer", lambda: sock.recv(10))


s.run({f.__name__: f for f in (half_close, close_with_data, linger, linger_limit, slow_reader, killed, abort, unread,
                               unread_and_sending, shutdown_read, woken)})
