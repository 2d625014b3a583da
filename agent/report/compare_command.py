"""`ranksight compare` in the terminal: the headline, what changed, what can't be told.

two run directories -> report.json of each -> compare -> text or JSON on stdout
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ranksight.agent import files
from ranksight.agent.report.compare import SAME, UNKNOWN, compare
from ranksight.agent.report.console import seconds


def run(first: Path, second: Path, *, everything: bool, json_output: bool, console: Console) -> None:
    """Compare two runs; RanksightError when one has no report."""
    found = compare(files.read_report(first), files.read_report(second))
    if json_output:
        sys.stdout.write(files.to_json(found))
    else:
        render(found, everything=everything, console=console)


def render(found: dict[str, Any], *, everything: bool, console: Console) -> None:
    """Changed rows and the step's; all of them with `everything`."""
    console.print(found["headline"], highlight=False, markup=False)
    rows = [row for row in found["rows"] if everything or row["what"] == "step" or row["answer"] not in {SAME, UNKNOWN}]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("what", ""):
        table.add_column(name, overflow="fold")
    for name in ("first", "second", "change", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("answer", overflow="fold")
    for row in rows:
        interval = "-" if row["low"] is None else f"{100 * row['low']:+.0f} to {100 * row['high']:+.0f} %"
        change = "-" if row["change"] is None else f"{100 * row['change']:+.1f} %"
        table.add_row(
            row["what"], row["quantile"], seconds(row["first"]), seconds(row["second"]), change, interval,
            f"{row['answer']}: {row['why']}" if row["why"] else row["answer"],
        )  # fmt: skip
    console.print(table)
    for figure in found["figures"]:
        console.print(f"{figure['what']}: {figure['first']:,.4g}, then {figure['second']:,.4g}", highlight=False)
    if not everything:
        hidden = [row["answer"] for row in found["rows"] if row not in rows]
        console.print(
            f"{hidden.count(SAME)} more are the same, of {hidden.count(UNKNOWN)} it can't be told (--all shows them).",
            highlight=False,
        )
    for note in found["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)
