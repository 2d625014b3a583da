"""Limits of ranks that stop: phases have their own, and the page that explains them names each with its value."""

from dataclasses import fields
from pathlib import Path

import pytest

from ranksight.agent.stopped.limits import Limits, stall_limit

PAGE = Path(__file__).parents[3] / "docs" / "stopping-ranks.md"


@pytest.mark.parametrize(
    ("phase", "step", "p99", "expected"),
    [
        ("other", 10, 0.05, 8.0),
        ("forward", 10, 5.0, 15.0),
        ("other", 1, 0.05, 600.0),
        ("other", 10, None, 600.0),
        ("checkpoint", 10, 0.05, 1800.0),
        ("evaluation", 10, 0.05, 600.0),
        ("compile", 0, None, 1800.0),
        ("evaluation", 10, 300.0, 900.0),
    ],
)
def test_how_long_a_rank_may_be_waited_for(phase: str, step: int, p99: float | None, expected: float) -> None:
    assert stall_limit(Limits(), phase, step, p99) == pytest.approx(expected)


def test_the_page_has_every_limit_with_its_value() -> None:
    text, limits = PAGE.read_text(), Limits()
    for limit in fields(Limits):
        value = getattr(limits, limit.name)
        shown = f"| `{limit.name}` | {value} |" if isinstance(value, (int, float)) else f"| `{limit.name}` |"
        assert shown in text, limit.name
