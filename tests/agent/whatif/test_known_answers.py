"""Every number that was published for a public trace, within 1 %."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.whatif import Effect, WhatIf, analyse, read_trace

DATA = Path(__file__).parents[2] / "data" / "straggler_traces"


def published(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def found() -> WhatIf:
    return analyse(read_trace(DATA / "trace-ST.parquet"))


def within(share: float, expected: float) -> Any:
    return pytest.approx(expected, rel=share, abs=0)


def test_step_times_and_slowdowns(found: WhatIf) -> None:
    result = published("result-ST.json")
    assert found.slowdown == within(0.01, result["blocking_slowdown"])
    assert found.launch_slowdown == within(0.01, result["launch_slowdown"])
    recorded, replayed, ideal = found.step_recorded_seconds, found.step_replayed_seconds, found.step_ideal_seconds
    columns = {
        "step_t_base": recorded,
        "step_t_nodelay": replayed,
        "step_t_noblk": ideal,
        "blocking_step_slowdown": [a / b for a, b in zip(replayed, ideal, strict=True)],
        "launch_step_slowdown": [a / b for a, b in zip(recorded, replayed, strict=True)],
    }
    for name, column in columns.items():
        ours = {str(step): value for step, value in zip(found.steps, column, strict=True)}
        assert ours == {step: within(0.01, value) for step, value in result[name].items()}, name


def decompositions(found: WhatIf) -> Iterator[tuple[str, tuple[Effect, ...]]]:
    yield "dp_rank", found.by_dp
    yield "stage", found.by_stage
    yield "optype", found.by_type


def test_decompositions(found: WhatIf) -> None:
    result = published("result-ST.json")
    for name, effects in decompositions(found):
        theirs = result[f"blocking_decompose_by_{name}"]
        assert {effect.name: effect.slowdown for effect in effects} == {key: within(0.01, v) for key, v in theirs.items()}
        for at, step in enumerate(found.steps):
            theirs = result[f"blocking_decompose_by_{name}_per_step"][str(step)]
            ours = {effect.name: effect.step_slowdowns[at] for effect in effects}
            assert ours == {key: within(0.01, value) for key, value in theirs.items()}, (name, step)


@pytest.mark.parametrize(("name", "effect"), [("ms", "last_stage"), ("mw", "slowest_workers")])
def test_stage_imbalance_and_bad_workers(found: WhatIf, name: str, effect: str) -> None:
    theirs = published(f"{name}-ST.json")
    ours: Effect = getattr(found, effect)
    assert ours.regained == within(0.01, theirs["rem"])
    assert ours.added == within(0.01, theirs["add"])
    assert ours.without_seconds == within(0.01, theirs["trem"])
    assert ours.only_seconds == within(0.01, theirs["tadd"])
    assert found.replayed_seconds == within(0.01, theirs["tori"])
    assert found.ideal_seconds == within(0.01, theirs["tideal"])


def test_the_worst_stage_and_worker(found: WhatIf) -> None:
    assert found.by_stage[0].name == "3"
    worst = found.by_worker[0]
    assert (worst.rank, worst.dp, worst.stage) == (7, 1, 3)
    assert found.steps_left_out == () and found.operations == 6784
