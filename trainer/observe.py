"""Everything that the trainer tells ranksight, and the one question it asks: whether to stop.

The trainer runs with or without ranksight: until `ranksight run` or `hooks.attach` has attached it, all of this does
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from ranksight import hooks
from ranksight.trainer.corpus import Batch
from ranksight.trainer.stats import Stats


def phase(name: str) -> AbstractContextManager[None]:
    """What the rank does inside the block: data, optimizer, checkpoint, load, partition."""
    return hooks.phase(name)


def batch(drawn: Batch, cursor: int) -> None:
    """Which samples this rank trains on; `cursor` is the first one of the job's step."""
    samples, seq = drawn.inputs_BS.shape
    hooks.record_batch(samples=samples, tokens=samples * seq, cursor=cursor, fingerprint=drawn.fingerprint)


def step(stats: Stats, layers: Mapping[int, object], tokens: int) -> None:
    """How the step went; `layers` are those of this rank, `tokens` those of the whole job's step."""
    for layer in layers:
        hooks.record_experts(layer, stats.load_LE[layer].tolist())
    nan = float("nan")
    finite = not stats.nonfinite_ranks
    hooks.record_step(loss=stats.loss if finite else nan, grad_norm=stats.grad_norm if finite else nan, tokens=tokens)


def stop_after() -> int | None:
    """The step after which ranksight wants all ranks to leave."""
    return hooks.stop_requested()
