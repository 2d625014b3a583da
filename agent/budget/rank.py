"""The budget of one rank: holds its records until a step can be settled, then parts it.

    add (records), add_latest (joined operations)  -> settle(until)  -> StepParts: seconds by part, and by axis

A step is settled when it has ended long enough ago for the other ranks' records of its operations to be here. What a
rank was blocked in, without anybody knowing when the last member came (members on other hosts, dropped records), counts
as transfer and is added up as `unsplit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.budget import spans
from ranksight.agent.budget.partition import partition
from ranksight.agent.budget.spans import OPERATION, Work
from ranksight.agent.reading.slots import Rows
from ranksight.hooks.wire import EventKind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PARTS = ("data", "forward", "backward", "optimizer", "transfer", "wait", "bubble", "checkpoint", "pause", "other")
COMMUNICATION = ("wait", "bubble", "transfer")
_OF_WORK = {
    Work.CHECKPOINT: "checkpoint", Work.LONG: "other", Work.PAUSE: "pause", Work.DATA: "data", Work.FORWARD: "forward",
    Work.BACKWARD: "backward", Work.OPTIMIZER: "optimizer",
}  # fmt: skip
_ABOVE = 3  # works that go before communication: checkpoint, long, pause
_KINDS = 4  # of claims per axis: wait, bubble, transfer, and blocked without a split
MAX_PENDING = 1 << 17  # spans and operations of one rank; more means that no step ends


@dataclass(frozen=True, slots=True)
class StepParts:
    """Settled steps of one rank: seconds [steps, PARTS] and [steps, axes, COMMUNICATION]; each row of the first is a step."""

    steps: Ints
    begin_ns: Ints
    seconds: Floats
    by_axis: Floats
    marked: Floats  # [steps] of `other`: evaluation, load, compile, ...
    unsplit: Floats  # [steps] of `transfer`


class RankBudget:
    """What one process has recorded and no step has taken yet."""

    def __init__(self) -> None:
        self.thread = 0  # native id of the one that trains, 0 while unknown
        self._steps: list[tuple[int, int, int]] = []  # begin, end, number
        self._work: list[tuple[Ints, Ints, Ints]] = []
        self._operations: list[NDArray[np.void]] = []
        self._latest: list[tuple[Ints, Ints]] = []  # enter, when the last member came

    def add(self, collectives: Rows, axis: Ints, events: Rows) -> None:
        """Take the records of one poll; `axis` has the number of the axis of each collective."""
        if len(events):
            ended = events[(events["kind"] == EventKind.STEP) & (events["end_ns"] > events["begin_ns"])]
            if len(ended):
                self.thread = int(ended["thread"][-1])
                self._steps += zip(ended["begin_ns"].tolist(), ended["end_ns"].tolist(), ended["step"].tolist(), strict=True)
            self._work.append(spans.work(events))
        if len(collectives):
            self._operations.append(spans.operations(collectives, axis, self.thread))

    def add_latest(self, enter: Ints, latest: Ints) -> None:
        """Say for operations, by when they began here, when their last member came."""
        self._latest.append((enter, latest))

    def settle(self, until_ns: int, axes: int) -> StepParts | None:
        """The steps that had ended by `until_ns`, each once; None when there is none."""
        done = sorted(step for step in self._steps if step[1] <= until_ns)
        if not done:
            return None
        self._steps = [step for step in self._steps if step[1] > until_ns]
        begin, end, number = (np.array(column, np.int64) for column in zip(*done, strict=True))
        operations = self._matched()
        work = [np.concatenate(column) for column in zip(*self._work, strict=True)] if self._work else [np.empty(0, np.int64)] * 3
        claims = _ABOVE + _KINDS * axes
        starts, ends, claim = _claims(operations, axes)
        own = np.where(work[2] < _ABOVE, work[2], work[2] + _KINDS * axes)
        seconds = partition(
            begin, end, np.concatenate((starts, work[0])), np.concatenate((ends, work[1])), np.concatenate((claim, own)),
            claims + len(Work) - _ABOVE,
        )  # fmt: skip
        self._forget(int(end[-1]), operations, work)
        return _parted(number, begin, seconds, axes)

    def _matched(self) -> NDArray[np.void]:
        """All operations, with what is known of their last members."""
        operations = np.concatenate(self._operations) if self._operations else np.empty(0, OPERATION)
        if len(operations) and self._latest:
            operations = operations[np.argsort(operations["enter"])]
            enter = np.concatenate([pair[0] for pair in self._latest])
            latest = np.concatenate([pair[1] for pair in self._latest])
            at = np.minimum(np.searchsorted(operations["enter"], enter), len(operations) - 1)
            mine = operations["enter"][at] == enter
            operations["latest"][at[mine]] = latest[mine]
        return operations

    def _forget(self, before_ns: int, operations: NDArray[np.void], work: Sequence[Ints]) -> None:
        """Let go of what ended by then; the rest belongs to later steps. Bounded, whatever comes."""
        self._operations = [operations[operations["end"] > before_ns][-MAX_PENDING:]]
        later = work[1] > before_ns
        self._work = [(work[0][later][-MAX_PENDING:], work[1][later][-MAX_PENDING:], work[2][later][-MAX_PENDING:])]
        self._latest = []


def _claims(operations: NDArray[np.void], axes: int) -> tuple[Ints, Ints, Ints]:
    """Spans of communication: each operation until its last member came, then transfer; all waits go before transfers."""
    begin, end, axis = operations["begin"], operations["end"], operations["axis"].astype(np.int64)
    known = operations["latest"] > 0
    turn = np.where(known, np.clip(operations["latest"], begin, end), begin)
    waits = _ABOVE + np.where(operations["stage"], axes, 0) + axis
    rest = _ABOVE + np.where(known, 2 * axes, 3 * axes) + axis
    return np.concatenate((begin, turn)), np.concatenate((turn, end)), np.concatenate((waits, rest))


def _parted(steps: Ints, begin_ns: Ints, seconds: Floats, axes: int) -> StepParts:
    """Columns of claims to parts."""
    last = _ABOVE + _KINDS * axes
    by_kind = seconds[:, _ABOVE:last].reshape(len(steps), _KINDS, axes)
    unsplit = by_kind[:, 3]
    by_axis = np.stack((by_kind[:, 0], by_kind[:, 1], by_kind[:, 2] + unsplit), axis=2)
    parts = np.zeros((len(steps), len(PARTS)))
    for work, part in _OF_WORK.items():
        parts[:, PARTS.index(part)] += seconds[:, work if work < _ABOVE else last + work - _ABOVE]
    for number, part in enumerate(COMMUNICATION):
        parts[:, PARTS.index(part)] = by_axis[:, :, number].sum(axis=1)
    parts[:, PARTS.index("other")] += seconds[:, -1]
    return StepParts(steps, begin_ns, parts, by_axis, seconds[:, Work.LONG], unsplit.sum(axis=1))
