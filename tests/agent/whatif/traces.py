"""Traces for the tests: rows as tables of literals, and large ones made by a schedule."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")
SHORT = {
    "F": "forward-compute", "B": "backward-compute", "SF": "forward-send", "RF": "forward-recv", "SB": "backward-send",
    "RB": "backward-recv", "AG": "params-all-gather", "RS": "grads-reduce-scatter", "CLIP": "optimizer-clip-main-grad",
    "OPT": "optimizer", "SEP": "separate-grads-all-reduce", "EMB": "embedding-grads-all-reduce", "GC": "gc",
}  # fmt: skip

Literal = tuple[Any, ...]  # (dp, stage, type, microbatch, start, end[, global chunk])


def rows(*literals: Literal, stages: int = 1, step: int = 0) -> list[dict[str, Any]]:
    """Rows of one step. A worker's operations of a type are numbered in the order given."""
    seen: Counter[tuple[Any, ...]] = Counter()
    table = []
    for dp, stage, short, microbatch, start, end, *chunk in literals:
        place = (dp, stage, short)
        global_chunk = chunk[0] if chunk else stage
        row = (dp, stage, stage * 100 + dp, step, SHORT[short], start, end - start, seen[place], global_chunk // stages,
               microbatch, global_chunk)  # fmt: skip
        seen[place] += 1
        table.append(dict(zip(COLUMNS, row, strict=True)))
    return table


def write(path: Path, table: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(table), path)
    return path


def one_forward_one_backward(
    stages: int, dp_size: int, microbatches: int, steps: int, forward: float = 0.01, backward: float = 0.02
) -> list[dict[str, Any]]:
    """A job without stragglers: every operation of a kind takes the same time on all workers."""
    one = _one_replica(stages, microbatches, forward, backward)
    table = []
    for step, dp in itertools.product(range(steps), range(dp_size)):
        table += rows(*((dp, *row[1:]) for row in one), stages=stages, step=step)
    return table


def _one_replica(stages: int, microbatches: int, forward: float, backward: float) -> list[Literal]:
    orders = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, microbatches)
        steady = [(kind, i + shift) for i in range(microbatches - warm) for kind, shift in (("F", warm), ("B", 0))]
        orders.append([("F", i) for i in range(warm)] + steady + [("B", i) for i in range(microbatches - warm, microbatches)])
    ends: dict[tuple[str, int, int], float] = {}
    clock, done = [0.0] * stages, [0] * stages
    literals: list[Literal] = []
    while any(done[s] < len(orders[s]) for s in range(stages)):
        for stage, order in enumerate(orders):
            while done[stage] < len(order):
                kind, microbatch = order[done[stage]]
                source = stage - 1 if kind == "F" else stage + 1
                edge = not 0 <= source < stages
                if not edge and (kind, source, microbatch) not in ends:
                    break
                arrived = 0.0 if edge else ends[kind, source, microbatch]
                start = max(clock[stage], arrived)
                end = start + (forward if kind == "F" else backward)
                if not edge:
                    literals.append((0, stage, f"R{kind}", microbatch, clock[stage], start))
                    literals.append((0, source, f"S{kind}", microbatch, arrived, start))
                literals.append((0, stage, kind, microbatch, start, end))
                ends[kind, stage, microbatch] = clock[stage] = end
                done[stage] += 1
    last = max(clock)
    for stage in range(stages):
        literals += [
            (0, stage, "RS", -1, clock[stage], clock[stage] + 0.005), (0, stage, "CLIP", -1, clock[stage] + 0.005, last + 0.006),
            (0, stage, "OPT", -1, last + 0.006, last + 0.010),
        ]  # fmt: skip
    return sorted(literals, key=lambda literal: (literal[1], literal[2], literal[4]))
