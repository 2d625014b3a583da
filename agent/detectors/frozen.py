"""`rank_frozen`: a live process whose Python does not run: it is stopped (state T), or a thread of it keeps the GIL.

Two heartbeats tell these apart from outside. The native one runs without the GIL, so native alive and Python silent is
a held GIL; both silent, while other ranks of the host beat, is a process that gets no CPU at all.
"""

from __future__ import annotations

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.stopped.facts import JobFacts, RankFacts, Standing
from ranksight.agent.stopped.limits import Limits
from ranksight.agent.stopped.standing import frozen_since, standings
from ranksight.agent.words import ranks_in_words


def detect(facts: JobFacts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for all ranks that are frozen."""
    standing = standings(facts, limits)
    frozen = [facts.ranks[rank] for rank in sorted(standing) if standing[rank] is Standing.FROZEN]
    if not frozen:
        return ()
    suspended = len(frozen) == len(facts.ranks) > 1 and all(rank.stopped_since_ns is not None for rank in frozen)
    since = min(since for rank in frozen if (since := frozen_since(rank, facts, limits)) is not None)
    seconds = (facts.now_ns - since) / 1e9
    name = ranks_in_words(rank.rank for rank in frozen)
    how, advice = _how(frozen[0], limits)
    return (
        Finding(
            kind="rank_frozen",
            severity=Severity.INFO if suspended else Severity.CRITICAL,
            ranks=tuple(rank.rank for rank in frozen),
            hosts=tuple(sorted({rank.host for rank in frozen if rank.host})),
            first_step=frozen[0].step if frozen[0].step >= 0 else None,
            detected_step=facts.step,
            detection_seconds=seconds,
            cost_seconds=seconds,
            message=f"{name} in step {frozen[0].step}: {how} for {seconds:.1f} s; the others wait.",
            advice=advice,
            evidence={
                "process_state": {str(rank.rank): rank.process_state for rank in frozen},
                "python_silent_seconds": _silent(frozen, "python_heartbeat_ns"),
                "native_silent_seconds": _silent(frozen, "native_heartbeat_ns"),
                "phase": frozen[0].phase,
            },
        ),
    )


def _how(rank: RankFacts, limits: Limits) -> tuple[str, str]:
    if rank.stopped_since_ns is not None:
        return (
            f"process {rank.pid} is stopped (state T)",
            f"Find out who stopped it (debugger, job control, freezer); `kill -CONT {rank.pid}` lets it go on.",
        )
    native = rank.native_heartbeat_ns
    if native is not None and rank.observed_ns - native < limits.silent_seconds * 1e9 / 2:
        return (
            f"process {rank.pid} lives, but no Python thread has run: a native call keeps the GIL",
            f"Look at its stack from outside (`py-spy dump --native --pid {rank.pid}`) for a call that keeps the GIL.",
        )
    return (
        f"process {rank.pid} lives (state {rank.process_state or '?'}), but none of its threads has run",
        "Look for a frozen container, a host that swaps, or I/O that hangs (state D).",
    )


def _silent(ranks: list[RankFacts], field: str) -> dict[str, float | None]:
    return {
        str(rank.rank): None if getattr(rank, field) is None else round((rank.observed_ns - getattr(rank, field)) / 1e9, 3)
        for rank in ranks
    }
