# SPDX-License-Identifier: GPL-2.0
"""A server that sends everything back, and clients that check that: one until it is told to stop, one
that waits for the end of its connection."""

import os
import socket
import sys
import threading
import time

import smcsock as s

CHUNK = 3000


def serve(conn):
    """Everything back, until the end; says how that came."""
    how = "end"
    amount = 0
    try:
        conn.settimeout(None)
        while data := conn.recv(65536):
            amount += len(data)
            conn.sendall(data)
    except OSError as error:
        how = s.name_of(error)
    conn.close()
    s.say("ended", how, amount)


def server(host, port, ready):
    """Accepts until it is killed."""
    sock = s.listener(host, int(port), 64)
    sock.settimeout(None)
    s.touch(ready)
    while True:
        try:
            conn, _ = sock.accept()
        except OSError as error:
            s.say("accept", s.name_of(error))
            continue
        threading.Thread(target=serve, args=(conn,), daemon=True).start()


def one_round(conn, number):
    """Sends something, and compares what comes back."""
    data = s.pattern(CHUNK, number)
    conn.sendall(data)
    if s.read_exactly(conn, CHUNK) != data:
        raise AssertionError(f"round {number}: other bytes came back")


def client(host, port, ready, stop):
    """One round after the other; says how many, and the longest time of one in milliseconds."""
    conn = s.connect(host, int(port))
    rounds, worst = 0, 0.0
    s.touch(ready)
    while not os.path.exists(stop) or rounds < 10:
        started = time.monotonic()
        one_round(conn, rounds)
        worst = max(worst, time.monotonic() - started)
        rounds += 1
        time.sleep(0.02)
    s.need_smc(conn)
    conn.shutdown(socket.SHUT_WR)
    s.equal("rest", b"", conn.recv(1))
    s.say(rounds, int(worst * 1000))


def guest(host, port, rounds):
    """So many rounds; then says how the connection ends, or, before, why there is none."""
    sock = s.real_blocking(s.smc_socket(host), 30)
    try:
        sock.connect((host, int(port)))
    except OSError as error:
        s.say("connect", s.name_of(error))
        return
    mode = "smc" if s.is_smc(sock) else "tcp"
    try:
        for number in range(int(rounds)):
            one_round(sock, number)
        how = "end" if sock.recv(1) == b"" else "data"
    except OSError as error:
        how = s.name_of(error)
    s.say(mode, how)


if __name__ == "__main__":
    {"server": server, "client": client, "guest": guest}[sys.argv[1]](*sys.argv[2:])
