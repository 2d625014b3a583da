"""What a rank says, as frozen facts. The reader makes them from the wire; tests write them as literals.

Times are CLOCK_MONOTONIC nanoseconds of the rank's host; `None` is "not known", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """One process of the job."""

    pid: int
    start_ticks: int
    rank: int  # -1 while unknown
    world_size: int
    local_rank: int
    generation: int
    tap: str  # "native", "python", "none"


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank sees it; `ranks` are global ranks, empty while unknown."""

    name: str
    axis: str
    incarnation: int
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective or point-to-point operation on one rank."""

    rank: int
    ticket: int
    op: str
    group: Group
    group_seq: int
    enqueue_ns: int
    return_ns: int | None
    wait_begin_ns: int | None
    wait_end_ns: int | None
    complete_ns: int | None
    bytes: int
    numel: int
    dtype: str | None
    reduce_op: str | None
    peer: int
    tag: int
    fingerprint: int
    call_site: str | None
    step: int
    microbatch: int
    stage: int
    phase: str
    thread: int
    flags: int
    shape: tuple[int, ...] = ()
    send_splits: tuple[int, ...] = ()
    recv_splits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the Python hooks saw; see `wire.EventKind` for `values`."""

    rank: int
    kind: str
    begin_ns: int
    end_ns: int | None
    step: int
    code: int
    name: str | None
    microbatch: int
    stage: int
    layer: int
    thread: int
    flags: int
    values: tuple[float, ...]
