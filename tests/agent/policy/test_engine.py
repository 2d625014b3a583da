"""Conditions and what was seen go in, decisions come out: literal tables."""

from __future__ import annotations

from typing import Any

import pytest

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.policy.conditions import Condition, StopConditions
from ranksight.agent.policy.engine import Engine, Look, describe

SECOND = 1_000_000_000


def finding(kind: str = "nonfinite", **more: Any) -> Finding:
    return Finding(**{"kind": kind, "severity": Severity.CRITICAL, "message": "It is so.", "advice": "", "ranks": (1,)} | more)


def engine(restarts: int = 0, *, top: dict[str, Any] | None = None, **condition: Any) -> Engine:
    if "metric" not in condition:
        condition.setdefault("kinds", ("nonfinite",))
    return Engine(StopConditions(conditions=(Condition(name="c", **condition),), **top or {}), restarts)


def fired(machine: Engine, seconds: float, *findings: Finding, **more: Any) -> bool:
    return bool(machine.look(Look(round(seconds * SECOND), findings, **more)))


@pytest.mark.parametrize(
    ("seen", "fires"),
    [
        (finding(), True),
        (finding("straggler"), False),
        (finding(severity=Severity.WARNING), False),
    ],
)
def test_kind_and_severity_decide(seen: Finding, fires: bool) -> None:
    assert fired(engine(), 0, seen) is fires


def test_a_finding_fires_a_condition_once() -> None:
    machine = engine(top={"cool_down_seconds": 10.0})
    assert fired(machine, 0, finding())
    assert not fired(machine, 100, finding())
    assert fired(machine, 200, finding(), finding(ranks=(2,)))
    assert not fired(machine, 205, finding(ranks=(3,)))  # quiet
    assert fired(machine, 211, finding(ranks=(3,)))


def test_what_stands_still_persists_until_it_is_resolved() -> None:
    machine = engine(kinds=("rank_frozen",), persist_seconds=10.0)
    assert not fired(machine, 0, finding("rank_frozen"))
    assert not fired(machine, 9, finding("rank_frozen", severity=Severity.WARNING))  # it went on
    assert not fired(machine, 10, finding("rank_frozen"))
    assert fired(machine, 20, finding("rank_frozen"))


def test_slowness_persists_as_far_as_new_steps_show_it() -> None:
    machine = engine(kinds=("straggler",), persist_seconds=10.0)
    assert not fired(machine, 0, finding("straggler", last_step=20))
    assert not fired(machine, 8, finding("straggler", last_step=40))
    assert not fired(machine, 60, finding("straggler", last_step=40))  # it got well and is in the report only
    assert fired(machine, 61, finding("straggler", last_step=90))


def test_so_many_must_count_at_one_time() -> None:
    machine = engine(count=2)
    assert not fired(machine, 0, finding())
    (decision,) = machine.look(Look(SECOND, (finding(), finding(ranks=(0,)))))
    assert decision.ranks == (0, 1)
    assert decision.reason == "It is so. (and 1 more)"


def test_phases_are_exempt() -> None:
    machine = engine(exempt_phases=("checkpoint",))
    assert not fired(machine, 0, finding(), phase={1: "checkpoint"}.get)
    assert fired(machine, 1, finding(), phase={0: "checkpoint", 1: "forward"}.get)


def series(**values: float) -> dict[str, Any]:
    return {"ranksight_loss": [({"rank": rank.removeprefix("r")}, value) for rank, value in values.items()]}


def test_a_metric_must_be_beyond_without_a_gap() -> None:
    machine = engine(metric="ranksight_loss", threshold=5.0, persist_seconds=10.0)
    assert not fired(machine, 0, series=series(r0=6.0, r1=1.0))
    assert not fired(machine, 5, series={})  # not looked at
    assert not fired(machine, 9, series=series(r0=4.0))
    assert not fired(machine, 12, series=series(r0=6.0))
    assert not fired(machine, 15, series={"ranksight_loss": []})  # it is gone
    assert not fired(machine, 16, series=series(r0=6.0))
    (decision,) = machine.look(Look(26 * SECOND, series=series(r0=7.0)))
    assert decision.ranks == (0,)
    assert decision.reason == "ranksight_loss{rank=0} is 7, above 5."
    assert describe(decision).startswith("condition 'c' about rank 0: observe. ")


def test_labels_and_side_choose_series() -> None:
    machine = engine(metric="ranksight_loss", threshold=5.0, side="below", labels={"rank": "1"})
    assert not fired(machine, 0, series=series(r0=1.0, r1=6.0))
    assert not fired(machine, 1, series=series(r1=float("nan")))
    assert fired(machine, 2, series=series(r1=4.0))


def test_a_resumed_job_has_time_to_get_going() -> None:
    slow = engine(1, kinds=("straggler",))
    assert not fired(slow, 0, finding("straggler", last_step=1))
    assert not fired(slow, 299, finding("straggler", last_step=2))
    assert fired(slow, 300, finding("straggler", last_step=3))
    assert fired(engine(1), 0, finding())  # this does not wait


@pytest.mark.parametrize(
    ("kind", "condition", "restarts", "code"),
    [
        ("nonfinite", {}, 0, 75),
        ("deadlock", {}, 0, 76),
        ("deadlock", {"restart": "yes"}, 0, 75),
        ("nonfinite", {"restart": "no"}, 0, 76),
        ("nonfinite", {"action": "stop"}, 2, 75),
        ("nonfinite", {"action": "stop"}, 3, 76),
    ],
)
def test_the_exit_code_says_whether_a_restart_is_sensible(
    kind: str, condition: dict[str, Any], restarts: int, code: int
) -> None:
    machine = engine(restarts, kinds=(kind,), top={"cool_down_seconds": 0.0}, **condition)
    (decision,) = machine.look(Look(SECOND, (finding(kind),)))
    assert decision.exit_code == code
    assert ("restart_budget" in decision.reason) is (restarts == 3)


def test_the_harshest_action_comes_first() -> None:
    names = {"a": "observe", "b": "kill", "c": "stop"}
    conditions = [{"name": name, "kinds": ["nonfinite"], "action": action} for name, action in names.items()]
    decisions = Engine(StopConditions.model_validate({"conditions": conditions})).look(Look(0, (finding(),)))
    assert [decision.condition for decision in decisions] == ["b", "c", "a"]
