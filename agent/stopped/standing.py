"""How each rank stands in its life: running, frozen, gone of its own accord, failed, killed, or a victim of another.

    JobFacts, Limits -> standings() -> {rank: Standing}

First failure wins. When one rank dies, the others fail too: their connections close, their timeouts pass, and the
launcher ends what is left. Their errors say so in their text or come later than the first failure: these ranks are
victims, and no detector names them.
"""

from __future__ import annotations

from ranksight.agent.stopped.facts import JobFacts, RankFacts, Standing, is_cascade, is_disconnect
from ranksight.agent.stopped.limits import Limits


def standings(facts: JobFacts, limits: Limits) -> dict[int, Standing]:
    """The standing of every rank that is known."""
    alone = {rank: _alone(rank_facts, facts, limits) for rank, rank_facts in facts.ranks.items()}
    return {
        rank: Standing.VICTIM if stand is Standing.KILLED and _cleaned_up(facts.ranks[rank], facts, alone) else stand
        for rank, stand in alone.items()
    }


def frozen_since(rank: RankFacts, facts: JobFacts, limits: Limits) -> int | None:
    """Since when a live rank's Python has not run; None when it runs, or when that can't be told."""
    if not rank.alive or rank.life != "running":
        return None
    if rank.stopped_since_ns is not None:
        stopped = rank.observed_ns - rank.stopped_since_ns >= limits.stopped_seconds * 1e9
        return rank.stopped_since_ns if stopped else None
    python, native = rank.python_heartbeat_ns, rank.native_heartbeat_ns
    if python is None:
        return None
    busy = rank.phase in limits.silent_busy_phases or rank.step < limits.warmup_steps
    limit_ns = (limits.silent_busy_seconds if busy else limits.silent_seconds) * 1e9
    if rank.observed_ns - python < limit_ns:
        return None
    if native is not None and rank.observed_ns - native < limit_ns / 2:
        return python  # its native thread runs and its Python does not: the GIL is held
    others = [other for other in facts.ranks.values() if other.host == rank.host and other.rank != rank.rank]
    beating = [other for other in others if _beats(other, limits)]
    return python if beating else None  # if none beats, the whole host stood still, and the agent with it


def _beats(rank: RankFacts, limits: Limits) -> bool:
    return rank.alive_until_ns is not None and rank.observed_ns - rank.alive_until_ns < limits.silent_seconds * 1e9 / 2


def _alone(rank: RankFacts, facts: JobFacts, limits: Limits) -> Standing:
    """The standing of a rank by what it left itself, without a look at the others."""
    if frozen_since(rank, facts, limits) is not None:
        return Standing.FROZEN
    if rank.last_error is not None and (rank.life == "exception" or not rank.alive):
        cascade = is_cascade(rank.last_error) or rank.last_error.startswith("KeyboardInterrupt")
        return Standing.VICTIM if cascade else Standing.FAILED
    if rank.life in ("exiting", "group_destroyed") and rank.exit_status in (None, 0):
        return Standing.LEFT
    if rank.alive:
        return Standing.RUNNING
    if rank.exit_status == 0:
        return Standing.LEFT
    return Standing.KILLED


def _cleaned_up(rank: RankFacts, facts: JobFacts, standing: dict[int, Standing]) -> bool:
    """Whether a rank that was killed died after the fault, by the hand of the launcher or of the user."""
    gone = rank.gone_ns if rank.gone_ns is not None else facts.now_ns
    if facts.stopping_since_ns is not None and gone >= facts.stopping_since_ns:
        return True
    last_beat = rank.alive_until_ns
    for other in facts.ranks.values():
        failed = other.failed_ns
        if other.rank == rank.rank or failed is None or standing[other.rank] in (Standing.RUNNING, Standing.LEFT):
            continue
        if last_beat is not None and failed < last_beat:
            return True  # it was still alive when the other had failed
        if rank.exit_status == -15 and failed <= gone and standing[other.rank] is not Standing.KILLED:
            return True  # SIGTERM is what launchers send to those that are left
        if standing[other.rank] is Standing.VICTIM and failed <= gone and not is_disconnect(other.last_error):
            return True  # the other had waited in vain until its timeout: this rank was missing before it died
    return False
