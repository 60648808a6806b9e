# SPDX-License-Identifier: GPL-2.0
"""Reads captures: what is on the TCP connections, and what goes by RDMA.

usage: pcap.py tcp FILE [--connections N] [--port P]
           every payload byte of every TCP connection belongs to a CLC message, every connection shows
           the SMC option in SYN and SYN-ACK, and there are at least N connections
       pcap.py app FILE --bytes N [--port P]
           the opposite: at least N payload bytes that are not CLC
       pcap.py roce FILE [--bytes N]
           what UDP port 4791 carries; at least N payload bytes of RDMA writes
       pcap.py syn FILE [--port P]
           the options of each SYN and SYN-ACK, in hexadecimal, and how many of the segments behind them
           have the SMC option
"""

import argparse
import collections
import struct
import sys

EYE = bytes.fromhex("e2d4c3d9")
SMC_OPTION = bytes.fromhex("fe06e2d4c3d9")
CLC_NAMES = {1: "proposal", 2: "accept", 3: "confirm", 4: "decline"}
FIN, SYN, RST, ACK = 1, 2, 4, 16
# Opcodes of the reliable connected transport.
WRITES = {6, 7, 8, 9, 10, 11}
WITH_RETH = {6, 10, 11}
SENDS = {0, 1, 2, 3, 4, 5}

Packet = collections.namedtuple("Packet", "time src dst proto data cut")


def packets(path):
    """The IP packets of a capture of Ethernet frames; without fragments."""
    with open(path, "rb") as file:
        content = file.read()
    magic = struct.unpack_from("<I", content)[0]
    if magic not in (0xA1B2C3D4, 0xA1B23C4D):
        raise ValueError("not a capture in this machine's order")
    if struct.unpack_from("<I", content, 20)[0] != 1:
        raise ValueError("not a capture of Ethernet frames")
    position = 24
    while position + 16 <= len(content):
        seconds, fraction, length, original = struct.unpack_from("<IIII", content, position)
        position += 16
        frame = content[position : position + length]
        position += length
        ethertype = frame[12:14]
        if ethertype == b"\x08\x00":
            header = (frame[14] & 15) * 4
            total = struct.unpack_from(">H", frame, 16)[0] or original - 14
            proto, src, dst = frame[23], frame[26:30], frame[30:34]
        elif ethertype == b"\x86\xdd":
            header = 40
            total = 40 + (struct.unpack_from(">H", frame, 18)[0] or original - 54)
            proto, src, dst = frame[20], frame[22:38], frame[38:54]
        else:
            continue
        data = frame[14 + header : 14 + total]
        yield Packet(seconds + fraction / 1e6, src, dst, proto, data, 14 + total - len(frame))


class Stream:
    """One direction of a TCP connection."""

    def __init__(self):
        self.first = None
        self.segments = {}
        self.options = None
        # Segments without SYN, and those of them that have the SMC option.
        self.later = 0
        self.repeats = 0
        self.end = 0

    def payload(self):
        """All bytes in order; a hole is an error of the capture."""
        stream = bytearray()
        for offset, data in sorted(self.segments.items()):
            if offset > len(stream):
                raise ValueError(f"the capture misses bytes {len(stream)}..{offset}")
            stream[offset : offset + len(data)] = data
        return bytes(stream)


def connections(path, port):
    """TCP connections: {(client, server): [client's stream, server's stream]}."""
    found = {}
    for packet in packets(path):
        if packet.proto != 6:
            continue
        sport, dport, seq, _ack, offset, flags = struct.unpack_from(">HHIIBB", packet.data)
        if port and port not in (sport, dport):
            continue
        source, target = (packet.src, sport), (packet.dst, dport)
        header = (offset >> 4) * 4
        if flags & SYN and not flags & ACK:
            # A retransmission has the same number; another number is a new connection.
            old = found.get((source, target))
            if old and old[0].first == seq:
                continue
            if old:
                found[(source, target, old[0].first)] = old
            found[(source, target)] = [Stream(), Stream()]
        if (source, target) in found:
            stream = found[(source, target)][0]
        elif (target, source) in found:
            stream = found[(target, source)][1]
        elif len(packet.data) + max(packet.cut, 0) == header:
            # The end of a connection that was there before the capture: it carries nothing.
            continue
        else:
            raise ValueError(f"data of a connection of which the capture has no SYN: {sport} {dport}")
        if flags & SYN:
            stream.first = seq
            stream.options = packet.data[20:header]
        else:
            stream.later += 1
            stream.repeats += SMC_OPTION in options(packet.data[20:header])
        data = packet.data[header:]
        if flags & RST or not (data or packet.cut > 0) or flags & SYN:
            continue
        if packet.cut > 0:
            data += b"\0" * packet.cut
        # A keepalive repeats the byte before the next one.
        relative = (seq - stream.first - 1) & 0xFFFFFFFF
        if relative < 0x80000000 and len(data) > len(stream.segments.get(relative, b"")):
            stream.segments[relative] = data
    return found


