"""What the slow-rank and numerics detectors look at: the last steps of all ranks as arrays.

    collectives of one rank -> busy_seconds -> StepWindow -> detectors.slow, detectors.numerics

`busy` is the time in which a rank was not waiting inside a collective. It, and not the duration of a phase, tells
ranks apart: synchronous training makes everyone's phases equally long, because all wait for the last. It is found per
rank, without a join: walk the operations in the order of their calls, and add up the gaps between the moment the rank
was last released and the moment it came back with the next call. A rank that waits in one group for a rank that is
late in another has no busy time to show for it, so the chain of waits leads to the one that was working.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Busy(NamedTuple):
    """Per distinct step, ascending: seconds out of collectives, and seconds in the longest single such gap."""

    steps: Ints
    seconds: Floats
    longest: Floats


def busy_seconds(step: Ints, enqueue_ns: Ints, complete_ns: Ints, released_before_ns: int | None = None) -> Busy:
    """Time a rank spent out of collectives, per step, from its operations in call order.

    An operation still in flight or without a known end (`complete_ns` 0) releases nobody. `released_before_ns` is when
    the rank was released before the first operation given; None leaves the first gap out. A gap belongs to the step of
    the operation that ends it.
    """
    if len(step) == 0:
        return Busy(np.empty(0, np.int64), np.empty(0), np.empty(0))
    first = enqueue_ns[0] if released_before_ns is None else released_before_ns
    released = np.maximum.accumulate(np.concatenate(([first], np.maximum(complete_ns, enqueue_ns))))[:-1]
    gap = np.maximum(enqueue_ns - released, 0) / 1e9
    steps, where = np.unique(step, return_inverse=True)
    longest = np.zeros(len(steps))
    np.maximum.at(longest, where, gap)
    return Busy(steps, np.bincount(where, weights=gap, minlength=len(steps)).astype(np.float64), longest)


def _nan(shape: tuple[int, int]) -> Floats:
    return np.full(shape, np.nan)


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The last S steps of R ranks. Arrays are [S, R], seconds; NaN is unknown, never zero.

    peers: for each rank the label of the ranks it can fairly be compared with: those that do the same work, such as
    the data-parallel replicas of one pipeline stage.
    """

    steps: Ints  # [S]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # [R]
    peers: tuple[int, ...]  # [R]
    duration: Floats
    busy: Floats
    data: Floats
    gc: Floats
    checkpoint: Floats
    cpu: Floats  # CPU seconds of the process
    transfer: Floats  # [S, R] seconds in which all had arrived and the operations still ran
    received_rows: Floats  # rows received in uneven all-to-alls
    elements: Floats  # elements in the input of the model
    loss: Floats
    grad_norm: Floats
    rss_bytes: Floats
    nonfinite: NDArray[np.bool_]  # the rank's own loss was inf or nan
    nonfinite_norm: NDArray[np.bool_]  # its gradient norm was: often after a reduction, so on all ranks
    exempt: NDArray[np.bool_]  # [S] start-up, compile, evaluation, ...

    @property
    def shape(self) -> tuple[int, int]:
        """(steps, ranks)."""
        return len(self.steps), len(self.ranks)

    @classmethod
    def of(cls, steps: Ints, ranks: tuple[int, ...], **arrays: object) -> StepWindow:
        """A window in which everything that is not given is unknown; for the fold and for tests."""
        shape = (len(steps), len(ranks))
        values: dict[str, object] = {
            name: _nan(shape)
            for name in (
                "duration", "busy", "data", "gc", "checkpoint", "cpu", "transfer", "received_rows",
                "elements", "loss", "grad_norm", "rss_bytes",
            )
        }  # fmt: skip
        values |= {"hosts": ("",) * len(ranks), "peers": (0,) * len(ranks), "exempt": np.zeros(len(steps), bool)}
        values |= {"nonfinite": np.zeros(shape, bool), "nonfinite_norm": np.zeros(shape, bool)}
        return cls(steps, ranks, **(values | arrays))  # type: ignore[arg-type]


def excess(values: Floats, peers: tuple[int, ...]) -> Floats:
    """How much each rank's value exceeds the median of its peers without itself, [S, R]; NaN where it has none."""
    out = np.full(values.shape, np.nan)
    labels = np.asarray(peers)
    for label in np.unique(labels):
        columns = np.flatnonzero(labels == label)
        for row_mask, known in _by_known_columns(values[:, columns]):
            if known.sum() > 1:
                rows = np.flatnonzero(row_mask)[:, None]
                block = values[rows, columns[known]]
                out[rows, columns[known]] = block - median_of_others(block)
    return out


def _by_known_columns(values: Floats) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Groups of rows whose known (not NaN) columns are the same: mask of rows, mask of columns."""
    known = ~np.isnan(values)
    if (known == known[:1]).all():  # nearly always, and np.unique is slow
        yield np.ones(len(values), bool), np.asarray(known[:1].any(axis=0))
        return
    patterns, where = np.unique(known, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        yield where.reshape(-1) == number, pattern


def median_of_others(values: Floats) -> Floats:
    """For each element of a row the median of the row without it.

    Which sorted values are in the middle depends only on the half that the element is in, so one sort serves the row.
    """
    count = values.shape[1] - 1
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(values.shape[1])[None, :].repeat(len(values), axis=0), axis=1)

    def remaining(k: int) -> Floats:
        return np.where(place > k, ordered[:, [k]], ordered[:, [k + 1]])

    return remaining(count // 2) if count % 2 else (remaining(count // 2 - 1) + remaining(count // 2)) / 2
