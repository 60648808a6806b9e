# SPDX-License-Identifier: GPL-2.0
"""Calls on a connection that copy from a program or to it. Each copy may fail, as where the program's memory is not there:
the call says so, or how much it has done before, and the next one goes on where that ended."""

import errno
import os
import select
import socket

DATA = os.urandom(30000)
LIMIT = 20


def again(call, *arguments, gone=()):
    """What a call says, where it has to be made again because of a copy that failed: what it was about may be `gone` then."""
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno not in gone:
            raise
        return None


def send(sock, data):
    sent = 0
    while sent < len(data):
        sent += again(sock.sendmsg, [data[sent:sent + 7000], data[sent + 7000:]])


def receive(sock, amount):
    """So many bytes, each of which is looked at first."""
    got = bytearray()
    while len(got) < amount:
        seen = again(sock.recv, amount - len(got), socket.MSG_PEEK)
        parts = bytearray(7000), bytearray(DATA)
        count = again(sock.recvmsg_into, parts)[0]
        assert count, f"the end of the stream after {len(got)} bytes"
        part = b"".join(parts)[:count]
        assert part.startswith(seen[:count]), "what was looked at is not what came"
        got += part
    return bytes(got)


def urgent(there, here):
    """A byte of urgent data. TCP regards it as read if the copy fails."""
    again(there.send, b"!", socket.MSG_OOB)
    poll = select.poll()
    poll.register(here, select.POLLPRI)
    assert poll.poll(LIMIT * 1000), "no urgent data came"
    # Otherwise Python waits for data that is not urgent.
    here.setblocking(False)
    assert again(here.recv, 1, socket.MSG_OOB, gone=(errno.EINVAL,)) in (b"!", None)
    here.settimeout(LIMIT)


def options(sock, number):
    """Options that are TCP's, and one of text."""
    seconds = 1000 + number % 1000
    again(sock.setsockopt, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    assert again(sock.getsockopt, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == seconds
    name = again(sock.getsockopt, socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    again(sock.setsockopt, socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    assert again(sock.getsockopt, socket.IPPROTO_TCP, socket.TCP_INFO, 104)


def talk(client, server, number):
    """Data both ways, urgent data, options."""
    for there, here in (client, server), (server, client):
        there.settimeout(LIMIT)
        here.settimeout(LIMIT)
        send(there, DATA)
        assert receive(here, len(DATA)) == DATA, "other data came"
        urgent(there, here)
        options(here, number)
