# SPDX-License-Identifier: GPL-2.0
"""Finds reports of trouble in a kernel's console."""

import re

# Any of these ends a run as failed.
TROUBLE = re.compile(
    r"""WARNING:|BUG:|\bBUG\ |Oops|KASAN|KCSAN|UBSAN|Kernel\ panic|Call\ Trace:|DEBUG_LOCKS_WARN
    |possible\ (?:circular|recursive)\ locking|possible\ irq\ lock\ inversion|inconsistent\ lock\ state
    |INFO:\ task\ .*blocked\ for\ more|self-detected\ stall|detected\ stalls|soft\ lockup|hard\ LOCKUP
    |general\ protection\ fault|unable\ to\ handle|stack\ segment|divide\ error|invalid\ opcode
    |scheduling\ while\ atomic|sleeping\ function\ called|refcount_t:|list_(?:add|del)\ corruption
    |kmemleak:\ [1-9]\d*\ new\ suspected|unreferenced\ object|Objects\ remaining|memory\ leak\ detector\ disabled
    |allocated\ at\ module\ unload
    |unregister_netdevice:\ waiting|rust_kernel:\ panicked|Memory\ cgroup\ out\ of\ memory
    |Out\ of\ memory|held\ lock\ freed|lock\ held\ when\ returning|smc-vm:\ cannot\ boot|truncated\ extack
    """,
    re.VERBOSE,
)
STAMP = re.compile(r"^\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ")


class Console:
    """Reads a console's log as it grows."""

    def __init__(self, path, allow=()):
        self.path = path
        self.allow = [re.compile(pattern) for pattern in allow]
        self.trouble = []
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
            if TROUBLE.search(text) and not any(p.search(text) for p in self.allow):
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
