"""From what was found and what lies on disk to a plan: where to go on, what to leave out, what is not known. Pure.

    findings, checkpoints, facts of the run -> make -> Plan -> recovery.json (`to_json`), recovery.md (page.py)

The last good checkpoint is the newest one that is whole, whose bytes are what was written, and which was written before
the earliest evidence of corruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.policy.conditions import WRITTEN_IN_CODE
from ranksight.agent.policy.engine import FINAL
from ranksight.agent.recovery import advice, corruption, doubts
from ranksight.agent.recovery.checkpoints import Checkpoint, State
from ranksight.agent.recovery.command import resuming
from ranksight.agent.recovery.facts import RunFacts
from ranksight.agent.report.verdict import ordered

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """recovery.json; `to_json` says what the keys mean."""

    run: RunFacts
    findings: tuple[Finding, ...]
    corruption: corruption.Corruption | None
    checkpoint: Checkpoint | None
    tainted: tuple[Checkpoint, ...]
    unusable: tuple[Checkpoint, ...]
    skip: dict[str, int | None] | None
    unknown: tuple[str, ...]
    confidence: str

    @property
    def primary(self) -> Finding:
        """The root cause."""
        return self.findings[0]

    def to_json(self) -> dict[str, Any]:
        """The file, schema 1. Steps count from 0; `step` of a checkpoint is the number of steps done in it."""
        hosts = sorted({host for finding in self.findings if finding.kind in advice.BY_HOST for host in finding.hosts})
        ranks = sorted({rank for finding in self.findings if finding.kind in advice.BY_HOST for rank in finding.ranks})
        return {
            "schema": SCHEMA,
            "run": {
                "id": self.run.run_id, "exit_code": self.run.exit_code, "stopped": self.run.stopped,
                "world_size": self.run.world_size, "hosts": list(self.run.hosts), "directory": self.run.directory,
            },
            "verdict": self.primary.message,
            "evidence": [_evidence(finding) for finding in self.findings],
            "excluded": {"ranks": ranks, "hosts": hosts},
            "corruption": None if self.corruption is None else {
                "kind": self.corruption.kind, "clean_steps": self.corruption.clean_steps,
            },
            "checkpoint": None if self.checkpoint is None else _good(self.checkpoint),
            "tainted": [_passed_over(found, self._taint()) for found in self.tainted],
            "unusable": [_passed_over(found, found.why) for found in self.unusable],
            "skip": self.skip,
            "change": advice.change(self.primary.kind),
            "restart": self._restart(),
            "command": list(self.command),
            "confidence": self.confidence,
            "unknown": list(self.unknown),
        }  # fmt: skip

    @property
    def command(self) -> tuple[str, ...]:
        """The launcher's command that goes on from the checkpoint."""
        path = self.checkpoint.path if self.checkpoint else None
        return resuming(self.run.command, path, self.run.resume_arguments)

    def _taint(self) -> str:
        assert self.corruption is not None
        clean = self.corruption.clean_steps
        return f"written after {self.corruption.kind} was seen" + (f" in step {clean}" if clean is not None else "")

    def _restart(self) -> dict[str, Any]:
        if self.run.stopped and self.run.exit_code == FINAL:
            return {"sensible": False, "why": "the stop condition says that it is final"}
        if self.primary.kind in WRITTEN_IN_CODE:
            return {"sensible": False, "why": f"{self.primary.kind} is in the code or the data and comes back unless changed"}
        return {"sensible": True, "why": f"{self.primary.kind} need not come back"}


def make(findings: Sequence[Finding], found: Sequence[Checkpoint], run: RunFacts) -> Plan:
    """The plan after a run with findings; ValueError without any above a remark."""
    faults = tuple(finding for finding in ordered(findings) if finding.severity is not Severity.INFO)
    if not faults:
        raise ValueError("there is nothing to recover from")
    wrong = corruption.since(faults)
    unusable = tuple(item for item in found if not item.usable)
    tainted = tuple(item for item in found if item.usable and wrong is not None and wrong.taints(item.step))
    good = [item for item in found if item.usable and item not in tainted]
    newest = max(good, key=lambda item: (item.step or 0, item.state is State.SOUND), default=None)
    steps = corruption.suspect_steps(faults)
    skip = None if steps is None else _data(steps, run.cursors)
    unknown = doubts.unknown(faults, wrong, newest, bool(found), skip, run)
    confidence = doubts.confidence(faults, wrong, newest)
    return Plan(run, faults, wrong, newest, tainted, unusable, skip, unknown, confidence)


def _data(steps: tuple[int, int], cursors: dict[int, int]) -> dict[str, int | None]:
    begin, end = steps
    return {
        "begin_step": begin, "end_step": end, "begin_sample": cursors.get(begin), "end_sample": cursors.get(end, _next(begin, cursors)),
    }  # fmt: skip


def _next(step: int, cursors: dict[int, int]) -> int | None:
    """Where the batch after a step would have begun, when all batches are of one size."""
    if step in cursors and step - 1 in cursors:
        return 2 * cursors[step] - cursors[step - 1]
    return None


def _evidence(finding: Finding) -> dict[str, Any]:
    whole = finding.to_json()
    keys = ("kind", "severity", "message", "ranks", "hosts", "first_step", "last_step", "group", "layer", "call_site", "evidence")
    return {key: whole[key] for key in keys}


def _good(found: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(found.path), "step": found.step, "verified": found.state is State.SOUND,
        "cursor": found.facts.get("cursor"), "layout": found.facts.get("plan"),
    }  # fmt: skip


def _passed_over(found: Checkpoint, why: str) -> dict[str, Any]:
    return {"path": str(found.path), "step": found.step, "state": str(found.state), "why": why}
