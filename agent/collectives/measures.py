"""What one instance of a collective says, from when its ranks came and left. Pure: numpy arrays in, arrays out.

Instances lie behind each other in flat arrays, one element per member; `starts` holds the first element of each.
For instance k with entries e_r and exits x_r (nanoseconds of one clock; results in seconds):

    skew     max e - min e
    wait_r   max e - e_r, but no longer than r stayed: the root of a broadcast leaves before the late ones come
    transfer min (x_r - max e), at least 0: everyone was there and the operation still ran
    culprit  argmax e: who came last and so waited least; the waits of the others are blamed on it

Bandwidth follows nccl-tests: `algbw = S / t`, `busbw = algbw * factor(op, n)` with n the size of the group. When the
ranks of an all-to-all move unequal amounts, S is the largest of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranksight.hooks import wire

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_TWICE = {"all_reduce", "all_reduce_coalesced"}
_ONCE = {
    "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_gather_into_tensor_coalesced",
    "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_to_all", "all_to_all_single",
    "gather", "scatter",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """Seconds per instance (skew, transfer) and per member (wait, blame); `last` is the culprit's element."""

    skew: Floats
    transfer: Floats
    last: Ints
    wait: Floats
    blame: Floats  # per instance: what the others waited for the culprit


def split(enter_ns: Ints, exit_ns: Ints, starts: Ints) -> Split:
    """Split instances whose members all have an entry and an exit. The first of several last arrivers is blamed."""
    counts = np.diff(starts, append=len(enter_ns))
    latest = np.maximum.reduceat(enter_ns, starts)
    latest_of_member = np.repeat(latest, counts)
    wait = np.minimum(latest_of_member - enter_ns, np.maximum(exit_ns - enter_ns, 0))
    transfer = np.maximum(np.minimum.reduceat(exit_ns - latest_of_member, starts), 0)
    # The first element at the maximum: everything else is pushed behind the end before taking the minimum.
    places = np.where(enter_ns == latest_of_member, np.arange(len(enter_ns)), len(enter_ns))
    return Split(
        skew=(latest - np.minimum.reduceat(enter_ns, starts)) / 1e9,
        transfer=transfer / 1e9,
        last=np.minimum.reduceat(places, starts),
        wait=wait / 1e9,
        blame=np.add.reduceat(wait, starts) / 1e9,
    )


def duration(enter_ns: Ints, exit_ns: Ints) -> Floats:
    """Seconds from the call to the completion; NaN while there is none."""
    return np.where(exit_ns > 0, np.maximum(exit_ns - enter_ns, 0) / 1e9, np.nan)


def exposed(
    enter_ns: Ints,
    return_ns: Ints,
    wait_begin_ns: Ints,
    wait_end_ns: Ints,
    complete_ns: Ints,
    asynchronous: NDArray[np.bool_],
) -> Floats:
    """Seconds for which the caller was blocked: in the call, and in the wait for its result.

    A synchronous call without a recorded wait blocks until completion. An asynchronous one without a recorded wait is
    unknown (NaN): its waiter may be C++ code that leaves no trace.
    """
    in_call = np.maximum(return_ns - enter_ns, 0)
    # A wait inside the call (the call itself waits) is part of the time until it returned.
    in_wait = np.maximum(wait_end_ns - np.maximum(wait_begin_ns, return_ns), 0)
    until_complete = np.maximum(np.maximum(complete_ns, return_ns) - enter_ns, 0)
    seen = wait_end_ns > 0
    blocked = np.where(seen, in_call + in_wait, np.where(asynchronous, np.nan, until_complete)) / 1e9
    return np.where((return_ns > 0) & (seen | asynchronous | (complete_ns > 0)), blocked, np.nan)


def bus_factor(op: str, group_size: int) -> float:
    """Ratio busbw / algbw of nccl-tests for a group of n ranks; 1 for broadcast, reduce, send and receive."""
    if group_size < 1:
        raise ValueError(f"a group has at least one rank, not {group_size}")
    if op in _TWICE:
        return 2 * (group_size - 1) / group_size
    return (group_size - 1) / group_size if op in _ONCE else 1.0


_GATHERS = np.zeros(len(wire.OPS) + 1)
_GATHERS[[code for code, name in wire.OP_NAMES.items() if name in _TWICE]] = 2
_GATHERS[[code for code, name in wire.OP_NAMES.items() if name in _ONCE]] = 1


def bus_factors(op_codes: NDArray[np.integer], group_sizes: NDArray[np.integer]) -> Floats:
    """`bus_factor` of many operations by their wire codes."""
    times = _GATHERS[op_codes]
    return np.where(times > 0, times * (group_sizes - 1) / np.maximum(group_sizes, 1), 1.0)
