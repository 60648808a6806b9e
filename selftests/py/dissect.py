# SPDX-License-Identifier: GPL-2.0
"""Has tshark read the CLC, LLC and CDC messages of a capture, and looks for what it could not make sense of.

CASES has lines `TIME NAME`: when a case began. The packets of each, from all captures, go to PREFIX-NAME.pcap.
What is reported as wrong: a case without any, messages of which tshark warns, payload of accelerated TCP connections
that is no CLC message, payload of any that begins like one and is none, messages by RDMA that are neither LLC nor CDC
or that nobody is woken for, writes with immediate data. Every kind of message that is needed has to be there, of one
host if its Ethernet addresses are given, and what somebody has to say in a case. An LLC message can be asked for as a
request or a reply: "DELETE RKEY request". Where a case begins a link group, data can be asked to wait until so many links
are confirmed, as far as a host can know, unless a link was offered once more since it had not come about.
"""

import argparse
import bisect
import collections
import struct
import subprocess
import sys

FIELDS = (
    "frame.time_epoch",
    "frame.number",
    "frame.protocols",
    "eth.src",
    "tcp.stream",
    "tcp.len",
    "tcp.analysis.retransmission",
    "tcp.payload",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "smc.clc_msg",
    "smc.llc_msg",
    "smc.add.link.response.rejected",
    "_ws.expert.severity",
    "_ws.expert.group",
    "_ws.expert.message",
    "_ws.col.info",
)
CLC = {1: "Proposal", 2: "Accept", 3: "Confirm", 4: "Decline"}
CDC = 0xFE
# By types of version 2.
LLC = {
    0x01: "CONFIRM LINK", 0x02: "ADD LINK", 0x03: "ADD LINK CONTINUATION", 0x04: "DELETE LINK",
    0x05: "REQUEST ADD LINK", 0x06: "CONFIRM RKEY", 0x07: "TEST LINK", 0x08: "CONFIRM RKEY CONTINUATION",
    0x09: "DELETE RKEY", 0x21: "CONFIRM LINK", 0x22: "ADD LINK", 0x23: "ADD LINK CONTINUATION",
    0x24: "DELETE LINK", 0x25: "REQUEST ADD LINK", 0x26: "CONFIRM RKEY", 0x27: "TEST LINK",
    0x29: "DELETE RKEY", CDC: "CDC",
}  # fmt: skip
REQUEST, REPLY = "request", "reply"
KINDS = [*CLC.values(), *dict.fromkeys(LLC.values())]
KINDS += [f"{kind} {which}" for kind in dict.fromkeys(LLC.values()) if kind != LLC[CDC] for which in (REQUEST, REPLY)]
# Where an LLC message tells a reply from a request, in either version.
FLAGS_AT, IS_REPLY = 3, 0x80
OFFER = f"{LLC[0x02]} {REQUEST}"
# What else is looked for: a flag of a message, and one of several packets.
REJECTED, LONG = "rejected ADD LINK", "long message"
# How tshark writes that a flag is set.
TRUE = "1", "True"
# From this severity on it is a warning, unless it is about what TCP segments got lost, or that UDP has no checksum,
# which RoCE does not need over IPv6 either.
WARNING = 0x600000
SEQUENCE, CHECKSUM = 0x2000000, 0x1000000
GUESSES = (
    "smb_direct_infiniband", "rpcrdma_infiniband", "nvme_rdma", "lnet_ib", "iser_infiniband", "eth_over_ib",
    "mellanox_eoib", "sdp_infiniband", "fc_infiniband",
)  # fmt: skip
# Where an ADD LINK tells how many buffers it names.
PAIRS_AT = 70
# A Proposal of version 1, as RFC 7609 has it, over IPv4: tshark takes it for one with the 40 bytes that Linux
# puts between its parts.
RFC_PROPOSAL = "52"
# How CLC messages begin: SMCR in EBCDIC.
EYE_CATCHER = "e2d4c3d9"
# Sends of the reliable connected transport: whole messages, and parts of longer ones; writes with immediate data.
ONLY, ONLY_WITH_IMMEDIATE = WHOLE = (4, 5)
FIRST, MIDDLE, LAST = 0, 1, 2
IMMEDIATE = {9, 11}
# Of each packet: the header of the transport in front, the check at the end.
HEADER, CHECK = 12, 4

