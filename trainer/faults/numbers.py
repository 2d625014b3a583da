"""Numbers that go wrong: not finite, too large, flipped, dealt out unevenly, or forgotten."""

from __future__ import annotations

import torch
from torch import Tensor

from ranksight.trainer import manifest
from ranksight.trainer.faults.kinds import Fault
from ranksight.trainer.faults.scene import Scene, burn
from ranksight.trainer.stats import local

PREFER = 10.0  # added to scores between 0 and 1


def spoil(output: Tensor) -> Tensor:
    """The same tensor, not finite."""
    return output * torch.nan


@torch.no_grad()
def nan_gradient(scene: Scene) -> None:
    """The first gradient that has elements on this rank."""
    for parameter in scene.trainer.parameters.values():
        if parameter.grad is not None and local(parameter.grad).numel():
            local(parameter.grad).view(-1)[0] = torch.nan
            return


@torch.no_grad()
def nan_weight(scene: Scene) -> None:
    """The first weight that has elements on this rank."""
    _first_weight(scene).view(-1)[0] = torch.nan


@torch.no_grad()
def flip_bit(scene: Scene) -> None:
    """A high bit of the mantissa: the number changes by up to a half."""
    weight = _first_weight(scene)
    bits = weight.view(torch.int32 if weight.element_size() == 4 else torch.int64).view(-1)[:1]
    bits ^= 1 << 22


@torch.no_grad()
def scale_output(scene: Scene) -> None:
    """The weights that make the logits, on the ranks that hold them."""
    for name, parameter in scene.trainer.parameters.items():
        if name.startswith("head."):
            local(parameter).mul_(scene.size)


@torch.no_grad()
def unscale_output(scene: Scene) -> None:
    """Take `scale_output` back."""
    for name, parameter in scene.trainer.parameters.items():
        if name.startswith("head."):
            local(parameter).div_(scene.size)


@torch.no_grad()
def scale_gradients(scene: Scene) -> None:
    """All gradients of this rank."""
    for parameter in scene.trainer.parameters.values():
        if parameter.grad is not None:
            local(parameter.grad).mul_(scene.size)


def raise_rate(scene: Scene) -> None:
    """Once; it stays."""
    if scene.first:
        for group in scene.trainer.optimizer.param_groups:
            group["lr"] *= scene.size


@torch.no_grad()
def prefer_experts(scene: Scene) -> None:
    """In every step, as balancing works against it."""
    plan, experts = scene.trainer.config.plan, scene.trainer.config.model.experts
    own = experts // plan.ep
    first = scene.injection.rank % plan.ep * own
    count = own if scene.injection.fault is Fault.ROUTER_COLLAPSE else 1
    for router in scene.trainer.routers.values():
        router.bias_E[first : first + count] = PREFER


@torch.no_grad()
def avoid_expert(scene: Scene) -> None:
    """In every step, as balancing works against it."""
    for router in scene.trainer.routers.values():
        router.bias_E[int(scene.size) % router.experts] = -PREFER


def charge_rows(scene: Scene) -> None:
    """Make each row that an expert gets cost time, as on a device where it would."""

    def before(_module: torch.nn.Module, arguments: tuple[Tensor, object]) -> None:
        if scene.step >= scene.injection.step:
            burn(scene.size * len(arguments[0]))

    for part in scene.trainer.parts:
        for moe in part.moes.values():
            moe.experts.register_forward_pre_hook(before)


def damage(scene: Scene) -> None:
    """Cut a file of the checkpoint that was just written; collective, as a background write must have ended."""
    checkpoints = scene.trainer.checkpoints
    checkpoints.settle()
    if scene.rank == 0:
        folder = manifest.final_path(checkpoints.folder, scene.trainer.step)
        path = max(folder.glob("*.distcp"), key=lambda shard: shard.stat().st_size)
        with path.open("r+b") as shard:
            shard.truncate(path.stat().st_size // 2)


def forget(scene: Scene) -> None:
    """What a resume that loads only weights forgets."""
    trainer = scene.trainer
    for state in trainer.optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            local(state[name]).zero_()
    trainer.cursor += int(scene.size) * trainer.config.train.batch


def _first_weight(scene: Scene) -> Tensor:
    for parameter in scene.trainer.parameters.values():
        if local(parameter).numel():
            return local(parameter.detach())
    raise RuntimeError(f"rank {scene.rank} holds no weights")
