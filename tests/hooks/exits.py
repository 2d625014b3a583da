# mypy: ignore-errors
"""One rank that ends in an awkward way, with and without a tap. Run by test_tap_exits.py and tests/bench/exit_codes.py.

python exits.py none|native|python|hooks FOLDER in_flight|in_flight_destroyed|destroyed|dead_peer|exception|last_is_backward
"""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import torch
import torch.distributed as dist

from ranksight import hooks
from ranksight.hooks import ring as rings
from ranksight.hooks import tap as taps

torch.set_num_threads(1)
mode, folder, case = sys.argv[1:4]
rank = int(os.environ["RANK"])
ring_dir = Path(folder) / f"{mode}-{os.getpid()}"
if mode == "hooks":  # everything, as `ranksight run` puts it in
    assert hooks.attach(ring_dir)
else:
    taps.install(rings.create(ring_dir, rings.Sizes(1024, 64, 1 << 14, 4096)), mode)
dist.init_process_group("gloo")
tensor = torch.ones(200_000)
dist.all_reduce(tensor)

if case in {"in_flight", "in_flight_destroyed"}:
    for _ in range(20):
        dist.all_reduce(tensor, async_op=True)
    if case == "in_flight_destroyed":
        dist.destroy_process_group()
elif case == "destroyed":
    dist.destroy_process_group()
    time.sleep(0.2)
elif case == "dead_peer":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor, async_op=True)
elif case == "exception":
    dist.all_reduce(tensor, async_op=True)
    raise SystemExit(7) if rank == 0 else ValueError("as planned")
elif case == "last_is_backward":
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(20):
        model(torch.ones(4, 64)).sum().backward()
    dist.destroy_process_group()
