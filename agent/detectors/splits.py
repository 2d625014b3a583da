"""`collective_mismatch` of an all-to-all: a rank sends other numbers of rows than its peer expects.

Uneven splits are legal and common; only the two ends of each pair must agree. The check is made on operations that all
have joined and that do not complete: that is what wrong splits lead to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ranksight.agent.detectors.disagreement import finding
from ranksight.agent.findings import Finding
from ranksight.agent.stopped.facts import JobFacts
from ranksight.agent.stopped.ledger import Key, key_of
from ranksight.agent.stopped.limits import Limits
from ranksight.agent.words import site_in_words
from ranksight.hooks.records import Collective
from ranksight.hooks.wire import CollectiveFlag


def detect(facts: JobFacts, limits: Limits) -> list[tuple[int, Finding]]:
    """All-to-alls whose splits contradict each other, with the moment when the last rank had joined."""
    by_key: dict[Key, dict[int, Collective]] = {}
    for call in facts.calls:
        if call.op == "all_to_all_single" and not call.flags & CollectiveFlag.TRUNCATED:
            by_key.setdefault(key_of(call), {})[call.rank] = call
    found = []
    for calls in by_key.values():
        members = facts.ledger.members(next(iter(calls.values())))
        if len(members) < 2 or not set(members) <= calls.keys():
            continue
        ordered = [calls[rank] for rank in members]
        onset = max(call.enqueue_ns for call in ordered)
        done = all(call.complete_ns is not None and not call.flags & CollectiveFlag.FAILED for call in ordered)
        if not done and facts.now_ns - onset >= limits.dispute_grace_seconds * 1e9:
            wrong = _wrong_pairs(ordered)
            if wrong:
                found.append((onset, _finding(ordered, wrong, onset, facts)))
    return found


def _finding(calls: list[Collective], wrong: list[tuple[int, int]], onset: int, facts: JobFacts) -> Finding:
    blame = Counter(calls[at].rank for pair in wrong for at in pair)
    most = max(blame.values())
    odd = tuple(sorted(rank for rank, count in blame.items() if count == most))
    sender, receiver = wrong[0]
    sample = next(call for call in calls if call.rank == odd[0])
    message = (
        f"Splits of {sample.op} #{sample.group_seq} of group {sample.group.name!r} do not agree: rank "
        f"{calls[sender].rank} sends {_sends(calls[sender], len(calls))[receiver]} rows to rank {calls[receiver].rank}, "
        f"which expects {calls[receiver].recv_splits[sender]}{site_in_words(sample)}."
    )
    pairs = [[calls[a].rank, calls[b].rank] for a, b in wrong]
    return finding("collective_mismatch", odd, sample, onset, facts, message, {"differs": ["splits"], "pairs": pairs})


def _sends(call: Collective, size: int) -> tuple[int, ...]:
    """Rows sent to each member; without splits all get an equal share."""
    return call.send_splits or ((call.shape[0] // size,) * size if call.shape else ())


def _wrong_pairs(calls: Sequence[Collective]) -> list[tuple[int, int]]:
    """(sender, receiver) by place in the group, where what is sent is not what is expected."""
    size = len(calls)
    if any(len(call.recv_splits) != size for call in calls):
        return []  # equal shares on the receiving side, whose length is not recorded
    sends = [_sends(call, size) for call in calls]
    return [
        (a, b)
        for a in range(size)
        for b in range(size)
        if len(sends[a]) == size and sends[a][b] != calls[b].recv_splits[a]
    ]