Frame = collections.namedtuple("Frame", [name.replace(".", "_").strip("_") for name in FIELDS])


def cases(path):
    """When cases began, and their names."""
    with open(path, encoding="ascii") as file:
        lines = [line.split() for line in file]
    return [float(time) for time, _ in lines], [name for _, name in lines]


def packets(capture):
    """The packets of a capture: time, header of the record, frame."""
    with open(capture, "rb") as file:
        content = file.read()
    position = 24
    while position + 16 <= len(content):
        seconds, fraction, length, _ = struct.unpack_from("<IIII", content, position)
        end = position + 16 + length
        yield seconds + fraction / 1e6, content[position : position + 16], content[position + 16 : end]
        position = end


def split(captures, prefix, starts, names):
    """One file for each case; gives back all, as tshark can read it, which of its frames are replies if they are LLC
    messages, the cases that have any, and where who sends messages of several packets."""
    with open(captures[0], "rb") as file:
        head = file.read(24)
    parts = collections.defaultdict(bytearray)
    readable = bytearray(head)
    begun, long, replies = {}, set(), []
    for time, record, frame in sorted(packet for capture in captures for packet in packets(capture)):
        name = names[max(bisect.bisect(starts, time) - 1, 0)]
        parts[name] += record + frame
        whole = joined(frame, begun)
        if whole is None:
            continue
        if whole is not frame:
            long.add((name, ethernet(frame[6:12]), LONG))
            record = record[:8] + struct.pack("<II", len(whole), len(whole))
        readable += record + big_endian(whole)
        replies.append(is_reply(whole))
    for name, data in parts.items():
        with open(f"{prefix}-{name}.pcap", "wb") as file:
            file.write(head + data)
    return bytes(readable), replies, set(parts), long


def ethernet(address):
    """An Ethernet address as it is written."""
    return ":".join(f"{byte:02x}" for byte in address)


def without_any(names, found):
    """Cases but the last, which is this one, that have left nothing on the wire."""
    for name in names[:-1]:
        if name not in found:
            yield f"nothing was captured of {name}"


# By types of Ethernet: how long a header of IP is, where it says what comes next, and where how long the packet is
# without so many of its bytes.
IP = {b"\x08\x00": (20, 9, 2, 0), b"\x86\xdd": (40, 6, 4, 40)}


def network(frame):
    """Where in a frame the header of IP is, and the row of `IP` for it, if there is one."""
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    return at, IP.get(frame[at - 2 : at])


def transport(frame):
    """Where in a frame the header of the RDMA transport is, if it has one (RoCE version 2)."""
    ip, layout = network(frame)
    if not layout:
        return None
    udp = ip + layout[0]
    if frame[ip + layout[1]] != 17 or frame[udp + 2 : udp + 4] != b"\x12\xb7":
        return None
    return udp + 8


def joined(frame, begun):
    """A message of several packets as one that has one, which tshark does not make of them: with the last of them.
    None for the others, which are kept in `begun`."""
    at = transport(frame)
    if at is None or frame[at] not in (FIRST, MIDDLE, LAST):
        return frame
    # Ethernet addresses, and the queue pair that it is for.
    key = frame[:12] + frame[at + 5 : at + 8]
    number = int.from_bytes(frame[at + 9 : at + 12], "big")
    if frame[at] == FIRST:
        begun[key] = number, frame
        return None
    last, whole = begun.get(key, (number, b""))
    if number != (last + 1) % (1 << 24):
        # One that comes again.
        return None
    whole = whole[:-CHECK] + frame[at + HEADER :]
    if frame[at] == MIDDLE:
        begun[key] = number, whole
        return None
    del begun[key]
    ip, (_, _, length, without) = network(frame)
    udp = at - 8
    whole = bytearray(whole)
    # As the last one has it: whether somebody is woken, and by how much it is padded.
    whole[at : at + 2] = bytes((ONLY, frame[at + 1]))
    whole[ip + length : ip + length + 2] = (len(whole) - ip - without).to_bytes(2, "big")
    whole[udp + 4 : udp + 6] = (len(whole) - udp).to_bytes(2, "big")
    return bytes(whole)


