"""What a policy would have done in runs that are over.

    run directory -> findings.jsonl -> recorded -> Engine -> replay -> Outcome (what, when, what went on after it)

Findings are given to the engine at the times at which they were found, got worse and went on, and the time passes
between them, so that persistence is judged as it would have been. Metrics are not recorded: conditions on them are not
replayed, and said so. A run recorded without findings.jsonl has the findings of its report, found when the report says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ranksight.agent import files
from ranksight.agent.errors import RunDirError
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.policy.audit import FINDINGS_FILE
from ranksight.agent.policy.conditions import Action, StopConditions
from ranksight.agent.policy.engine import Decision, Engine, Look

_FIELDS = {field.name: field for field in fields(Finding)}
_LISTS = ("ranks", "hosts", "experts")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of findings.jsonl. `seconds` since the first one; `finding` None: the begin or the end of the job."""

    seconds: float
    step: int | None
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What would have happened to one run. `stop` None: it would have gone on; `observed` are decisions without effect."""

    run_dir: Path
    stop: Decision | None
    at_seconds: float | None
    at_step: int | None
    seconds_after: float | None  # for so long the run went on after it
    steps_after: int | None
    ranks: int | None
    exit_code: int | None
    observed: tuple[Decision, ...]

    @property
    def words(self) -> str:
        """What the stop would have saved, or cost."""
        if self.stop is None:
            return "not stopped"
        if self.seconds_after is None or self.ranks is None:
            return "how long the run went on is not known"
        hours = self.seconds_after * self.ranks / 3600
        spent = f"{self.seconds_after:.0f} s, {hours:.3g} rank-hours, {self.steps_after or 0} steps after it"
        return f"saves {spent}" if self.exit_code != 0 else f"costs a restart: the run got to its end, {spent}"


def recorded(run_dir: Path) -> list[Entry]:
    """The findings of a run in time. RunDirError when the directory holds neither file, or lines that can't be read."""
    path = run_dir / FINDINGS_FILE
    if not path.exists():
        report = files.read_json(run_dir / "report.json")
        found = [_finding(entry) for entry in report["findings"]]
        return [Entry(0.0, finding.detected_step, finding) for finding in found]
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [
            Entry(line["time"] - lines[0]["time"], line["step"], line["finding"] and _finding(line["finding"]))
            for line in lines
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirError(f"{path}: can't read it: {error}") from error


def replay(policy: StopConditions, run_dir: Path) -> Outcome:
    """Run the policy over a recorded run, up to its first stop."""
    entries = recorded(run_dir)
    engine, observed = Engine(policy), []
    world, code = _about(run_dir)
    end = entries[-1] if len(entries) > 1 and entries[-1].finding is None else None
    for seconds, step, findings in _looks(entries, policy):
        for decision in engine.look(Look(round(seconds * 1e9), findings)):
            if decision.action is Action.OBSERVE:
                observed.append(decision)
                continue
            after = None if end is None else max(end.seconds - seconds, 0.0)
            steps = None if end is None or end.step is None or step is None else max(end.step - step, 0)
            return Outcome(run_dir, decision, seconds, step, after, steps, world, code, tuple(observed))
    return Outcome(run_dir, None, None, None, None, None, world, code, tuple(observed))


def _looks(entries: list[Entry], policy: StopConditions) -> Iterator[tuple[float, int | None, tuple[Finding, ...]]]:
    """The engine's looks: at each entry, and when a condition's time may be up."""
    waits = sorted({condition.persist_seconds for condition in policy.conditions})
    last = entries[-1].seconds if entries else 0.0
    times = {entry.seconds for entry in entries}
    times |= {entry.seconds + wait for entry in entries if entry.finding for wait in waits}
    current: dict[tuple[object, ...], Finding] = {}
    step: int | None = None
    waiting = list(entries)
    for now in sorted(time for time in times if time <= last):
        while waiting and waiting[0].seconds <= now:
            entry = waiting.pop(0)
            step = entry.step if entry.step is not None else step
            if entry.finding is not None:
                found = entry.finding
                current[found.kind, found.ranks, found.stage, found.layer, found.group] = found
        yield now, step, tuple(current.values())


def _finding(entry: dict[str, Any]) -> Finding:
    """A finding from its JSON; fields that this version does not know are left out."""
    known = {name: value for name, value in entry.items() if name in _FIELDS}
    known |= {name: tuple(known[name]) for name in _LISTS if name in known}
    return Finding(**known | {"severity": Severity(known["severity"])})


def _about(run_dir: Path) -> tuple[int | None, int | None]:
    """World size and exit code, None where the run does not say."""
    try:
        run = files.read_json(run_dir / "report.json")["run"]
    except (RunDirError, KeyError):
        return None, None
    return run.get("world_size"), run.get("exit_code")
