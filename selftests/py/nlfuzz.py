# SPDX-License-Identifier: GPL-2.0
"""Random requests to a generic netlink family: well-formed, nearly so, and not at all."""

import errno
import os
import random
import socket
import struct
import time

import nl

def some(*values):
    """One of these values."""
    return lambda rng: rng.choice(values)


def words(*values):
    """One of these words."""
    return lambda rng: nl.text(rng.choice(values))


# What requests to our families have in them: SMC_GEN_NETLINK, SMC_PNETID and smc-rs.
EID_KINDS = {1: some(b"SMCEID1".ljust(32) + b"\0", b"smc".ljust(32) + b"\0")}
PNET_KINDS = {
    1: words("net1", "net1", "net2", " NET1 ", "n" * 16, "n" * 17, "", "a b"),
    2: words("eth1", "eth1", "left", "e" * 15, "e" * 16, ""),
    3: words("rxleft1", "mlx5_0", "i" * 63, "i" * 64, ""),
    4: lambda rng: nl.u8(rng.choice([0, 1, 2, 3, 255])),
}
OWN_KINDS = {
    5: lambda rng: nl.u32(rng.choice([0, 1, 2, 3, 99, 0xFFFFFFFF])),
    6: some(b"\0", b"\1", b"\2"), 7: some(b"\0", b"\1", b"\2", b"\3"),
    8: some(bytes(4), bytes(16), b"\x0a\x4f\0\1", bytes(10) + b"\xff\xff\x0a\0\0\1", bytes(5)),
    9: some(b"\0", b"\x20", b"\x21", b"\x80", b"\xff"),
    10: lambda rng: nl.u16(rng.choice([0, 80, 0xFFFF])), 11: lambda rng: nl.u16(rng.choice([0, 80, 0xFFFF])),
    12: lambda rng: nl.u64(rng.choice([0, 1, 2**64 - 1])),
    16: lambda rng: nl.u32(rng.choice([0, 1, 0xFFFFFFFF])), 17: some(b"\0", b"\1", b"\xff"),
    18: words("rxleft", "nothing", "", "x" * 63, "x" * 64),
    19: some(b"\0", b"\1", b"\2", b"\xff"), 20: some(b""),
    # Those that are in answers alone.
    **{number: lambda rng: nl.u64(rng.choice([0, 1, 2**64 - 1])) for number in range(21, 31)},
}

# What a request may be answered with, whatever is in it.
CODES = {0, errno.EINVAL, errno.ERANGE, errno.EEXIST, errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV,
         errno.ENOSPC}


def seed():
    """The number that makes a run repeatable, which is printed: SMC_TEST_SEED, or always the same."""
    number = int(os.environ.get("SMC_TEST_SEED") or 20250607)
    print(f"# SMC_TEST_SEED={number}", flush=True)
    return number


def attribute(rng, kinds):
    """An attribute: often one of `kinds` (number: function of rng), sometimes damaged."""
    kind = rng.choice(list(kinds) + [0, 250, 0x3FFF]) if rng.random() < 0.2 else rng.choice(list(kinds))
    value = kinds[kind](rng) if kind in kinds and rng.random() < 0.8 else None
    if value is None:
        value = rng.randbytes(rng.choice([0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 63, 64, 65, 300]))
    if rng.random() < 0.1:
        kind |= rng.choice([0x8000, 0x4000])
    data = nl.attribute(kind, value)
    if rng.random() < 0.06:
        # A length that is not true.
        data = struct.pack("=H", rng.choice([0, 1, 3, 4, len(data) + 1, len(data) + 40, 0xFFFF])) + data[2:]
    return data


def request(rng, commands, kinds):
    """A payload: header of the family, and attributes."""
    command = rng.choice(commands) if rng.random() < 0.95 else rng.randrange(256)
    data = struct.pack("=BBH", command, rng.choice([0, 1, 1, 1, 2, 255]),
                       0 if rng.random() < 0.95 else rng.randrange(65536))
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 9])):
        data += attribute(rng, kinds)
    if rng.random() < 0.05:
        data = data[:rng.randrange(len(data) + 1)]
    if rng.random() < 0.05:
        data += rng.randbytes(rng.randrange(1, 20))
    return data


def run(family, commands, kinds, count, codes=frozenset(CODES)):
    """Sends `count` requests, some of them twice; each has to be answered, with one of `codes`. Gives
    how often each of them came."""
    start = seed()
    rng = random.Random(start)
    again = random.Random(start)
    seen = {}
    commands = list(commands)
    payload = flags = None
    for turn in range(count):
        if payload is None or again.random() > 0.2:
            payload = request(rng, commands, kinds)
            flags = rng.choice([nl.ACK, nl.ACK, nl.DUMP, nl.DUMP | nl.ACK, nl.ACK | 0x100, nl.ACK | 0x400])
        try:
            family.link.request(family.id, flags, payload)
            code = 0
        except nl.Refused as error:
            code = error.errno
        except socket.timeout:
            raise AssertionError(f"no answer to request {turn}: {payload.hex()}") from None
        assert code in codes, f"request {turn} ({payload.hex()}, flags {flags:#x}): {errno.errorcode.get(code)}"
        seen[code] = seen.get(code, 0) + 1
    print("# answers:", {errno.errorcode.get(code, "ok"): n for code, n in sorted(seen.items())})
    return seen


def while_changing(family, command, change, seconds):
    """Lists something again and again while `change(turn)` changes it; gives the lists."""
    end = time.monotonic() + seconds
    lists = []
    turn = 0
    while time.monotonic() < end:
        change(turn)
        lists.append(family.dump(command))
        turn += 1
    return lists
