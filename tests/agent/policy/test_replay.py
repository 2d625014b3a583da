"""A policy over runs that are over: what it would have stopped, when, and what that saves or costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ranksight.agent import cli
from ranksight.agent.errors import RanksightError
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.policy.conditions import StopConditions
from ranksight.agent.policy.replay import recorded, replay


def slow(last_step: int | None, kind: str = "straggler") -> dict[str, Any]:
    return Finding(
        kind=kind, severity=Severity.CRITICAL, message="It is slow.", advice="", ranks=(1,), last_step=last_step,
        detected_step=3,
    ).to_json()  # fmt: skip


def run(folder: Path, *lines: tuple[float, int, dict[str, Any] | None], exit_code: int = 0) -> Path:
    folder.mkdir()
    entries = [{"time": 1e9 + at, "step": step, "finding": finding} for at, step, finding in ((0, None, None), *lines)]
    (folder / "findings.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    report = {"run": {"world_size": 4, "exit_code": exit_code}, "findings": [slow(9)]}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def policy(**condition: Any) -> StopConditions:
    return StopConditions.model_validate({"conditions": [{"name": "c", "kinds": ["straggler"], "action": "stop"} | condition]})


def test_slowness_that_lasts_is_stopped_when_its_time_is_up(tmp_path: Path) -> None:
    done = run(tmp_path / "a", (10, 5, slow(5)), (40, 30, slow(30)), (90, 70, slow(70)), (1000, 700, None))
    outcome = replay(policy(persist_seconds=60), done)
    assert (outcome.at_seconds, outcome.at_step, outcome.seconds_after, outcome.steps_after) == (90, 70, 910, 630)
    assert outcome.words == "costs a restart: the run got to its end, 910 s, 1.01 rank-hours, 630 steps after it"


def test_a_run_that_failed_anyway_is_a_gain(tmp_path: Path) -> None:
    done = run(tmp_path / "a", (10, 5, slow(None, "rank_not_joined")), (1810, 5, None), exit_code=1)
    outcome = replay(policy(kinds=["rank_not_joined"], persist_seconds=30), done)
    assert outcome.at_seconds == 40
    assert outcome.words == "saves 1770 s, 1.97 rank-hours, 0 steps after it"


def test_slowness_that_passed_is_not_stopped(tmp_path: Path) -> None:
    done = run(tmp_path / "a", (10, 5, slow(5)), (40, 30, slow(30)), (1000, 700, None))
    assert replay(policy(persist_seconds=60), done).words == "not stopped"


def test_what_is_observed_is_told_and_stops_nothing(tmp_path: Path) -> None:
    outcome = replay(policy(action="observe"), run(tmp_path / "a", (10, 5, slow(5)), (20, 9, None)))
    assert outcome.stop is None
    assert [decision.condition for decision in outcome.observed] == ["c"]


def test_without_a_log_the_findings_of_the_report_count(tmp_path: Path) -> None:
    done = run(tmp_path / "a")
    (done / "findings.jsonl").unlink()
    assert [(entry.step, entry.finding and entry.finding.kind) for entry in recorded(done)] == [(3, "straggler")]
    assert replay(policy(), done).words == "how long the run went on is not known"


def test_a_broken_log_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "a")
    (done / "findings.jsonl").write_text("{")
    with pytest.raises(RanksightError, match=r"findings\.jsonl: can't read it"):
        recorded(done)


def test_the_command_says_what_happens_to_each_run(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(
        '[[conditions]]\nname = "c"\nkinds = ["straggler"]\naction = "kill"\n'
        '[[conditions]]\nname = "m"\nmetric = "ranksight_loss"\nthreshold = 9\n'
    )
    one, two = run(tmp_path / "a", (10, 5, slow(5)), (20, 9, None)), run(tmp_path / "b", (20, 9, None))
    result = CliRunner().invoke(cli.app, ["policy", "replay", str(path), str(one), str(two)], env={"COLUMNS": "200"})
    assert result.stdout.splitlines() == [
        f"{one}: costs a restart: the run got to its end, 10 s, 0.0111 rank-hours, 4 steps after it",
        "  c: kill after 10 s, in step 5, exit code 75. It is slow.",
        f"{two}: not stopped",
        "not replayed, because metrics are not recorded: m",
    ]
