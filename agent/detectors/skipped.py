"""`collective_skipped` and an extra `collective_mismatch`: calls that paired with the wrong ones, and nothing failed.

    ledger.shifts -> a rank whose steps begin at other operations than its peers' -> a call fewer, or more

If the calls all have the same shape, the library can't tell, and all sums are wrong from there on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ranksight.agent.detectors.disagreement import NO_RESTART, finding
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.stopped.facts import JobFacts
from ranksight.agent.stopped.ledger import Shift
from ranksight.agent.stopped.limits import Limits
from ranksight.agent.words import call_in_words, site_in_words
from ranksight.hooks.records import Collective


def detect(facts: JobFacts, limits: Limits) -> list[tuple[int, Finding]]:
    """Ranks that are out of step for long enough, with the moment when each began to be."""
    found = []
    for shift in facts.ledger.shifts():
        over = shift.rank in facts.ranks and not facts.ranks[shift.rank].alive
        if shift.confirmed >= limits.shift_confirmations or over:
            found.append((shift.since_ns, _shift(shift, facts)))
    return found


def _shift(shift: Shift, facts: JobFacts) -> Finding:
    in_step = [
        call
        for call in facts.calls
        if call.step == shift.step - 1
        and (call.group.name, call.group.incarnation) == (shift.group.name, shift.group.incarnation)
    ]
    mine = [call for call in in_step if call.rank == shift.rank]
    peer = next((call.rank for call in in_step if call.rank != shift.rank), None)
    theirs = [call for call in in_step if call.rank == peer]
    example = _surplus(theirs, mine) if shift.extra < 0 else _surplus(mine, theirs)
    count, kind = abs(shift.extra), "collective_skipped" if shift.extra < 0 else "collective_mismatch"
    which = f" ({call_in_words(example)}{site_in_words(example)})" if example else ""
    message = (
        f"Rank {shift.rank} launched {count} collective{'s' if count > 1 else ''} "
        f"{'fewer' if shift.extra < 0 else 'more'} than the others in step {shift.step - 1} of group "
        f"{shift.group.name!r}{which}. Its later calls pair with the wrong ones of the others: "
        "results are wrong from there on, though nothing fails."
    )
    evidence: dict[str, object] = {"extra": shift.extra, "steps_confirmed": shift.confirmed + 1}
    if mine and theirs:
        evidence |= {"launched_in_step": len(mine), "launched_by_others": len(theirs)}
    anchor = example or (mine[0] if mine else None)
    if anchor is None:
        return Finding(
            kind=kind,
            severity=Severity.CRITICAL,
            ranks=(shift.rank,),
            group=shift.group.name,
            first_step=shift.step - 1,
            detected_step=facts.step,
            detection_seconds=(facts.now_ns - shift.since_ns) / 1e9,
            message=message,
            advice=NO_RESTART,
            evidence=evidence,
        )
    return finding(kind, (shift.rank,), anchor, shift.since_ns, facts, message, evidence)


def _surplus(longer: Sequence[Collective], shorter: Sequence[Collective]) -> Collective | None:
    """The first call that `longer` has more of than `shorter`, told apart by what was passed and from where."""
    left = Counter((call.call_site, call.fingerprint) for call in shorter)
    for call in longer:
        if not left[call.call_site, call.fingerprint]:
            return call
        left[call.call_site, call.fingerprint] -= 1
    return None
