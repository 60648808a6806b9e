# SPDX-License-Identifier: GPL-2.0
"""How long data stands still: small messages go to and fro all the time on several connections.

usage: still.py server HOST PORT READY CONNECTIONS
       still.py client HOST PORT STARTED CONNECTIONS SECONDS
The client writes the file STARTED when all connections move, checks each answer, and prints the
longest time in milliseconds that one of them had to wait for it, and the longest before STARTED.
"""

import struct
import sys
import threading
import time

import smcsock as s

MESSAGE = struct.Struct("=Q")
# Questions of each connection before STARTED.
CALM = 10


def answer(sock):
    """Server: sends back what comes, until the end."""
    while True:
        data = sock.recv(65536)
        if not data:
            break
        sock.sendall(data)
    sock.close()


def ask(sock, until, moving, waits):
    """Client: one question after the other."""
    number, longest, calm = 0, 0.0, 0.0
    while time.monotonic() < until:
        question = MESSAGE.pack(number)
        started = time.monotonic()
        sock.sendall(question)
        got = s.read_exactly(sock, len(question))
        longest = max(longest, time.monotonic() - started)
        if got != question:
            raise AssertionError(f"question {number} was answered by {got!r}")
        number += 1
        if number == CALM:
            calm = longest
            moving.release()
    sock.close()
    waits.append((longest, calm))


def run(threads):
    """Runs them, and until their end."""
    for thread in threads:
        thread.start()
    return threads


def server(host, port, ready, connections):
    """Takes so many connections."""
    listener = s.listener(host, port)
    s.touch(ready)
    threads = []
    for _ in range(connections):
        sock = s.accept(listener)
        threads += run([threading.Thread(target=answer, args=(sock,))])
    for thread in threads:
        thread.join()


def client(host, port, started, connections, seconds):
    """Makes so many connections and uses them for so long."""
    socks = [s.connect(host, port) for _ in range(connections)]
    waits, moving = [], [threading.Semaphore(0) for _ in socks]
    until = time.monotonic() + seconds
    threads = run(
        [
            threading.Thread(target=ask, args=(sock, until, semaphore, waits))
            for sock, semaphore in zip(socks, moving)
        ]
    )
    for semaphore in moving:
        semaphore.acquire()
    s.touch(started)
    for thread in threads:
        thread.join()
    if len(waits) != connections:
        raise AssertionError(f"{connections - len(waits)} connections failed")
    s.say(*(round(max(times) * 1000) for times in zip(*waits)))


def main():
    """Entry point."""
    role, host, port, path, connections = sys.argv[1:6]
    if role == "server":
        server(host, int(port), path, int(connections))
    else:
        client(host, int(port), path, int(connections), float(sys.argv[6]))


main()
