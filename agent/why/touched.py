"""What an anomaly touched: the ranks that its data or its delay reached, and the checkpoints written since.

    Window, origin -> Touched(ranks in the order in which they were reached, checkpoints)

Data and delay go the same way: whoever completes an operation that a touched member entered after it was touched, is
touched from then on. What a rank sends reaches its receiver; what it receives does not reach the sender's data, and is
followed all the same where the sender had to wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranksight.agent.why.origin import Origin
from ranksight.agent.why.records import Call, Window


@dataclass(frozen=True, slots=True)
class Reached:
    """A rank and when it was reached, in nanoseconds, through which operation."""

    rank: int
    at_ns: int
    through: str
    by: int | None


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint written after the origin; `ranks` took part."""

    step: int
    path: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Touched:
    """Everything that came after."""

    ranks: tuple[Reached, ...]
    unreached: tuple[int, ...]
    checkpoints: tuple[Written, ...]


def touched(window: Window, origin: Origin) -> Touched:
    """Follow the operations of the window from the origin on."""
    reached = {origin.rank: Reached(origin.rank, origin.at_ns, "it began here", None)}
    instances = [calls for calls in window.members().values() if max(_end(call) for call in calls) > origin.at_ns]
    for calls in sorted(instances, key=lambda calls: max(call.enqueue_ns for call in calls)):
        entered = [call for call in calls if call.rank in reached and call.enqueue_ns >= reached[call.rank].at_ns]
        if not entered:
            continue
        first = min(entered, key=lambda call: call.enqueue_ns)
        for call in calls:
            if call.rank not in reached and _end(call) >= first.enqueue_ns:
                name = f"{call.op} of {call.axis}" + (f" at {call.site}" if call.site else "")
                reached[call.rank] = Reached(call.rank, max(first.enqueue_ns, call.enqueue_ns), name, first.rank)
    in_order = tuple(sorted(reached.values(), key=lambda one: one.at_ns))
    return Touched(in_order, tuple(sorted(set(window.calls) - set(reached))), _written(window, origin))


def _written(window: Window, origin: Origin) -> tuple[Written, ...]:
    ranks: dict[tuple[int, str], set[int]] = {}
    for span in window.spans:
        if span.kind == "checkpoint" and span.text and span.end_ns > origin.at_ns:
            ranks.setdefault((span.step, span.text), set()).add(span.rank)
    return tuple(Written(step, path, tuple(sorted(wrote))) for (step, path), wrote in sorted(ranks.items()))


def _end(call: Call) -> int:
    """When the caller could have seen the result: never known is at the end of time."""
    if call.complete_ns is not None:
        return call.complete_ns
    return call.blocked_ns[1] if call.blocked_ns else 1 << 62
