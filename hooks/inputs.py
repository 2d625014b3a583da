"""How much a step computes on: the elements of all tensors that the wrapped model was given in it.

    forward of DDP, FSDP -> given -> step_ended -> INPUT event, when the number differs from the step before

A step that takes longer because it has more to do is no regression; this tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder


class Inputs:
    """Adds up over the forwards of a step: microbatches of an accumulation count together."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._elements = 0
        self._said = 0

    def given(self, arguments: Iterable[object]) -> None:
        """A wrapped model is called; tensors inside of containers are not counted."""
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                self._elements += argument.numel()

    def step_ended(self, step: int, now: int) -> None:
        """Say the sum if it is news."""
        if self._elements != self._said:
            self._said = self._elements
            self._recorder.event(wire.EventKind.INPUT, now, now, step=step, values=(float(self._elements),))
        self._elements = 0
