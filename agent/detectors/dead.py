"""`rank_dead`: the rank whose process died, or whose exception left the main thread, before anything else failed."""

from __future__ import annotations

import signal

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.stopped.facts import JobFacts, RankFacts, Standing
from ranksight.agent.stopped.limits import Limits
from ranksight.agent.stopped.standing import standings
from ranksight.agent.words import numbers_in_words, ranks_in_words


def detect(facts: JobFacts, limits: Limits) -> tuple[Finding, ...]:
    """One finding for the ranks that failed first; those that failed of it are its victims."""
    standing = standings(facts, limits)
    failed = [facts.ranks[rank] for rank in sorted(standing) if standing[rank] in (Standing.FAILED, Standing.KILLED)]
    dead = _first(failed, limits)
    if not dead:
        return ()
    first = dead[0]
    failed_ns = min((ns for rank in dead if (ns := rank.failed_ns) is not None), default=facts.now_ns)
    onset = first.alive_until_ns if first.error_ns is None and first.alive_until_ns is not None else failed_ns
    complete = all(rank.life == "exiting" for rank in dead)
    victims = sorted(rank for rank, stand in standing.items() if stand is Standing.VICTIM)
    message = f"{ranks_in_words(rank.rank for rank in dead)} {_how(first)}"
    message += "; training was complete." if complete else f" in step {first.step} ({first.phase})."
    if victims:
        message += f" The errors of {ranks_in_words(victims).lower()} are consequences."
    return (
        Finding(
            kind="rank_dead",
            severity=Severity.WARNING if complete else Severity.CRITICAL,
            ranks=tuple(rank.rank for rank in dead),
            hosts=tuple(sorted({rank.host for rank in dead if rank.host})),
            first_step=first.step if first.step >= 0 else None,
            detected_step=facts.step,
            detection_seconds=max(0.0, (facts.now_ns - min(onset, facts.now_ns)) / 1e9),
            message=message,
            advice=_advice(first),
            evidence={
                "errors": {str(rank.rank): rank.last_error for rank in dead if rank.last_error},
                "exit_status": {str(rank.rank): rank.exit_status for rank in dead if rank.exit_status is not None},
                "pids": {str(rank.rank): rank.pid for rank in dead},
                "victims": numbers_in_words(victims),
            },
        ),
    )


def _first(failed: list[RankFacts], limits: Limits) -> list[RankFacts]:
    """The ranks that failed first: an exception says when to the millisecond, a death is seen with the next poll."""
    if not failed:
        return []

    def moment(rank: RankFacts) -> int:
        if rank.error_ns is not None:
            return rank.error_ns
        return rank.alive_until_ns if rank.alive_until_ns is not None else rank.gone_ns or 0

    first = min(failed, key=moment)
    if first.last_error is None:
        return [first]
    kind = first.last_error.partition(":")[0]
    return sorted(
        (
            rank
            for rank in failed
            if rank.last_error is not None
            and rank.last_error.partition(":")[0] == kind
            and moment(rank) - moment(first) <= limits.same_error_seconds * 1e9
        ),
        key=lambda rank: rank.rank,
    )


def _how(rank: RankFacts) -> str:
    if rank.last_error:
        return f"failed with {rank.last_error.splitlines()[0][:200]}"
    if rank.exit_status is not None and rank.exit_status < 0:
        return f"was killed by {_signal_name(-rank.exit_status)}"
    if rank.exit_status is not None:
        return f"ended with exit status {rank.exit_status} and without an exception"
    return f"(process {rank.pid}) died without an exception, by a signal or a crash in native code,"


def _advice(rank: RankFacts) -> str:
    if rank.last_error:
        if "memory" in rank.last_error.lower():
            return "Out of memory: lower the batch or shard more; a restart without a change fails again."
        return "See the traceback of this rank; those of the other ranks are consequences."
    return "Look into the kernel log of the host (OOM killer, hardware errors) and for a core dump of this process."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
