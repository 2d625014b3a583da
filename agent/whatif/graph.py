"""What each operation of a step waits for.

The graph is built once, from the first step and replica, because steps and replicas run the same program:

    compute      one after the other, as recorded
    send         after the compute whose result it carries
    receive      posted when the previous compute of its direction ends; the compute that it feeds waits for it
    all four     sends and receives of a direction each run on a stream of their own, in order
    data axis    parameter gathers and gradient reductions share a stream; a chunk's first forward needs its parameters
    tail         after the last compute: gc, layernorm, embedding, gradient reductions, clip, optimizer; reductions that
                 overlap with compute come after their chunk's last backward instead

Operations that meet others (`Meeting`) end together: a send with its receive, the collectives of the data axis with the
same operation of every replica, the embedding gradients of first and last stage, the clip with the whole job. The clip
makes all workers wait for each other, so steps don't overlap and each is replayed from zero.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

from ranksight.agent.whatif.operations import TYPES, OpType, Steps, TraceError

CLOCK_SECONDS = 5e-5  # by which the clocks of two streams of one worker may differ


class Node(NamedTuple):
    """One operation of the first replica and step. `key` is its place in the grid of `Steps`."""

    key: int
    type: OpType
    stage: int
    sequence: int
    chunk: int
    global_chunk: int
    microbatch: int
    start: float
    end: float


class Meeting(NamedTuple):
    """Operations that begin to make progress when the last of them has started; a lone one meets nobody."""

    keys: tuple[int, ...]
    over_dp: bool  # also with the same operations of the other replicas


@dataclass(frozen=True, slots=True)
class Graph:
    """Meetings in an order in which they can be replayed, and per key the keys that it waits for."""

    meetings: tuple[Meeting, ...]
    after: tuple[tuple[int, ...], ...]


class _Direction(NamedTuple):
    compute: OpType
    send: OpType
    receive: OpType
    stride: int  # from a chunk to the next one of this direction


_DIRECTIONS = (
    _Direction(OpType.FORWARD, OpType.FORWARD_SEND, OpType.FORWARD_RECV, 1),
    _Direction(OpType.BACKWARD, OpType.BACKWARD_SEND, OpType.BACKWARD_RECV, -1),
)
_COMPUTE = (OpType.FORWARD, OpType.BACKWARD)
_P2P = tuple(type_ for direction in _DIRECTIONS for type_ in (direction.send, direction.receive))
_OVER_DP = {OpType.PARAMS_GATHER, OpType.GRADS_REDUCE, OpType.SEPARATE_GRADS, OpType.CLIP}

_Edges = defaultdict[int, set[int]]
_Carried = dict[tuple[OpType, int, int], int]  # (send or receive, sender's chunk, microbatch) -> key


class _Stage:
    """The operations of one stage, by type and in the order in which they started."""

    def __init__(self, index: int, nodes: list[Node]) -> None:
        self.index = index
        self._by_type: defaultdict[OpType, list[Node]] = defaultdict(list)
        for node in sorted(nodes, key=lambda node: (node.start, node.sequence, node.type)):
            self._by_type[node.type].append(node)
        self.compute = self.of(*_COMPUTE)
        if not self.compute:
            raise TraceError(f"stage {index} has neither {' nor '.join(_COMPUTE)}; expected both for every microbatch")

    def of(self, *types: OpType) -> list[Node]:
        found = [node for type_ in types for node in self._by_type[type_]]
        return sorted(found, key=lambda node: (node.start, node.sequence, node.type))


def build(steps: Steps) -> Graph:
    """Raises TraceError where sends and receives don't fit together or operations wait for each other in a circle."""
    nodes = _nodes(steps)
    stages = [
        _Stage(stage, [node for node in nodes if node.stage == stage]) for stage in range(len(steps.ranks))
    ]
    last_chunk = max(node.global_chunk for node in nodes)
    after: _Edges = defaultdict(set)
    carried: _Carried = {}
    for stage in stages:
        _chain(after, stage.compute)
        for type_ in _P2P:
            _chain(after, stage.of(type_))
        for direction in _DIRECTIONS:
            _carry(after, carried, stage, direction, last_chunk)
        _post_first_backward(after, stage)
        _data_axis(after, stage)
        _tail(after, stage)
    meetings = _meetings(nodes, carried)
    return Graph(_in_order(meetings, after, nodes), tuple(tuple(sorted(after[key])) for key in range(len(nodes))))


def _nodes(steps: Steps) -> list[Node]:
    rows = steps.operations.at(steps.grid[:, 0, 0])
    columns = (rows.stage, rows.sequence, rows.chunk, rows.global_chunk, rows.microbatch, rows.start, rows.end)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return [Node(key, TYPES[type_], *row) for key, (type_, row) in enumerate(zip(rows.type.tolist(), values, strict=True))]


def _chain(after: _Edges, nodes: list[Node]) -> None:
    for before, node in pairwise(nodes):
        after[node.key].add(before.key)


def _carry(after: _Edges, carried: _Carried, stage: _Stage, direction: _Direction, last_chunk: int) -> None:
    """Tie the sends and receives of a direction to the computes whose data they move."""
    computes = stage.of(direction.compute)
    place = {compute.key: index for index, compute in enumerate(computes)}
    for compute, receive in _pairs(stage, direction, direction.receive, computes):
        after[compute.key].add(receive.key)
        if place[compute.key]:
            after[receive.key].add(computes[place[compute.key] - 1].key)
        sender = compute.global_chunk - direction.stride
        if 0 <= sender <= last_chunk:
            carried[direction.receive, sender, compute.microbatch] = receive.key
    for compute, send in _pairs(stage, direction, direction.send, computes):
        after[send.key].add(compute.key)
        if 0 <= compute.global_chunk + direction.stride <= last_chunk:
            carried[direction.send, compute.global_chunk, compute.microbatch] = send.key


