"""Clocks of two hosts: 11.56 s apart and drifting by 50 ppm, found within 2 ms; no skew is left after correction."""

import numpy as np
import pytest

from ranksight.agent.collectives import clock, measures

OFFSET_NS = 11_560_000_000
DRIFT = 50e-6


def host_times(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of two ranks and their common end, on one true clock, over ten minutes."""
    random = np.random.default_rng(seed)
    begin = 5_000_000_000_000 + np.sort(random.integers(0, 600_000_000_000, count))
    first, second = begin + random.integers(0, 300_000, (2, count))
    end = np.maximum(first, second) + 400_000 + random.integers(0, 100_000, count)
    return first, second, end


def other_clock(true_ns: np.ndarray) -> np.ndarray:
    return true_ns + OFFSET_NS + ((true_ns - 5_000_000_000_000) * DRIFT).astype(np.int64)


def test_offset_and_drift_are_found_and_no_straggler_is_left() -> None:
    first, second, end = host_times(2000)
    random = np.random.default_rng(1)
    first_exit, second_exit = end + random.integers(0, 50_000, (2, 2000))
    late = random.random(2000) < 0.05
    second_exit = second_exit + late * random.integers(1_000_000, 80_000_000, 2000)  # held up after the end

    model = clock.estimate(first_exit, other_clock(second_exit))

    assert model is not None
    assert model.drift == pytest.approx(DRIFT, abs=1e-6)
    true_offset = OFFSET_NS + (model.at_ns - 5_000_000_000_000) * DRIFT
    assert abs(model.offset_ns - true_offset) < 2_000_000
    assert model.uncertainty_ns < 2_000_000
    corrected = model.to_reference(other_clock(second))
    assert np.abs(corrected - second).max() < 2_000_000
    enter = np.stack((first, corrected), axis=1).ravel()
    leave = np.stack((first_exit, first_exit), axis=1).ravel()
    split = measures.split(enter, leave, np.arange(0, 4000, 2))
    assert np.quantile(split.skew, 0.99) < 0.001
    uncorrected = np.stack((first, other_clock(second)), axis=1).ravel()
    assert measures.split(uncorrected, leave, np.arange(0, 4000, 2)).skew.min() > 11.0


def test_one_clock_needs_no_correction() -> None:
    _, _, end = host_times(500)
    model = clock.estimate(end, end)
    assert model is not None
    assert (model.offset_ns, model.drift) == (0, 0)
    assert model.uncertainty_ns == 0


def test_a_real_straggler_stays_visible() -> None:
    first, second, _ = host_times(1000)
    second = second + 20_000_000
    end = np.maximum(first, second) + 400_000
    model = clock.estimate(end, other_clock(end))
    assert model is not None
    skew = model.to_reference(other_clock(second)) - first
    assert np.median(skew) == pytest.approx(20_000_000, abs=1_000_000)
    assert np.median(skew) > model.least_skew_ns


def test_too_few_instances_say_nothing() -> None:
    times = np.arange(clock.MIN_INSTANCES - 1, dtype=np.int64)
    assert clock.estimate(times, times) is None
    with pytest.raises(ValueError, match="7 reference exits do not pair with 6"):
        clock.estimate(times, times[:-1])
