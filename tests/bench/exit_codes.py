"""Exit codes of ranks that end awkwardly, side by side without and with a tap.

    python tests/bench/exit_codes.py [--tries 30] [--cases in_flight dead_peer ...]

A bare torch aborts by itself in some of these cases (see docs), so the codes are counted over many tries.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.jobs import run_ranks

SCRIPT = Path(__file__).parents[1] / "hooks" / "exits.py"
CASES = ("in_flight", "in_flight_destroyed", "destroyed", "dead_peer", "exception", "last_is_backward")
MODES = ("none", "native", "python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    arguments = parser.parse_args()
    for case in arguments.cases:
        codes: dict[str, Counter[tuple[int, ...]]] = {mode: Counter() for mode in arguments.modes}
        for _ in range(arguments.tries):
            for mode in arguments.modes:
                with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                    ends = run_ranks(SCRIPT, 2, timeout=120, args=(mode, folder, case))
                codes[mode][tuple(end.returncode for end in ends)] += 1
        for mode, counted in codes.items():
            print(f"{case:20s} {mode:7s} {dict(counted.most_common())}", flush=True)


if __name__ == "__main__":
    main()
