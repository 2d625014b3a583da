"""report.json, schema 1: what the agent saw of a run and what it makes of it.

    Observer -> build -> dict -> files.write_json
    nothing  -> missing        the report of a run whose agent left none

Keys that no part of this version fills are empty objects, never invented numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.report.verdict import judge, ordered

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer  # brings numpy, which `ranksight run` itself can do without

SCHEMA = 1


def build(observer: Observer, run_id: str, exit_code: int | None, extra: Iterable[Finding] = ()) -> dict[str, Any]:
    """The whole report. `exit_code` None: the launcher still runs, or nobody knows."""
    sections = observer.report_sections()
    ranks: Any = sections["ranks"]
    steps = [observer.steps_of(rank["rank"]).steps for rank in ranks]
    findings = ordered((*observer.findings(), *extra))
    taps = {rank["tap"] for rank in ranks}
    report = {
        "schema": SCHEMA,
        "run": {
            "id": run_id,
            "exit_code": exit_code,
            "world_size": max((rank["world_size"] for rank in ranks), default=None),
            "steps": max(steps, default=None),
            "tap": taps.pop() if len(taps) == 1 else "mixed" if taps else None,
        },
        "verdict": judge(findings, len(ranks), max(steps, default=None)).to_json(),
        "findings": acted_on([finding.to_json() for finding in findings], sections.get("stop")),
        "budget": {},
        "pipeline": {},
        "experts": {},
        "goodput": {},
    }
    whole: dict[str, Any] = json_safe(report | sections)
    return whole


def acted_on(findings: list[dict[str, Any]], stop: Any) -> list[dict[str, Any]]:
    """The findings with `action` on the one that stopped the job, as `stop` of the report says."""
    cause = stop["finding"] if stop and stop["state"] != "observed" else None
    for finding in findings:
        if cause is not None and (finding["kind"], finding["ranks"]) == (cause["kind"], cause["ranks"]):
            finding["action"] = stop["action"]
    return findings


def missing(run_id: str, exit_code: int, why: str) -> dict[str, Any]:
    """The report of a run that nobody watched to its end: never healthy."""
    finding = Finding(
        kind="incomplete_data",
        severity=Severity.WARNING,
        message=f"There are no records of this run: {why}",
        advice="See agent.log in the run directory.",
    )
    return {
        "schema": SCHEMA,
        "run": {"id": run_id, "exit_code": exit_code, "world_size": None, "steps": None, "tap": None},
        "verdict": judge((finding,), 0, None).to_json(),
        "findings": [finding.to_json()],
        "completeness": {
            "ranks_expected": None, "ranks_seen": 0, "records_written": None, "records_dropped": None,
            "notes": [finding.message],
        },
        "budget": {}, "collectives": {}, "pipeline": {}, "experts": {}, "goodput": {},
        "overhead": {"hook_seconds": None, "fraction": None},
    }  # fmt: skip


def json_safe(value: Any) -> Any:
    """`value` with numbers that JSON does not have as their names, and tuples as lists."""
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