def message_of(frame):
    """Where in a frame a whole message by RDMA begins, if it has one."""
    at = transport(frame)
    if at is None or frame[at] not in WHOLE:
        return None
    return at + HEADER + 4 * (frame[at] == ONLY_WITH_IMMEDIATE)


def is_reply(frame):
    """Whether the message, if it is one of LLC, is a reply."""
    message = message_of(frame)
    return message is not None and frame[message + FLAGS_AT] & IS_REPLY != 0


def big_endian(frame):
    """The lengths in LLC messages of version 2, which Linux writes in its own byte order and tshark knows in the
    other one only."""
    message = message_of(frame)
    if message is None:
        return frame
    kind, low, high = frame[message : message + 3]
    # The pad and the check of the frame are no part of it.
    room = len(frame) - message - CHECK
    if kind >> 4 != 2 or kind not in LLC or not room - 4 < (high << 8) + low <= room:
        return frame
    frame = frame[: message + 1] + bytes((high, low)) + frame[message + 3 :]
    pairs = message + PAIRS_AT
    if LLC[kind] == "ADD LINK" and room > PAIRS_AT:
        frame = frame[:pairs] + frame[pairs + 1 : pairs - 1 : -1] + frame[pairs + 2 :]
    return frame


def frames(capture):
    """What tshark says of each frame."""
    # By what messages begin with, before the port, which may be that of another protocol.
    command = ["tshark", "-n", "-r", capture, "-o", "tcp.try_heuristic_first:TRUE", "-T", "fields"]
    # Others that guess by the first bytes of what goes by RDMA.
    for guess in GUESSES:
        command += ["--disable-heuristic", guess]
    for field in FIELDS:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    for line in done.stdout.splitlines():
        yield Frame(*(line.split("\t") + [""] * len(FIELDS))[: len(FIELDS)])


def numbers(text):
    """Values of a field that may occur several times."""
    return [int(value, 0) for value in text.split(",") if value]


def warns(frame):
    """Whether tshark has anything against this."""
    severities, groups = numbers(frame.ws_expert_severity), numbers(frame.ws_expert_group)
    return any(severity >= WARNING and group not in (SEQUENCE, CHECKSUM) for severity, group in zip(severities, groups))


class Beginning:
    """Whether data of a link group, at its beginning, waits for so many links."""

    def __init__(self, links):
        self.links = links
        # Who has confirmed a link: ports of the server by requests, those of the client by replies.
        self.said = {REQUEST: set(), REPLY: set()}
        self.offers = 0
        self.early = []

    def llc(self, name, which, source):
        """An LLC message."""
        self.offers += f"{name} {which}" == OFFER
        if name == LLC[0x01]:
            self.said[which].add(source)

    def cdc(self, source, report):
        """A CDC message. A server knows of a link by the reply; its client has had the request by then."""
        heard = self.said[REPLY if source in self.said[REQUEST] else REQUEST]
        if len(heard) < self.links:
            self.early.append(report)

    def end(self):
        """Reports what was early. Each link but the first is offered once, unless it does not come about at first."""
        if self.offers < self.links:
            for report in self.early:
                report("data has not waited for the links")


def arguments():
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", action="append", default=[], metavar="ETHER", help="who has to send what is needed")
    parser.add_argument("--need", action="append", default=[], choices=KINDS, metavar="KIND")
    parser.add_argument("--has", action="append", default=[], nargs=3, metavar=("CASE", "ETHER", "KIND"),
                        help=f"where who has to say what: a kind, {REJECTED} or {LONG}")
    parser.add_argument("--held", default=0, type=int, metavar="LINKS",
                        help="how many links are confirmed, in each case, before data comes")
    parser.add_argument("prefix")
    parser.add_argument("cases")
    parser.add_argument("captures", nargs="+")
    return parser.parse_args()


