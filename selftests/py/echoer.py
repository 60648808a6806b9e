# SPDX-License-Identifier: GPL-2.0
"""A server that sends everything back, one that reads nothing, and clients that check what comes back: one as often
as it is told, one that waits for the end of its connection, one with many connections."""

import concurrent.futures
import fcntl
import itertools
import os
import resource
import select
import signal
import socket
import statistics
import sys
import threading
import time

import smcsock as s

CHUNK = 3000
# A long round is more than an element holds.
SHORT, LONG = [s.pattern(CHUNK)], [s.pattern(20000, number) for number in range(10)]
# Rounds where nothing else goes on, and long ones.
CALM, CALM_LONG = 12, 5
# After so many rounds there is a long one, while something goes on.
EVERY = 10
# What takes no longer than so many times what it took before is not slow.
SEEMS_SLOW = 2


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
    """Accepts until it is killed; more than a program may have open by default."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
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


def closing(host, port, ready, how):
    """Listens until there is a file READY.close, which it removes: closes then, and says how many milliseconds that took
    and whether the port was free, or is killed."""
    def bound():
        sock = s.smc_socket(host)
        sock.bind((host, int(port)))
        return sock

    sock = bound()
    sock.listen(256)
    s.touch(ready)
    s.until(lambda: os.path.exists(f"{ready}.close"), 100, "the file")
    os.unlink(f"{ready}.close")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    sock.close()
    took = round((time.monotonic() - started) * 1000)
    bound().close()
    s.say("closed", took)


def exchange(conn, pieces):
    """Sends pieces, of which two are under way at most, and compares what comes back; gives the milliseconds it took."""
    started = time.monotonic()
    conn.sendall(pieces[0])
    for piece, ahead in zip(pieces, pieces[1:] + [b""]):
        conn.sendall(ahead)
        if s.read_exactly(conn, len(piece)) != piece:
            raise AssertionError("other bytes came back")
    return (time.monotonic() - started) * 1000


def one_round(conn, number, size=CHUNK):
    """Sends something, and compares what comes back."""
    return exchange(conn, [s.pattern(size, number)])


def rounds_until_told(conn):
    """Rounds with short pauses, and long ones, until standard input says something; their times in milliseconds."""
    short, long = [], []
    while told() is None:
        short.append(one_round(conn, len(short)))
        if len(short) % EVERY == 0:
            long.append(exchange(conn, LONG))
    return short, long


def in_turn(conns, pieces, count):
    """So many rounds over each of the connections; their times in milliseconds, for each turn."""
    times = []
    for _ in range(count):
        time.sleep(0.02)
        times.append([exchange(conn, pieces) for conn in conns])
    return times


class Still:
    """What is usual when nothing else goes on: the times of rounds, short and long ones, and those of the same over TCP. A
    machine that has other things to do makes both slower."""

    def __init__(self, conn, plain):
        short, long = in_turn((conn, plain), SHORT, CALM), in_turn((conn, plain), LONG, CALM_LONG)
        self.rounds = [time for time, _ in short]
        self.longs = [time for time, _ in long]
        self.short, self.plain_short = map(statistics.median, zip(*short))
        self.long, self.plain_long = map(statistics.median, zip(*long))

    def where_tcp_is_as_in(self, other):
        """What its times would have been there, if that is slower: what TCP takes varies more than that of a machine."""
        return (self.short * max(1, other.plain_short / self.plain_short),
                self.long * max(1, other.plain_long / self.plain_long))


def seems_slow(times, before):
    """Whether these rounds took longer than one did before."""
    return times and statistics.median(times) > SEEMS_SLOW * before


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
    """One round after the other, as standard input says: after `calm` some when nothing else goes on, after `go` until
    `tell`. After the former it says the usual time of a round in milliseconds, and what that was the first time, which
    changes with that of TCP alone; and both for long rounds. After the latter, how many rounds there were, the usual time
    when it was calm, before or (if they seem slow) afterwards, and then, the longest, and by how much a sleep was longer
    than asked for; and how many long rounds there were, and their usual times."""
    sleeper = Sleeper()
    conn = s.need_smc(s.connect(host, int(port)))
    # To the same server, which takes it for what it is.
    plain = socket.create_connection((host, int(port)), s.LIMIT)
    # The first rounds are slower than all others.
    Still(conn, plain)
    calm = first = Still(conn, plain)
    while (word := sys.stdin.readline().strip()) != "":
        if word == "calm":
            calm = Still(conn, plain)
            short, long = first.where_tcp_is_as_in(calm)
            s.say("calm", *(f"{time:.1f}" for time in (calm.short, short, calm.long, long)))
        elif word == "go":
            sleeper.worst = 0.0
            short, long = rounds_until_told(conn)
            behind, after = calm, []
            if seems_slow(short, calm.short) or seems_slow(long, calm.long):
                # The machine may have become slower meanwhile by itself. What stays slow, the next `calm` tells.
                behind = Still(conn, plain)
                after = behind.rounds + behind.longs
            # A case that failed at once has left no time for any.
            s.say("told", len(short), f"{max(calm.short, behind.short):.1f}",
                  f"{statistics.median(short or behind.rounds):.1f}", int(max(short + long + after, default=0)),
                  int(sleeper.worst), len(long), f"{max(calm.long, behind.long):.1f}",
                  f"{statistics.median(long or [behind.long]):.1f}")
    s.need_smc(conn)
    conn.shutdown(socket.SHUT_WR)
    s.equal("rest", b"", conn.recv(1))


def until_true(what):
    """Waits for that."""
    end = time.monotonic() + 240
    while not what():
        if time.monotonic() > end:
            raise AssertionError("it does not come")
        time.sleep(0.02)


def until_ready(file):
    """Waits for that file."""
    until_true(lambda: os.path.exists(file))


def guest(host, port, rounds, ready):
    """Waits until somebody listens, and connects. So many rounds; then says how the connection ends, or,
    before, why there is none."""
    s.touch(ready + ".up")
    until_ready(ready)
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


def connected(host, port, ready):
    """A connection, when somebody listens."""
    until_ready(ready)
    return s.need_smc(s.connect(host, int(port)))


def late(host, port, ready):
    """When READY.closed is there, the peer has closed with data left. Says how much that is."""
    s.touch(ready + ".up")
    sock = connected(host, port, ready)
    until_ready(ready + ".closed")
    # The message that tells of the data says that the peer has closed, too.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.poll(20000)
    s.equal("bytes that are taken", 1, sock.send(b"x"))
    try:
        raise AssertionError(sock.send(b"x"))
    except BrokenPipeError:
        pass
    # Nobody is told of an end yet.
    poll.modify(sock, select.POLLIN | select.POLLRDHUP)
    s.equal("what is there", [(sock.fileno(), select.POLLIN)], poll.poll(0))
    os.remove(ready + ".closed")
    # Whoever has read all, and hears nothing for a while, is told of the end.
    until_true(lambda: int.from_bytes(fcntl.ioctl(sock, s.SIOCINQ, bytes(4)), sys.byteorder) > 100)
    amount = 0
    while data := sock.recv(1000):
        amount += len(data)
    s.say("smc", amount)


def less(host, port, ready):
    """Wants to send less ahead when READY.chosen is there; says how much it can."""
    s.touch(ready + ".up")
    until_ready(ready)
    sock = s.smc_socket(host)
    sock.setblocking(False)
    sock.connect_ex((host, int(port)))
    until_ready(ready + ".chosen")
    # The kernel doubles it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    os.remove(ready + ".chosen")
    amount, wait = 0, 60
    while select.select([], [sock], [], wait)[1]:
        wait = 2
        amount += sock.send(bytes(1000))
    s.need_smc(sock)
    until_ready(ready + ".sent")
    s.say(amount)
    os.remove(ready + ".sent")


def guests(host, port, count, ready):
    """A connection to each of so many ports behind this one, number N when READY.N is there. Says which are SMC, as N-M.
    Ends when all connections have."""
    s.touch(ready + ".up")
    conns = []
    for number in range(1, int(count) + 1):
        until_ready(f"{ready}.{number}")
        conns.append(s.real_blocking(s.smc_socket(host), 100))
        conns[-1].connect((host, int(port) + number))
    modes = [(mode, [number for number, _ in some])
             for mode, some in itertools.groupby(enumerate(conns, 1), lambda one: s.is_smc(one[1]))]
    s.say(*(f"{'smc' if mode else 'tcp'} {some[0]}-{some[-1]}" for mode, some in modes))
    for conn in conns:
        try:
            s.equal("what comes", b"", conn.recv(1))
        except ConnectionResetError:
            pass


if __name__ == "__main__":
    {"server": server, "keeper": keeper, "client": client, "guest": guest, "guests": guests, "crowd": crowd,
     "late": late, "less": less, "closing": closing}[sys.argv[1]](*sys.argv[2:])
