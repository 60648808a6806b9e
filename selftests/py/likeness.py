# SPDX-License-Identifier: GPL-2.0
"""What pages show of a program's output, compared with what it says: figures differ from run to run, words do not.

As a program (likeness.py PAGE SAID): each line of the page's blocks of output, indented and begun with `#`, has to
be in the file SAID, in that order; what else is said may stand between."""

import re
import sys

# Figures, sizes of figures, and addresses with figures in them.
VARIES = ((r"\b[0-9a-f]{0,4}(:[0-9a-f]{0,4}){2,7}\b", "ADDRESS"), (r"\b[0-9a-f]{8}\b", "N"),
          (r"smcst[0-9a-f]+", "smcstN"),
          (r"\d+(\.\d+)?", "N"), (r"\b([KMGT]i?)?(bits|B(ytes)?)\b", "B"), (r"\s+", " "))


def likeness(line):
    """A line without what may differ; how many connections used SMC may not."""
    if line.startswith(("Handshakes ", "Fallbacks ", "Failed ")):
        return " ".join(line.split())
    for pattern, instead in VARIES:
        line = re.sub(pattern, instead, line)
    return line.strip()


def missing(shown, said):
    """The lines shown that are not said, or not in that order."""
    said = [likeness(line) for line in said]
    place, absent = 0, []
    for line in shown:
        try:
            place = said.index(likeness(line), place) + 1
        except ValueError:
            absent.append(line)
    return absent


def main():
    """Entry point."""
    with open(sys.argv[1], encoding="utf-8") as page:
        shown = [line.strip() for line in page if line.startswith("    # ")]
    with open(sys.argv[2], encoding="utf-8") as file:
        said = file.read().splitlines()
    absent = missing(shown, said)
    for line in absent:
        print(f"# {sys.argv[1]} shows what was not said: {line}")
    if not shown:
        print(f"# {sys.argv[1]} shows nothing")
    return 0 if shown and not absent else 1


if __name__ == "__main__":
    sys.exit(main())