def options(raw):
    """The options of a TCP header, one by one."""
    while raw:
        if raw[0] == 0:
            return
        if raw[0] == 1:
            yield raw[:1]
            raw = raw[1:]
            continue
        if len(raw) < 2 or raw[1] < 2:
            raise ValueError("malformed TCP options")
        yield raw[: raw[1]]
        raw = raw[raw[1] :]


def clc(stream):
    """Splits a stream into CLC messages; gives back their names and the bytes left."""
    names = []
    while len(stream) >= 12 and stream[:4] == EYE:
        length = struct.unpack_from(">H", stream, 5)[0]
        if length < 12 or length > len(stream) or stream[length - 4 : length] != EYE:
            break
        names.append(CLC_NAMES.get(stream[4], f"type {stream[4]}"))
        stream = stream[length:]
    return names, stream


def check_tcp(args):
    """No payload but CLC."""
    shapes = collections.Counter()
    total = bad = 0
    for key, streams in connections(args.file, args.port).items():
        shape = []
        for side, stream in zip(("client", "server"), streams):
            if SMC_OPTION not in list(options(stream.options or b"")):
                print(f"# {key}: no SMC option from the {side}")
                bad += 1
            payload = stream.payload()
            names, rest = clc(payload)
            total += len(payload)
            shape.append("+".join(names) or "nothing")
            if rest:
                print(f"# {key}: {len(rest)} bytes from the {side} are not CLC: {rest[:32].hex()}")
                bad += 1
        shapes[f"client {shape[0]}, server {shape[1]}"] += 1
    count = sum(shapes.values())
    print(f"# {count} TCP connections, {total} bytes of payload, all of them CLC messages:" if not bad
          else f"# {count} TCP connections, {bad} violations:")
    for shape, number in shapes.most_common():
        print(f"#   {number} x {shape}")
    good = shapes["client proposal+confirm, server accept"]
    return not bad and good == count and count >= args.connections


def check_app(args):
    """Payload besides CLC."""
    amount = 0
    for streams in connections(args.file, args.port).values():
        for stream in streams:
            amount += len(clc(stream.payload())[1])
    print(f"# {amount} bytes of application data on TCP")
    return amount >= args.bytes


def check_roce(args):
    """What goes by RDMA, each packet number counted once."""
    seen = set()
    count = collections.Counter()
    size = collections.Counter()
    for packet in packets(args.file):
        if packet.proto != 17 or struct.unpack_from(">H", packet.data, 2)[0] != 4791:
            continue
        opcode, flags = packet.data[8], packet.data[9]
        qp = packet.data[13:16]
        psn = packet.data[17:20]
        key = (packet.dst, qp, psn, opcode)
        if key in seen:
            count["repeated"] += 1
            continue
        pad = (flags >> 4) & 3
        length = len(packet.data) + max(packet.cut, 0) - 8 - 12 - 4 - pad
        if opcode in WRITES:
            seen.add(key)
            size["write"] += length - (16 if opcode in WITH_RETH else 0)
            count["write"] += 1
        elif opcode in SENDS:
            seen.add(key)
            size["send"] += length - (4 if opcode in (3, 5) else 0)
            count["send"] += 1
        else:
            count["acknowledgement"] += 1
    print(f"# UDP 4791: {size['write']} bytes in {count['write']} packets of RDMA writes, "
          f"{size['send']} bytes in {count['send']} messages, {count['acknowledgement']} "
          f"acknowledgements, {count['repeated']} repeated packets")
    return size["write"] >= args.bytes


def show_syn(args):
    """Options as they are on the wire."""
    found = connections(args.file, args.port).values()
    for streams in found:
        for name, stream in zip(("syn", "synack"), streams):
            print(name, "-" if stream.options is None else stream.options.hex())
    both = [stream for streams in found for stream in streams]
    print("later", sum(stream.repeats for stream in both), "of", sum(stream.later for stream in both))
    return True


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=("tcp", "app", "roce", "syn"))
    parser.add_argument("file")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    what = {"tcp": check_tcp, "app": check_app, "roce": check_roce, "syn": show_syn}[args.what]
    try:
        good = what(args)
    except (ValueError, struct.error, IndexError) as error:
        print(f"# {args.file}: {error}")
        good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
