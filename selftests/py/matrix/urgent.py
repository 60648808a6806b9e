# SPDX-License-Identifier: GPL-2.0
"""Urgent data: MSG_OOB, SO_OOBINLINE, SIOCATMARK, SIGURG."""

import fcntl
import os
import select
import signal
import socket

from . import raw
from .harness import SIOCATMARK

SOL = socket.SOL_SOCKET
SO_PEEK_OFF = 42


def ends(t):
    """A pair whose server is told of urgent data by SIGURG."""
    client, server = t.pair()
    seen = t.catch(signal.SIGURG)
    fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid())
    return client, server, seen


def one_urgent_byte(t):
    client, server, seen = ends(t)
    t.do("none yet", server.recv, 1, raw.OOB)
    t.note("mark", t.number(server, SIOCATMARK))
    t.do("send", client.send, b"abcX", raw.OOB)
    t.poll("poll", server, 2)
    t.note("signal", t.until(lambda: seen) and seen)
    t.arrived(server, 3)
    t.note("readable", t.number(server, 0x541B))
    t.do("peek", server.recv, 1, raw.OOB | raw.PEEK)
    t.note("mark", t.number(server, SIOCATMARK))
    t.do("up to the mark", server.recv, 10)
    t.note("mark", t.number(server, SIOCATMARK))
    t.do("urgent", server.recvmsg, 10, 0, raw.OOB)
    t.do("again", server.recv, 1, raw.OOB)
    t.poll("poll", server)
    client.send(b"def")
    t.arrived(server, 3, t.never)
    t.do("after the mark", server.recv, 10)
    t.note("mark", t.number(server, SIOCATMARK))
    t.note("signals", seen)


def urgent_in_line(t):
    client, server, seen = ends(t)
    server.setsockopt(SOL, socket.SO_OOBINLINE, 1)
    client.send(b"abcX", raw.OOB)
    t.poll("poll", server, 3)
    t.note("signal", t.until(lambda: seen) and seen)
    client.send(b"def")
    t.arrived(server, 7, t.never)
    t.do("urgent", server.recv, 1, raw.OOB)
    t.note("mark", t.number(server, SIOCATMARK))
    t.do("up to the mark", server.recv, 10)
    t.note("mark", t.number(server, SIOCATMARK))
    t.poll("poll", server)
    t.do("the rest", raw.recv, server, 4, raw.WAITALL)
    t.note("mark", t.number(server, SIOCATMARK))
    t.poll("poll", server)


def urgent_first(t):
    """The mark is at the very start of what can be read."""
    client, server, _ = ends(t)
    client.send(b"X", raw.OOB)
    t.poll("poll", server, 2)
    t.note("mark", t.number(server, SIOCATMARK))
    t.do("recv without blocking", server.recv, 10, raw.DONTWAIT)
    client.send(b"abc")
    t.poll("poll", server, 3, t.never)
    t.do("recv", server.recv, 10)
    t.do("urgent, afterwards", server.recv, 1, raw.OOB)
    t.poll("poll", server)


def two_urgent_bytes(t):
    client, server, seen = ends(t)
    client.send(b"aX", raw.OOB)
    t.poll("poll", server, 2)
    t.until(lambda: len(seen) == 1)
    client.send(b"bY", raw.OOB)
    t.note("signals", t.until(lambda: len(seen) == 2, t.never))
    t.poll("poll", server, 3)
    t.do("urgent", server.recv, 1, raw.OOB)
    t.do("recv", server.recv, 1)
    t.arrived(server, 1)
    t.settled(server)
    t.do("recv", server.recv, 10, raw.DONTWAIT)
    t.note("mark", t.number(server, SIOCATMARK))


def urgent_is_read_late(t):
    """Reading on drops the urgent byte."""
    client, server, _ = ends(t)
    client.send(b"aX", raw.OOB)
    client.send(b"bc")
    t.arrived(server, 3, t.never)
    t.do("recv", server.recv, 10)
    t.do("recv", server.recv, 10)
    t.do("urgent", server.recv, 1, raw.OOB)


def urgent_flags(t):
    client, server, _ = ends(t)
    client.send(b"aX", raw.OOB)
    t.poll("poll", server, 3)
    t.do("into nothing", raw.recv, server, 0, raw.OOB)
    t.do("truncated", raw.recv, server, 1, raw.OOB | raw.TRUNC)
    client.send(b"bY", raw.OOB)
    t.poll("poll", server, 3, t.never)
    t.do("bad pointer", raw.call, "recv", server.fileno(), raw.ctypes.c_void_p(raw.BAD),
         raw.LONG(1), raw.OOB)
    t.do("again", server.recv, 1, raw.OOB)
    t.do("not waiting", server.recv, 1, raw.OOB | raw.DONTWAIT)
    t.do("recv", server.recv, 1)


