# SPDX-License-Identifier: GPL-2.0
"""Random system calls on sockets, by processes whose threads share the same few descriptors, which are closed,
replaced and passed on while they are in use.

usage: callfuzz.py SEED SECONDS
Runs where the namespaces `left` and `right` are. Each thread has random numbers of its own, which do not depend on
what calls come to: the same seed has the same calls."""

import array
import collections
import contextlib
import ctypes
import errno
import mmap
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
import warnings

import nl
import race
import uring

AF_SMC, IPPROTO_SMC = 43, 256
WORKERS, THREADS = 4, 3
# The shared descriptors: listeners mostly, and others.
LISTENERS, OTHERS = range(200, 206), range(206, 232)
SLOTS = range(200, 232)
# Seconds after which a call that can be interrupted is, and after which one is taken to hang.
PATIENCE, HANGS = 0.02, race.BOUND
# Calls that each thread makes, however slow the machine.
LEAST = 20
ADDRESSES = {"left": ("10.79.0.1", "fd79::1"), "right": ("10.79.0.2", "fd79::2")}
PORTS = range(7500, 7504)
KINDS = ((AF_SMC, 0), (AF_SMC, 1), (socket.AF_INET, IPPROTO_SMC), (socket.AF_INET, IPPROTO_SMC),
         (socket.AF_INET6, IPPROTO_SMC), (socket.AF_INET, 0), (socket.AF_INET6, 0))
LEVELS = 0, 1, 1, 1, 6, 6, 6, 41, 286, 286, 17, 282, 263, 0xFFFF
SIZES = 0, 1, 2, 3, 4, 4, 4, 4, 5, 7, 8, 12, 16, 17, 28, 100, 104, 255, 4096
VALUES = 0, 1, 1, 1, 2, 3, 5, 100, 4096, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF
LENGTHS = 0, 1, 2, 100, 1000, 4096, 30000, 65536, 100000, 200000, 1 << 31, (1 << 63) - 1
WORDS = b"tls\0", b"smc\0", b"cubic\0", b"reno\0", b"lo\0", b"left\0", b"right\0"
# FIONREAD, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, FIONBIO, FIOASYNC, time stamps, interfaces, unknown ones.
IOCTLS = (0x541B, 0x5411, 0x894B, 0x8905, 0x5421, 0x5452, 0x8906, 0x8907, 0x8912, 0x8910, 0x5401, 0x89E0, 0x7FFFFFFF)
EVENTS = 1, 4, 5, 7, 0x2001, 0x80000005, 0x40000005, 0xC0000005, 0x10000001, 0xFFFFFFFF
MSG_ZEROCOPY, MSG_ERRQUEUE = 0x4000000, 0x2000
# Pipes for requests to io_uring. What those are marked with that accept, and the first one that splices.
PIPES, ACCEPTS, SPLICES = 8, 32, 64
ARENA = 1 << 18


class Calls:
    """Functions of the C library. Each argument is passed as a whole register, whatever it is."""

    def __init__(self):
        self.library = ctypes.CDLL(None, use_errno=True)

    def __getattr__(self, name):
        function = getattr(self.library, name)
        return lambda *words: function(*(ctypes.c_ulong(word & (1 << 64) - 1) for word in words))


libc = Calls()


