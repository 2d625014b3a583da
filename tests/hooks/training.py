"""An unmodified training script for the tests: DDP over a mesh, data workers, evaluation, checkpoint, compiled model.

It prints what it did, so that the test can compare it with what the ring says. It knows nothing of ranksight.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--compile", action="store_true")
    options.add_argument("--mesh", action="store_true")
    options.add_argument("--end", default="", help="how each rank ends, one word for each")
    args = options.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    said: dict[str, object] = {"rank": rank, "pid": os.getpid()}
    if args.mesh:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        init_device_mesh("cpu", (4,), mesh_dim_names=("everyone",))
        pair = dist.new_group([0, 3])
        said["groups"] = {name: dist.get_process_group_ranks(mesh.get_group(name)) for name in ("dp", "tp")}
        dist.all_reduce(torch.ones(1), group=mesh.get_group("tp"))
        if rank in {0, 3}:
            dist.all_reduce(torch.ones(1), group=pair)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    plain = model
    if args.compile:
        model = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(4 * args.steps, 8, generator=torch.Generator().manual_seed(rank)))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    losses, norms = [], []
    for (x,) in loader:
        loss = (wrapped(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)).hex())
        optimizer.step()
        losses.append(float(loss).hex())
    wrapped.eval()
    with torch.no_grad():
        for (x,) in DataLoader(data, batch_size=16):
            wrapped(x)
    wrapped.train()
    said |= {"losses": losses, "norms": norms}
    if rank == 0:
        torch.save(plain.state_dict(), Path(os.environ["WORK"]) / "model.pt")
    print(json.dumps(said), flush=True)
    end = dict(enumerate(args.end.split(","))).get(rank, "")
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise ValueError("told to")
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)  # gloo's threads free their last work: torch aborts if the interpreter goes first


if __name__ == "__main__":
    main()
