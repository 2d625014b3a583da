"""`ranksight demo`: the reference trainer on 8 ranks under watch. Its own line per step is the progress.

console <- what will run -> run.run(torchrun -m ranksight.trainer --pp 2 --dp 2 --tp 2 --ep 4) -> Outcome
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from rich.console import Console

from ranksight.agent.errors import RanksightError
from ranksight.agent.launch.run import Outcome, RunOptions, run

RANKS = 8
PLAN = ("--pp", "2", "--dp", "2", "--tp", "2", "--ep", "4")


def command(steps: int) -> tuple[str, ...]:
    """The launch line, as a user could type it."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    return (*launcher, "-m", "ranksight.trainer", *PLAN, "--steps", str(steps))


def run_demo(run_dir: Path, steps: int, console: Console) -> Outcome:
    """Train and watch. RanksightError when the trainer's torch is not installed here."""
    if importlib.util.find_spec("torch") is None:
        raise RanksightError("the demo trains a model and needs torch: pip install 'ranksight[trainer]'")
    # One thread per rank, unless the user knows better: eight ranks would fight over the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console.print(
        f"{RANKS} ranks, pipeline 2 x data 2 x tensor 2, expert 4: {steps} steps on the text of pydoc_data.topics.\n"
        "Starting them takes half a minute on two cores; then a line per step follows.",
        highlight=False,
    )
    return run(RunOptions(run_dir, command(steps)))
