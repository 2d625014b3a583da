"""Bounded rows for the measures of collectives, and the counters, histograms and tails that they hold.

    (rank, axis, op, size class) -> row of `ranked`    count, bytes, duration, wait, exposed, blame
          (axis, op, size class) -> row of `shared`    transfer, bus bandwidth, skew

At most MAX_COMBINATIONS of (axis, op, size class) get rows of their own; the rest go to the row ("other", "other",
"all"), and `folded` counts their operations. Ranks beyond MAX_RANKS share the rank "other". So there are never more
than (ranks + 1) * (MAX_COMBINATIONS + 1) rows of `ranked`, about 30 kB each, whatever shapes and groups a job uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.catalog import MAX_COMBINATIONS
from ranksight.agent.collectives import sizes
from ranksight.agent.collectives.tails import Tails
from ranksight.hooks import wire

MAX_RANKS = 64
OTHER = "other"
ALL_SIZES = "all"
# 1-2.5-5 per decade from 10 us to 100 s: coarse enough for series, fine enough for alerts; tails have 1 % error.
BUCKETS = (*(round(base * 10.0**power, 6) for power in range(-5, 2) for base in (1, 2.5, 5)), 100.0)
MAX_WAITING_BATCHES = 64
LOWEST_SECONDS, HIGHEST_SECONDS = 1e-7, 1e4
LOWEST_RATE, HIGHEST_RATE = 1e2, 1e13  # bytes per second

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_BUCKETS = np.array(BUCKETS)


class Combination(NamedTuple):
    """What operations are told apart by."""

    axis: str
    op: str
    size: str


@dataclass(slots=True)
class Histogram:
    """Classic buckets per row with one value of each bucket as exemplar (value, step, CLOCK_MONOTONIC ns).

    The exemplar is the last value; one of every `kept_every`th step, which has a trace for sure, goes before others.
    """

    kept_every: int = 1

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, len(BUCKETS) + 1), np.int64))
    sums: Floats = field(default_factory=lambda: np.zeros(0))
    values: Floats = field(default_factory=lambda: np.zeros((0, len(BUCKETS) + 1)))
    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, len(BUCKETS) + 1), np.int64))
    times: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, len(BUCKETS) + 1), np.int64))

    _added: list[tuple[Ints, Floats, Ints, Ints]] = field(default_factory=list)

    def grow(self, rows: int) -> None:
        """Make room for so many rows."""
        for name in ("counts", "sums", "values", "steps", "times"):
            setattr(self, name, grown(getattr(self, name), rows))

    def add(self, rows: Ints, values: Floats, steps: Ints, times_ns: Ints) -> None:
        """Count values; NaN is left out."""
        self._added.append((rows, values, steps, times_ns))
        if len(self._added) >= MAX_WAITING_BATCHES:
            self.count_added()

    def count_added(self) -> None:
        """Count what was added since the last time; to be called before anything is read."""
        if not self._added:
            return
        rows, values, steps, times_ns = (np.concatenate(parts) for parts in zip(*self._added, strict=True))
        self._added = []
        known = ~np.isnan(values)
        if not known.all():
            rows, values, steps, times_ns = rows[known], values[known], steps[known], times_ns[known]
        bucket = np.searchsorted(_BUCKETS, values, side="left")
        np.add.at(self.counts.reshape(-1), rows * self.counts.shape[1] + bucket, 1)
        np.add.at(self.sums, rows, values)
        if self.kept_every > 1:
            kept = steps % self.kept_every == 0
            has_kept = (self.times[rows, bucket] > 0) & (self.steps[rows, bucket] % self.kept_every == 0)
            self._show(~kept & ~has_kept, rows, bucket, values, steps, times_ns)
            self._show(kept, rows, bucket, values, steps, times_ns)
        else:
            self._show(slice(None), rows, bucket, values, steps, times_ns)

    def _show(
        self, chosen: slice | NDArray[np.bool_], rows: Ints, bucket: Ints, values: Floats, steps: Ints, times_ns: Ints
    ) -> None:
        """Make the last of the chosen values the exemplar of its bucket."""
        rows, bucket = rows[chosen], bucket[chosen]
        self.values[rows, bucket] = values[chosen]
        self.steps[rows, bucket] = steps[chosen]
        self.times[rows, bucket] = times_ns[chosen]


def grown(array: NDArray[np.generic], rows: int) -> NDArray[np.generic]:
    """`array` with at least so many rows, doubled rather than stretched."""
    if rows <= len(array):
        return array
    bigger = np.zeros((max(rows, 2 * len(array), 16), *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger


def _widened(table: Ints, first: int, second: int) -> Ints:
    """`table` with room for more along its first two axes, filled with -1."""
    room = [(0, max(first - table.shape[0], 0)), (0, max(second - table.shape[1], 0)), (0, 0), (0, 0)]
    return np.pad(table, room, constant_values=-1)


class Rows:
    """Numbers for label tuples, in order of appearance."""

    def __init__(self) -> None:
        self.labels: list[tuple[object, ...]] = []
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, labels: tuple[object, ...]) -> int:
        """Number of a label tuple, given at its first use."""
        number = self._numbers.get(labels)
        if number is None:
            number = self._numbers[labels] = len(self.labels)
            self.labels.append(labels)
        return number

    def __len__(self) -> int:
        return len(self.labels)


class Series:
    """All measures of collectives of one host. `kept_every`: see Histogram."""

    def __init__(self, kept_every: int = 1) -> None:
        self.ranked, self.shared, self.plain, self.blamed = Rows(), Rows(), Rows(), Rows()
        self.operations, self.unknown_exposed = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.upper_bound, self.unfinished = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.bytes, self.exposed, self.blame = np.zeros(0), np.zeros(0), np.zeros(0)
        self.instances, self.bus_bytes = np.zeros(0, np.int64), np.zeros(0)
        self.algorithm_bytes, self.transfer_sum = np.zeros(0), np.zeros(0)
        self.plain_of, self.shared_of, self.blamed_of = (np.zeros(0, np.int64) for _ in range(3))
        self.duration, self.wait = Histogram(kept_every), Histogram(kept_every)  # rows of `plain`: (rank, axis, op)
        self.duration_tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)
        self.wait_tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)
        self.transfer_tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)
        self.skew_tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)
        self.bandwidth_tails = Tails(LOWEST_RATE, HIGHEST_RATE)
        self.folded = 0
        self._own: set[Combination] = set()
        self._ranks: set[int] = set()
        self._row_of = np.full((0, 0, len(wire.OPS) + 1, len(sizes.NAMES)), -1, np.int64)
        self._is_folded = np.zeros(0, bool)

    def rows(
        self, source: Ints, ranks: list[int], axis: Ints, axis_names: list[str], op: Ints, num_bytes: NDArray[np.uint64]
    ) -> Ints:
        """Row of `ranked` for each operation; `source` numbers `ranks`, `axis` numbers `axis_names`."""
        if len(ranks) > self._row_of.shape[0] or len(axis_names) > self._row_of.shape[1]:
            self._row_of = _widened(self._row_of, len(ranks), len(axis_names))
        places = np.ravel_multi_index((source, axis, op, sizes.size_class(num_bytes)), self._row_of.shape)
        flat = self._row_of.reshape(-1)
        rows = flat[places]
        if rows.min(initial=0) < 0:
            for place in np.unique(places[rows < 0]).tolist():
                at, axis_at, op_at, size_at = np.unravel_index(place, self._row_of.shape)
                flat[place] = self._new_row(ranks[at], axis_names[axis_at], int(op_at), int(size_at))
            rows = flat[places]
        self.folded += int(np.count_nonzero(self._is_folded[rows]))
        return rows

    def add_operations(
        self, rows: Ints, num_bytes: Ints, duration: Floats, exposed: Floats, upper_bound: NDArray[np.bool_],
        steps: Ints, times_ns: Ints, now_ns: int,
    ) -> None:  # fmt: skip
        """Count settled operations by their rows; NaN durations are unfinished, NaN exposed is unknown."""
        size = len(self.ranked)
        self.operations[:size] += np.bincount(rows, minlength=size)
        self.bytes[:size] += np.bincount(rows, weights=num_bytes, minlength=size)
        self.unfinished[:size] += np.bincount(rows[np.isnan(duration)], minlength=size)
        self.upper_bound[:size] += np.bincount(rows[upper_bound], minlength=size)
        unknown = np.isnan(exposed)
        self.unknown_exposed[:size] += np.bincount(rows[unknown], minlength=size)
        self.exposed[:size] += np.bincount(rows, weights=np.where(unknown, 0, exposed), minlength=size)
        self.duration.add(self.plain_of[rows], duration, steps, times_ns)
        self.duration_tails.add(rows, duration, now_ns)

    def add_waits(self, rows: Ints, wait: Floats, steps: Ints, times_ns: Ints, now_ns: int) -> None:
        """Count what members waited for their last one."""
        self.wait.add(self.plain_of[rows], wait, steps, times_ns)
        self.wait_tails.add(rows, wait, now_ns)

    def add_instances(
        self,
        last_rows: Ints,
        blame: Floats,
        skew: Floats,
        transfer: Floats,
        num_bytes: Floats,
        factor: Floats,
        now_ns: int,
    ) -> None:
        """Count whole instances by the row of the member that came last."""
        self.blame += np.bincount(self.blamed_of[last_rows], weights=blame, minlength=len(self.blame))
        shared = self.shared_of[last_rows]
        size = len(self.instances)
        self.instances += np.bincount(shared, minlength=size)
        self.transfer_sum += np.bincount(shared, weights=transfer, minlength=size)
        self.transfer_tails.add(shared, transfer, now_ns)
        self.skew_tails.add(shared, skew, now_ns)
        timed = (transfer > 0) & (num_bytes > 0)
        shared, moved = shared[timed], num_bytes[timed]
        self.algorithm_bytes += np.bincount(shared, weights=moved, minlength=size)
        self.bus_bytes += np.bincount(shared, weights=moved * factor[timed], minlength=size)
        self.bandwidth_tails.add(shared, moved * factor[timed] / transfer[timed], now_ns)

    def roll(self, now_ns: int) -> None:
        """Let the windows move on, also when nothing happens."""
        for tails in (
            self.duration_tails, self.wait_tails, self.transfer_tails, self.skew_tails, self.bandwidth_tails,
        ):  # fmt: skip
            tails.roll(now_ns)

    def _new_row(self, rank: int, axis: str, op: int, size: int) -> int:
        combination = Combination(axis, wire.OP_NAMES[op], sizes.NAMES[size])
        if combination not in self._own:
            if len(self._own) < MAX_COMBINATIONS:
                self._own.add(combination)
            else:
                combination = Combination(OTHER, OTHER, ALL_SIZES)
        if len(self._ranks) < MAX_RANKS:
            self._ranks.add(rank)
        rank_label = str(rank) if rank in self._ranks else OTHER
        row = self.ranked.number((rank_label, *combination))
        links = (
            self.plain.number((rank_label, combination.axis, combination.op)),
            self.shared.number(combination),
            self.blamed.number((rank_label, combination.axis)),
        )
        self._grow()
        self.plain_of[row], self.shared_of[row], self.blamed_of[row] = links
        self._is_folded[row] = combination.size == ALL_SIZES
        return row

    def _grow(self) -> None:
        for name, rows in (
            ("operations", self.ranked), ("unknown_exposed", self.ranked), ("upper_bound", self.ranked),
            ("unfinished", self.ranked), ("bytes", self.ranked), ("exposed", self.ranked), ("plain_of", self.ranked),
            ("shared_of", self.ranked), ("blamed_of", self.ranked), ("_is_folded", self.ranked), ("blame", self.blamed),
            ("instances", self.shared), ("bus_bytes", self.shared), ("algorithm_bytes", self.shared),
            ("transfer_sum", self.shared),
        ):  # fmt: skip
            setattr(self, name, grown(getattr(self, name), len(rows)))
        self.duration.grow(len(self.plain))
        self.wait.grow(len(self.plain))
        for tails, rows in (
            (self.duration_tails, self.ranked), (self.wait_tails, self.ranked), (self.transfer_tails, self.shared),
            (self.skew_tails, self.shared), (self.bandwidth_tails, self.shared),
        ):  # fmt: skip
            tails.grow(len(rows))
