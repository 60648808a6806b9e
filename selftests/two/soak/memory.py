# SPDX-License-Identifier: GPL-2.0
"""memory.py FILE: whether kernel memory grows with the connections of a soak. Each line of the file is a round: connections so
far, and KiB of memory of either host.

Warm caches, and what else the kernel does, make a single round say little: there may be more of it, by megabytes, and less
the next time. So of many rounds it is the median of what any two of them say that counts."""

import itertools
import statistics
import sys

# The first rounds warm caches up.
WARM = 3
# So many rounds are worth looking at.
ENOUGH = 8
# KiB for each connection. A page that every tenth one loses would be 0.4.
MOST = 0.25
# What a shorter soak may not exceed: an RMB that is lost for each of a hundred connections would be more in one round.
MOST_IN_ALL, MOST_IN_A_ROUND = 8192, 128


def growth(points):
    """KiB for each connection: the median, and what three quarters of all pairs of rounds exceed."""
    slopes = [(later[1] - before[1]) / (later[0] - before[0])
              for before, later in itertools.combinations(points, 2) if later[0] > before[0]]
    return statistics.median(slopes), statistics.quantiles(slopes, n=4)[0]


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        rounds = [[int(word) for word in line.split()] for line in file]
    wrong = False
    for place, host in (1, "here"), (2, "there"):
        points = [(line[0], line[place]) for line in rounds]
        whole = points[-1][1] - points[0][1]
        print(f"# memory {host}: {whole} KiB more after {len(points) - 1} rounds and {points[-1][0] - points[0][0]} connections")
        if whole > MOST_IN_ALL + MOST_IN_A_ROUND * len(points):
            print(f"# failed: it grew by more than {MOST_IN_ALL} KiB and {MOST_IN_A_ROUND} for each round")
            wrong = True
        if len(points) - WARM < ENOUGH:
            continue
        usual, most = growth(points[WARM:])
        print(f"# {usual:.3f} KiB for each connection; for three quarters of the time more than {most:.3f}")
        if usual > MOST and most > 0:
            print(f"# failed: it grows by more than {MOST} KiB with each connection")
            wrong = True
    return wrong


if __name__ == "__main__":
    sys.exit(main())
