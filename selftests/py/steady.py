# SPDX-License-Identifier: GPL-2.0
"""One end of connections that carry data in both directions all the time, every byte of which is checked.

usage: steady.py server|client HOST PORT FILE CONNECTIONS
Files that begin with FILE are what it is told and says: FILE itself, once the server listens; FILE.server and
FILE.client, once all connections are there. At FILE.mark.N (from 1 on) each side waits until something has come over
every connection since, and writes the longest time for which one of them has stood still since the last mark, in
milliseconds, to FILE.moved.N.ROLE. At FILE.end all data ends. Each side then says `N BYTES BYTES` for each connection,
by what the client sent and the server did.
"""

import os
import random
import sys
import threading
import time

import smcsock as s
from race import pattern

# After a link has gone, data moves again, or the connection is lost.
PATIENCE = 60


class Connection:
    """One end: `over` is set when it is not to send any more."""

    def __init__(self, number, sock, over):
        self.number, self.sock, self.over = number, s.real_blocking(sock, PATIENCE), over
        self.sent = self.received = 0
        self.last = time.monotonic()
        self.longest = 0.0
        self.error = None
        self.threads = [threading.Thread(target=self.guard, args=(part,)) for part in (self.sends, self.receives)]
        for thread in self.threads:
            thread.start()

    def guard(self, part):
        """Runs a part; what it fails with is kept."""
        try:
            part()
        except (AssertionError, OSError) as error:
            self.error = error
            self.over.set()

    def place(self, role, position):
        """Where in the pattern a byte stands: no two streams have the same content in the same place."""
        return (2 * self.number + (role == "client")) * 4001 + position

    def sends(self):
        """Until it is over."""
        rng = random.Random(self.number)
        while not self.over.is_set():
            self.sent += self.sock.send(pattern(self.place(ROLE, self.sent), rng.randint(1, 100000)))
        self.sock.shutdown(s.socket.SHUT_WR)

    def receives(self):
        """Until the end, which is that of what we send, too."""
        other = {"client": "server", "server": "client"}[ROLE]
        while data := self.sock.recv(100000):
            if data != pattern(self.place(other, self.received), len(data)):
                raise AssertionError(f"wrong content after {self.received} bytes")
            self.received += len(data)
            now = time.monotonic()
            self.longest = max(self.longest, now - self.last)
            self.last = now
        self.over.set()


def mark(connections, path):
    """Waits until all have moved, and says how long one of them has stood still at most since the last mark."""
    since = time.monotonic()
    while standing := [one for one in connections if one.last <= since]:
        broken = [f"{one.number}: {one.error}" for one in connections if one.error]
        s.check(not broken, "; ".join(broken))
        s.check(time.monotonic() < since + PATIENCE, f"{len(standing)} connections stand still")
        time.sleep(0.01)
    worst = max(one.longest for one in connections)
    for one in connections:
        one.longest = 0.0
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(f"{1000 * worst:.0f}\n")
    os.rename(f"{path}.new", path)


def told(connections, base, over):
    """Does what files say, until it is over."""
    number = 1
    while not over.wait(0.05):
        if os.path.exists(f"{base}.mark.{number}"):
            mark(connections, f"{base}.moved.{number}.{ROLE}")
            number += 1
        if os.path.exists(f"{base}.end"):
            over.set()


def main():
    """Entry point."""
    _, host, port, base, count = sys.argv[1:]
    connections, over = [], threading.Event()
    if ROLE == "server":
        listener = s.listener(host, int(port))
        s.touch(base)
    for number in range(int(count)):
        sock = s.accept(listener) if ROLE == "server" else s.connect(host, int(port))
        # Who is accepted in which order is the network's business.
        if ROLE == "client":
            sock.sendall(bytes([number]))
        else:
            number = s.read_exactly(sock, 1)[0]
        connections.append(Connection(number, sock, over))
    s.touch(f"{base}.{ROLE}")
    told(connections, base, over)
    for one in sorted(connections, key=lambda one: one.number):
        for thread in one.threads:
            thread.join()
        s.check(one.error is None, f"connection {one.number}: {one.error}")
        s.need_smc(one.sock)
        amounts = one.sent, one.received
        s.say(one.number, *(amounts if ROLE == "client" else reversed(amounts)))


ROLE = sys.argv[1]
main()
