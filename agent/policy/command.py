"""`ranksight policy check F`: read a file of stop conditions and say what each of them does."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from ranksight.agent.policy import conditions


def check(path: Path, console: Console) -> None:
    """Print the conditions in `path`; ConfigError when it can't be used."""
    policy = conditions.load(path)
    table = Table(box=None, pad_edge=False)
    for title in ("condition", "fires on", "for", "not during", "action"):
        table.add_column(title, overflow="fold")
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
