# SPDX-License-Identifier: GPL-2.0
"""What suites in Python share: modules and two hosts, cases, results in KTAP."""

import contextlib
import ctypes
import gc
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback

import nl
import smcsock

MODULES = os.environ["VM_MODULES"]
IPPROTO_SMC = 256
SLOWER = smcsock.SLOWER
LEFT, RIGHT = "10.79.0.1", "10.79.0.2"
# Why a connection is plain TCP: only one of the hosts knows the link group that the other one has in mind.
OUT_OF_SYNC = 0x04000000


class Skipped(Exception):
    """A case cannot be tried here, for that reason."""


def run(*words, check=True, **more):
    """A command; gives what it says."""
    done = subprocess.run(words, check=check, capture_output=True, text=True, **more)
    return done.stdout


def wait_for(what, limit=20):
    """Waits until it holds. A guest that hardly gets a processor is given more time: as much as it needs for the
    tries that any other one makes."""
    began, tries = time.monotonic(), 3 * limit
    while not what():
        tries -= 1
        waited = time.monotonic() - began
        assert tries > 0 or waited < limit, f"did not happen in {limit} s"
        # What takes longer is looked at less often: a look may start programs, and guests share processors.
        time.sleep(0.05 if waited < 2 else 0.25)


def equal(expected, got, what=""):
    """They have to be equal."""
    assert expected == got, f"{what}: expected {expected!r}, got {got!r}"


def make(space, family=socket.AF_INET, protocol=IPPROTO_SMC):
    """A socket of a host."""
    with nl.inside(space):
        sock = socket.socket(family, socket.SOCK_STREAM, protocol)
    sock.settimeout(20)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def listener(space, addr, port):
    """A listening socket."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(make(space, socket.AF_INET6 if ":" in addr else socket.AF_INET))
        sock.bind((addr, port))
        sock.listen(64)
        stack.pop_all()
    return sock


def pair(listening, space="right"):
    """A connection to a listening socket: client, server."""
    client = make(space)
    client.connect(listening.getsockname())
    server, _ = listening.accept()
    server.settimeout(20)
    return client, server


def dissolve(sock):
    """connect() with AF_UNSPEC."""
    if ctypes.CDLL(None, use_errno=True).connect(sock.fileno(), bytes(16), 16):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def nothing_reaches(space):
    """What comes over RDMA is lost there."""
    rule = "INPUT", "-p", "udp", "--dport", "4791", "-j", "DROP"
    table = "ip", "netns", "exec", space, "iptables", "-w"
    run(*table, "-I", *rule)
    try:
        yield
    finally:
        run(*table, "-D", *rule)


def uses_smc(sock):
    """Whether a connection uses SMC, and if not, why."""
    data = sock.getsockopt(286, 1000, 12)
    mode, reason = nl.number(data[:4]), nl.number(data[4:8])
    return mode == 0, reason


def fresh(listening, space="right"):
    """Whether a new connection uses SMC, and if not, why the client says."""
    client, server = pair(listening, space)
    with client, server:
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        return uses_smc(client)


def in_use(module):
    """Whether something holds a module."""
    with open(f"/sys/module/{module}/refcnt", encoding="ascii") as file:
        return int(file.read()) != 0


def load(*names):
    """Loads our modules and what they need."""
    run("modprobe", "-a", "ib_core", "ib_uverbs", "rdma_rxe", "udp_tunnel", "veth")
    for name in names:
        run("insmod", f"{MODULES}/{name}.ko")


def unload(*names):
    """Unloads our modules."""
    for name in names:
        # The last connection may take a moment to end.
        wait_for(lambda name=name: not in_use(name))
        run("rmmod", name)


def add_hosts(number=0):
    """The hosts `left` and `right`, or one more pair of cards between them."""
    if number == 0:
        for space in "left", "right":
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
    add_cards(number)


def add_cards(number):
    """A pair of cards between the hosts."""
    left, right = (f"left{number or ''}", f"right{number or ''}")
    run("ip", "link", "add", left, "netns", "left", "type", "veth", "peer", "name", right,
        "netns", "right")
    for space, dev, host in ("left", left, 1), ("right", right, 2):
        run("ip", "-n", space, "address", "add", f"10.79.{number}.{host}/24", "dev", dev)
        run("ip", "-n", space, "link", "set", dev, "up")


def add_rxe(space, dev=None, name=None):
    """An RDMA device on a card."""
    dev = dev or space
    name = name or f"rx{dev}"
    run("ip", "netns", "exec", space, "rdma", "link", "add", name, "type", "rxe", "netdev", dev)
    until_active(name)


def until_active(device):
    """Waits for an RDMA device."""
    wait_for(lambda: "state ACTIVE" in run("rdma", "link", "show", f"{device}/1"))


def until_it_hears(shown):
    """Waits until a program that shows events is in both groups, that of events and that of families: the kernel shows
    a mask."""
    def groups():
        with open(f"/proc/{shown.pid}/net/netlink", encoding="ascii") as file:
            masks = [int(line.split()[3], 16) for line in list(file)[1:] if line.split()[1] == "16"]
        return max((mask.bit_count() for mask in masks), default=0)

    wait_for(lambda: groups() == 2)


def resources():
    """What all RDMA devices have in use."""
    lines = (line.partition(": ")[2].strip() for line in run("rdma", "resource").splitlines())
    return sorted(line for line in lines if line)


def objects(kind):
    """How many they have of that kind: pd, cq, qp or mr."""
    return sum(int(re.search(rf"\b{kind} ([0-9]+)", line)[1]) for line in resources())


def set_sysctl(space, **values):
    """Settings of a host."""
    with nl.inside(space):
        for name, value in values.items():
            with open(f"/proc/sys/net/smc/{name}", "w", encoding="ascii") as file:
                file.write(str(value))


def remove_hosts():
    """Takes the hosts and their devices away."""
    for space in "left", "right":
        run("ip", "netns", "delete", space, check=False)
    try:
        # `rdma link` fails where one goes while it lists them.
        wait_for(lambda: not glob.glob("/sys/class/infiniband/rx*"))
    except AssertionError:
        said_of_namespaces()
        raise


def said_of_namespaces():
    """Prints what may keep a namespace that was deleted: processes in it, files of it, references that the kernel
    keeps a record of, how many sockets TCP goes on with by itself; and where the kernel's workers are."""
    with open("/proc/net/sockstat", encoding="ascii") as file:
        print("".join(f"# {line}" for line in file), end="")
    own = os.readlink("/proc/self/ns/net")
    for link in glob.glob("/proc/[0-9]*/ns/net") + glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            to = os.readlink(link)
            if to.startswith("net:") and to != own:
                with open(f"/proc/{link.split('/')[2]}/comm", encoding="ascii") as file:
                    print(f"# {link} of {file.read().strip()}: {to}")
    for name in glob.glob("/sys/kernel/debug/ref_tracker/net*") + glob.glob("/proc/[0-9]*/stack"):
        with contextlib.suppress(OSError), open(name, encoding="ascii") as file:
            said = file.read()
            if "/stack" not in name or "cleanup_net" in said:
                print("".join(f"# {name}: {line}\n" for line in said.splitlines()), end="")


