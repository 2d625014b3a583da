"""`cpu_oversubscribed`: the ranks of a host run more threads than it has cores, several in each rank.

One thread per rank on too few cores is the user's choice and slow for everyone alike; pools of many threads in every
rank are the accident that this is about: each process sized its pool as if the host were its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.steps.host import HostSample


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Thresholds with their reasons."""

    samples: int = 6  # three seconds: a loader's burst is shorter
    share: float = 0.6  # of them
    pools_per_core: float = 3.0  # threads in the pools of all ranks, per core
    runnable_per_core: float = 2.0  # and so many runnable threads per core: the pools are in use at the same time
    pool: float = 2.0  # threads in a rank's pool: one thread per rank is the user's choice


def cpu_oversubscribed(
    samples: Sequence[HostSample],
    cores: int,
    host: str,
    pools: Sequence[int],
    step: int | None,
    limits: HostLimits = HostLimits(),
) -> tuple[Finding, ...]:
    """One finding for the host; it names no rank, as all suffer alike. `pools`: threads in the pool of each rank."""
    recent = list(samples)[-limits.samples :]
    crowded = [sample.runnable for sample in recent if sample.runnable >= limits.runnable_per_core * cores]
    if len(recent) < limits.samples or len(crowded) < limits.share * limits.samples or not pools:
        return ()
    if mean(pools) < limits.pool or sum(pools) < limits.pools_per_core * cores:
        return ()
    return (
        Finding(
            kind="cpu_oversubscribed",
            severity=Severity.WARNING,
            cause="cpu_contention",
            hosts=(host,),
            first_step=step,
            last_step=step,
            detected_step=step,
            message=(
                f"The {len(pools)} ranks of host {host} have {sum(pools)} threads for computing on {cores} cores, and "
                f"{mean(crowded):.0f} threads are runnable at once: they wait for processors, not for each other."
            ),
            advice="Give each rank its share of the cores: OMP_NUM_THREADS or torch.set_num_threads(cores / ranks).",
            evidence={"threads": sum(pools), "threads_per_rank": mean(pools), "runnable": mean(crowded), "cores": cores},
        ),
    )
