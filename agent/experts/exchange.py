"""From the all-to-alls of ranks to how long each one's experts worked, and on how many rows. No code of the user's.

    rows of all-to-alls with splits, one rank -> pairs_of -> PAIR: dispatch and combine, with the work between them
    pairs of all ranks of a step              -> whole    -> those of instances in which every member of the group was seen

Tokens go to the ranks of their experts in one all-to-all and come home in the next: the second has the splits of the
first, swapped. That identifies the pair. Between the end of the first and the call of the second a rank's experts work:
`seconds`. `rows` is what the first one brought.

The backward pass exchanges gradients in pairs of the same kind. Its time is expert time, its rows are no tokens: they
were counted in the forward pass. The same holds for a forward pass that is computed again within it (activation
checkpointing). `forward` tells them apart, by the phase of the record and by the pipeline's backward actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.reading.slots import Rows, pick
from ranksight.hooks import wire

PAIR = np.dtype(
    [
        ("group", "i8"),  # number in the ring, later in the registry
        ("seq", "i8"),  # of the dispatch
        ("step", "i8"),
        ("rank", "i8"),
        ("place", "i8"),  # which forward pair of its microbatch, -1 in the backward pass
        ("rows", "i8"),
        ("seconds", "f8"),
        ("forward", "?"),
    ]
)
Pairs = NDArray[np.void]
MOST_APART = 4  # sequence numbers between dispatch and combine; more means that records are missing
_WEIGHTS = np.random.default_rng(0).integers(1, 1 << 62, 1 << 16) | 1


def pairs_of(
    rows: Rows, splits: Mapping[int, NDArray[Any]], backward: Sequence[tuple[int, int]], rank: int
) -> tuple[Pairs, int]:
    """Pairs among a rank's all-to-alls with splits, and how many of them found no partner.

    `splits` are values beyond those of the slot by ticket, `backward` spans (begin, end) of the pipeline's backward.
    """
    rows = pick(rows, np.lexsort((rows["enqueue_ns"], rows["group"])))
    send, receive, received = _sums(rows, splits)
    group, seq, step = (rows[name].astype(np.int64) for name in ("group", "group_seq", "step"))
    first, second = slice(None, -1), slice(1, None)
    mirrored = (
        (group[first] == group[second]) & (step[first] == step[second])
        & (send[second] == receive[first]) & (receive[second] == send[first])
        & (seq[second] > seq[first]) & (seq[second] - seq[first] <= MOST_APART)
    )  # fmt: skip
    at = np.array(_greedy(mirrored.tolist()), np.int64)
    found = np.zeros(len(at), PAIR)
    back = (rows["phase"] == wire.Phase.BACKWARD) | _within(rows["enqueue_ns"], backward)
    released = np.maximum(rows["complete_ns"], rows["wait_end_ns"])
    found["group"], found["seq"], found["step"], found["rank"] = group[at], seq[at], step[at], rank
    found["rows"], found["forward"] = received[at], ~back[at]
    found["seconds"] = np.maximum(rows["enqueue_ns"][at + 1] - released[at], 0) / 1e9
    found["place"] = _places(found, rows["microbatch"][at])
    return found, len(rows) - 2 * len(at)


def whole(pairs: Pairs, sizes: NDArray[np.int64]) -> tuple[Pairs, NDArray[np.int64]]:
    """Pairs of instances with all members of the group, ordered by instance, and the first of each.

    `pairs` carry numbers of the registry, `sizes` are those of its groups.
    """
    ordered = pairs[np.lexsort((pairs["rank"], pairs["seq"], pairs["group"]))]
    if not len(ordered):
        return ordered, np.empty(0, np.int64)
    new = np.ones(len(ordered), bool)
    new[1:] = (np.diff(ordered["group"]) != 0) | (np.diff(ordered["seq"]) != 0)
    starts = np.flatnonzero(new)
    counts = np.diff(starts, append=len(ordered))
    complete = (counts == sizes[ordered["group"][starts]]) & (counts > 1)
    kept = counts[complete]
    return ordered[np.repeat(complete, counts)], np.cumsum(kept) - kept


def _sums(rows: Rows, splits: Mapping[int, NDArray[Any]]) -> tuple[NDArray[np.int64], ...]:
    """Per row a hash of its send splits, one of its receive splits, and the rows received."""
    send, receive, received = (np.zeros(len(rows), np.int64) for _ in range(3))
    shapes = np.stack([rows[name].astype(np.int64) for name in ("n_dims", "n_send", "n_recv")], axis=1)
    for shape in np.unique(shapes, axis=0):
        dims, n_send, n_recv = shape.tolist()
        at = np.flatnonzero((shapes == shape).all(axis=1))
        values = rows["values"][at]
        if dims + n_send + n_recv > values.shape[1]:
            nothing = np.zeros(dims + n_send + n_recv, np.int64)
            rest = [splits.get(ticket, nothing) for ticket in rows["ticket"][at].tolist()]
            values = np.stack([np.concatenate((v, r))[: len(nothing)] for v, r in zip(values, rest, strict=True)])
        sent, got = values[:, dims : dims + n_send], values[:, dims + n_send : dims + n_send + n_recv]
        send[at], receive[at] = sent @ _WEIGHTS[:n_send], got @ _WEIGHTS[:n_recv]
        received[at] = got.sum(axis=1)
    return send, receive, received


def _greedy(mirrored: list[bool]) -> list[int]:
    """First elements of pairs, each row in one pair: equal splits would make a combine pair with the next dispatch."""
    found, taken = [], -1
    for at, fits in enumerate(mirrored):
        if fits and at != taken:
            found.append(at)
            taken = at + 1
    return found


def _within(at_ns: NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    if not spans:
        return np.zeros(len(at_ns), bool)
    begins, ends = np.array(sorted(spans), np.int64).T
    last = np.searchsorted(begins, at_ns, side="right") - 1
    return np.asarray((last >= 0) & (at_ns < ends[np.maximum(last, 0)]))


def _places(pairs: Pairs, microbatch: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Number of each forward pair within its step, group and microbatch, in the order of the calls."""
    places = np.full(len(pairs), -1, np.int64)
    counts: dict[tuple[int, int, int], int] = {}
    forward = np.flatnonzero(pairs["forward"]).tolist()
    keys = zip(
        pairs["step"][forward].tolist(), pairs["group"][forward].tolist(), microbatch[forward].tolist(), strict=True
    )
    for at, key in zip(forward, keys, strict=True):
        places[at] = counts.get(key, 0)
        counts[key] = places[at] + 1
    return places
