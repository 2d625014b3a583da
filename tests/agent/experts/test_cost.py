"""What imbalance costs and why a rank is slow, on timelines whose answers are known."""

import numpy as np
import pytest

from ranksight.agent.experts.cost import STEPS, explain, lost

SECONDS_PER_ROW = 1e-4


def routed(*shares: float, steps: int = 60) -> np.ndarray:
    return np.random.default_rng(1).multinomial(4000, shares, size=steps).astype(float)


def timed(rows: np.ndarray, factors: tuple[float, ...] = (1, 1, 1, 1), noise: float = 0.01) -> np.ndarray:
    random = np.random.default_rng(2)
    times: np.ndarray = (
        (0.004 + SECONDS_PER_ROW * rows) * np.array(factors) * (1 + noise * random.standard_normal(rows.shape))
    )
    return times


def test_each_instance_loses_what_the_slowest_needs_beyond_the_mean() -> None:
    seconds = np.array([1.0, 3.0, 2.0, 2.0, 5.0])
    assert lost(seconds, np.array([0, 2, 4])).tolist() == [1.0, 0.0, 0.0]


def test_a_hot_rank_is_slow_because_of_its_tokens() -> None:
    rows = routed(0.15, 0.15, 0.55, 0.15)
    found = explain(rows, timed(rows))
    assert found is not None
    assert [slow.because for slow in found] == [None, None, "tokens", None]
    hot = found[2]
    assert hot.excess == pytest.approx(SECONDS_PER_ROW * 4000 * (0.55 - 0.25), rel=0.05)
    assert hot.hardware == pytest.approx(0.0, abs=0.1 * hot.excess)


def test_a_slow_device_with_its_share_is_slow_because_of_hardware() -> None:
    rows = routed(0.25, 0.25, 0.25, 0.25)
    found = explain(rows, timed(rows, factors=(1, 2, 1, 1), noise=0.001))
    assert found is not None
    assert [slow.because for slow in found] == [None, "hardware", None, None]


def test_a_slow_device_that_is_hot_too_is_not_blamed_on_its_tokens_alone() -> None:
    rows = routed(0.15, 0.15, 0.55, 0.15)
    found = explain(rows, timed(rows, factors=(1, 1, 2, 1)))
    assert found is not None
    hot = found[2]
    assert hot.because == "both"
    assert hot.hardware == pytest.approx(0.004 + SECONDS_PER_ROW * 2200, rel=0.15)


def test_time_that_does_not_follow_rows_is_not_explained_by_them() -> None:
    rows = routed(0.2, 0.2, 0.4, 0.2)
    seconds = np.random.default_rng(3).uniform(0.05, 0.15, rows.shape) + np.array([0, 0, 0.2, 0])
    found = explain(rows, seconds)
    assert found is not None
    assert (found[2].because, found[2].tokens) == ("unknown", None)


def test_even_work_makes_nobody_slow() -> None:
    rows = routed(0.25, 0.25, 0.25, 0.25)
    found = explain(rows, timed(rows))
    assert found is not None and [slow.because for slow in found] == [None] * 4


def test_few_steps_say_nothing() -> None:
    rows = routed(0.25, 0.25, 0.25, 0.25, steps=STEPS - 1)
    assert explain(rows, timed(rows)) is None
