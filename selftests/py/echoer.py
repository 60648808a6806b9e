# SPDX-License-Identifier: GPL-2.0
"""A server that sends everything back, one that reads nothing, and clients that check what comes back: one as often
as it is told, one that waits for the end of its connection, one with many connections."""

import concurrent.futures
import os
import select
import socket
import statistics
import sys
import threading
import time

import smcsock as s

CHUNK = 3000
# Rounds before anything else goes on.
CALM = 10


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


def keeper(host, port, ready):
    """Accepts until it is killed, and reads nothing."""
    sock = s.listener(host, int(port), 64)
    sock.settimeout(None)
    s.touch(ready)
    kept = []
    while True:
        kept.append(sock.accept())


def one_round(conn, number, size=CHUNK):
    """Sends something, and compares what comes back."""
    data = s.pattern(size, number)
    conn.sendall(data)
    if s.read_exactly(conn, size) != data:
        raise AssertionError(f"round {number}: other bytes came back")


def timed_rounds(conn, go_on):
    """Rounds with short pauses as long as it is said; their times in milliseconds."""
    times = []
    while go_on(times):
        started = time.monotonic()
        one_round(conn, len(times))
        times.append((time.monotonic() - started) * 1000)
    return times


def told():
    """What standard input says within a short pause; None if nothing."""
    if not select.select([sys.stdin], [], [], 0.02)[0]:
        return None
    return sys.stdin.readline().strip()


class Sleeper(threading.Thread):
    """Sleeps for 20 ms at a time: what that takes longer, at most, is the machine's doing."""

    def __init__(self):
        super().__init__(daemon=True)
        self.worst = 0.0
        self.start()

    def run(self):
        while True:
            started = time.monotonic()
            time.sleep(0.02)
            self.worst = max(self.worst, (time.monotonic() - started) * 1000 - 20)


def client(host, port):
    """One round after the other, as standard input says: after `calm` some when nothing else goes on, after
    `go` until `tell`. Then says how many these were, the usual time of a round in milliseconds when it was calm,
    before or afterwards, and then, and the longest, and by how much a sleep was longer than asked for."""
    sleeper = Sleeper()
    conn = s.need_smc(s.connect(host, int(port)))
    def not_told(_):
        return told() is None
    def until_calm(times):
        time.sleep(0.02)
        return len(times) < CALM
    calm = times = []
    while (word := sys.stdin.readline().strip()) != "":
        if word == "calm":
            calm = timed_rounds(conn, until_calm)
            s.say("calm")
        elif word == "go":
            sleeper.worst = 0.0
            times = timed_rounds(conn, not_told)
            rounds = len(times)
            # The machine may have become slower meanwhile by itself.
            behind = timed_rounds(conn, until_calm)
            quiet = max(statistics.median(calm), statistics.median(behind))
            # A case that failed at once has left no time for any.
            times = times or behind
            s.say("told", rounds, f"{quiet:.1f}", f"{statistics.median(times):.1f}", int(max(times + behind)),
                  int(sleeper.worst))
    s.need_smc(conn)
    conn.shutdown(socket.SHUT_WR)
    s.equal("rest", b"", conn.recv(1))


def guest(host, port, rounds, ready):
    """Waits until somebody listens, and connects. So many rounds; then says how the connection ends, or,
    before, why there is none."""
    s.touch(ready + ".up")
    end = time.monotonic() + 240
    while not os.path.exists(ready):
        if time.monotonic() > end:
            raise AssertionError("nobody listens")
        time.sleep(0.02)
    sock = s.real_blocking(s.smc_socket(host), 100)
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


def crowd(host, port, count, ready, size=CHUNK, pause=0):
    """So many connections, which are there when READY.up is: rounds of so many bytes on each of them all the time, or
    so many seconds apart, until READY.stop is there."""
    conns = [s.need_smc(s.connect(host, int(port))) for _ in range(int(count))]
    s.touch(ready + ".up")

    def talk(conn):
        number = 0
        while not os.path.exists(ready + ".stop"):
            one_round(conn, number, int(size))
            number += 1
            time.sleep(float(pause))
        conn.shutdown(socket.SHUT_WR)
        s.equal("rest", b"", conn.recv(1))
        return number

    with concurrent.futures.ThreadPoolExecutor(len(conns)) as pool:
        rounds = list(pool.map(talk, conns))
    s.say(len(rounds), "connections,", min(rounds), "rounds and more")


if __name__ == "__main__":
    {"server": server, "keeper": keeper, "client": client, "guest": guest, "crowd": crowd}[sys.argv[1]](*sys.argv[2:])
