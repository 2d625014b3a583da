"""report.json says what was done about which finding."""

from __future__ import annotations

from typing import Any

import pytest

from ranksight.agent.report.build import acted_on

NAN = {"kind": "nonfinite", "ranks": [1]}


@pytest.mark.parametrize(
    ("stop", "actions"),
    [
        (None, ["observe", "observe"]),
        ({"state": "observed", "action": "stop", "finding": NAN}, ["observe", "observe"]),
        ({"state": "left", "action": "stop", "finding": NAN}, ["observe", "stop"]),
        ({"state": "left", "action": "stop", "finding": None}, ["observe", "observe"]),
    ],
)
def test_the_finding_that_stopped_the_job_has_its_action(stop: dict[str, Any] | None, actions: list[str]) -> None:
    findings = [{"kind": "nonfinite", "ranks": [0], "action": "observe"}, NAN | {"action": "observe"}]
    assert [finding["action"] for finding in acted_on(findings, stop)] == actions
