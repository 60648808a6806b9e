# SPDX-License-Identifier: GPL-2.0
"""What administrators' programs see of a module, whichever it is: for selftests/two/admin.

usage: admin.py hold server|client HOST PORT READY
       admin.py shape|keys FILE
       admin.py compare FILE FILE
       admin.py tools smc|smc_r PEER EID

`hold` keeps a connection until it is killed. `shape` writes what the netlink interface answers: commands,
attributes and their lengths, and errors; `keys` which members the JSON of the programs has. `tools` runs the
programs.
"""

import errno
import json
import os
import socket
import struct
import subprocess
import sys
import time

import nl
import smcsock as s

SOCK_DIAG_BY_FAMILY, AF_SMC = 20, 43
NOBODY = 65534


## Both hosts have the same

def tree(data):
    """Attributes by number: the length, or those inside a nest. Paddings do not count."""
    found = {}
    while data:
        length, kind = struct.unpack_from("=HH", data)
        number, value = kind & 0x3FFF, data[4:length]
        if kind & nl.NLA_F_NESTED:
            found[number] = tree(value)
        elif value:
            found[number] = len(value)
        data = data[(length + 3) & ~3:]
    return found


def distinct(items):
    """Each once, in some order that is always the same."""
    return sorted({json.dumps(item, sort_keys=True) for item in items})


def code(function, *arguments):
    """How a request ends."""
    try:
        function(*arguments)
        return "done"
    except nl.Refused as error:
        return errno.errorcode[error.errno]


def lists(family, commands):
    """What lists consist of: the command of each message, and its attributes."""
    return {number: distinct([command, tree(data)] for command, data in family.dump(number)) for number in commands}


def eid(name):
    return nl.attribute(1, name.ljust(32).encode() + b"\0")


def errors_of_eids(family, held):
    """Requests about enterprise IDs, some of them wrong, and how they end. `held` is there already."""
    add, remove = 10, 11
    requests = [
        ("held", add, eid(held)),
        ("none", add, b""),
        ("short", add, nl.attribute(1, b"A" * 31 + b"\0")),
        ("long", add, nl.attribute(1, b"A" * 40 + b"\0")),
        ("lower case", add, eid("lower")),
        ("begins with a dot", add, eid(".A")),
        ("blank inside", add, eid("A B")),
        ("unknown", remove, eid("UNKNOWN")),
        ("remove none", remove, b""),
        ("second", add, eid("SECOND.1")),
        ("third", add, eid("3")),
        ("fourth", add, eid("A" * 32)),
        ("fifth", add, eid("FIFTH")),
        ("second goes", remove, eid("SECOND.1")),
        ("third goes", remove, eid("3")),
        ("fourth goes", remove, eid("A" * 32)),
        ("enable SEID", 14, b""),
        ("disable SEID", 15, b""),
        ("limit", 17, b""),
        ("no limit", 18, b""),
    ]
    return {name: code(family.do, command, attributes) for name, command, attributes in requests}


def errors_of_lists(family, commands):
    """Lists asked for with an attribute, lists as single answers, and numbers that are no command."""
    found = {}
    for number in commands:
        found[f"{number} with an attribute"] = code(family.dump, number, nl.attribute(1, b"x"))
        found[f"{number} as an answer"] = code(family.do, number)
    for number in 0, 19, 255:
        found[f"{number} unknown"] = code(family.do, number)
    return found


def errors_of_pnet(family):
    """Requests about physical networks."""
    get, add, delete, flush = 1, 2, 3, 4

    def name(value):
        return nl.attribute(1, nl.text(value))

    eth, device, port = nl.attribute(2, nl.text("none0")), nl.attribute(3, nl.text("mlx9")), nl.attribute(4, nl.u8(2))
    requests = [
        ("nothing", add, b""),
        ("a name alone", add, name("net1")),
        ("a bad name", add, name("a b") + eth),
        ("an empty name", add, name("") + eth),
        ("a long name", add, name("n" * 17) + eth),
        ("no port 3", add, name("net1") + device + nl.attribute(4, nl.u8(3))),
        ("an interface", add, name("net1") + eth),
        ("again", add, name("net2") + eth),
        ("a device", add, name("net2") + device + port),
        ("one of both new", add, name("net3") + eth + nl.attribute(3, nl.text("mlx8"))),
        ("shown", get, name("NET1")),
        ("no name to show", get, b""),
        ("gone", delete, name("NET1")),
        ("gone again", delete, name("NET1")),
        ("no name to delete", delete, b""),
        ("all gone", flush, b""),
        ("all gone again", flush, b""),
        ("unknown", 5, b""),
    ]
    found = {label: code(family.do, command, attributes) for label, command, attributes in requests}
    found["deletion as a list"] = code(family.dump, delete)
    return found


