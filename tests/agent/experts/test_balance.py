"""Measures of unevenness against loads whose answers are known."""

import math

import numpy as np
import pytest

from ranksight.agent.experts.balance import balance, step_violation


def test_an_even_load() -> None:
    even = balance(np.full(8, 25.0))
    assert even is not None
    assert (even.max_over_mean, even.cv, even.max_violation) == (1.0, 0.0, 0.0)
    assert even.entropy == pytest.approx(1.0)
    assert even.gini == pytest.approx(0.0)


def test_all_to_one_expert() -> None:
    collapsed = balance(np.array([0.0, 0.0, 100.0, 0.0]))
    assert collapsed is not None
    assert (collapsed.max_over_mean, collapsed.max_violation, collapsed.entropy) == (4.0, 3.0, 0.0)
    assert collapsed.cv == pytest.approx(math.sqrt(3))
    assert collapsed.gini == pytest.approx(1 - 1 / 4)


def test_a_load_worked_out_by_hand() -> None:
    found = balance(np.array([1.0, 2.0, 3.0, 2.0]))
    assert found is not None
    assert found.max_over_mean == pytest.approx(1.5)
    assert found.cv == pytest.approx(math.sqrt(0.5) / 2)
    assert found.entropy == pytest.approx(
        -(1 / 8 * math.log(1 / 8) + 2 / 4 * math.log(1 / 4) + 3 / 8 * math.log(3 / 8)) / math.log(4)
    )
    differences = [abs(a - b) for a in (1, 2, 3, 2) for b in (1, 2, 3, 2)]
    assert found.gini == pytest.approx(sum(differences) / 16 / (2 * 2))


def test_nothing_is_not_even() -> None:
    assert balance(np.zeros(4)) is None
    assert balance(np.zeros(0)) is None
    assert math.isnan(step_violation(np.zeros(4)))


def test_a_hot_spot_that_moves_is_seen_step_by_step() -> None:
    steps = np.eye(4) * 100
    window = balance(steps.sum(axis=0))
    assert window is not None and window.max_violation == 0
    assert np.mean([step_violation(step) for step in steps]) == 3.0
