"""`ranksight trace D --step N [-o F.json]`: write one step of a run as a timeline for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

from ranksight.agent import files
from ranksight.agent.archive.read import Archive, open_archive
from ranksight.agent.errors import RunDirError
from ranksight.agent.traces.chrome import chrome
from ranksight.agent.traces.view import StepView, view


def write_trace(run_dir: Path, step: int, out: Path | None = None) -> Path:
    """Write the timeline of a step; returns where. RunDirError when the archive does not hold the step."""
    archive = open_archive(run_dir)
    path = out or run_dir / f"trace-step-{step}.json"
    files.write_atomically(path, json.dumps(chrome(step_view(run_dir, archive, step), archive.run_id)).encode())
    return path


def step_view(run_dir: Path, archive: Archive, step: int) -> StepView:
    """What the archive holds of a step, on the clock of the calendar; RunDirError when that is nothing."""
    clocks = archive.clocks()
    calendar = dict.fromkeys(archive.wall_offset_ns, archive.wall_offset_ns[clocks.reference])
    collectives, events = clocks.corrected(archive.collectives(step)), clocks.corrected(archive.events(step))
    found = view(step, collectives, events, calendar, clocks.least_skew_ns)
    if not found.ranks:
        held = archive.steps()
        there = f"it holds steps {held[0]} to {held[1]}" if held else "it holds no finished step"
        raise RunDirError(f"{run_dir}: the archive holds nothing of step {step}; {there}")
    return found