def sockets(ext):
    """What is listed of sockets: state and mode, and the lengths of attributes."""
    with nl.Link(nl.NETLINK_SOCK_DIAG) as link:
        answer = link.request(SOCK_DIAG_BY_FAMILY, nl.DUMP, struct.pack("=BHB48x", AF_SMC, 0, ext))
    return [(message.payload[1], message.payload[2], dict((number, len(value))
             for number, value in nl.parse(message.payload[64:]))) for message in answer]


def shape(held):
    """All of that, of this host."""
    dumps = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16]
    found = {}
    with nl.Family("SMC_GEN_NETLINK") as smc:
        found["family"] = {"facts": [smc.version, smc.header, smc.max_attribute],
                           "commands": {n: flags & 7 for n, flags in smc.commands.items()}}
        found["lists"] = lists(smc, dumps)
        found["errors"] = errors_of_eids(smc, held) | errors_of_lists(smc, dumps)
    with nl.Family("SMC_PNETID") as pnet:
        found["pnet family"] = {"facts": [pnet.version, pnet.header, pnet.max_attribute],
                                "commands": {n: flags & 7 for n, flags in pnet.commands.items()}}
        pnet.do(2, nl.attribute(1, nl.text("net1")), nl.attribute(2, nl.text("none0")))
        one = pnet.ask(1, nl.attribute(1, nl.text("NET1")))
        found["pnet list"] = [lists(pnet, [1]), [tree(m.payload[4:]) for m in one if m.kind == pnet.id]]
        pnet.do(4)
        found["pnet errors"] = errors_of_pnet(pnet)
    for ext in 0, 1, 2, 0b1011:
        found[f"sockets {ext}"] = distinct(sockets(ext))
    return found


def members(value):
    """The names in JSON, without what belongs to them; those of all items of a list."""
    if isinstance(value, dict):
        return {key: members(inner) for key, inner in value.items()}
    if isinstance(value, list):
        together = {}
        for item in map(members, value):
            if isinstance(item, dict):
                # A socket that is closing has no connection any more.
                together |= {key: inner for key, inner in item.items() if inner is not None or key not in together}
        return together
    return None


def keys():
    """What the programs say in JSON has these members."""
    lines = ["smcctl status", "smcctl groups", "smcctl links", "smcctl devices", "smcctl stats", "smcctl sockets",
             "smcctl ueid list", "smcctl pnet list", "smcctl handshake-limit", "smcctl peers", "smcss -a", "smcr info",
             "smcr linkgroup", "smcr linkgroup link-show", "smcr device", "smcr ueid", "smc_pnet"]
    return {line: members(json.loads(tool(*line.split(), "--json"))) for line in lines}


# Where the two differ on purpose, and why.
DIFFERENCES = {
    "/pnet errors/a name alone": "an entry without a device is a wrong request, and not one that is there already",
}


