"""Cut the model into stages and run forward and backward of a step, with or without a pipeline.

Where stages live, with pp = 2 (the same numbers for both ends in brackets):

    one a rank (GPipe, 1F1B)            rank 0: [0]        rank 1: [1]
    loop (Interleaved1F1B, ...)         rank 0: [0, 2]     rank 1: [1, 3]
    V (ZBVZeroBubble, DualPipeV)        rank 0: [0, 3]     rank 1: [1, 2]

Stages are told the shapes of what they exchange. Without them the pipelining library runs a real extra pass of the
first microbatch to find out, with its collectives, and the routers would count its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from ranksight.trainer.config import SCHEDULES, VOCABULARY, Config, ParallelPlan, Style
from ranksight.trainer.meshes import Meshes
from ranksight.trainer.model import Transformer
from ranksight.trainer.parallelize import set_gradient_sync

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}


def stages_of_rank(plan: ParallelPlan, pp_rank: int) -> list[int]:
    """Numbers of the stages that a pipeline rank holds, in model order."""
    if SCHEDULES[plan.schedule] is Style.V and plan.pp > 1:
        return [pp_rank, plan.stages - 1 - pp_rank]
    return [pp_rank + plan.pp * local for local in range(plan.local_stages)]


def layers_of_stage(stage: int, stages: int, layers: int) -> range:
    """The layers of one stage; sizes differ by at most one."""
    return range(stage * layers // stages, (stage + 1) * layers // stages)


class ForwardBackward(Protocol):
    """Runs a step's microbatches; gradients are left on the parameters."""

    def __call__(self, inputs_BS: Tensor, targets_BS: Tensor) -> float:
        """The part of the job's mean loss that this rank is the one to report."""
        ...


def forward_backward(
    config: Config, meshes: Meshes, parts: Sequence[Transformer], device: torch.device
) -> ForwardBackward:
    """What runs a step on this rank: a pipeline schedule, or a loop over microbatches."""
    if config.plan.pp > 1:
        return Pipeline(config, meshes, parts, device)
    (model,) = parts
    return Microbatches(config, model)


class _Loss:
    """Cross-entropy summed over this microbatch, over the tokens of the whole job's step."""

    def __init__(self, config: Config) -> None:
        self._tokens = config.tokens_per_step
        self._tp = config.plan.tp

    def __call__(self, logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
        logits = logits_BSV.flatten(0, 1)
        if logits.dtype is torch.bfloat16:
            logits = logits.float()
        return F.cross_entropy(logits, targets_BS.flatten(), reduction="sum") / self._tokens

    def parallel(self) -> AbstractContextManager[None]:
        """Must be around forward and backward: logits are sharded over tp."""
        return loss_parallel() if self._tp > 1 else nullcontext()

    def report(self, losses: Sequence[Tensor]) -> float:
        """Sum of losses; all tp ranks hold the same, so each reports its share."""
        local = [loss.to_local() if isinstance(loss, DTensor) else loss for loss in losses]
        return sum(loss.item() for loss in local) / self._tp


class Microbatches:
    """The whole model on this rank: one microbatch after the other, gradients reduced with the last."""

    def __init__(self, config: Config, model: Transformer) -> None:
        self._model = model
        self._loss = _Loss(config)
        self._count = config.plan.microbatches

    def __call__(self, inputs_BS: Tensor, targets_BS: Tensor) -> float:
        losses = []
        pairs = zip(inputs_BS.chunk(self._count), targets_BS.chunk(self._count), strict=True)
        for number, (inputs, targets) in enumerate(pairs, 1):
            set_gradient_sync(self._model, number == self._count)
            with self._loss.parallel():
                loss = self._loss(self._model(inputs), targets)
                loss.backward()
            losses.append(loss.detach())
        return self._loss.report(losses)


class Pipeline:
    """One or more stages on this rank, run by a schedule of torch.distributed.pipelining."""

    def __init__(self, config: Config, meshes: Meshes, parts: Sequence[Transformer], device: torch.device) -> None:
        plan = config.plan
        self._loss = _Loss(config)
        numbers = stages_of_rank(plan, meshes.pp_rank)
        self._first, self._last = 0 in numbers, plan.stages - 1 in numbers
        stages = [
            PipelineStage(
                part, number, plan.stages, device, group=meshes.dense.get_group("pp"),
                **_exchanged(config, number == 0, number == plan.stages - 1),
            )
            for number, part in zip(numbers, parts, strict=True)
        ]  # fmt: skip
        single = SCHEDULES[plan.schedule] is Style.SINGLE
        self._schedule: Any = get_schedule_class(plan.schedule)(
            stages[0] if single else stages,
            n_microbatches=plan.microbatches, loss_fn=self._loss, scale_grads=False,
        )  # fmt: skip

    def __call__(self, inputs_BS: Tensor, targets_BS: Tensor) -> float:
        losses: list[Tensor] = []
        inputs = (inputs_BS,) if self._first else ()
        targets = {"target": targets_BS, "losses": losses} if self._last else {}
        with self._loss.parallel():
            self._schedule.step(*inputs, **targets)
        return self._loss.report([loss.detach() for loss in losses])


def _exchanged(config: Config, first: bool, last: bool) -> dict[str, Any]:
    """Shapes of a stage's input and output, as tensors without data."""
    batch, seq, dtype = config.microbatch, config.model.seq, DTYPES[config.train.precision]
    hidden = torch.empty(batch, seq // config.plan.tp, config.model.dim, dtype=dtype, device="meta", requires_grad=True)
    logits = torch.empty(batch, seq, VOCABULARY, dtype=dtype, device="meta", requires_grad=True)
    tokens = torch.empty(batch, seq, dtype=torch.int64, device="meta")
    return {"input_args": tokens if first else hidden, "output_args": logits if last else hidden}
