# SPDX-License-Identifier: GPL-2.0
"""Netlink as tests want it: requests may be as wrong as one likes, and answers are seen whole."""

import collections
import contextlib
import errno
import os
import select
import socket
import struct
import time

NETLINK_SOCK_DIAG = 4
NETLINK_GENERIC = 16
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
# The last: who asks for a list wants to know whether it is one of one moment.
REQUEST, MULTI, ACK, DUMP, ATOMIC = 1, 2, 4, 0x300, 0x400
NLMSG_ERROR, NLMSG_DONE = 2, 3
ACK_TLVS, CAPPED = 0x200, 0x100
DUMP_INTR = 0x10
GENL_ID_CTRL = 16
NLA_F_NESTED = 0x8000
LIMIT = 20

Message = collections.namedtuple("Message", "kind flags payload")


class Refused(OSError):
    """The kernel's error, with what it says about it."""

    def __init__(self, number, text, place):
        super().__init__(number, os.strerror(number))
        self.text, self.place = text, place

    def __str__(self):
        return f"{errno.errorcode.get(self.errno, self.errno)}: {self.text}"


def attribute(number, value=b""):
    """An attribute. Integers are given as bytes, too: see `u8` and so on."""
    return struct.pack("=HH", len(value) + 4, number) + value + bytes(-len(value) % 4)


def text(value):
    """A string with a zero at its end."""
    return value.encode() + b"\0"


def u8(value):
    """An integer of 8 bits."""
    return struct.pack("=B", value)


def u16(value):
    """An integer of 16 bits."""
    return struct.pack("=H", value)


def u32(value):
    """An integer of 32 bits."""
    return struct.pack("=I", value)


def u64(value):
    """An integer of 64 bits."""
    return struct.pack("=Q", value)


def number(value):
    """The integer that bytes are."""
    return int.from_bytes(value, "little")


def parse(data):
    """Attributes as pairs of number and content; nested ones have to be parsed in turn."""
    found = []
    while data:
        length, kind = struct.unpack_from("=HH", data)
        assert 4 <= length <= len(data), f"an attribute of {length} bytes in {len(data)}"
        found.append((kind & 0x3FFF, data[4:length]))
        data = data[(length + 3) & ~3:]
    return found


def table(data):
    """Attributes by their number; none comes twice."""
    found = parse(data)
    numbers = [kind for kind, _ in found]
    assert len(set(numbers)) == len(numbers), f"attributes come twice: {numbers}"
    return dict(found)


@contextlib.contextmanager
def inside(space):
    """Sockets that this thread makes are in the namespace."""
    if space is None:
        yield
        return
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        os.setns(there, os.CLONE_NEWNET)
        yield
    finally:
        os.setns(here, os.CLONE_NEWNET)
        os.close(there)
        os.close(here)


class Link:
    """A netlink socket in a namespace.

    `buffer` is for the socket's whole life: the kernel sends datagrams as long as the longest buffer
    that it has seen."""

    def __init__(self, protocol=NETLINK_GENERIC, space=None, buffer=65536):
        with inside(space):
            self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self.socket.bind((0, 0))
        self.socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self.socket.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        self.socket.settimeout(LIMIT)
        self.sequence = 0
        self.buffer = buffer
        self.buffers = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, kind, flags, payload):
        """Sends a request, and gives its number."""
        self.sequence += 1
        head = struct.pack("=IHHII", 16 + len(payload), kind, flags | REQUEST, self.sequence, 0)
        self.socket.send(head + payload)
        return self.sequence

    def receive(self):
        """The messages of one datagram."""
        data = self.socket.recv(self.buffer)
        self.buffers += 1
        messages = []
        while data:
            length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", data)
            assert 16 <= length <= len(data), f"a message of {length} bytes in {len(data)}"
            messages.append((sequence, Message(kind, flags, data[16:length])))
            data = data[(length + 3) & ~3:]
        return messages

    def request(self, kind, flags, payload):
        """Sends a request, and gives all messages that answer it, or raises `Refused`. The request
        must be one whose answer has an end: a dump, or one with ACK."""
        sequence = self.send(kind, flags, payload)
        answer = []
        while True:
            for their, message in self.receive():
                if their != sequence:
                    continue
                if message.kind == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", message.payload)[0]
                    if code:
                        raise Refused(code, *explanation(message))
                    return answer
                if message.kind == NLMSG_DONE:
                    code = struct.unpack_from("=i", message.payload)[0] if message.payload else 0
                    if code:
                        raise Refused(-code, None, None)
                    if flags & DUMP:
                        return answer
                answer.append(message)


