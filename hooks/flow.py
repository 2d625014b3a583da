"""Hooks on torch that show the flow of training: data, forward, backward, optimizer, evaluation.

    DataLoader iterator     -> Phase.DATA, a DATA span
    DDP, FSDP forward       -> Phase.FORWARD until backward begins (also after a DataLoader has given a batch), the input
    autograd.backward       -> Phase.BACKWARD, the loss
    optimizer step hooks    -> Phase.OPTIMIZER, the ends of steps; GradScaler.step counts when it skips the optimizer too
    model.eval(), train()   -> Phase.EVALUATION between them

A model that is neither wrapped nor fed by a DataLoader has no forward phase: hooks on every module would slow training
and get in the way of torch.compile. That time stays `other`.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as dataloader_module

from ranksight.hooks import wire
from ranksight.hooks.inputs import Inputs
from ranksight.hooks.numerics import Numerics
from ranksight.hooks.patch import RAISED, Patches
from ranksight.hooks.phases import Phases
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.steps import Steps
from ranksight.hooks.wire import Phase

# Members by name of their own: in Python 3.11 each `Phase.DATA` is a call, and the hooks run between kernels, with cold caches.
_BACKWARD = Phase.BACKWARD
_DATA = Phase.DATA
_EVALUATION = Phase.EVALUATION
_FORWARD = Phase.FORWARD
_OPTIMIZER = Phase.OPTIMIZER
_OTHER = Phase.OTHER
_STARTUP = Phase.STARTUP
_KIND_DATA = wire.EventKind.DATA
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Flow:
    """Translates what torch does into steps, phases and numerics."""

    def __init__(self, recorder: Recorder, phases: Phases, steps: Steps, numerics: Numerics) -> None:
        self._recorder, self._phases, self._steps, self._numerics = recorder, phases, steps, numerics
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}
        self._evaluated: weakref.ref[torch.nn.Module] | None = None
        self._frozen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._inputs = Inputs(recorder)
        steps.at_end.append(self._inputs.step_ended)

    def install(self, patches: Patches) -> None:
        """Put all hooks in place."""
        pre = register_optimizer_step_pre_hook(self._optimizer_begins)
        post = register_optimizer_step_post_hook(self._optimizer_ends)
        patches.on_remove(pre.remove)
        patches.on_remove(post.remove)
        patches.wrap(Optimizer, "__init__", after=lambda _, args, result: self._made(args[0], result))
        patches.wrap(Optimizer, "zero_grad", before=lambda _args, _kwargs: self._zeroed())
        scaler = torch.amp.GradScaler
        patches.wrap(scaler, "step", self._scaler_begins, lambda optimizer, _args, _result: self._end_step(optimizer))
        patches.wrap(scaler, "scale", after=lambda _, args, result: self._numerics.scaled(args[1], result))
        # Tensor.backward calls this one, too.
        patches.wrap(torch.autograd, "backward", self._backward_begins, self._backward_ends)
        self._install_norms(patches)
        patches.wrap(dataloader_module._BaseDataLoaderIter, "__next__", self._data_begins, self._data_ends)
        patches.wrap(DataLoader, "__iter__", self._loader_begins, self._loader_ends)
        patches.wrap(torch.nn.parallel.DistributedDataParallel, "forward", self._forward_begins, self._forward_ends)
        patches.after_import("torch.distributed.fsdp._fully_shard._fsdp_state", self._patch_fsdp2(patches))
        patches.after_import("torch.distributed.fsdp.fully_sharded_data_parallel", self._patch_fsdp1(patches))
        patches.wrap(torch.nn.Module, "eval", before=lambda args, _kwargs: self._evaluation_begins(args[0]))
        patches.wrap(torch.nn.Module, "train", before=self._mode_set)

    # optimizers

    def _made(self, optimizer: Optimizer, result: object) -> None:
        if result is RAISED or id(optimizer) in self._optimizers:
            return
        key, steps, optimizers = id(optimizer), self._steps, self._optimizers

        def gone(_: object) -> None:
            optimizers.pop(key, None)
            steps.optimizer_gone(key)

        optimizers[key] = weakref.ref(optimizer, gone)
        steps.optimizer_made(key, self._recorder.clock_ns())

    def _optimizer_begins(self, optimizer: Optimizer, _args: Args, _kwargs: Kwargs) -> None:
        if torch.compiler.is_compiling() or not self._recorder.active:
            return
        entered = self._recorder.clock_ns()
        try:
            self._begin_step(optimizer, entered)
        except Exception:
            self._recorder.failed("optimizer step")
        self._recorder.cost_ns += self._recorder.clock_ns() - entered

    def _optimizer_ends(self, optimizer: Optimizer, _args: Args, _kwargs: Kwargs) -> None:
        if torch.compiler.is_compiling() or not self._recorder.active:
            return
        entered = self._recorder.clock_ns()
        try:
            self._end_step(optimizer)
        except Exception:
            self._recorder.failed("optimizer step")
        self._recorder.cost_ns += self._recorder.clock_ns() - entered

    def _scaler_begins(self, args: Args, kwargs: Kwargs) -> Optimizer:
        optimizer: Optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
        self._begin_step(optimizer, self._recorder.clock_ns())
        return optimizer

    def _begin_step(self, optimizer: Optimizer, now: int) -> None:
        if id(optimizer) not in self._optimizers:
            self._made(optimizer, None)
        if self._steps.optimizer_begins(id(optimizer), now):
            self._phases.set_flow(_OPTIMIZER, now)

    def _end_step(self, optimizer: Optimizer) -> None:
        now = self._recorder.clock_ns()
        if self._phases.flow is _OPTIMIZER and not self._steps.nested(id(optimizer)):
            self._phases.set_flow(_OTHER, now)
        self._steps.optimizer_ends(id(optimizer), now)

    def _zeroed(self) -> None:
        if self._recorder.on_training_thread():
            self._steps.gradients_zeroed(self._recorder.clock_ns())

    def _install_norms(self, patches: Patches) -> None:
        clip = torch.nn.utils.clip_grad
        if not hasattr(clip, "_clip_grads_with_norm_"):  # older torch: only callers that look the name up are seen
            patches.wrap_all(
                (clip, torch.nn.utils), "clip_grad_norm_", after=lambda _, _args, norm: self._numerics.clipped_to(norm)
            )
            return

        def clipped(args: Args, kwargs: Kwargs) -> None:
            self._numerics.clipped_to(args[2] if len(args) > 2 else kwargs["total_norm"])

        patches.wrap(clip, "_clip_grads_with_norm_", before=clipped)
        patches.replace(torch.nn.utils, "clip_grads_with_norm_", vars(clip)["_clip_grads_with_norm_"])

    # backward

    def _backward_begins(self, args: Args, kwargs: Kwargs) -> bool | None:
        if not self._recorder.on_training_thread():
            return None
        now = self._recorder.clock_ns()
        if self._steps.backward_begins(now):
            if self._phases.evaluating:
                self._not_evaluating(now)
            self._phases.set_flow(_BACKWARD, now)
            self._numerics.backward_on(args[0] if args else kwargs.get("tensors"))
        return True

    def _backward_ends(self, token: bool | None, _args: Args, result: object) -> None:
        if token:
            now, raised = self._recorder.clock_ns(), result is RAISED
            if self._steps.backward_depth == 1:
                self._phases.set_flow(_OPTIMIZER if self._steps.in_optimizer else _OTHER, now)
                if raised:
                    self._numerics.backward_raised()
            self._steps.backward_ends(now, raised=raised)

    # forward

    def _forward_begins(self, args: Args, kwargs: Kwargs) -> int | None:
        if not self._recorder.on_training_thread():
            return None
        now = self._recorder.clock_ns()
        if not torch.is_grad_enabled():
            return self._phases.push(_EVALUATION, now)
        self._training_forward(now)
        self._inputs.given((*args[1:], *kwargs.values()))
        return None

    def _forward_ends(self, depth: int | None, _args: Args, _result: object) -> None:
        if depth is not None:
            self._phases.pop(depth, self._recorder.clock_ns())

    def _training_forward(self, now: int) -> None:
        if not self._phases.evaluating and not self._steps.backward_depth:
            self._steps.work(now)
            self._phases.set_flow(_FORWARD, now)

    def _patch_fsdp2(self, patches: Patches) -> Any:
        def begins(args: Args, _kwargs: Kwargs) -> None:
            if self._recorder.on_training_thread() and torch.is_grad_enabled():
                self._training_forward(self._recorder.clock_ns())
                self._inputs.given((*args[2], *args[3].values()))

        return lambda module: patches.wrap(module.FSDPState, "_root_pre_forward", before=begins)

    def _patch_fsdp1(self, patches: Patches) -> Any:
        def patch(module: Any) -> None:
            fsdp = module.FullyShardedDataParallel
            patches.wrap(fsdp, "forward", self._forward_begins, self._forward_ends)
            patches.wrap(fsdp, "clip_grad_norm_", after=lambda _, _args, norm: self._numerics.clipped_to(norm))

        return patch

    # data

    def _data_begins(self, _args: Args, _kwargs: Kwargs) -> tuple[int, Phase] | None:
        if self._phases.evaluating or not self._recorder.on_training_thread():
            return None
        now = self._recorder.clock_ns()
        self._steps.work(now)
        before = self._phases.flow
        self._phases.set_flow(_DATA, now)
        return now, before

    def _data_ends(self, token: tuple[int, Phase] | None, _args: Args, result: object) -> None:
        if token is None:
            return
        now = self._recorder.clock_ns()
        self._recorder.event(_KIND_DATA, token[0], now)
        self._phases.set_flow(token[1] if result is RAISED else _FORWARD, now)

    def _loader_begins(self, _args: Args, _kwargs: Kwargs) -> Phase | None:
        if self._phases.evaluating or not self._recorder.on_training_thread():
            return None
        now = self._recorder.clock_ns()
        self._steps.work(now)
        before = self._phases.flow
        self._phases.set_flow(_DATA, now)
        return before

    def _loader_ends(self, before: Phase | None, _args: Args, _result: object) -> None:
        if before is not None:
            self._phases.set_flow(before, self._recorder.clock_ns())

    # evaluation

    def _evaluation_begins(self, module: torch.nn.Module) -> None:
        if self._phases.evaluating or self._phases.flow is _STARTUP or module in self._frozen:
            return
        if self._recorder.on_training_thread() and module.training:
            self._evaluated = weakref.ref(module)
            self._phases.set_evaluating(True, self._recorder.clock_ns())

    def _mode_set(self, args: Args, kwargs: Kwargs) -> None:
        """model.train(mode); it calls itself for every module below."""
        if self._phases.evaluating and self._evaluated is not None:
            mode = args[1] if len(args) > 1 else kwargs.get("mode", True)
            if mode and self._evaluated() is args[0]:
                self._phases.set_evaluating(False, self._recorder.clock_ns())

    def _not_evaluating(self, now: int) -> None:
        """backward() while a module is in eval mode: that module is frozen, not evaluated."""
        module = self._evaluated() if self._evaluated is not None else None
        if module is not None and not module.training:
            self._frozen.add(module)
        self._phases.set_evaluating(False, now)
