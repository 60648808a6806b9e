# SPDX-License-Identifier: GPL-2.0
"""A connection that is held while second cards, and with them links, come and go."""

import contextlib
import errno
import json
import os

import suite
from groups import no_groups
from suite import LEFT, add_rxe, equal, listener, run, uses_smc, wait_for

PORT = 7981
DATA = os.urandom(65536)
# What a program may be told of a fault of its own end or of the other one.
ERRORS = {errno.ENOMEM, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT}
# Client and server.
HELD = []


def let_go():
    """The connection ends."""
    for sock in HELD:
        sock.close()
    HELD.clear()


def bring(space, number):
    """A card of a host has its device, whatever has become of it."""
    if not os.path.exists(f"/sys/class/infiniband/rx{space}{number}"):
        add_rxe(space, f"{space}{number}")


def second_goes():
    """The second card of the host `right` has no device."""
    run("rdma", "link", "delete", "rxright1", check=False)


def add_second_cards():
    """Another card for each host, in one network with the first."""
    suite.add_cards(1)
    for space in "left", "right":
        add_rxe(space, f"{space}1")
        for card in space, f"{space}1":
            # A name of its own for each host: the devices of both are in one system.
            run("ip", "netns", "exec", space, "smc_pnet", "-a", space, "-I", card)


@contextlib.contextmanager
def second_cards():
    """Both hosts have another card each, for a while."""
    try:
        add_second_cards()
        yield
    finally:
        let_go()
        try:
            no_groups()
        finally:
            for space in "left", "right":
                run("ip", "netns", "exec", space, "smc_pnet", "-f")
                run("rdma", "link", "delete", f"rx{space}1", check=False)
                bring(space, "")
            run("ip", "-n", "left", "link", "delete", "left1", check=False)


def hold(links):
    """Makes a connection, and waits until the group has so many links."""
    let_go()
    for space in "left", "right":
        bring(space, "")
    with listener("left", LEFT, PORT) as listening:
        HELD.extend(suite.pair(listening))
    equal((True, 0), uses_smc(HELD[0]))
    # What was not ready in time is tried again after a minute.
    wait_for(lambda: active_links() == 2 * links, 90)


def active_links():
    """Of both hosts together."""
    return sum(link["state"] == "active" for link in json.loads(run("smcctl", "--json", "links"))["links"])


def goes_on():
    """Data both ways over the connection that is held; gives what a program is told."""
    try:
        for sender, receiver in HELD, HELD[::-1]:
            sender.sendall(DATA)
            got = bytearray()
            while len(got) < len(DATA) and (data := receiver.recv(65536)):
                got += data
            assert DATA.startswith(got), "other data came"
            assert len(got) == len(DATA), "an end of the stream came too early"
    except OSError as error:
        assert error.errno, "a program waits"
        assert error.errno in ERRORS, f"a program is told {error!r}"
        return errno.errorcode[error.errno]
    return "done"