def differences(one, two, place=""):
    """Where two answers differ."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            yield from differences(one.get(key), two.get(key), f"{place}/{key}")
    elif one != two:
        yield place, one, two


def compare(first, second):
    """Tells where two files differ; fails if that is not known."""
    with open(first, encoding="utf-8") as one, open(second, encoding="utf-8") as two:
        found = list(differences(json.load(one), json.load(two)))
    for place, here, there in found:
        print(f"# {place}: {DIFFERENCES.get(place, 'a difference')}: here {here}, there {there}")
    return int(any(place not in DIFFERENCES for place, _, _ in found))


## Connections to look at

def native(host, port, call):
    """A socket of the family AF_SMC: Linux 6.12 tells no addresses of those with IPPROTO_SMC."""
    made = socket.socket(s.AF_SMC, socket.SOCK_STREAM, 0)
    # Python knows how addresses of this family look.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=made.detach())
    sock.settimeout(s.LIMIT)
    call(sock, (host, int(port)))
    return sock


def hold(role, host, port, ready):
    """Keeps a connection on which data has gone both ways."""
    if role == "server":
        listener = native(host, port, socket.socket.bind)
        listener.listen(5)
        s.touch(ready)
        sock, _ = listener.accept()
    else:
        s.until(lambda: os.path.exists(ready), 60, "a server")
        sock = native(host, port, socket.socket.connect)
    sock.settimeout(s.LIMIT)
    sock.sendall(b"x" * 1000)
    s.read_exactly(sock, 1000)
    s.touch(f"{ready}.{role}")
    time.sleep(1800)


## The programs

def tool(*words, ends=0, user=None):
    """Runs a program; it has to end with this status. Gives all that it says."""
    done = subprocess.run(words, check=False, text=True, timeout=60, user=user, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **({"extra_groups": []} if user else {}))
    assert done.returncode == ends, f"{words} ended with {done.returncode}, not {ends}: {done.stdout}"
    return done.stdout


def data(*words, **more):
    """What smcctl says in JSON."""
    return json.loads(tool("smcctl", "--json", *words, **more))


def said(text, *parts):
    """These parts have to be in a text, however its lines are broken."""
    flat = " ".join(text.split())
    for part in parts:
        assert part in flat, f"'{part}' is not in: {text}"


def views(module, peer, held):
    """What there is: a link group of each role with a connection, over a device."""
    status = data("status")
    s.equal("module", module, status["module"])
    s.check((status["module_version"] is not None) == (module == "smc_r"), status)
    s.check(status["groups"] >= 2 and status["active_links"] >= 2 and status["connections"] >= 2, status)
    said(tool("smcctl", "status"), "Module", module)
    groups = data("groups")["groups"]
    s.equal("roles", {"client", "server"}, {group["role"] for group in groups})
    for group in groups:
        s.check(held in json.dumps(group) and group["connections"] >= 1, group)
    links = data("links")["links"]
    s.equal("links", {("rxe0", "active")}, {(link["device"], link["state"]) for link in links})
    (device,) = data("devices")["devices"]
    s.check(device["name"] == "rxe0" and device["ports"][0]["active"], device)
    active = [sock for sock in data("sockets", "--connected")["sockets"] if sock["mode"] == "SMC-R"]
    s.check(len(active) >= 2 and all(sock["connection"] and sock["link"] for sock in active), active)
    s.equal("peers of sockets", {peer}, {sock["peer"].rpartition(":")[0] for sock in active})
    stats = data("stats")
    s.check(stats["smcr"]["tx"]["bytes"] >= 2000 and stats["smcr"]["rx"]["bytes"] >= 2000, stats)
    (there,) = data("peers")["peers"]
    s.check(there["address"] == peer and there["smcr"] >= 2, there)
    for words in ["groups"], ["links"], ["devices"], ["sockets"], ["sockets", "-e"], ["stats"], ["peers"]:
        s.check(tool("smcctl", *words).strip(), words)


def lists_of_the_administrator(_module, _peer, held):
    """EIDs, networks, limit: shown, changed, refused."""
    s.equal("EIDs", [held], data("ueid", "list")["ueids"])
    tool("smcctl", "ueid", "add", "OTHER-1")
    s.equal("EIDs", sorted([held, "OTHER-1"]), sorted(data("ueid", "list")["ueids"]))
    tool("smcctl", "ueid", "add", "OTHER-1", ends=1)
    tool("smcctl", "ueid", "add", "lower", ends=2)
    tool("smcctl", "ueid", "remove", "OTHER-1")
    tool("smcctl", "ueid", "remove", "OTHER-1", ends=1)
    tool("smcctl", "pnet", "add", "net1", "-i", "none0", "-d", "mlx9", "-p", "2")
    found = {(e["id"], e["interface"], e["device"], e["port"]) for e in data("pnet", "list")["pnet_ids"]}
    s.equal("networks", {("NET1", "none0", None, None), ("NET1", None, "mlx9", 2)}, found)
    tool("smcctl", "pnet", "add", "net1", "-i", "none0", ends=1)
    tool("smcctl", "pnet", "remove", "net1")
    tool("smcctl", "pnet", "remove", "net1", ends=1)
    for value, on in ("on", True), ("off", False):
        tool("smcctl", "handshake-limit", value)
        s.equal("limit", {"handshake_limit": on}, data("handshake-limit"))
        with open("/proc/sys/net/smc/limit_smc_hs", encoding="ascii") as file:
            s.equal("setting", int(on), int(file.read()))


def questions(module, peer, _held):
    """Whether SMC can be used with the peer, and what is in its way."""
    answer = data("why", peer)
    s.check(answer["good"], answer)
    s.equal("module", "pass", answer["steps"][0]["verdict"])
    verdicts = {step["name"]: step["verdict"] for step in answer["steps"]}
    s.equal("what one module alone can tell", "pass" if module == "smc_r" else "note", verdicts["rules"])
    said(tool("smcctl", "why", "203.0.113.1", ends=1), "FAIL route")
    answer = data("check")
    s.check(answer["good"], answer)


def what_our_module_has(module, _peer, _held):
    """Rules, drain, events, failed peers: of smc_r alone, and the others say so."""
    for words in (["rules", "list"], ["rules", "flush"], ["drain", "--list"], ["peers", "--flush"],
                  ["events", "--count", "0"]):
        if module == "smc_r":
            tool("smcctl", *words)
        elif words[0] != "events":
            said(tool("smcctl", *words, ends=3), "the kernel does not offer smc-rs", "hint: this needs the module")
    if module == "smc":
        for words in (["events"], ["rules", "add", "deny", "--port", "9"], ["drain", "--device", "rxe0"]):
            said(tool("smcctl", *words, ends=3), "hint: this needs the module smc_r")


def names_that_scripts_know(module, peer, held):
    """smc_pnet, smcss, smcr."""
    tool("smc_pnet", "-a", "net2", "-I", "none1", "-D", "mlx8")
    s.equal("entries", sorted(["NET2 none1 n/a 255", "NET2 n/a mlx8 1"]), sorted(tool("smc_pnet").splitlines()))
    s.equal("entries of a network", 2, len(tool("smc_pnet", "-s", "net2").splitlines()))
    tool("smc_pnet", "-d", "net2")
    tool("smc_pnet", "-d", "net2", ends=1)
    tool("smc_pnet", "-f")
    rows = [line.split() for line in tool("smcss").splitlines()[1:]]
    s.check(sum(row[0] == "ACTIVE" and row[6] == "SMCR" and row[4].startswith(peer) for row in rows) >= 2, rows)
    rows = [line.split() for line in tool("smcss", "-dR").splitlines()[1:]]
    s.equal("columns", {7 + 14 + 6}, {len(row) for row in rows})
    s.equal("roles and links", {("CLNT", "rxe0", "01"), ("SERV", "rxe0", "01")}, {tuple(row[21:24]) for row in rows})
    s.equal("SMC-D sockets", 1, len(tool("smcss", "-D").splitlines()))
    said(tool("smcss", "-l"), "LISTEN")
    said(tool("smcr", "info"), "SMC Version", "2.1")
    said(tool("smcr", "linkgroup"), "SERV", "CLNT")
    said(tool("smcr", "-d", "linkgroup"), held)
    said(tool("smcr", "linkgroup", "link-show"), "rxe0 1 ACTIVE")
    said(tool("smcr", "device"), "eth0 rxe0 1 ACTIVE")
    said(tool("smcr", "ueid"), held)
    json.loads(tool("smcr", "stats", "json"))
    s.equal("module", module == "smc_r", os.path.isdir("/sys/module/smc_r"))


def ordinary_users(_module, peer, _held):
    """They may look."""
    for words in ["status"], ["groups"], ["links"], ["devices"], ["stats"], ["ueid", "list"], ["pnet", "list"]:
        tool("smcctl", *words, user=NOBODY)
    s.check(tool("smcss", user=NOBODY).count(peer) >= 2, "sockets")
    for words in (["pnet", "flush"], ["ueid", "flush"], ["handshake-limit", "on"]):
        said(tool("smcctl", *words, ends=4, user=NOBODY), "CAP_NET_ADMIN")


TOOLS = {check.__name__: check for check in (views, lists_of_the_administrator, questions, what_our_module_has,
                                             names_that_scripts_know, ordinary_users)}


def main(what, *arguments):
    if what in ("shape", "keys"):
        path, *more = arguments
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"shape": shape, "keys": keys}[what](*more), file, indent=1, sort_keys=True)
        return 0
    if what == "compare":
        return compare(*arguments)
    if what == "hold":
        return hold(*arguments)
    return TOOLS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