def slow_ip(folder):
    """Puts a program `ip` into a folder that takes its time where the selftest sets up a namespace; gives the
    file in which its process ID is then."""
    note = os.path.join(folder, "note")
    with open(os.path.join(folder, "ip"), "w", encoding="ascii") as file:
        file.write(f'''#!/bin/sh
case "$*" in
*"link set lo up"*) echo $$ >{note}.new; mv {note}.new {note}; exec sleep 60 ;;
esac
exec {shutil.which("ip")} "$@"
''')
        os.fchmod(file.fileno(), 0o755)
    return note


def end_slow_ip(note):
    """Ends what may be left of it."""
    with open(note, encoding="ascii") as file, contextlib.suppress(ProcessLookupError):
        os.kill(int(file.read()), signal.SIGKILL)


def end_in_order():
    """Has SIGTERM, which comes where a test is not done in time, end the program by way of tear_down."""
    this = os.getpid()

    def end(*_):
        if os.getpid() != this:
            os._exit(128 + signal.SIGTERM)
        # It may come to the process and to its group.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def said_by_module():
    """Prints what the module has counted, and its groups, while there is still what a failed case has made."""
    if not os.path.exists("/sys/module/smc_r"):
        return
    def show(name, *words):
        """Where the module hangs, what the case says is still to be printed."""
        try:
            shown = run(*words, check=False, timeout=20)
        except subprocess.TimeoutExpired as error:
            shown = str(error)
        print("".join(f"# {name}{line}\n" for line in shown.splitlines()), end="", flush=True)

    for space in os.listdir("/run/netns") if os.path.exists("/run/netns") else []:
        show(f"{space}: ", "ip", "netns", "exec", space, "smcctl", "stats")
    for what in "groups", "links":
        show("", "smcctl", what)
    # Kernels with assertions are told more than what others log.
    show("", "sh", "-c", "dmesg | grep 'smc_r: ' | tail -n 20")


def explain(error):
    """Prints where something went wrong, and how. First what the module says, since there is still what has been made,
    and what went wrong shall stand next to the result."""
    said_by_module()
    for frame in traceback.extract_tb(error.__traceback__):
        print(f"# {os.path.basename(frame.filename)}:{frame.lineno} {frame.line}")
    said = getattr(error, "stderr", "") or ""
    print(f"# failed: {type(error).__name__}: {error} {said}", flush=True)


def need_probes():
    """Ends the program, as skipped, on kernels in which no function can be probed."""
    with open("/proc/kallsyms", encoding="ascii") as file:
        if not any(line.endswith(" register_kprobe\n") for line in file):
            print("TAP version 13\n1..0 # SKIP this kernel has no kprobes")
            sys.exit(4)


def main(tests, set_up, tear_down):
    """Runs the cases, and ends the program."""
    print("TAP version 13")
    print(f"1..{len(tests)}")
    only = os.environ.get("SMC_TEST_ONLY", "").split()
    failed = 0
    end_in_order()
    try:
        set_up()
        for place, test in enumerate(tests, 1):
            words = test.__name__.replace("_", " ")
            if only and test.__name__ not in only:
                print(f"ok {place} {words} # SKIP not asked for")
                continue
            started = time.monotonic()
            try:
                test()
                result = "ok"
            except Skipped as reason:
                print(f"ok {place} {words} # SKIP {reason}", flush=True)
                continue
            except Exception as error:  # whatever goes wrong is a failed test
                failed += 1
                result = "not ok"
                explain(error)
            # The frames of what failed hold sockets, which keep the module in use.
            gc.collect()
            print(f"{result} {place} {words} # {time.monotonic() - started:.1f} s", flush=True)
    except Exception as error:  # as above
        failed += 1
        explain(error)
    finally:
        try:
            tear_down()
        except Exception as error:  # as above
            failed += 1
            explain(error)
    sys.exit(1 if failed else 0)
