# SPDX-License-Identifier: GPL-2.0
"""A small initramfs: busybox, the modules needed to mount the root file system, and an init."""

import gzip
import hashlib
import lzma
import os
import stat
import subprocess
from pathlib import Path

# What an emulated guest needs to mount the root file system and to have a network card; a program needs the first alone.
PROGRAM = ("overlay",)
EMULATED = ("virtio_pci", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "virtio_net", *PROGRAM)


def cpio(entries):
    """Packs (name, mode, data) into an archive of the "newc" format."""
    out = bytearray()

    def add(name, mode, data, number):
        raw = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        out.extend(b"070701" + b"".join(b"%08X" % f for f in fields) + raw)
        out.extend(b"\0" * (-len(out) % 4))
        out.extend(data)
        out.extend(b"\0" * (-len(out) % 4))

    for number, (name, mode, data) in enumerate(entries, 1):
        add(name, mode, data, number)
    add("TRAILER!!!", 0, b"", 0)
    return bytes(out)


def module_files(folder, wanted):
    """The files of the modules and of what they depend on, in loading order; built-in ones need none."""
    depends, paths = {}, {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        name = Path(path).name.partition(".")[0].replace("-", "_")
        paths[name] = path
        depends[path] = needs.split()
    builtin = {
        Path(line).stem.replace("-", "_")
        for line in (folder / "modules.builtin").read_text().splitlines()
    }
    order = []
    for module in wanted:
        if module in builtin:
            continue
        if module not in paths:
            if module == "virtio_rng":
                continue
            raise FileNotFoundError(f"{folder} has no module {module}")
        path = paths[module]
        # modules.dep lists the nearest dependency first.
        for file in [*reversed(depends[path]), path]:
            if file not in order:
                order.append(file)
    return order


def read_module(path):
    """A module's contents without its compression."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dcq", str(path)], check=True, stdout=subprocess.PIPE).stdout
    return data


def build(cache, busybox, init, modules, wanted):
    """Makes the archive, or takes the one made before from the same parts; gives back its path."""
    files = module_files(modules, wanted)
    key = hashlib.sha256(Path(__file__).read_bytes() + init.read_bytes())
    for path in (busybox, modules / "modules.dep", *(modules / f for f in files)):
        status = path.stat()
        key.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    archive = cache / "initramfs" / f"{key.hexdigest()[:16]}.cpio"
    if archive.exists():
        return archive

    folder, program = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755
    entries = [(name, folder, b"") for name in ("bin", "dev", "modules")]
    entries.append(("bin/busybox", program, busybox.read_bytes()))
    entries.append(("init", program, init.read_bytes()))
    order = []
    for file in files:
        name = Path(file).name.partition(".")[0] + ".ko"
        order.append(name)
        entries.append((f"modules/{name}", stat.S_IFREG | 0o644, read_module(modules / file)))
    entries.append(("modules/order", stat.S_IFREG | 0o644, "".join(f"{n}\n" for n in order).encode()))
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(f".{os.getpid()}")
    new.write_bytes(cpio(entries))
    new.rename(archive)
    return archive
