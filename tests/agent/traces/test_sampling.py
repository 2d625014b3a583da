"""Faulty, slow and every Nth step are kept, as far as the budget goes."""

from __future__ import annotations

import pytest

from ranksight.agent.traces.sampling import Budget, Sampler

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("step", "seconds", "faulty", "expected"),
    [
        (41, 1.0, False, None),
        (50, 1.0, False, "every"),
        (41, 1.4, False, None),
        (41, 1.6, False, "slow"),
        (50, 1.6, False, "slow"),
        (41, 1.0, True, "faulty"),
        (41, None, True, "faulty"),
        (41, None, False, None),
    ],
)
def test_reasons(step: int, seconds: float | None, faulty: bool, expected: str | None) -> None:
    sampler = Sampler(every=10, slow_factor=1.5)
    for past in range(20):
        sampler.reason(past, 1.0, faulty=False)
    assert sampler.reason(step, seconds, faulty=faulty) == expected


def test_nothing_is_slow_before_there_is_a_normal() -> None:
    sampler = Sampler(every=1000, slow_factor=1.5)
    assert [sampler.reason(step, float(step), faulty=False) for step in range(1, 19)] == [None] * 18


def test_a_budget_is_spent_and_saved_up_again() -> None:
    budget = Budget(10)
    assert budget.take(600, 0)
    assert not budget.take(1, 0)
    assert not budget.take(11, SECOND)
    assert budget.take(10, SECOND)
    assert budget.take(600, 1000 * SECOND)
    assert not budget.take(1, 1000 * SECOND)
