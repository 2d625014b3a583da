"""Exit codes of two ranks that end awkwardly, side by side without and with a tap, and with all hooks.

    python tests/bench/exit_codes.py [--tries 30] [--cases in_flight dead_peer ...]

A bare torch aborts by itself in some tries of some cases (pytorch/pytorch#190489), so codes are counted over many.
The ranks are forked from this process, which has imported torch already and does nothing else with it; each ends
through the interpreter's own shutdown, as a script does.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch.distributed
import torch.nn.parallel  # noqa: F401 - imported before the ranks are forked

from tests.support.jobs import free_port

SCRIPT = Path(__file__).parents[1] / "hooks" / "exits.py"
CASES = ("in_flight", "in_flight_destroyed", "destroyed", "dead_peer", "exception", "last_is_backward")
MODES = ("none", "native", "python", "hooks")
TRY_SECONDS = 60.0


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
                codes[mode][run_once(mode, case)] += 1
        for mode, counted in codes.items():
            print(f"{case:20s} {mode:7s} {dict(counted.most_common())}", flush=True)


def run_once(mode: str, case: str) -> tuple[int, ...]:
    """Exit codes of the two ranks; a negative one is a signal."""
    folder = tempfile.mkdtemp(dir="/dev/shm")
    port = free_port()
    pids = []
    for rank in range(2):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            become_rank(rank, port, mode, case, folder)
        pids.append(pid)
    codes = tuple(exit_code(pid) for pid in pids)
    shutil.rmtree(folder)
    return codes


def become_rank(rank: int, port: int, mode: str, case: str, folder: str) -> None:
    """Run the script in this forked process and leave it as the script would."""
    output = os.open(f"{folder}/{rank}.out", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank))
    sys.argv = [str(SCRIPT), mode, folder, case]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    sys.exit(0)


def exit_code(pid: int) -> int:
    deadline = time.monotonic() + TRY_SECONDS
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -999  # it hung
        time.sleep(0.01)


if __name__ == "__main__":
    main()
