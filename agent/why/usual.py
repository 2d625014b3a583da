"""How long the same thing usually takes, over ranks and steps: what a leg of the way back is compared with.

    Window -> Usual(window) -> excess(leg): seconds above the median of its like, None when there are too few

The like of work is work between the same two calls on the same stage; the like of a transfer is the same call with as
many bytes. All ranks count: a rank that is always slow must not be its own measure.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from ranksight.agent.why.path import Blocks, Leg, last_arriver
from ranksight.agent.why.records import Call, Window

ENOUGH = 6  # values that make a median


class Usual:
    """Medians of work and transfers in the steps of a window other than the one asked about."""

    def __init__(self, window: Window) -> None:
        work: dict[tuple[Any, ...], list[float]] = {}
        transfer: dict[tuple[Any, ...], list[float]] = {}
        members, blocks = window.members(), Blocks(window)
        for rank, calls in window.calls.items():
            for call in calls:
                if call.step == window.step:
                    continue
                moments = {call.enqueue_ns} | ({call.blocked_ns[0]} if call.blocked_ns else set())
                for moment in moments:
                    _add(work, blocks, rank, moment, call)
                if call.blocked_ns:
                    begin = max(last_arriver(call, members).enqueue_ns, call.blocked_ns[0])
                    transfer.setdefault(call.kind, []).append(max(call.blocked_ns[1] - begin, 0) / 1e9)
            for step, span in window.steps_of(rank).items():
                if step != window.step:
                    _add(work, blocks, rank, span.end_ns, None)
        self._work = {like: median(values) for like, values in work.items() if len(values) >= ENOUGH}
        self._transfer = {like: median(values) for like, values in transfer.items() if len(values) >= ENOUGH}

    def of(self, leg: Leg) -> float | None:
        """Usual seconds of the leg's like."""
        if leg.transfer:
            return self._transfer.get(leg.transfer.kind)
        return self._work.get(_like(leg.after, leg.before, leg.end_ns)) if leg.after else None

    def excess(self, leg: Leg) -> float | None:
        """Seconds above what is usual."""
        usual = self.of(leg)
        return None if usual is None else leg.seconds - usual


def _add(work: dict[tuple[Any, ...], list[float]], blocks: Blocks, rank: int, moment: int, into: Call | None) -> None:
    came_out_of = blocks.before(rank, moment)
    if came_out_of and came_out_of.blocked_ns:
        seconds = (moment - came_out_of.blocked_ns[1]) / 1e9
        work.setdefault(_like(came_out_of, into, moment), []).append(seconds)


def _like(after: Call, before: Call | None, moment: int) -> tuple[Any, ...]:
    """The end of the step is a moment, too: then there is no call before which the work was."""
    into = (before.kind, before.enqueue_ns == moment) if before else None
    return (after.stage, after.kind, into)
