# SPDX-License-Identifier: GPL-2.0
"""SYNs that nobody's TCP has sent: with SMC's option to any port, and those of others once more, at the moment at which
their connection comes to be."""

import contextlib
import ctypes
import errno
import select
import socket
import struct
import time

import nl

OPTION = bytes([1, 1, 254, 6, 0xE2, 0xD4, 0xC3, 0xD9])
SYN, RST, ACK = 2, 4, 16
OUTGOING = 4
ETH_P_ALL = 3
TCP_SAVE_SYN, TCP_SAVED_SYN = 27, 28
SO_ATTACH_FILTER = 26
# Where TCP's header begins in a frame of Ethernet and IPv4.
TCP = 34
# The first port that the kernel chooses for a program.
CHOSEN = 32768


def flags_of(segment):
    """Flags and options of a segment of TCP."""
    return segment[13], segment[20:(segment[12] >> 4) * 4]


def summed(addresses, segment):
    """A header of TCP between two addresses, with its checksum."""
    segment = segment[:16] + bytes(2) + segment[18:]
    pseudo = addresses + struct.pack(">HH", socket.IPPROTO_TCP, len(segment))
    total = sum(struct.unpack(f">{len(pseudo + segment) // 2}H", pseudo + segment))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return segment[:16] + struct.pack(">H", total ^ 0xFFFF) + segment[18:]


def offer(source, target, ports):
    """The packet of a SYN with the option; the kernel fills in what is zero in the header of IP."""
    options = bytes([2, 4, 5, 180]) + OPTION
    segment = struct.pack(">HHIIBBHHH", *ports, 7, 0, (20 + len(options)) // 4 << 4, SYN, 65535, 0, 0) + options
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, socket.IPPROTO_TCP, 0) + addresses + summed(
        addresses, segment)


class Sees:
    """What connections of programs send to one port of TCP, by a card, in a namespace; frames can be sent there."""

    def __init__(self, space, card, port):
        with nl.inside(space):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        # Classic BPF: IPv4, without options of it, TCP, from such a port, to that port. Nothing is seen before.
        code = [(0x28, 0, 0, 12), (0x15, 0, 9, 0x0800), (0x30, 0, 0, 14), (0x15, 0, 7, 0x45), (0x30, 0, 0, 23),
                (0x15, 0, 5, socket.IPPROTO_TCP), (0x28, 0, 0, TCP), (0x35, 0, 3, CHOSEN), (0x28, 0, 0, TCP + 2),
                (0x15, 0, 1, port), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
        self.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                             struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program)))
        self.sock.bind((card, ETH_P_ALL))
        self.sock.setblocking(False)

    def next(self):
        """The next frame, if there is one."""
        try:
            while True:
                frame, address = self.sock.recvfrom(2048)
                if address[2] == OUTGOING:
                    return frame
        except BlockingIOError:
            return None

    def repeat(self, told, most):
        """Waits for a SYN, gives it to the socket `told`, and sends it again and again until its connection has come to be, or for so many
        seconds; gives how often before that, or None where there was no SYN."""
        if not select.select([self.sock], [], [], 0.1)[0]:
            return None
        frame = self.next()
        if frame is None or frame[TCP + 13] != SYN:
            return None
        if told:
            # Unless nobody has looked for a while.
            with contextlib.suppress(BlockingIOError):
                told.send(frame[14:])
        # A device of its own would have filled in the checksum.
        again = frame[:TCP] + summed(frame[26:TCP], frame[TCP:])
        times, after, end = 0, None, time.monotonic() + most
        # It goes on for a little: the connection is made at this moment.
        while after != 0 and time.monotonic() < end:
            try:
                self.sock.send(again)
            except OSError as error:
                # The card's queue is full.
                if error.errno != errno.ENOBUFS:
                    raise
            if after is not None:
                after -= 1
                continue
            times += 1
            seen = self.next()
            if seen is not None and seen[TCP:TCP + 2] == frame[TCP:TCP + 2] and not seen[TCP + 13] & SYN:
                after = 3
        return times
