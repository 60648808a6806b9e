# SPDX-License-Identifier: GPL-2.0
"""Shows that dissect.py complains of each thing that its text names, and of nothing where there is none of them."""

import collections
import os
import re
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
VECTORS = os.path.join(HERE, "..", "..", "smc_r", "proto", "tests", "vectors", "messages.txt")
CLIENT, SERVER = HOSTS = "02:00:00:00:00:01", "02:00:00:00:00:02"
# Of the reliable connected transport.
FIRST, LAST, ONLY, WRITE_WITH_IMMEDIATE = 0, 2, 4, 11
PLAIN = b"neither of them."


def vectors():
    """Messages by name."""
    with open(VECTORS, encoding="ascii") as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    return {name: bytes.fromhex(digits) for name, digits in lines}


TV = vectors()
PROPOSAL, ACCEPT, CONFIRM, DECLINE, CDC = (TV[name] for name in ("TV04", "TV05", "TV06", "TV07", "TV27"))
RFC_PROPOSAL, LONG = TV["TV02"], TV["TV36"]
# As Linux has it: its length and the number of buffers the other way round.
LONG = LONG[:1] + LONG[2:0:-1] + LONG[3:70] + LONG[71:69:-1] + LONG[72:]


class Wire:
    """What has been sent."""

    def __init__(self):
        self.frames = []
        self.port = 40000
        self.sent = collections.Counter()

    def frame(self, sender, protocol, data):
        """A packet of IPv4."""
        hosts = (sender, *(host for host in HOSTS if host != sender))
        macs = [bytes.fromhex(host.replace(":", "")) for host in hosts]
        ip = struct.pack(">BxHxxxxBBxx", 0x45, 20 + len(data), 64, protocol)
        ip += b"".join(bytes((192, 0, 2, mac[-1])) for mac in macs)
        self.frames.append(macs[1] + macs[0] + b"\x08\x00" + ip + data)

    def tcp(self, sender, *parts):
        """Segments of a connection, to a port of another protocol; a number is how many bytes are left out, or
        come again."""
        ports = (self.port, 80) if sender == CLIENT else (80, self.port)
        for part in parts:
            if isinstance(part, int):
                self.sent[ports] += part
                continue
            numbers = 1 + self.sent[ports], 1 + self.sent[ports[::-1]]
            self.frame(sender, 6, struct.pack(">HHIIBBHxxxx", *ports, *numbers, 0x50, 16, 500) + part)
            self.sent[ports] += len(part)

    def connect(self):
        """A connection that is accelerated."""
        self.port += 1
        self.tcp(CLIENT, PROPOSAL)
        self.tcp(SERVER, ACCEPT)
        self.tcp(CLIENT, CONFIRM)

    def rdma(self, sender, data, opcode=ONLY, solicited=True):
        """A packet of RoCE version 2."""
        header = struct.pack(">BBxxII", opcode, solicited << 7, 0x123, len(self.frames))
        udp = struct.pack(">HHHxx", 50000, 4791, 8 + len(header) + len(data) + 4)
        self.frame(sender, 17, udp + header + data + bytes(4))


def good(wire):
    """All that may be there."""
    wire.connect()
    # The end of the message comes again.
    wire.tcp(CLIENT, -8, CONFIRM[-8:])
    for sender, name in (SERVER, "TV09"), (CLIENT, "TV10"), (SERVER, "TV11"), (CLIENT, "TV13"):
        wire.rdma(sender, TV[name])
    wire.rdma(SERVER, LONG[:64], FIRST, False)
    wire.rdma(SERVER, LONG[64:], LAST)
    wire.rdma(CLIENT, CDC)
    # Declined late.
    wire.connect()
    wire.tcp(SERVER, DECLINE, PLAIN)
    # Of both of these tshark warns.
    wire.port += 1
    wire.tcp(CLIENT, RFC_PROPOSAL, 100, DECLINE, PLAIN)


