# mypy: ignore-errors
"""One process on torch's fake backend, as rank 0 of 8: the calls whose slots test_tap_slots.py looks at.

python tap_script.py native|python FOLDER
"""

import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ranksight.hooks import ring as rings
from ranksight.hooks import tap as taps
from ranksight.hooks import wire

work_class = torch._C._distributed_c10d.Work
wait_before = work_class.__dict__["wait"]
ring = rings.create(Path(sys.argv[2]), rings.Sizes(collectives=512, events=16, tap_table=1 << 16, hooks_table=4096))
tap = taps.install(ring, sys.argv[1])
assert tap.kind.name.lower() == sys.argv[1], tap.reasons
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
ring["step"], ring["microbatch"], ring["stage"], ring["phase"] = 7, 3, 1, wire.Phase.BACKWARD


def step(number: int) -> None:
    """Slots are found by the step they were issued in."""
    ring["step"] = number


def issue_all_reduce() -> None:
    dist.all_reduce(torch.ones(2, 3), op=dist.ReduceOp.MAX)


class Model:
    def forward(self) -> None:
        dist.all_reduce(torch.ones(5, dtype=torch.bfloat16), async_op=True).wait()


issue_all_reduce()
Model().forward()

step(8)
dist.broadcast(torch.ones(4), 2)
dist.all_gather_into_tensor(torch.empty(8 * 3), torch.ones(3))
dist.reduce_scatter_single(torch.empty(3), torch.ones(8 * 3))
dist.gather(torch.ones(5, dtype=torch.float64), [torch.empty(5, dtype=torch.float64) for _ in range(8)], 0)
dist.scatter(torch.ones(5), [torch.ones(5) for _ in range(8)], 0)
dist.all_gather([torch.empty(2, 2) for _ in range(8)], torch.ones(2, 2))
dist.barrier()

step(9)
sends, receives = [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]
dist.all_to_all_single(torch.empty(36, 2), torch.ones(36, 2), receives, sends)
dist.all_to_all_single(torch.empty(8), torch.ones(8))
with contextlib.suppress(RuntimeError):  # the backend refuses it; more splits than a quarter of the ring can hold
    dist.all_to_all(list(torch.empty(3000, 1)), list(torch.ones(3000, 1)))

step(10)
for tag in (0, 0, 5):
    dist.send(torch.ones(2), 3, tag=tag)
dist.send(torch.ones(2), 4)
dist.recv(torch.ones(2), 3)
dist.isend(torch.ones(2), 3, tag=5)

step(11)
group = dist.new_group([0, 1, 2], group_desc="three")
dist.all_reduce(torch.ones(1), group=group)
dist.all_reduce(torch.ones(1), group=group)
tap.forget_groups(group.group_name)
dist.all_reduce(torch.ones(1), group=group)
dist.all_reduce(torch.ones(1))

step(12)
dist.all_reduce(torch.ones(1, device="meta"))
# A function of a file with foreign letters in its name.
exec(compile("def from_text():\n    dist.all_reduce(torch.ones(1))\n", "/tmp/gr\u00fc\u00df\u4f60.py", "exec"))  # noqa: S102
from_text()  # noqa: F821 - made by exec
child = os.fork()
if child == 0:
    dist.all_reduce(torch.ones(1))
    own = rings.create(Path(sys.argv[2]) / "child", rings.Sizes(64, 16, 4096, 4096))
    taps.install(own, sys.argv[1])
    dist.all_reduce(torch.ones(1))
    os._exit(own["collectives_count"] if own["tap"] == tap.kind else 99)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

print("full", ring["collectives_count"], ring["collectives_skipped"])
tap.set_detail(wire.Detail.COUNTERS)
for _ in range(40):
    dist.all_reduce(torch.ones(1))
tap.set_detail(wire.Detail.SAMPLED)
step(13)
for _ in range(64):
    dist.all_reduce(torch.ones(1))
tap.set_detail(wire.Detail.FULL)
step(14)
dist.all_reduce(torch.ones(1))
print("end", ring["collectives_count"], ring["collectives_skipped"])
assert ring["tap_cost_ns"] > 0
tap.remove()
dist.all_reduce(torch.ones(1))
print("removed", ring["collectives_count"], ring["collectives_skipped"], work_class.__dict__["wait"] is wait_before)
again = taps.install(ring, sys.argv[1])
step(15)
dist.all_reduce(torch.ones(1))
again.remove()
print("again", ring["collectives_count"], "errors", ring["tap_errors"])
