"""Times that the taps write on gloo: the true completion, waits, upper bounds; and what is seen of a rank from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ranksight.hooks import wire
from ranksight.hooks.ring import Ring
from tests.support.jobs import run_ranks, start_ranks
from tests.support.slots import Slot, open_ring, slots

pytestmark = pytest.mark.ranks

HEAD = """
import os, signal, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from ranksight.hooks import ring as rings
from ranksight.hooks import tap as taps
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
sizes = rings.Sizes(collectives=int(os.environ.get("SLOTS", "16384")))
ring = rings.create(Path(sys.argv[2]) / str(rank), sizes)
tap = taps.install(ring, sys.argv[1])
assert tap.kind.name.lower() == sys.argv[1], tap.reasons
dist.init_process_group("gloo")
dist.barrier()
"""
TAIL = """
dist.barrier()
dist.destroy_process_group()
time.sleep(0.2)  # let gloo's threads end before the interpreter does, see pytorch/pytorch#190489
"""
MS = 1_000_000


def ring_of(folder: Path, rank: int) -> Ring:
    (path,) = (folder / str(rank)).glob("*.ring")
    return open_ring(path)


@pytest.fixture(params=["native", "python"])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


STRAGGLER = (
    HEAD
    + """
import torch.distributed._functional_collectives as funcol
entered = Path(sys.argv[2]) / "entered"
while rank == 1 and not entered.exists():
    time.sleep(0.01)
time.sleep(0.2 if rank == 1 else 0)
tensor, part = torch.ones(1000), torch.ones(500)
work = dist.all_reduce(tensor, async_op=True)
entered.touch()
while not work.is_completed():
    time.sleep(0.01)
time.sleep(0.2)
work.wait()
# Without a future on gloo: reduce_scatter, send, recv.
work = dist.reduce_scatter_tensor(part, tensor, async_op=True)
time.sleep(0.1)
work.wait()
if rank == 0:
    dist.send(part, 1)
    never_waited = dist.isend(part, 1)
else:
    dist.recv(part, 0)
    dist.recv(part, 0)
funcol.wait_tensor(funcol.reduce_scatter_tensor(tensor, "sum", 0, dist.group.WORLD))
summed = funcol.all_reduce(tensor, "sum", dist.group.WORLD)
time.sleep(0.05)
funcol.wait_tensor(summed)
try:
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
except RuntimeError:
    pass
try:
    dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(4))
except RuntimeError:
    pass
dist.monitored_barrier()
"""
    + TAIL
)


@pytest.mark.slow
def test_completion_is_not_when_the_caller_waited(mode: str, tmp_path: Path) -> None:
    ends = run_ranks(STRAGGLER, 2, args=(mode, str(tmp_path)))
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr + ends[1].stderr
    by_rank = [slots(ring_of(tmp_path, rank))[1:] for rank in (0, 1)]
    late = by_rank[0][0]
    entered = by_rank[1][0]["enqueue_ns"]
    assert late["op"] == "all_reduce"
    assert entered - late["enqueue_ns"] >= 200 * MS  # rank 1 was late
    assert late["complete_ns"] >= entered
    assert late["wait_end_ns"] - late["complete_ns"] >= 190 * MS
    assert late["wait_begin_ns"] <= late["wait_end_ns"]

    flags = wire.CollectiveFlag
    scatter = by_rank[0][1]
    assert (scatter["op"], scatter["flags"]) == ("reduce_scatter_tensor", flags.ASYNC | flags.UPPER_BOUND)
    assert scatter["complete_ns"] == scatter["wait_end_ns"] >= scatter["wait_begin_ns"] >= scatter["return_ns"] + 90 * MS
    sent, forgotten = by_rank[0][2:4]
    assert (sent["op"], sent["flags"], sent["complete_ns"]) == ("send", flags.UPPER_BOUND, sent["wait_end_ns"])
    assert (forgotten["op"], forgotten["flags"]) == ("send", flags.NO_COMPLETION)
    assert forgotten["complete_ns"] == forgotten["wait_begin_ns"] == 0
    received = by_rank[1][2]
    assert (received["op"], received["flags"], received["complete_ns"]) == (
        "recv",
        flags.UPPER_BOUND,
        received["wait_end_ns"],
    )

    functional_scatter, functional_reduce = by_rank[0][4:6]
    assert functional_scatter["flags"] == flags.ASYNC | flags.UPPER_BOUND
    assert functional_scatter["complete_ns"] == functional_scatter["wait_end_ns"] > 0
    assert functional_reduce["flags"] == flags.ASYNC
    assert functional_reduce["wait_begin_ns"] >= functional_reduce["return_ns"] + 40 * MS
    assert functional_reduce["complete_ns"] > 0

    refused, wrong_size, monitored = by_rank[0][6:9]
    assert flags.FAILED in refused["flags"]
    assert flags.FAILED in wrong_size["flags"]
    assert wrong_size["return_ns"] > 0
    assert wrong_size["wait_begin_ns"] == 0
    assert (monitored["op"], monitored["complete_ns"]) == ("monitored_barrier", monitored["return_ns"])


# Rank 1 does not come. What rank 0 has enqueued must be readable from outside while rank 0 cannot do anything.
IN_FLIGHT = (
    HEAD
    + """
