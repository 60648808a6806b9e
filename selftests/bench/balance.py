# SPDX-License-Identifier: GPL-2.0
"""balance.py OURS C RESULT REVISION: compares what count.py has counted for our module and for the C implementation."""

import json
import sys
from pathlib import Path

PARTS = ("smc", "ib_core", "rdma_rxe", "total", "guest", "packets")


def spread(work):
    """How far the tries are apart, in percent of their median."""
    totals = work["totals"]
    return 100 * (max(totals) - min(totals)) / work["total"]


def plain(pairs):
    """Sockets that fell back against TCP's, by what the whole guest executes."""
    print("# Sockets that fell back: instructions of the whole guest, and by those of TCP sockets.")
    for name, work in pairs["tcp"]["works"].items():
        print(f"# {work['text']}, for each {work['unit']}: TCP {work['guest']:.0f}")
        for pair in (pair for pair in pairs.values() if pair is not pairs["tcp"]):
            one = pair["works"][name]
            # Each try of one was made next to that of the other.
            ratios = sorted(cost / tcp for cost, tcp in zip(one["tries"], work["tries"]))
            print(f"#   {pair['text']:55}{one['guest']:10.0f}   {one['guest'] / work['guest']:.3f}"
                  f" ({ratios[0]:.3f} to {ratios[-1]:.3f})")


def main():
    ours, c = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    print(f"# Instructions of SMC, ib_core and rdma_rxe, both ends together: ours on Linux {ours['guest']['kernel']}, "
          f"C on Linux {c['guest']['kernel']}.")
    if ours["guest"]["kernel"] != c["guest"]["kernel"]:
        print("# The kernels differ, and so do their ib_core and rdma_rxe.")
    print("# `guest` is everything, programs as well.")
    whole = {"revision": sys.argv[4], "ours": ours["guest"], "c": c["guest"], "works": []}
    for name, one in ours["works"].items():
        other = c["works"][name]
        ratio = one["total"] / other["total"]
        print(f"# {one['text']}, for each {one['unit']}")
        print(f"#   {'':10}" + "".join(f"{part:>14}" for part in PARTS) + "   tries apart")
        for who, work in (("ours", one), ("C", other)):
            figures = "".join(f"{work[part]:14.1f}" if part == "packets" else f"{work[part]:14.0f}" for part in PARTS)
            print(f"#   {who:10}{figures}   {spread(work):.1f} %")
        reached = "reached" if ratio <= one["goal"] else "NOT reached"
        print(f"#   ours / C: {ratio:.3f}, goal at most {one['goal']:.2f} {reached}")
        whole["works"].append({"name": name, "ratio": ratio, "goal": one["goal"], "ours": one, "c": other})
    plain(ours["plain"])
    whole["plain"] = ours["plain"]
    Path(sys.argv[3]).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
