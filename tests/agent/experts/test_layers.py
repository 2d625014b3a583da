"""Tokens per expert over a window: who is listened to, what is dead, what is dropped, and what is folded away."""

import numpy as np
import pytest

from ranksight.agent.experts.layers import DEAD_STEPS, MAX_LAYERS, WINDOW_STEPS, Layers


def test_the_window_forgets_old_steps() -> None:
    layers = Layers()
    for step in range(WINDOW_STEPS + 10):
        layers.add(0, 0, 3, step, np.array([1000.0, 0.0] if step < 10 else [5.0, 15.0]))
    (view,) = layers.views()
    assert (view.steps, view.first_step, view.last_step) == (WINDOW_STEPS, 10, WINDOW_STEPS + 9)
    assert view.tokens.tolist() == [5.0 * WINDOW_STEPS, 15.0 * WINDOW_STEPS]
    assert view.balance is not None and view.balance.max_over_mean == 1.5
    assert view.step_violation == pytest.approx(0.5)


def test_of_ranks_that_say_the_same_layer_the_lowest_counts() -> None:
    layers = Layers()
    for step in range(5):
        layers.add(2, 0, 0, step, np.array([4.0, 4.0]))
        layers.add(1, 0, 0, step, np.array([4.0, 4.0]))
        layers.add(3, 0, 0, step, np.array([4.0, 4.0]))
    (view,) = layers.views()
    assert (view.rank, view.steps, view.tokens.tolist()) == (1, 5, [20.0, 20.0])
    assert not layers.wants(2, 0, 0) and layers.wants(2, 1, 0)


def test_a_layer_said_twice_in_a_step_counts_once() -> None:
    layers = Layers()
    for _ in range(2):  # a recomputed activation
        layers.add(0, 0, 0, 7, np.array([3.0, 5.0]))
    assert layers.views()[0].tokens.tolist() == [3.0, 5.0]


def test_steps_that_are_done_again_after_a_restart_count() -> None:
    layers = Layers()
    layers.add(0, 0, 0, 9, np.array([3.0, 5.0]))
    layers.add(0, 1, 0, 5, np.array([3.0, 5.0]))
    assert layers.views()[0].tokens.tolist() == [6.0, 10.0]


def test_an_expert_is_dead_after_many_steps_without_a_token() -> None:
    layers = Layers()
    for step in range(DEAD_STEPS + 5):
        layers.add(0, 0, 0, step, np.array([10.0, 10.0, 10.0 if step < 5 else 0.0, 10.0]))
        dead = layers.views()[0].dead
        assert dead == ((2,) if step == DEAD_STEPS + 4 else ())
    assert layers.views()[0].last_active.tolist()[2] == 4


def test_few_tokens_miss_an_expert_by_chance() -> None:
    layers = Layers()
    for step in range(DEAD_STEPS + 5):
        layers.add(0, 0, 0, step, np.array([1.0, 0.0, 0.0, 0.0]))
    assert layers.views()[0].dead == ()


def test_drops_are_a_fraction_of_what_was_routed_and_unknown_when_nobody_says() -> None:
    layers = Layers()
    layers.add(0, 0, 0, 0, np.array([40.0, 40.0]))
    layers.add(0, 0, 1, 0, np.array([40.0, 40.0]))
    layers.add_dropped(0, 1, 0, 20.0)
    silent, dropping = layers.views()
    assert (silent.dropped, silent.dropped_fraction) == (None, None)
    assert (dropping.dropped, dropping.dropped_fraction) == (20.0, 0.2)


def test_layers_beyond_the_limit_are_counted() -> None:
    layers = Layers()
    for layer in range(MAX_LAYERS + 3):
        layers.add(0, 0, layer, 0, np.ones(4))
        layers.add(0, 0, layer, 1, np.ones(4))
    assert (len(layers.views()), layers.folded_layers) == (MAX_LAYERS, 3)


def test_what_is_not_a_number_is_left_out() -> None:
    layers = Layers()
    layers.add(0, 0, 0, 0, np.array([1.0, np.nan]))
    assert layers.views() == []
