"""Added CPU time per collective, by tap.

    python -m ranksight.trainer.overhead.calls [--rounds 40] [--json]
    torchrun --nproc-per-node 2 -m ranksight.trainer.overhead.calls --backend gloo

On torch's fake backend, which completes at once, nothing but the call is timed. On gloo the calling thread also waits for
its peer, and how often it wakes up meanwhile is chance: the control says how much of that is left. Every round runs all
variants in turn, `bare` twice (the second one is the A/A control); a variant's cost is the median over rounds of its time
less the mean of its round's two bare times. `removed` is a tap installed and taken out again; `spans` and `profiler` are
those of `others`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ranksight.hooks import ring as rings
from ranksight.hooks import tap, wire
from ranksight.trainer.overhead.others import others

CALLS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--backend", choices=("fake", "gloo"), default="fake")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.backend == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    else:
        dist.init_process_group("gloo")
    tensor = torch.ones(64)

    def calls() -> float:
        begin = time.thread_time_ns()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        return (time.thread_time_ns() - begin) / CALLS / 1000

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        ring = rings.create(Path(folder))

        def with_tap(prefer: str, detail: wire.Detail) -> float:
            handle = tap.install(ring, prefer)
            handle.set_detail(detail)
            try:
                calls_to_warm()
                return calls()
            finally:
                handle.remove()

        def calls_to_warm() -> None:
            for _ in range(20):
                dist.all_reduce(tensor)

        def removed() -> float:
            tap.install(ring, "native").remove()
            calls_to_warm()
            return calls()

        def under(tool: Callable[[], AbstractContextManager[object]]) -> float:
            with tool():
                calls_to_warm()
                return calls()

        variants: dict[str, Callable[[], float]] = {
            "bare": calls,
            "native": lambda: with_tap("native", wire.Detail.FULL),
            "native sampled": lambda: with_tap("native", wire.Detail.SAMPLED),
            "native counters": lambda: with_tap("native", wire.Detail.COUNTERS),
            "bare again": calls,
            "removed": removed,
            "python": lambda: with_tap("python", wire.Detail.FULL),
            **{name: partial(under, tool) for name, tool in others().items()},
        }
        rounds: list[dict[str, float]] = []
        gc.disable()
        for _ in range(arguments.rounds):
            calls_to_warm()
            rounds.append({name: variant() for name, variant in variants.items()})
            gc.collect()
        own = ring["tap_cost_ns"] / max(1, ring["collectives_count"]) / 1000
    base = statistics.median(row["bare"] for row in rounds)
    result: dict[str, object] = {"bare_us": round(base, 2), "tap_own_estimate_us": round(own, 2), "added_us": {}}
    added: dict[str, dict[str, float]] = {}
    for name in variants:
        if name == "bare":
            continue
        # The control is compared with its only partner; everything else with the mean of both bare times.
        deltas = [
            row[name] - (row["bare"] if name == "bare again" else (row["bare"] + row["bare again"]) / 2)
            for row in rounds
        ]
        quartiles = statistics.quantiles(deltas, n=4)
        added[name] = {
            "median": round(statistics.median(deltas), 3),
            "q1": round(quartiles[0], 3),
            "q3": round(quartiles[2], 3),
        }
    result["added_us"] = added
    if dist.get_rank() == 0:
        _show(result, arguments.json)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads let go of their last work before the interpreter goes


def _show(result: dict[str, Any], as_json: bool) -> None:
    added = result["added_us"]
    if as_json:
        print(json.dumps(result))
    else:
        print(f"bare {result['bare_us']:.2f} us a call; the tap's own estimate {result['tap_own_estimate_us']:.2f} us")
        for name, row in added.items():
            print(f"{name:16s} {row['median']:+7.3f} us  [{row['q1']:+.3f}, {row['q3']:+.3f}]")


if __name__ == "__main__":
    main()
