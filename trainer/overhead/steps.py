"""Step time of a small DDP job, watched and not.

    torchrun --nproc-per-node 2 -m ranksight.trainer.overhead.steps [--rounds 12] [--steps 40] [--width 512]

All variants run in the same processes, block after block, in an order that changes with every round and is the same on
all ranks; `nothing` stands before and after each of them. A block's figure is the ratio of its median step to the mean
of its two neighbours', so that a machine that drifts does not count. `nothing again` is the control: what it shows is
noise, and nothing smaller can be told from it.

    nothing, nothing again   bare
    native, python           ranksight attached with that tap, all hooks
    profiler                 torch.profiler, CPU activities
    spans                    an OpenTelemetry span per call of a torch.distributed function, where the SDK is installed

Rank 0 prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranksight import hooks

Variant = Callable[[], AbstractContextManager[object]]


@contextlib.contextmanager
def attached(tap: str, folder: Path) -> Iterator[None]:
    """The hooks in place, with one of the taps."""
    hooks.attach(folder, tap=tap)
    try:
        yield
    finally:
        hooks.detach()


@contextlib.contextmanager
def spans() -> Iterator[None]:
    """The naive way: wrap the public functions in spans that are exported to nowhere."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, _spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
    tracer = provider.get_tracer("overhead")
    originals = {name: getattr(dist, name) for name in ("all_reduce", "broadcast", "all_gather", "barrier")}

    def wrapped(name: str, call: Any) -> Any:
        @functools.wraps(call)
        def spanned(*args: Any, **kwargs: Any) -> Any:
            with tracer.start_as_current_span(name):
                return call(*args, **kwargs)

        return spanned

    for name, call in originals.items():
        setattr(dist, name, wrapped(name, call))
    try:
        yield
    finally:
        for name, call in originals.items():
            setattr(dist, name, call)


def variants(folder: Path) -> dict[str, Variant]:
    """Everything that can be compared here, by name."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    known: dict[str, Variant] = {
        "nothing again": contextlib.nullcontext,
        "native": lambda: attached("native", folder),
        "python": lambda: attached("python", folder),
        "profiler": lambda: torch.profiler.profile(activities=cpu),
    }
    with contextlib.suppress(ImportError):
        import opentelemetry.sdk.trace  # noqa: F401 - is it there?

        known["spans"] = spans
    return known


class Job:
    """A small model that steps and measures: wall seconds of each step, CPU seconds of a block."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))
        self._model = DistributedDataParallel(net, bucket_cap_mb=1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._data = torch.randn(64, width)

    def block(self, steps: int) -> tuple[float, float]:
        """Median step and CPU seconds per step of one block; the first steps of a block are left out."""
        walls = []
        dist.barrier()
        for number in range(steps + 3):
            if number == 3:
                cpu = time.process_time()
            begin = time.perf_counter()
            loss = self._model(self._data).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            flags = torch.zeros(4)
            dist.all_reduce(flags)
            nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            walls.append(time.perf_counter() - begin)
        return statistics.median(walls[3:]), (time.process_time() - cpu) / steps


def measure(rounds: int, steps: int, width: int, folder: Path) -> dict[str, Any]:
    """Ratios of every variant over `rounds` rounds."""
    job, known = Job(width), variants(folder)
    order = random.Random(0)  # the same on all ranks: they must change variants together
    for variant in known.values():
        with variant():
            job.block(5)  # compile, import and allocate before anything counts
    wall: dict[str, list[float]] = {name: [] for name in known}
    cpu: dict[str, list[float]] = {name: [] for name in known}
    bare = []
    before = job.block(steps)
    for _ in range(rounds):
        names = list(known)
        order.shuffle(names)
        for name in names:
            with known[name]():
                mine = job.block(steps)
            after = job.block(steps)
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


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        result = measure(arguments.rounds, arguments.steps, arguments.width, Path(folder))
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads let go of their last work before the interpreter goes


if __name__ == "__main__":
    main()
