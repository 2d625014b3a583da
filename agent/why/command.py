"""`ranksight why D --step N [--json]`: print why a step of a recorded run was bad."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TextIO

from ranksight.agent import files
from ranksight.agent.archive.read import open_archive
from ranksight.agent.errors import RunDirError
from ranksight.agent.why import answer
from ranksight.agent.why.records import window


def why(run_dir: Path, step: int, as_json: bool = False, out: TextIO | None = None) -> None:
    """Print the answer. RunDirError when there is no archive, or it does not hold the step."""
    archive = open_archive(run_dir)
    seen = window(archive, step)
    if not any(call.step == step for calls in seen.calls.values() for call in calls):
        held = archive.steps()
        has = f"steps {held[0]} to {held[1]}" if held else "no finished step"
        raise RunDirError(f"{run_dir}: the archive holds nothing of step {step}; it has {has}")
    report = run_dir / "report.json"
    findings = files.read_json(report).get("findings", []) if report.exists() else []
    told = answer.answer(seen, findings)
    print(json.dumps(told, indent=2) if as_json else answer.text(told), file=out or sys.stdout)