# By the names of cases: what is said, and what is on the wire.
BAD = {
    "cut": ("a warning", lambda wire: wire.rdma(SERVER, b"\x22\0\x2c" + LONG[3:44])),
    "unknown": ("CLC type 9", lambda wire: wire.tcp(CLIENT, PROPOSAL[:4] + b"\x09" + PROPOSAL[5:])),
    "plain": (
        "no CLC message on an accelerated connection",
        lambda wire: (wire.connect(), wire.tcp(SERVER, PLAIN)),
    ),
    "begun": ("begins like a CLC message", lambda wire: wire.tcp(CLIENT, PROPOSAL[:4] + PLAIN)),
    "other": ("neither LLC nor CDC", lambda wire: wire.rdma(CLIENT, PLAIN)),
    "asleep": ("no event is solicited", lambda wire: wire.rdma(CLIENT, CDC, solicited=False)),
    "immediate": ("a write with immediate data", lambda wire: wire.rdma(CLIENT, bytes(20), WRITE_WITH_IMMEDIATE)),
}


def capture(cases):
    """What dissect.py reads of cases, which are names and who sends in them: when they begin, and a capture."""
    wire = Wire()
    starts, packets = "", struct.pack("<IHHxxxxxxxxII", 0xA1B2C3D4, 2, 4, 65535, 1)
    for start, (name, send) in enumerate([*cases.items(), ("end", lambda wire: None)], 1):
        starts += f"{start} {name}\n"
        before = len(wire.frames)
        wire.port += 1
        send(wire)
        for number, frame in enumerate(wire.frames[before:]):
            packets += struct.pack("<IIII", start, number, len(frame), len(frame)) + frame
    return starts.encode(), packets


def dissect(cases, *options):
    """The exit code, and what is said of the cases."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("part", "cases", "pcap")]
        for name, content in zip(files[1:], capture(cases)):
            with open(name, "wb") as file:
                file.write(content)
        command = [sys.executable, os.path.join(HERE, "dissect.py"), *options, *files]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    said = re.sub(r"frame \d+ \((.*?)\): (.*?): .*", r"\1: \2", done.stdout)
    return done.returncode, sorted(line for line in said.splitlines() if "accelerated connections;" not in line)


def tries():
    """What is said, and what it is said of."""
    there = ["--of", SERVER, "--need", "CONFIRM LINK request", "--need", "ADD LINK"]
    for who, what in (CLIENT, "CONFIRM LINK reply"), (CLIENT, "rejected ADD LINK"), (SERVER, "long message"):
        there += ["--has", "good", who, what]
    yield [], {"good": good}, there

    absent = ["--of", SERVER, "--need", "CONFIRM LINK reply", "--need", "TEST LINK"]
    yield ["not seen: CONFIRM LINK reply, TEST LINK"], {"good": good}, absent
    lacks = [
        ("good", SERVER, "CDC"),
        ("good", SERVER, "rejected ADD LINK"),
        ("good", CLIENT, "long message"),
        ("other", CLIENT, "CDC"),
    ]
    of_them = [word for lack in lacks for word in ("--has", *lack)]
    yield [f"no {what} in {case} from {who}" for case, who, what in lacks], {"good": good}, of_them
    yield ["no message by RDMA"], {"tcp": Wire.connect}, []

    link = ((SERVER, TV["TV09"]), (CLIENT, TV["TV10"]))
    beginnings = {
        "waits": (*link, (SERVER, CDC), (CLIENT, CDC)),
        "knows": (link[0], (CLIENT, CDC)),
        "early": (link[0], (SERVER, CDC), link[1]),
        "repeated": ((SERVER, TV["TV11"]), link[0], (SERVER, CDC)),
    }
    yield ["early: data has not waited for the links"], {
        case: lambda wire, messages=messages: [wire.rdma(*message) for message in messages]
        for case, messages in beginnings.items()
    }, ["--held", "1"]

    said = [f"{case}: {text}" for case, (text, _) in BAD.items()] + ["nothing was captured of silent"]
    yield said, {"silent": lambda wire: None, **{case: send for case, (_, send) in BAD.items()}}, []


def main():
    """Entry point."""
    wrong = 0
    for said, cases, options in tries():
        expected, got = (int(bool(said)), sorted(f"# {text}" for text in said)), dissect(cases, *options)
        if expected != got:
            wrong += 1
            print(f"# expected {expected},\n#      got {got}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
