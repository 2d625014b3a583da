"""Where a number first stopped being finite: rank, module, microbatch, and whether it came in or arose there.

    a loss or norm of this rank is inf or nan  -> the next WATCH_STEPS steps are watched
    the agent stores watch_until_step          -> all steps before that one are, on every rank; -1: none is
    a watched step: every module's output, the gradient that comes back to it, gradients before the optimizer
        the first of them that is not finite   -> one ORIGIN event for each microbatch, with the module's name

While no step is watched there are no hooks on modules. Watching changes no number and adds no collective; it costs one
pass over every activation. On a device nothing is waited for: flags are made on its stream and read once they are
here, as losses are. Modules that torch.compile has taken are not watched, as hooks would make it compile them anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ranksight.hooks.numerics import Reading
from ranksight.hooks.patch import Patches
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.wire import EventKind, Origin

WATCH_STEPS = 50  # after a number that is not finite
_EVENTS_MOST = 64  # of one step
_PENDING_MOST = 4096  # looks of a device that are not here yet
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


class _Look(NamedTuple):
    """What was looked at: the flags are [bad output, bad input, bad weight], or [bad gradient]."""

    at_ns: int
    step: int
    microbatch: int
    stage: int
    name: str
    flags: Reading


class Watch:
    """Puts hooks on modules while a step is watched, and writes what they find first."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._until = 0  # the first step that is not watched any more
        self._handles: list[RemovableHandle] = []
        self._depth = 0
        self._names: dict[int, str] = {}  # id of a module or parameter of a root that has been called
        self._seen: tuple[int, set[int]] = (-1, set())  # step, microbatches whose origin is known
        self._pending: list[_Look] = []

    def install(self, patches: Patches) -> None:
        """Nothing is patched before it is needed; whatever is there then goes with the patches."""
        patches.on_remove(self._unhook)

    def suspect(self, step: int) -> None:
        """A number of this rank is inf or nan in `step`."""
        self._until = max(self._until, step + 1 + WATCH_STEPS)

    def step_ended(self, step: int, _now: int) -> None:
        """Begin or end to watch with the step that follows."""
        self._write()
        asked = self._recorder.ring["watch_until_step"]
        if asked >= 0 and step + 1 < max(self._until, asked):
            if not self._handles:
                self._hook()
        elif self._handles:
            self._unhook()

    def _hook(self) -> None:
        if "torch._dynamo" in sys.modules and torch._dynamo.utils.counters["stats"]["calls_captured"]:
            self._until = 0
            self._recorder.note("the model is compiled, so modules are not watched for numbers that are not finite")
            return
        self._depth = 0
        self._handles = [
            register_module_forward_pre_hook(self._enters),
            register_module_forward_hook(self._leaves, always_call=True),
            register_optimizer_step_pre_hook(self._optimizer_begins),
        ]

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._names = [], {}

    # what the hooks see

    def _enters(self, module: torch.nn.Module, _inputs: object) -> None:
        if not self._recorder.on_training_thread():
            return
        if self._depth == 0 and id(module) not in self._names:
            self._learn_names(module)
        self._depth += 1

    def _leaves(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        if not self._recorder.on_training_thread():
            return
        entered = self._recorder.clock_ns()
        self._depth -= 1
        try:
            if torch.is_grad_enabled() and output is not None:
                self._look_at_module(module, inputs, output)
        except Exception:
            self._recorder.failed("watching a module")
        self._recorder.cost_ns += self._recorder.clock_ns() - entered

    def _look_at_module(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        outputs = list(_floats(output))
        if not outputs or self._known():
            return
        name = self._names.get(id(module), type(module).__name__)
        bad = _bad(outputs)
        if outputs[0].device.type == "cpu":
            if bad.item():
                weights = list(_floats(tuple(module.parameters(recurse=False))))
                flags = torch.stack((bad, _bad(list(_floats(inputs))), _bad(weights)))
                self._found(self._look(name, flags))
                return
        else:
            weights = list(_floats(tuple(module.parameters(recurse=False))))
            flags = torch.stack((bad, _bad(list(_floats(inputs)), bad), _bad(weights, bad)))
            self._pending.append(self._look(name, flags))
        for tensor in outputs:
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(_GradientHook(self, name, self._recorder.ring["microbatch"]))

    def gradient(self, name: str, microbatch: int, gradient: Tensor) -> None:
        """The gradient that came back to the output of a module."""
        entered = self._recorder.clock_ns()
        try:
            if self._handles and not self._known(microbatch):
                self._look_at_gradient(name, gradient)
        except Exception:
            self._recorder.failed("watching a gradient")
        self._recorder.cost_ns += self._recorder.clock_ns() - entered

    def _optimizer_begins(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if self._known() or not self._recorder.active:
            return
        entered = self._recorder.clock_ns()
        try:
            for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                if parameter.grad is not None and not self._known():
                    name = self._names.get(id(parameter), f"parameter {number} of the optimizer")
                    self._look_at_gradient(name, parameter.grad)
        except Exception:
            self._recorder.failed("watching gradients")
        self._recorder.cost_ns += self._recorder.clock_ns() - entered

    def _look_at_gradient(self, name: str, gradient: Tensor) -> None:
        flag = _bad(list(_floats(gradient)))
        if flag.device.type != "cpu":
            self._pending.append(self._look(name, flag.reshape(1)))
        elif flag.item():
            self._found(self._look(name, flag.reshape(1)))

    # what is made of it

    def _look(self, name: str, flags: Tensor) -> _Look:
        ring = self._recorder.ring
        return _Look(
            self._recorder.clock_ns(), self._recorder.step, ring["microbatch"], ring["stage"], name, Reading(flags)
        )

    def _known(self, microbatch: int | None = None) -> bool:
        """Whether this microbatch of the step in progress has its origin."""
        step, found = self._seen
        if step != self._recorder.step:
            return False
        return (self._recorder.ring["microbatch"] if microbatch is None else microbatch) in found or len(found) >= _EVENTS_MOST

    def _found(self, look: _Look) -> None:
        """Write the first look of a microbatch that found something."""
        values = look.flags.values
        if not values[0]:
            return
        if self._seen[0] != look.step:
            self._seen = (look.step, set())
        if look.microbatch in self._seen[1]:
            return
        self._seen[1].add(look.microbatch)
        if len(values) == 1:
            how = Origin.GRADIENT
        elif len(values) > 2 and values[2]:
            how = Origin.WEIGHT
        else:
            how = Origin.CAME_IN if values[1] else Origin.AROSE
        layer = _LAYER.search(look.name.partition(" ")[0])
        events, table = self._recorder.ring.events, self._recorder.ring.hooks_table
        events.write(
            EventKind.ORIGIN, look.at_ns, look.at_ns, step=look.step, code=how, name=table.string(look.name),
            microbatch=look.microbatch, stage=look.stage, layer=int(layer[1]) if layer else -1,
        )  # fmt: skip

    def _write(self) -> None:
        """Take in the flags that have come from a device, in the order in which they were made."""
        while self._pending and self._pending[0].flags.ready():
            self._found(self._pending.pop(0))
        del self._pending[:-_PENDING_MOST]

    def _learn_names(self, root: torch.nn.Module) -> None:
        self._names[id(root)] = type(root).__name__
        for name, module in root.named_modules():
            if name:
                self._names[id(module)] = f"{name.removeprefix('module.')} ({type(module).__name__})"
        for name, parameter in root.named_parameters():
            self._names[id(parameter)] = name.removeprefix("module.")


class _GradientHook:
    """Looks at a gradient and leaves it as it is."""

    __slots__ = ("_microbatch", "_name", "_watch")

    def __init__(self, watch: Watch, name: str, microbatch: int) -> None:
        self._watch, self._name, self._microbatch = watch, name, microbatch

    def __call__(self, gradient: Tensor) -> None:
        self._watch.gradient(self._name, self._microbatch, gradient)


def _floats(found: object) -> Iterator[Tensor]:
    """The floating-point tensors of a nest of tuples, lists and dicts; the local part of a DTensor."""
    if isinstance(found, Tensor):
        local: Any = getattr(found, "_local_tensor", found)
        if local.is_floating_point() and local.numel() and local.layout is torch.strided:
            yield local
    elif isinstance(found, (tuple, list)):
        for each in found:
            yield from _floats(each)
    elif isinstance(found, dict):
        yield from _floats(tuple(found.values()))


def _bad(tensors: Sequence[Tensor], like: Tensor | None = None) -> Tensor:
    """Whether some element is inf or nan, as a tensor on the device; False without tensors, on the device of `like`."""
    flag: Tensor | None = None
    with torch.no_grad():
        for tensor in tensors:
            one = ~torch.isfinite(tensor).all()
            flag = one if flag is None else flag | one
    return torch.zeros((), dtype=torch.bool, device=None if like is None else like.device) if flag is None else flag
