# SPDX-License-Identifier: GPL-2.0
"""Runs scripts of system calls on sockets of each kind, and compares what they saw.

A script is a function of a `Trace`. It runs in a process of its own and tells each step's result as
soon as it has it, so that a step that hangs is seen as such, and ended."""

import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import zlib

import nl
from matrix import raw
from suite import IPPROTO_SMC, uses_smc

# tcp: TCP; fallen: ours, over cards without an RDMA device; smc: ours, accelerated; native: the same as a
# socket of the family AF_SMC.
KINDS = "tcp", "fallen", "smc", "native"
AF_SMC = 43
ERESTARTSYS = 512
# Seconds that a step waits for what has to come, and that it may take before it counts as hanging.
LONG, STEP = 15, 40
# How many scripts run at a time: most of them wait most of their time.
AT_ONCE = 12
PORTS_PER_SCRIPT = 8
FIRST_PORT = 10000

BITS = ("IN", 1), ("PRI", 2), ("OUT", 4), ("ERR", 8), ("HUP", 16), ("NVAL", 32), ("RDNORM", 64), \
    ("RDBAND", 128), ("WRNORM", 256), ("WRBAND", 512), ("MSG", 1024), ("RDHUP", 8192)
ALL_BITS = sum(bit for _, bit in BITS)
SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK = 0x541B, 0x5411, 0x894B, 0x8905
SYS_FUTEX = 202


def bits(mask):
    """Bits of poll() by name."""
    return "+".join(name for name, bit in BITS if mask & bit) or "none"


def shown(value):
    """A result as text that is the same for the same result."""
    if isinstance(value, OSError):
        if isinstance(value, TimeoutError) and value.errno is None:
            return "timeout"
        # The kernel's own number for a call that is to be started again shows at times, of TCP too.
        return "EINTR" if value.errno == ERESTARTSYS else errno.errorcode.get(value.errno, str(value))
    if isinstance(value, (bytes, bytearray)):
        if len(value) <= 32:
            return repr(bytes(value))
        return f"{len(value)} bytes, sum {zlib.crc32(value):08x}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(shown(item) for item in value) + ")"
    if isinstance(value, socket.socket):
        return "socket"
    return str(value)


