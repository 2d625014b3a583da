"""Folds what the ranks record into one row per step, for the detectors that look at steps.

    settled collectives, ended events (per rank)  -> add_rank    busy time, data, gc, checkpoint, loss, ...
    joined instances                              -> add_joined  transfer time
    window(n)                                     -> StepWindow of the last n finished steps

A step of a rank is folded when the rank has left it and none of its operations is still open, so a row never changes
afterwards. Memory is bounded: KEPT_STEPS rows per rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ranksight.agent.detectors.origins import Birth
from ranksight.agent.reading.slots import COLLECTIVE, Rows, pick, stack
from ranksight.agent.steps.window import Floats, Ints, StepWindow, busy_seconds
from ranksight.hooks import wire
from ranksight.hooks.records import Group

KEPT_STEPS = 512
KEPT_BIRTHS = 4096
FOLD_INTERVAL_NS = 900_000_000
WARM_UP_STEPS = 5  # lazy connections, autotuning, caches: their times say nothing about the hardware
LONG_PHASES = (
    wire.Phase.STARTUP,
    wire.Phase.CHECKPOINT,
    wire.Phase.EVALUATION,
    wire.Phase.LOAD,
    wire.Phase.COMPILE,
    wire.Phase.PARTITION,
)
LONG_PHASE_SECONDS = 0.05  # an evaluation shorter than this can't hide or fake a straggler
COLUMNS = (
    "duration", "busy", "data", "gc", "checkpoint", "cpu", "loss", "grad_norm", "rss_bytes", "elements",
)  # fmt: skip
_COLUMN = {name: number for number, name in enumerate(COLUMNS)}
_STEP, _PHASE, _CHECKPOINT, _MEMORY, _INPUT, _LOSS = (
    int(wire.EventKind[name]) for name in ("STEP", "PHASE", "CHECKPOINT", "MEMORY", "INPUT", "LOSS")
)
_SECONDS = {int(wire.EventKind[name.upper()]): name for name in ("data", "gc", "checkpoint")}
_WATCHED = tuple(_COLUMN[name] for name in _SECONDS.values())
_WANTED = np.zeros(1 << 16, bool)
_WANTED[[_STEP, _PHASE, _MEMORY, _INPUT, _LOSS, int(wire.EventKind.GRAD_NORM), *_SECONDS]] = True
_IS_LONG = np.zeros(1 << 16, bool)
_IS_LONG[list(LONG_PHASES)] = True
_LONG_NS = round(1e9 * LONG_PHASE_SECONDS)
_UNEVEN = np.zeros(1 << 16, bool)
_UNEVEN[list(wire.UNEVEN_OPS)] = True


@dataclass(slots=True)
class _RankSteps:
    """The folded steps of one rank: row `step % KEPT_STEPS`."""

    host: str
    generation: int
    first_step: int | None = None
    folded: int = -1  # last step folded
    folded_ns: int = 0
    steps: Ints = field(default_factory=lambda: np.full(KEPT_STEPS, -1, np.int64))
    values: Floats = field(default_factory=lambda: np.full((KEPT_STEPS, len(COLUMNS)), np.nan))
    nonfinite: np.ndarray = field(default_factory=lambda: np.zeros(KEPT_STEPS, bool))
    nonfinite_norm: np.ndarray = field(default_factory=lambda: np.zeros(KEPT_STEPS, bool))
    exempt: np.ndarray = field(default_factory=lambda: np.zeros(KEPT_STEPS, bool))
    pending: list[Rows] = field(default_factory=list)
    released_ns: int | None = None
    elements: float = np.nan  # of the input of a step, as last said
    ended_ns: dict[int, int] = field(default_factory=dict)

    def row(self, step: int) -> int:
        """The row of a step, emptied when it held an older one."""
        at = step % KEPT_STEPS
        if self.steps[at] != step:
            self.steps[at], self.nonfinite[at], self.nonfinite_norm[at] = step, False, False
            self.exempt[at] = self.first_step is None or step < self.first_step + WARM_UP_STEPS
            self.values[at] = np.nan
        return at

    def add(self, step: int, column: str, value: float) -> None:
        """Add seconds to a column of a step."""
        at, number = self.row(step), _COLUMN[column]
        self.values[at, number] = value + (0.0 if math.isnan(self.values[at, number]) else self.values[at, number])


class StepTable:
    """All steps of all ranks of a host."""

    def __init__(self) -> None:
        self.births: list[Birth] = []  # what watched ranks saw first that was not finite
        self._ranks: dict[int, _RankSteps] = {}
        self._transfer: dict[int, float] = {}
        self._peers: dict[int, int] = {}
        self._uneven: dict[int, dict[tuple[str, int], dict[int, tuple[int, int]]]] = {}

    def set_stages(self, stages: dict[int, int]) -> None:
        """Say which pipeline stage ranks hold: only those of one stage do the same work and can be compared."""
        self._peers = stages

    def add_rank(
        self, rank: int, host: str, generation: int, collectives: Rows, events: Rows, groups: Sequence[Group],
        open_step: int | None, current_step: int, now_ns: int,
    ) -> None:  # fmt: skip
        """Take what one poll found of a rank: settled rows, ended events, the oldest step with an open operation.

        A rank that was started again begins anew, with its warm-up.
        """
        mine = self._ranks.get(rank)
        if mine is None or mine.generation != generation:
            mine = self._ranks[rank] = _RankSteps(host, generation)
        if mine.first_step is None and current_step >= 0:
            mine.first_step = current_step
        if len(collectives):
            mine.pending.append(collectives)
            uneven = np.flatnonzero(_UNEVEN[collectives["op"]])
            if len(uneven):
                self._add_uneven(rank, collectives[uneven], groups)
        self._add_events(mine, events)
        limit = current_step - 1 if open_step is None else min(current_step, open_step) - 1
        # Folding many steps at once costs little more than folding one.
        if limit > mine.folded and now_ns - mine.folded_ns >= FOLD_INTERVAL_NS:
            mine.folded_ns = now_ns
            self._fold(mine, limit)

    def add_joined(self, step: Ints, transfer: Floats) -> None:
        """Add the transfer seconds of joined instances to their steps."""
        for number in np.unique(step).tolist():
            self._transfer[number] = self._transfer.get(number, 0.0) + float(transfer[step == number].sum())
        while len(self._transfer) > KEPT_STEPS:
            del self._transfer[min(self._transfer)]

    def add_birth(self, birth: Birth) -> None:
        """Take in an origin; the earliest are kept."""
        if len(self.births) < KEPT_BIRTHS:
            self.births.append(birth)

    def first_step(self) -> int:
        """The first step that the ranks were seen in, the latest of them; 0 before there is one."""
        return max((mine.first_step for mine in self._ranks.values() if mine.first_step is not None), default=0)

    def seconds_since(self, step: int | None, now_ns: int) -> float | None:
        """Seconds since a step ended on the first rank that ended it; None when nobody remembers."""
        ends = [self._ranks[rank].ended_ns.get(step) for rank in self._ranks] if step is not None else []
        known = [end for end in ends if end is not None]
        return max(0.0, (now_ns - min(known)) / 1e9) if known else None

    def window(self, count: int) -> StepWindow | None:
        """The last `count` steps that every rank has finished; None before there is one."""
        ranks = sorted(self._ranks)
        if not ranks or min(self._ranks[rank].folded for rank in ranks) < 0:
            return None
        last = min(self._ranks[rank].folded for rank in ranks)
        steps = np.arange(max(0, last - count + 1), last + 1)
        steps = steps[np.any([self._ranks[rank].steps[steps % KEPT_STEPS] == steps for rank in ranks], axis=0)]
        if not len(steps):
            return None
        rows = steps % KEPT_STEPS
        shape = (len(steps), len(ranks))
        values = np.full((*shape, len(COLUMNS)), np.nan)
        nonfinite, nonfinite_norm = np.zeros(shape, bool), np.zeros(shape, bool)
        exempt = np.zeros(len(steps), bool)
        for at, rank in enumerate(ranks):
            mine = self._ranks[rank]
            present = mine.steps[rows] == steps
            values[present, at] = mine.values[rows[present]]
            nonfinite[present, at] = mine.nonfinite[rows[present]]
            nonfinite_norm[present, at] = mine.nonfinite_norm[rows[present]]
            exempt[present] |= mine.exempt[rows[present]]
        received = self._received(steps, ranks)
        transfer = np.array([self._transfer.get(step, np.nan) for step in steps.tolist()])
        return StepWindow.of(
            steps,
            tuple(ranks),
            hosts=tuple(self._ranks[rank].host for rank in ranks),
            peers=tuple(self._peers.get(rank, 0) for rank in ranks),
            transfer=np.repeat(transfer[:, None], len(ranks), axis=1),
            nonfinite=nonfinite,
            nonfinite_norm=nonfinite_norm,
            exempt=exempt,
            received_rows=received,
            **{name: values[:, :, number] for name, number in _COLUMN.items()},
        )

    def _add_uneven(self, rank: int, rows: Rows, groups: Sequence[Group]) -> None:
        """Remember the rows that a rank sent and received in all-to-alls with splits, outside of the backward pass.

        Gradients, and activations that are computed again in it, are no more tokens.
        """
        forward = rows["phase"] != wire.Phase.BACKWARD
        for row in rows[forward & (rows["n_recv"] > 0) & (rows["n_extra"] == 0) & (rows["step"] >= 0)]:
            first, middle = int(row["n_dims"]), int(row["n_dims"]) + int(row["n_send"])
            sent = int(row["values"][first:middle].sum())
            received = int(row["values"][middle : middle + int(row["n_recv"])].sum())
            instance = (groups[int(row["group"]) - 1].name, int(row["group_seq"]))
            self._uneven.setdefault(int(row["step"]), {}).setdefault(instance, {})[rank] = (sent, received)
        while len(self._uneven) > KEPT_STEPS:
            del self._uneven[min(self._uneven)]

    def _received(self, steps: Ints, ranks: list[int]) -> Floats:
        """Rows received in the dispatches of each step.

        In a dispatch the ranks differ in what they receive, in the combine that follows in what they send.
        """
        out = np.full((len(steps), len(ranks)), np.nan)
        for at, step in enumerate(steps.tolist()):
            for members in self._uneven.get(step, {}).values():
                pairs = np.array([members.get(rank, (0, 0)) for rank in ranks])
                if len(members) < 2 or pairs[:, 1].std() < pairs[:, 0].std():
                    continue
                for column, rank in enumerate(ranks):
                    if rank in members:
                        out[at, column] = pairs[column, 1] + np.nan_to_num(out[at, column])
        return out

    def _add_events(self, mine: _RankSteps, events: Rows) -> None:
        if not len(events):
            return
        kinds = events["kind"]
        wanted = _WANTED[kinds] & (events["step"] >= 0)
        wanted &= (kinds != _PHASE) | (_IS_LONG[events["code"]] & (events["end_ns"] - events["begin_ns"] >= _LONG_NS))
        if not wanted.all():  # most are phases and pipeline actions
            events = pick(events, wanted)
        # Columns as lists: a field of a structured row costs more than all that is done with it here.
        columns = (events[name].tolist() for name in ("step", "kind", "n_values", "begin_ns", "end_ns"))
        first = events["values"][:, 0].tolist()
        for step, kind, n_values, begin_ns, end_ns, value in zip(*columns, first, strict=True):
            at, seconds = mine.row(step), max(0, end_ns - begin_ns) / 1e9
            if kind == _STEP:
                values = mine.values[at]
                values[_COLUMN["duration"]] = seconds
                for watched in _WATCHED:
                    if math.isnan(values[watched]):
                        values[watched] = 0.0  # these are watched in every step: no event is none, not unknown
                mine.ended_ns[step] = end_ns
                mine.ended_ns.pop(step - KEPT_STEPS, None)
                if math.isnan(values[_COLUMN["elements"]]):
                    values[_COLUMN["elements"]] = mine.elements  # it is said when it changes
                if n_values:
                    values[_COLUMN["cpu"]] = value
            elif kind in _SECONDS:
                mine.add(step, _SECONDS[kind], seconds)
                if kind == _CHECKPOINT:
                    mine.exempt[at] = True
            elif kind == _PHASE:
                mine.exempt[at] = True
            elif not n_values:
                continue
            elif kind == _MEMORY:
                mine.values[at, _COLUMN["rss_bytes"]] = value
            elif kind == _INPUT:
                mine.elements = value
                mine.values[at, _COLUMN["elements"]] = value
            elif math.isfinite(value):
                mine.values[at, _COLUMN["loss" if kind == _LOSS else "grad_norm"]] = value
            else:
                (mine.nonfinite if kind == _LOSS else mine.nonfinite_norm)[at] = True

    def _fold(self, mine: _RankSteps, limit: int) -> None:
        """Turn the pending operations of steps up to `limit` into busy time."""
        rows = stack(mine.pending) if mine.pending else np.empty(0, COLLECTIVE)
        rows = pick(rows, np.argsort(rows["ticket"]))
        done = rows["step"] <= limit
        mine.pending = [pick(rows, ~done)] if not done.all() else []
        rows = pick(rows, done)
        mine.folded = limit
        if not len(rows):
            return
        complete = np.where(rows["complete_ns"] > 0, rows["complete_ns"], rows["wait_end_ns"])
        busy = busy_seconds(rows["step"], rows["enqueue_ns"], complete, mine.released_ns)
        mine.released_ns = max(int(rows["enqueue_ns"].max()), int(complete.max()), mine.released_ns or 0)
        for step, seconds in zip(busy.steps.tolist(), busy.seconds.tolist(), strict=True):
            if step >= 0:
                mine.add(step, "busy", seconds)
