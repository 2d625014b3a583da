"""Who waits for whom: from operations in flight, over all groups and point-to-point pairs, to the rank that is the root.

    JobFacts -> waits()      for each rank the operation it sits in, and the ranks that have not come to it
             -> root(rank)   along the waits to their end: a busy rank, a cycle, or an operation that all have joined

A rank that is late for one group may itself wait in another, so the last to arrive is not yet the culprit. The walk
goes on until it comes to somebody who waits for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ranksight.agent.stopped.facts import JobFacts, Standing
from ranksight.agent.stopped.ledger import P2P, Key, key_of
from ranksight.hooks.records import Collective
from ranksight.hooks.wire import CollectiveFlag


@dataclass(frozen=True, slots=True)
class Wait:
    """`rank` sits (or failed) in `call` since `since_ns` and needs the ranks `on`; none: all have joined."""

    rank: int
    call: Collective
    since_ns: int
    on: tuple[int, ...]
    failed: bool  # the operation raised, or its rank died of it: no need to wait for a limit


class RootKind(Enum):
    """What lies at the end of a chain of waits."""

    ABSENT = auto()  # ranks that wait for nobody and have not launched the operation
    CYCLE = auto()  # ranks that wait for each other
    JOINED = auto()  # all have launched it, and it does not complete
    DISPUTED = auto()  # the ranks passed different things to it
    UNSEEN = auto()  # the ranks needed are not known, or not on this host


@dataclass(frozen=True, slots=True)
class Root:
    """The end of a chain: the culprits, and the wait next to them."""

    kind: RootKind
    ranks: tuple[int, ...]
    wait: Wait


def waits(facts: JobFacts, standing: dict[int, Standing]) -> dict[int, Wait]:
    """What each rank that can wait sits in. Ranks that are frozen, dead or gone for good wait for nobody."""
    by_rank: dict[int, list[Collective]] = {}
    for call in facts.calls:
        if call.rank in facts.ranks and standing[call.rank].waits and _open(call):
            by_rank.setdefault(call.rank, []).append(call)
    found = {}
    for rank, calls in by_rank.items():
        held_by = _sits_in(calls, victim=standing[rank] is Standing.VICTIM)
        if held_by is not None:
            failed = bool(held_by.flags & CollectiveFlag.FAILED) or standing[rank] is Standing.VICTIM
            on = _needs(held_by, facts)
            found[rank] = Wait(rank, held_by, held_by.wait_begin_ns or held_by.enqueue_ns, on, failed)
    return found


def _needs(call: Collective, facts: JobFacts) -> tuple[int, ...]:
    """The ranks that an operation lacks. What one rank sends to all needs that rank before any other."""
    missing = facts.ledger.missing(call, facts.ranks)
    members = facts.ledger.members(call)
    if call.op in {"broadcast", "scatter"} and 0 <= call.peer < len(members) and members[call.peer] in missing:
        return (members[call.peer],)
    return missing


def root(start: int, waiting: dict[int, Wait], facts: JobFacts) -> Root:
    """Follow the waits of `start`. Cycles count before absent ranks: no latecomer can untie them."""
    order: list[int] = []  # reachable ranks, breadth first
    todo = [start]
    while todo:
        rank = todo.pop(0)
        if rank not in order:
            order.append(rank)
            todo += waiting[rank].on if rank in waiting else ()
    for rank in order:
        if rank in waiting and key_of(waiting[rank].call) in facts.ledger.disputes:
            return Root(RootKind.DISPUTED, (), waiting[rank])
    for rank in order:
        cycle = sorted(other for other in order if _reaches(rank, other, waiting) and _reaches(other, rank, waiting))
        if cycle:
            return Root(RootKind.CYCLE, tuple(cycle), waiting[cycle[0]])
    absent = [rank for rank in order if rank not in waiting]
    if absent:
        nearest = next(wait for rank in order if (wait := waiting.get(rank)) and set(wait.on) & set(absent))
        return Root(RootKind.ABSENT, tuple(sorted(absent)), nearest)
    last = next(waiting[rank] for rank in order if not waiting[rank].on)
    members = facts.ledger.members(last.call)
    if not members or not set(members) <= facts.ranks.keys():
        return Root(RootKind.UNSEEN, tuple(sorted(set(members) - facts.ranks.keys())), last)
    return Root(RootKind.JOINED, members, last)


def _reaches(start: int, goal: int, waiting: dict[int, Wait]) -> bool:
    seen: set[int] = set()
    todo = list(waiting[start].on) if start in waiting else []
    while todo:
        rank = todo.pop()
        if rank == goal:
            return True
        if rank not in seen:
            seen.add(rank)
            todo += waiting[rank].on if rank in waiting else ()
    return False


def _open(call: Collective) -> bool:
    if call.flags & CollectiveFlag.FAILED:
        return True
    waited_for = call.wait_begin_ns is not None and call.wait_end_ns is None
    return call.complete_ns is None and (waited_for or not call.flags & CollectiveFlag.NO_COMPLETION)


def _sits_in(calls: list[Collective], victim: bool) -> Collective | None:
    """The operation that holds the rank up: the one it waits for or is inside of, else the oldest in flight.

    A send or receive without a future that nobody waits for yet may be complete long since: it holds nobody up.
    """
    explicit = [
        call
        for call in calls
        if call.return_ns is None or (call.wait_begin_ns is not None and call.wait_end_ns is None)
    ]
    failed = [call for call in calls if call.flags & CollectiveFlag.FAILED]
    if victim and failed:
        return min(failed, key=lambda call: call.enqueue_ns)
    if explicit:
        return max(explicit, key=lambda call: call.wait_begin_ns or call.enqueue_ns)
    tracked = [
        call for call in calls if call.op not in P2P and not call.flags & (CollectiveFlag.UPPER_BOUND | CollectiveFlag.FAILED)
    ]
    return min(tracked, key=lambda call: call.enqueue_ns, default=None)


def describe(key: Key, op: str) -> str:
    """An operation in words: `all_reduce #7 of group 0`, `recv #4 from rank 3 to rank 2`."""
    if key.src >= 0 or key.dst >= 0:
        return f"{op} #{key.seq} from rank {key.src} to rank {key.dst}"
    return f"{op} #{key.seq} of group {key.group!r}"
