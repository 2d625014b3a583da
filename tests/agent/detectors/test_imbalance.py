"""Experts and stages: tokens, not hardware; partitioning, not hardware."""

from typing import Any

import numpy as np
import pytest

from ranksight.agent.detectors.imbalance import expert_imbalance, stage_imbalance
from ranksight.agent.detectors.slow import stragglers, workload_imbalance
from ranksight.agent.steps.window import StepWindow

STEPS, RANKS = 120, 4


def window(received: np.ndarray, seconds_per_row: float = 1e-4, extra: np.ndarray | float = 0.0, **more: Any) -> StepWindow:
    """20 ms of dense work and a time that follows the rows received."""
    rng = np.random.default_rng(0)
    busy = 0.020 * (1 + 0.03 * rng.standard_normal(received.shape)) + seconds_per_row * received + extra
    duration = np.repeat(busy.max(axis=1, keepdims=True), received.shape[1], axis=1)
    return StepWindow.of(
        np.arange(len(received)), tuple(range(received.shape[1])), busy=busy, duration=duration,
        received_rows=received.astype(float), **more,
    )  # fmt: skip


def routed(*shares: float) -> np.ndarray:
    return np.random.default_rng(1).multinomial(400, shares, size=STEPS)


def test_even_routing_is_quiet() -> None:
    even = window(routed(0.25, 0.25, 0.25, 0.25))
    assert expert_imbalance(even) + stragglers(even) == ()


def test_a_hot_expert_rank_is_imbalance_and_no_straggler() -> None:
    hot = window(routed(0.125, 0.125, 0.625, 0.125))
    (finding,) = expert_imbalance(hot)
    assert (finding.kind, finding.ranks) == ("expert_imbalance", (2,))
    assert finding.evidence["max_over_mean"] == pytest.approx(2.5, rel=0.05)
    assert finding.evidence["lost_seconds_per_step"] == pytest.approx(0.020, rel=0.1)
    assert stragglers(hot) == ()


def test_imbalance_that_costs_no_time_is_quiet() -> None:
    assert expert_imbalance(window(routed(0.125, 0.125, 0.625, 0.125), seconds_per_row=0.0)) == ()


def test_a_slow_device_with_fair_tokens_is_a_straggler() -> None:
    extra = np.zeros((STEPS, RANKS))
    extra[:, 1] = 0.02
    slow = window(routed(0.25, 0.25, 0.25, 0.25), extra=extra)
    assert [f.ranks for f in stragglers(slow)] == [(1,)]
    assert expert_imbalance(slow) == ()


def test_all_tokens_to_one_rank_is_a_collapse() -> None:
    received = routed(0.25, 0.25, 0.25, 0.25)
    received[60:] = [0, 0, 400, 0]
    (finding,) = expert_imbalance(window(received))
    assert (finding.kind, finding.ranks, finding.severity) == ("router_collapse", (2,), "critical")


def test_routing_that_changes_its_favourite_blames_nobody() -> None:
    received = np.full((STEPS, RANKS), 50)
    received[np.arange(STEPS), np.arange(STEPS) % RANKS] = 250
    changing = window(received)
    assert expert_imbalance(changing) + stragglers(changing) + workload_imbalance(changing) == ()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_heavy_stage_is_named_with_its_replicas(replicas: int) -> None:
    stages = {rank: rank // replicas for rank in range(4 * replicas)}
    busy = np.full((40, 4 * replicas), 0.1)
    busy[:, -replicas:] = 0.18
    peers = tuple(stages.values())
    sick = StepWindow.of(np.arange(40), tuple(stages), busy=busy, duration=busy + 0.1, peers=peers)
    (finding,) = stage_imbalance(sick, stages)
    assert (finding.stage, finding.ranks) == (3, tuple(rank for rank, stage in stages.items() if stage == 3))
    assert finding.evidence["balance"] == pytest.approx(0.12 / 0.18)
    assert stragglers(sick) == ()


def test_one_slow_replica_is_not_partitioning() -> None:
    busy = np.full((40, 8), 0.1)
    busy[:, 7] = 0.18
    stages = {rank: rank // 2 for rank in range(8)}
    sick = StepWindow.of(np.arange(40), tuple(stages), busy=busy, duration=busy + 0.1, peers=tuple(stages.values()))
    assert stage_imbalance(sick, stages) == ()
    assert [f.ranks for f in stragglers(sick)] == [(7,)]
