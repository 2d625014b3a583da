"""The end of a run in the terminal: the verdict, the tails of the collectives, speed, and where the report is.

report.json -> render(report, console)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNKNOWN = "-"
FULL_WIDTH = 76  # that the table needs with all its columns


def render(report: dict[str, Any], console: Console, report_path: str) -> None:
    """Print a report in at most 80 columns and about 30 lines; a narrower console gets fewer columns of the table."""
    verdict = report["verdict"]
    style = "green" if verdict["healthy"] else "bold red"
    rows = report["collectives"].get("by_op", [])
    if rows:
        console.print(_collectives(rows, console.width))
    speed = _speed(report)
    if speed:
        console.print(speed, highlight=False)
    words = "healthy" if verdict["healthy"] else "not healthy"
    console.print(Text.assemble((words, style), f": {verdict['headline']}"))
    for number, finding in enumerate(report["findings"][:8]):
        if number != verdict["primary"]:
            console.print(f"  {finding['severity']} {finding['kind']}: {finding['message']}", markup=False, highlight=False)
    primary = report["findings"][verdict["primary"]] if verdict["primary"] is not None else None
    if primary:
        console.print(f"  {primary['advice']}", markup=False, highlight=False)
    stop = report.get("stop")
    if stop:
        console.print(_stop(stop), markup=False, highlight=False)
    console.print(f"report: {report_path}", markup=False, highlight=False, soft_wrap=True)


def _stop(stop: dict[str, Any]) -> str:
    done = {
        "left": f"stopped: all ranks left after step {stop['step']}",
        "ended": "stopped: the processes were ended",
        "completed": "not stopped: the job was through first",
        "observed": f"not stopped, observed only ({stop['action']})",
    }
    why = f"because of {stop['finding']['kind']}" if stop["finding"] else f"because {stop['reason']}"
    return f"{done.get(stop['state'], 'stopping')}, {why}"


def _collectives(rows: list[dict[str, Any]], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    left_out = {"count", "bytes"} if width < FULL_WIDTH else set()
    cells = [{column: say(row) for column, say in _COLUMNS.items() if column not in left_out} for row in rows]
    for name in cells[0]:
        if name in {"axis", "op"}:
            table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=22)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*row.values())
    return table


def _speed(report: dict[str, Any]) -> str:
    per_rank = report.get("steps", {}).get("per_rank", [])
    medians = [row["seconds"]["p50"] for row in per_rank if row["seconds"] and row["seconds"]["p50"]]
    if not medians:
        return ""
    step = sorted(medians)[len(medians) // 2]
    words = [f"{report['run']['steps']} steps", f"{1 / step:.2f} steps/s (median step {seconds(step)})"]
    rates = [row["job_tokens"] / row["step_seconds"] for row in per_rank if row["job_tokens"] and row["step_seconds"]]
    if rates:
        words.append(f"{sum(rates) / len(rates):,.0f} tokens/s")
    fraction = report["overhead"].get("fraction")
    if fraction is not None:
        words.append(f"hooks {100 * fraction:.2f} % of the step")
    return ", ".join(words)


def seconds(value: float | None) -> str:
    """A duration with three digits and a unit: 12.3 ms."""
    if value is None:
        return UNKNOWN
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * factor:.3g} {unit}" if value * factor < 100 else f"{value * factor:.0f} {unit}"
    return f"{value:.3g} s"


def size(value: float | None) -> str:
    """Bytes with three digits and a binary unit."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "axis": lambda row: str(row["axis"]),
    "op": lambda row: str(row["op"]),
    "count": lambda row: f"{row['count']:,}",
    "p50": lambda row: seconds(row["duration_seconds"]["p50"]),
    "p99": lambda row: seconds(row["duration_seconds"]["p99"]),
    "wait p99": lambda row: seconds(row["wait_seconds"]["p99"]),
    "transfer": lambda row: seconds(row["transfer_seconds"]["p50"]),
    "bytes": lambda row: size(row["bytes"]),
}
