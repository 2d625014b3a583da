"""Expert-parallel ranks over the last steps: rows, seconds of expert work, and what the group loses to imbalance.

    rows of one poll -> RankLoads.add     all-to-alls with splits, backward actions of pipelines
    a step is left by all ranks -> fold   pairs -> whole instances -> one Entry per group and step
                     .groups()            GroupView for report, metrics

Evaluation is left out. Instances with members on other hosts, or with lost records, are left out and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.experts import cost, exchange
from ranksight.agent.experts.cost import Floats, Slowness
from ranksight.agent.reading.slots import Rows, pick, stack
from ranksight.agent.steps.table import WARM_UP_STEPS
from ranksight.hooks import wire

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer, Source
    from ranksight.agent.reading.reader import Batch

WINDOW_STEPS = 200
MAX_PENDING = 1 << 16  # operations of one rank that wait for their step to end
_UNEVEN = np.zeros(1 << 16, bool)
_UNEVEN[list(wire.UNEVEN_OPS)] = True
_BACKWARD = (wire.Action.BACKWARD, wire.Action.INPUT_GRAD, wire.Action.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of one group: `rows` and `seconds` [ranks], `places` [places, ranks] rows of each layer in order."""

    step: int
    rows: Floats
    seconds: Floats
    places: Floats
    lost: float


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group over its window: `rows`, `seconds` [steps, ranks], `lost` [steps], `places` [places, ranks] per step."""

    number: int
    ranks: tuple[int, ...]
    steps: NDArray[np.int64]
    rows: Floats
    seconds: Floats
    lost: Floats
    places: Floats
    slowness: list[Slowness] | None


@dataclass(slots=True)
class _Pending:
    """What is kept of one ring until its steps are over."""

    rows: list[Rows] = field(default_factory=list)
    splits: dict[int, NDArray[Any]] = field(default_factory=dict)
    backward: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0


class RankLoads:
    """All expert-parallel groups of this host."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Source, _Pending]] = {}
        self._entries: dict[int, deque[Entry]] = {}
        self._ranks: dict[int, tuple[int, ...]] = {}
        self._folded = -1
        self.unmatched = 0  # all-to-alls without a partner, or of instances that are not whole here
        self.rows_total: dict[int, float] = {}  # by rank, since the start
        self.seconds_total: dict[int, float] = {}
        self.lost_total = 0.0  # of steps after the warm-up, the group that loses most

    def add(self, source: Source, batch: Batch) -> None:
        """Keep what may belong to experts."""
        rows = batch.collectives
        if len(rows):
            at = np.flatnonzero(_UNEVEN[rows["op"]] & (rows["n_recv"] > 0))
            if len(at):
                self._keep(source, pick(rows, at), batch)
        known = self._pending.get(source.number)
        if known is not None and len(batch.events):
            spans = batch.events[batch.events["kind"] == wire.EventKind.PIPELINE]
            spans = spans[np.isin(spans["code"], _BACKWARD)]
            known[1].backward.extend(zip(spans["begin_ns"].tolist(), spans["end_ns"].tolist(), strict=True))

    def fold(self, observer: Observer, limit: int) -> None:
        """Fold all steps up to `limit`, which no rank is in any more."""
        found = []
        for source, pending in self._pending.values():
            if pending.rows:
                found.append(self._take(source, pending, limit))
        self._folded = max(self._folded, limit)
        pairs = np.concatenate(found) if found else np.empty(0, exchange.PAIR)
        if not len(pairs):
            return
        pairs, starts = exchange.whole(pairs, observer.registry.sizes())
        if not len(starts):
            return
        self._count(pairs, starts, observer)

    def groups(self) -> list[GroupView]:
        """Every group with steps after the warm-up."""
        return [self._view(number) for number, entries in self._entries.items() if entries]

    def lost_per_step(self) -> Floats:
        """Seconds lost in each step of the window by the group that loses most in it: groups wait at the same time."""
        worst: dict[int, float] = {}
        for entries in self._entries.values():
            for entry in entries:
                worst[entry.step] = max(worst.get(entry.step, 0.0), entry.lost)
        return np.array([worst[step] for step in sorted(worst)[-WINDOW_STEPS:]])

    def _keep(self, source: Source, rows: Rows, batch: Batch) -> None:
        _, pending = self._pending.setdefault(source.number, (source, _Pending()))
        rows = pick(rows, (rows["step"] > self._folded) & (rows["phase"] != wire.Phase.EVALUATION))
        if pending.count + len(rows) > MAX_PENDING:
            self.unmatched += pending.count
            pending.rows, pending.splits, pending.count = [], {}, 0
        pending.rows.append(rows)
        pending.count += len(rows)
        if batch.collective_extras:
            for ticket in rows["ticket"][rows["n_extra"] > 0].tolist():
                if ticket in batch.collective_extras:
                    pending.splits[ticket] = batch.collective_extras[ticket]

    def _take(self, source: Source, pending: _Pending, limit: int) -> exchange.Pairs:
        """The pairs of a ring's steps up to `limit`, with numbers of the registry."""
        rows = stack(pending.rows)
        done = rows["step"] <= limit
        rest = pick(rows, ~done)
        rows = pick(rows, done)
        pairs, alone = exchange.pairs_of(rows, pending.splits, pending.backward, source.rank)
        self.unmatched += alone
        numbers = np.array(source.groups)
        pairs["group"] = numbers[np.minimum(pairs["group"], len(numbers) - 1)]
        pending.rows, pending.count = ([rest] if len(rest) else []), len(rest)
        for ticket in rows["ticket"].tolist() if pending.splits else ():
            pending.splits.pop(ticket, None)
        last = int(rows["enqueue_ns"].max()) if len(rows) else 0
        pending.backward = [span for span in pending.backward if span[1] > last]
        return pairs

    def _count(self, pairs: exchange.Pairs, starts: NDArray[np.int64], observer: Observer) -> None:
        warm = observer.step_table.first_step() + WARM_UP_STEPS
        lost = cost.lost(pairs["seconds"], starts)
        group, step, rank = pairs["group"], pairs["step"], pairs["rank"]
        firsts = np.stack((step[starts], group[starts]), axis=1)
        tokens = np.where(pairs["forward"], pairs["rows"], 0).astype(float)
        for r in np.unique(rank).tolist():
            mine = rank == r
            self.rows_total[r] = self.rows_total.get(r, 0.0) + float(tokens[mine].sum())
            self.seconds_total[r] = self.seconds_total.get(r, 0.0) + float(pairs["seconds"][mine].sum())
        worst: dict[int, float] = {}
        for of_step, number in np.unique(firsts, axis=0).tolist():
            if of_step < warm:
                continue
            mine = (step == of_step) & (group == number)
            ranks = self._ranks.setdefault(number, tuple(sorted(set(rank[mine].tolist()))))
            at = np.searchsorted(ranks, rank[mine])
            places = pairs["place"][mine]
            grid = np.zeros((max(0, int(places.max()) + 1), len(ranks)))
            forward = places >= 0
            np.add.at(grid, (places[forward], at[forward]), tokens[mine][forward])
            entry = Entry(
                of_step,
                np.bincount(at, tokens[mine], len(ranks)).astype(float),
                np.bincount(at, pairs["seconds"][mine], len(ranks)).astype(float),
                grid,
                float(lost[(firsts == (of_step, number)).all(axis=1)].sum()),
            )
            self._entries.setdefault(number, deque(maxlen=WINDOW_STEPS)).append(entry)
            worst[of_step] = max(worst.get(of_step, 0.0), entry.lost)
        self.lost_total += sum(worst.values())

    def _view(self, number: int) -> GroupView:
        entries: Sequence[Entry] = self._entries[number]
        rows, seconds = (np.stack([getattr(entry, name) for entry in entries]) for name in ("rows", "seconds"))
        usual = entries[-1].places.shape
        places = [entry.places for entry in entries if entry.places.shape == usual]
        return GroupView(
            number, self._ranks[number], np.array([entry.step for entry in entries]), rows, seconds,
            np.array([entry.lost for entry in entries]), np.mean(places, axis=0), cost.explain(rows, seconds),
        )  # fmt: skip


def left_by_all(observer: Observer) -> int:
    """The last step in which no rank is and no operation of any rank is open; -1 before there is one."""
    limits = []
    for source in observer.current():
        current, opened = source.reader["step"], source.reader.open_rows
        limits.append(min(current, int(opened["step"].min())) if len(opened) else current)
    return min(limits, default=0) - 1
