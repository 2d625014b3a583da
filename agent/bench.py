"""`ranksight bench overhead`: what being watched costs on this machine, as ratios against an A/A control.

    trainer.overhead.calls   added thread CPU per collective, all taps in one process; fake backend, and two gloo ranks
    trainer.overhead.steps   step time of a DDP job and of the reference trainer, all variants in the same processes
    steps --bare             the same DDP job in processes with and without the Flight Recorder, in turn
    -> one JSON object, or a table

The workloads run in the interpreter of the jobs; this process only starts them and shows what they print.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from ranksight.agent.errors import RanksightError

CALLS = ("-m", "ranksight.trainer.overhead.calls")
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STEPS = (*TWO_RANKS, "-m", "ranksight.trainer.overhead.steps")
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000"}
PROCESSES = 4  # with the Flight Recorder; one more without
TRAINER_STEPS = 12  # in a block: a step of the trainer is much longer than one of the DDP job


def overhead(python: str, rounds: int, console: Console) -> dict[str, Any]:
    """Measure; `rounds` scales how long it takes (about 20 s each). RanksightError when a workload fails."""

    def run(what: str, *arguments: str) -> dict[str, Any]:
        console.print(f"{what} ...", highlight=False)
        return _last_json(python, arguments)

    often, times = ("--rounds", str(2 * rounds)), ("--rounds", str(rounds))
    return {
        "calls": run("added CPU per collective, fake backend", *CALLS, "--json", *often),
        "calls_gloo": run("added CPU per collective, two gloo ranks", *TWO_RANKS, *CALLS, "--json", "--backend", "gloo", *often),
        "steps": run("step time of a DDP job, two gloo ranks", *STEPS, *times),
        "trainer": run(
            "step time of the reference trainer, two stages", *STEPS, "--job", "trainer", "--steps", str(TRAINER_STEPS), *times
        ),
        "flight_recorder": _flight_recorder(python, rounds, console),
    }


def _flight_recorder(python: str, rounds: int, console: Console) -> dict[str, Any]:
    """Ratios of processes with the recorder to their neighbours without; `nothing again`: of neighbours without."""
    console.print("step time of the DDP job with the Flight Recorder, process by process ...", highlight=False)
    arguments = (*STEPS, "--bare", "--rounds", str(max(3, rounds // 2)))
    off, on = [_last_json(python, arguments)], []
    for _ in range(PROCESSES):
        on.append(_last_json(python, arguments, RECORDER))
        off.append(_last_json(python, arguments))
    found: dict[str, Any] = {"processes": PROCESSES, "buffer": int(RECORDER["TORCH_FR_BUFFER_SIZE"])}
    for name, key in (("wall_ratio", "step_seconds"), ("cpu_ratio", "cpu_seconds")):
        ratios = [2 * mine[key] / (before[key] + after[key]) for mine, (before, after) in zip(on, pairwise(off), strict=True)]
        control = [after[key] / before[key] for before, after in pairwise(off)]
        found[name] = {"flight recorder": _spread(ratios), "nothing again": _spread(control)}
    return found


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


def _last_json(python: str, arguments: tuple[str, ...], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The last line of a workload's output that is a JSON object; profilers print lines of their own."""
    command = [python, *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise RanksightError(f"can't start {python}: {error.strerror}") from error
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    if done.returncode or not lines:
        raise RanksightError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def render(result: dict[str, Any], console: Console) -> None:
    """A table for each workload; a difference smaller than the control's spread is noise."""
    for name, backend in (("calls", "fake backend"), ("calls_gloo", "two gloo ranks")):
        found = result[name]
        calls = Table(title=f"per collective, {backend}: bare {found['bare_us']} us", box=None, pad_edge=False)
        for column in ("variant", "added us", "quartiles"):
            calls.add_column(column, justify="left" if column == "variant" else "right")
        for variant, row in found["added_us"].items():
            calls.add_row(variant, f"{row['median']:+.3f}", f"{row['q1']:+.3f} .. {row['q3']:+.3f}")
        console.print(calls)
    for name, job in (("steps", "DDP job"), ("trainer", "reference trainer")):
        bare = 1e3 * result[name]["bare_step_seconds"]
        console.print(_ratios(f"per step, {job}: bare {bare:.2f} ms, ratio to its neighbours", result[name]))
    console.print(_ratios("per step, DDP job: processes, ratio to their neighbours", result["flight_recorder"]))


def _ratios(title: str, found: dict[str, Any]) -> Table:
    steps = Table(title=title, box=None, pad_edge=False)
    for name in ("variant", "wall", "quartiles", "cpu", "quartiles"):
        steps.add_column(name, justify="left" if name == "variant" else "right")
    for variant, wall in found["wall_ratio"].items():
        cpu = found["cpu_ratio"][variant]
        steps.add_row(
            variant, f"{wall['median']:.3f}", f"{wall['q1']:.3f} .. {wall['q3']:.3f}", f"{cpu['median']:.3f}",
            f"{cpu['q1']:.3f} .. {cpu['q3']:.3f}",
        )  # fmt: skip
    return steps
