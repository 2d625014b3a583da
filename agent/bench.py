"""`ranksight bench overhead`: what being watched costs on this machine, as ratios against an A/A control.

    trainer.overhead.calls   added thread CPU per collective, fake backend, all taps in one process
    trainer.overhead.steps   step time of a DDP job on two ranks, all variants in the same processes
    -> one JSON object, or a table

The workloads run in the interpreter of the jobs; this process only starts them and shows what they print.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from rich.console import Console
from rich.table import Table

from ranksight.agent import progress
from ranksight.agent.errors import RanksightError

CALLS = ("-m", "ranksight.trainer.overhead.calls", "--json")
STEPS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ranksight.trainer.overhead.steps")


def overhead(python: str, rounds: int, console: Console) -> dict[str, Any]:
    """Measure; `rounds` scales how long it takes (about 3 s each). RanksightError when a workload fails."""
    with progress.working("added CPU per collective, fake backend", console):
        calls = _last_json(python, (*CALLS, "--rounds", str(2 * rounds)))
    with progress.working("step time of a DDP job, two gloo ranks", console):
        steps = _last_json(python, (*STEPS, "--rounds", str(rounds)))
    return {"calls": calls, "steps": steps}


def _last_json(python: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """The last line of a workload's output that is a JSON object; profilers print lines of their own."""
    command = [python, *arguments]
    try:
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RanksightError(f"can't start {python}: {error.strerror}") from error
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    if done.returncode or not lines:
        raise RanksightError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def render(result: dict[str, Any], console: Console) -> None:
    """Two tables; a difference smaller than the control's spread is noise."""
    calls = Table(title=f"per collective: bare {result['calls']['bare_us']} us", box=None, pad_edge=False)
    for name in ("variant", "added us", "quartiles"):
        calls.add_column(name, justify="left" if name == "variant" else "right")
    for variant, row in result["calls"]["added_us"].items():
        calls.add_row(variant, f"{row['median']:+.3f}", f"{row['q1']:+.3f} .. {row['q3']:+.3f}")
    console.print(calls)
    bare = 1e3 * result["steps"]["bare_step_seconds"]
    steps = Table(title=f"per step: bare {bare:.2f} ms, ratio to its neighbours", box=None, pad_edge=False)
    for name in ("variant", "wall", "quartiles", "cpu", "quartiles"):
        steps.add_column(name, justify="left" if name == "variant" else "right")
    for variant, wall in result["steps"]["wall_ratio"].items():
        cpu = result["steps"]["cpu_ratio"][variant]
        steps.add_row(
            variant, f"{wall['median']:.3f}", f"{wall['q1']:.3f} .. {wall['q3']:.3f}", f"{cpu['median']:.3f}",
            f"{cpu['q1']:.3f} .. {cpu['q3']:.3f}",
        )  # fmt: skip
    console.print(steps)