def pattern(length, start=0):
    """Bytes that tell their place."""
    period = bytes(i % 256 for i in range(start, start + 251))
    return (period * (length // 251 + 1))[:length]


class Trace:
    """What a script works with: sockets of one kind, and a record of what it saw."""

    def __init__(self, kind, number, out):
        self.kind, self.out = kind, out
        self.smc = kind in ("smc", "native")
        # Seconds that are waited for what SMC never comes to. TCP may.
        self.never = 2 if self.smc else LONG
        self.card = "" if self.smc else "1"
        self.net = 0 if self.smc else 1
        self.ports = iter(range(FIRST_PORT + number * PORTS_PER_SCRIPT,
                                FIRST_PORT + (number + 1) * PORTS_PER_SCRIPT))
        self.names, self.counts, self.threads, self.kept = {}, {}, [], []
        # The thread that has yet to send a signal.
        self.signalling = None
        for family, hosts in ((4, ("10.79.{}.1", "10.79.{}.2")), (6, ("fd79:{}::1", "fd79:{}::2"))):
            for side, text in zip(("left", "right"), hosts):
                host = text.format(self.net).replace("fd79:0::", "fd79::")
                self.names[host] = side
                self.names["::ffff:" + host] = side + " mapped"
                setattr(self, f"{side}{family}", host)

    # Results

    def note(self, label, value):
        """A result."""
        self.counts[label] = self.counts.get(label, 0) + 1
        if self.counts[label] > 1:
            label = f"{label} #{self.counts[label]}"
        os.write(self.out, (json.dumps([label, shown(value)]) + "\n").encode())

    def do(self, label, call, *args):
        """Makes a call, and notes what it gives, or how it fails; gives it, None if it failed."""
        try:
            value = call(*args)
        except OSError as error:
            self.note(label, error)
            return None
        self.note(label, value)
        return value

    def timed(self, label, least, most, call, *args):
        """The same, and whether it took about so long."""
        started = time.monotonic()
        try:
            value = call(*args)
        except OSError as error:
            value = error
        took = time.monotonic() - started
        # Where the processor has too much to do, the clock of timers is behind when it is asked.
        when = "too early" if took < least * 0.5 else "in time" if took < 3 * most else "too late"
        self.note(label, (value, when))
        return None if isinstance(value, OSError) else value

    def error_of(self, label, sock):
        """SO_ERROR."""
        value = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.note(label, errno.errorcode.get(value, value))

    def name(self, label, call):
        """An address, without what differs from run to run."""
        try:
            addr = call()
        except OSError as error:
            self.note(label, error)
            return
        port = addr[1]
        if port >= 32768:
            port = "ephemeral"
        elif port >= FIRST_PORT:
            port = f"own {(port - FIRST_PORT) % PORTS_PER_SCRIPT}"
        self.note(label, (self.names.get(addr[0], addr[0]), port) + tuple(addr[2:]))

    def both_names(self, *socks):
        """Of each socket its own address and its peer's."""
        for sock in socks:
            self.name("own", sock.getsockname)
            self.name("peer", sock.getpeername)

    def poll(self, label, sock, awaited=0, seconds=LONG, mask=ALL_BITS):
        """All bits of poll(), once there are at least those awaited, or it takes too long."""
        poll = select.poll()
        poll.register(sock, mask)
        end = time.monotonic() + seconds
        while True:
            found = poll.poll(0)
            got = found[0][1] if found else 0
            if got & awaited == awaited or time.monotonic() > end:
                break
            time.sleep(0.01)
        self.note(label, bits(got))
        return got

    def has(self, sock, awaited, seconds=LONG):
        """Waits for bits of poll()."""
        poll = select.poll()
        poll.register(sock, ALL_BITS)
        return self.until(lambda: dict(poll.poll(0)).get(sock.fileno(), 0) & awaited == awaited,
                          seconds)

    def number(self, sock, request):
        """An ioctl that gives a number."""
        import fcntl
        data = fcntl.ioctl(sock.fileno(), request, struct.pack("i", -77))
        return struct.unpack("i", data)[0]

    def arrived(self, sock, amount, seconds=LONG):
        """Waits until so much can be read."""
        return self.until(lambda: self.number(sock, SIOCINQ) >= amount, seconds)

    def until(self, condition, seconds=LONG):
        """Waits until it holds; gives whether it did."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def settled(self, sock):
        """Waits until nothing more has come for a while."""
        before, end = -1, time.monotonic() + 10
        while time.monotonic() < end:
            now = self.number(sock, SIOCINQ)
            if now == before:
                return
            before = now
            time.sleep(0.7)

    # Other hands

    def soon(self, call, *args, after=0.5):
        """Makes a call in another thread, a moment later, and after a signal that comes before it; its
        errors do not matter."""
        signalling, self.signalling = self.signalling, None

        def later():
            time.sleep(after)
            if signalling:
                signalling.join()
            try:
                call(*args)
            except OSError:
                pass
        thread = threading.Thread(target=later, daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread

    def signal_soon(self, number=signal.SIGALRM, after=0.5, restart=False):
        """A signal with a handler comes in a moment, to a call that waits then; gives the list of those
        that came."""
        seen = []
        signal.signal(number, lambda number, frame: seen.append(signal.Signals(number).name))
        signal.siginterrupt(number, not restart)

        def interrupt():
            self.until(self.waits)
            signal.pthread_kill(threading.main_thread().ident, number)
        self.signalling = self.soon(interrupt, after=after)
        return seen

    def waits(self):
        """Whether the script is in a system call that waits, which is not one of Python's own."""
        with open(f"/proc/self/task/{os.getpid()}/syscall", encoding="ascii") as file:
            return file.read().split()[0] not in ("running", "-1", str(SYS_FUTEX))

    def catch(self, *numbers):
        """Signals are put into the list that this gives."""
        seen = []
        for number in numbers:
            signal.signal(number, lambda number, frame: seen.append(signal.Signals(number).name))
        return seen

    # Sockets

    def socket(self, side="right", family=4):
        """A socket of the kind."""
        inet = socket.AF_INET6 if family == 6 else socket.AF_INET
        with nl.inside(side):
            if self.kind == "native":
                # Python knows no addresses of the family, but those of the sockets are of IP.
                made = raw.call("socket", AF_SMC, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, family == 6)
                sock = socket.socket(inet, socket.SOCK_STREAM, 0, made)
            else:
                protocol = 0 if self.kind == "tcp" else IPPROTO_SMC
                sock = socket.socket(inet, socket.SOCK_STREAM, protocol)
        # What a program has dropped is closed at the end of the script only.
        self.kept.append(sock)
        return sock

    def host(self, side, family=4):
        """Its address on the cards of the kind."""
        return getattr(self, f"{side}{family}")

    def bound(self, side="left", family=4, prepare=None, port=None, host=None):
        """A bound socket."""
        sock = self.socket(side, family)
        if prepare:
            prepare(sock)
        sock.bind((self.host(side, family) if host is None else host,
                   next(self.ports) if port is None else port))
        return sock

    def listener(self, backlog=16, **more):
        """A listening socket."""
        sock = self.bound(**more)
        sock.listen(backlog)
        return sock

    def check(self, *socks):
        """Connections have to be what they are to be: the script fails otherwise."""
        for sock in socks if self.kind != "tcp" else ():
            smc, reason = uses_smc(sock)
            assert smc == self.smc, f"{self.kind} is not: reason {reason:#x}"

    def pair(self, family=4, client=None, server=None, listening=None, addr=None):
        """Two ends of a connection, client first; functions prepare the sockets."""
        mine = listening or self.listener(family=family, prepare=server)
        calling = self.socket("right", family)
        if client:
            client(calling)
        calling.connect(addr or mine.getsockname())
        called, _ = mine.accept()
        self.kept.append(called)
        if listening is None:
            mine.close()
        self.check(calling, called)
        return calling, called


def tell(script, kind, number, out):
    """Runs a script in this process, which ends with it."""
    # A thread that is to make a call later must not keep the process.
    code = 0
    try:
        script(Trace(kind, number, out))
    except BaseException as error:  # a script's error is told, whatever it is
        frames = traceback.extract_tb(error.__traceback__)
        where = "; ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.line}" for f in frames[1:])
        os.write(out, (json.dumps(["raised", f"{type(error).__name__}: {error}", where]) + "\n")
                 .encode())
        code = 1
    os._exit(code)


class Running:
    """A script under way."""

    def __init__(self, place, kind, number, script):
        self.place, self.kind, self.script = place, kind, script
        self.steps, self.raised, self.data = [], None, b""
        self.started = self.last = time.monotonic()
        self.input, out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.input)
            os.setpgid(0, 0)
            tell(script, kind, number, out)
        os.close(out)
        os.set_blocking(self.input, False)

    def look(self):
        """Takes what it has told; gives whether it goes on."""
        try:
            data = os.read(self.input, 65536)
        except BlockingIOError:
            if time.monotonic() - self.last < STEP:
                return True
            self.steps.append(("hangs", f"after {self.steps[-1][0] if self.steps else 'nothing'}"))
            data = b""
        if data:
            self.last = time.monotonic()
            self.data += data
            *lines, self.data = self.data.split(b"\n")
            for line in lines:
                step = json.loads(line)
                if step[0] == "raised":
                    self.raised = step[1:]
                else:
                    self.steps.append(tuple(step))
            return True
        self.end()
        return False

    def end(self):
        """Ends it and what it has started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        end = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                self.raised = ["it cannot be killed", ""]
                break
            time.sleep(0.01)
        os.close(self.input)
        self.took = time.monotonic() - self.started


def run_all(scripts, kinds, done):
    """Runs all scripts for all kinds, some at a time; `done` is told each that has ended."""
    waiting = [(place, kind, place * len(KINDS) + KINDS.index(kind), script)
               for place, script in enumerate(scripts) for kind in kinds]
    waiting.reverse()
    running = []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(Running(*waiting.pop()))
        select.select([one.input for one in running], [], [], 0.5)
        for one in list(running):
            if not one.look():
                running.remove(one)
                done(one)


def differences(expected, got):
    """Steps whose result is not the expected one: label, expected, got. Nothing is said about what
    comes after a step that hangs."""
    found, mine = [], dict(got)
    if expected and [label for label, _ in expected] == [label for label, _ in got]:
        return [(label, value, mine[label]) for label, value in expected if mine[label] != value]
    for label, value in expected:
        if label not in mine:
            found.append((label, value, mine.get("hangs", "not done") if "hangs" not in mine
                          else "hangs"))
            if "hangs" in mine:
                return found
        elif mine[label] != value:
            found.append((label, value, mine[label]))
    known = {label for label, _ in expected}
    found += [(label, "not done", value) for label, value in got if label not in known]
    return found


# Kinds by the names that the list of differences has for them.
GROUPS = {"*": KINDS[1:], "smc": ("smc", "native"), "inet": ("fallen", "smc")}


def read_list(path):
    """The reviewed differences: by case and kind, step to TCP's result, ours, and the reason."""
    listed = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            words = [word.strip() for word in line.split(" | ")]
            assert len(words) == 6 and all(words), f"line {number}: six fields, all with content"
            case, kinds, step, expected, got, reason = words
            for kind in GROUPS.get(kinds) or kinds.split(","):
                assert kind in KINDS[1:], f"line {number}: {kind}"
                steps = listed.setdefault((case, kind), {})
                assert step not in steps, f"line {number}: twice"
                steps[step] = (expected, got, reason)
    return listed


