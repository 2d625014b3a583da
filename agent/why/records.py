"""What `ranksight why` looks at: the operations and events of the steps around the one that is asked about.

    archive.read.Archive, step -> window -> Window(calls by rank in order of time, spans, measured numbers, checkpoints)

Times are nanoseconds of one host's CLOCK_MONOTONIC; those of other hosts are corrected to it. None is "not known".
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ranksight.agent.archive.clocks import Clocks
    from ranksight.agent.archive.read import Archive

STEPS_BEFORE = 20  # steps that say what is usual
STEPS_AFTER = 5
_P2P = frozenset({"send", "recv", "recv_any_source"})

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on one rank. `blocked_ns`: when its caller stood still; None when it never came back."""

    rank: int
    key: Key  # equal for all members of an instance
    op: str
    axis: str
    step: int
    bytes: int
    site: str | None
    enqueue_ns: int
    complete_ns: int | None
    blocked_ns: tuple[int, int] | None
    stage: int | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What calls have in common that should take the same time; an all-to-all has other bytes each time."""
        size = None if self.op.startswith("all_to_all") else self.bytes
        return (self.op, self.axis, size, self.site)


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted on a rank: a step, phase, garbage collection, checkpoint."""

    rank: int
    kind: str
    what: str | None
    step: int
    begin_ns: int
    end_ns: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """A loss or gradient norm at the moment it was known."""

    rank: int
    kind: str
    step: int
    at_ns: int
    value: float

    @property
    def name(self) -> str:
        """In words."""
        return "loss" if self.kind == "loss" else "gradient norm"


@dataclass(frozen=True, slots=True)
class Window:
    """Everything about some steps: `calls[r]` in order of time."""

    step: int
    calls: Mapping[int, tuple[Call, ...]]
    spans: tuple[Span, ...]
    numbers: tuple[Number, ...]
    hosts: Mapping[int, str] = field(default_factory=dict)  # by rank; none: one host
    clocks: Clocks | None = None  # which the times of several hosts were corrected by

    @property
    def one_clock(self) -> bool:
        """Whether times of different ranks can be compared."""
        return self.clocks.measured if self.clocks else len(set(self.hosts.values())) < 2

    def least_skew_ns(self, rank: int, other: int) -> float:
        """What between two ranks is no evidence of who came first; infinite when their clocks were not measured."""
        one, two = self.hosts.get(rank, ""), self.hosts.get(other, "")
        least = self.clocks.least_skew_ns(one, two) if self.clocks else 0.0 if one == two else None
        return math.inf if least is None else least

    def steps_of(self, rank: int) -> dict[int, Span]:
        """Finished step spans of a rank by step."""
        return {span.step: span for span in self.spans if span.kind == "step" and span.rank == rank}

    def members(self) -> dict[Key, list[Call]]:
        """The calls of each instance."""
        found: dict[Key, list[Call]] = {}
        for calls in self.calls.values():
            for call in calls:
                found.setdefault(call.key, []).append(call)
        return found


def window(archive: Archive, step: int, before: int = STEPS_BEFORE, after: int = STEPS_AFTER) -> Window:
    """The steps from `before` the one asked about to `after` it, and all checkpoints and numbers of the run."""
    numbered = range(max(step - before, -1), step + after + 1)
    calls: dict[int, list[Call]] = {}
    clocks = archive.clocks()
    hosts: dict[int, str] = {}
    for number in numbered:
        for row in clocks.corrected(archive.collectives(number)).to_pylist():
            calls.setdefault(row["rank"], []).append(_call(row))
            hosts[row["rank"]] = row["host"]
    events = clocks.corrected(archive.events())
    rows = events.filter(_either(events, {"loss", "grad_norm", "checkpoint"}, numbered)).to_pylist()
    spans = [_span(row) for row in rows if row["end_ns"] is not None and row["kind"] in {"step", "phase", "gc", "data", "checkpoint"}]
    numbers = [
        Number(row["rank"], row["kind"], row["step"], row["begin_ns"], row["values"][0])
        for row in rows
        if row["kind"] in {"loss", "grad_norm"} and row["values"]
    ]
    return Window(
        step,
        {rank: tuple(_with_unseen_waits(mine)) for rank, mine in sorted(calls.items())},
        tuple(sorted(spans, key=lambda span: span.begin_ns)),
        tuple(sorted(numbers, key=lambda number: (number.step, number.at_ns))),
        hosts,
        clocks,
    )


def _either(events: Any, kinds: Iterable[str], steps: range) -> Any:
    import pyarrow.compute as pc

    of_kind = pc.is_in(events.column("kind"), value_set=_array(kinds))
    step = events.column("step")
    return pc.or_(of_kind, pc.and_(pc.greater_equal(step, steps.start), pc.less(step, steps.stop)))


def _array(values: Iterable[str]) -> Any:
    import pyarrow as pa

    return pa.array(sorted(values))


def _call(row: Mapping[str, Any]) -> Call:
    return Call(
        row["rank"], _key(row), row["op"], row["axis"], row["step"], row["bytes"], row["call_site"], row["enqueue_ns"],
        row["complete_ns"], _blocked(row), row["stage"],
    )  # fmt: skip


def _key(row: Mapping[str, Any]) -> Key:
    group = (row["generation"], row["group"], row["incarnation"], row["members"])
    if row["op"] not in _P2P:
        return (*group, row["seq"])
    pair = (row["rank"], row["peer"]) if row["op"] == "send" else (row["peer"], row["rank"])
    return (*group, pair, row["tag"], row["seq"])


def _blocked(row: Mapping[str, Any]) -> tuple[int, int] | None:
    if row["wait_begin_ns"] is not None and row["wait_end_ns"] is not None:
        return (row["wait_begin_ns"], row["wait_end_ns"])
    if row["asynchronous"] or row["return_ns"] is None:
        return None
    return (row["enqueue_ns"], max(row["return_ns"], row["complete_ns"] or 0))


def _with_unseen_waits(calls: Iterable[Call]) -> Iterator[Call]:
    """Calls in order of time, all that came back with the time for which their caller stood still.

    A wait that C++ code did (DDP's) is not seen. What is known is that the rank called nothing from its last call before
    the completion on, and that is taken for the wait.
    """
    ordered = sorted(calls, key=lambda call: call.enqueue_ns)
    entered = [call.enqueue_ns for call in ordered]
    for call in ordered:
        if call.blocked_ns is None and call.complete_ns is not None:
            last = entered[bisect.bisect_right(entered, call.complete_ns) - 1]
            yield replace(call, blocked_ns=(last, call.complete_ns))
        else:
            yield call


def _span(row: Mapping[str, Any]) -> Span:
    return Span(row["rank"], row["kind"], row["what"], row["step"], row["begin_ns"], row["end_ns"], row["text"])
