"""The command line that goes on from a checkpoint.

    torchrun ... -m ranksight.trainer --pp 2   + ("--resume", "{checkpoint}")  ->  ... --pp 2 --resume step-00000040

How a trainer is told is its own business: `resume_arguments` of ranksight.toml says it. The reference trainer is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

REFERENCE_TRAINER, REFERENCE_ARGUMENTS = "ranksight.trainer", ("--resume", "{checkpoint}")
REDACTED = "<redacted>"


def resuming(command: Sequence[str], checkpoint: Path | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """The command with the arguments that name the checkpoint; unchanged without one, or without such arguments."""
    chosen = tuple(arguments) or (REFERENCE_ARGUMENTS if REFERENCE_TRAINER in command else ())
    if checkpoint is None or not chosen:
        return tuple(command)
    words = [word.replace("{checkpoint}", str(checkpoint)) for word in chosen]
    kept = list(command)
    if chosen[0] in kept and len(chosen) == 2:
        at = kept.index(chosen[0])
        del kept[at : at + 2]
    return (*kept, *words)
