"""What the ranks say of their checkpoints, steps and data: enough to judge a resume and to find the data of a step.

    CHECKPOINT events -> written (by path), writes (by step)
    BATCH, STEP events -> cursors (by step), first step of each generation
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from ranksight.agent.detectors.checkpoint import Write
from ranksight.agent.reading.reader import RingReader
from ranksight.agent.reading.slots import Rows
from ranksight.agent.recovery.checkpoints import Written
from ranksight.hooks import wire

MAX_PATHS = 256  # newest paths kept; retention has removed older ones long since
MAX_STEPS = 8192  # newest steps whose data cursor is kept
ALONE_RATIO = 2.0  # a rank is named when it wrote so many times longer than the median rank


@dataclass(slots=True)
class Generation:
    """One start of the job (torchrun counts them): its first and last step, and where their data began."""

    first_step: int | None = None
    last_step: int | None = None
    cursors: dict[int, int] = field(default_factory=dict)


class History:
    """Folded from the events of all ranks."""

    def __init__(self) -> None:
        self.written: dict[Path, Written] = {}
        self.generations: dict[int, Generation] = {}
        self._seconds: dict[int, dict[int, float]] = {}  # steps done -> rank -> seconds of writing

    def add(self, rank: int, reader: RingReader, events: Rows) -> None:
        """Take in ended events of one rank."""
        kinds = events["kind"]
        for at in np.flatnonzero(kinds == wire.EventKind.CHECKPOINT).tolist():
            self._add_checkpoint(rank, reader, events[at])
        # Every rank says the cursor of the job, so one rank is enough; the first of the host.
        if reader["local_rank"] <= 0:
            mine = self.generations.setdefault(reader["generation"], Generation())
            self._add_steps(mine, events["step"][kinds == wire.EventKind.STEP])
            self._add_cursors(mine, events[(kinds == wire.EventKind.BATCH) & (events["n_values"] >= 3)])

    def writes(self) -> list[Write]:
        """Checkpoints that have been written, in the order of their steps."""
        return [_write(step, self._seconds[step]) for step in sorted(self._seconds)]

    def cursors(self) -> dict[int, int]:
        """Data cursors by step; the newest generation that did a step counts."""
        return {
            step: cursor for number in sorted(self.generations) for step, cursor in self.generations[number].cursors.items()
        }

    def _add_checkpoint(self, rank: int, reader: RingReader, row: np.void) -> None:
        begin, end, step = int(row["begin_ns"]), int(row["end_ns"]), int(row["step"])
        self._seconds.setdefault(step, {})[rank] = (end - begin) / 1e9
        name = reader.hooks_table.string(int(row["name"]))
        if not name:
            return
        size = int(row["values"][1]) if row["n_values"] > 1 else None
        path = Path(name)
        self.written.pop(path, None)
        self.written[path] = Written(path, step, begin, end, size)
        while len(self.written) > MAX_PATHS:
            del self.written[next(iter(self.written))]

    @staticmethod
    def _add_steps(mine: Generation, steps: Rows) -> None:
        if len(steps):
            first, last = int(steps.min()), int(steps.max())
            mine.first_step = first if mine.first_step is None else min(first, mine.first_step)
            mine.last_step = last if mine.last_step is None else max(last, mine.last_step)

    @staticmethod
    def _add_cursors(mine: Generation, rows: Rows) -> None:
        for step, cursor in zip(rows["step"].tolist(), rows["values"][:, 2].tolist(), strict=True):
            if cursor == cursor and step not in mine.cursors:  # noqa: PLR0124 - nan: the trainer has not said it
                mine.cursors[step] = int(cursor)
        while len(mine.cursors) > MAX_STEPS:
            del mine.cursors[next(iter(mine.cursors))]


def _write(step: int, seconds: dict[int, float]) -> Write:
    rank = max(seconds, key=seconds.__getitem__)
    alone = len(seconds) > 1 and seconds[rank] > ALONE_RATIO * median(seconds.values())
    return Write(step, seconds[rank], rank if alone else None)
