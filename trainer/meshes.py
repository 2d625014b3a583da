r"""The process groups of a job, as two meshes over the same ranks.

    dense  (pp, dp, tp)       attention, norms, embedding: parameters shared over dp and tp
    sparse (pp, efsdp, ep)    experts: ep takes its ranks out of dp x tp; efsdp is what is left

With pp 2, dp 2, tp 2, ep 4 the eight ranks are

    stage 0   dp\tp  0  1      sparse: efsdp 1 x ep (0 1 2 3)
                0    0  1
                1    2  3
    stage 1          4  5       sparse: efsdp 1 x ep (4 5 6 7)
                     6  7

Mesh groups do not inherit the timeout of `init_process_group` (they get 30 minutes), so each gets it as an option.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from ranksight.trainer.config import ParallelPlan

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True)
class Meshes:
    """Both meshes and this rank's place in them."""

    dense: DeviceMesh
    sparse: DeviceMesh
    pp_rank: int
    dp_rank: int


@contextmanager
def process_group(device: str, timeout: timedelta, generation: int) -> Iterator[torch.device]:
    """The default process group from torchrun's environment (a world of one without it); yields this rank's device.

    `generation` counts restarts by torchrun. Its store outlives a generation, and gloo would find the addresses of
    dead ranks in it; so every generation reads and writes under a prefix of its own.
    """
    if "RANK" in os.environ:
        launched, rank, world_size = next(rendezvous("env://", timeout=timeout))
        store: Store = PrefixStore(f"generation-{generation}", launched)
    else:
        store, rank, world_size = HashStore(), 0, 1
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    dist.init_process_group(BACKENDS[device], timeout=timeout, store=store, rank=rank, world_size=world_size)
    # Not in a `finally`: after an error the peers are gone or stuck, and destroying groups would wait for them.
    yield place
    dist.destroy_process_group()


def make_meshes(plan: ParallelPlan, device: str, timeout: timedelta) -> Meshes:
    """Make every group of the plan; collective over the world."""

    def mesh(**sizes: int) -> DeviceMesh:
        options: dict[int | str, Any] = {axis: (BACKENDS[device], _options(device, timeout)) for axis in sizes}
        return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes), backend_override=options)

    dense = mesh(pp=plan.pp, dp=plan.dp, tp=plan.tp)
    sparse = mesh(pp=plan.pp, efsdp=plan.efsdp, ep=plan.ep)
    return Meshes(dense, sparse, dense.get_local_rank("pp"), dense.get_local_rank("dp"))


def _options(device: str, timeout: timedelta) -> Any:
    backend: Any = dist.ProcessGroupNCCL if device == "cuda" else dist.ProcessGroupGloo
    options = backend.Options() if device == "cuda" else backend._Options()
    options._timeout = timeout
    return options
