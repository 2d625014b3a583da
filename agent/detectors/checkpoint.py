"""Faults of checkpoints: not whole, written far more slowly than before, or loaded into a job that does not continue it.

    checkpoints on disk -> incomplete     writes of the ranks -> stall     steps and data cursors -> resumed_wrongly
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ranksight.agent.findings import Finding, Severity


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """When a write is called slow: several times the usual, and by so much that it matters."""

    history: int = 2  # earlier writes that make the usual duration
    ratio: float = 5.0
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Write:
    """The writing of one checkpoint, over all ranks: steps done, seconds of the slowest rank.

    `rank` is that rank when it took far longer than the others: mostly they wait for each other, and nobody is to blame.
    """

    step: int
    seconds: float
    rank: int | None = None
    ended: bool = True


def stall(writes: Sequence[Write], limits: CheckpointLimits = CheckpointLimits()) -> tuple[Finding, ...]:
    """The first write that took, or is taking, far longer than those before it."""
    for at in range(limits.history, len(writes)):
        usual = median(write.seconds for write in writes[:at])
        write = writes[at]
        if write.seconds <= max(limits.ratio * usual, usual + limits.seconds):
            continue
        took, where = "took" if write.ended else "has taken", "" if write.rank is None else f" on rank {write.rank}"
        return (
            Finding(
                kind="checkpoint_stall",
                severity=Severity.WARNING,
                ranks=() if write.rank is None else (write.rank,),
                first_step=write.step,
                last_step=write.step,
                detected_step=write.step,
                cost_seconds=write.seconds - usual,
                message=(
                    f"The checkpoint after {write.step} steps {took} {write.seconds:.1f} s{where}; {usual:.1f} s "
                    "was usual."
                ),
                advice="Look at the storage that checkpoints go to; writing in the background hides what it can.",
                evidence={"seconds": write.seconds, "usual_seconds": usual, "ended": write.ended},
            ),
        )
    return ()


def incomplete(path: str, step: int | None, why: str, ranks: tuple[int, ...] = ()) -> Finding:
    """A checkpoint that is not whole; `ranks` are those that were writing when they died."""
    return Finding(
        kind="checkpoint_incomplete",
        severity=Severity.WARNING,
        ranks=ranks,
        first_step=step,
        last_step=step,
        detected_step=step,
        message=f"The checkpoint {path} can't be used: {why}.",
        advice="Go on from the one before; look whether a rank died while it was written, or the storage is full.",
        evidence={"path": path, "why": why},
    )


def resumed_wrongly(
    first_step: int, cursor: int | None, expected_step: int, expected_cursor: int | None, before: Mapping[int, int]
) -> Finding | None:
    """Whether a job that begins with `first_step` at data `cursor` continues what was saved.

    `expected_*` is what the checkpoint says, `before` the data cursors by step of the same job before it was restarted.
    """
    saved = f"The checkpoint has {expected_step} steps"
    if first_step != expected_step:
        return _mismatch(first_step, f"{saved}, but the job went on with step {first_step}.", expected_step, first_step)
    expected = before.get(first_step, expected_cursor)
    if cursor is None or expected is None or cursor == expected:
        return None
    return _mismatch(
        first_step, f"Step {first_step} reads data from sample {cursor} on, where the saved job would read {expected}.",
        expected, cursor,
    )  # fmt: skip


def _mismatch(step: int, message: str, expected: int, found: int) -> Finding:
    return Finding(
        kind="resume_mismatch",
        severity=Severity.CRITICAL,
        first_step=step,
        last_step=step,
        detected_step=step,
        message=message,
        advice="Load the step and the data cursor together with the weights; look at which checkpoint was loaded.",
        evidence={"expected": expected, "found": found},
    )
