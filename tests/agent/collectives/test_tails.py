"""Sliding-window sketches against exact quantiles and against ddsketch."""

import numpy as np
import pytest
from ddsketch import DDSketch

from ranksight.agent.collectives.tails import QUANTILES, RELATIVE_ERROR, RUN, SLICE_NS, Tails

SECOND = 1_000_000_000


@pytest.fixture
def tails() -> Tails:
    tails = Tails(1e-7, 1e4)
    tails.grow(3)
    return tails


def rows(row: int, count: int) -> np.ndarray:
    return np.full(count, row)


@pytest.mark.parametrize("shape", ["lognormal", "two modes", "uniform", "constant"])
def test_quantiles_are_within_one_percent(tails: Tails, shape: str) -> None:
    random = np.random.default_rng(3)
    values = {
        "lognormal": random.lognormal(-7, 2, 20_000),
        "two modes": np.concatenate((random.normal(1e-3, 1e-4, 10_000), random.normal(0.5, 0.05, 300))),
        "uniform": random.uniform(1e-5, 1e-2, 5_000),
        "constant": np.full(10, 0.25),
    }[shape]
    for part in np.array_split(values, 7):
        tails.add(rows(1, len(part)), part, SECOND)
    exact = np.quantile(values, QUANTILES, method="lower")
    for window in ("1m", "5m", RUN):
        found = tails.quantiles(window)
        np.testing.assert_allclose(found[1], exact, rtol=RELATIVE_ERROR * 1.0001)
        assert np.isnan(found[0]).all()
    assert tails.maximum("1m")[1] == values.max()


def test_counts_are_those_of_ddsketch_and_merge(tails: Tails) -> None:
    random = np.random.default_rng(4)
    values = random.lognormal(-6, 1.5, (2, 3000))
    theirs = DDSketch(RELATIVE_ERROR)
    for row in (0, 1):
        tails.add(rows(row, 3000), values[row], SECOND)
        for value in values[row].tolist():
            theirs.add(value)
    ours = tails.sketch(RUN, np.array([0, 1]))
    assert ours.count == theirs.count
    for quantile in QUANTILES:
        assert ours.get_quantile_value(quantile) == pytest.approx(theirs.get_quantile_value(quantile), rel=1e-9)
    merged = tails.quantiles(RUN, merge=[np.array([0, 1])])[0]
    np.testing.assert_allclose(merged, np.quantile(values, QUANTILES, method="lower"), rtol=RELATIVE_ERROR * 1.0001)
    theirs.merge(ours)
    assert theirs.count == 12_000


def test_values_leave_the_windows_but_not_the_run(tails: Tails) -> None:
    tails.add(rows(0, 100), np.full(100, 5.0), 0)
    for second in range(1, 400):
        tails.add(rows(0, 1), np.array([0.001]), second * SECOND)
        one_minute, five_minutes = tails.maximum("1m")[0], tails.maximum("5m")[0]
        if second < 55:
            assert one_minute == 5.0
        if second > 70:
            assert one_minute == 0.001
            assert tails.quantiles("1m")[0, -1] == pytest.approx(0.001, rel=0.01)
            assert tails.counts("1m")[0].sum() <= 66
        if second < 295:
            assert five_minutes == 5.0
        if second > 310:
            assert five_minutes == 0.001
    assert tails.maximum(RUN)[0] == 5.0
    assert tails.counts(RUN)[0].sum() == 499


def test_a_long_silence_empties_the_windows(tails: Tails) -> None:
    tails.add(rows(2, 10), np.full(10, 0.1), 0)
    tails.roll(3600 * SECOND)
    assert np.isnan(tails.quantiles("1m")).all()
    assert np.isnan(tails.quantiles("5m")).all()
    tails.add(rows(2, 1), np.array([0.2]), 3600 * SECOND + SLICE_NS)
    assert tails.counts("5m")[2].sum() == 1


def test_zero_unknown_and_huge_values(tails: Tails) -> None:
    tails.add(rows(0, 4), np.array([0.0, np.nan, 1e9, 1e-9]), 0)
    assert tails.counts(RUN)[0].sum() == 3
    assert tails.quantiles(RUN, (0.5,))[0, 0] == 0
    assert tails.maximum(RUN)[0] == 1e9


def test_memory_does_not_grow_with_values(tails: Tails) -> None:
    random = np.random.default_rng(5)
    kept = []
    for second in range(0, 1200, 5):
        tails.add(rows(0, 2000), random.lognormal(-7, 1, 2000), second * SECOND)
        kept.append(sum(len(buckets) for counted, _ in tails._slices for buckets, _ in counted))
    assert kept[-1] < 1.3 * kept[len(kept) // 2]
    assert len(tails._slices) == 60
