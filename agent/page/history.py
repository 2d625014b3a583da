"""Step time, loss and gradient norm over the whole run, at most MAX_POINTS points however long it gets.

    ended events of all ranks -> History.add -> one row per `width` steps: sum, count and maximum over ranks and steps
    a run that outgrows the rows: neighbours are added together, `width` doubles
    report.json <- {"history": {"width", "steps", "ranks", "seconds", "loss", "grad_norm"}}

A point without a value is null. The maximum is kept beside the mean, so a spike of one step shows in a run of a million.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.parts import Part, Surroundings
from ranksight.hooks import wire

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer, Source
    from ranksight.agent.reading.reader import Batch

MAX_POINTS = 512

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Curve:
    """One quantity: what was added per row."""

    sums: Floats = field(default_factory=lambda: np.zeros(MAX_POINTS))
    counts: Ints = field(default_factory=lambda: np.zeros(MAX_POINTS, np.int64))
    maxima: Floats = field(default_factory=lambda: np.full(MAX_POINTS, -np.inf))
    nonfinite: Ints = field(default_factory=lambda: np.zeros(MAX_POINTS, np.int64))

    def add(self, rows: Ints, values: Floats) -> None:
        finite = np.isfinite(values)
        np.add.at(self.nonfinite, rows[~finite], 1)
        rows, values = rows[finite], values[finite]
        np.add.at(self.sums, rows, values)
        np.add.at(self.counts, rows, 1)
        np.maximum.at(self.maxima, rows, values)

    def halve(self) -> None:
        """Add neighbouring rows together."""
        empty = np.zeros(MAX_POINTS // 2)
        self.sums = np.concatenate([self.sums[::2] + self.sums[1::2], empty])
        self.counts = np.concatenate([self.counts[::2] + self.counts[1::2], empty.astype(np.int64)])
        self.nonfinite = np.concatenate([self.nonfinite[::2] + self.nonfinite[1::2], empty.astype(np.int64)])
        self.maxima = np.concatenate([np.maximum(self.maxima[::2], self.maxima[1::2]), empty - np.inf])

    def to_json(self, used: Ints) -> dict[str, list[float | None]] | None:
        """Mean, maximum and number of non-finite values of the rows in use; None when there never was a value."""
        counts = self.counts[used]
        if not counts.any() and not self.nonfinite[used].any():
            return None
        known = counts > 0
        means = self.sums[used] / np.maximum(counts, 1)
        return {
            "mean": [value if there else None for value, there in zip(means.tolist(), known.tolist(), strict=True)],
            "max": [
                value if there else None
                for value, there in zip(self.maxima[used].tolist(), known.tolist(), strict=True)
            ],
            "nonfinite": self.nonfinite[used].tolist(),
        }


class History(Part):
    """The curves of one host's ranks; loss and norm are means over the ranks that report them."""

    def __init__(self, _: Surroundings | None = None) -> None:
        self.width = 1
        self._first: int | None = None
        self._seconds, self._loss, self._grad_norm = _Curve(), _Curve(), _Curve()
        self._ranks: set[int] = set()

    def add(self, source: Source, batch: Batch) -> None:
        """Count step spans, losses and norms of one ring."""
        events = batch.events
        if not len(events):
            return
        kinds, steps = events["kind"], events["step"].astype(np.int64)
        seconds = (events["end_ns"].astype(np.int64) - events["begin_ns"].astype(np.int64)) / 1e9
        said = (steps >= 0) & (events["n_values"] > 0)
        for curve, chosen, values in (
            (self._seconds, (steps >= 0) & (kinds == wire.EventKind.STEP) & (seconds > 0), seconds),
            (self._loss, said & (kinds == wire.EventKind.LOSS), events["values"][:, 0]),
            (self._grad_norm, said & (kinds == wire.EventKind.GRAD_NORM), events["values"][:, 0]),
        ):
            if chosen.any():
                curve.add(self._rows(steps[chosen]), values[chosen])
                self._ranks.add(source.rank)

    def sections(self, observer: Observer) -> dict[str, Any]:
        """The curves so far."""
        curves = (self._seconds, self._loss, self._grad_norm)
        used = np.flatnonzero(np.any([(curve.counts > 0) | (curve.nonfinite > 0) for curve in curves], axis=0))
        first = self._first or 0
        return {
            "history": {
                "width": self.width,
                "steps": (first + used * self.width).tolist(),
                "ranks": len(self._ranks),
                "seconds": self._seconds.to_json(used),
                "loss": self._loss.to_json(used),
                "grad_norm": self._grad_norm.to_json(used),
            }
        }

    def _rows(self, steps: Ints) -> Ints:
        """The row of each step; rows are drawn together until the last one fits."""
        if self._first is None:
            self._first = int(steps.min())
        # A rank that starts again begins at an earlier step: what lies before the first row counts to it.
        offsets = np.maximum(steps - self._first, 0)
        while int(offsets.max()) // self.width >= MAX_POINTS:
            for curve in (self._seconds, self._loss, self._grad_norm):
                curve.halve()
            self.width *= 2
        return offsets // self.width