def hold_the_gil():
    import ctypes
    ctypes.PyDLL(None).usleep(20_000_000)

if rank == 0:
    work = dist.all_reduce(torch.ones(8), async_op=True)
    print("enqueued", flush=True)
    if sys.argv[3] == "gil":
        hold_the_gil()
time.sleep(60)
"""
)


@pytest.mark.parametrize("state", ["stopped", "killed", "gil"])
def test_in_flight_is_seen_from_outside(mode: str, state: str, tmp_path: Path) -> None:
    with start_ranks(IN_FLIGHT, 2, args=(mode, str(tmp_path), state)) as job:
        job.await_line(0, "enqueued")
        if state != "gil":
            os.kill(job.pids[0], signal.SIGSTOP if state == "stopped" else signal.SIGKILL)
        ring = ring_of(tmp_path, 0)
        slot = slots(ring)[-1]
        assert (slot["op"], slot["complete_ns"], slot["wait_begin_ns"], slot["flags"]) == (
            "all_reduce",
            0,
            0,
            wire.CollectiveFlag.ASYNC,
        )
        assert slot["return_ns"] > 0
        if mode == "native" and state == "gil":  # the heart beats on, so this is not a stopped process
            begin = ring["native_heartbeat_ns"]
            await_true(lambda: ring["native_heartbeat_ns"] > begin)


def await_true(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


BURST = (
    HEAD
    + """
tensor = torch.ones(2)
for _ in range(int(sys.argv[3])):
    dist.all_reduce(tensor)
"""
    + TAIL
)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "calls", "size"), [("native", 20_000, 16384), ("python", 3_000, 1024)])
def test_burst_is_captured_or_counted(mode: str, calls: int, size: int, tmp_path: Path) -> None:
    ends = run_ranks(BURST, 2, {"SLOTS": str(size)}, timeout=300, args=(mode, str(tmp_path), str(calls)))
    for rank, end in enumerate(ends):
        assert end.returncode == 0, end.stderr
        ring = ring_of(tmp_path, rank)
        assert ring["collectives_count"] == calls + 2  # two barriers
        kept: list[Slot] = slots(ring)
        dropped = ring["collectives_head"] - ring["collectives_slots"]
        assert dropped == calls + 2 - size
        assert [slot["group_seq"] for slot in kept] == list(range(dropped, calls + 2))
        assert ring["tap_errors"] == ring["late_completions"] == 0
        assert all(slot["complete_ns"] for slot in kept[:-1])