def _pairs(stage: _Stage, direction: _Direction, type_: OpType, computes: list[Node]) -> list[tuple[Node, Node]]:
    """Computes with their sends, or with their receives.

    Foreign profilers also note calls that moved nothing: receives after the last compute and sends before the first.
    With several chunks the first receive of the model can be missing.
    """
    if not computes:
        return []
    receives = type_ == direction.receive
    if receives:
        moved = [node for node in stage.of(type_) if node.start <= computes[-1].start + CLOCK_SECONDS]
    else:
        first_end = min(node.end for node in computes)
        moved = [node for node in stage.of(type_) if node.end >= first_end - CLOCK_SECONDS]
    if len(moved) in {0, len(computes)}:
        return list(zip(computes, moved, strict=False))
    if receives and len(moved) == len(computes) - 1:
        return list(zip(computes[1:], moved, strict=True))
    raise TraceError(
        f"stage {stage.index} has {len(moved)} {type_} for {len(computes)} {direction.compute}; expected one each, or none"
    )


def _post_first_backward(after: _Edges, stage: _Stage) -> None:
    """The first gradient is waited for while the last forward before it runs, not earlier."""
    first = next((i for i, node in enumerate(stage.compute) if node.type == OpType.BACKWARD), 0)
    for type_ in (OpType.BACKWARD_RECV, OpType.BACKWARD_SEND):
        for node in stage.of(type_)[:1]:
            if first >= 2:
                after[node.key].add(stage.compute[first - 2].key)


def _data_axis(after: _Edges, stage: _Stage) -> None:
    _chain(after, stage.of(OpType.PARAMS_GATHER, OpType.GRADS_REDUCE))
    gathers = {node.chunk: node for node in stage.of(OpType.PARAMS_GATHER)}  # the last one of each chunk
    for compute in stage.of(OpType.FORWARD):
        gather = gathers.pop(compute.chunk, None)
        if gather:
            after[compute.key].add(gather.key)


def _tail(after: _Edges, stage: _Stage) -> None:
    reduces = stage.of(OpType.GRADS_REDUCE)
    overlapped = stage.of(OpType.SEPARATE_GRADS)
    head = [max(stage.compute, key=lambda node: node.end)]
    if overlapped:
        last_backward = {node.chunk: node for node in sorted(stage.of(OpType.BACKWARD), key=lambda node: node.end)}
        seen: set[int] = set()
        for node in reduces:
            if node.chunk in last_backward and node.chunk not in seen:
                after[node.key].add(last_backward[node.chunk].key)
                seen.add(node.chunk)
    for node in stage.of(OpType.GC):
        after[node.key].update(before.key for before in head)
        head = [node]
    if overlapped:
        head += reduces[-1:]
    chain = [*stage.of(OpType.LAYERNORM_GRADS), *stage.of(OpType.EMBEDDING_GRADS)]
    chain += overlapped or reduces
    chain += [*stage.of(OpType.CLIP), *stage.of(OpType.OPTIMIZER)]
    if chain:
        after[chain[0].key].update(before.key for before in head)
    _chain(after, chain)


def _meetings(nodes: list[Node], carried: _Carried) -> list[Meeting]:
    meetings: list[Meeting] = []
    paired: set[int] = set()
    opposite = {direction.send: direction.receive for direction in _DIRECTIONS}
    opposite |= {receive: send for send, receive in opposite.items()}
    for (type_, chunk, microbatch), key in carried.items():
        peer = carried.get((opposite[type_], chunk, microbatch))
        if peer is None:
            raise TraceError(
                f"{type_} of microbatch {microbatch}, from chunk {chunk} of the model, has no {opposite[type_]};"
                " expected each send to meet a receive"
            )
        if key not in paired:
            meetings.append(Meeting((key, peer), over_dp=False))
            paired |= {key, peer}
    together: defaultdict[tuple[OpType, int], list[int]] = defaultdict(list)
    for node in nodes:
        if node.type in {OpType.CLIP, OpType.EMBEDDING_GRADS}:
            together[node.type, node.sequence].append(node.key)
        elif node.key not in paired:
            meetings.append(Meeting((node.key,), over_dp=node.type in _OVER_DP))
    meetings += [Meeting(tuple(keys), over_dp=type_ in _OVER_DP) for (type_, _), keys in together.items()]
    return meetings


def _in_order(meetings: list[Meeting], after: _Edges, nodes: list[Node]) -> tuple[Meeting, ...]:
    meeting_of = {key: index for index, meeting in enumerate(meetings) for key in meeting.keys}
    waits = {
        index: {meeting_of[before] for key in meeting.keys for before in after[key]}
        for index, meeting in enumerate(meetings)
    }
    try:
        return tuple(meetings[index] for index in TopologicalSorter(waits).static_order())
    except CycleError as error:
        circle = [nodes[meetings[index].keys[0]] for index in error.args[1]]
        names = " <- ".join(f"{node.type} {node.sequence} of stage {node.stage}" for node in circle[:8])
        raise TraceError(f"operations wait for each other in a circle: {names}; expected a trace that can have happened") from None
