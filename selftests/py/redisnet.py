# SPDX-License-Identifier: GPL-2.0
"""redisnet.py HOST PORT REPLICA-SOCKET: what redis makes of its connections.

Redis' own tests run over the loopback device (selftests/one/redis). This is a set of our own on the same
subjects, between two hosts: protocol errors, requests cut anywhere, pipelines, large arguments, clients that
are listed, killed and limited, output buffers, blocking commands, publishing, and a replica that follows,
loses its link and goes on.
"""

import hashlib
import os
import random
import socket
import sys
import threading
import time

HOST, PORT, REPLICA = sys.argv[1], int(sys.argv[2]), sys.argv[3]
LIMIT = 60


class RedisError(Exception):
    """An error that redis answered."""


class Client:
    """A connection."""

    def __init__(self, unix=None):
        if unix:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(LIMIT)
            self.sock.connect(unix)
        else:
            self.sock = socket.create_connection((HOST, PORT), LIMIT)
        self.file = self.sock.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.file.close()
        self.sock.close()

    def send(self, *words):
        self.sock.sendall(request(*words))

    def reply(self):
        line = self.file.readline()
        if not line:
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            data = self.file.read(int(rest) + 2)
            if len(data) != int(rest) + 2:
                raise EOFError
            return data[:-2]
        assert kind == b"*", line
        return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]

    def ask(self, *words):
        self.send(*words)
        return self.reply()

    def info(self, section):
        lines = self.ask("info", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def ends(self):
        """Whether the server closes the connection, whatever it still had to say."""
        try:
            while self.file.read(65536):
                pass
        except ConnectionError:
            # It closed with requests unread: ECONNRESET, or EPIPE behind its end of file, as with TCP.
            pass
        return True


def request(*words):
    """A command as redis wants it."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def until(what, *args):
    """Waits until it holds."""
    end = time.monotonic() + LIMIT
    while not what(*args):
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.05)


def raises(text, action, *args):
    """It has to be refused with that text."""
    try:
        got = action(*args)
    except RedisError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{text}: got {got!r}")


def protocol_errors():
    """What is no request is told so, and the connection ends."""
    wrong = {
        b"*-10\r\nPING\r\n*1\r\n$4\r\nquit\r\n": None,
        b"*3000000000\r\n": "invalid multibulk length",
        b"*blabla\r\n": "invalid multibulk length",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n": "expected '$', got 'f'",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$-10\r\n": "invalid bulk length",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2000000000\r\n": "invalid bulk length",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$blabla\r\n": "invalid bulk length",
        b'set """ """\r\n': "unbalanced quotes in request",
        b"x" * 70000: "too big inline request",
        b"*1\r\n$" + b"1" * 70000: "too big bulk count string",
        b"*" + b"1" * 70000: "too big mbulk count string",
    }
    for data, text in wrong.items():
        with Client() as client:
            try:
                client.sock.sendall(data)
            except ConnectionError:
                assert len(data) > 60000, data[:40]
            if text:
                try:
                    raises("Protocol error: " + text, client.reply)
                except ConnectionError:
                    # It closes with our bytes unread; its answer may be lost by that.
                    assert len(data) > 60000, data[:40]
            assert client.ends()
    with Client() as client:
        client.sock.sendall(b"\r\n\r\nPING\r\n")
        assert client.reply() == b"PONG"
        raises("wrong number of arguments", client.ask, "ping", "x", "y", "z")
        raises("unknown command", client.ask, "nonsense")
        assert client.ask("ping") == b"PONG"


def cut_requests():
    """A request may come in any pieces."""
    rest = random.Random(3)
    with Client() as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request("set", "cut", "value"):
            client.sock.send(bytes([byte]))
        assert client.reply() == b"OK"
        data = b"".join(request("append", "pieces", b"%06d" % n) for n in range(400))
        while data:
            length = rest.randint(1, 700)
            client.sock.sendall(data[:length])
            data = data[length:]
        assert [client.reply() for _ in range(400)] == [6 * n for n in range(1, 401)]
        assert client.ask("get", "pieces") == b"".join(b"%06d" % n for n in range(400))


def pipelines():
    """Many requests at once; the answers come in order."""
    with Client() as client:
        client.ask("set", "count", 0)
        client.sock.sendall(request("incr", "count") * 4000)
        assert [client.reply() for _ in range(4000)] == list(range(1, 4001))
        # As much as makes redis wait for room: the answers are not read until all is sent.
        value = os.urandom(10000)
        client.ask("set", "ten", value)
        client.sock.sendall(request("get", "ten") * 400)
        assert all(client.reply() == value for _ in range(400))


def large_arguments():
    """Values that fill buffers many times over."""
    with Client() as client:
        for size in (65535, 65536, 300001, 6000000):
            value = random.Random(size).randbytes(size)
            assert client.ask("set", "large", value) == b"OK"
            assert client.ask("strlen", "large") == size
            got = client.ask("get", "large")
            assert hashlib.sha256(got).digest() == hashlib.sha256(value).digest(), size
        many = [f"m{n}" for n in range(2000)]
        assert client.ask("rpush", "list", *many) == 2000
        assert client.ask("lrange", "list", 0, -1) == [word.encode() for word in many]
        client.ask("del", "large", "list")


def listed(client, **wanted):
    """The clients with these attributes."""
    found = []
    for line in client.ask("client", "list").decode().splitlines():
        one = dict(word.split("=", 1) for word in line.split())
        if all(one.get(name) == value for name, value in wanted.items()):
            found.append(one)
    return found


def killing():
    """Clients are known by their addresses, and end when they are told to."""
    with Client() as one, Client() as two, Client() as three:
        address = "%s:%d" % two.sock.getsockname()[:2]
        # It is connected, and the server may yet have to accept it.
        until(lambda: len(listed(one, addr=address, laddr=f"{HOST}:{PORT}")) == 1)
        assert one.ask("client", "kill", address) == b"OK"
        assert two.ends()
        until(lambda: not listed(one, addr=address))
        raises("No such client", one.ask, "client", "kill", address)
        three.ask("client", "setname", "third")
        number = listed(one, name="third")[0]["id"]
        assert one.ask("client", "kill", "id", number) == 1
        assert three.ends()
    with Client() as one:
        # In the middle of an answer that nobody reads.
        with Client() as two:
            one.ask("set", "big", b"b" * 4000000)
            two.ask("client", "setname", "reader")
            two.send("get", "big")
            until(lambda: any(int(c["omem"]) + int(c["obl"]) > 0 or c["cmd"] == "get" for c in listed(one, name="reader")))
            one.ask("client", "kill", "id", listed(one, name="reader")[0]["id"])
            assert two.ends()
        # Itself: the answer arrives first.
        assert one.ask("client", "kill", "id", one.ask("client", "id"), "skipme", "no") == 1
        assert one.ends()


def silent_replies():
    """Requests whose answers are not wanted."""
    with Client() as client:
        client.send("client", "reply", "off")
        client.send("ping")
        client.send("client", "reply", "on")
        assert client.reply() == b"OK"
        client.send("client", "reply", "skip")
        client.send("ping", "skipped")
        assert client.ask("ping", "seen") == b"seen"


def limit_of_clients():
    """One more than there may be is told so."""
    clients = []
    try:
        while True:
            client = Client()
            clients.append(client)
            try:
                if client.ask("ping") != b"PONG":
                    break
            except RedisError as error:
                assert "max number of clients reached" in str(error)
                assert client.ends()
                break
            except ConnectionError:
                # Its answer was lost: it closes without having read our request.
                break
            assert len(clients) < 100
    finally:
        for client in clients:
            client.close()
    # The replica's link is one of them.
    assert 40 <= len(clients) <= 61, len(clients)

    def room():
        try:
            with Client() as client:
                return client.ask("ping") == b"PONG"
        except (RedisError, ConnectionError):
            return False

    until(room)


def idle_clients():
    """Who says nothing is closed."""
    with Client() as one, Client() as two:
        one.ask("config", "set", "timeout", 1)
        two.ask("ping")
        # Who asks now and then stays.
        over = threading.Event()

        def pings():
            while not over.wait(0.2):
                one.ask("ping")
        keeping = threading.Thread(target=pings)
        keeping.start()
        try:
            assert two.ends()
        finally:
            over.set()
            keeping.join()
        one.ask("config", "set", "timeout", 0)


def output_buffers():
    """Who does not read its answers ends when they are too many."""
    with Client() as one:
        one.ask("config", "set", "client-output-buffer-limit", "pubsub 300000 0 0 normal 500000 0 0")
        with Client() as lazy:
            lazy.ask("subscribe", "news")
            message, sent = b"n" * 20000, 0
            while one.ask("publish", "news", message):
                sent += 1
                assert sent < 2000, "the subscriber stays"
            assert sent * len(message) > 300000, sent
            assert lazy.ends()
        with Client() as lazy:
            lazy.ask("client", "setname", "lazy")
            one.ask("set", "ten", b"t" * 10000)
            try:
                lazy.sock.sendall(request("get", "ten") * 2000)
            except ConnectionError:
                pass
            until(lambda: not listed(one, name="lazy"))
            assert lazy.ends()
        one.ask("config", "set", "client-output-buffer-limit", "pubsub 0 0 0 normal 0 0 0")
        assert one.ask("ping") == b"PONG"


def blocking():
    """Clients that wait get what comes, in their order, and may go while they wait."""
    with Client() as one, Client() as two, Client() as pusher:
        two.ask("client", "setname", "second")
        number = one.ask("client", "id")
        one.send("blpop", "queue", 0)
        until(lambda: listed(pusher, id=str(number), cmd="blpop", flags="b"))
        two.send("brpop", "queue", 0)
        until(lambda: listed(pusher, name="second", flags="b"))
        with Client() as gone:
            gone.ask("client", "setname", "gone")
            gone.send("blpop", "queue", 0)
            until(lambda: listed(pusher, name="gone", flags="b"))
        until(lambda: not listed(pusher, name="gone"))
        assert pusher.ask("rpush", "queue", "first") == 1
        assert one.reply() == [b"queue", b"first"]
        assert pusher.ask("rpush", "queue", "second", "third") == 2
        assert two.reply() == [b"queue", b"third"]
        assert pusher.ask("llen", "queue") == 1
        pusher.ask("del", "queue")


def publishing():
    """Subscribers get what is published, in order, and nothing else."""
    with Client() as one, Client() as two, Client() as sender:
        assert one.ask("subscribe", "a", "b") == [b"subscribe", b"a", 1]
        assert one.reply() == [b"subscribe", b"b", 2]
        assert two.ask("psubscribe", "a*") == [b"psubscribe", b"a*", 1]
        for n in range(300):
            sender.send("publish", "a", n)
        assert [sender.reply() for _ in range(300)] == [2] * 300
        for n in range(300):
            assert one.reply() == [b"message", b"a", b"%d" % n]
            assert two.reply() == [b"pmessage", b"a*", b"a", b"%d" % n]
        assert sender.ask("publish", "b", "x") == 1
        assert sender.ask("publish", "c", "x") == 0
        assert one.reply() == [b"message", b"b", b"x"]
        assert one.ask("unsubscribe", "a") == [b"unsubscribe", b"a", 1]
        assert sender.ask("publish", "a", "y") == 1
    with Client() as sender:
        until(lambda: sender.ask("publish", "a", "nobody") == 0)


def transactions():
    """Queued commands run together; a watched key stops them."""
    with Client() as one, Client() as two:
        one.ask("set", "k", 1)
        one.ask("multi")
        assert one.ask("incr", "k") == b"QUEUED"
        assert two.ask("get", "k") == b"1"
        assert one.ask("exec") == [2]
        one.ask("watch", "k")
        two.ask("set", "k", 9)
        one.ask("multi")
        one.ask("incr", "k")
        assert one.ask("exec") is None


def replication():
    """A replica gets everything, and what it missed after its link was lost."""
    with Client() as primary, Client(REPLICA) as replica:
        until(lambda: replica.info("replication")["master_link_status"] == "up")

        def same():
            return primary.ask("debug", "digest") == replica.ask("debug", "digest")

        for n in range(200):
            primary.ask("set", f"r{n}", random.Random(n).randbytes(7000))
        assert primary.ask("wait", 1, LIMIT * 1000) == 1
        until(same)
        partial = int(primary.info("stats")["sync_partial_ok"])
        full = int(primary.info("stats")["sync_full"])
        primary.ask("config", "set", "repl-backlog-size", 8000000)
        # The backlog has to be there before the link goes.
        assert primary.ask("client", "kill", "type", "replica") == 1
        primary.ask("set", "missed", b"m" * 300000)
        until(lambda: int(primary.info("stats")["sync_partial_ok"]) == partial + 1)
        assert primary.ask("wait", 1, LIMIT * 1000) == 1
        until(same)
        assert int(primary.info("stats")["sync_full"]) == full
        # From the beginning, with a data set of some size.
        primary.ask("mset", *[word for n in range(50) for word in (f"l{n}", b"l" * 40000)])
        replica.ask("replicaof", "no", "one")
        assert replica.ask("set", "own", 1) == b"OK"
        replica.ask("replicaof", HOST, PORT)
        until(lambda: int(primary.info("stats")["sync_full"]) == full + 1)
        until(lambda: replica.info("replication")["master_link_status"] == "up")
        assert replica.ask("get", "own") is None
        until(same)


def main():
    for case in (protocol_errors, cut_requests, pipelines, large_arguments, killing, silent_replies,
                 limit_of_clients, idle_clients, output_buffers, blocking, publishing, transactions,
                 replication):
        started = time.monotonic()
        case()
        print(f"# redis: {case.__name__.replace('_', ' ')}, {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
