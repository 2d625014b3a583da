"""A script that knows nothing of ranksight: two optimizers, gradients accumulated over two batches, a line per step."""

import os
import sys
import time

import torch
import torch.distributed as dist

hang_at = int(sys.argv[1])  # rank 1 blocks in this step
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizers = [torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()]
for step in range(100_000):
    for _ in range(2):
        (model(torch.randn(4, 8)).square().mean() / 2).backward()
    for optimizer in optimizers:
        if rank == 1 and step == hang_at:
            time.sleep(1000)
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    if step % 50 == 0:
        print(rank, os.getpid(), step, flush=True)
print("through")
