"""The load of every expert of every layer over the last steps, as the trainer says it (`hooks.record_experts`).

    EXPERTS events  -> Layers.add -> one Layer per model layer: tokens of the last WINDOW_STEPS steps
    DROPPED events  -> Layers.add_dropped
                       Layer.view() -> LayerView for report, metrics and detectors

All ranks of a stage say the same, so of each layer only the lowest rank that says it is listened to. A layer said twice
in one step (an activation that is computed again, say) counts once. Memory and series are bounded: MAX_LAYERS layers
are kept, what other layers have is counted in `folded_layers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ranksight.agent.experts.balance import Balance, Floats, balance, step_violation

WINDOW_STEPS = 100
DEAD_STEPS = 50  # without a single token
DEAD_EXPECTED = 100  # tokens that an even share would have been in these steps: fewer may miss an expert by chance
MAX_LAYERS = 64
COLLAPSE_STEPS = 20


@dataclass(frozen=True, slots=True)
class LayerView:
    """One layer over its window. `tokens` [E] is the sum; `step_violation` None before a token was routed."""

    layer: int
    rank: int  # who says it
    steps: int
    first_step: int
    last_step: int
    tokens: Floats
    recent: Floats  # [E], the last COLLAPSE_STEPS steps alone
    balance: Balance | None
    step_violation: float | None
    dead: tuple[int, ...]
    dropped: float | None  # tokens in the window; None: the trainer does not say
    last_active: Floats  # [E], last step in which the expert had a token; before the first one: never

    @property
    def dropped_fraction(self) -> float | None:
        """Dropped tokens among all that were routed."""
        if self.dropped is None:
            return None
        routed = float(self.tokens.sum()) + self.dropped
        return self.dropped / routed if routed > 0 else None


@dataclass(slots=True)
class _Layer:
    """The window of one layer: row `steps seen % WINDOW_STEPS`."""

    rank: int
    generation: int
    rows: np.ndarray  # [WINDOW_STEPS, E] float32: whole numbers up to 2**24 are exact
    sums: Floats
    last_active: Floats
    violations: Floats = field(default_factory=lambda: np.full(WINDOW_STEPS, np.nan))
    numbers: np.ndarray = field(default_factory=lambda: np.full(WINDOW_STEPS, -1, np.int64))
    drops: Floats = field(default_factory=lambda: np.full(WINDOW_STEPS, np.nan))
    seen: int = 0


class Layers:
    """All layers of the ranks of this host."""

    def __init__(self) -> None:
        self._layers: dict[int, _Layer] = {}
        self._folded: set[int] = set()

    @property
    def folded_layers(self) -> int:
        """Layers that are not kept."""
        return len(self._folded)

    def wants(self, rank: int, generation: int, layer: int) -> bool:
        """Whether what a rank says of a layer would count."""
        known = self._layers.get(layer)
        if known is None:
            return layer >= 0
        return generation > known.generation or (generation == known.generation and rank <= known.rank)

    def add(self, rank: int, generation: int, layer: int, step: int, tokens: Floats) -> None:
        """Take the tokens [E] of a layer in a step."""
        if not self.wants(rank, generation, layer) or not len(tokens) or not np.isfinite(tokens).all():
            return
        known = self._layers.get(layer)
        if known is None and len(self._layers) >= MAX_LAYERS:
            self._folded.add(layer)
            return
        # A restart begins anew only when the model has other experts: steps that are done again go on counting.
        if known is None or known.rows.shape[1] != len(tokens):
            known = self._layers[layer] = _Layer(
                rank, generation, np.zeros((WINDOW_STEPS, len(tokens)), np.float32), np.zeros(len(tokens)),
                np.full(len(tokens), step - 1.0),
            )  # fmt: skip
        last = int(known.numbers[(known.seen - 1) % WINDOW_STEPS]) if known.seen else -1
        again = generation == known.generation and step <= last
        known.rank, known.generation = rank, generation
        if again:
            return
        at = known.seen % WINDOW_STEPS
        known.sums += tokens - known.rows[at]
        known.rows[at], known.numbers[at], known.drops[at] = tokens, step, np.nan
        known.violations[at] = step_violation(tokens)
        known.last_active[tokens > 0] = step
        known.seen += 1

    def add_dropped(self, rank: int, layer: int, step: int, tokens: float) -> None:
        """Take the tokens that a layer dropped in a step, said after its load."""
        known = self._layers.get(layer)
        if known is None or known.rank != rank:
            return
        at = (known.seen - 1) % WINDOW_STEPS
        if known.numbers[at] == step and np.isfinite(tokens):
            known.drops[at] = tokens

    def numbers_of(self, rank: int) -> tuple[int, ...]:
        """The layers that a rank speaks for, ascending."""
        return tuple(sorted(number for number, layer in self._layers.items() if layer.rank == rank))

    def views(self) -> list[LayerView]:
        """Every kept layer, ascending."""
        return [_view(number, self._layers[number]) for number in sorted(self._layers)]


def _view(number: int, layer: _Layer) -> LayerView:
    last = layer.seen - 1
    count = min(layer.seen, WINDOW_STEPS)
    recent = np.arange(max(0, layer.seen - COLLAPSE_STEPS), layer.seen) % WINDOW_STEPS
    last_step = int(layer.numbers[last % WINDOW_STEPS])
    said = layer.drops[~np.isnan(layer.drops)]
    known = layer.violations[~np.isnan(layer.violations)]
    return LayerView(
        layer=number,
        rank=layer.rank,
        steps=count,
        first_step=int(layer.numbers[(layer.seen - count) % WINDOW_STEPS]),
        last_step=last_step,
        tokens=layer.sums.copy(),
        recent=layer.rows[recent].sum(axis=0, dtype=np.float64),
        balance=balance(layer.sums),
        step_violation=float(known.mean()) if len(known) else None,
        dead=_dead(layer, last_step),
        dropped=float(said.sum()) if len(said) else None,
        last_active=layer.last_active.copy(),
    )


def _dead(layer: _Layer, last_step: int) -> tuple[int, ...]:
    """Experts without a token in the last DEAD_STEPS steps, when an even share would have been DEAD_EXPECTED."""
    if layer.seen < DEAD_STEPS:
        return ()
    rows = layer.rows[np.arange(layer.seen - DEAD_STEPS, layer.seen) % WINDOW_STEPS]
    sums = rows.sum(axis=0, dtype=np.float64)
    if sums.sum() < DEAD_EXPECTED * len(sums):
        return ()
    return tuple(np.flatnonzero(sums == 0).tolist())
