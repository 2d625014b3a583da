"""Step time of a job, watched and not.

    torchrun --nproc-per-node 2 -m ranksight.trainer.overhead.steps [--job ddp|trainer] [--rounds 12] [--steps 40]

    ddp      a small model under DistributedDataParallel, two all-reduces a step of its own
    trainer  the reference trainer, pipeline 2: what people's trainers do, and it tells ranksight about its steps

All variants run in the same processes, block after block, in an order that changes with every round and is the same on
all ranks; `nothing` stands before and after each of them. A block's figure is the ratio of its median step to the mean
of its two neighbours', so that a machine that drifts does not count. `nothing again` is the control: what it shows is
noise, and nothing smaller can be told from it.

    nothing, nothing again   bare
    native, python           ranksight attached with that tap, all hooks
    profiler, spans          see `others`

`--bare` runs blocks of nothing only: for comparing processes with each other. Rank 0 prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranksight import hooks
from ranksight.trainer.overhead.others import others

Variant = Callable[[], AbstractContextManager[object]]
PIPELINED = ("--pp", "2", "--microbatches", "4", "--batch", "8", "--steps", "1000000")


class Job(Protocol):
    """Something that trains."""

    @property
    def first_step(self) -> int | None:
        """Number of the next step, where the trainer says itself when one ends."""

    def step(self) -> None:
        """Train one step."""


class Ddp:
    """A small model under DDP, with a metric of its own to reduce."""

    first_step: int | None = None

    def __init__(self, width: int = 512) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))
        self._model = DistributedDataParallel(net, bucket_cap_mb=1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._data = torch.randn(64, width)

    def step(self) -> None:
        """Forward, backward, a reduced metric, clipping, update."""
        loss = self._model(self._data).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        flags = torch.zeros(4)
        dist.all_reduce(flags)
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()


class Pipelined:
    """The reference trainer on two stages."""

    def __init__(self) -> None:
        from ranksight.trainer.options import parse
        from ranksight.trainer.stop import StopSignal
        from ranksight.trainer.train import Trainer

        self._trainer = Trainer(parse(list(PIPELINED)), torch.device("cpu"), StopSignal())

    @property
    def first_step(self) -> int | None:
        """The trainer ends its steps itself."""
        return self._trainer.step

    def step(self) -> None:
        """One step of the trainer's loop."""
        self._trainer.train_step()


JOBS: dict[str, Callable[[], Job]] = {"ddp": Ddp, "trainer": Pipelined}


@contextlib.contextmanager
def attached(tap: str, folder: Path, job: Job) -> Iterator[None]:
    """The hooks in place, with one of the taps."""
    hooks.attach(folder, tap=tap, first_step=job.first_step)
    try:
        yield
    finally:
        hooks.detach()


def block(job: Job, steps: int) -> tuple[float, float]:
    """Median step and CPU seconds per step of one block; the first steps of a block are left out."""
    walls = []
    dist.barrier()
    cpu = 0.0
    for number in range(steps + 3):
        if number == 3:
            cpu = time.process_time()
        begin = time.perf_counter()
        job.step()
        walls.append(time.perf_counter() - begin)
    return statistics.median(walls[3:]), (time.process_time() - cpu) / steps


def measure(job: Job, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """Ratios of every variant over `rounds` rounds."""
    known: dict[str, Variant] = {
        "nothing again": contextlib.nullcontext,
        "native": lambda: attached("native", folder, job),
        "python": lambda: attached("python", folder, job),
        **others(),
    }
    order = random.Random(0)  # the same on all ranks: they must change variants together
    for variant in known.values():
        with variant():
            block(job, 5)  # compile, import and allocate before anything counts
    wall: dict[str, list[float]] = {name: [] for name in known}
    cpu: dict[str, list[float]] = {name: [] for name in known}
    bare = []
    before = block(job, steps)
    for _ in range(rounds):
        names = list(known)
        order.shuffle(names)
        for name in names:
            with known[name]():
                mine = block(job, steps)
            after = block(job, steps)
            wall[name].append(2 * mine[0] / (before[0] + after[0]))
            cpu[name].append(2 * mine[1] / (before[1] + after[1]))
            bare.append(after[0])
            before = after
    return {
        "world_size": dist.get_world_size(),
        "rounds": rounds,
        "steps_per_block": steps,
        "bare_step_seconds": statistics.median(bare),
        "wall_ratio": {name: _spread(values) for name, values in wall.items()},
        "cpu_ratio": {name: _spread(values) for name, values in cpu.items()},
    }


def bare(job: Job, rounds: int, steps: int) -> dict[str, Any]:
    """Median step and CPU seconds a step of this process, with nothing put in."""
    block(job, 5)
    found = [block(job, steps) for _ in range(rounds)]
    return {
        "step_seconds": statistics.median(wall for wall, _ in found),
        "cpu_seconds": statistics.median(cpu for _, cpu in found),
    }


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", choices=JOBS, default="ddp")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--bare", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        os.environ["RANKSIGHT_RING_DIR"] = folder
        job = JOBS[arguments.job]()
        result = (
            bare(job, arguments.rounds, arguments.steps)
            if arguments.bare
            else measure(job, arguments.rounds, arguments.steps, Path(folder))
        )
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads let go of their last work before the interpreter goes


if __name__ == "__main__":
    main()
