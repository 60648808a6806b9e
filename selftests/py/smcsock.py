# SPDX-License-Identifier: GPL-2.0
"""What the tests' Python programs share: SMC sockets, a proof that one uses SMC, and results."""

import errno
import os
import select
import socket
import struct
import sys
import time

AF_SMC = 43
IPPROTO_SMC = 256
SO_PROTOCOL = 38
SOL_SMC = 286
SMC_INFO = 1000
SO_DOMAIN = 39
SIOCINQ = 0x541B
SIOCOUTQ = 0x5411
# How many times as long as elsewhere what is not to hang may take: more where suites have more than the 4 that `make
# test` gives them on the stock kernel (--patience).
SLOWER = max(1, int(os.environ.get("SMC_TEST_PATIENCE") or 1) // 4)
LIMIT = 20.0 * SLOWER


def smc_socket(host, blocking=True):
    """A socket for SMC, of the address's family."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, IPPROTO_SMC)
    if blocking:
        sock.settimeout(LIMIT)
    else:
        sock.setblocking(False)
    return sock


def real_blocking(sock, seconds=LIMIT):
    """Blocking calls with the kernel's own limit instead of Python's poll."""
    sock.settimeout(None)
    value = struct.pack("ll", int(seconds), 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
    return sock


def is_smc(sock):
    """Whether the connection uses SMC, as SMC_INFO tells."""
    mode, _, _ = struct.unpack("=III", sock.getsockopt(SOL_SMC, SMC_INFO, 12))
    return mode == 0


def need_smc(sock):
    """Ends the program unless the connection uses SMC."""
    if not is_smc(sock):
        raise AssertionError("the connection fell back to TCP")
    return sock


def listener(host, port, backlog=64):
    """A listening SMC socket."""
    sock = smc_socket(host)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(backlog)
    return sock


def connect(host, port):
    """A connected socket that uses SMC."""
    sock = smc_socket(host)
    sock.connect((host, port))
    return need_smc(sock)


def accept(sock):
    """An accepted socket that uses SMC."""
    child, _ = sock.accept()
    child.settimeout(LIMIT)
    return need_smc(child)


def read_exactly(sock, amount):
    """That many bytes, or fewer at the end of the stream."""
    parts = []
    while amount > 0:
        data = sock.recv(min(amount, 65536))
        if not data:
            break
        parts.append(data)
        amount -= len(data)
    return b"".join(parts)


def pattern(amount, seed=1):
    """Bytes that differ from place to place, also at powers of two."""
    block = bytes((i * 7 + seed * 13 + (i >> 8)) & 255 for i in range(min(amount, 65521)))
    return (block * (amount // max(len(block), 1) + 1))[:amount]


def acceptable(sock):
    """Whether a connection waits to be accepted."""
    return bool(select.select([sock], [], [], 0)[0])


def name_of(error):
    """ECONNRESET and the like."""
    if isinstance(error, (TimeoutError, BlockingIOError)) and error.errno is None:
        return "timeout"
    return errno.errorcode.get(error.errno, str(error))


def name_of_code(code):
    """The name of an errno; "0" if there is none."""
    return errno.errorcode.get(code, str(code))


def until(condition, seconds=LIMIT, what="condition"):
    """Waits until it holds. A guest that hardly gets a processor is given more time: as much as it needs for the
    tries that any other one makes."""
    end, tries = time.monotonic() + seconds, 3 * seconds
    while not condition():
        tries -= 1
        if time.monotonic() > end and tries <= 0:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def say(*words):
    """A line for the shell."""
    print(*words, flush=True)


def touch(path):
    """A file that others wait for."""
    with open(path, "w", encoding="ascii"):
        pass


def check(condition, text):
    """Ends the program with an explanation."""
    if not condition:
        raise AssertionError(text)


def equal(what, expected, got):
    """Ends the program if they differ."""
    check(expected == got, f"{what}: expected {expected!r}, got {got!r}")


def run(table):
    """Runs the function named by the first argument; 1 and a line if it fails."""
    try:
        table[sys.argv[1]](*sys.argv[2:])
    except (AssertionError, OSError) as error:
        import traceback

        trace = traceback.extract_tb(error.__traceback__)[-1]
        print(f"# {sys.argv[1]}: {type(error).__name__}: {error} (line {trace.lineno})", flush=True)
        for frame in traceback.extract_tb(error.__traceback__):
            print(f"#   {os.path.basename(frame.filename)}:{frame.lineno} {frame.line}", flush=True)
        sys.exit(1)
