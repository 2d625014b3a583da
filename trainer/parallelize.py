"""Spread one pipeline stage over the ranks of its dense and sparse mesh.

    tensor parallel    heads over tp; between the blocks each rank keeps its part of the sequence (sequence parallel),
                       so every (dp, tp) rank routes tokens of its own and ep can fold over dp x tp
    expert parallel    experts over ep
    data parallel      what is left, over dp (experts: over efsdp), sharded by FSDP2 or replicated

Every reduction is a sum, because the loss is already divided by the tokens of the whole job. FSDP2 divides by the size
of its group unless told otherwise, and gloo lacks the operation that it would use.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ranksight.trainer.config import Config, ParallelPlan
from ranksight.trainer.meshes import Meshes
from ranksight.trainer.model import Transformer


def parallelize(stage: Transformer, config: Config, meshes: Meshes) -> None:
    """Spread `stage` in place; collective over its ranks. A world of one in f32 or f64 stays as it is."""
    plan = config.plan
    if plan.tp > 1:
        _tensor_parallel(stage, meshes.dense["tp"])
    if plan.ep > 1:
        _expert_parallel(stage, meshes.sparse["ep"])
    if plan.world_size > 1 or config.train.precision == "bf16":
        _data_parallel(stage, plan, meshes, config.train.precision)


def _tensor_parallel(stage: Transformer, mesh: DeviceMesh) -> None:
    ends: dict[str, ParallelStyle] = {}
    if stage.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if stage.head is not None:
        ends["norm"] = SequenceParallel()
        # logits stay sharded over the byte values: `loss_parallel` takes the loss without gathering them
        ends["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    # Every rank has drawn the same weights: src_data_rank=None takes them without a broadcast.
    if ends:
        parallelize_module(stage, mesh, ends, src_data_rank=None)
    for block in stage.layers.values():
        styles: dict[str, ParallelStyle] = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "moe_norm": SequenceParallel(use_local_output=True),
            "moe.router.gate": SequenceParallel(use_local_output=True),
        }
        parallelize_module(block, mesh, styles, src_data_rank=None)


def _expert_parallel(stage: Transformer, mesh: DeviceMesh) -> None:
    for moe in stage.moes.values():
        moe.ep_group = mesh.get_group()
        for name, weight in list(moe.experts.named_parameters(recurse=False)):
            shared = distribute_tensor(weight.data, mesh, [Shard(0)], src_data_rank=None)
            moe.experts.register_parameter(name, nn.Parameter(shared))


def _data_parallel(stage: Transformer, plan: ParallelPlan, meshes: Meshes, precision: str) -> None:
    options: dict[str, Any] = {}
    if precision == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if plan.data_parallel == "shard":
        wrap: Any = fully_shard
        # a pipeline stage is used again by the next microbatch at once: keep its parameters gathered
        options["reshard_after_forward"] = plan.pp == 1
    else:
        wrap = replicate
    for moe in stage.moes.values():
        wrap(moe.experts, mesh=meshes.sparse["efsdp"], **options)
    for block in stage.layers.values():
        wrap(block, mesh=meshes.dense["dp"], **options)
    wrap(stage, mesh=meshes.dense["dp"], **options)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def set_gradient_sync(stage: Transformer, on: bool) -> None:
    """Whether the next backward pass reduces gradients over data parallel ranks, or only adds them up locally."""
    if isinstance(stage, FSDPModule):
        cast(FSDPModule, stage).set_requires_gradient_sync(on)
