"""Comparing two runs: real changes are seen, chance is not called a change, and too little data is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from ranksight.agent.cli import app
from ranksight.agent.report.compare import LESS, MORE, SAME, UNKNOWN, compare, compare_tails
from tests.support import reports

NAMES = ("p50", "p95", "p99", "p999", "max")


def tail_of(samples: np.ndarray) -> dict[str, float | None]:
    values = np.quantile(samples, [0.5, 0.95, 0.99, 0.999, 1.0])
    return dict(zip(NAMES, values.tolist(), strict=True))


def run(seed: int, steps: int, factor: float = 1.0, sigma: float = 0.1) -> dict[str, float | None]:
    return tail_of(factor * np.random.default_rng(seed).lognormal(math.log(0.1), sigma, steps))


@pytest.mark.parametrize(("factor", "answer"), [(1.2, MORE), (0.8, LESS), (1.0, SAME)])
def test_a_clear_answer_where_there_is_one(factor: float, answer: str) -> None:
    row = compare_tails("step", "p50", (run(1, 2000), run(2, 2000, factor)), (2000, 2000))
    assert row.answer == answer
    assert row.low is not None and row.high is not None
    assert row.low <= factor - 1 <= row.high


def test_chance_is_rarely_called_a_change() -> None:
    answers = [compare_tails("step", "p50", (run(2 * n, 60), run(2 * n + 1, 60)), (60, 60)).answer for n in range(400)]
    assert answers.count(MORE) + answers.count(LESS) <= 0.05 * 400


def test_a_change_of_a_tenth_is_seen_in_most_runs_of_two_hundred_steps() -> None:
    answers = [compare_tails("s", "p50", (run(2 * n, 200), run(2 * n + 1, 200, 1.1)), (200, 200)).answer for n in range(200)]
    assert answers.count(MORE) >= 0.6 * 200
    assert answers.count(LESS) == 0


@pytest.mark.parametrize(
    ("quantile", "steps", "needed"), [("p50", 19, 20), ("p95", 72, 73), ("p99", 380, 381), ("p999", 3000, 3838)]
)
def test_too_few_steps_can_not_tell(quantile: str, steps: int, needed: int) -> None:
    row = compare_tails("step", quantile, (run(1, steps), run(2, steps, 3.0)), (steps, steps))
    assert row.answer == UNKNOWN
    assert row.why == f"{quantile} needs {needed} steps in both runs, and there are {steps}"


def test_zero_and_unknown_are_not_compared() -> None:
    nothing: dict[str, float | None] = dict.fromkeys(NAMES, None)
    zero: dict[str, float | None] = dict.fromkeys(NAMES, 0.0)
    assert compare_tails("w", "p50", (nothing, run(1, 100)), (100, 100)).answer == UNKNOWN
    assert compare_tails("w", "p50", (zero, run(1, 100)), (100, 100)).why == "it is zero in one of the runs"
    assert compare_tails("w", "p50", (zero, zero), (100, 100)).answer == SAME


def with_loss(shift: float, noise: float, seed: int) -> dict[str, Any]:
    report = reports.full(steps=100)
    values = np.linspace(5, 3, 100) + shift + noise * np.random.default_rng(seed).standard_normal(100)
    report["history"]["loss"] = {"mean": values.tolist(), "max": values.tolist(), "nonfinite": [0] * 100}
    return report


def test_losses_are_compared_over_the_steps_that_both_have() -> None:
    assert compare(with_loss(0, 0.05, 1), with_loss(0.2, 0.05, 2))["loss"]["answer"] == MORE
    assert compare(with_loss(0, 0.05, 1), with_loss(0.0, 0.05, 3))["loss"]["answer"] == UNKNOWN
    assert compare(with_loss(0, 0.05, 1), with_loss(0.0, 0.05, 1))["loss"]["answer"] == SAME
    short = with_loss(0, 0, 1)
    short["history"]["steps"] = list(range(95, 195))
    assert "share 5 points" in compare(short, with_loss(0, 0, 1))["loss"]["why"]


def test_what_is_new_and_what_is_gone_is_said() -> None:
    healthy = reports.full()
    healthy["findings"] = []
    found = compare(healthy, reports.full())
    assert found["findings"] == {"gone": [], "new": ["straggler of rank 1"], "both": []}
    assert "New: straggler of rank 1." in found["headline"]
    assert "two runs do not say" in found["notes"][-1]
    smaller = compare(healthy, reports.full(ranks=2))
    assert smaller["notes"][0] == "the number of ranks differs: 4 and 2"


def test_the_command_says_it_in_words_and_as_json(tmp_path: Path) -> None:
    for name, report in (("a", reports.full(steps=1000)), ("b", reports.full(steps=1000))):
        (tmp_path / name).mkdir()
        if name == "b":
            for row in report["steps"]["per_rank"]:
                row["seconds"] = {key: 10 * value for key, value in row["seconds"].items()}
        (tmp_path / name / "report.json").write_text(json.dumps(report))
    runner = CliRunner()
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b")]
    said = runner.invoke(app, arguments).output
    assert said.startswith("Steps take 900.0 % more time in the second run.")
    assert max(map(len, said.splitlines())) <= Console().width
    found = json.loads(runner.invoke(app, [*arguments, "--json"]).output)
    assert found["rows"][0]["answer"] == MORE
    assert found["runs"] == ["run-7", "run-7"]
