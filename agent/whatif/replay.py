"""When every step would have ended, had some of its operations taken their ideal time.

    Steps + Graph -> work (recorded seconds of each operation without its waits)
                  -> ideal (one time per type) -> replay(choices) -> step seconds [choice, step]

The work of an operation is its duration; of operations that meet others, the time from the last one's start to its own
end. Ideal is the same for all workers and steps: the mean for compute, the median for communication, whose rare long
times are somebody else's fault. All choices, steps and replicas are replayed at once: an operation of the graph is one
array of them, so the cost is that of walking the graph once per block of choices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.whatif.graph import Graph
from ranksight.agent.whatif.operations import CODE, Floats, Ints, OpType, Steps

Choice = NDArray[np.bool_]  # [key, dp]: which operations keep their recorded time; the others are ideal

_MEAN = {OpType.FORWARD, OpType.BACKWARD, OpType.GC, OpType.OPTIMIZER}
_BLOCK_BYTES = 128 << 20


def types(steps: Steps) -> Ints:
    """The type's code of each key."""
    return steps.operations.type[steps.grid[:, 0, 0]]


def stages(steps: Steps) -> Ints:
    return steps.operations.stage[steps.grid[:, 0, 0]]


def work(steps: Steps, graph: Graph) -> Floats:
    """Seconds [key, step, dp] that each operation needed once all that take part had started."""
    start, end = steps.operations.start[steps.grid], steps.operations.end[steps.grid]
    seconds = end - start
    for meeting in graph.meetings:
        if len(meeting.keys) > 1 or meeting.over_dp:
            keys = list(meeting.keys)
            last = start[keys].max(axis=0)
            if meeting.over_dp:
                last = last.max(axis=-1, keepdims=True)
            seconds[keys] = np.maximum(end[keys] - last, 0.0)  # a send may return before its receive has started
    return seconds


def ideal(steps: Steps, work_seconds: Floats) -> Floats:
    """Seconds [key] of each operation in a job without stragglers."""
    code = types(steps)
    found = np.empty(len(code))
    for type_ in np.unique(code):
        middle = np.mean if type_ in {CODE[mean] for mean in _MEAN} else np.median
        found[code == type_] = middle(work_seconds[code == type_])
    return found


def recorded(steps: Steps) -> Floats:
    """Seconds [step] from the first start to the last end, as recorded."""
    start, end = steps.operations.start[steps.grid], steps.operations.end[steps.grid]
    return np.asarray(end.max(axis=(0, 2)) - start.min(axis=(0, 2)))


def replay(graph: Graph, work_seconds: Floats, ideal_seconds: Floats, choices: list[Choice]) -> Floats:
    """Seconds [choice, step] of each step when it is replayed without delays between its operations."""
    keys, steps, dp_size = work_seconds.shape
    size = max(1, _BLOCK_BYTES // (8 * keys * steps * dp_size))
    blocks = [np.stack(choices[at : at + size]) for at in range(0, len(choices), size)]
    return np.concatenate([_replay_block(graph, work_seconds, ideal_seconds, block) for block in blocks])


def _replay_block(graph: Graph, work_seconds: Floats, ideal_seconds: Floats, choices: NDArray[np.bool_]) -> Floats:
    keys, steps, dp_size = work_seconds.shape
    ends = np.zeros((keys, len(choices), steps, dp_size))
    origin = np.zeros((len(choices), steps, dp_size))
    for meeting in graph.meetings:
        met = origin
        for before in _all_before(graph, meeting.keys):
            met = np.maximum(met, ends[before])
        if meeting.over_dp:
            met = met.max(axis=-1, keepdims=True)
        for key in meeting.keys:
            kept = choices[:, key, np.newaxis, :]
            ends[key] = met + np.where(kept, work_seconds[key], ideal_seconds[key])
    return np.asarray(ends.max(axis=(0, 3)))


def _all_before(graph: Graph, keys: tuple[int, ...]) -> Iterator[int]:
    # Nothing delays a start after what it waits for, so the last start of a meeting is the last end before any of it.
    for key in keys:
        yield from graph.after[key]
