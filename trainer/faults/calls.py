"""Collectives that the ranks do not agree about. All ranks make the extra call; the culprit makes it differently."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ranksight.trainer.faults.kinds import Fault
from ranksight.trainer.faults.scene import Scene

A_STEP = 3  # extra all-reduces in each step of the faults that leave out or add one


def make_group(scene: Scene) -> None:
    """A group for the extra calls, so that they mix with nothing else; collective over the world."""
    scene.kept.append(dist.new_group(backend="gloo"))


def all_reduce(scene: Scene) -> None:
    """Shape, dtype or reduction differ."""
    wrong = scene.injection.fault if scene.culprit else None
    vector = torch.ones(6 if wrong is Fault.SHAPE_MISMATCH else 4)
    if wrong is Fault.DTYPE_MISMATCH:
        vector = vector.to(torch.int32)
    op = dist.ReduceOp.MAX if wrong is Fault.REDUCE_OP_MISMATCH else dist.ReduceOp.SUM
    dist.all_reduce(vector, op, group=scene.kept[0])


def broadcast(scene: Scene) -> None:
    """The root differs."""
    root = scene.next_rank if scene.culprit else scene.injection.rank
    dist.broadcast(torch.ones(4), src=root, group=scene.kept[0])


def all_to_all(scene: Scene) -> None:
    """What is sent to the next rank is more than it expects."""
    sent, received = [1] * scene.world_size, [1] * scene.world_size
    if scene.culprit:
        sent[scene.next_rank] += 1
    rows = torch.ones(sum(sent), 4)
    dist.all_to_all_single(torch.empty(sum(received), 4), rows, received, sent, group=scene.kept[0])


def metrics(scene: Scene) -> None:
    """A few all-reduces in a row; in the first step of the fault one fewer or one more."""
    more = {Fault.SKIPPED_CALL: -1, Fault.EXTRA_CALL: 1}[scene.injection.fault] if scene.culprit and scene.first else 0
    for _ in range(A_STEP + more):
        dist.all_reduce(torch.ones(4), group=scene.kept[0])
