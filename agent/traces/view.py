"""One step over all ranks: what each did and when, and which operation held up which. Pure.

    tables of the archive -> view(step, collectives, events) -> StepView
                                 operations   collectives and P2P, one per rank that took part
                                 spans        the step itself, phases, pipeline actions, data, gc, checkpoints
                                 moments      loss, batch, tokens per expert, checksums, ...
                                 causes       send -> receive, last to arrive -> each rank that waited for it

Times are nanoseconds on the clock of each host, or since 1970 where `offsets` says how far the hosts' clocks are from
there. Who came last is said of operations only whose members are all here, and between hosts only beyond what their
clocks leave in doubt. When a step was done more than once, the last generation counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

P2P = frozenset({"send", "recv", "recv_any_source"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one rank; `end_ns` None: it never completed. `instance` is equal for all that take part."""

    host: str
    rank: int
    op: str
    axis: str
    group: str
    members: tuple[int, ...]
    seq: int
    instance: tuple[Any, ...]
    peer: int | None
    bytes: int
    dtype: str | None
    microbatch: int | None
    stage: int | None
    phase: str | None
    call_site: str | None
    asynchronous: bool
    begin_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """A span or moment of one rank; `end_ns` None: a moment, or a span that never ended."""

    host: str
    rank: int
    kind: str
    what: str | None
    code: int
    text: str | None
    microbatch: int | None
    stage: int | None
    layer: int | None
    begin_ns: int
    end_ns: int | None
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """`source` held up `target`: indices into the operations; `kind` is "p2p" or "last"."""

    kind: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepView:
    """All that was recorded of one step, ordered by begin."""

    step: int
    operations: tuple[Operation, ...]
    spans: tuple[Span, ...]
    moments: tuple[Span, ...]
    causes: tuple[Cause, ...]

    @property
    def records(self) -> tuple[Operation | Span, ...]:
        """Everything, of all ranks."""
        return (*self.operations, *self.spans, *self.moments)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that recorded something."""
        return tuple(sorted({item.rank for item in self.records}))

    @property
    def begin_ns(self) -> int:
        """Begin of the first record."""
        return min(item.begin_ns for item in self.records)

    @property
    def end_ns(self) -> int:
        """End of the last record."""
        return max(item.end_ns or item.begin_ns for item in self.records)


def _own_clocks(one: str, other: str) -> float | None:
    return 0.0 if one == other else None


def view(
    step: int,
    collectives: pa.Table,
    events: pa.Table,
    offsets: Mapping[str, int] | None = None,
    least_skew_ns: Callable[[str, str], float | None] = _own_clocks,
) -> StepView:
    """The view of a step from tables that may hold other steps too; empty when they hold nothing of it.

    `least_skew_ns` says of two hosts which skew between them is evidence, None for none.
    """
    operations = tuple(sorted(_operations(_chosen(collectives, step), offsets or {}), key=lambda item: item.begin_ns))
    said = sorted(_spans(_chosen(events, step), offsets or {}), key=lambda item: item.begin_ns)
    spans = tuple(item for item in said if item.end_ns is not None)
    moments = tuple(item for item in said if item.end_ns is None)
    return StepView(step, operations, spans, moments, tuple(_causes(operations, least_skew_ns)))


def _chosen(table: pa.Table, step: int) -> list[dict[str, Any]]:
    table = table.filter(pc.field("step") == step)
    rows: list[dict[str, Any]] = table.filter(pc.field("generation") == (pc.max(table["generation"]))).to_pylist()
    return rows


def _operations(rows: list[dict[str, Any]], offsets: Mapping[str, int]) -> Iterator[Operation]:
    for row in rows:
        by = offsets.get(row["host"], 0)
        end = row["complete_ns"]
        instance: tuple[Any, ...] = (row["generation"], row["group"], row["incarnation"], row["members"], row["seq"])
        if row["op"] in P2P:
            pair = (row["rank"], row["peer"]) if row["op"] == "send" else (row["peer"], row["rank"])
            instance = (*instance, row["tag"], *pair)
        yield Operation(
            host=row["host"], rank=row["rank"], op=row["op"] or "unknown", axis=row["axis"] or "unknown",
            group=row["group"] or "", members=tuple(int(rank) for rank in (row["members"] or "").split(",") if rank),
            seq=row["seq"], instance=instance, peer=row["peer"], bytes=row["bytes"], dtype=row["dtype"],
            microbatch=row["microbatch"], stage=row["stage"], phase=row["phase"], call_site=row["call_site"],
            asynchronous=row["asynchronous"], begin_ns=row["enqueue_ns"] + by, end_ns=None if end is None else end + by,
        )  # fmt: skip


def _spans(rows: list[dict[str, Any]], offsets: Mapping[str, int]) -> Iterator[Span]:
    for row in rows:
        by = offsets.get(row["host"], 0)
        end = row["end_ns"]
        yield Span(
            row["host"], row["rank"], row["kind"] or "unknown", row["what"], row["code"], row["text"], row["microbatch"],
            row["stage"], row["layer"], row["begin_ns"] + by, None if end is None else end + by, tuple(row["values"] or ()),
        )  # fmt: skip


def _causes(
    operations: tuple[Operation, ...], least_skew_ns: Callable[[str, str], float | None]
) -> Iterator[Cause]:
    instances: dict[tuple[Any, ...], list[int]] = {}
    for number, operation in enumerate(operations):
        instances.setdefault(operation.instance, []).append(number)
    for numbers in instances.values():
        first = operations[numbers[0]]
        if first.op in P2P:
            sends = [number for number in numbers if operations[number].op == "send"]
            receives = [number for number in numbers if operations[number].op != "send"]
            if len(sends) == 1 and len(receives) == 1:
                yield Cause("p2p", sends[0], receives[0])
        elif len(numbers) == len(first.members):
            last = max(numbers, key=lambda number: operations[number].begin_ns)
            arrival = operations[last].begin_ns
            for number in numbers:
                waiter = operations[number]
                doubt = least_skew_ns(waiter.host, operations[last].host)
                # The root of a broadcast may be gone before the last one comes: it did not wait.
                there = waiter.end_ns is None or waiter.end_ns > arrival
                if doubt is not None and arrival - waiter.begin_ns > doubt and there:
                    yield Cause("last", last, number)
