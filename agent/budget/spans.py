"""From the records of one rank to the spans that claim its time. Pure.

    collectives  -> blocked     when the caller could do nothing else: in a call, or in the wait for its result
    + latest     -> wait until the last member came, transfer from then on
    events       -> phases, pipeline actions, garbage collections

A synchronous call without a recorded wait blocks until completion. An asynchronous one blocks only while somebody waits
for it; a wait that leaves no trace (C++ code) can't be told from computing. A collection of garbage is a pause wherever it
happens. Point-to-point operations of a pipeline stage are told from others: to wait in them is the bubble.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.reading.slots import Rows
from ranksight.hooks import wire
from ranksight.hooks.wire import Action, EventKind, Phase

Ints = NDArray[np.int64]

OPERATION = np.dtype(
    [
        ("enter", "i8"),
        ("begin", "i8"),  # of the blocked span
        ("end", "i8"),
        ("latest", "i8"),  # when the last member came; 0: not known
        ("axis", "i4"),
        ("stage", "?"),  # a send or receive of a pipeline stage
    ]
)
_ASYNC = int(wire.CollectiveFlag.ASYNC)
_IS_P2P = np.zeros(1 << 16, bool)
_IS_P2P[list(wire.P2P_OPS)] = True


class Work(IntEnum):
    """What a rank does when it is not in a collective, in order of precedence."""

    CHECKPOINT = 0
    LONG = 1  # evaluation, load, compile, partition, start-up: marked, and no part of training
    PAUSE = 2
    DATA = 3
    FORWARD = 4
    BACKWARD = 5
    OPTIMIZER = 6


_PHASES = {
    Phase.CHECKPOINT: Work.CHECKPOINT, Phase.EVALUATION: Work.LONG, Phase.LOAD: Work.LONG, Phase.COMPILE: Work.LONG,
    Phase.PARTITION: Work.LONG, Phase.STARTUP: Work.LONG, Phase.DATA: Work.DATA, Phase.FORWARD: Work.FORWARD,
    Phase.BACKWARD: Work.BACKWARD, Phase.OPTIMIZER: Work.OPTIMIZER,
}  # fmt: skip
_ACTIONS = {
    Action.FORWARD: Work.FORWARD, Action.BACKWARD: Work.BACKWARD, Action.INPUT_GRAD: Work.BACKWARD,
    Action.WEIGHT_GRAD: Work.BACKWARD,
}  # fmt: skip
_NONE = -1


def _table(codes: dict[Phase, Work] | dict[Action, Work]) -> Ints:
    table = np.full(64, _NONE)
    for code, work in codes.items():
        table[code] = work
    return table


_PHASE_TABLE, _ACTION_TABLE = _table(_PHASES), _table(_ACTIONS)


def operations(rows: Rows, axis: Ints, thread: int) -> NDArray[np.void]:
    """The operations that block the training thread (its native id is `thread`, 0 while unknown)."""
    enter, wait_end = rows["enqueue_ns"], rows["wait_end_ns"]
    asynchronous, seen = (rows["flags"] & _ASYNC) != 0, wait_end > 0
    found = np.zeros(len(rows), OPERATION)
    found["enter"], found["axis"] = enter, axis
    found["begin"] = np.where(asynchronous, rows["wait_begin_ns"], enter)
    until = np.where(seen, wait_end, np.where(asynchronous, 0, rows["complete_ns"]))
    found["end"] = np.where(asynchronous, until, np.maximum(until, rows["return_ns"]))
    found["stage"] = _IS_P2P[rows["op"]] & (rows["stage"] > 0)
    # Nothing says on which thread a result is waited for; a call on another thread does not block this one.
    kept: NDArray[np.void] = found[(found["end"] > found["begin"]) & (asynchronous | (rows["thread"] == thread) | (thread == 0))]
    return kept


def work(events: Rows) -> tuple[Ints, Ints, Ints]:
    """Begin, end and Work of the spans among the events of a rank."""
    kind, code = events["kind"], np.minimum(events["code"], 63)
    claim = np.full(len(events), _NONE)
    claim = np.where(kind == EventKind.PHASE, _PHASE_TABLE[code], claim)
    claim = np.where(kind == EventKind.PIPELINE, _ACTION_TABLE[code], claim)
    claim[kind == EventKind.GC] = Work.PAUSE
    claim[kind == EventKind.DATA] = Work.DATA
    chosen = (claim != _NONE) & (events["end_ns"] > events["begin_ns"])
    return events["begin_ns"][chosen], events["end_ns"][chosen], claim[chosen]
