"""How long is too long: the limits of the detectors of ranks that stop, in one place, each with its reason.

    stall_limit(limits, phase, step, p99) -> seconds that a rank may keep its peers waiting

A job that stands still for eight seconds while its steps take milliseconds is not training. A rank that builds
kernels, writes a checkpoint or evaluates does useful work for minutes while the others wait, so these phases have
limits of their own, and a wait that *failed* (its timeout passed, its peer closed the connection) needs no limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds unless the name says otherwise."""

    # A hang is to be named within max(10 s, 3 x p99 step): eight seconds leave two for polling and for the verdict.
    hang_seconds: float = 8.0
    hang_steps: float = 3.0
    # Kernels are built and caches are filled while the first steps run; builds of ten minutes are on record.
    warmup_steps: int = 2
    startup_seconds: float = 600.0
    phase_seconds: dict[str, float] = field(
        default_factory=lambda: {
            "startup": 600.0,
            "compile": 1800.0,
            "checkpoint": 1800.0,  # tens of GB to slow storage; the default timeout of a collective is as long
            "load": 1800.0,
            "evaluation": 600.0,  # often on one rank alone
            "partition": 600.0,
        }
    )
    # A stopped process (state T) does nothing until somebody continues it; debuggers stop one for less than this.
    stopped_seconds: float = 2.0
    # Heartbeats come several times a second. Calls that keep the GIL for a second or two are common, for five not.
    silent_seconds: float = 5.0
    # Pickling a large state or importing a large library keeps the GIL for long, and does it in these phases.
    silent_busy_seconds: float = 60.0
    silent_busy_phases: frozenset[str] = frozenset({"startup", "compile", "checkpoint", "load"})
    # Two calls that disagree are a fact at once; who is the odd one out is clear when the others have come too.
    dispute_grace_seconds: float = 1.0
    # Gathers of unequal tensors are legal on some backends: only one that does not complete is wrong.
    uneven_grace_seconds: float = 4.0
    # A step label that is one operation off must stay so for two more steps: a helper thread's calls fall now into
    # one step and now into the next.
    shift_confirmations: int = 2
    # Ranks that raise the same exception so close together have the same bug, not one the other's consequence.
    same_error_seconds: float = 2.0


def stall_limit(limits: Limits, phase: str, step: int, p99_step_seconds: float | None) -> float:
    """How long a rank in `phase` of `step` may keep its peers waiting; `p99_step_seconds` None: no steps yet."""
    steady = max(limits.hang_seconds, limits.hang_steps * (p99_step_seconds or 0.0))
    if step < limits.warmup_steps or p99_step_seconds is None:
        steady = max(steady, limits.startup_seconds)
    return max(steady, limits.phase_seconds.get(phase, 0.0))
