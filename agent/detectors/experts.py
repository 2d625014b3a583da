"""Experts that nobody asks for, from the load of each layer: dead ones, a router that collapsed, tokens that are dropped.

    LayerView of every layer -> dead_experts      -> dead_expert: one finding for all layers
                             -> collapsed_routers -> router_collapse: most experts of a layer idle at once
                             -> dropped_tokens    -> expert_imbalance: a capacity that hot experts run into

A layer that collapsed has many experts without tokens; they are not called dead on top of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ranksight.agent.experts.layers import COLLAPSE_STEPS, DEAD_STEPS, LayerView
from ranksight.agent.findings import Finding, Severity


@dataclass(frozen=True, slots=True)
class ExpertLimits:
    """Thresholds with their reasons."""

    idle_share: float = 0.01  # of the even share: what still comes by chance
    collapsed: float = 0.75  # of the experts idle: an untrained router leaves some of them idle, not most
    expected: int = 100  # tokens of an even share in the steps looked at: fewer may miss an expert by chance
    dropped: float = 0.1  # of the routed tokens


def collapsed_routers(layers: Sequence[LayerView], limits: ExpertLimits = ExpertLimits()) -> tuple[Finding, ...]:
    """Most experts of a layer get next to nothing over the last COLLAPSE_STEPS steps."""
    found = {view.layer: used for view in layers if (used := _collapsed(view, limits)) is not None}
    if not found:
        return ()
    views = {view.layer: view for view in layers}
    layer = min(found, key=lambda number: len(found[number]))
    view, used = views[layer], found[layer]
    share = float(view.recent[list(used)].sum() / view.recent.sum())
    last = max(views[number].last_step for number in found)
    return (
        Finding(
            kind="router_collapse",
            severity=Severity.CRITICAL,
            layer=layer,
            experts=used,
            first_step=_begin(view, used),
            last_step=last,
            detected_step=last,
            message=(
                f"The router of layer {layer} sends {100 * share:.0f} % of its tokens to {_experts(used)}; "
                f"{len(view.tokens) - len(used)} of its {len(view.tokens)} experts are idle{_others(found, layer)}."
            ),
            advice="Look at the router's bias and logits; go back to a checkpoint before the collapse.",
            evidence={
                "steps": min(view.steps, COLLAPSE_STEPS),
                "experts_in_use_by_layer": {str(number): list(used) for number, used in sorted(found.items())},
                "entropy": view.balance.entropy if view.balance else None,
            },
        ),
    )


def dead_experts(layers: Sequence[LayerView], limits: ExpertLimits = ExpertLimits()) -> tuple[Finding, ...]:
    """Experts without a single token in the last DEAD_STEPS steps, of layers that did not collapse."""
    found = {view.layer: view.dead for view in layers if view.dead and _collapsed(view, limits) is None}
    if not found:
        return ()
    views = {view.layer: view for view in layers}
    layer = max(found, key=lambda number: (len(found[number]), -number))
    view, dead = views[layer], found[layer]
    last = max(views[number].last_step for number in found)
    return (
        Finding(
            kind="dead_expert",
            severity=Severity.WARNING,
            layer=layer,
            experts=dead,
            first_step=int(view.last_active[list(dead)].max()) + 1,
            last_step=last,
            detected_step=last,
            message=(
                f"No token has come to {_experts(dead)} of layer {layer} in the last {DEAD_STEPS} steps: "
                f"{len(dead)} of {len(view.tokens)} experts learn nothing{_others(found, layer)}."
            ),
            advice="Balance the router (bias update or auxiliary loss) or start these experts anew from busy ones.",
            evidence={
                "steps": DEAD_STEPS,
                "dead_by_layer": {str(number): list(dead) for number, dead in sorted(found.items())},
                "even_share_tokens_per_step": float(view.tokens.mean() / view.steps),
            },
        ),
    )


def dropped_tokens(layers: Sequence[LayerView], limits: ExpertLimits = ExpertLimits()) -> tuple[Finding, ...]:
    """A layer drops more of its tokens than it should: hot experts run into their capacity."""
    found = {
        view.layer: fraction
        for view in layers
        if view.steps >= COLLAPSE_STEPS
        and (fraction := view.dropped_fraction) is not None
        and fraction > limits.dropped
    }
    if not found:
        return ()
    views = {view.layer: view for view in layers}
    layer = max(found, key=lambda number: found[number])
    view = views[layer]
    hottest = int(view.tokens.argmax())
    return (
        Finding(
            kind="expert_imbalance",
            severity=Severity.WARNING,
            layer=layer,
            experts=(hottest,),
            first_step=view.first_step,
            last_step=view.last_step,
            detected_step=view.last_step,
            message=(
                f"Layer {layer} drops {100 * found[layer]:.1f} % of its tokens (limit {100 * limits.dropped:.0f} %); its "
                f"hottest expert is {hottest}{_others(found, layer)}."
            ),
            advice="Balance the router, or raise the capacity factor.",
            evidence={"dropped_fraction_by_layer": {str(number): part for number, part in sorted(found.items())}},
        ),
    )


def _collapsed(view: LayerView, limits: ExpertLimits) -> tuple[int, ...] | None:
    """The experts that are still used when most are not; None otherwise."""
    count, total = len(view.recent), float(view.recent.sum())
    if view.steps < COLLAPSE_STEPS or total < limits.expected * count:
        return None
    used = np.flatnonzero(view.recent >= limits.idle_share * total / count)
    return tuple(used.tolist()) if len(used) <= (1 - limits.collapsed) * count else None


def _begin(view: LayerView, used: tuple[int, ...]) -> int:
    """The step after the last one in which most of the idle experts had tokens."""
    idle = np.setdiff1d(np.arange(len(view.tokens)), used)
    return int(np.median(view.last_active[idle])) + 1


def _experts(numbers: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(str(number) for number in numbers[:most])
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"expert{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _others(found: dict[int, object] | dict[int, tuple[int, ...]] | dict[int, float], layer: int) -> str:
    others = sorted(set(found) - {layer})
    return (
        f"; layers {', '.join(map(str, others))} too"
        if len(others) > 1
        else f"; layer {others[0]} too"
        if others
        else ""
    )
