"""`collective_mismatch` and `collective_skipped`: ranks that passed different things to one operation.

    ledger.disputes -> two fingerprints in one operation -> the odd rank out, and what differs

What ranks may legally do differently is no dispute: sizes of sends, receives and all-to-alls, the data of a scatter.
A rank that has launched nothing yet has no part in a dispute, so the order in which ranks are read does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ranksight.agent.detectors.disagreement import finding
from ranksight.agent.findings import Finding
from ranksight.agent.stopped.facts import JobFacts
from ranksight.agent.stopped.ledger import Key, key_of
from ranksight.agent.stopped.limits import Limits
from ranksight.agent.words import call_in_words, ranks_in_words, site_in_words
from ranksight.hooks.records import Collective
from ranksight.hooks.wire import CollectiveFlag

_UNEVEN_LISTS = frozenset({"all_gather", "gather", "scatter", "reduce_scatter"})


def detect(facts: JobFacts, limits: Limits) -> list[tuple[int, Finding]]:
    """Disputes with the moment of each; what follows a dispute in the same group is its consequence."""
    by_key: dict[Key, list[Collective]] = {}
    for call in facts.calls:
        by_key.setdefault(key_of(call), []).append(call)
    found = []
    for key in facts.ledger.disputes:
        calls = [call for call in by_key.get(key, ()) if call.fingerprint]
        marks = Counter(call.fingerprint for call in calls)
        if len(marks) < 2:
            continue
        onset = _second_mark(calls)
        missing = facts.ledger.missing(calls[0], facts.ranks)
        if missing and facts.now_ns - onset < limits.dispute_grace_seconds * 1e9:
            continue  # those on their way will show who is the odd one out
        if _may_be_legal(calls, facts, onset, limits):
            continue
        odd = _odd_ones(calls, by_key.get(key._replace(seq=key.seq + 1), []))
        found.append((onset, _dispute(key, calls, odd, onset, facts, by_key)))
    return found


def _may_be_legal(calls: Sequence[Collective], facts: JobFacts, onset: int, limits: Limits) -> bool:
    """Lists of tensors of unequal sizes are gathered by some backends and not by others: what completes is legal."""
    if any(call.op not in _UNEVEN_LISTS or _differences(call, calls[0]) not in (["arguments"], ["shape"]) for call in calls):
        return False
    failed = any(call.flags & CollectiveFlag.FAILED or not facts.ranks[call.rank].alive for call in calls)
    return not failed and (_all_complete(calls) or facts.now_ns - onset < limits.uneven_grace_seconds * 1e9)


def _all_complete(calls: Sequence[Collective]) -> bool:
    return all(call.complete_ns is not None for call in calls)


def _second_mark(calls: Sequence[Collective]) -> int:
    """When the second fingerprint came: from then on the calls disagree."""
    first: dict[int, int] = {}
    for call in calls:
        first[call.fingerprint] = min(first.get(call.fingerprint, call.enqueue_ns), call.enqueue_ns)
    return sorted(first.values())[1]


def _odd_ones(calls: Sequence[Collective], following: Sequence[Collective]) -> tuple[int, ...]:
    """The ranks that passed something else than most; with no majority, those that ran ahead, else all."""
    marks = Counter(call.fingerprint for call in calls).most_common(2)
    if marks[0][1] > marks[1][1]:
        return tuple(sorted(call.rank for call in calls if call.fingerprint != marks[0][0]))
    ahead = {call.rank for call in calls if any(_ran_ahead(call, other, following) for other in calls)}
    return tuple(sorted(ahead)) if 0 < len(ahead) < len(calls) else tuple(sorted(call.rank for call in calls))


def _ran_ahead(call: Collective, other: Collective, following: Sequence[Collective]) -> bool:
    """Whether a rank left out what `other` launched: its call is the other's next one, and its own next one is not."""
    marks = {after.rank: after.fingerprint for after in following}
    theirs = marks.get(other.rank)
    return call.fingerprint != other.fingerprint and theirs == call.fingerprint != marks.get(call.rank, 0)


def _dispute(
    key: Key, calls: list[Collective], odd: tuple[int, ...], onset: int, facts: JobFacts, by_key: dict[Key, list[Collective]]
) -> Finding:
    wrong = next(call for call in calls if call.rank in odd)
    right = next((call for call in calls if call.fingerprint != wrong.fingerprint), wrong)
    following = by_key.get(key._replace(seq=key.seq + 1), [])
    ahead = len(odd) < len(calls) and _ran_ahead(wrong, right, following)
    differs = _differences(wrong, right)
    who, rest = ranks_in_words(odd), ranks_in_words(call.rank for call in calls if call.rank not in odd).lower()
    what = f"operation #{key.seq} of group {key.group!r}"
    if len(odd) == len(calls):
        parts = "; ".join(f"rank {call.rank} {call_in_words(call)}{site_in_words(call)}" for call in calls[:4])
        message = f"{who} disagree about {what}, and none has a majority: {parts}."
    else:
        message = (
            f"{who} launched {call_in_words(wrong)}{site_in_words(wrong)} as {what}, "
            f"{rest} {call_in_words(right)}{site_in_words(right)}: other {', '.join(differs)}."
        )
        if ahead:
            message += f" {who} left out {call_in_words(right)}: the others launch the same right after it."
    return finding(
        "collective_skipped" if ahead else "collective_mismatch",
        odd,
        wrong,
        onset,
        facts,
        message,
        {"differs": differs, "calls": {str(c.rank): call_in_words(c) + site_in_words(c) for c in calls}},
    )


def _differences(one: Collective, other: Collective) -> list[str]:
    pairs = {
        "op": (one.op, other.op),
        "dtype": (one.dtype, other.dtype),
        "shape": (one.shape or one.numel, other.shape or other.numel),
        "reduce op": (one.reduce_op, other.reduce_op),
        "root": (one.peer, other.peer),
    }
    return [name for name, (mine, theirs) in pairs.items() if mine != theirs] or ["arguments"]
