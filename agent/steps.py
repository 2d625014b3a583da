"""What the events of a rank say about its steps: durations, loss, gradient norm, tokens, notes and exceptions.

event rows of one ring -> Steps.add(rank, reader, rows) -> per-rank state, histogram and tails of step seconds
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ranksight.agent.reader import RingReader
from ranksight.agent.series import HIGHEST_SECONDS, LOWEST_SECONDS, Histogram, Rows
from ranksight.agent.slots import Rows as SlotRows
from ranksight.agent.tails import Tails
from ranksight.hooks import wire

MAX_NOTES = 64  # distinct texts kept per rank
_READ_ONE_BY_ONE = (
    wire.EventKind.LOSS,
    wire.EventKind.GRAD_NORM,
    wire.EventKind.BATCH,
    wire.EventKind.NOTE,
    wire.EventKind.EXCEPTION,
    wire.EventKind.MEMORY,
)
_ONE_BY_ONE = np.zeros(1 << 16, bool)
_ONE_BY_ONE[list(_READ_ONE_BY_ONE)] = True


@dataclass(slots=True)
class RankSteps:
    """Latest and summed facts of one rank; None is not known."""

    steps: int = 0
    step_seconds: float = 0.0
    last_step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    samples: int | None = None
    rss_bytes: int | None = None
    device_bytes: int | None = None
    exception: str | None = None
    notes: Counter[str] = field(default_factory=Counter)


class Steps:
    """Per-rank step facts of one host. Rows of `histogram` and `tails` are numbered by `rows` (rank label)."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankSteps] = {}
        self.rows = Rows()
        self.histogram = Histogram()
        self.tails = Tails(LOWEST_SECONDS, HIGHEST_SECONDS)

    def add(self, rank: int, reader: RingReader, rows: SlotRows, now_ns: int) -> None:
        """Take in ended events of one rank."""
        state = self.ranks.setdefault(rank, RankSteps())
        kinds = rows["kind"]
        steps = rows[(kinds == wire.EventKind.STEP) & (rows["end_ns"] > rows["begin_ns"])]
        if len(steps):
            self._add_steps(rank, state, steps, now_ns)
        for row in rows[_ONE_BY_ONE[kinds]]:
            self._add_event(state, int(row["kind"]), row, reader)

    def _add_steps(self, rank: int, state: RankSteps, steps: SlotRows, now_ns: int) -> None:
        seconds = (steps["end_ns"] - steps["begin_ns"]) / 1e9
        row = self.rows.number((str(rank),))
        self.histogram.grow(len(self.rows))
        self.tails.grow(len(self.rows))
        where = np.full(len(steps), row)
        self.histogram.add(where, seconds, steps["step"], steps["end_ns"])
        self.tails.add(where, seconds, now_ns)
        state.steps += len(steps)
        state.step_seconds += float(seconds.sum())
        state.last_step = max(int(steps["step"].max()), -1 if state.last_step is None else state.last_step)

    def _add_event(self, state: RankSteps, kind: int, row: np.void, reader: RingReader) -> None:
        values = row["values"].tolist()
        count = int(row["n_values"])
        if kind == wire.EventKind.LOSS and count:
            state.loss = values[0]
        elif kind == wire.EventKind.GRAD_NORM and count:
            state.grad_norm = values[0]
        elif kind == wire.EventKind.BATCH and count >= 2:
            state.samples = (state.samples or 0) + int(values[0])
            state.tokens = (state.tokens or 0) + int(values[1])
        elif kind == wire.EventKind.MEMORY and count >= 2:
            state.rss_bytes, state.device_bytes = int(values[0]), int(values[1])
        elif kind == wire.EventKind.EXCEPTION:
            state.exception = reader.hooks_table.string(int(row["name"])) or "exception of unknown type"
        elif kind == wire.EventKind.NOTE:
            text = reader.hooks_table.string(int(row["name"])) or f"note of code {int(row['code'])}"
            if text in state.notes or len(state.notes) < MAX_NOTES:
                state.notes[text] += 1