def explanation(message):
    """What an error message says, and at which place of the request."""
    if not message.flags & ACK_TLVS:
        return None, None
    rest = message.payload[4 + 16:]
    if not message.flags & CAPPED:
        rest = message.payload[4 + ((number(message.payload[4:8]) + 3) & ~3):]
    said = dict(parse(rest))
    words = said.get(1)
    return words.rstrip(b"\0").decode() if words else None, said.get(2) and number(said[2])


def changing_dump(family, command, change):
    """Lists something, and calls `change(turn)` after each datagram of it: the messages of the family, and
    whether the reader was told that the list had changed."""
    sequence = family.link.send(family.id, DUMP | ATOMIC, struct.pack("=BBH", command, family.version, 0))
    found, told, turn = [], False, 0
    while True:
        messages = [message for number, message in family.link.receive() if number == sequence]
        found += [message for message in messages if message.kind == family.id]
        told = told or any(message.flags & DUMP_INTR for message in messages)
        if messages[-1].kind == NLMSG_DONE:
            assert turn > 0, "the list was not changed while it was read"
            return found, told
        change(turn)
        turn += 1


class Family:
    """A generic netlink family, as a namespace sees it."""

    def __init__(self, name, space=None, buffer=65536):
        self.link = Link(space=space, buffer=buffer)
        answer = self.link.request(GENL_ID_CTRL, ACK,
                                   struct.pack("=BBH", 3, 1, 0) + attribute(2, text(name)))
        facts = table(answer[0].payload[4:])
        self.id = number(facts[1])
        self.version = number(facts[3])
        self.header = number(facts[4])
        self.max_attribute = number(facts[5])
        # Number of each command, and its flags.
        commands = [table(value) for _, value in parse(facts.get(6, b""))]
        self.commands = {number(one[1]): number(one[2]) for one in commands}
        groups = [table(value) for _, value in parse(facts.get(7, b""))]
        self.groups = {one[1].rstrip(b"\0").decode(): number(one[2]) for one in groups}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.link.socket.close()

    def ask(self, command, attributes=b"", flags=ACK):
        """Carries out a command; gives the messages that answer it."""
        return self.link.request(self.id, flags,
                                 struct.pack("=BBH", command, self.version, 0) + attributes)

    def do(self, command, *attributes):
        """Carries out a command; gives the attributes of each message of the answer."""
        return [table(message.payload[4:]) for message in self.ask(command, b"".join(attributes))
                if message.kind == self.id]

    def dump(self, command, *attributes):
        """Lists something: pairs of the command and the attributes' bytes of each message."""
        answer = self.ask(command, b"".join(attributes), DUMP)
        return [(message.payload[0], message.payload[4:]) for message in answer]

    def listen(self, group):
        """Takes part in a group."""
        self.link.socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, self.groups[group])

    def events(self, seconds):
        """What comes within a time: pairs of the command and the attributes."""
        end = time.monotonic() + seconds
        found = []
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.link.socket], [], [], left)[0]:
                return found
            found += [(message.payload[0], table(message.payload[4:]))
                      for _, message in self.link.receive()]

    def until(self, command, wanted=lambda facts: True, seconds=LIMIT):
        """Waits for an event of the command that is wanted; gives its attributes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for kind, facts in self.events(0.2):
                if kind == command and wanted(facts):
                    return facts
        raise AssertionError(f"event {command} did not come in {seconds} s")


def refused(code, words, function, *arguments):
    """Has the kernel refuse something with an error and an explanation that begins so."""
    try:
        answer = function(*arguments)
    except Refused as error:
        assert error.errno == code, f"expected {errno.errorcode[code]}: {words}, got {error}"
        if words is not None:
            assert error.text and error.text.startswith(words), f"expected {words!r}, got {error}"
        return error
    raise AssertionError(f"expected {errno.errorcode[code]}, got {answer}")


def unprivileged(action, user_space=False):
    """Runs the action in a process without rights, or as the root of a user namespace of its own,
    with its network; gives 0 if it did not raise, else the error number."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            if user_space:
                os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
            else:
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            action()
            code = 0
        except OSError as error:
            code = error.errno
        except AssertionError as error:
            print(f"# without rights: {error}", flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
