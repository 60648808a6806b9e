# SPDX-License-Identifier: GPL-2.0
"""Less usual ways of data over one connection: IPv6, notices of MSG_ZEROCOPY, splice() and sendfile(), and a reset while
data waits on both sides."""

import contextlib
import os
import select
import socket
import struct
import tempfile

from smcsock import real_blocking
from suite import make, run, uses_smc

LEFT6, RIGHT6 = "fd79::1", "fd79::2"
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
DATA = os.urandom(20000)
# Seconds after which a call hangs: it fails with EAGAIN then.
LIMIT = 60


@contextlib.contextmanager
def addresses():
    """The hosts' cards have IPv6 for a while."""
    def change(what, *more):
        for space, address in ("left", LEFT6), ("right", RIGHT6):
            run("ip", "-n", space, "address", what, f"{address}/64", "dev", space, *more)

    change("add", "nodad")
    try:
        yield
    finally:
        change("delete")


class Pipe:
    """A pipe that ends with its block."""

    def __enter__(self):
        self.ends = os.pipe()
        return self

    def __exit__(self, *_):
        for end in self.ends:
            os.close(end)

    def take(self, move):
        """What `move(end)` puts into it by calls, until there is as much as DATA, or no more."""
        got = bytearray()
        while len(got) < len(DATA) and (moved := move(self.ends[1], len(DATA) - len(got))):
            while moved:
                part = os.read(self.ends[0], moved)
                got += part
                moved -= len(part)
        return bytes(got)

    def spliced_from(self, sock):
        """Data that comes by splice()."""
        return self.take(lambda end, most: os.splice(sock.fileno(), end, most))

    def sent_from(self, sock):
        """Data that comes by sendfile()."""
        return self.take(lambda end, most: os.sendfile(end, sock.fileno(), None, most))

    def splice_to(self, sock, data):
        """Sends data by splice()."""
        left = os.write(self.ends[1], data)
        while left:
            left -= os.splice(self.ends[0], sock.fileno(), left)


def send_file(sock, data):
    """Sends data by sendfile()."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        done = 0
        while done < len(data):
            done += os.sendfile(sock.fileno(), file.fileno(), done, len(data) - done)


def noticed(sock):
    """Whether there is a notice of what has been sent."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(LIMIT * 1000)) and bool(sock.recvmsg(10, 500, socket.MSG_ERRQUEUE)[1])


def same(got):
    """What came is what was sent, to the end or up to a place."""
    assert DATA.startswith(got), f"other data came, {len(got)} bytes"
    return len(got) == len(DATA)


def serve(server):
    """Sends back what comes on a connection, in both ways, and leaves what follows until the reset is there; says whether
    it came to that."""
    with real_blocking(server, LIMIT), Pipe() as pipe:
        for receive, send in (pipe.spliced_from, pipe.splice_to), (pipe.sent_from, send_file):
            if not same(data := receive(server)):
                return False
            send(server, data)
        server.sendall(DATA)
        poll = select.poll()
        poll.register(server, 0)
        assert poll.poll(LIMIT * 1000), "no reset"
        return True


def talk(port):
    """The other side of it; says whether it came to the reset."""
    client = make("right", socket.AF_INET6)
    with client, Pipe() as pipe:
        client.settimeout(LIMIT)
        client.connect((LEFT6, port))
        real_blocking(client, LIMIT)
        client.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        sent = client.send(DATA, MSG_ZEROCOPY)
        # What is not sent by then needs no notice of its own.
        client.sendall(DATA[sent:])
        if not same(pipe.spliced_from(client)):
            return False
        assert noticed(client), "no notice"
        send_file(client, DATA)
        if not same(pipe.sent_from(client)):
            return False
        client.sendall(DATA)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return uses_smc(client)[0]
