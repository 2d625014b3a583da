"""Alerts: made from stop conditions, about metrics that exist, silent while nothing is wrong and firing when it is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from ranksight.agent.policy import conditions
from ranksight.agent.policy.conditions import Action, Condition, StopConditions
from ranksight.dashboards import alert_rules
from tests.support.promql import names_and_labels
from tests.support.series import EXPORTED

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks.md"
POLICY = conditions.load(alert_rules.ALERTS / "stop_conditions.toml")
AT = 'job="train",instance="h0"'
FINDINGS = f"ranksight_findings_total{{{AT},kind=%r,severity=%r}}"
P99 = f'ranksight_step_duration_tail_seconds{{{AT},rank="0",window="5m",tail="p99"}}'

# Per alert: series that leave it silent, series that make it fire; one sample every 15 s, looked at after 20 minutes.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "RanksightNotFinite": (
        {FINDINGS % ("nonfinite", "warning"): "1x80", FINDINGS % ("loss_spike", "critical"): "1x80"},
        {FINDINGS % ("nonfinite", "critical"): "0x78 1x2"},
    ),
    "RanksightDesync": (
        {FINDINGS % ("nonfinite", "critical"): "1x80"},
        {FINDINGS % ("replica_desync", "critical"): "1x80"},
    ),
    "RanksightStandstill": (
        {FINDINGS % ("deadlock", "critical"): "0x79 1"},  # not yet for 30 s
        {FINDINGS % ("deadlock", "critical"): "0x76 1x4"},
    ),
    "RanksightSlowRank": (
        {FINDINGS % ("straggler", "info"): "1x80", FINDINGS % ("straggler", "warning"): "0x60 1x20"},
        {FINDINGS % ("straggler", "warning"): "1x80"},
    ),
    "RanksightSlowSteps": ({P99: "29x80"}, {P99: "31x80"}),
    "RanksightObserverGone": (
        {f"up{{{AT}}}": "1x80", f'ranksight_run_info{{{AT},run="r1"}}': "1x80", 'up{job="other",instance="h9"}': "0x80"},
        {f"up{{{AT}}}": "1x70 0x10", f'ranksight_run_info{{{AT},run="r1"}}': "1x70"},
    ),
    "RanksightObserverStalled": (
        {f"ranksight_agent_polls_total{{{AT}}}": "0+60x80"},
        {f"ranksight_agent_polls_total{{{AT}}}": "0+60x70 4200x10"},
    ),
}
ALERTS = {alert.name: alert for alert in alert_rules.alerts(POLICY)}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)


def headings() -> set[str]:
    return {line[3:].lower() for line in RUNBOOKS.read_text().splitlines() if line.startswith("## ")}


def test_the_committed_rules_are_what_the_generator_writes(tmp_path: Path) -> None:
    alert_rules.write(tmp_path)
    assert (tmp_path / "alerts.yml").read_text() == (alert_rules.ALERTS / "alerts.yml").read_text()


def test_every_alert_has_a_case_and_a_runbook() -> None:
    assert {*CASES, "RanksightWatchdog"} == set(ALERTS)
    for alert in ALERTS.values():
        assert alert.section in headings(), alert.name


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_ask_for_series_that_exist_with_the_labels_they_have(name: str) -> None:
    for metric, labels in names_and_labels(promql_parser.parse(ALERTS[name].expr)):
        known = {**EXPORTED, "up": {"job", "instance"}}
        assert metric in known, metric
        assert labels <= known[metric] | {"job", "instance"}, (metric, labels)


def case(folder: Path, policy: StopConditions, name: str, series: dict[str, str], firing: bool) -> tuple[int, str]:
    """What promtool says of whether one alert, and with it its labels, is as said."""
    rules = folder / "alerts.yml"
    rules.write_text(alert_rules.render(policy))
    alert = next(alert for alert in alert_rules.alerts(policy) if alert.name == name)
    labels = {"severity": alert.severity, "action": alert.action, "job": "train", "instance": "h0"}
    labels |= {"condition": alert.condition} if alert.condition else {}
    more = {"rank": "0", "window": "5m", "tail": "p99"} if name == "RanksightSlowSteps" else {}
    annotations = {
        key: re.sub(r"{{ \$labels.instance }}", "h0", text) for key, text in _annotations(alert).items()
    }  # fmt: skip
    expected = [{"exp_labels": labels | more, "exp_annotations": annotations}] if firing else []
    content: dict[str, Any] = {
        "rule_files": [str(rules)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": key.replace("'", '"'), "values": values} for key, values in series.items()],
                "alert_rule_test": [{"eval_time": "20m", "alertname": name, "exp_alerts": expected}],
            }
        ],
    }
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump(content))
    ran = promtool("test", "rules", path)
    return ran.returncode, ran.stdout + ran.stderr


def _annotations(alert: alert_rules.Alert) -> dict[str, str]:
    annotations: Any = alert.rule(alert_rules.RUNBOOKS)["annotations"]
    return dict(annotations)


@pytest.mark.system("promtool")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("firing", [False, True], ids=["silent", "firing"])
def test_each_alert_is_silent_and_fires(tmp_path: Path, name: str, firing: bool) -> None:
    code, said = case(tmp_path, POLICY, name, CASES[name][firing], firing)
    assert code == 0, said


@pytest.mark.system("promtool")
@pytest.mark.parametrize(("ranks", "firing"), [(1, False), (2, True)])
def test_a_condition_on_a_number_of_series_counts_them(tmp_path: Path, ranks: int, firing: bool) -> None:
    crowd = Condition(
        name="few-beats", metric="ranksight_step_duration_tail_seconds", labels={"tail": "p99"}, threshold=1.5,
        side="below", count=2,
    )  # fmt: skip
    series = {
        f'ranksight_step_duration_tail_seconds{{{AT},rank="{rank}",window="5m",tail="p99"}}': f"{1 if rank < ranks else 2}x80"
        for rank in range(3)
    }
    code, said = case(tmp_path, StopConditions(conditions=(crowd,)), "RanksightFewBeats", series, firing)
    assert code == 0, said


def test_what_only_the_agent_can_judge_stops_nothing_here() -> None:
    def action(**more: Any) -> str:
        return alert_rules.of_condition(Condition(name="c", action=Action.STOP, **more)).action

    assert action(kinds=("nonfinite",), persist_seconds=60) == "stop"
    assert action(kinds=("straggler",)) == "stop"
    assert action(kinds=("straggler",), persist_seconds=60) == "observe"
    assert action(kinds=("nonfinite",), exempt_phases=("evaluation",)) == "observe"


def test_runbook_links_can_lead_to_any_address() -> None:
    rules = yaml.safe_load(alert_rules.render(POLICY, "https://wiki/runbooks"))["groups"][0]["rules"]
    assert rules[0]["annotations"]["runbook_url"] == "https://wiki/runbooks#nonfinite"
