"""Panels about what ranksight itself says, which more than one board shows: findings, the state of a stop, alerts."""

from __future__ import annotations

from collections.abc import Iterable

from ranksight.agent.findings import CATEGORY_OF
from ranksight.dashboards.panels import JOB, Panel, exported

STATES = ("no stop", "ranks are to leave", "processes are ended", "all ranks have left", "processes were ended", "the job was through")


def kinds(categories: Iterable[str]) -> str:
    """A matcher for the findings of some categories."""
    wanted = set(categories)
    return f'kind=~"{"|".join(sorted(kind for kind, category in CATEGORY_OF.items() if category in wanted))}"'


def findings(width: int, *matchers: str) -> Panel:
    """How many findings there are, by kind and severity."""
    query = f"sum by (run, kind, severity) ({exported('findings_total', *matchers)}) > 0"
    about = "Findings so far by kind and severity; report.json of the run has their ranks and evidence. Empty: none."
    return Panel("table", "Findings", about, [(f"sort_desc({query})", "")], "short", width)


def stop(width: int, height: int) -> Panel:
    """What became of the request to stop."""
    about = "Whether ranksight wants the job to stop, and how far that is. A stop is never taken back."
    query = f"max by (run) ({exported('stop_state')})"
    return Panel("state", "Stop", about, [(query, "{{run}}")], "short", width, height, states=STATES)


def alerts(width: int) -> Panel:
    """Alerts that wait or fire, of the rules made from the stop conditions."""
    query = f'sum by (alertname, severity, action, alertstate) (ALERTS{{alertname=~"Ranksight.*", {JOB}}})'
    about = "Alerts of dashboards/alerts/alerts.yml: pending until they have held for as long as their condition says, then firing."
    return Panel("table", "Alerts", about, [(query, "")], "short", width)
