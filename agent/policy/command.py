"""`ranksight policy`: what the conditions of a file do, and what they would have done in recorded runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ranksight.agent import files, progress
from ranksight.agent.policy import conditions
from ranksight.agent.policy.replay import Outcome, replay


def check(path: Path, console: Console, *, json_output: bool = False) -> None:
    """Print the conditions in `path`; ConfigError when it can't be used."""
    policy = conditions.load(path)
    if json_output:
        sys.stdout.write(files.to_json(policy.model_dump(mode="json")))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("condition", "fires on", "for", "not during", "action"):
        table.add_column(title, overflow="fold", no_wrap=title in {"condition", "for", "action"})
    for condition in policy.conditions:
        table.add_row(
            condition.name,
            condition.subject,
            f"{condition.persist_seconds:g} s",
            ", ".join(condition.exempt_phases) or "-",
            str(condition.action),
        )
    console.print(table)
    count = len(policy.conditions)
    dry = ", dry run: nothing is done" if policy.dry_run else ""
    console.print(f"{path}: {count} condition{'s' * (count != 1)}{dry}", highlight=False, soft_wrap=True, markup=False)


def replay_runs(
    path: Path, run_dirs: Sequence[Path], console: Console, stderr: Console, *, json_output: bool = False
) -> None:
    """Print what the policy in `path` would have done in each run; RanksightError names what can't be read."""
    policy = conditions.load(path)
    shown = progress.each(run_dirs, len(run_dirs), "runs", stderr)
    outcomes = [replay(policy, run_dir) for run_dir in shown]
    names = [condition.name for condition in policy.conditions if condition.metric]
    if json_output:
        sys.stdout.write(files.to_json({"runs": [_plain(outcome) for outcome in outcomes], "not_replayed": names}))
        return
    for outcome in outcomes:
        for line in _lines(outcome):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if names:
        console.print(f"not replayed, because metrics are not recorded: {', '.join(names)}", markup=False, highlight=False)


def _plain(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome) | {"run_dir": str(outcome.run_dir), "words": outcome.words}


def _lines(outcome: Outcome) -> list[str]:
    lines = [f"{outcome.run_dir}: {outcome.words}"]
    decisions = [*outcome.observed, *([outcome.stop] if outcome.stop is not None else [])]
    for decision in decisions:
        when = ""
        if decision is outcome.stop:
            when = f" after {outcome.at_seconds:.0f} s" + (f", in step {outcome.at_step}" if outcome.at_step is not None else "")
        lines.append(f"  {decision.condition}: {decision.action}{when}, exit code {decision.exit_code}. {decision.reason}")
    return lines
