"""Every moment of a step goes to one claim: a sweep over spans that may overlap. Pure: arrays in, arrays out.

    spans (begin, end, claim), steps (begin, end)  -> seconds [steps, claims + 1]

Claims are numbered by precedence: where several spans cover a moment, the lowest number has it; what none covers is in
the last column. So a row adds up to the length of its step, whatever the spans are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def partition(step_begin: Ints, step_end: Ints, begin: Ints, end: Ints, claim: Ints, claims: int) -> Floats:
    """Seconds of each step by claim; times in nanoseconds. Steps are in order and do not overlap; spans are in any order.

    A span that ends before it begins covers nothing.
    """
    if not len(step_begin):
        return np.zeros((0, claims + 1))
    good = (end > begin) & (end > step_begin[0]) & (begin < step_end[-1])
    begin, end, claim = begin[good], end[good], claim[good]
    edges = np.unique(np.concatenate((step_begin, step_end, begin, end)))
    holder = np.full(len(edges) - 1, claims)
    first, last = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    for number in np.unique(claim)[::-1].tolist():
        mine = claim == number
        change = np.bincount(first[mine], minlength=len(edges)) - np.bincount(last[mine], minlength=len(edges))
        holder[np.cumsum(change)[:-1] > 0] = number
    step = np.searchsorted(step_begin, edges[:-1], side="right") - 1
    inside = (step >= 0) & (edges[:-1] < step_end[np.maximum(step, 0)])
    place = step[inside] * (claims + 1) + holder[inside]
    lengths = np.diff(edges)[inside] / 1e9
    seconds = np.bincount(place, weights=lengths, minlength=len(step_begin) * (claims + 1))
    return seconds.reshape(len(step_begin), claims + 1).astype(np.float64)
