"""From facts to findings about ranks that stop: one finding per fault, the first failure first, none for its victims.

    JobFacts -> Diagnosis.update -> findings so far, each latched when it was first seen

The detectors run in the order in which faults explain each other: ranks at odds about what they launched, frozen ranks,
dead ranks, and only then waits. A fault makes others look like faults for as long as the job does not move on, so until
it does nothing else is added. A job that does move on after a wait was slow and not hung: its finding becomes a warning.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

from ranksight.agent.detectors import dead, frozen, hang, mismatch, skipped, splits
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.stopped.facts import JobFacts, Standing
from ranksight.agent.stopped.limits import Limits
from ranksight.agent.stopped.stacks import Asker, explain
from ranksight.agent.stopped.standing import standings

_RECOVERS = frozenset({"rank_not_joined", "collective_stuck", "rank_frozen"})
_STEPS_ON = 2  # steps that all ranks must have gone on by


def detect(facts: JobFacts, limits: Limits) -> tuple[Finding, ...]:
    """The fault that explains the others, by these facts alone."""
    disagreements = [*mismatch.detect(facts, limits), *skipped.detect(facts, limits), *splits.detect(facts, limits)]
    if disagreements:
        return (min(disagreements, key=itemgetter(0))[1],)
    return (
        frozen.detect(facts, limits)
        or dead.detect(facts, limits)
        or hang.detect(facts, limits)
    )


class Diagnosis:
    """Findings about stopping ranks, latched over the polls of one job; `asker` reads the stacks of suspects."""

    def __init__(self, limits: Limits | None = None, asker: Asker | None = None) -> None:
        self.limits = limits or Limits()
        self._asker = asker
        self.findings: list[Finding] = []
        self._moved_at: list[int | None] = []  # per finding: the slowest rank's step when it was found
        self._epoch = -1
        self._past = 0  # findings about ranks before the last restart

    def update(self, facts: JobFacts) -> tuple[Finding, ...]:
        """Findings that are new with these facts."""
        if facts.epoch != self._epoch:
            self._epoch, self._past = facts.epoch, len(self.findings)
        self._recover(facts)
        if self._holds(facts):
            return ()
        new = tuple(finding for finding in detect(facts, self.limits) if not self._known(finding))
        if self._asker:
            pids = {rank: known.pid for rank, known in facts.ranks.items() if known.alive}
            new = tuple(explain(finding, pids, self._asker) for finding in new)
        self.findings += new
        self._moved_at += [_slowest(facts)] * len(new)
        return new

    def _holds(self, facts: JobFacts) -> bool:
        """Whether a fault that was found still keeps the job where it was."""
        slowest = _slowest(facts)
        return any(
            finding.severity is Severity.CRITICAL and (at is None or slowest is None or slowest < at + _STEPS_ON)
            for finding, at in list(zip(self.findings, self._moved_at, strict=True))[self._past :]
        )

    def _known(self, new: Finding) -> bool:
        """Whether a fault that was found explains this one: the same culprit, or a group whose ranks are at odds."""
        return any(
            old.severity is Severity.CRITICAL
            and (set(new.ranks) & set(old.ranks) or (old.category == "desync" and new.group == old.group))
            for old in self.findings[self._past :]
        )

    def _recover(self, facts: JobFacts) -> None:
        slowest = _slowest(facts)
        running = all(stand in (Standing.RUNNING, Standing.LEFT) for stand in standings(facts, self.limits).values())
        for at, finding in enumerate(self.findings):
            if at < self._past:
                continue
            begun = self._moved_at[at]
            if finding.kind not in _RECOVERS or finding.severity is not Severity.CRITICAL or not running:
                continue
            if begun is not None and slowest is not None and slowest >= begun + _STEPS_ON:
                self.findings[at] = replace(
                    finding,
                    severity=Severity.WARNING,
                    message=f"{finding.message} The job went on later.",
                    evidence=finding.evidence | {"recovered": True},
                )


def _slowest(facts: JobFacts) -> int | None:
    steps = [rank.step for rank in facts.ranks.values()]
    return min(steps) if steps else None
