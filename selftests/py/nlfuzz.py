# SPDX-License-Identifier: GPL-2.0
"""Random requests to a generic netlink family: well-formed, nearly so, and not at all."""

import errno
import os
import random
import socket
import struct
import time

import nl

# What a request may be answered with, whatever is in it.
CODES = {0, errno.EINVAL, errno.ERANGE, errno.EEXIST, errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV,
         errno.ENOSPC}


def seed():
    """The number that makes a run repeatable: FUZZ_SEED, or always the same."""
    return int(os.environ.get("FUZZ_SEED", "20250607"))


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
    print(f"# FUZZ_SEED={start}", flush=True)
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
