"""Checksums of parameters, so that the agent can see replicas drift apart. Read-only, and no rank talks to another.

    optimizer's step() -> every EVERY steps one slice of at most SLICE_BYTES of its parameters -> CHECKSUM event

All ranks take the same slice at the same step, as they built their parameters in the same order: what is replicated has
the same sum everywhere. The sum is taken over the bits as integers, so one flipped bit changes it, and rounding and the
order of additions don't. Sharded parameters (DTensors) are left out. A device is not waited for.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ranksight.hooks.numerics import Numerics
from ranksight.hooks.patch import Patches
from ranksight.hooks.recorder import Recorder

EVERY = 5
SLICE_BYTES = 1 << 20  # a tenth of a millisecond on a core
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Slice = list[tuple[int, int, int]]  # (parameter, first element, elements)


class Checksums:
    """Watches the optimizers of this rank."""

    def __init__(self, recorder: Recorder, numerics: Numerics) -> None:
        self._recorder, self._numerics = recorder, numerics
        self._slices: weakref.WeakKeyDictionary[Optimizer, list[Slice]] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Look at optimizers after their steps until `patches` are removed."""
        handle = register_optimizer_step_post_hook(self._stepped)
        patches.on_remove(handle.remove)

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        recorder = self._recorder
        step = recorder.step
        if not recorder.active or step < 0 or step % EVERY:
            return
        entered = recorder.clock_ns()
        try:
            with torch.no_grad():
                self._say(optimizer, step)
        except Exception:
            recorder.failed("checksums")
        recorder.cost_ns += recorder.clock_ns() - entered

    def _say(self, optimizer: Optimizer, step: int) -> None:
        slices = self._slices.get(optimizer)
        if slices is None:
            slices = self._slices[optimizer] = slices_of(_parameters(optimizer))
            self._numbers[optimizer] = len(self._numbers)
        if not slices:
            return
        number = step // EVERY % len(slices)
        total = checksum(_parameters(optimizer), slices[number])
        if total is not None:
            self._numerics.checksum(step, self._numbers[optimizer], number, total)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def slices_of(parameters: list[torch.Tensor]) -> list[Slice]:
    """Cut plain, dense parameters into slices of at most SLICE_BYTES each."""
    slices: list[Slice] = []
    room = 0
    for index, parameter in enumerate(parameters):
        if type(parameter) not in {torch.Tensor, torch.nn.Parameter} or parameter.layout is not torch.strided:
            continue
        if parameter.element_size() not in _INTEGERS or not parameter.is_contiguous():
            continue
        most = SLICE_BYTES // parameter.element_size()
        for first in range(0, parameter.numel(), most):
            count = min(most, parameter.numel() - first)
            size = count * parameter.element_size()
            if size > room:
                slices.append([])
                room = SLICE_BYTES
            slices[-1].append((index, first, count))
            room -= size
    return slices


def checksum(parameters: list[torch.Tensor], part: Slice) -> torch.Tensor | None:
    """The low and the high 32 bits of the sum of a slice's bits, as two exact float64 on the slice's device."""
    if not part:
        return None
    sums = []
    for index, first, count in part:
        bits = parameters[index].detach().view(_INTEGERS[parameters[index].element_size()])
        if count < bits.numel():
            bits = bits.view(-1)[first : first + count]
        sums.append(bits.sum(dtype=torch.int64))
    device = sums[0].device
    if any(one.device != device for one in sums):
        sums = [one.to(device) for one in sums]
    # Weighted by place: values that change places between parameters change the sum.
    total = (torch.stack(sums) * torch.arange(1, len(sums) + 1, device=device)).sum()
    return torch.stack((total & 0xFFFFFFFF, total >> 32)).to(torch.float64)
