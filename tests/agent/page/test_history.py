"""The curves of a run: bounded, nothing lost, unknown is null."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ranksight.agent.page.history import MAX_POINTS, History
from ranksight.agent.reading.slots import EVENT
from ranksight.hooks import wire


def events(kind: wire.EventKind, steps: list[int], values: list[float]) -> Any:
    """Events of one kind; for steps the value is its seconds."""
    rows = np.zeros(len(steps), EVENT)
    rows["kind"], rows["step"] = kind, steps
    if kind == wire.EventKind.STEP:
        rows["begin_ns"] = 1_000
        rows["end_ns"] = 1_000 + np.round(np.array(values) * 1e9)
    else:
        rows["n_values"] = 1
        rows["values"][:, 0] = values
    return rows


def feed(history: History, rank: int, *parts: Any) -> None:
    for part in parts:
        history.add(SimpleNamespace(rank=rank), SimpleNamespace(events=part))  # type: ignore[arg-type]


def curves(history: History) -> dict[str, Any]:
    section: dict[str, Any] = history.sections(None)["history"]  # type: ignore[arg-type]
    return section


def test_ranks_of_a_step_make_one_point_and_the_slowest_is_kept() -> None:
    history = History()
    feed(history, 0, events(wire.EventKind.STEP, [5, 6], [1.0, 2.0]), events(wire.EventKind.LOSS, [5], [4.0]))
    feed(history, 1, events(wire.EventKind.STEP, [5, 6], [3.0, 2.0]))
    found = curves(history)
    assert (found["steps"], found["width"], found["ranks"]) == ([5, 6], 1, 2)
    assert found["seconds"] == {"mean": [2.0, 2.0], "max": [3.0, 2.0], "nonfinite": [0, 0]}
    assert found["loss"] == {"mean": [4.0, None], "max": [4.0, None], "nonfinite": [0, 0]}
    assert found["grad_norm"] is None


def test_a_loss_that_is_not_finite_is_counted_and_spoils_no_mean() -> None:
    history = History()
    feed(history, 0, events(wire.EventKind.LOSS, [0, 1, 1], [2.0, float("nan"), float("inf")]))
    assert curves(history)["loss"] == {"mean": [2.0, None], "max": [2.0, None], "nonfinite": [0, 2]}


def test_a_long_run_keeps_its_bound_and_every_step_and_spike() -> None:
    history = History()
    steps = 100_000
    for begin in range(0, steps, 1000):
        seconds = [0.1] * 1000
        if begin == 70_000:
            seconds[123] = 9.0
        feed(history, 0, events(wire.EventKind.STEP, list(range(begin, begin + 1000)), seconds))
    found = curves(history)
    assert found["width"] == 256
    assert len(found["steps"]) == -(-steps // 256) <= MAX_POINTS
    spike = found["seconds"]["max"].index(9.0)
    assert found["steps"][spike] <= 70_123 < found["steps"][spike] + 256
    assert int(history._seconds.counts.sum()) == steps


def test_nothing_seen_is_an_empty_history() -> None:
    assert curves(History()) == {
        "width": 1, "steps": [], "ranks": 0, "seconds": None, "loss": None, "grad_norm": None,
    }  # fmt: skip
