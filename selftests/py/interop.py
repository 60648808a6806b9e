# SPDX-License-Identifier: GPL-2.0
"""Both ends of connections between this implementation and Linux's own.

usage: interop.py FOLDER

Serves until whoever started it ends: for each file N.run with a line

    CASE server|client HOST PORT READY EXPECT [ARGUMENT...]

a child plays that part. What it says goes to N.out, its exit code to N.code. (A program for each part would
take most of an emulated guest's time to start.) The server makes the file READY when it listens. EXPECT is
what our end has to be, smc or tcp; on the other, whose kernel does not tell, it is `any`.
"""

import array
import collections
import concurrent.futures
import glob
import hashlib
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import smcsock as s

EXPECT = "any"


def checked(sock):
    """The socket, if it is what it has to be."""
    if EXPECT != "any":
        s.equal("mode", EXPECT, "smc" if s.is_smc(sock) else "tcp")
    return sock


def listen(host, port, ready, backlog=256):
    """A listening socket, of which the client is told."""
    sock = s.listener(host, port, backlog)
    s.touch(ready)
    return sock


def accept(listener):
    """An accepted socket."""
    child, _ = listener.accept()
    child.settimeout(s.LIMIT)
    return checked(child)


def connect(host, port):
    """A connected socket."""
    sock = s.smc_socket(host)
    sock.connect((host, port))
    return checked(sock)


def pair(role, host, port, ready):
    """Our end of one connection."""
    if role == "client":
        return connect(host, port)
    with listen(host, port, ready) as listener:
        return accept(listener)


def send_random(sock, amount, seed):
    """Bytes that the seed makes, in writes of random sizes; their digest goes last."""
    rng = random.Random(seed)
    digest = hashlib.sha256()
    while amount:
        data = rng.randbytes(min(amount, rng.choice((1, 100, 4096, 30000, 100000))))
        digest.update(data)
        sock.sendall(data)
        amount -= len(data)
    sock.sendall(digest.digest())


def receive_random(sock, amount, seed):
    """Reads what the other side sent, in reads of random sizes, and compares."""
    rng = random.Random(seed)
    digest = hashlib.sha256()
    while amount:
        data = sock.recv(min(amount, rng.choice((1000, 20000, 65536, 200000))))
        s.check(data, f"the stream ends {amount} bytes early")
        digest.update(data)
        amount -= len(data)
    s.equal("digest", digest.digest(), s.read_exactly(sock, 32))


def bulk(role, host, port, ready, amount):
    """Much data in both directions at once."""
    amount = int(amount)
    sock = pair(role, host, port, ready)
    failures = []

    def write():
        try:
            send_random(sock, amount, role)
        except OSError as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    receive_random(sock, amount, role + " reads")
    writer.join()
    s.equal("failures of the writer", [], failures)
    sock.shutdown(socket.SHUT_WR)
    s.equal("end", b"", sock.recv(1))


