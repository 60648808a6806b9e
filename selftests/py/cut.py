# SPDX-License-Identifier: GPL-2.0
"""One end of connections that are cut: sends and receives until an error, and reports it.

usage: cut.py server|client HOST PORT READY CONNECTIONS MODE
MODE is busy (both directions all the time), idle (waits in recv()) or kept (the same, and the client
has its first connection kept alive, with a sign of life every 2 seconds).
Prints for each connection `recv=NAME send=NAME seconds=N`; `end` for an end of file; N: how long the
last byte had come before the error.
"""

import socket
import sys
import threading
import time

import smcsock as s


def until_error(action, moved=lambda: None):
    """Repeats it until it fails or the stream ends; the name of the error."""
    try:
        while action():
            moved()
        return "end"
    except OSError as error:
        return s.name_of(error)


def drive(sock, busy, lines):
    """One connection, until both directions have ended."""
    s.real_blocking(sock, 90)
    result, came = {}, [time.monotonic()]
    data = b"c" * 30000

    def note():
        came[0] = time.monotonic()

    def receive():
        result["recv"] = until_error(lambda: sock.recv(65536), note)

    def send():
        result["send"] = until_error(lambda: sock.send(data, 0x4000))

    threads = [threading.Thread(target=receive)]
    if busy:
        threads.append(threading.Thread(target=send))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - came[0]
    # A second call tells what a program sees that was not waiting.
    result.setdefault("send", until_error(lambda: sock.send(data, 0x4000)))
    lines.append(f"recv={result['recv']} send={result['send']} seconds={seconds:.0f}")
    sock.close()


def main():
    """Entry point."""
    role, host, port, ready, connections, mode = sys.argv[1:]
    lines, threads = [], []
    if role == "server":
        listener = s.listener(host, int(port))
        s.touch(ready)
    for _ in range(int(connections)):
        sock = s.accept(listener) if role == "server" else s.connect(host, int(port))
        if (role, mode, threads) == ("client", "kept", []):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        thread = threading.Thread(target=drive, args=(sock, mode == "busy", lines))
        thread.start()
        threads.append(thread)
    s.touch(ready + "." + role)
    for thread in threads:
        thread.join()
    s.say("\n".join(lines))


main()
