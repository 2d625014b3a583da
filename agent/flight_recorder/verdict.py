"""One verdict for the dumps of a job: who disagreed, who had not joined, who was late, or that the dumps do not say.

    Dump per rank -> Ledger -> disputes            ranks that passed different things
                            -> waits -> root       ranks that the others wait for, through all groups
                            -> entry times         one rank that came seconds after the others

Gloo leaves every state at "scheduled" and sets only `retired`, also on failure. An operation that needs all ranks, is
retired on one and was never launched on another has failed. On accelerators an operation that some members completed
and one did not points at that one: it waits for nobody, so the chain of waits ends there.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ranksight.agent.detectors import mismatch
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.flight_recorder.dumps import Dump, read_folder
from ranksight.agent.stopped.facts import JobFacts, RankFacts
from ranksight.agent.stopped.ledger import P2P, Key, Ledger, key_of
from ranksight.agent.stopped.limits import Limits
from ranksight.agent.stopped.waitgraph import Root, RootKind, Wait, describe, root
from ranksight.agent.words import call_in_words, ranks_in_words, site_in_words
from ranksight.hooks.records import Collective

# A rank that comes so much later than all others at one operation, and not at the rest, made a pause. Jitter of hosts
# and clocks is far below.
PAUSE_SECONDS = 1.0
# What completes nowhere before all have launched it; the root of a broadcast, say, may leave early.
_NEEDS_ALL = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single", "barrier", "all_reduce_coalesced",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict. No finding and not healthy: the dumps do not hold the answer, and `reason` says why."""

    finding: Finding | None
    healthy: bool
    reason: str
    ranks_expected: tuple[int, ...]
    ranks_found: tuple[int, ...]
    versions: tuple[str, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """The object that `ranksight explain --json` prints."""
        missing = sorted(set(self.ranks_expected) - set(self.ranks_found))
        return {
            "schema": 1,
            "healthy": self.healthy,
            "abstained": self.finding is None and not self.healthy,
            "finding": self.finding.to_json() if self.finding else None,
            "reason": self.reason,
            "ranks_expected": list(self.ranks_expected),
            "ranks_found": list(self.ranks_found),
            "ranks_missing": missing,
            "versions": list(self.versions),
            "notes": list(self.notes),
        }


def explain(path: Path) -> Explanation:
    """The verdict for a folder of dumps, or for one file. Raises DumpError when they can't be read."""
    dumps, notes = read_folder(path)
    world = sorted({rank for dump in dumps.values() for group in dump.groups.values() for rank in group.ranks} | set(dumps))
    finding, healthy, reason = _judge(dumps, world)
    return Explanation(
        finding=finding,
        healthy=healthy,
        reason=reason,
        ranks_expected=tuple(world),
        ranks_found=tuple(sorted(dumps)),
        versions=tuple(sorted({dump.version for dump in dumps.values()})),
        notes=tuple(notes),
    )


def _judge(dumps: Mapping[int, Dump], world: list[int]) -> tuple[Finding | None, bool, str]:
    absent = sorted(set(world) - set(dumps))
    facts = _facts(dumps, world)
    if not facts.calls:
        return None, False, (
            "No dump holds an operation. On gloo, sends and receives are not recorded: "
            "if the job hangs, it hangs in one of these, or before its first collective."
        )
    disputes = mismatch.detect(facts, Limits())
    if disputes:
        finding = min(disputes, key=lambda entry: entry[1].group_seq or 0)[1]
        return finding, False, finding.message
    waiting = _waits(dumps, facts)
    ends = [(waiting[rank].since_ns, root(rank, waiting, facts)) for rank in sorted(waiting)]
    ends = [(since, end) for since, end in ends if end.kind in (RootKind.ABSENT, RootKind.CYCLE, RootKind.JOINED)]
    if ends:
        finding = _hang([end for _, end in sorted(ends, key=lambda entry: entry[0])], waiting, dumps, facts)
        return finding, False, finding.message
    if absent:
        finding = _no_dump(tuple(absent), "rank_dead" if _backends(dumps) == {"gloo"} else "rank_not_joined", dumps)
        return finding, False, finding.message
    late = _latest(dumps, facts)
    if late:
        return late, False, late.message
    return None, True, f"All {len(world)} ranks launched the same operations, and none is left over."


def _facts(dumps: Mapping[int, Dump], world: list[int]) -> JobFacts:
    calls = tuple(entry for dump in dumps.values() for entry in dump.entries)
    ledger = Ledger.of(calls)
    for dump in dumps.values():
        for name, last in dump.enqueued.items():
            # The recorder may have dropped the entry itself; the counter still says that it was launched.
            if name in dump.groups and last > 0:
                one = np.array([last], np.int64)
                ledger.add(dump.rank, dump.groups[name], one, np.zeros(1, np.uint64), one * 0 - 1, one * 0)
    now = max((call.enqueue_ns for call in calls), default=0)
    ranks = {rank: RankFacts(rank, now) for rank in world}
    return JobFacts(now + 60 * 10**9, len(world), ranks, calls, ledger)


def _waits(dumps: Mapping[int, Dump], facts: JobFacts) -> dict[int, Wait]:
    """The oldest operation of each rank that is not complete, and whom it waits for.

    Devices work through their queue: a rank that has launched an operation and sits in an older one has not come to it.
    """
    sits = {rank: call for rank, dump in dumps.items() if (call := _oldest(dump, dumps, facts)) is not None}
    waiting = {}
    for rank, call in sits.items():
        key = key_of(call)
        on = set(facts.ledger.missing(call, facts.ranks))
        if dumps[rank].backend != "gloo":  # its operations run side by side
            others = [other for other in facts.ledger.members(call) if other in dumps and other != rank]
            on |= {other for other in others if other not in sits or key_of(sits[other]) != key}
        waiting[rank] = Wait(rank, call, call.enqueue_ns, tuple(sorted(on)), failed=call.complete_ns is not None)
    return waiting


def _oldest(dump: Dump, dumps: Mapping[int, Dump], facts: JobFacts) -> Collective | None:
    for call in dump.entries:
        missing = facts.ledger.missing(call, facts.ranks)
        if call.complete_ns is not None:
            if call.op in _NEEDS_ALL and any(rank in dumps for rank in missing):
                return call  # retired, but it can't have completed
        elif missing or not any(_completed(key_of(call), dumps[rank]) for rank in facts.ledger.members(call) if rank in dumps):
            return call
    return None


def _completed(key: Key, dump: Dump) -> bool:
    """Whether a rank's counter says that it completed the operation.

    Each group has one counter for collectives and pairs alike, so it says something about a kind only where the group
    is used for that kind alone.
    """
    kinds = {call.op in P2P for call in dump.entries if call.group.name == key.group}
    return kinds <= {key.src >= 0} and dump.completed.get(key.group, -1) >= key.seq


def _hang(ends: list[Root], waiting: Mapping[int, Wait], dumps: Mapping[int, Dump], facts: JobFacts) -> Finding:
    end = ends[0]
    if end.kind is RootKind.CYCLE:
        legs = "; ".join(f"rank {r} in {describe(key_of(waiting[r].call), waiting[r].call.op)}" for r in end.ranks[:4])
        return _finding("deadlock", end.ranks, end.wait.call, f"{ranks_in_words(end.ranks)} wait for each other: {legs}.", waiting)
    if end.kind is RootKind.JOINED:
        message = f"All members have launched {_operation(end.wait.call)}, but it is not complete."
        return _finding("collective_stuck", (), end.wait.call, message, waiting)
    ranks = tuple(sorted({rank for other in ends if other.kind is RootKind.ABSENT for rank in other.ranks}))
    unseen = tuple(rank for rank in ranks if rank not in dumps)
    if unseen == ranks:
        # A dead process closes its connections, which ends the waits of its peers on gloo.
        return _no_dump(ranks, "rank_frozen" if _backends(dumps) == {"gloo"} else "rank_not_joined", dumps, end.wait.call, waiting)
    message = f"{ranks_in_words(ranks)} had not launched {_operation(end.wait.call)} when the dumps were written"
    idle = [rank for rank in ranks if rank in dumps and not dumps[rank].entries]
    if idle:
        message += f"; the recorders of {ranks_in_words(idle).lower()} hold no operation in flight"
    message += ": blocked outside of collectives, or gone from the training loop."
    if _marks_alike(end.wait.call, facts):
        message += " All operations before it are alike and without a call site, so one of them may have been left out."
    return _finding("rank_not_joined", ranks, end.wait.call, message, waiting)


def _marks_alike(call: Collective, facts: JobFacts) -> bool:
    """Whether the operations of a group can't be told apart, so that a missing one would show only at the end."""
    same = [other for other in facts.calls if other.group.name == call.group.name]
    return len(same) > 8 * len(facts.ranks) and len({(other.fingerprint, other.call_site) for other in same}) == 1


def _no_dump(
    ranks: tuple[int, ...],
    kind: str,
    dumps: Mapping[int, Dump],
    call: Collective | None = None,
    waiting: Mapping[int, Wait] | None = None,
) -> Finding:
    last = call or max((entry for dump in dumps.values() for entry in dump.entries), key=lambda entry: entry.enqueue_ns)
    how = {
        "rank_dead": "it was gone: no other rank still waits, as connections to a dead process are closed",
        "rank_frozen": "its connections are still open, as other ranks still wait: it was stopped or blocked",
        "rank_not_joined": "it was dead, stopped or cut off",
    }[kind]
    message = f"{ranks_in_words(ranks)} wrote no dump ({how}); the others came to {_operation(last)}."
    return _finding(kind, ranks, last, message, waiting or {})


def _latest(dumps: Mapping[int, Dump], facts: JobFacts) -> Finding | None:
    """A rank that came to one operation long after the others, measured against its own usual distance to them."""
    by_key: dict[Key, dict[int, Collective]] = {}
    for call in facts.calls:
        if call.fingerprint:
            by_key.setdefault(key_of(call), {})[call.rank] = call
    whole = [calls for calls in by_key.values() if len(calls) > 1 and set(facts.ledger.members(next(iter(calls.values())))) <= set(calls)]
    delays: dict[int, list[float]] = {}
    found: list[tuple[float, int, Collective]] = []
    for calls in whole:
        for rank, call in calls.items():
            others = statistics.median(other.enqueue_ns for r, other in calls.items() if r != rank)
            delays.setdefault(rank, []).append((call.enqueue_ns - others) / 1e9)
            found.append((delays[rank][-1], rank, call))
    excess = [(delay - statistics.median(delays[rank]), rank, call) for delay, rank, call in found if len(delays[rank]) > 2]
    if not excess or max(excess, key=lambda entry: entry[0])[0] < PAUSE_SECONDS or len(dumps) < 2:
        return None
    seconds, rank, call = max(excess, key=lambda entry: entry[0])
    message = (
        f"Rank {rank} came to {_operation(call)} {seconds:.1f} s after the others, once. A held GIL, a stopped process "
        "and a long computation look the same in a dump."
    )
    return _finding("pause", (rank,), call, message, {}, Severity.WARNING, {"late_seconds": round(seconds, 3)})


def _finding(
    kind: str,
    ranks: tuple[int, ...],
    call: Collective,
    message: str,
    waiting: Mapping[int, Wait],
    severity: Severity = Severity.CRITICAL,
    evidence: Mapping[str, object] | None = None,
) -> Finding:
    sits = {str(rank): describe(key_of(wait.call), wait.call.op) for rank, wait in sorted(waiting.items())}
    return Finding(
        kind=kind,
        severity=severity,
        cause="unknown" if kind == "pause" else None,
        ranks=ranks,
        group=call.group.axis or call.group.name,
        op=call.op,
        group_seq=call.group_seq,
        call_site=call.call_site,
        message=message,
        advice=_ADVICE.get(kind, "Look at the logs and stacks of these ranks from the time of the dump."),
        evidence={"waiting": sits, **(evidence or {})},
    )


_ADVICE = {
    "deadlock": "All ranks must use their groups, and pair their sends and receives, in one order.",
    "collective_stuck": "Suspect the network or a device between the members of this group.",
    "rank_dead": "Look into the kernel log of its host (OOM killer, hardware errors) and the launcher's log.",
}


def _operation(call: Collective) -> str:
    name = call.group.axis if call.group.axis not in ("", "undefined") else call.group.name
    return f"{call_in_words(call)} #{call.group_seq} of {name}{site_in_words(call)}"


def _backends(dumps: Mapping[int, Dump]) -> set[str]:
    return {dump.backend for dump in dumps.values() if dump.backend}
