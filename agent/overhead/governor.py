"""Which level of detail the tap may record at, so that it stays within its share of the ranks' time. Pure.

    one window of each rank (wall, time in the tap, operations) -> Governor.update -> level, and a Change when it moved

The dearest rank decides and all ranks get the same level: an instance can be joined only when all its members recorded
it. The level is lowered after `LOWER_AFTER` windows above the budget. It is raised after `RAISE_AFTER` windows in which
the level above would, by what an operation cost while that level was last in force, take at most `RAISE_BELOW` of the
budget. Between the two lies what keeps the level from swinging: a level that was too dear is tried again only when the
job issues fewer operations. Where no cost is known (the agent is new, the rings are not), the level above is tried and
then measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ranksight.hooks.wire import Detail

LOWER_AFTER, RAISE_AFTER = 2, 3
RAISE_BELOW = 0.7


@dataclass(frozen=True, slots=True)
class Window:
    """What one rank did between two looks at it; `operations` counts those that were withheld, too."""

    rank: int
    wall_ns: int
    tap_ns: int
    operations: int

    @property
    def fraction(self) -> float:
        """Share of the rank's time that the tap took."""
        return self.tap_ns / self.wall_ns


@dataclass(frozen=True, slots=True)
class Change:
    """The level moved: why, in numbers. `fraction` is measured when it was lowered, and predicted when it was raised."""

    before: Detail
    after: Detail
    rank: int
    step: int  # the first step that began at the new level or just before it
    fraction: float

    def sentence(self, budget: float) -> str:
        """For the report."""
        share = f"{100 * self.fraction:.2f} % of the time of rank {self.rank}, budget {100 * budget:g} %"
        if self.after > self.before:
            why = f"the tap took {share}"
            return f"Detail lowered from {name(self.before)} to {name(self.after)} at step {self.step}: {why}."
        return (
            f"Detail raised from {name(self.before)} to {name(self.after)} at step {self.step}: it should take {share}."
        )


def name(detail: Detail) -> str:
    """Lower-case name of a level."""
    return {Detail.FULL: "full", Detail.SAMPLED: "sampled", Detail.COUNTERS: "counters only"}[detail]


class Governor:
    """The level in force. `budget` is a share of the ranks' time, 0.005 for half a percent."""

    def __init__(self, budget: float, level: Detail = Detail.FULL) -> None:
        self.budget, self.level = budget, level
        self._above = self._below = 0  # windows in a row
        self._per_operation: dict[Detail, float] = {}  # nanoseconds of the tap for one operation, at each level

    def update(self, windows: Sequence[Window], step: int) -> Change | None:
        """Take in one window of every rank; the change when the level moves."""
        if not windows:
            return None
        dearest = max(windows, key=lambda window: window.fraction)
        if dearest.operations:
            self._per_operation[self.level] = dearest.tap_ns / dearest.operations
        raised, predicted = self._above_this_level(windows)
        self._above = self._above + 1 if dearest.fraction > self.budget else 0
        self._below = self._below + 1 if predicted <= RAISE_BELOW * self.budget else 0
        if self._above >= LOWER_AFTER and self.level is not Detail.COUNTERS:
            return self._move(Detail(self.level + 1), dearest.rank, step, dearest.fraction)
        if self._below >= RAISE_AFTER and self.level is not Detail.FULL:
            return self._move(Detail(self.level - 1), raised, step, predicted)
        return None

    def _above_this_level(self, windows: Sequence[Window]) -> tuple[int, float]:
        """The rank to which the next level up would be dearest, and the share of its time that it would take."""
        upper = Detail(max(self.level - 1, Detail.FULL))
        cost = self._per_operation.get(upper)
        shares = {w.rank: w.fraction if cost is None else cost * w.operations / w.wall_ns for w in windows}
        rank = max(shares, key=shares.__getitem__)
        return rank, shares[rank]

    def _move(self, after: Detail, rank: int, step: int, fraction: float) -> Change:
        before, self.level = self.level, after
        self._above = self._below = 0
        return Change(before, after, rank, step, fraction)
