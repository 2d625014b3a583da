"""What the events of a rank say about its steps: durations, loss, gradient norm, tokens, notes and exceptions.

event rows of one ring -> Steps.add(rank, reader, rows) -> per-rank state, histogram and tails of step seconds
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.collectives.series import HIGHEST_SECONDS, LOWEST_SECONDS, Histogram, Rows
from ranksight.agent.collectives.tails import Tails
from ranksight.agent.reading.reader import RingReader
from ranksight.agent.reading.slots import Rows as SlotRows
from ranksight.agent.reading.slots import pick
from ranksight.hooks import wire

MAX_NOTES = 64  # distinct texts kept per rank
_WANTED = np.zeros(1 << 16, bool)
_WANTED[
    [
        wire.EventKind.STEP, wire.EventKind.LOSS, wire.EventKind.GRAD_NORM, wire.EventKind.BATCH,
        wire.EventKind.NOTE, wire.EventKind.EXCEPTION, wire.EventKind.MEMORY,
        wire.EventKind.FACT,
    ]
] = True  # fmt: skip
_IS_TEXT = np.zeros(1 << 16, bool)
_IS_TEXT[[wire.EventKind.NOTE, wire.EventKind.EXCEPTION, wire.EventKind.FACT]] = True
_LOSS, _GRAD_NORM, _MEMORY, _BATCH = (
    int(wire.EventKind[name]) for name in ("LOSS", "GRAD_NORM", "MEMORY", "BATCH")
)

Ints = NDArray[Any]


@dataclass(slots=True)
class RankSteps:
    """Latest and summed facts of one rank; None is not known."""

    steps: int = 0
    step_seconds: float = 0.0
    last_step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    job_tokens: float | None = None  # those of the whole job, in all steps so far
    samples: int | None = None
    rss_bytes: int | None = None
    device_bytes: int | None = None
    exception: str | None = None
    notes: Counter[str] = field(default_factory=Counter)
    facts: dict[str, str] = field(default_factory=dict)


class Steps:
    """Per-rank step facts of one host. Rows of `histogram` and `tails` are numbered by `rows` (rank label)."""

    def __init__(self, kept_every: int = 1) -> None:
        self.ranks: dict[int, RankSteps] = {}
        self.rows = Rows()
        self.histogram = Histogram(kept_every)
        self.tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)
        self._new: list[tuple[int, float, int, int]] = []

    def add(self, rank: int, reader: RingReader, rows: SlotRows) -> None:
        """Take in ended events of one rank."""
        state = self.ranks.setdefault(rank, RankSteps())
        wanted = np.flatnonzero(_WANTED[rows["kind"]])
        kinds = rows["kind"][wanted]
        self._add_steps(rank, state, pick(rows, wanted[kinds == wire.EventKind.STEP]))
        self._add_numbers(state, rows, wanted, kinds)
        for at in wanted[_IS_TEXT[kinds]].tolist():
            self._add_text(state, int(rows["kind"][at]), rows[at], reader)

    def count(self, now_ns: int) -> None:
        """Put the steps of this poll, of all ranks, into histogram and tails."""
        if self._new:
            rank_row, seconds, step, end_ns = (np.array(column) for column in zip(*self._new, strict=True))
            self._new = []
            self.histogram.add(rank_row, seconds, step, end_ns)
            self.tails.add(rank_row, seconds, now_ns)
        self.tails.roll(now_ns)

    def _add_steps(self, rank: int, state: RankSteps, rows: SlotRows) -> None:
        rows = pick(rows, rows["end_ns"] > rows["begin_ns"])  # one that was never closed: its rank died in it
        if not len(rows):
            return
        number = self.rows.number((str(rank),))
        self.histogram.grow(len(self.rows))
        self.tails.grow(len(self.rows))
        steps, ends = rows["step"].tolist(), rows["end_ns"].tolist()
        seconds = ((rows["end_ns"] - rows["begin_ns"]) / 1e9).tolist()
        self._new += zip([number] * len(rows), seconds, steps, ends, strict=True)
        state.steps += len(rows)
        said = rows["n_values"] >= 2
        if said.any():
            state.job_tokens = float(rows["values"][said, 1].sum()) + (state.job_tokens or 0.0)
        state.step_seconds += sum(seconds)
        state.last_step = max(steps) if state.last_step is None else max(*steps, state.last_step)

    def _add_numbers(self, state: RankSteps, rows: SlotRows, wanted: Ints, kinds: Ints) -> None:
        """The latest of each number, and the sums of batches."""
        said = rows["n_values"][wanted] > 0
        for kind in (_LOSS, _GRAD_NORM, _MEMORY):
            at = np.flatnonzero((kinds == kind) & said)
            if not len(at):
                continue
            row = rows[wanted[at[-1]]]
            value, second = row["values"][:2].tolist()
            if kind == _LOSS:
                state.loss = value
            elif kind == _GRAD_NORM:
                state.grad_norm = value
            else:
                state.rss_bytes = int(value)
                state.device_bytes = int(second) if row["n_values"] > 1 else None
        at = np.flatnonzero((kinds == _BATCH) & (rows["n_values"][wanted] >= 2))
        if len(at):
            samples, tokens = rows["values"][wanted[at], :2].sum(axis=0).tolist()
            state.samples = (state.samples or 0) + int(samples)
            state.tokens = (state.tokens or 0) + int(tokens)

    def _add_text(self, state: RankSteps, kind: int, row: np.void, reader: RingReader) -> None:
        if kind == wire.EventKind.EXCEPTION:
            state.exception = reader.hooks_table.string(int(row["name"])) or "exception of unknown type"
        elif kind == wire.EventKind.FACT:
            key, _, value = (reader.hooks_table.string(int(row["name"])) or "").partition("=")
            if key and (key in state.facts or len(state.facts) < MAX_NOTES):
                state.facts[key] = value
        elif kind == wire.EventKind.NOTE:
            text = reader.hooks_table.string(int(row["name"])) or f"note of code {int(row['code'])}"
            if text in state.notes or len(state.notes) < MAX_NOTES:
                state.notes[text] += 1
