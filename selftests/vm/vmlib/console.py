# SPDX-License-Identifier: GPL-2.0
"""Finds reports of trouble in a kernel's console."""

import re

# Any of these ends a run as failed.
TROUBLE = re.compile(
    r"""WARNING:|BUG:|\bBUG\ |Oops|KASAN|KCSAN|UBSAN|Kernel\ panic|Call\ Trace:|DEBUG_LOCKS_WARN
    |possible\ (?:circular|recursive)\ locking|possible\ irq\ lock\ inversion|inconsistent\ lock\ state
    |INFO:\ task\ .*blocked\ for\ more|self-detected\ stall|detected\ (?:expedited\ )?stalls|soft\ lockup|hard\ LOCKUP
    |general\ protection\ fault|unable\ to\ handle|stack\ segment|divide\ error|invalid\ opcode
    |scheduling\ while\ atomic|sleeping\ function\ called|refcount_t:|list_(?:add|del)\ corruption
    |kmemleak:\ [1-9]\d*\ new\ suspected|unreferenced\ object|Objects\ remaining|memory\ leak\ detector\ disabled
    |allocated\ at\ module\ unload
    |unregister_netdevice:\ waiting|rust_kernel:\ panicked|Memory\ cgroup\ out\ of\ memory
    |Out\ of\ memory|held\ lock\ freed|lock\ held\ when\ returning|smc-vm:\ (?:cannot\ boot|lockdep\ is\ off|left\ behind)
    |ref_tracker:\ (?:.*\ has\ \d+/\d+\ users|reference\ already\ released)
    |truncated\ extack|register\ non-static\ key|allocation\ profiling\ is\ disabled
    """,
    re.VERBOSE,
)
# Of reports of KCSAN, those count in which one of the two accesses is of our modules (of which one makes mistakes to show
# that they are found), its own or that of a function of the kernel which it calls for no more than that: the kernel has
# races of its own.
RACE = re.compile(r"BUG: KCSAN: ")
ACCESS = re.compile(r"^(?:read|write|race at unknown origin).* to 0x\w+ of \d+ bytes by ")
LEAF = re.compile(
    r"""_*(?:mem(?:cpy|move|set|cmp)|bcmp|str(?:n?len|n?cmp)|sized_strscpy|copy_(?:from|to)_\w+
    |list_\w+_or_report|rb_\w+|find_\w+_bit|sg_\w+|nla_\w+|p?skb_\w+|v?sc?n?printf|string(?:_nocheck)?|rust_helper_\w+)
    (?:\.\w+)*\+0x""",
    re.VERBOSE,
)
OURS = re.compile(r"\[smc_(?:r|diag|mistakes)\]$")
STAMP = re.compile(r"^\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ")


class Races:
    """Which reports of KCSAN are about our modules."""

    def __init__(self):
        self.title, self.first = None, False

    def ours(self, line, text):
        """The title of a report, with the line that tells that it is about us; else nothing."""
        if RACE.search(text):
            self.title, self.first = line, False
        elif text.startswith("====="):
            self.title = None
        elif self.title and ACCESS.search(text):
            self.first = True
        elif self.first and (OURS.search(text) or not LEAF.match(text.strip())):
            self.first = False
            if OURS.search(text):
                title, self.title = self.title, None
                return title
        return None


class Console:
    """Reads a console's log as it grows."""

    def __init__(self, path, allow=()):
        self.path = path
        self.allow = [re.compile(pattern) for pattern in allow]
        self.trouble = []
        self._races = Races()
        self._offset = 0
        self._rest = b""

    def poll(self):
        """Reads what is new; gives back the new lines that report trouble."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for raw in lines:
            line = raw.decode(errors="replace").strip()
            text = STAMP.sub("", line)
            race = self._races.ours(line, text)
            if race:
                found.append(race)
            elif RACE.search(text):
                continue
            elif TROUBLE.search(text) and not any(p.search(text) for p in self.allow):
                found.append(line)
        self.trouble += found
        return found

    def excerpt(self, before=3, after=40):
        """The first report with the lines around it."""
        if not self.trouble:
            return []
        lines = self.path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if self.trouble[0] in line.strip():
                return lines[max(0, number - before) : number + after]
        return self.trouble[:after]

    def tail(self, count=15):
        """The last lines."""
        try:
            return self.path.read_text(errors="replace").splitlines()[-count:]
        except FileNotFoundError:
            return []
