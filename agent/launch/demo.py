"""`ranksight demo`: the reference trainer on 8 ranks under watch. Its own line per step is the progress.

console <- what will run -> run.run(torchrun -m ranksight.trainer --pp 2 --dp 2 --tp 2 --ep 4 [--fault ...]) -> Outcome
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ranksight.agent.errors import RanksightError
from ranksight.agent.launch import demo_faults
from ranksight.agent.launch.run import Outcome, RunOptions, run

RANKS = 8
PLAN = ("--pp", "2", "--dp", "2", "--tp", "2", "--ep", "4")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What `ranksight demo` was asked for; `fault` None: all goes well."""

    run_dir: Path
    steps: int
    fault: str | None = None
    host: str = "127.0.0.1"
    port: int = 9474


def steps_for(fault: str | None) -> int:
    """Steps to train when nobody says: a slow rank on a crowded host is believed after 40 slow steps, not after 20."""
    return 40 if fault is None else 60


def command(options: DemoOptions) -> tuple[str, ...]:
    """The launch line, as a user could type it. RanksightError for a fault that there is not."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    trainer = (*launcher, "-m", "ranksight.trainer", *PLAN, "--steps", str(options.steps))
    if options.fault is None:
        return trainer
    return (*trainer, *demo_faults.put(options.fault).options(str(options.run_dir / "checkpoints")))


def run_demo(options: DemoOptions, console: Console) -> Outcome:
    """Train and watch. RanksightError when the trainer's torch is not installed here, or there is no such fault."""
    if importlib.util.find_spec("torch") is None:
        raise RanksightError("the demo trains a model and needs torch: pip install 'ranksight[trainer]'")
    launch = command(options)
    # One thread per rank, unless the user knows better: eight ranks would fight over the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lines = [f"{RANKS} ranks, pipeline 2 x data 2 x tensor 2, expert 4: {options.steps} steps on the text of pydoc_data.topics."]
    if options.fault is not None:
        lines.append(f"Fault: {demo_faults.put(options.fault).asked}. What it does is in docs/faults.md; see what is said of it.")
    lines.append("Starting them takes half a minute on two cores; then a line per step follows.")
    console.print("\n".join(lines), highlight=False, markup=False)
    return run(RunOptions(options.run_dir, launch, options.host, options.port))


def what_next(run_dir: Path, steps: int) -> str:
    """Commands that show more of the run."""
    middle = steps // 2
    return (
        f"next: open {run_dir}/report.html, or try\n"
        f"  ranksight trace {run_dir} --step {middle}   that step as a timeline for Perfetto\n"
        f"  ranksight why {run_dir} --step {middle}     from that step back to what went wrong first"
    )
