"""`incomplete_data`: what ranksight did not see, said as loudly as any other fault."""

from __future__ import annotations

from dataclasses import dataclass

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.reading.reader import Counts


@dataclass(frozen=True, slots=True)
class RankCompleteness:
    """What was seen of one rank, over all its processes."""

    rank: int
    tap: str  # "native", "python" or "none"
    collectives: Counts
    events: Counts
    skipped: int  # operations that the hooks left out on purpose, to keep within their budget
    late_completions: int
    errors: int  # internal errors of tap and hooks
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompletenessFacts:
    """What was seen of all ranks of the host; `expected` is None when nobody says how many there are."""

    expected: int | None
    ranks: tuple[RankCompleteness, ...]
    silent: tuple[int, ...]  # ranks of this host without a ring
    unreadable: dict[str, str]  # ring file -> why
    incomplete_instances: int
    partial_instances: int


@dataclass(frozen=True, slots=True)
class CompletenessLimits:
    """From which share of dropped records on a finding is a warning instead of information."""

    dropped_ratio: float = 0.001


def incomplete_data(facts: CompletenessFacts, limits: CompletenessLimits = CompletenessLimits()) -> tuple[Finding, ...]:
    """One finding per way in which data is missing."""
    return (
        *_nobody(facts),
        *_dropped(facts, limits),
        *_withheld(facts, limits),
        *_silent(facts),
        *_unreadable(facts),
        *_without_tap(facts),
    )


def _nobody(facts: CompletenessFacts) -> tuple[Finding, ...]:
    if facts.ranks or facts.unreadable:
        return ()
    return (
        Finding(
            kind="incomplete_data",
            severity=Severity.WARNING,
            message="No rank of the job has been seen: nothing can be said about it.",
            advice="Ranks attach when they import torch and make a process group; PYTHONPATH must reach them.",
        ),
    )


def _dropped(facts: CompletenessFacts, limits: CompletenessLimits) -> tuple[Finding, ...]:
    losing = [rank for rank in facts.ranks if rank.collectives.dropped or rank.events.dropped]
    if not losing:
        return ()
    parts = [
        f"{counts.dropped} of {counts.written} {what} dropped on rank {rank.rank}"
        for rank in losing
        for what, counts in (("records", rank.collectives), ("events", rank.events))
        if counts.dropped
    ]
    ratio = max(
        counts.dropped / counts.written
        for rank in losing
        for counts in (rank.collectives, rank.events)
        if counts.dropped
    )
    return (
        Finding(
            kind="incomplete_data",
            severity=Severity.WARNING if ratio >= limits.dropped_ratio else Severity.INFO,
            message="; ".join(parts) + ": they were overwritten before the agent could read them.",
            advice="Give the agent CPU time, or let the ring hold more; measures leave the affected operations out.",
            ranks=tuple(rank.rank for rank in losing),
            evidence={
                "dropped": {str(rank.rank): rank.collectives.dropped for rank in losing},
                "written": {str(rank.rank): rank.collectives.written for rank in losing},
                "dropped_events": {str(rank.rank): rank.events.dropped for rank in losing},
                "incomplete_instances": facts.incomplete_instances,
            },
        ),
    )


def _withheld(facts: CompletenessFacts, limits: CompletenessLimits) -> tuple[Finding, ...]:
    holding = [rank for rank in facts.ranks if rank.skipped]
    if not holding:
        return ()
    seen = {rank.rank: rank.skipped + rank.collectives.written for rank in holding}
    parts = [f"{rank.skipped} of {seen[rank.rank]} operations not recorded on rank {rank.rank}" for rank in holding]
    ratio = max(rank.skipped / seen[rank.rank] for rank in holding)
    return (
        Finding(
            kind="incomplete_data",
            severity=Severity.WARNING if ratio >= limits.dropped_ratio else Severity.INFO,
            message="; ".join(parts) + ": the detail was lowered to keep the tap within its budget.",
            advice="Measures rest on the operations that were recorded. A larger `budget` in `[overhead]` keeps more.",
            ranks=tuple(rank.rank for rank in holding),
            evidence={"withheld": {str(rank.rank): rank.skipped for rank in holding}},
        ),
    )


def _silent(facts: CompletenessFacts) -> tuple[Finding, ...]:
    if not facts.silent:
        return ()
    names = ", ".join(map(str, facts.silent))
    return (
        Finding(
            kind="incomplete_data",
            severity=Severity.WARNING,
            message=f"Nothing was heard from rank {names}: {len(facts.ranks)} of {facts.expected} ranks are observed.",
            advice="Look for the hooks' own message on the standard error of these ranks.",
            ranks=facts.silent,
            evidence={"expected": facts.expected, "seen": len(facts.ranks)},
        ),
    )


def _unreadable(facts: CompletenessFacts) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            kind="incomplete_data",
            severity=Severity.WARNING,
            message=f"A ring file can't be read: {reason}.",
            advice="Use the same ranksight version in the ranks and in the agent, and a ring folder of its own per run.",
            evidence={"file": name, "reason": reason},
        )
        for name, reason in facts.unreadable.items()
    )


def _without_tap(facts: CompletenessFacts) -> tuple[Finding, ...]:
    without = tuple(rank.rank for rank in facts.ranks if rank.tap == "none")
    if not without:
        return ()
    names = ", ".join(map(str, without))
    return (
        Finding(
            kind="incomplete_data",
            severity=Severity.WARNING,
            message=f"Collectives are not seen on rank {names}: no tap could be installed there.",
            advice="The notes of the hooks in the report say why; `ranksight doctor` tests the machine.",
            ranks=without,
        ),
    )
