"""A change of level on all ranks is a regression and names nobody; more work, one slow rank and noise are not."""

import numpy as np
import pytest

from ranksight.agent.detectors.regression import regression
from ranksight.agent.detectors.slow import stragglers
from ranksight.agent.steps.window import StepWindow

BASE = 0.06


def window(factors: np.ndarray, ranks: int = 8, noise: float = 0.05, seed: int = 0, **more: np.ndarray) -> StepWindow:
    """60 ms of work a step and rank, times a factor per step (or per step and rank)."""
    rng = np.random.default_rng(seed)
    factors = factors[:, None] if factors.ndim == 1 else factors
    busy = BASE * factors * (1 + noise * rng.standard_normal((len(factors), ranks)))
    duration = np.repeat(busy.max(axis=1, keepdims=True), ranks, axis=1)
    return StepWindow.of(np.arange(len(factors)), tuple(range(ranks)), busy=busy, duration=duration, **more)


def since(step: int, factor: float, steps: int = 200) -> np.ndarray:
    """1 before a step, `factor` from it on."""
    return np.where(np.arange(steps) < step, 1.0, factor)


@pytest.mark.parametrize("ranks", [2, 8, 512])
@pytest.mark.parametrize(("step", "factor"), [(30, 1.3), (100, 1.5), (180, 2.0)])
def test_all_ranks_slower_at_once_is_a_regression_from_that_step_on(ranks: int, step: int, factor: float) -> None:
    sick = window(since(step, factor), ranks)
    (finding,) = regression(sick)
    assert finding.ranks == () and finding.first_step == pytest.approx(step, abs=2)
    assert finding.evidence["busy_seconds"] == pytest.approx(BASE * factor, rel=0.05)
    assert stragglers(sick) == ()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_noise_is_none(seed: int, noise: float) -> None:
    assert regression(window(np.ones(200), 8, noise, seed)) == ()


def test_one_slow_rank_or_one_slow_half_is_none() -> None:
    for slow in (1, 4):
        factors = np.repeat(since(100, 2.0)[:, None], 8, axis=1)
        factors[:, slow:] = 1.0
        assert regression(window(factors)) == ()


def test_slow_steps_for_a_while_or_faster_ones_are_none() -> None:
    hiccup = np.ones(200)
    hiccup[90:100] = 3.0
    assert regression(window(hiccup)) == regression(window(since(100, 0.5))) == ()


def test_more_to_do_is_none_and_the_same_input_is_one() -> None:
    more = np.repeat(since(100, 1.5)[:, None], 8, axis=1)
    assert regression(window(since(100, 1.5), elements=1024 * more)) == ()
    assert len(regression(window(since(100, 1.5), elements=np.full((200, 8), 1024.0)))) == 1


def test_steps_of_long_phases_do_not_count() -> None:
    exempt = np.arange(200) >= 100
    assert regression(window(since(100, 1.5), exempt=exempt)) == ()
