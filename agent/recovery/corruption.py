"""Since when the state of a job may be wrong, and which checkpoints and which data that concerns.

    findings -> since -> Corruption(steps that are clean, kind)     checkpoint of N steps: tainted when N > clean_steps
    findings -> suspect_steps -> steps whose data may be the cause

A checkpoint of N steps holds the updates of steps 0 to N - 1. A fault seen in step s is in the update of step s at the
earliest, so what N <= s steps made was written before the evidence. Checksums are compared every few steps: there the
last comparison that agreed counts, not the first that differed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ranksight.agent.findings import Finding, Severity

CORRUPTING = frozenset(
    {"nonfinite", "divergence", "replica_desync", "collective_mismatch", "collective_skipped", "resume_mismatch"}
)
BY_DATA = frozenset({"nonfinite", "loss_spike", "grad_spike"})


@dataclass(frozen=True, slots=True)
class Corruption:
    """`clean_steps`: so many steps were done before the earliest evidence; None when the evidence names no step."""

    kind: str
    clean_steps: int | None
    message: str

    def taints(self, step: int | None) -> bool:
        """Whether a checkpoint of so many steps was written after the evidence, or may have been."""
        return self.clean_steps is None or step is None or step > self.clean_steps


def since(findings: Iterable[Finding]) -> Corruption | None:
    """The earliest evidence that numbers are wrong; None while there is none."""
    earliest: Corruption | None = None
    for finding in findings:
        if finding.kind not in CORRUPTING or finding.severity is not Severity.CRITICAL:
            continue
        agreed = finding.evidence.get("last_step_in_agreement")
        clean = int(agreed) if agreed is not None else finding.first_step
        if earliest is None or _before(clean, earliest.clean_steps):
            earliest = Corruption(finding.kind, clean, finding.message)
    return earliest


def suspect_steps(findings: Iterable[Finding]) -> tuple[int, int] | None:
    """First step, and the one after the last, whose data may have caused non-finite numbers or spikes; None: none."""
    steps = [
        finding.first_step
        for finding in findings
        if finding.kind in BY_DATA and finding.severity is not Severity.INFO and finding.first_step is not None
    ]
    # What comes after the first one may follow from it.
    return (min(steps), min(steps) + 1) if steps else None


def _before(clean: int | None, other: int | None) -> bool:
    """Evidence without a step may be older than any."""
    return other is not None and (clean is None or clean < other)
