"""Everything that the trainer tells ranksight, and the one question it asks: whether to stop.

The trainer runs with or without ranksight: unless the environment names a ring folder (`ranksight run` does that), all
of this does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

from ranksight import hooks
from ranksight.trainer.corpus import Batch
from ranksight.trainer.stats import Stats


def attach(first_step: int | None = None) -> None:
    """Attach this rank before it makes groups; again with `first_step`, the number that its first step has."""
    if "RANKSIGHT_RING_DIR" in os.environ:
        hooks.attach(first_step=first_step)


def corpus(name: str, digest: str) -> None:
    """Which text the model is trained on."""
    hooks.record_fact("corpus", name)
    hooks.record_fact("corpus_sha256", digest)


def phase(name: str) -> AbstractContextManager[None]:
    """What the rank does inside the block: data, optimizer, checkpoint, load, partition."""
    return hooks.phase(name)


def batch(drawn: Batch, cursor: int) -> None:
    """Which samples this rank trains on; `cursor` is the first one of the job's step."""
    samples, seq = drawn.inputs_BS.shape
    hooks.record_batch(samples=samples, tokens=samples * seq, cursor=cursor, fingerprint=drawn.fingerprint)


def step(number: int, stats: Stats, layers: Mapping[int, object], tokens: int) -> None:
    """How a step went, at its end; `layers` are those of this rank, `tokens` those of the whole job's step."""
    for layer in layers:
        hooks.record_experts(layer, stats.load_LE[layer].tolist())
    nan = float("nan")
    finite = not stats.nonfinite_ranks
    hooks.record_step(
        number, loss=stats.loss if finite else nan, grad_norm=stats.grad_norm if finite else nan, tokens=tokens
    )


def clean_steps() -> int | None:
    """Checkpoints of more steps than this were written after the first sign of wrong numbers; None: no such sign."""
    return hooks.clean_steps()


def stop_after() -> int | None:
    """The step after which ranksight wants all ranks to leave."""
    return hooks.stop_requested()


def checkpoint_wanted() -> bool:
    """Whether a checkpoint may be written now; not when all ranks leave because what is in memory may be wrong."""
    return hooks.checkpoint_wanted()