def counted(start, amount):
    """A part of a stream of numbers of eight bytes, which count up."""
    first = start // 8
    numbers = array.array("Q", range(first, (start + amount) // 8 + 1)).tobytes()
    return numbers[start - first * 8 :][:amount]


class Misplaced(AssertionError):
    """A part of a stream is where another one belongs, `gap` bytes before its own place."""

    def __init__(self, text, gap):
        super().__init__(text)
        self.gap = gap


def check_counted(start, data, who):
    """That this is the part of the stream; if not, which part of it is there instead."""
    if data == counted(start, len(data)):
        return
    wrong = next(i for i, pair in enumerate(zip(data, counted(start, len(data)))) if pair[0] != pair[1])
    place = start + wrong
    unit = wrong + -place % 8
    found = int.from_bytes(data[unit : unit + 8], "little") * 8
    gap = found - place - -place % 8
    raise Misplaced(f"{who}: at {place} of the stream is what belongs to {found} ({gap}), {wrong} of {len(data)} bytes "
                    "into what was received", gap)


def there_and_back(sock, place, size):
    """The next block of a stream goes to a server that gives it back; tells where the one after that begins."""
    block = counted(place, size)
    writer = threading.Thread(target=sock.sendall, args=(block,))
    writer.start()
    data = s.read_exactly(sock, size)
    check_counted(place, data, "at the client")
    s.equal("bytes that came back", size, len(data))
    writer.join()
    return place + size


def steady(role, host, port, ready):
    """Blocks of all sizes go there and back until there is the file READY.stop. Both ends look at the data."""
    sock = pair(role, host, port, ready)
    if role == "server":
        place = 0
        while data := sock.recv(65536):
            check_counted(place, data, "at the server")
            place += len(data)
            sock.sendall(data)
        sock.close()
        return
    rng = random.Random(port)
    s.touch(f"{ready}.client")
    rounds = place = 0
    while not os.path.exists(f"{ready}.stop"):
        place = there_and_back(sock, place, rng.choice((1, 3000, 50000, 150000)))
        rounds += 1
    sock.shutdown(socket.SHUT_WR)
    s.equal("end", b"", sock.recv(1))
    s.say(f"# {rounds} blocks")


# What Linux sends from, if nobody asks for another size.
LINUX_BUFFER = 65536


def endured(role, host, port, ready):
    """As `steady`, where a card of Linux goes. What that sends again may be what belongs a buffer's length later, which
    our end sees, and it may give a connection up: Documentation/peers.md. Two files, READY.ours.end and
    READY.linux.end, say how it went."""
    end = "whole"
    try:
        steady(role, host, port, ready)
    except Misplaced as error:
        if EXPECT == "any" or error.gap != LINUX_BUFFER:
            raise
        s.say(f"# {error}")
        end = "damaged"
        s.touch(f"{ready}.damaged")
    except TimeoutError:
        raise
    except OSError as error:
        end = s.name_of(error)
    except AssertionError:
        if EXPECT != "any":
            raise
        # Our end hangs up when it has seen enough.
        end = "cut off" if os.path.exists(f"{ready}.damaged") else "given up"
    with open(f"{ready}.{'linux' if EXPECT == 'any' else 'ours'}.end", "w", encoding="ascii") as file:
        file.write(end)


def one_way(role, host, port, ready):
    """Our end sends until there is the file READY.stop. The other one looks at the data, makes the file READY.more if it
    is not there and much has come since it was, and says how much it was."""
    sock = pair(role, host, port, ready)
    s.touch(f"{ready}.{role}")
    place = 0
    if EXPECT == "any":
        since = 0
        while data := sock.recv(65536):
            check_counted(place, data, "at Linux")
            place += len(data)
            if os.path.exists(f"{ready}.more"):
                since = place
            elif place - since > 300_000:
                s.touch(f"{ready}.more")
        sock.sendall(place.to_bytes(8, "big"))
        sock.close()
        return
    rng = random.Random(port)
    while not os.path.exists(f"{ready}.stop"):
        size = rng.choice((1, 3000, 50000, 150000))
        sock.sendall(counted(place, size))
        place += size
    sock.shutdown(socket.SHUT_WR)
    s.equal("bytes that arrived", place, int.from_bytes(s.read_exactly(sock, 8), "big"))
    s.equal("end", b"", sock.recv(1))
    s.say(f"# {place} bytes")


def ping_pong(role, host, port, ready, count):
    """Small messages to and fro."""
    sock = pair(role, host, port, ready)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for number in range(int(count)):
        size = 1 if number % 3 else 4096
        message = s.pattern(size, number)
        if role == "client":
            sock.sendall(message)
            s.equal("answer", message[::-1], s.read_exactly(sock, size))
        else:
            s.equal("request", message, s.read_exactly(sock, size))
            sock.sendall(message[::-1])
    sock.close()


def urgent(role, host, port, ready):
    """An urgent byte in the midst of others, each way."""
    sock = pair(role, host, port, ready)

    def say():
        sock.sendall(b"before")
        sock.send(b"!", socket.MSG_OOB)
        sock.sendall(b"behind")

    def hear():
        poll = select.poll()
        poll.register(sock, select.POLLPRI)
        s.check(poll.poll(10_000), "no urgent data")
        s.equal("urgent byte", b"!", sock.recv(1, socket.MSG_OOB))
        data = b""
        while len(data) < 12:
            more = sock.recv(12 - len(data))
            s.check(more, "end of the stream")
            data += more
        s.equal("other bytes", b"beforebehind", data)

    if role == "client":
        say()
        hear()
    else:
        hear()
        say()
    # Neither closes before the other is done.
    sock.shutdown(socket.SHUT_WR)
    s.equal("end", b"", sock.recv(1))


def half_close(role, host, port, ready):
    """The client ends its direction; the server still has much to say."""
    sock = pair(role, host, port, ready)
    if role == "client":
        sock.sendall(s.pattern(100_000))
        sock.shutdown(socket.SHUT_WR)
        s.equal("answer", s.pattern(200_000, 2), s.read_exactly(sock, 1 << 30))
    else:
        s.equal("request", s.pattern(100_000), s.read_exactly(sock, 1 << 30))
        time.sleep(0.3)
        sock.sendall(s.pattern(200_000, 2))
    sock.close()


def abort(role, host, port, ready, who):
    """One end closes with unread data, which is the only abort that Linux's implementation knows."""
    sock = pair(role, host, port, ready)
    sock.sendall(b"hello")
    s.equal("greeting", b"hello", s.read_exactly(sock, 5))
    if role == who:
        s.check(select.select([sock], [], [], s.LIMIT)[0], "nothing to leave unread")
        sock.close()
        return
    sock.sendall(b"unread")
    try:
        data = sock.recv(1)
    except ConnectionResetError:
        return
    s.check(EXPECT == "any", f"no error, but {data!r}")
    # Linux shows the end of the stream to readers, and the error only to who asks.
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    s.equal("end and error", (b"", "ECONNRESET"), (data, s.name_of_code(error)))


def reset(role, host, port, ready, who):
    """One end closes so that nothing is waited for (SO_LINGER with 0 s). Linux ends in order all the same."""
    sock = pair(role, host, port, ready)
    sock.sendall(b"hello")
    s.equal("greeting", b"hello", s.read_exactly(sock, 5))
    if role == who:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        return
    try:
        data, code = sock.recv(1), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except ConnectionResetError as error:
        data, code = b"", error.errno
    expected = "ECONNRESET" if EXPECT == "any" else "0"
    s.equal("end and error", (b"", expected), (data, s.name_of_code(code)))


def killed(role, host, port, ready, who):
    """One end's program is killed while it sends and does not read. What arrives is what was sent, up to an end."""
    sock = pair(role, host, port, ready)
    if role == who:
        child = os.fork()
        if not child:
            signal.alarm(90)
            place = 0
            while True:
                place += sock.send(counted(place, 40000))
        sock.close()
        until_file(f"{ready}.enough")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return
    sock.sendall(b"unread")
    place = 0
    try:
        while data := sock.recv(65536):
            check_counted(place, data, "who survives")
            place += len(data)
            if place > 300_000:
                s.touch(f"{ready}.enough")
    except ConnectionResetError:
        pass
    s.check(place > 300_000, f"only {place} bytes came")


def listener_goes(role, host, port, ready, rounds):
    """A listener that nobody accepts from is closed and made again, at any moment of the handshakes of three clients.
    Each of these comes to an end, whatever it is told."""
    if role == "server":
        chance = random.Random(11)
        try:
            for _ in range(int(rounds)):
                sock = listen(host, port, ready)
                time.sleep(chance.random() * 0.3)
                sock.close()
        finally:
            s.touch(f"{ready}.over")
        return

    def end_of(error):
        # That of Python's limit has no number.
        s.check(error.errno, "a client waits for ever")
        return s.name_of(error)

    def call():
        got = collections.Counter()
        while not os.path.exists(f"{ready}.over"):
            with s.smc_socket(host) as sock:
                try:
                    sock.connect((host, port))
                except OSError as error:
                    got[end_of(error)] += 1
                    continue
                try:
                    got["connected, then " + repr(sock.recv(1))] += 1
                except OSError as error:
                    got["connected, then " + end_of(error)] += 1
        return got

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        callers = [pool.submit(call) for _ in range(3)]
        got = sum((caller.result() for caller in callers), collections.Counter())
    s.say("#", ", ".join(f"{count} {what}" for what, count in got.items()))
    connected = sum(count for what, count in got.items() if what.startswith("connected"))
    s.check(connected > int(rounds) // 4, f"hardly anybody was connected: {dict(got)}")


def client_goes(role, host, port, ready, rounds):
    """A client of ours goes at any moment of the first contact. What the server has accepted by then comes to an end, whatever it is
    told, before anything else has become of the link group."""
    rounds = range(int(rounds))
    if role == "client":
        chance = random.Random(12)
        for number in rounds:
            with s.smc_socket(host) as sock:
                sock.setblocking(False)
                sock.connect_ex((host, port))
                time.sleep(chance.random() * 0.4 * s.SLOWER)
                if number % 2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.touch(f"{ready}.gone{number}")
            until_file(f"{ready}.next{number}")
            end_groups()
        return
    got, longest = collections.Counter(), 0

    def end_of(sock):
        sock.settimeout(60)
        with sock:
            try:
                got[f"recv={sock.recv(1)!r}"] += 1
            except OSError as error:
                # That of Python's limit has no number.
                got[s.name_of(error) if error.errno else "waits for ever"] += 1

    with listen(host, port, ready) as listener, concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number in rounds:
            ends = []
            listener.settimeout(0.3)
            over = False
            while not over:
                over = os.path.exists(f"{ready}.gone{number}")
                try:
                    ends.append(pool.submit(end_of, accept(listener)))
                except TimeoutError:
                    pass
                except ConnectionError as error:
                    # It had its end before it was accepted.
                    got[f"accept={s.name_of(error)}"] += 1
            began = time.monotonic()
            concurrent.futures.wait(ends)
            longest = max(longest, time.monotonic() - began)
            s.touch(f"{ready}.next{number}")
    s.say("#", f"{len(rounds)} clients, {got.total()} accepted, which ended within {longest:.1f} s:",
          ", ".join(f"{n} {what}" for what, n in got.items()))
    s.equal("servers that wait for ever", 0, got["waits for ever"])
    s.check(got.total(), "none was accepted")


def end_groups():
    """The next connection is a first contact again."""
    listed = subprocess.run(["smcctl", "--json", "groups"], check=True, stdout=subprocess.PIPE, timeout=s.LIMIT)
    for group in json.loads(listed.stdout)["groups"]:
        # It may have ended by itself.
        subprocess.run(["smcctl", "drain", "-g", group["id"]], check=False, stderr=subprocess.DEVNULL, timeout=s.LIMIT)


def left_over(role, host, port, ready, who, how):
    """One end's program ends its stream, or itself, with data that has found no room; the other one, which reads late, gets
    all of it."""
    sock = pair(role, host, port, ready)
    if role == who:
        child = os.fork()
        if not child:
            signal.alarm(90)
            os._exit(fill_and_end(sock, f"{ready}.filled", how))
        sock.close()
        s.equal("status", 0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    until_file(f"{ready}.filled")
    with open(f"{ready}.filled", encoding="ascii") as file:
        total = int(file.read())
    # Linux gives up waiting after 2 s.
    time.sleep(3)
    place = 0
    while data := sock.recv(16384):
        check_counted(place, data, "who reads late")
        place += len(data)
    s.equal("bytes before the end", total, place)
    if how == "shutdown":
        sock.sendall(b"k")
    sock.close()


def fill_and_end(sock, path, how):
    """Sends until there is no room, and ends then. What the process exits with."""
    place = 0
    sock.settimeout(1)
    try:
        while True:
            place += sock.send(counted(place, 40000))
    except TimeoutError:
        pass
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(str(place))
    os.rename(f"{path}.new", path)
    if how == "exit":
        return 0
    sock.settimeout(60)
    sock.shutdown(socket.SHUT_WR)
    return int(sock.recv(10) != b"k")


def until_file(path):
    """Waits until there is a file."""
    s.until(lambda: os.path.exists(path), 100, f"file {path}")


def on_demand(role, host, port, ready):
    """A block goes there and back whenever there is a file READY.N.go, for N from 1 on; then there is READY.N.done.
    The end is where that is empty."""
    sock = pair(role, host, port, ready)
    if role == "server":
        # However long nobody asks.
        sock.settimeout(None)
        while data := sock.recv(65536):
            sock.sendall(data)
        return
    s.touch(f"{ready}.client")
    number = place = 0
    while True:
        number += 1
        until_file(f"{ready}.{number}.go")
        if not os.path.getsize(f"{ready}.{number}.go"):
            break
        place = there_and_back(sock, place, 100_000)
        s.touch(f"{ready}.{number}.done")
    sock.shutdown(socket.SHUT_WR)
    s.equal("end", b"", sock.recv(1))


def held(role, host, port, ready, count):
    """As `on_demand`, with a smaller block over each of many connections."""
    count = int(count)
    if role == "server":
        serve_held(host, port, ready, count)
        return
    socks = [connect(host, port) for _ in range(count)]
    s.touch(f"{ready}.client")
    number = 0
    while True:
        number += 1
        until_file(f"{ready}.{number}.go")
        if not os.path.getsize(f"{ready}.{number}.go"):
            break
        for place, sock in enumerate(socks):
            sock.sendall(s.pattern(3000, number + place))
        for place, sock in enumerate(socks):
            s.equal(f"answer of connection {place}", s.pattern(3000, number + place), s.read_exactly(sock, 3000))
        s.touch(f"{ready}.{number}.done")
    for sock in socks:
        sock.shutdown(socket.SHUT_WR)
        s.equal("end", b"", sock.recv(1))


def serve_held(host, port, ready, count):
    """Gives back what comes over each of these connections, until all have ended."""
    poll, socks = select.poll(), {}
    with listen(host, port, ready) as listener:
        for _ in range(count):
            sock = accept(listener)
            socks[sock.fileno()] = sock
            poll.register(sock, select.POLLIN)
    while socks:
        for number, _ in poll.poll():
            if data := socks[number].recv(65536):
                socks[number].sendall(data)
            else:
                poll.unregister(number)
                socks.pop(number).close()


def sequence(role, host, port, ready, count):
    """One connection after the other."""
    count = int(count)
    if role == "client":
        for number in range(count):
            with connect(host, port) as sock:
                sock.sendall(s.pattern(1000, number))
                s.equal("answer", s.pattern(1000, number)[::-1], s.read_exactly(sock, 1000))
                s.equal("end", b"", sock.recv(1))
        return
    with listen(host, port, ready) as listener:
        for _ in range(count):
            with accept(listener) as sock:
                sock.sendall(s.read_exactly(sock, 1000)[::-1])


def cut(role, host, port, ready):
    """Sends and receives until the connection breaks, for a reason which is none of the programs'."""
    sock = s.real_blocking(pair(role, host, port, ready), 40)
    ends = {}

    def until_error(name, action):
        try:
            while action():
                pass
            ends[name] = "end"
        except OSError as error:
            ends[name] = s.name_of(error)

    data = s.pattern(30000)
    threads = [
        threading.Thread(target=until_error, args=("recv", lambda: sock.recv(65536))),
        threading.Thread(target=until_error, args=("send", lambda: sock.send(data, socket.MSG_NOSIGNAL))),
    ]
    for thread in threads:
        thread.start()
    s.touch(f"{ready}.{role}")
    for thread in threads:
        thread.join()
    s.say(f"# {role}{' (ours)' if EXPECT != 'any' else ''}: {ends}")
    broken = {"ECONNRESET", "ECONNABORTED", "ETIMEDOUT", "ENETDOWN", "ENETUNREACH", "EHOSTUNREACH"}
    # What Linux makes of it is its own matter, if only it knows.
    late = {"timeout", "EAGAIN"}
    s.check(not late & set(ends.values()), f"does not know that the connection has broken: {ends}")
    if EXPECT != "any":
        s.check(broken & set(ends.values()), f"no error of a broken connection: {ends}")
    sock.close()


def paced(role, host, port, ready, count, seconds):
    """One connection after the other, with pauses of about so many seconds."""
    count, pause = int(count), float(seconds)
    rng = random.Random(count)
    if role == "client":
        for number in range(count):
            with connect(host, port) as sock:
                sock.sendall(s.pattern(1000, number))
                s.equal("answer", s.pattern(1000, number)[::-1], s.read_exactly(sock, 1000))
                s.equal("end", b"", sock.recv(1))
            time.sleep(pause * rng.uniform(0.9, 1.1))
        return
    sequence(role, host, port, ready, count)


# Options of a socket whose packets have to go by IPsec, or not.
IP_XFRM_POLICY, XFRM_POLICY_OUT = 17, 1


def ipsec_policy(role, host, port, ready, who):
    """As `sequence 1`; one end's socket has a policy for IPsec of its own, which lets all pass."""
    if role == who:
        selector = struct.pack("=40xH14x", socket.AF_INET)
        limits = struct.pack("=8Q", *[2**64 - 1] * 4, *[0] * 4)
        policy = selector + limits + bytes(32) + struct.pack("=IIBBBB4x", 0, 0, XFRM_POLICY_OUT, 0, 0, 0)
        plain = s.smc_socket

        def with_policy(*args):
            sock = plain(*args)
            sock.setsockopt(socket.IPPROTO_IP, IP_XFRM_POLICY, policy)
            return sock

        s.smc_socket = with_policy
    sequence(role, host, port, ready, 1)


def many(role, host, port, ready, count):
    """Many connections at once."""
    count = int(count)
    if role == "client":
        socks = [connect(host, port) for _ in range(count)]
        for number, sock in enumerate(socks):
            sock.sendall(s.pattern(1000, number))
        for number, sock in enumerate(socks):
            s.equal("answer", s.pattern(1000, number)[::-1], s.read_exactly(sock, 1000))
    else:
        with listen(host, port, ready) as listener:
            socks = [accept(listener) for _ in range(count)]
        for sock in socks:
            sock.sendall(s.read_exactly(sock, 1000)[::-1])
        for sock in socks:
            s.equal("end", b"", sock.recv(1))
    for sock in socks:
        sock.close()


def play(part, words):
    """What a child does: exits."""
    global EXPECT
    # What hangs ends with the test; this is for what it leaves behind.
    signal.alarm(600)
    output = os.open(f"{part}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    case, role, host, port, ready, EXPECT, *rest = words
    if case in ("steady", "endured", "one_way", "cut"):
        # What is done to their links comes first.
        os.nice(10)
    sys.argv[1:] = [case]
    table = (bulk, steady, endured, one_way, ping_pong, urgent, half_close, abort, reset, killed, listener_goes, client_goes,
             left_over, on_demand, held, sequence, paced, ipsec_policy, many, cut)
    s.run({f.__name__: lambda f=f: f(role, host, int(port), ready, *rest) for f in table})
    sys.stdout.flush()


def main():
    """Entry point."""
    folder = sys.argv[1]
    parent = os.getppid()
    children = {}
    while os.getppid() == parent:
        for path in glob.glob(f"{folder}/*.run"):
            with open(path, encoding="ascii") as file:
                words = file.read().split()
            os.remove(path)
            part = path.removesuffix(".run")
            child = os.fork()
            if not child:
                code = 1
                try:
                    play(part, words)
                    code = 0
                except SystemExit as end:
                    code = end.code
                finally:
                    os._exit(code)
            children[child] = part
        for child, part in list(children.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                del children[child]
                with open(f"{part}.new", "w", encoding="ascii") as file:
                    file.write(f"{os.waitstatus_to_exitcode(status)}\n")
                os.rename(f"{part}.new", f"{part}.code")
        time.sleep(0.03)
    for child in children:
        os.kill(child, signal.SIGKILL)


main()
