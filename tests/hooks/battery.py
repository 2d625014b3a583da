"""One rank of the battery: every way that torch offers to communicate, on 4 gloo ranks. Run by test_tap_battery.py.

    python battery.py none|native|python FOLDER

Each section returns tensors; FOLDER/<mode>-<rank>.json gets, for each section: a digest of them, the type and text of
what it raised, what the tap counted by op, and what the backend itself started by name.
"""

# mypy: ignore-errors
# A user's script: it is written against torch, not against torch's stubs.

from __future__ import annotations

import datetime
import hashlib
import json
import re
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed import all_reduce as imported_before_the_tap
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2]))

from ranksight.hooks import ring as rings
from ranksight.hooks import tap as taps
from ranksight.hooks import wire
from tests.support.backend_count import BackendCount

Tensors = list[torch.Tensor]
Section = Callable[[int, int], Tensors]
SECTIONS: list[Section] = []
SHORT = datetime.timedelta(milliseconds=300)


def section(body: Section) -> Section:
    SECTIONS.append(body)
    return body


def values(rank: int, *shape: int) -> torch.Tensor:
    """Different on every rank, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 + rank))


# -- the public functions


@section
def sync_calls(rank: int, size: int) -> Tensors:
    summed, sent, reduced = values(rank, 8), values(rank, 8), values(rank, 8)
    dist.all_reduce(summed)
    dist.all_reduce(sent, op=dist.ReduceOp.MAX)
    dist.broadcast(sent, 1)
    dist.reduce(reduced, 2)
    gathered = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(gathered, values(rank, 4))
    flat = torch.zeros(4 * size)
    dist.all_gather_into_tensor(flat, values(rank, 4))
    scattered, part = torch.zeros(4), torch.zeros(4)
    dist.reduce_scatter(scattered, [values(rank + peer, 4) for peer in range(size)])
    dist.reduce_scatter_tensor(part, values(rank, 4 * size))
    at_root = [torch.zeros(2) for _ in range(size)] if rank == 3 else None
    dist.gather(values(rank, 2), at_root, 3)
    from_root = torch.zeros(2)
    dist.scatter(from_root, [values(peer, 2) for peer in range(size)] if rank == 1 else None, 1)
    dist.barrier()
    root_only = [reduced] if rank == 2 else []
    return [summed, sent, *root_only, *gathered, flat, scattered, part, *(at_root or []), from_root]


@section
def async_calls(rank: int, size: int) -> Tensors:
    summed, sent, flat = values(rank, 16), values(rank, 16), torch.zeros(16 * size)
    part = torch.zeros(4)
    works = [
        dist.all_reduce(summed, async_op=True),
        dist.all_gather_into_tensor(flat, values(rank, 16), async_op=True),
        dist.broadcast(sent, 0, async_op=True),
        dist.reduce_scatter_tensor(part, values(rank, 4 * size), async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in reversed(works):
        work.wait()
    chained = values(rank, 4)
    future = dist.all_reduce(chained, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    return [summed, sent, flat, part, future.wait()]


@section
def never_waited(rank: int, size: int) -> Tensors:
    tensor = values(rank, 4)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    del work
    dist.barrier()
    return [tensor]


@section
def all_to_all(rank: int, size: int) -> Tensors:
    even, uneven_send = torch.zeros(4 * size), [(rank + peer) % 3 + 1 for peer in range(size)]
    dist.all_to_all_single(even, values(rank, 4 * size))
    uneven = torch.zeros(sum(uneven_send), 3)  # rank r sends (r + p) % 3 + 1 rows to p, so it gets as many from p
    dist.all_to_all_single(uneven, values(rank, sum(uneven_send), 3), uneven_send, uneven_send)
    empty_send = [2 if peer == (rank + 1) % size else 0 for peer in range(size)]
    empty_receive = [2 if peer == (rank - 1) % size else 0 for peer in range(size)]
    sparse = torch.zeros(2, 3)
    dist.all_to_all_single(sparse, values(rank, 2, 3), empty_receive, empty_send)
    nothing = torch.zeros(0, 3)
    dist.all_to_all_single(nothing, torch.zeros(0, 3), [0] * size, [0] * size)
    listed = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_to_all(listed, [values(rank + peer, 2, 3) for peer in range(size)])
    return [even, uneven, sparse, nothing, *listed]


@section
def objects(rank: int, size: int) -> Tensors:
    sent, gathered, scattered = [{"rank": rank}], [None] * size, [None]
    dist.broadcast_object_list(sent, 2)
    dist.all_gather_object(gathered, (rank, "x" * rank))
    dist.gather_object(rank, [None] * size if rank == 0 else None, 0)
    dist.scatter_object_list(scattered, list(range(size)) if rank == 0 else None, 0)
    assert sent == [{"rank": 2}]
    assert gathered == [(peer, "x" * peer) for peer in range(size)]
    assert scattered == [rank]
    if rank == 0:
        dist.send_object_list([7], 1)
    elif rank == 1:
        received = [None]
        dist.recv_object_list(received, 0)
        assert received == [7]
    return []


@section
def barriers(rank: int, size: int) -> Tensors:
    dist.barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    return []


@section
def send_and_recv(rank: int, size: int) -> Tensors:
    mine, theirs, anyones = values(rank, 4), torch.zeros(4), torch.zeros(1)
    if rank % 2 == 0:
        dist.send(mine, rank + 1)
        dist.recv(theirs, rank + 1)
    else:
        dist.recv(theirs, rank - 1)
        dist.send(mine, rank - 1)
    if rank == 0:
        assert dist.recv(anyones, tag=9) == 1
    elif rank == 1:
        dist.send(torch.ones(1), 0, tag=9)
    return [theirs, anyones]


@section
def isend_and_irecv(rank: int, size: int) -> Tensors:
    after, before = (rank + 1) % size, (rank - 1) % size
    plain, batched, tagged = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    works = [dist.isend(values(rank, 4), after), dist.irecv(plain, before)]
    operations = [dist.P2POp(dist.isend, values(rank, 4), after), dist.P2POp(dist.irecv, batched, before)]
    works += dist.batch_isend_irecv(operations)
    works += [dist.isend(values(rank, 4), after, tag=7), dist.irecv(tagged, before, tag=7)]
    for work in works:
        work.wait()
    return [plain, batched, tagged]


@section
def coalesced(rank: int, size: int) -> Tensors:
    inside, later = [values(rank, 4), values(rank, 5)], [values(rank, 3), values(rank, 2)]
    with dist._coalescing_manager():
        for tensor in inside:
            dist.all_reduce(tensor)
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in later:
            dist.all_reduce(tensor)
    manager.wait()
    gathered = [torch.zeros(2 * size), torch.zeros(3 * size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor, length in zip(gathered, (2, 3), strict=True):
            dist.all_gather_into_tensor(tensor, values(rank, length))
    manager.wait()
    parts = [torch.zeros(2), torch.zeros(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor, length in zip(parts, (2, 3), strict=True):
            dist.reduce_scatter_tensor(tensor, values(rank, length * size))
    manager.wait()
    together = [values(rank, 3), values(rank, 4)]
    dist.all_reduce_coalesced(together)
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [values(rank, 2), values(rank, 3)])
    return [*inside, *later, *gathered, *parts, *together, *(tensor for row in lists for tensor in row)]


@section
def sparse(rank: int, size: int) -> Tensors:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2) * (rank + 1), (4,))
    dist.all_reduce(tensor)
    return [tensor.to_dense()]


# -- groups, threads, symbols


@section
def groups(rank: int, size: int) -> Tensors:
    everyone, halves = dist.new_group(list(range(size))), [dist.new_group([0, 1]), dist.new_group([2, 3])]
    nodes, _ = dist.new_subgroups(2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    results = []
    for group in (everyone, halves[rank // 2], nodes, mesh.get_group("dp"), mesh.get_group("tp")):
        tensor = values(rank, 4)
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, group_src=0, group=group)
        results.append(tensor)
    for group in (everyone, *halves):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return results


@section
def other_threads(rank: int, size: int) -> Tensors:
    own = [dist.new_group(list(range(size))) for _ in range(3)]
    tensors = [values(rank, 4) for _ in own]

    def several(group: dist.ProcessGroup, tensor: torch.Tensor) -> None:
        for _ in range(5):
            dist.all_reduce(tensor, group=group)

    threads = [threading.Thread(target=several, args=pair) for pair in zip(own, tensors, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tensors


@section
def symbol_imported_before(rank: int, size: int) -> Tensors:
    tensor = values(rank, 4)
    imported_before_the_tap(tensor)
    return [tensor]


@section
def inference_mode(rank: int, size: int) -> Tensors:
    with torch.inference_mode():
        tensor = values(rank, 4)
        dist.all_reduce(tensor)
        return [tensor.clone(), funcol.wait_tensor(funcol.all_reduce(values(rank, 4), "sum", dist.group.WORLD)).clone()]


# -- functional collectives, autograd, compilation


@section
def functional(rank: int, size: int) -> Tensors:
    world = dist.group.WORLD
    results = [
        funcol.all_reduce(values(rank, 4), "sum", world),
        funcol.all_gather_tensor(values(rank, 2, 2), 0, world),
        funcol.reduce_scatter_tensor(values(rank, 4 * size), "sum", 0, world),
        funcol.all_to_all_single(values(rank, size), None, None, world),
        funcol.broadcast(values(rank, 4), 0, world),
        *funcol.all_reduce_coalesced([values(rank, 2), values(rank, 3)], "sum", world),
        torch.ops._c10d_functional.all_reduce(values(rank, 4), "sum", world.group_name),
    ]
    return [funcol.wait_tensor(result) for result in results]


@section
def functional_backward(rank: int, size: int) -> Tensors:
    world = dist.group.WORLD
    gathered, scattered, exchanged, summed = (
        values(rank, *shape).requires_grad_() for shape in ((2, 2), (2 * size,), (size,), (4,))
    )
    (funcol.all_gather_tensor_autograd(gathered, 0, world) * values(rank, 2 * size, 2)).sum().backward()
    (funcol.reduce_scatter_tensor_autograd(scattered, "sum", 0, world) * 2).sum().backward()
    (funcol.all_to_all_single_autograd(exchanged, None, None, world) * values(rank, size)).sum().backward()
    import torch.distributed.nn.functional as differentiable

    (differentiable.all_reduce(summed) * values(rank, 4)).sum().backward()
    return [gathered.grad, scattered.grad, exchanged.grad, summed.grad]


@section
def in_backward(rank: int, size: int) -> Tensors:
    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(context: object, tensor: torch.Tensor) -> torch.Tensor:
            return tensor * 1

        @staticmethod
        def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

    inside, hooked = values(rank, 4).requires_grad_(), nn.Parameter(values(rank, 4))
    Summed.apply(inside).sum().backward()
    works = []
    hooked.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
    (hooked * 2).sum().backward()
    for work in works:
        work.wait()
    return [inside.grad, hooked.grad]


@section
def compiled(rank: int, size: int) -> Tensors:
    def functional_parts(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_gather_tensor(funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, 0, dist.group.WORLD)

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    first = torch.compile(functional_parts, backend="aot_eager")
    second = torch.compile(in_place, backend="aot_eager")
    return [first(values(rank, 4)) * 1, first(values(rank, 4)) * 1, second(values(rank, 4))]


# -- whole trainers


@section
def ddp(rank: int, size: int) -> Tensors:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with wrapped.no_sync():
        wrapped(values(rank, 8, 64)).pow(2).mean().backward()
    for _ in range(3):
        wrapped(values(rank, 8, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


@section
def ddp_unused_parameters(rank: int, size: int) -> Tensors:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor, left: bool) -> torch.Tensor:
            return self.norm(self.left(x) if left else self.right(x))

    torch.manual_seed(0)
    model = Branches()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        wrapped(values(rank, 8, 8), step % 2 == 0).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@section
def fsdp2(rank: int, size: int) -> Tensors:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    mesh = init_device_mesh("cpu", (size,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(values(rank, 4, 16)).pow(2).mean().backward()
        optimizer.step()
    return [parameter.to_local().detach() for parameter in model.parameters()]


@section
def tensor_parallel(rank: int, size: int) -> Tensors:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(5)
    out = model(torch.randn(4, 16))
    out.pow(2).mean().backward()
    whole = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local()
    return [out.detach(), whole, *(parameter.grad.to_local() for parameter in model.parameters())]


@section
def pipeline(rank: int, size: int) -> Tensors:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    stage = PipelineStage(model, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=lambda out, wanted: ((out - wanted) ** 2).mean())
    torch.manual_seed(1)
    batch, wanted = torch.randn(16, 16), torch.randn(16, 16)
    if rank == 0:
        schedule.step(batch)
    elif rank == size - 1:
        schedule.step(target=wanted, losses=[])
    else:
        schedule.step()
    return [parameter.grad for parameter in model.parameters()]


# -- what goes wrong; each on a group of its own, which gloo leaves unusable


@section
def op_refused_by_the_worker(rank: int, size: int) -> Tensors:
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    return []


@section
def wrong_size(rank: int, size: int) -> Tensors:
    dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(4))
    return []


@section
def recv_times_out(rank: int, size: int) -> Tensors:
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.irecv(torch.zeros(1), 1, group=group).wait(SHORT)
    return []


@section
def barrier_times_out(rank: int, size: int) -> Tensors:
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.monitored_barrier(group, timeout=SHORT)
    return []


def digest(tensors: Tensors) -> str:
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def scrubbed(error: Exception) -> str:
    """Type and text without what differs between two runs: ports, source lines of gloo, what is left of a timeout."""
    text = re.sub(r"\[[^\]]*\]:?[0-9]*|[0-9]+ms", "[]", str(error))
    return f"{type(error).__name__}: {text}"


def counted(ring: rings.Ring, begin: int) -> Counter[str]:
    """Operations by public name in the slots from `begin` on."""
    names: Counter[str] = Counter()
    index = begin
    while index < ring["collectives_head"]:
        at = ring["collectives_offset"] + index % ring["collectives_slots"] * wire.COLLECTIVE.size
        fields = {f.name: f.packer.unpack_from(ring.buffer, at + f.offset)[0] for f in wire.COLLECTIVE.fields}
        assert fields["ticket"] == index + 1
        names[wire.OP_NAMES[fields["op"]]] += 1
        index += 1 + fields["n_extra"]
    return names


def main(mode: str, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ring = rings.create(folder / "rings")
    handle = taps.install(ring, mode)
    assert handle.kind.name.lower() == mode, handle.reasons
    backend = BackendCount()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    for body in SECTIONS:
        before, head, count = backend.read(), ring["collectives_head"], ring["collectives_count"]
        tensors: Tensors = []
        error = None
        try:
            tensors = body(rank, size)
        except Exception as raised:  # what it is, is a result
            error = scrubbed(raised)
        seen = counted(ring, head)
        assert sum(seen.values()) == ring["collectives_count"] - count
        results[body.__name__] = {
            "digest": digest(tensors),
            "error": error,
            "tap": seen,
            "backend": backend.read() - before,
        }
    results["tap"] = {name: ring[name] for name in ("tap_errors", "late_completions", "collectives_skipped")}
    (folder / f"{mode}-{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)  # let gloo's threads end before the interpreter does, see pytorch/pytorch#190489


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
