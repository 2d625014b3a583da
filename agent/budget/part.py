"""The budget of all ranks of the host, in report.json and as metrics.

    add, add_joined -> RankBudget per process --settle, SETTLE_NS after a step--> totals, tails per rank, axis and stage
    report.json <- "budget"     metrics <- ranksight_step_part_seconds...

Ranks beyond MAX_RANKS share one row. Long phases (warm-up, evaluation, load, compile, checkpoint) are listed with their
step; their time is part of the steps that they fall into.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.budget.rank import COMMUNICATION, PARTS, RankBudget, StepParts
from ranksight.agent.catalog import BY_NAME
from ranksight.agent.collectives.series import MAX_RANKS, OTHER
from ranksight.agent.collectives.tails import QUANTILES, RUN, Tails
from ranksight.agent.export.exposition import Block, Labels, tail_block
from ranksight.agent.parts import Part
from ranksight.agent.reading.slots import Rows
from ranksight.agent.steps.table import LONG_PHASE_SECONDS, LONG_PHASES, WARM_UP_STEPS
from ranksight.hooks.wire import EventKind, Phase

if TYPE_CHECKING:
    from ranksight.agent.collectives.measures import Split
    from ranksight.agent.collectives.timeline import Joined
    from ranksight.agent.observer import Observer, Source
    from ranksight.agent.reading.reader import Batch

SETTLE_NS = 2_000_000_000  # after the end of a step; the slowest poll of a busy agent is well within it
INTERVAL_NS = 1_000_000_000
MAX_PHASES = 200  # listed, the last ones
LOWEST_SECONDS, HIGHEST_SECONDS = 1e-6, 1e4
_NAMES = ("p50", "p95", "p99", "p999", "max")


@dataclass(slots=True)
class _Totals:
    """Sums over the settled steps of one rank."""

    steps: int = 0
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(PARTS)))
    marked: float = 0.0
    unsplit: float = 0.0
    first_step: int | None = None


class Budget(Part):
    """`seconds` gives what others build on: rank -> part -> seconds so far."""

    def __init__(self) -> None:
        self.phases: deque[dict[str, Any]] = deque(maxlen=MAX_PHASES)
        self._ranks: dict[int, RankBudget] = {}  # by number of the ring
        self._totals: dict[int, _Totals] = {}  # by rank
        self._waiting: list[tuple[Source, Rows, Rows]] = []
        self._joined: list[tuple[NDArray[np.void], NDArray[np.int64]]] = []
        self._axes: list[str] = []
        self._rows: dict[str, int] = {}  # label of a rank -> its first row of `tails`
        self.tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)  # row: rank, part
        self.axis_tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)  # row: axis, kind of communication
        self._axis_seconds = np.zeros((0, len(COMMUNICATION)))
        self._stages: dict[int, int] = {}
        self._settled_ns = 0

    @property
    def seconds(self) -> dict[int, dict[str, float]]:
        """Seconds of each part by rank, over the settled steps."""
        return {
            rank: dict(zip(PARTS, totals.seconds.tolist(), strict=True)) for rank, totals in sorted(self._totals.items())
        }

    def add(self, source: Source, batch: Batch) -> None:
        """Keep the records until the observer has numbered their groups."""
        if len(batch.collectives) or len(batch.events):
            self._waiting.append((source, batch.collectives, batch.events))

    def add_joined(self, joined: Joined, split: Split) -> None:
        """Keep when the last member of each operation came."""
        counts = np.diff(joined.starts, append=len(joined.facts))
        latest = np.repeat(np.maximum.reduceat(joined.facts["enter"], joined.starts), counts)
        self._joined.append((joined.facts, latest))

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Take in the records of this poll; settle steps once a second."""
        for source, collectives, events in self._waiting:
            axis = self._axes_of(observer, source, collectives)
            self._ranks.setdefault(source.number, RankBudget()).add(collectives, axis, events)
            self._mark(source, events)
        self._waiting.clear()
        self._hand_out()
        self.tails.roll(now_ns)
        self.axis_tails.roll(now_ns)
        if now_ns - self._settled_ns >= INTERVAL_NS:
            self._settle(observer, now_ns - SETTLE_NS, now_ns)

    def close(self, observer: Observer, now_ns: int) -> None:
        """Nothing more comes: all steps are settled."""
        self._settle(observer, 1 << 62, now_ns)

    def sections(self, observer: Observer) -> dict[str, Any]:
        """`budget`; absent before a step is settled."""
        if not self._totals:
            return {}
        return {
            "budget": {
                "parts": list(PARTS),
                "per_rank": [self._rank_section(rank) for rank in sorted(self._totals)],
                "per_axis": self._axis_section(),
                "per_stage": self._stage_section(),
                "phases": [*self._warm_ups(), *self.phases],
            }
        }

    def blocks(self, observer: Observer) -> Iterator[Block]:
        """Seconds by part, and tails of a step's parts."""
        totals: dict[str, NDArray[np.float64]] = {}
        for rank, mine in self._totals.items():
            label = self._label(rank)
            totals[label] = totals.get(label, np.zeros(len(PARTS))) + mine.seconds
        labels = [(label, part) for label in totals for part in PARTS]
        values = [value for label in totals for value in totals[label].tolist()]
        yield Block(BY_NAME["ranksight_step_part_seconds_total"], labels, values)
        rows: list[Labels] = [(label, part) for label in self._rows for part in PARTS]
        yield tail_block("ranksight_step_part_tail_seconds", rows, self.tails, windows=("1m",))

    # taking in

    def _axes_of(self, observer: Observer, source: Source, collectives: Rows) -> NDArray[np.int64]:
        if not len(collectives):
            return np.empty(0, np.int64)
        used, where = np.unique(np.minimum(collectives["group"], len(source.groups) - 1), return_inverse=True)
        names = [observer.registry.groups[source.groups[number]].group.axis for number in used.tolist()]
        for name in names:
            if name not in self._axes:
                self._axes.append(name)
        return np.array([self._axes.index(name) for name in names])[where]

    def _mark(self, source: Source, events: Rows) -> None:
        long = events["end_ns"] - events["begin_ns"] >= LONG_PHASE_SECONDS * 1e9
        for row in events[(events["kind"] == EventKind.PHASE) & np.isin(events["code"], LONG_PHASES) & long]:
            begin, end = int(row["begin_ns"]), int(row["end_ns"])
            self.phases.append(
                {
                    "rank": source.rank, "phase": Phase(int(row["code"])).name.lower(), "step": int(row["step"]),
                    "begin": begin / 1e9, "seconds": (end - begin) / 1e9,
                }
            )  # fmt: skip

    def _hand_out(self) -> None:
        if not self._joined:
            return
        source = np.concatenate([facts["source"] for facts, _ in self._joined])
        enter = np.concatenate([facts["enter"] for facts, _ in self._joined])
        latest = np.concatenate([latest for _, latest in self._joined])
        self._joined.clear()
        order = np.argsort(source, kind="stable")
        numbers, starts = np.unique(source[order], return_index=True)
        for number, mine in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            if number in self._ranks:
                self._ranks[number].add_latest(enter[mine], latest[mine])

    # settling

    def _settle(self, observer: Observer, until_ns: int, now_ns: int) -> None:
        self._settled_ns = now_ns
        rank_of = {source.number: source.rank for source in observer.sources.values()}
        self._stages |= {source.rank: source.reader["stage"] for source in observer.current() if source.reader["stage"] >= 0}
        for number, budget in self._ranks.items():
            found = budget.settle(until_ns, len(self._axes))
            if found is not None:
                self._count(rank_of[number], found, now_ns)

    def _count(self, rank: int, found: StepParts, now_ns: int) -> None:
        totals = self._totals.setdefault(rank, _Totals())
        totals.steps += len(found.steps)
        totals.seconds += found.seconds.sum(axis=0)
        totals.marked += float(found.marked.sum())
        totals.unsplit += float(found.unsplit.sum())
        if totals.first_step is None:
            totals.first_step = int(found.steps[0])
        first = self._rows.setdefault(self._label(rank), len(self._rows) * len(PARTS))
        self.tails.grow(first + len(PARTS))
        self.tails.add(np.tile(first + np.arange(len(PARTS)), len(found.steps)), found.seconds.reshape(-1), now_ns)
        axes, kinds = found.by_axis.shape[1:]
        self.axis_tails.grow(axes * kinds)
        self.axis_tails.add(np.tile(np.arange(axes * kinds), len(found.steps)), found.by_axis.reshape(-1), now_ns)
        if axes > len(self._axis_seconds):
            self._axis_seconds = np.pad(self._axis_seconds, ((0, axes - len(self._axis_seconds)), (0, 0)))
        self._axis_seconds[:axes] += found.by_axis.sum(axis=0)

    def _label(self, rank: int) -> str:
        label = str(rank)
        return label if label in self._rows or len(self._rows) < MAX_RANKS else OTHER

    # the section

    def _rank_section(self, rank: int) -> dict[str, Any]:
        totals = self._totals[rank]
        whole = float(totals.seconds.sum())
        other = float(totals.seconds[PARTS.index("other")]) - totals.marked
        first = self._rows[self._label(rank)]
        return {
            "rank": rank,
            "steps": totals.steps,
            "seconds": dict(zip(PARTS, totals.seconds.tolist(), strict=True)),
            "other_fraction": other / whole if whole else None,
            "marked_seconds": totals.marked,
            "unsplit_seconds": totals.unsplit,
            "distribution": _distribution(self.tails, [first + number for number in range(len(PARTS))], PARTS),
        }

    def _axis_section(self) -> dict[str, Any]:
        section = {}
        for axis, seconds in enumerate(self._axis_seconds.tolist()):
            rows = [axis * len(COMMUNICATION) + kind for kind in range(len(COMMUNICATION))]
            section[self._axes[axis]] = {
                "seconds": dict(zip(COMMUNICATION, seconds, strict=True)),
                "distribution": _distribution(self.axis_tails, rows, COMMUNICATION),
            }
        return section

    def _stage_section(self) -> list[dict[str, Any]]:
        section = []
        for stage in sorted(set(self._stages.values())):
            ranks = [rank for rank in sorted(self._totals) if self._stages.get(rank) == stage]
            if not ranks:
                continue
            firsts = np.array([self._rows[self._label(rank)] for rank in ranks])
            rows = [firsts + number for number in range(len(PARTS))]
            seconds = sum(self._totals[rank].seconds for rank in ranks)
            section.append(
                {
                    "stage": stage, "ranks": ranks, "seconds": dict(zip(PARTS, np.asarray(seconds).tolist(), strict=True)),
                    "distribution": _distribution(self.tails, rows, PARTS),
                }
            )  # fmt: skip
        return section

    def _warm_ups(self) -> list[dict[str, Any]]:
        """The first steps of each rank: lazy connections, autotuning and caches make them slow."""
        return [
            {"rank": rank, "phase": "warm_up", "step": totals.first_step, "steps": min(WARM_UP_STEPS, totals.steps)}
            for rank, totals in sorted(self._totals.items())
        ]


def _distribution(tails: Tails, rows: list[Any], names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Quantiles of seconds per step, over the whole run, of rows or of sets of rows."""
    merge = [np.atleast_1d(np.asarray(row)) for row in rows]
    found = tails.quantiles(RUN, QUANTILES, merge)
    largest = tails.maximum(RUN, merge)
    return {
        name: dict(zip(_NAMES, [*values, top], strict=True))
        for name, values, top in zip(names, found.tolist(), largest.tolist(), strict=True)
        if not np.isnan(values[0])
    }
