"""The way back through time: what the end of a step waited for, and what that waited for, to where the step began.

    Window, rank, time -> critical_path -> legs, the latest first

On a rank the leg before a moment is its own work since it last stood still. It stood still in an operation: if another
member arrived there later, the way goes on at that member's arrival; if this rank was the last one, at its own. The legs
follow each other without a gap, so that their seconds sum to the length of the way.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ranksight.agent.why.records import Call, Key, Window

MAX_LEGS = 20_000


@dataclass(frozen=True, slots=True)
class Leg:
    """Work of one rank between two operations, or the transfer of an operation after its last member had come."""

    rank: int
    begin_ns: int
    end_ns: int
    transfer: Call | None  # the operation; None for work
    after: Call | None  # work: what the rank came out of
    before: Call | None  # work: what it went into

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def step(self) -> int:
        """The step that it belongs to, by the operation at its end; -1 when there is none."""
        call = self.transfer or self.before or self.after
        return call.step if call else -1


class Blocks:
    """When each rank stood still, to be asked for the last time before a moment."""

    def __init__(self, window: Window) -> None:
        self._calls: dict[int, list[Call]] = {}
        self._ends: dict[int, list[int]] = {}
        for rank, calls in window.calls.items():
            stood = sorted((call for call in calls if call.blocked_ns), key=lambda call: (call.blocked_ns or (0, 0))[1])
            self._calls[rank] = stood
            self._ends[rank] = [call.blocked_ns[1] for call in stood if call.blocked_ns]

    def before(self, rank: int, at_ns: int) -> Call | None:
        """The operation out of which the rank came last; None when it had not stood still yet."""
        place = bisect.bisect_right(self._ends.get(rank, []), at_ns)
        return self._calls[rank][place - 1] if place else None


def critical_path(window: Window, rank: int, end_ns: int, begin_ns: int, into: Call | None = None) -> list[Leg]:
    """Legs from `end_ns` on `rank` back to the one that reaches `begin_ns` or goes beyond it, whole.

    `into`: the operation that the rank went into at `end_ns`.
    """
    blocks, members = Blocks(window), window.members()
    legs: list[Leg] = []
    at, before = end_ns, into
    while at > begin_ns and len(legs) < MAX_LEGS:
        call = blocks.before(rank, at)
        if call is None or call.blocked_ns is None:
            legs.append(Leg(rank, begin_ns, at, None, None, before))
            break
        stood_from, stood_to = call.blocked_ns
        if stood_to < at:
            legs.append(Leg(rank, stood_to, at, None, call, before))
        if stood_to <= begin_ns:
            break
        last = last_arriver(call, members)
        came_later = last.rank != rank and last.enqueue_ns - stood_from > window.least_skew_ns(rank, last.rank)
        moved_to = min(last.enqueue_ns if came_later else stood_from, stood_to)
        if moved_to < stood_to:
            legs.append(Leg(rank, moved_to, stood_to, call, None, None))
        if came_later:
            rank, before = last.rank, last
        else:
            before = call
        if moved_to >= at:
            break  # clocks or records that contradict each other: no way back from here
        at = moved_to
    return [leg for leg in legs if leg.end_ns > leg.begin_ns]


def last_arriver(call: Call, members: Mapping[Key, Sequence[Call]]) -> Call:
    """The member of the operation that came last: the one that the others waited for."""
    return max(members[call.key], key=lambda member: member.enqueue_ns)
