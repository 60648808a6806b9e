# SPDX-License-Identifier: GPL-2.0
"""Prints what this machine is, which may be a guest, as JSON."""

import json
import os
import platform
from pathlib import Path


def first_line(path, start=""):
    """The rest of the first line of a file that begins so."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith(start):
            return line[len(start):].strip(" \t:")
    return ""


def machine():
    """The machine's name, which for QEMU's has the version, and how a guest of the runner is executed."""
    words = Path("/proc/cmdline").read_text(encoding="ascii").split()
    ways = [word.removeprefix("smc_accel=") for word in words if word.startswith("smc_accel=")]
    dmi = Path("/sys/class/dmi/id")
    names = [first_line(dmi / name) for name in ("sys_vendor", "product_version") if (dmi / name).exists()]
    return " ".join(names + ways)


def facts():
    """Kernel, modules and hardware."""
    modules = [line.split()[0] for line in Path("/proc/modules").read_text(encoding="ascii").splitlines()]
    return {
        "kernel": platform.release(),
        "implementation": " ".join(name for name in modules if name in ("smc", "smc_r")),
        "machine": machine(),
        "processor": first_line("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "memory_kib": int(first_line("/proc/meminfo", "MemTotal").split()[0]),
        "clock": first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "load": os.getloadavg(),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
