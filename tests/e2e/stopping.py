"""Two optimizers, gradients accumulated over two batches, a line now and then.

It knows nothing of ranksight, unless told where to save when all ranks leave.

stopping.py STEP [FOLDER]     rank 1 blocks in STEP; each rank leaves FOLDER/<rank>-<step> on its way out
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

hang_at = int(sys.argv[1])  # rank 1 blocks in this step
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizers = [torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()]
if len(sys.argv) > 2:
    from ranksight import hooks

    def save(step: int) -> None:
        dist.barrier()  # all ranks are here together
        Path(sys.argv[2], f"{rank}-{step}").touch()

    hooks.on_stop(save)
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
        sys.stdout.write(f"{rank} {os.getpid()} {step}\n")  # one write: the ranks share the pipe
        sys.stdout.flush()
print("through")
