# SPDX-License-Identifier: GPL-2.0
"""Guests on the root file system of the cache: emulated by QEMU, or programs."""

import fcntl
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from . import initramfs
from .console import Console

TOP = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("SMC_CACHE") or Path.home() / ".cache/smc-rs")
# The least with which virtio_net, without buffers that it can merge, takes pages of its own for what comes, and none of a pool.
UNUSUAL_MTU = 1501
# LA57 makes KASAN report a wild access at boot; the others are slow when emulated, AVX each time its registers are kept.
EMULATED_CPU = "max,la57=off,erms=off,fsrm=off,smap=off,avx=off,xsave=off"


class SetupError(Exception):
    """Something the run needs is not there; says what to do."""


@functools.cache
def kernel_folder(name):
    """The folder of a kernel in the cache: "kernel", "peer", one of our own (tools/env/kernels), a
    release, or the beginning of one."""
    kernels = CACHE / "kernels"
    own = (TOP / f"tools/env/kernels/{name}.config").exists()
    if own or name in ("kernel", "peer"):
        env = dict(os.environ, SMC_CACHE=str(CACHE))
        if own:
            env["KVER"] = name
        if name != "peer":
            setup = TOP / "tools/env/setup"
            release = subprocess.run(
                [setup, "release"], stdout=subprocess.PIPE, text=True, env=env, check=True
            ).stdout.strip()
        else:
            file = CACHE / "peer"
            release = file.read_text().strip() if file.exists() else ""
        if not release or not (kernels / release / "vmlinuz").exists():
            how = f"make kernel NAME={name}" if own else f"tools/env/setup {name}"
            raise SetupError(f"the cache has no kernel {name}: run {how}")
        return kernels / release
    found = sorted(p.parent for p in kernels.glob(f"{name}*/vmlinuz"))
    if not found:
        raise SetupError(f"the cache has no kernel {name}: run KVER={name} tools/env/setup kernel")
    return next((p for p in found if p.name == name), found[-1])


@functools.cache
def looks_at_locks(kernel):
    """Whether a kernel has lockdep."""
    return "CONFIG_PROVE_LOCKING=y\n" in (kernel_folder(kernel) / "config").read_text(encoding="ascii")


@functools.cache
def _rootfs():
    """The root file system of this checkout, kept from being removed while this program runs."""
    script = f'. "{TOP}/tools/env/lib.sh" && echo "$rootfs"'
    found = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    path = Path(found.stdout.strip())
    try:
        stamp = os.open(path / ".stamp", os.O_RDONLY)
    except FileNotFoundError:
        raise SetupError("the cache has no root file system: run tools/env/setup rootfs") from None
    fcntl.flock(stamp, fcntl.LOCK_SH)
    return path


def _emulator():
    """The beginning of QEMU's command line: the one of the root file system, so that all hosts have the
    same, with its own libraries."""
    usr = _rootfs() / "usr"
    libraries = usr / "lib/x86_64-linux-gnu"
    os.environ["QEMU_MODULE_DIR"] = str(libraries / "qemu")
    command = [usr / "lib64/ld-linux-x86-64.so.2", "--library-path", libraries]
    command += [usr / "bin/qemu-system-x86_64", "-L", usr / "share/qemu", "-L", usr / "share/seabios"]
    return [str(word) for word in command] + ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]


def _archive(kernel, wanted):
    root = _rootfs()
    modules = kernel / "lib/modules" / kernel.name
    return initramfs.build(CACHE, root / "usr/bin/busybox", TOP / "selftests/vm/init", modules, wanted)


