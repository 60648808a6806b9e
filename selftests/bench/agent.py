# SPDX-License-Identifier: GPL-2.0
"""agent.py ADDRESS: runs programs for guest a, which measures on this guest, too; see hosts.py.

Each connection is about one program. Its first line is a list of words, and whether the program is to `run` to
its end, of which code and output are told, or to be `start`ed, with the connection for its input and output: it
ends with that.
"""

import json
import socketserver
import subprocess
import sys

PORT = 5300


class Program(socketserver.StreamRequestHandler):
    """One connection."""

    def handle(self):
        wish = json.loads(self.rfile.readline())
        if wish["how"] == "start":
            self.start(wish["words"])
            return
        try:
            done = subprocess.run(
                wish["words"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=wish["timeout"], check=False)
            answer = [done.returncode, done.stdout, done.stderr]
        except (OSError, subprocess.TimeoutExpired) as error:
            answer = [127, "", str(error)]
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def start(self, words):
        """Has it write to the connection, and passes on what comes from there."""
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=self.connection) as process:
            try:
                for line in self.rfile:
                    process.stdin.write(line)
                    process.stdin.flush()
            except OSError:
                pass
            finally:
                process.kill()


class Server(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    Server((sys.argv[1], PORT), Program).serve_forever()