class Thread:
    """One that makes calls, one after the other."""

    def __init__(self, seed, space):
        self.rng = random.Random(seed)
        self.space = space
        # Apart from what else the process has in memory.
        self.arena = mmap.mmap(-1, ARENA)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.arena))
        self.pipes = os.pipe()
        # A request to io_uring that waits for data holds its pipe meanwhile, and no signal ends who waits for that: these
        # are for one request at a time.
        self.lent = [os.pipe() for _ in range(PIPES)]
        self.free = list(range(PIPES))
        for number in (*self.pipes, *sum(self.lent, ())):
            os.set_blocking(number, False)
        self.epoll = libc.epoll_create1(0)
        self.file = os.open("/proc/self/exe", os.O_RDONLY)
        self.ring = None
        with contextlib.suppress(OSError):
            self.ring = uring.Ring()
        self.calls, self.done = 0, False
        self.now, self.since, self.ident = "", time.monotonic(), 0
        self.seen = collections.Counter()

    # Arguments, some of which are wrong.

    def odd(self):
        return self.rng.random() < 0.1

    def fd(self):
        strange = self.rng.random() < 0.03
        return self.rng.choice([-1, 0x7FFFFFFF, self.file, self.epoll, *self.pipes] if strange else SLOTS)

    def put(self, data, place=0):
        ctypes.memmove(self.base + place, bytes(data), len(data))
        return self.base + place

    def pointer(self, good):
        bad = 0, 1, self.base + ARENA - 1 + (1 << 40), 0xFFFF800000000000, 0x7FFFFFFFF000
        wrong, which = self.rng.random() < 0.05, self.rng.choice(bad)
        return which if wrong else good

    def value(self):
        """Bytes of an option."""
        size, word = self.rng.choice(SIZES), self.rng.choice(WORDS)
        numbers = b"".join(struct.pack("=I", self.rng.choice(VALUES)) for _ in range(8))
        data = word if self.rng.random() < 0.15 else numbers
        return (data + self.rng.randbytes(256) + bytes(4096))[:size], size

    def address(self):
        """An address to bind or connect to: of either host."""
        host = ADDRESSES[self.rng.choice(["left", "right"])]
        port, six = self.rng.choice(PORTS), self.rng.random() < 0.3
        if self.rng.random() < 0.1:
            host, port = ("0.0.0.0", "::"), self.rng.choice([0, port])
        data = (struct.pack("=H", 10) + struct.pack(">HI", port, 0) + socket.inet_pton(10, host[1]) + bytes(4) if six
                else struct.pack("=H", 2) + struct.pack(">H", port) + socket.inet_aton(host[0]) + bytes(8))
        size = len(data)
        if self.odd():
            data = struct.pack("=H", self.rng.choice([0, 1, 2, 10, 16, 43, 65535])) + data[2:]
        if self.odd():
            size = self.rng.choice([0, 1, 2, 8, 15, 16, 27, 28, 128, 129, 0xFFFFFFFF])
        return self.pointer(self.put(data)), size

    def message(self, receives):
        """A msghdr: buffers and control data."""
        vectors, count = b"", self.rng.choice([0, 1, 1, 1, 2, 3, 8])
        for _ in range(count):
            vectors += struct.pack("=QQ", self.pointer(self.base + 8192), self.rng.choice(LENGTHS[:8]))
        control, size = b"", self.rng.choice([0, 0, 0, 16, 20, 64])
        if size:
            control = struct.pack("=QII", self.rng.choice([size, 20, 0, 1 << 40]), self.rng.choice([0, 1, 6]),
                                  self.rng.choice([1, 2, 37, 61])) + self.rng.randbytes(64)
        name = self.put(bytes(128), 4096) if self.rng.random() < 0.2 else 0
        head = struct.pack("=QIIQQQQI4x", name, 128 if name else 0, 0, self.pointer(self.put(vectors, 1024)),
                           self.rng.choice([count, count, count, count + 1, 5000]) if self.odd() else count,
                           self.put(control, 2048) if size or receives else 0, 512 if receives else size, 0)
        return self.pointer(self.put(head, 512))

    def flags(self):
        """Of send and receive: some of them, at times any."""
        number = 0
        for _ in range(self.rng.choice([0, 0, 1, 2, 3])):
            number |= 1 << self.rng.randrange(32)
        return (number | self.rng.choice([0x40, 0x40, 0])) & 0xFFFFFFFF

    # Calls.

    def make(self, number, slots=OTHERS):
        """A descriptor that a call gave takes a place, of which another thread may be making use."""
        slot, flags = self.rng.choice(slots), self.rng.choice([0, os.O_CLOEXEC])
        if number >= 0:
            libc.dup3(number, slot, flags)
            libc.close(number)
        return number

    def socket(self):
        family, protocol = self.rng.choice(KINDS)
        kind = self.rng.choice([2, 3, 5]) if self.odd() else 1
        return self.make(libc.socket(family, kind | self.rng.choice([0, os.O_NONBLOCK]), protocol))

    def listening(self):
        """A listener as it should be."""
        number = libc.socket(2, 1 | os.O_NONBLOCK, IPPROTO_SMC)
        port = self.rng.choice(PORTS)
        if number >= 0:
            for option in socket.SO_REUSEADDR, socket.SO_REUSEPORT:
                libc.setsockopt(number, 1, option, self.put(struct.pack("=I", 1)), 4)
            here = struct.pack("=H", 2) + struct.pack(">H", port) + socket.inet_aton(ADDRESSES[self.space][0])
            libc.bind(number, self.put(here + bytes(8)), 16)
            libc.listen(number, 8)
        return self.make(number, LISTENERS)

    def connecting(self):
        """A connect as it should be, to the other host."""
        number = libc.socket(2, 1 | self.rng.choice([0, os.O_NONBLOCK]), IPPROTO_SMC)
        there = ADDRESSES["left" if self.space == "right" else "right"][0]
        port = self.rng.choice(PORTS)
        if number >= 0:
            there = struct.pack("=H", 2) + struct.pack(">H", port) + socket.inet_aton(there) + bytes(8)
            libc.connect(number, self.put(there), 16)
        return self.make(number)

    def bind(self):
        return libc.bind(self.fd(), *self.address())

    def connect(self):
        return libc.connect(self.fd(), *self.address())

    def listen(self):
        return libc.listen(self.fd(), self.rng.choice([0, 1, 8, -1, 0x7FFFFFFF]))

    def accept(self):
        size = self.pointer(self.put(struct.pack("=I", self.rng.choice([0, 16, 128, 0xFFFFFFFF]))))
        name, size = self.rng.choice([(0, 0), (self.base + 64, size)])
        number = self.fd() if self.odd() else self.rng.choice(LISTENERS)
        return self.make(libc.accept4(number, name, size, self.rng.choice([0, os.O_NONBLOCK, os.O_CLOEXEC, 7])))

    def send(self):
        return libc.send(self.fd(), self.pointer(self.base + 4096), self.rng.choice(LENGTHS), self.flags())

    def recv(self):
        return libc.recv(self.fd(), self.pointer(self.base + 4096), self.rng.choice(LENGTHS[:8]), self.flags())

    def sendmsg(self):
        return libc.sendmsg(self.fd(), self.message(False), self.flags())

    def recvmsg(self):
        return libc.recvmsg(self.fd(), self.message(True), self.flags())

    def several(self):
        """Many messages in one call."""
        receives, count = self.rng.random() < 0.5, self.rng.choice([0, 1, 2, 3, 8])
        self.message(receives)
        heads = self.pointer(self.put((ctypes.string_at(self.base + 512, 56) + bytes(8)) * count, 1536))
        if not receives:
            return libc.sendmmsg(self.fd(), heads, count, self.flags())
        limit = self.put(struct.pack("=QQ", 0, self.rng.choice([0, 10**6, 10**9])), 256)
        return libc.recvmmsg(self.fd(), heads, count, self.flags(), self.rng.choice([0, limit]))

    def request(self):
        """One to io_uring, which may be done much later, by another thread of the kernel, or never; or after the one
        before it. One that accepts may do so again and again, and not before somebody calls."""
        buffer, length = self.pointer(self.base + 4096), self.rng.choice(LENGTHS[:8])
        here = 0xFFFFFFFFFFFFFFFF
        op, fd, *rest = self.rng.choice([
            lambda: (uring.POLL_ADD, self.fd(), 0, self.rng.choice([0, 1]), 0, self.rng.choice(EVENTS)),
            lambda: (uring.SENDMSG, self.fd(), self.message(False), 1, 0, self.flags()),
            lambda: (uring.RECVMSG, self.fd(), self.message(True), 1, 0, self.flags()),
            lambda: (uring.ACCEPT, self.rng.choice(LISTENERS), 0, 0, 0, self.rng.choice([0, os.O_NONBLOCK])),
            lambda: (uring.CANCEL, self.fd(), self.rng.randrange(64), 0, 0, self.rng.choice([0, 1, 3, 5])),
            lambda: (uring.CONNECT, self.fd(), *self.named()),
            lambda: (uring.CLOSE, self.rng.choice(SLOTS)),
            lambda: (uring.READ, self.fd(), buffer, length, here),
            lambda: (uring.WRITE, self.fd(), buffer, length, here),
            lambda: (uring.SEND, self.fd(), buffer, length, 0, self.flags()),
            lambda: (uring.RECV, self.fd(), buffer, length, 0, self.flags()),
            lambda: (uring.SPLICE, self.fd(), here, length, here, self.rng.choice([0, 2, 3])),
            lambda: (uring.SHUTDOWN, self.fd(), 0, self.rng.choice([0, 1, 2])),
            lambda: (uring.SEND_ZC, self.fd(), buffer, length, 0, self.flags()),
        ])()
        other, mark = 0, self.rng.randrange(32) + (ACCEPTS if op == uring.ACCEPT else 0)
        if op == uring.SPLICE:
            other, end = -1, -1
            if self.free:
                place = self.free.pop()
                (other, end), mark = self.lent[place], SPLICES + place
            if self.rng.random() < 0.5:
                fd, other = end, fd
        return uring.entry(op, fd, *rest, priority=self.rng.choice([0, 0, 1, 4]), mark=mark,
                           how=self.rng.choice([0, 0, 0, uring.LINK, uring.ASYNC]), other=other)

    def named(self):
        """An address, no length, and the address' size, as CONNECT wants it."""
        address, size = self.address()
        return address, 0, size

    def uring(self):
        """A few requests to io_uring; and what has come of others."""
        requests = [self.request() for _ in range(self.rng.choice([1, 1, 2, 3]))]
        if not self.ring:
            ctypes.set_errno(errno.EPERM)
            return -1
        for request in requests:
            self.ring.put(request)
        taken = self.ring.enter(len(requests), 0, uring.GET_EVENTS)
        while found := self.ring.take():
            mark, result, _ = found
            self.seen["done by uring", "ok" if result >= 0 else errno.errorcode.get(-result, "?")] += 1
            if mark >= SPLICES:
                self.free.append(mark - SPLICES)
            elif mark >= ACCEPTS and result >= 0:
                # When it came depends on time, and what comes after it must not.
                libc.dup3(result, OTHERS[(mark - ACCEPTS) % len(OTHERS)], 0)
                libc.close(result)
        return taken

    def zerocopy(self):
        """Sends pages of this process, and looks for notices."""
        number = self.fd()
        libc.setsockopt(number, 1, 60, self.put(struct.pack("=I", 1)), 4)
        sent = libc.send(number, self.base + 4096, self.rng.choice(LENGTHS[:8]), MSG_ZEROCOPY | 0x40)
        libc.recvmsg(number, self.message(True), MSG_ERRQUEUE | 0x40)
        return sent

    def splice(self):
        amount, flags = self.rng.choice(LENGTHS), self.rng.choice([0, 2, 3, 6, 15, 16])
        number = self.fd()
        if self.rng.random() < 0.5:
            libc.write(self.pipes[1], self.base, 4096)
            return libc.splice(self.pipes[0], 0, number, 0, amount, flags)
        done = libc.splice(number, 0, self.pipes[1], 0, amount, flags)
        libc.read(self.pipes[0], self.base, ARENA)
        return done

    def sendfile(self):
        return libc.sendfile(self.fd(), self.file, 0, self.rng.choice(LENGTHS[:9]))

    def setsockopt(self):
        data, size = self.value()
        level, name = self.rng.choice(LEVELS), self.rng.randrange(80)
        if self.odd():
            name, size = self.rng.choice([1000, 0xFFFFFFFF, 254]), self.rng.choice([-1, 0x7FFFFFFF, size])
        return libc.setsockopt(self.fd(), level, name, self.pointer(self.put(data)), size)

    def getsockopt(self):
        level, name = self.rng.choice(LEVELS), self.rng.choice([self.rng.randrange(80), 1000])
        size = self.put(struct.pack("=i", self.rng.choice([*SIZES, -1, 0x7FFFFFFF])))
        return libc.getsockopt(self.fd(), level, name, self.pointer(self.base + 64), self.pointer(size))

    def names(self):
        size = self.pointer(self.put(struct.pack("=i", self.rng.choice([0, 1, 16, 28, 128, -1]))))
        return self.rng.choice([libc.getsockname, libc.getpeername])(self.fd(), self.pointer(self.base + 64), size)

    def ioctl(self):
        value = self.put(struct.pack("=I", self.rng.choice([0, 1])))
        return libc.ioctl(self.fd(), self.rng.choice(IOCTLS), self.pointer(value))

    def poll(self):
        data = b"".join(struct.pack("=ihH", self.fd(), self.rng.choice([0, 1, 4, 5, 0x2007]), 0) for _ in range(5))
        return libc.poll(self.pointer(self.put(data)), 5, self.rng.choice([0, 0, 1, 20]))

    def epolls(self):
        entry = self.pointer(self.put(struct.pack("=IQ", self.rng.choice(EVENTS), 7)))
        libc.epoll_ctl(self.epoll, self.rng.choice([1, 1, 2, 3, 9]), self.fd(), entry)
        return libc.epoll_wait(self.epoll, self.pointer(self.base + 64), 8, self.rng.choice([0, 0, 1, 20]))

    def shutdown(self):
        return libc.shutdown(self.fd(), self.rng.choice([0, 1, 2, 2, 3, -1]))

    def fcntl(self):
        number = self.fd()
        # F_SETOWN: only to ourselves.
        libc.fcntl(number, 8, os.getpid())
        libc.fcntl(number, 10, self.rng.choice([0, 0, signal.SIGIO, signal.SIGUSR1]))
        return libc.fcntl(number, 4, self.rng.choice([0, 0x2000, 0x800, 0x2800, 0x4000]))

    def close(self):
        return libc.close(self.rng.choice(SLOTS))

    def dup(self):
        return libc.dup2(self.rng.choice(SLOTS), self.rng.choice(SLOTS))

    def give(self):
        """Another process gets a descriptor, or this one gets one back."""
        rights = array.array("i", [self.rng.choice(SLOTS)])
        if self.rng.random() < 0.5:
            MAIL[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            return self.rng.choice(SLOTS) and 0
        slot = self.rng.choice(SLOTS)
        _, control, _, _ = MAIL[1].recvmsg(1, socket.CMSG_SPACE(4))
        for _, _, data in control:
            number = struct.unpack("=i", data)[0]
            libc.dup2(number, slot)
            libc.close(number)
        return 0

    def fork(self):
        """A process that has all of them for a moment, and ends with some calls in it."""
        number, how = self.fd(), self.rng.randrange(3)
        child = os.fork()
        if child == 0:
            if how == 0:
                libc.send(number, self.base, 100, 0x4040)
            elif how == 1:
                libc.shutdown(number, 2)
            os._exit(0)
        os.waitpid(child, 0)
        return child

    def alarm(self):
        """A signal for the process, whichever thread gets it."""
        os.kill(os.getpid(), signal.SIGUSR1)
        return 0

    def run(self, end, dismissed):
        """Calls, until the time is up. A thread that may be sent signals has to be there."""
        self.calling(lambda: time.monotonic() < end or self.calls < LEAST)
        self.done = True
        dismissed.wait()

    def calling(self, goes_on):
        """Calls, one after the other."""
        self.ident = threading.get_native_id()
        while goes_on():
            self.one()

    def one(self):
        """A call."""
        often = [self.socket, self.listening, self.connecting, self.connecting, self.accept, self.accept, self.accept,
                 self.send, self.send, self.recv, self.recv, self.sendmsg, self.recvmsg, self.setsockopt,
                 self.setsockopt, self.getsockopt, self.poll, self.epolls, self.splice]
        seldom = [self.bind, self.connect, self.listen, self.zerocopy, self.sendfile, self.names, self.ioctl,
                  self.several, self.uring, self.uring, self.uring, self.shutdown, self.fcntl, self.close, self.close,
                  self.dup, self.give, self.alarm]
        call = self.rng.choice(often if self.rng.random() < 0.7 else seldom)
        if self.rng.random() < 0.005:
            call = self.fork
        self.count(call)

    def count(self, call):
        """Makes it, and notes what it comes to."""
        self.now, self.since = call.__name__, time.monotonic()
        ctypes.set_errno(0)
        try:
            result = call()
            code = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "ok"
        except OSError as error:
            code = errno.errorcode.get(error.errno, "?")
        self.seen[self.now, code] += 1
        self.calls += 1


# Through which descriptors go from process to process.
MAIL = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


def enter(space):
    """This process is one of that host, and calls of its threads can be interrupted."""
    with open(f"/run/netns/{space}", "rb") as file:
        os.setns(file.fileno(), os.CLONE_NEWNET)
    os.setpgid(0, 0)
    for name in signal.SIGUSR1, signal.SIGIO, signal.SIGPIPE, signal.SIGURG:
        signal.signal(name, lambda *_: None)
        signal.siginterrupt(name, True)


def attend(threads, bodies):
    """Interrupts threads whose calls last, until all of them are done. Gives what is wrong, or nothing."""
    while not all(thread.done for thread in threads):
        time.sleep(0.01)
        for thread, body in zip(threads, bodies):
            assert body.is_alive(), "a thread has died"
            lasts = time.monotonic() - thread.since
            if not thread.done and lasts > PATIENCE:
                signal.pthread_kill(body.ident, signal.SIGUSR1)
            if not thread.done and lasts > HANGS:
                return f"{thread.now} hangs in thread {thread.ident} of process {os.getpid()}"
    return ""


def tell(name, threads):
    """What calls of some threads came to."""
    seen = sum((thread.seen for thread in threads), collections.Counter())
    total, good = collections.Counter(), collections.Counter()
    for (call, code), count in seen.items():
        total[call] += count
        good[call] += count if code == "ok" else 0
    said = ", ".join(f"{call} {good[call]} of {count}" for call, count in sorted(total.items()))
    os.write(1, f"# {name}: {said}\n".encode())


def worker(seed, number, end):
    """A process of some threads; the first of its threads looks after the others. Gives what is wrong, or nothing."""
    space = ("left", "right")[number % 2]
    enter(space)
    if number == WORKERS - 1:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    threads = [Thread(f"{seed} {number} {place}", space) for place in range(THREADS)]
    dismissed = threading.Event()
    bodies = [threading.Thread(target=thread.run, args=(end, dismissed), daemon=True) for thread in threads]
    for body in bodies:
        body.start()
    wrong = attend(threads, bodies)
    if wrong:
        return wrong
    dismissed.set()
    tell(f"worker {number}", threads)
    idle = [thread.calls for thread in threads if thread.calls < LEAST]
    return f"worker {number} has made no progress: {idle} calls" if idle else ""


def share():
    """Descriptors that all processes have in common from the beginning: two connections, one of them over TCP, and
    listeners."""
    for end_of_it in MAIL:
        end_of_it.setblocking(False)
    with nl.inside("left"):
        listening = socket.create_server((ADDRESSES["left"][0], PORTS[-1] + 1))
        smc = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SMC)
        smc.bind((ADDRESSES["left"][0], PORTS[-1] + 2))
        smc.listen(8)
    for place, target in enumerate([smc, smc, smc, listening]):
        with nl.inside("right"), socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SMC) as client:
            client.connect(target.getsockname())
            with target.accept()[0] as server:
                os.dup2(client.fileno(), OTHERS[2 * place])
                os.dup2(server.fileno(), OTHERS[2 * place + 1])
    listening.close()
    smc.close()


