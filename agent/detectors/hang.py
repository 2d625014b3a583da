"""The hang family: `rank_not_joined`, `data_exhausted`, `deadlock`, `collective_stuck`.

    waits of all ranks -> their roots -> the one that came first, once it is older than the limit of its phase

Ranks that are frozen, dead or at odds about what they launched are left to the detectors of these faults: a hang is
then a consequence. Where the ranks that are waited for are not seen from this host, nobody is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.stopped.facts import JobFacts, Standing, is_disconnect
from ranksight.agent.stopped.ledger import key_of
from ranksight.agent.stopped.limits import Limits, stall_limit
from ranksight.agent.stopped.standing import standings
from ranksight.agent.stopped.waitgraph import Root, RootKind, Wait, describe, root, waits
from ranksight.agent.words import call_in_words, ranks_in_words, site_in_words
from ranksight.hooks.records import Collective

_ADVICE = {
    "deadlock": (
        "All ranks must use their groups, and pair their sends and receives, in one order "
        "(for exchanges: batch_isend_irecv, or one side sends first)."
    ),
    "data_exhausted": "Give all ranks the same number of batches (drop_last, equal shards), or wrap the loop in Join.",
    "collective_stuck": "Suspect the network between the members; look at the link errors of their hosts.",
    "rank_not_joined": "Read the stack of this rank (py-spy dump): it is busy or blocked outside of collectives.",
}


def detect(facts: JobFacts, limits: Limits) -> tuple[Finding, ...]:
    """The hang of the job, if there is one."""
    standing = standings(facts, limits)
    waiting = waits(facts, standing)
    found: list[tuple[int, str, Root]] = []
    for rank, wait in waiting.items():
        end = root(rank, waiting, facts)
        kind = _kind(end, standing)
        if kind and _overdue(kind, wait, end, waiting, facts, limits):
            found.append((min(wait.since_ns, end.wait.since_ns), kind, end))
    if not found:
        return ()
    since, kind, end = min(found, key=lambda entry: entry[0])
    ranks = _culprits(kind, (other for _, other_kind, other in found if other_kind == kind), standing)
    waiters = sorted(rank for rank in waiting if rank not in ranks)
    return (_finding(kind, ranks, end, since, waiters, facts, waiting),)


def _kind(end: Root, standing: dict[int, Standing]) -> str | None:
    stands = {standing[rank] for rank in end.ranks if rank in standing}
    if stands & {Standing.FROZEN, Standing.FAILED, Standing.KILLED}:
        return None
    if end.kind is RootKind.CYCLE:
        return "deadlock"
    if end.kind is RootKind.ABSENT:
        return "data_exhausted" if Standing.LEFT in stands else "rank_not_joined"
    if end.kind is RootKind.JOINED and Standing.LEFT not in stands:
        return "collective_stuck"
    return None


def _overdue(
    kind: str, wait: Wait, end: Root, waiting: dict[int, Wait], facts: JobFacts, limits: Limits
) -> bool:
    if wait.failed:
        # A rank whose connections closed may just be dying: its process is seen to go a moment later.
        settled = facts.now_ns - _ended(wait.call) >= limits.dispute_grace_seconds * 1e9
        if not settled and any(facts.ranks[rank].alive for rank in end.ranks):
            return False
        # All had come and a connection closed: someone left whom this host does not see.
        return kind != "collective_stuck" or not is_disconnect(facts.ranks[wait.rank].last_error)
    now, p99 = facts.now_ns, facts.p99_step_seconds
    if kind == "data_exhausted":
        return now - wait.since_ns >= limits.dispute_grace_seconds * 1e9
    if kind == "deadlock":
        # No phase makes a cycle legal, and it must be older than any step that may still be under way.
        youngest = max(waiting[rank].since_ns for rank in end.ranks)
        return now - youngest >= stall_limit(limits, "other", limits.warmup_steps, p99 or 0.0) * 1e9
    held = [facts.ranks[rank] for rank in end.ranks]
    limit = max(stall_limit(limits, rank.phase, rank.step, p99) for rank in held)
    latest = wait.since_ns if kind == "rank_not_joined" else max(waiting[r].since_ns for r in end.ranks if r in waiting)
    return now - latest >= limit * 1e9


def _ended(call: Collective) -> int:
    """When a failed call came back to its caller, or is known to have begun."""
    return max(call.enqueue_ns, call.return_ns or 0, call.wait_end_ns or 0, call.complete_ns or 0)


def _culprits(kind: str, ends: Iterable[Root], standing: dict[int, Standing]) -> tuple[int, ...]:
    if kind == "collective_stuck":
        first = next(iter(ends))
        return first.ranks if len(first.ranks) == 2 else ()  # of many, none is known to be the broken one
    ranks = {rank for end in ends for rank in end.ranks}
    if kind == "data_exhausted":
        ranks = {rank for rank in ranks if standing[rank] is Standing.LEFT}
    return tuple(sorted(ranks))


def _finding(
    kind: str, ranks: tuple[int, ...], end: Root, since: int, waiters: list[int], facts: JobFacts, waiting: dict[int, Wait]
) -> Finding:
    call = end.wait.call
    key = key_of(call)
    seconds = (facts.now_ns - since) / 1e9
    evidence: dict[str, Any] = {
        "waiting": {str(r): _wait_in_words(wait) for r, wait in sorted(waiting.items())},
        "phase": {str(r): facts.ranks[r].phase for r in ranks},
        "process_state": {str(r): facts.ranks[r].process_state for r in ranks},
        "launched": {str(r): facts.ledger.count(call.group, r) for r in sorted(facts.ranks) if r in call.group.ranks},
        "waited_seconds": round(seconds, 3),
    }
    return Finding(
        kind=kind,
        severity=Severity.CRITICAL,
        ranks=ranks,
        hosts=tuple(sorted({facts.ranks[r].host for r in ranks if facts.ranks[r].host})),
        group=call.group.name,
        op=call.op,
        group_seq=key.seq,
        call_site=call.call_site,
        first_step=call.step if call.step >= 0 else None,
        detected_step=facts.step,
        detection_seconds=seconds,
        cost_seconds=seconds,
        message=_sentence(kind, ranks, end, seconds, waiters, facts, waiting),
        advice=_ADVICE[kind],
        evidence=evidence,
    )


def _sentence(
    kind: str,
    ranks: tuple[int, ...],
    end: Root,
    seconds: float,
    waiters: list[int],
    facts: JobFacts,
    waiting: dict[int, Wait],
) -> str:
    call = end.wait.call
    what = describe(key_of(call), call.op) + site_in_words(call)
    who = ranks_in_words(ranks)
    others = ranks_in_words(waiters).lower() if waiters else "nobody"
    if kind == "deadlock":
        legs = "; ".join(f"rank {r} {_wait_in_words(waiting[r])}" for r in ranks[:4])
        return f"{who} wait for each other: {legs}."
    if kind == "data_exhausted":
        step = max(facts.ranks[r].step for r in ranks)
        when = f" in step {step}" if step >= 0 else ""
        return f"{who} left the training loop{when} while {others} wait in {what}."
    if kind == "collective_stuck":
        return f"All members have joined {what} ({call_in_words(call)}), but it has not completed for {seconds:.1f} s."
    phase, step = facts.ranks[ranks[0]].phase, facts.ranks[ranks[0]].step
    doing = "" if phase == "other" else f", it is in phase {phase}"
    when = f" in step {step}" if step >= 0 else ""
    return f"{who} has not joined {what}{when}{doing}; {others} have waited for {seconds:.1f} s."


def _wait_in_words(wait: Wait) -> str:
    text = f"{'failed' if wait.failed else 'waits'} in {describe(key_of(wait.call), wait.call.op)}"
    text += site_in_words(wait.call)
    return f"{text} for {ranks_in_words(wait.on).lower()}" if wait.on else f"{text}, all joined"

