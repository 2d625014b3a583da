"""The one all-reduce of a step: everything that all ranks must know, in one vector of float64.

    place      each rank puts                                            the sum is
    loss       its part of the job's mean loss                           the loss
    aux        its part of the auxiliary loss                            the auxiliary loss
    grad       squares of its gradients, over the ranks that hold them   the squared global gradient norm
    nonfinite  1 when one of these is infinite or NaN                    how many ranks saw it
    stop       1 when it was asked to stop                               above 0: all leave after this step
    step       its step                                                  step x world, else the ranks have come apart
    load       tokens it sent to each expert, layer by layer             tokens per layer and expert

The exact norm, and so exact clipping, over meshes of different shapes; the router's balancing; the agreement to stop:
none of them costs a collective of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from ranksight.trainer.config import Config
from ranksight.trainer.router import Router

LOSS, AUX, GRAD, NONFINITE, STOP, STEP, HEAD = range(7)


class RanksDisagree(RuntimeError):
    """Ranks are in different steps; going on would mix them."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What all ranks know after a step."""

    loss: float
    aux_loss: float
    grad_norm: float
    nonfinite_ranks: int
    stop: bool
    load_LE: Tensor  # tokens per layer and expert, float64


def local(tensor: Tensor) -> Tensor:
    """Part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def holders(parameter: Tensor, ranks: int) -> int:
    """How many of the `ranks` of a pipeline stage hold each element of a parameter."""
    if not isinstance(parameter, DTensor):
        return ranks
    shards = 1
    for placement, size in zip(parameter.placements, parameter.device_mesh.shape, strict=True):
        if not isinstance(placement, Replicate):
            shards *= size
    return ranks // shards


class StepStats:
    """Fills, reduces and reads the vector."""

    def __init__(
        self,
        config: Config,
        parameters: Mapping[str, nn.Parameter],
        routers: Mapping[int, Router],
        device: torch.device,
    ) -> None:
        self._parameters, self._routers = parameters, routers
        model, ranks = config.model, config.plan.dp * config.plan.tp
        self._holders = {name: holders(parameter, ranks) for name, parameter in parameters.items()}
        self._shape = (model.layers, model.experts)
        self._vector = torch.zeros(HEAD + model.layers * model.experts, dtype=torch.float64, device=device)

    def exchange(self, step: int, loss: float, stop: bool) -> Stats:
        """Collective over the world. RanksDisagree when another rank is in another step."""
        vector = self._vector.zero_()
        vector[LOSS] = loss
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                vector[GRAD] += local(parameter.grad).double().square().sum() / self._holders[name]
        load_LE = vector[HEAD:].view(self._shape)
        for layer, router in self._routers.items():
            vector[AUX] += router.aux_loss
            load_LE[layer] = router.tokens_E
        if not torch.isfinite(vector[:NONFINITE]).all():
            vector[:NONFINITE] = 0.0
            vector[NONFINITE] = 1.0
        vector[STOP], vector[STEP] = float(stop), float(step)
        dist.all_reduce(vector)
        loss, aux, grad, nonfinite, stops, steps = vector[:HEAD].tolist()
        if steps != step * dist.get_world_size():
            raise RanksDisagree(f"this rank is in step {step}, the mean of all is {steps / dist.get_world_size():g}")
        return Stats(loss, aux, grad**0.5, round(nonfinite), stops > 0, load_LE.clone())