def workers(count, work, end):
    """Has so many processes do work(number), which gives what is wrong; all of them are done some time after the end.
    Gives whether all went well."""
    children = {}
    sys.stdout.flush()
    for number in range(count):
        child = os.fork()
        if child == 0:
            wrong = "an exception"
            try:
                wrong = work(number)
                if wrong:
                    print(f"# {wrong}", race.stacks(os.getpid()), sep="\n", flush=True)
            finally:
                os._exit(1 if wrong else 0)
        children[child] = number
    os.closerange(SLOTS[0], SLOTS[-1] + 1)
    well = True
    limit = end + 2 * HANGS
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            number = children.pop(child)
            if status:
                well = False
                print(f"# worker {number} ended with {os.waitstatus_to_exitcode(status)}", flush=True)
        elif time.monotonic() > limit:
            well = False
            for child, number in children.items():
                print(f"# worker {number} is not done", race.stacks(child), sep="\n", flush=True)
                os.kill(child, signal.SIGKILL)
            break
        else:
            time.sleep(0.05)
    return well


def main():
    """Starts the workers; exits with 1 if one of them hangs or dies."""
    # A child that is forked while there are threads makes a call or two and ends.
    warnings.simplefilter("ignore", DeprecationWarning)
    share()
    end = time.monotonic() + float(sys.argv[2])
    sys.exit(0 if workers(WORKERS, lambda number: worker(sys.argv[1], number, end), end) else 1)


if __name__ == "__main__":
    main()