def urgent_and_select(t):
    client, server, _ = ends(t)
    t.note("nothing", select.select([server], [], [server], 0.1) == ([], [], []))
    client.send(b"X", raw.OOB)
    got = select.select([], [], [server], 5)
    t.note("exceptional", got[2] == [server])
    server.recv(1, raw.OOB)
    t.note("no longer", select.select([], [], [server], 0.1)[2] == [])
    client.close()
    t.note("the end is readable", select.select([server], [], [], 5)[0] == [server])


def urgent_to_a_blocked_reader(t):
    client, server, _ = ends(t)
    seen = t.catch(signal.SIGURG)
    signal.siginterrupt(signal.SIGURG, False)
    urgent = t.soon(client.send, b"X", raw.OOB)
    t.soon(lambda: (urgent.join(), client.send(b"late")), after=0.8)
    t.do("recv", raw.recv, server, 10)
    t.note("signals", seen)
    t.do("urgent", server.recv, 1, raw.OOB)


def urgent_at_the_end(t):
    client, server, _ = ends(t)
    client.send(b"abX", raw.OOB)
    client.close()
    t.poll("poll", server, 0x2003)
    t.do("recv", server.recv, 10)
    t.do("urgent", server.recv, 1, raw.OOB)
    t.do("end", server.recv, 10)
    t.do("urgent at the end", server.recv, 1, raw.OOB)


def urgent_with_more(t):
    """Sent together with other data, in one call and in several."""
    client, server, _ = ends(t)
    client.send(b"ab", raw.MORE)
    client.send(b"cX", raw.OOB)
    client.send(b"de")
    t.poll("poll", server, 3)
    t.arrived(server, 5, t.never)
    t.do("recv", server.recv, 10)
    t.do("urgent", server.recv, 1, raw.OOB)
    t.do("recv", server.recv, 10)
    t.do("by sendmsg", client.sendmsg, [b"f", b"", b"gX"], [], raw.OOB)
    t.poll("poll", server, 3)
    t.do("urgent", server.recv, 1, raw.OOB)
    t.do("recv", server.recv, 10)


def peeking_on_behind_the_mark(t):
    client, server, _ = ends(t)
    server.setsockopt(SOL, socket.SO_OOBINLINE, 1)
    server.setsockopt(SOL, SO_PEEK_OFF, 0)
    client.send(b"abc", raw.OOB)
    t.arrived(server, 3)
    for _ in range(3):
        t.do("peek", raw.recv, server, 10, raw.PEEK | raw.DONTWAIT)
    t.note("place", server.getsockopt(SOL, SO_PEEK_OFF))
    t.do("recv", server.recv, 10)
    t.note("place", server.getsockopt(SOL, SO_PEEK_OFF))
    t.do("recv", server.recv, 10)


def peeking_behind_the_mark_at_the_end(t):
    client, server, _ = ends(t)
    server.setsockopt(SOL, SO_PEEK_OFF, 0)
    client.send(b"abcX", raw.OOB)
    client.close()
    t.poll("poll", server, 0x2003)
    for _ in range(2):
        t.do("peek", raw.recv, server, 10, raw.PEEK)


def a_mark_within_urgent_data(t):
    """Who polls for more than there is in front of the urgent byte learns of what is there, and the rest comes."""
    client, server, _ = ends(t)
    server.setsockopt(SOL, socket.SO_RCVLOWAT, 1000)
    client.send(b"123456789X", raw.OOB)
    t.soon(client.sendall, bytes(5000), after=0.3)
    poll, got = select.poll(), 0
    poll.register(server, select.POLLIN)
    # The last ones are fewer than it wants.
    while got < 4500 and poll.poll(8000):
        got += len(server.recv(500))
    t.note("bytes that poll() told of", got >= 4500)


SCRIPTS = [
    one_urgent_byte, urgent_in_line, urgent_first, two_urgent_bytes, urgent_is_read_late,
    urgent_flags, urgent_and_select, urgent_to_a_blocked_reader, urgent_at_the_end,
    urgent_with_more, a_mark_within_urgent_data, peeking_on_behind_the_mark, peeking_behind_the_mark_at_the_end,
]
