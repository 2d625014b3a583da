"""Slow ranks, pauses, uneven work and slow networks, on simulated steps of 2 to 512 ranks."""

from typing import Any

import numpy as np
import pytest

from ranksight.agent.detectors.slow import pauses, slow_network, stragglers, workload_imbalance
from ranksight.agent.steps.window import StepWindow, busy_seconds, excess

BASE = 0.06


def window(ranks: int = 8, steps: int = 200, noise: float = 0.05, seed: int = 0, **more: Any) -> StepWindow:
    """A healthy job: 60 ms of work a step with noise, and everyone waits for the last."""
    rng = np.random.default_rng(seed)
    busy = more.pop("busy", np.zeros((steps, ranks))) + BASE * (1 + noise * rng.standard_normal((steps, ranks)))
    duration = np.repeat(busy.max(axis=1, keepdims=True) + 0.002, ranks, axis=1)
    return StepWindow.of(np.arange(steps), tuple(range(ranks)), busy=busy, duration=duration, **more)


def late(ranks: int, steps: int, rank: int, seconds: float, start: int = 0) -> np.ndarray:
    """Extra busy time of one rank from a step on."""
    extra = np.zeros((steps, ranks))
    extra[start:, rank] = seconds
    return extra


def test_busy_time_is_what_lies_between_release_and_the_next_call() -> None:
    # two blocking operations a step, 10 ms and 20 ms of work before them; the second step's first one waits 40 ms
    step = np.array([0, 0, 1, 1])
    enqueue = np.array([10, 35, 50, 112]) * 1_000_000
    complete = np.array([15, 40, 92, 113]) * 1_000_000
    busy = busy_seconds(step, enqueue, complete, released_before_ns=0)
    assert busy.steps.tolist() == [0, 1]
    assert busy.seconds == pytest.approx([0.010 + 0.020, 0.010 + 0.020])
    assert busy.longest == pytest.approx([0.020, 0.020])


def test_overlapped_and_unfinished_operations_are_not_counted_as_work_twice() -> None:
    # an asynchronous bucket that ends after the next was launched, and one that never ends
    enqueue = np.array([10, 12, 30]) * 1_000_000
    complete = np.array([20, 0, 31]) * 1_000_000
    busy = busy_seconds(np.zeros(3, np.int64), enqueue, complete, released_before_ns=0)
    assert busy.seconds == pytest.approx([0.010 + 0.0 + 0.010])


def test_excess_is_the_distance_to_the_median_of_the_others() -> None:
    values = np.random.default_rng(0).standard_normal((20, 7))
    values[3, 2] = np.nan
    for peers in ((0,) * 7, (0, 0, 0, 1, 1, 1, 1)):
        out = excess(values, peers)
        for row in range(20):
            for column in range(7):
                others = [values[row, c] for c in range(7) if c != column and peers[c] == peers[column]]
                expected = values[row, column] - np.nanmedian(others)
                assert out[row, column] == pytest.approx(expected, nan_ok=True)


def test_excess_compares_only_peers_and_leaves_unknown_unknown() -> None:
    values = np.array([[1.0, 3.0, 10.0, 12.0], [np.nan, 2.0, 5.0, np.nan]])
    out = excess(values, (0, 0, 1, 1))
    assert out[0].tolist() == [-2.0, 2.0, -2.0, 2.0]
    assert np.isnan(out[1]).tolist() == [True, True, True, True]


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
def test_a_small_steady_slow_down_is_found_and_named(ranks: int) -> None:
    found = [
        stragglers(window(ranks, seed=seed, busy=late(ranks, 200, 1, 0.07 * BASE))) for seed in range(5)
    ]
    assert [[finding.ranks for finding in findings] for findings in found] == [[(1,)]] * 5


def test_a_large_slow_down_is_found_within_twenty_steps() -> None:
    (finding,) = stragglers(window(busy=late(8, 200, 5, 0.2 * BASE, start=180)))
    assert finding.ranks == (5,)
    assert finding.severity == "critical"
    assert finding.evidence["late_seconds_median"] == pytest.approx(0.2 * BASE, rel=0.3)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_healthy_noise_gives_nothing(ranks: int) -> None:
    for seed in range(40):
        healthy = window(ranks, seed=seed)
        assert stragglers(healthy) + pauses(healthy) + workload_imbalance(healthy) + slow_network(healthy) == ()


