"""Not-finite numbers, spikes, divergence and memory, on simulated runs and on a public log."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranksight.agent.detectors.numerics import NumericsLimits, divergence, memory_growth, nonfinite, spikes
from ranksight.agent.steps.window import StepWindow

BLOOM_LOG = Path(__file__).resolve().parents[4] / "shared/data/logs/bloom_spike_31214.txt"


def run(steps: int = 240, seed: int = 0, **change: Any) -> dict[str, np.ndarray]:
    """Loss falling from 6 to about 1, gradient norm around 1, both with noise."""
    rng = np.random.default_rng(seed)
    level = 5 * np.exp(-np.arange(steps) / 80)[:, None] + 1
    return {
        "loss": level * (1 + 0.1 * rng.standard_normal((steps, 4))),
        "grad_norm": np.repeat(np.exp(0.2 * rng.standard_normal((steps, 1))), 4, axis=1),
    } | change


def window(**arrays: Any) -> StepWindow:
    steps = len(next(iter(arrays.values())))
    return StepWindow.of(np.arange(steps), (0, 1, 2, 3), **arrays)


def test_ordinary_training_gives_nothing() -> None:
    for seed in range(40):
        healthy = window(**run(seed=seed))
        assert spikes(healthy) + divergence(healthy) + nonfinite(healthy) + memory_growth(healthy) == ()


def test_the_rank_whose_own_loss_was_nan_first_is_named() -> None:
    bad = np.zeros((100, 4), bool)
    bad[75, 3] = True
    bad[76:] = True
    (finding,) = nonfinite(window(nonfinite=bad))
    assert (finding.ranks, finding.first_step, finding.detected_step) == ((3,), 75, 75)


def test_a_nan_norm_of_all_ranks_does_not_hide_whose_loss_it_was() -> None:
    loss, norm = np.zeros((100, 4), bool), np.zeros((100, 4), bool)
    loss[75, 3] = True
    norm[75:] = True
    loss[76:] = True
    (finding,) = nonfinite(window(nonfinite=loss, nonfinite_norm=norm))
    assert (finding.ranks, finding.first_step) == ((3,), 75)


def test_nan_on_all_ranks_at_once_names_none() -> None:
    bad = np.zeros((100, 4), bool)
    bad[75:] = True
    (finding,) = nonfinite(window(nonfinite=bad))
    assert finding.ranks == ()
    assert "all ranks at once" in finding.message


def test_a_spike_confirmed_by_the_gradient_is_a_loss_spike_of_nobody() -> None:
    arrays = run()
    arrays["loss"][102:106] *= np.array([2, 6, 9, 4])[:, None]
    arrays["grad_norm"][100:105] *= np.array([4, 8, 40, 60, 6])[:, None]
    (finding,) = spikes(window(**arrays))
    assert (finding.kind, finding.ranks) == ("loss_spike", ())
    assert finding.first_step in {102, 103}


def test_a_jump_of_the_loss_that_leaves_the_gradient_alone_is_none() -> None:
    arrays = run()
    arrays["loss"][102] *= 3
    assert spikes(window(**arrays)) == ()


def test_a_spike_on_one_rank_names_it() -> None:
    arrays = run()
    arrays["loss"][150, 2] = 1e4
    del arrays["grad_norm"]
    (finding,) = spikes(window(**arrays))
    assert (finding.kind, finding.ranks, finding.first_step) == ("loss_spike", (2,), 150)


def test_a_gradient_spike_alone_is_said() -> None:
    arrays = run()
    arrays["grad_norm"][90] *= 50
    (finding,) = spikes(window(**arrays))
    assert (finding.kind, finding.first_step) == ("grad_spike", 90)


@pytest.mark.skipif(not BLOOM_LOG.exists(), reason="the public training logs are not beside this checkout")
def test_the_public_spike_is_seen_in_the_gradient_before_the_loss() -> None:
    lines = re.findall(r"iteration\s+(\d+).*?lm loss: ([\d.E+-]+).*?grad norm: ([\d.]+)", BLOOM_LOG.read_text())
    steps = np.array([int(step) for step, _, _ in lines])
    loss, grad = (np.array([[float(value)] for value in column]) for column in list(zip(*lines, strict=True))[1:])
    # the excerpt holds only lines around the spike: the level before it is continued backwards
    rng, before = np.random.default_rng(1), 64
    loss = np.concatenate((loss[0] * (1 + 0.01 * rng.standard_normal((before, 1))), loss))
    grad = np.concatenate((grad[0] * (1 + 0.1 * rng.standard_normal((before, 1))), grad))
    steps = np.concatenate((np.arange(steps[0] - before, steps[0]), steps))
    found = StepWindow.of(steps, (0,), loss=loss, grad_norm=grad)
    kinds = {f.kind: f.first_step for f in spikes(found)}
    assert "loss_spike" in kinds
    assert kinds["loss_spike"] is not None and 31216 <= kinds["loss_spike"] <= 31220


def test_a_long_rise_is_a_divergence() -> None:
    arrays = run(steps=400)
    arrays["loss"][260:] *= np.linspace(1, 3, 140)[:, None]
    (finding,) = divergence(window(**arrays))
    assert finding.severity == "critical"


def test_memory_that_only_grows_on_one_rank_names_it() -> None:
    rng = np.random.default_rng(0)
    rss = 3e8 + 1e5 * rng.standard_normal((200, 4))
    rss[:, 1] += 4e6 * np.arange(200)
    (finding,) = memory_growth(window(rss_bytes=rss))
    assert finding.ranks == (1,)
    assert finding.evidence["bytes_per_step"] == pytest.approx(4e6, rel=0.05)


def test_memory_that_levels_off_is_a_cache() -> None:
    rss = np.repeat(3e8 + 4e8 * (1 - np.exp(-np.arange(200) / 20))[:, None], 4, axis=1)
    assert memory_growth(window(rss_bytes=rss)) == ()


def test_limits_can_be_changed() -> None:
    arrays = run()
    arrays["loss"][150, 2] *= 4
    del arrays["grad_norm"]
    assert spikes(window(**arrays), NumericsLimits(loss_ratio=50)) == ()
