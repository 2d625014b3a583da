"""A step of two ranks, as the archive would hold it, with everything that a timeline and a trace show.

    collectives, events = tables()     rank 0 sends to rank 1; rank 1 comes 20 ms late to an all-reduce
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ranksight.agent.archive.schema import SCHEMAS, TABLES

MS = 1_000_000
STEP = 7


def record(table: str, **fields: Any) -> dict[str, Any]:
    """A row with null wherever nothing is said."""
    row = dict.fromkeys(column.name for column in TABLES[table])
    return row | {"host": "h0", "generation": 0, "step": STEP} | fields


def operation(rank: int, op: str, begin: float, end: float | None, **fields: Any) -> dict[str, Any]:
    """An operation of the group of both ranks; times in milliseconds."""
    return record(
        "collectives",
        **{
            "rank": rank, "group": "0", "axis": "dp", "incarnation": 0, "members": "0,1", "seq": 0, "op": op, "tag": 0,
            "bytes": 4096, "dtype": "float32", "asynchronous": False, "enqueue_ns": round(begin * MS),
            "complete_ns": None if end is None else round(end * MS),
        } | fields,
    )  # fmt: skip


def event(rank: int, kind: str, begin: float, end: float | None = None, **fields: Any) -> dict[str, Any]:
    """A span, or a moment without an end; times in milliseconds."""
    times = {"begin_ns": round(begin * MS), "end_ns": None if end is None else round(end * MS)}
    return record("events", **({"rank": rank, "kind": kind, "code": 0, "values": [], **times} | fields))


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMAS[name])


def tables() -> tuple[pa.Table, pa.Table]:
    """Collectives and events of the step, and an operation of another one."""
    operations = [
        operation(0, "send", 30, 31, peer=1, tag=3, microbatch=0, stage=0, call_site="train.py:9 main"),
        operation(1, "recv", 10, 32, peer=0, tag=3, microbatch=0, stage=1),
        operation(0, "all_reduce", 60, 85),
        operation(1, "all_reduce", 80, 86),
        operation(0, "all_reduce", 160, 170, step=STEP + 1, seq=1),
    ]
    events = []
    for rank in range(2):
        events += [
            event(rank, "step", 0, 100),
            event(rank, "data", 0, 2),
            event(rank, "batch", 2, values=[8.0, 512.0, 64.0, 4711.0]),
            event(rank, "phase", 5, 55, what="forward", code=3),
            event(rank, "pipeline", 8, 58, what="schedule", code=12),
            event(rank, "pipeline", 10 + 25 * rank, 28 + 25 * rank, what="forward", code=1, microbatch=0, stage=rank),
            event(rank, "gc", 90, 91, code=2, values=[5.0]),
            event(rank, "experts", 95, layer=3, values=[float(tokens) for tokens in range(20)]),
            event(rank, "loss", 96, values=[2.5]),
            event(rank, "checksum", 97, layer=0, values=[17.0, 3.0]),
        ]
    return table("collectives", operations), table("events", events)
