"""`cpu_oversubscribed`: the ranks of a host run more threads than it has cores, several in each rank.

One thread per rank on too few cores is the user's choice and slow for everyone alike; pools of many threads in every
rank are the accident that this is about: each process sized its pool as if the host were its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.host import HostSample


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Thresholds with their reasons."""

    samples: int = 6  # three seconds: a loader's burst is shorter
    per_core: float = 3.0  # runnable threads of the ranks per core; twice is what hyper-threads and helpers make
    per_rank: float = 3.0  # runnable threads in the mean rank; a rank without a pool has one, and one for communication


def cpu_oversubscribed(
    samples: Sequence[HostSample], cores: int, host: str, step: int | None, limits: HostLimits = HostLimits()
) -> tuple[Finding, ...]:
    """One finding for the host; it names no rank, as all suffer alike."""
    recent = list(samples)[-limits.samples :]
    counted = [sample.busy_threads for sample in recent if sample.busy_threads]
    if len(recent) < limits.samples or len(counted) < 0.6 * limits.samples:
        return ()
    busy = mean(sum(threads.values()) for threads in counted)
    per_rank = mean(mean(threads.values()) for threads in counted)
    if busy < limits.per_core * cores or per_rank < limits.per_rank:
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
                f"The ranks of host {host} keep {busy:.0f} threads runnable on {cores} cores, {per_rank:.0f} in each rank: "
                f"they wait for processors, not for each other."
            ),
            advice="Give each rank its share of the cores: OMP_NUM_THREADS or torch.set_num_threads(cores / ranks).",
            evidence={"runnable_threads": busy, "cores": cores, "runnable_threads_per_rank": per_rank},
        ),
    )