def judge(case, kind, reference, one, listed):
    """What is wrong with a script's run: lines of text."""
    wrong = []
    if one.raised:
        wrong += [f"the script failed: {text}" for text in one.raised if text]
    if kind == "tcp":
        return wrong + [f"{label}: {value}" for label, value in one.steps if label == "hangs"]
    known = dict(listed.get((case, kind), {}))
    for label, expected, got in differences(reference.steps, one.steps):
        if label in known and known[label][:2] == (expected, got):
            del known[label]
        else:
            wrong.append(f"not listed: {case} | {kind} | {label} | {expected} | {got}")
    wrong += [f"listed, and not so: {case} | {kind} | {label} | {expected} | {got}"
              for label, (expected, got, _) in known.items()]
    return wrong


def run(scripts, path, kinds=KINDS):
    """Runs all, and says how each went; gives how many failed."""
    listed = read_list(path)
    cases = [script.__name__ for script in scripts]
    stray = {case for case, _ in listed} - set(cases)
    assert not stray, f"listed, but no case: {stray}"
    assert len(set(cases)) == len(cases), "two cases of a name"
    only = os.environ.get("SMC_TEST_ONLY", "").split()
    verbose = os.environ.get("SMC_TEST_STEPS")
    chosen = [s for s in scripts if not only or any(word in s.__name__ for word in only)]
    print(f"1..{len(chosen) * len(kinds)}", flush=True)
    ended, counts, place = {}, [0, 0], 0

    def done(one):
        nonlocal place
        ended[(one.place, one.kind)] = one
        # In the order of the cases, whichever ends first.
        while all((place, kind) in ended for kind in kinds):
            tell_case(place)
            place += 1

    def tell_case(place):
        case = chosen[place].__name__
        for kind in kinds:
            this = ended[(place, kind)]
            wrong = judge(case, kind, ended[(place, "tcp")], this, listed)
            counts[0] += 1
            counts[1] += bool(wrong)
            for line in wrong:
                print(f"# {line}")
            if verbose:
                for label, value in this.steps:
                    print(f"#   {kind} {label}: {value}")
            many = len(listed.get((case, kind), {}))
            told = f", {many} differences listed" if many else ""
            print(f"{'not ok' if wrong else 'ok'} {counts[0]} {case.replace('_', ' ')}: {kind} # "
                  f"{len(this.steps)} steps, {this.took:.1f} s{told}")
        sys.stdout.flush()

    run_all(chosen, kinds, done)
    return counts[1]
