# SPDX-License-Identifier: GPL-2.0
"""Opens many connections, waits for READY.go, and sends a message each way on every one.

usage: many.py server|client HOST PORT COUNT READY
"""

import os
import sys
import time

import smcsock as s


def go(ready):
    """Waits for the shell, which knows for how long."""
    while not os.path.exists(ready + ".go"):
        time.sleep(0.05)


def main():
    """Entry point."""
    role, host, port, count, ready = sys.argv[1:]
    count = int(count)
    if role == "server":
        listener = s.listener(host, int(port), 256)
        s.touch(ready)
        socks = [s.accept(listener) for _ in range(count)]
        go(ready)
        for sock in socks:
            data = s.read_exactly(sock, 1000)
            s.equal("request", 1000, len(data))
            sock.sendall(data[::-1])
        for sock in socks:
            s.equal("end", b"", sock.recv(1))
    else:
        socks = [s.connect(host, int(port)) for _ in range(count)]
        s.touch(ready + ".open")
        go(ready)
        for number, sock in enumerate(socks):
            sock.sendall(s.pattern(1000, number))
        for number, sock in enumerate(socks):
            s.equal("answer", s.pattern(1000, number)[::-1], s.read_exactly(sock, 1000))
    for sock in socks:
        sock.close()


main()
