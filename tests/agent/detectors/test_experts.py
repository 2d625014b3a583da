"""Dead experts, collapsed routers, dropped tokens: from the load of layers to one finding each."""

import numpy as np

from ranksight.agent.detectors.experts import collapsed_routers, dead_experts, dropped_tokens
from ranksight.agent.experts.layers import COLLAPSE_STEPS, DEAD_STEPS, Layers, LayerView


def views(*loads: list[float], steps: int = DEAD_STEPS, even: int = 0, dropped: float | None = None) -> list[LayerView]:
    """Layers 4, 5, ...: `even` steps of an even load, then `steps` of the given one."""
    layers = Layers()
    for number, load in enumerate(loads, 4):
        for step in range(even + steps):
            layers.add(0, 0, number, step, np.full(len(load), 50.0) if step < even else np.array(load))
            if dropped is not None:
                layers.add_dropped(0, number, step, dropped)
    return layers.views()


EVEN = [50.0] * 8


def test_an_even_load_is_quiet() -> None:
    even = views(EVEN, EVEN, dropped=10.0)
    assert collapsed_routers(even) + dead_experts(even) + dropped_tokens(even) == ()


def test_a_dead_expert_of_several_layers_is_one_finding() -> None:
    found = views([60.0, 0.0, *[50.0] * 6], EVEN, [60.0, 0.0, 0.0, *[50.0] * 5], even=10)
    (finding,) = dead_experts(found)
    assert (finding.kind, finding.layer, finding.experts, finding.first_step) == ("dead_expert", 6, (1, 2), 10)
    assert finding.evidence["dead_by_layer"] == {"4": [1], "6": [1, 2]}
    assert "layer 4 too" in finding.message
    assert collapsed_routers(found) == ()


def test_a_collapse_is_no_crowd_of_dead_experts() -> None:
    found = views([0.0] * 5 + [400.0] + [0.0] * 2, even=10)
    (finding,) = collapsed_routers(found)
    assert (finding.kind, finding.layer, finding.experts, finding.first_step) == ("router_collapse", 4, (5,), 10)
    assert "100 %" in finding.message
    assert dead_experts(found) == ()


def test_a_collapse_needs_its_steps() -> None:
    load = [0.0] * 5 + [400.0] + [0.0] * 2
    assert collapsed_routers(views(load, steps=COLLAPSE_STEPS - 1)) == ()
    assert len(collapsed_routers(views(load, steps=COLLAPSE_STEPS))) == 1


def test_an_untrained_router_that_leaves_half_of_the_experts_idle_has_not_collapsed() -> None:
    assert collapsed_routers(views([100.0] * 4 + [0.0] * 4)) == ()


def test_dropped_tokens_name_the_layer_and_its_hottest_expert() -> None:
    (finding,) = dropped_tokens(views([20.0, 20.0, 20.0, 100.0], dropped=40.0))
    assert (finding.kind, finding.layer, finding.experts) == ("expert_imbalance", 4, (3,))
    assert "20.0 %" in finding.message