def accelerator(kernel):
    """KVM where it works, and not only exists: a tiny guest has to boot and switch off with it."""
    if choice := os.environ.get("SMC_VM_ACCEL"):
        return choice
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    verdict = CACHE / "kvm-works"
    if verdict.exists():
        known, _, answer = verdict.read_text().strip().partition(" ")
        if known == boot and answer in ("kvm", "tcg"):
            return answer
    tiny = initramfs.cpio(
        [
            ("bin", 0o040755, b""),
            ("bin/busybox", 0o100755, (_rootfs() / "usr/bin/busybox").read_bytes()),
            ("dev", 0o040755, b""),
            ("dev/console", 0o020600, b""),
            ("init", 0o100755, b"#!/bin/busybox sh\n/bin/busybox poweroff -f\n"),
        ]
    )
    image = CACHE / f"kvm-probe.{os.getpid()}"
    image.write_bytes(tiny)
    command = _emulator()
    command += ["-m", "256", "-accel", "kvm", "-cpu", "host", "-kernel", str(kernel / "vmlinuz")]
    command += ["-initrd", str(image), "-append", "panic=-1 quiet"]
    answer = "tcg"
    try:
        done = subprocess.run(
            command, timeout=20, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        # A guest that was refused or crashed leaves a message or a status.
        if done.returncode == 0 and b"KVM" not in done.stderr and b"kvm" not in done.stderr:
            answer = "kvm"
    except subprocess.TimeoutExpired:
        pass
    finally:
        image.unlink()
    verdict.write_text(f"{boot} {answer}\n")
    if answer == "tcg":
        print("# /dev/kvm does not work here: guests are emulated", file=sys.stderr)
    return answer


def _clock():
    """What an emulated guest is told about its clock. Left alone it measures how fast the counter of its processor is,
    and on a busy machine, where it has to wait for a real processor meanwhile, gets a clock that is wrong by 10 % and
    more. The counter is that of the host, whose speed in MHz is half of the "bogomips" of /proc/cpuinfo."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        about = file.read()
    speed = re.search(r"^bogomips\s*:\s*([0-9.]+)$", about, re.MULTILINE)
    if speed and re.search(r"^flags\s*:.*\bconstant_tsc\b", about, re.MULTILINE):
        return [f"tsc_early_khz={round(float(speed[1]) * 500)}"]
    # Right as well, but asked through the emulator each time.
    return ["clocksource=hpet"]


def cables(count, routed):
    """The cables of a run: roles and card numbers of both ends. The router has one to each further card of the two."""
    found = [(("a", n), ("b", n)) for n in range(count)]
    return found + [((role, count + n), ("r", 2 * n + at)) for n in range(routed) for at, role in enumerate("ab")]


class Guest:
    """One guest: `start`, then read `output` until `ended`."""

    def __init__(self, role, folder, options, command, peers=("a",)):
        self.role = role
        self.folder = folder
        self.own = folder / role
        self.options = options
        self.kernel = kernel_folder(options.kernel_b if role == "b" else options.kernel)
        (self.own / "shared").mkdir(parents=True)
        (self.own / "command").write_text(command)
        (folder / "shared").mkdir(exist_ok=True)
        self.console = Console(folder / f"console-{role}.log", options.allow)
        self.errors = folder / f"qemu-{role}.log"
        self.process = None
        self.started = None
        self.is_off = False
        self._peers = peers
        self._monitor = folder / f"monitor-{role}"

    def _append(self, shell):
        """What the kernel is told, whatever it runs on."""
        o = self.options
        append = ["loglevel=5", "panic=-1", "oops=panic", "audit=0", "net.ifnames=0", "workqueue.watchdog_thresh=120"]
        append += ["rcupdate.rcu_cpu_stall_timeout=120", f"smc_role={self.role}"]
        if shell:
            size = shutil.get_terminal_size()
            append += ["smc_shell=1", f"smc_rows={size.lines}", f"smc_cols={size.columns}"]
            append += [f"smc_term={os.environ.get('TERM', 'linux')}"]
        if o.router:
            append += [f"smc_router={o.nics}"]
        if o.root:
            append += ["smc_root=own", "systemd.getty_auto=no"]
        return append + o.append

    def _shares(self):
        """Folders of this machine which the guest sees: name, path, whether it may not write there."""
        sources = CACHE / "sources"
        sources.mkdir(exist_ok=True)
        return (
            ("root", self.options.root or _rootfs(), True),
            ("sources", sources, True),
            ("modules", self.kernel / "lib/modules" / self.kernel.name, True),
            ("checkout", TOP, True),
            ("own", self.own, False),
            ("shared", self.folder / "shared", False),
        )

    def arguments(self, shell):
        """Its command line."""
        # A guest does not outlive whoever started it.
        return ["setpriv", "--pdeathsig", "KILL", *self._machine(shell)]

    def _machine(self, shell):
        """QEMU's command line."""
        o = self.options
        accel = "tcg" if o.count_by else accelerator(self.kernel)
        kernel = self.kernel
        append = ["console=ttyS0", "nokaslr", "watchdog_thresh=60", "mitigations=off", "tsc=reliable", "no_timer_check"]
        append += [f"smc_accel={accel}"]
        if accel == "tcg" and not o.count_by:
            append += _clock()
        append += self._append(shell)
        args = _emulator()
        # On a busy host the PIT is emulated so late that a kernel which measures the TSC by it gets a clock
        # that runs many times too fast; without a PIT it takes the HPET, which is right or not used.
        machine = "q35" if accel == "kvm" else "q35,pit=off"
        args += ["-name", f"smc-{self.role}", "-M", machine, "-m", str(o.memory), "-smp", str(o.smp)]
        if accel == "kvm":
            args += ["-accel", "kvm", "-cpu", "host"]
        else:
            args += ["-accel", "tcg,thread=multi", "-cpu", EMULATED_CPU]
        if o.count_by:
            kept = self.folder / "shared/kept"
            kept.mkdir(exist_ok=True)
            args += ["-plugin", f"{Path(o.count_by).resolve()},out={kept}/instructions"]
        args += ["-kernel", str(kernel / "vmlinuz"), "-initrd", str(_archive(kernel, initramfs.EMULATED))]
        args += ["-append", " ".join(append)]
        args += ["-chardev", f"file,id=log,path={self.console.path},append=on", "-serial", "chardev:log"]
        args += ["-chardev", "stdio,id=out,signal=off", "-device", "virtio-serial-pci"]
        args += ["-device", "virtconsole,chardev=out", "-device", "virtio-rng-pci"]
        for tag, path, readonly in self._shares():
            extra = ",readonly=on" if readonly else ""
            path = str(path).replace(",", ",,")
            args += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{extra}"]
            args += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        if len(self._peers) > 1:
            for n, other in sorted(self._cards()):
                here, there = (self.folder / f"nic{number}-{role}" for role, number in ((self.role, n), other))
                mac = f"52:54:00:77:0{n}:0{'.abr'.index(self.role)}"
                args += ["-netdev", f"dgram,id=net{n},local.type=unix,local.path={here},"
                         f"remote.type=unix,remote.path={there}"]
                mtu = f",host_mtu={o.mtu}" if o.mtu else ""
                # rdma_rxe frees what came for a queue pair that has failed with interrupts off, which such a kernel
                # reports where pages are of a pool (rxe_receiver, 7.3), and then it looks at locks no more.
                if any(map(looks_at_locks, (o.kernel, o.kernel_b))):
                    mtu = f",mrg_rxbuf=off,host_mtu={max(o.mtu, UNUSUAL_MTU)}"
                args += ["-device", f"virtio-net-pci,id=nic{n},netdev=net{n},romfile=,mac={mac}{mtu}"]
            args += ["-qmp", f"unix:{self._monitor},server=on,wait=off"]
        return args

    def _cards(self):
        """Its cards: number, and the other end."""
        for one, other in cables(self.options.nics, self.options.router):
            for (role, number), end in ((one, other), (other, one)):
                if role == self.role:
                    yield number, end

    def start(self, shell=False):
        """Boots it, once it is off."""
        if self.process:
            self.process.wait(180)
        stdio = None if shell else subprocess.PIPE
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                self.arguments(shell),
                stdin=None if shell else subprocess.DEVNULL,
                stdout=stdio,
                stderr=errors,
            )
        self.started = time.monotonic()
        self.is_off = False
        (self.own / "leave").unlink(missing_ok=True)

    def power_off(self):
        """Takes its power away; `start` boots it again. What its peer sends goes nowhere, until then."""
        self.is_off = True
        self.process.kill()
        self.process.wait()

    def let_leave(self):
        """Allows it to switch itself off, in whatever order its kernel does that."""
        self.is_off = True
        (self.own / "leave").touch()

    def cable(self, card, plugged):
        """Pulls a cable or plugs it in: the guest sees it, its peer only that nothing comes any more."""
        arguments = {"name": f"nic{card}", "up": plugged}
        commands = {"execute": "qmp_capabilities"}, {"execute": "set_link", "arguments": arguments}
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self._monitor))
            with monitor.makefile("rw") as file:
                file.readline()
                for command in commands:
                    file.write(json.dumps(command) + "\n")
                    file.flush()
                    while "event" in (answer := json.loads(file.readline())):
                        pass
                    if "return" not in answer:
                        raise RuntimeError(f"{command}: {answer}")

    def ended(self):
        """Has QEMU ended?"""
        return self.process.poll() is not None

    def exit_code(self):
        """What its command returned, or None if it never got that far."""
        try:
            return int((self.own / "exit").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def wait(self, seconds):
        """Gives it time to switch off."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def kill(self):
        """Pulls the plug, if it is still in."""
        if self.process:
            self.process.kill()
            self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()


class Program(Guest):
    """A guest whose kernel is a program of this machine (User Mode Linux): nothing is emulated. Its folders are those of
    this machine themselves, and it has no network cards."""

    def __init__(self, role, folder, options, command, peers=("a",)):
        if len(peers) > 1 or options.root or options.count_by:
            raise SetupError(f"kernel {options.kernel} is a program: it can be one guest alone, and on the root file "
                             "system of the cache; take another kernel")
        if options.smp > 2:
            raise SetupError(f"kernel {options.kernel} has two processors at most: what looks at memory there walks off the "
                             "stack on which further ones begin")
        super().__init__(role, folder, options, command, peers)
        # What it writes to its standard error are the kernel's messages.
        self.errors = self.console.path

    def _machine(self, shell):
        """The kernel's command line, which is that of the program."""
        o = self.options
        lines = ["con=null", "con0=null,fd:2", f"con1={'fd:0' if shell else 'null'},fd:1", "console=tty0"]
        # It was made for the root file system, and runs in there.
        args = ["env", f"SMC_BIND={self.folder}", TOP / "tools/env/enter", "--", self.kernel / "vmlinuz"]
        args += [f"mem={o.memory}M", f"ncpus={o.smp}", "seccomp=on", *lines]
        # Other kernels of our own have this option built in. Without it, what has leaked is not found: see debug.config.
        args += ["slab_debug=F"]
        args += [f"initrd={_archive(self.kernel, initramfs.PROGRAM)}", "smc_accel=none", *self._append(shell)]
        args += [f"smc_share_{tag}={path}" for tag, path, _ in self._shares()]
        return [str(word) for word in args]


def is_program(name):
    """Whether a kernel is a program of this machine."""
    return "CONFIG_UML=y" in (kernel_folder(name) / "config").read_text(encoding="ascii").splitlines()


def guest(role, folder, options, command, peers=("a",)):
    """The guest for a role."""
    kind = Program if is_program(options.kernel_b if role == "b" else options.kernel) else Guest
    return kind(role, folder, options, command, peers)
