# SPDX-License-Identifier: GPL-2.0
"""Where programs run: on this guest or on the other one, in a namespace or not."""

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from dataclasses import dataclass

from agent import PORT


class Failed(RuntimeError):
    """A program did not do what it was to do."""


class Process:
    """One that runs, and may answer lines with lines. What it writes comes from a descriptor."""

    def __init__(self, output, writer, end):
        self._output, self._writer, self._end = output, writer, end
        self._rest = b""

    def ask(self, line, timeout):
        """Its next line, after it has got that one."""
        try:
            self._writer.write(line.encode() + b"\n")
            self._writer.flush()
        except OSError as error:
            raise Failed(f"the program has ended: {error}") from error
        end = time.monotonic() + timeout
        while b"\n" not in self._rest:
            if not select.select([self._output], [], [], max(0, end - time.monotonic()))[0]:
                raise Failed(f"no answer in {timeout:.0f} s")
            data = os.read(self._output, 65536)
            if not data:
                raise Failed("the program has ended")
            self._rest += data
        answer, _, self._rest = self._rest.partition(b"\n")
        return answer.decode()

    def stop(self):
        """Ends it."""
        self._end()


class Here:
    """This guest."""

    name = "a"

    def run(self, words, timeout=60):
        """Exit code, output and errors."""
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as error:
            return 127, "", str(error)
        return done.returncode, done.stdout, done.stderr

    def start(self, words):
        """Leaves it running."""
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def end():
            process.kill()
            process.wait()

        return Process(process.stdout.fileno(), process.stdin, end)


class There:
    """The other guest, where agent.py listens."""

    name = "b"

    def __init__(self, address):
        self._address = address

    def _connect(self, **wish):
        connection = socket.create_connection((self._address, PORT), 30)
        connection.settimeout(None)
        connection.sendall(json.dumps(wish).encode() + b"\n")
        return connection

    def run(self, words, timeout=60):
        """Exit code, output and errors."""
        with self._connect(how="run", words=words, timeout=timeout) as connection:
            connection.settimeout(timeout + 30)
            with connection.makefile("rb") as file:
                return tuple(json.loads(file.readline()))

    def start(self, words):
        """Leaves it running."""
        connection = self._connect(how="start", words=words)

        def end():
            with connection, contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

        return Process(connection.fileno(), connection.makefile("wb"), end)


@dataclass(frozen=True)
class Host:
    """A guest, or a namespace of it."""

    guest: object
    namespace: str = ""

    def words(self, words):
        """The command, as the guest has to run it."""
        return ["ip", "netns", "exec", self.namespace, *words] if self.namespace else list(words)

    def run(self, *words, timeout=60):
        """Its output."""
        code, out, err = self.guest.run(self.words(words), timeout)
        if code:
            raise Failed(f"{' '.join(words)}: {err.strip() or code}")
        return out

    def start(self, *words):
        """Leaves it running."""
        return self.guest.start(self.words(words))

    def until_listening(self, port, process_name):
        """Waits until a server has come so far."""
        end = time.monotonic() + 30
        while not self.run("ss", "-tlnH", f"sport = :{port}"):
            if time.monotonic() > end:
                raise Failed(f"{process_name} does not listen on port {port}")
            time.sleep(0.05)