def main():
    """Entry point."""
    options = arguments()
    starts, names = cases(options.cases)
    content, replies, found, long = split(options.captures, options.prefix, starts, names)
    readable = f"{options.captures[0]}.readable"
    with open(readable, "wb") as file:
        file.write(content)
    seen, sent = collections.Counter(), long
    beginnings = collections.defaultdict(lambda: Beginning(options.held))
    messages = 0
    wrong = list(without_any(names, found))
    payload = collections.defaultdict(list)
    accelerated = set()
    for frame in frames(readable):
        case = names[max(bisect.bisect(starts, float(frame.frame_time_epoch)) - 1, 0)]
        layers = frame.frame_protocols.split(":")

        def report(text, frame=frame, case=case):
            wrong.append(f"frame {frame.frame_number} ({case}): {text}: {frame.ws_col_info} "
                         f"{frame.ws_expert_message}")

        is_rfc = frame.smc_clc_msg and CLC[1] in frame.ws_col_info and frame.tcp_len == RFC_PROPOSAL
        if "smc" in layers and warns(frame) and not is_rfc:
            report("a warning")
        for field, known, what in ((frame.smc_clc_msg, CLC, "CLC"), (frame.smc_llc_msg, LLC, "LLC")):
            for kind in numbers(field):
                name = known.get(kind, f"{what} {kind}")
                seen[name] += 1
                sent.add((case, frame.eth_src, name))
                if what == "LLC":
                    which = REPLY if replies[int(frame.frame_number) - 1] else REQUEST
                    sent.add((case, frame.eth_src, f"{name} {which}"))
                    beginnings[case].llc(name, which, frame.eth_src)
                if kind == CDC:
                    beginnings[case].cdc(frame.eth_src, report)
                if kind not in known:
                    report(f"{what} type {kind}")
        if any(flag in TRUE for flag in frame.smc_add_link_response_rejected.split(",")):
            sent.add((case, frame.eth_src, REJECTED))
        if frame.tcp_stream and frame.tcp_len not in ("", "0") and not frame.tcp_analysis_retransmission:
            kinds = numbers(frame.smc_clc_msg)
            if 3 in kinds:
                accelerated.add(frame.tcp_stream)
            # It may come as late as that.
            if 4 in kinds:
                accelerated.discard(frame.tcp_stream)
            payload[frame.tcp_stream].append(("smc" in layers, report))
            if frame.tcp_payload.startswith(EYE_CATCHER) and "smc" not in layers:
                report("begins like a CLC message")
        opcode = int(frame.infiniband_bth_opcode or -1)
        if opcode in WHOLE:
            messages += 1
            if "smc" not in layers:
                report("neither LLC nor CDC")
            if frame.infiniband_bth_se not in TRUE:
                report("no event is solicited")
        if opcode in IMMEDIATE:
            report("a write with immediate data")
    for stream in accelerated:
        for is_clc, report in payload[stream]:
            if not is_clc:
                report("no CLC message on an accelerated connection")
    for beginning in beginnings.values():
        beginning.end()
    wrong += [f"no {what} in {case} from {who}" for case, who, what in options.has if (case, who, what) not in sent]
    for text in wrong[:20]:
        print(f"# {text}")
    print(f"# {len(accelerated)} accelerated connections; " + ", ".join(f"{n} {k}" for k, n in seen.most_common()))
    missing = set(options.need) - {kind for _, who, kind in sent if not options.of or who in options.of}
    if missing:
        print(f"# not seen: {', '.join(sorted(missing))}")
    if not messages:
        print("# no message by RDMA")
    return 1 if wrong or missing or not messages else 0


if __name__ == "__main__":
    sys.exit(main())