def test_exempt_steps_are_not_looked_at() -> None:
    exempt = np.zeros(200, bool)
    exempt[150:] = True
    assert stragglers(window(busy=late(8, 200, 5, BASE, start=150), exempt=exempt)) == ()


@pytest.mark.parametrize(
    ("part", "cause"), [("gc", "gc"), ("data", "input"), ("cpu", "compute"), ("transfer", "unknown")]
)
def test_a_cause_is_named_when_it_explains_the_delay(part: str, cause: str) -> None:
    extra = late(4, 200, 2, 0.03)
    more: dict[str, Any] = {part: extra + 0.001}
    (finding,) = stragglers(window(4, busy=extra, **more))
    assert finding.cause == cause


def test_half_an_explanation_is_none() -> None:
    extra = late(4, 200, 2, 0.03)
    (finding,) = stragglers(window(4, busy=extra, data=extra / 2))
    assert finding.cause == "unknown"


def test_stages_of_a_pipeline_are_not_compared_with_each_other() -> None:
    heavy = late(4, 200, 2, 0.05) + late(4, 200, 3, 0.05)
    assert stragglers(window(4, busy=heavy, peers=(0, 0, 1, 1))) == ()
    assert [f.ranks for f in stragglers(window(4, busy=heavy + late(4, 200, 3, 0.03), peers=(0, 0, 1, 1)))] == [(3,)]


def test_collections_at_different_steps_are_pauses_of_gc_and_blame_no_single_rank() -> None:
    extra = np.zeros((150, 4))
    for rank in range(4):
        extra[10 + 5 * rank :: 25, rank] = 0.3
    sick = window(4, 150, busy=extra, gc=extra.copy())
    (finding,) = pauses(sick)
    assert (finding.kind, finding.cause, finding.ranks) == ("pause", "gc", ())
    assert stragglers(sick) + workload_imbalance(sick) == ()


def test_one_long_read_is_an_input_stall_of_its_rank() -> None:
    extra = np.zeros((150, 4))
    extra[75, 2] = 3.0
    sick = window(4, 150, busy=extra, data=extra + 0.001)
    (finding,) = pauses(sick)
    assert (finding.kind, finding.ranks, finding.first_step) == ("input_stall", (2,), 75)
    assert finding.cost_seconds == pytest.approx(3.0, rel=0.05)
    assert stragglers(sick) == ()


def test_a_late_rank_that_changes_every_step_is_uneven_work() -> None:
    rng = np.random.default_rng(3)
    extra = np.zeros((200, 4))
    extra[np.arange(200), rng.integers(0, 4, 200)] = 0.04
    sick = window(4, 200, busy=extra)
    (finding,) = workload_imbalance(sick)
    assert finding.ranks == ()
    assert finding.evidence["late_seconds_median"] == pytest.approx(0.04, rel=0.3)
    assert stragglers(sick) + pauses(sick) == ()


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_take_turns_by_chance_are_no_stragglers_in_any_window(ranks: int) -> None:
    rng = np.random.default_rng(11)
    steps = 400
    extra = np.zeros((steps, ranks))
    extra[np.arange(steps), rng.integers(0, ranks, steps)] = 0.04
    sick = window(ranks, steps, busy=extra)
    for end in range(20, steps, 5):
        part = StepWindow.of(sick.steps[:end], sick.ranks, busy=sick.busy[:end], duration=sick.duration[:end])
        assert stragglers(part) == (), end


def test_transfers_that_slow_down_everywhere_are_the_network() -> None:
    transfer = np.full((120, 4), 0.004)
    transfer[70:] = 0.04
    (finding,) = slow_network(window(4, 120, transfer=transfer))
    assert finding.ranks == ()
    assert finding.evidence["transfer_seconds"] == pytest.approx(0.04)


def test_transfers_that_grow_with_the_work_are_not_the_network() -> None:
    transfer = np.full((120, 4), 0.004)
    transfer[70:] = 0.04
    busier = np.zeros((120, 4))
    busier[70:] = BASE
    assert slow_network(window(4, 120, transfer=transfer, busy=busier)) == ()
