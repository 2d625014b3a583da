"""report.json as Markdown, for an issue, a chat or a pull request: verdict, findings, tails, completeness.

report -> render -> text
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ranksight.agent.report.console import UNKNOWN, seconds, size


def render(report: dict[str, Any]) -> str:
    """The report as a document of a screen or two."""
    verdict, run = report["verdict"], report["run"]
    blocks = [
        f"# ranksight: {'healthy' if verdict['healthy'] else 'not healthy'}",
        text(verdict["headline"]),
        _table(
            ("run", "ranks", "steps", "exit code", "tap"),
            [(run["id"], run["world_size"], run["steps"], run["exit_code"], run["tap"])],
        ),
        *_findings(report["findings"]),
        *_budget(report.get("budget") or {}),
        *_tails(report.get("collectives", {}).get("by_op", [])),
        *_completeness(report["completeness"]),
    ]
    return "\n\n".join(blocks) + "\n"


def text(value: object) -> str:
    """A value that can't break out of a line or of a table's cell."""
    if value is None:
        return UNKNOWN
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _findings(findings: list[dict[str, Any]]) -> Iterable[str]:
    if not findings:
        return
    yield "## Findings"
    for finding in findings:
        cause = f" ({finding['cause']})" if finding["cause"] else ""
        site = f" At `{text(finding['call_site'])}`." if finding["call_site"] else ""
        yield f"- **{finding['severity']} {finding['kind']}**{cause}: {text(finding['message'])}{site} {text(finding['advice'])}"


def _budget(budget: dict[str, Any]) -> Iterable[str]:
    rows = budget.get("per_rank")
    if rows:
        parts = budget["parts"]
        yield "## Step budget"
        yield _table(("rank", *parts), [(row["rank"], *(seconds(row["seconds"].get(part)) for part in parts)) for row in rows])


def _tails(rows: list[dict[str, Any]]) -> Iterable[str]:
    if rows:
        heads = ("axis", "op", "count", "p50", "p99", "p99.9", "max", "wait p99", "transfer p50", "bytes")
        yield "## Collectives"
        yield _table(heads, [_tail(row) for row in rows])


def _tail(row: dict[str, Any]) -> tuple[object, ...]:
    duration = (seconds(row["duration_seconds"][name]) for name in ("p50", "p99", "p999", "max"))
    wait, transfer = row["wait_seconds"]["p99"], row["transfer_seconds"]["p50"]
    return (row["axis"], row["op"], row["count"], *duration, seconds(wait), seconds(transfer), size(row["bytes"]))


def _completeness(facts: dict[str, Any]) -> Iterable[str]:
    yield "## Completeness"
    keys = ("ranks_expected", "ranks_seen", "records_written", "records_dropped")
    yield _table([key.replace("_", " ") for key in keys], [[facts[key] for key in keys]])
    if facts["notes"]:
        yield "\n".join(f"- {text(note)}" for note in facts["notes"])


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
