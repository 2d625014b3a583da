"""A rank that ends, stops, or does not come."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

import torch
import torch.distributed as dist

from ranksight import hooks
from ranksight.trainer.faults.kinds import Fault
from ranksight.trainer.faults.scene import Scene, burn


class DataExhausted(Exception):
    """There is no further batch; the loop ends on this rank."""


def kill(scene: Scene) -> None:
    """By a signal that can't be handled."""
    os.kill(os.getpid(), signal.SIGKILL if scene.injection.fault is Fault.KILL else signal.SIGSTOP)


def fail(scene: Scene) -> None:
    """By an exception."""
    raise RuntimeError(f"injected fault: rank {scene.rank} fails in step {scene.step}")


def leave(scene: Scene) -> None:
    """Without a word."""
    os._exit(int(scene.size))


def swallow(scene: Scene) -> None:
    """An error that somebody caught, and then nothing."""
    with contextlib.suppress(MemoryError):
        raise MemoryError(f"injected fault: rank {scene.rank} is out of memory in step {scene.step}")
    time.sleep(scene.size)


def hold_gil(scene: Scene) -> None:
    """PyDLL calls do not let go of the GIL."""
    ctypes.PyDLL(None).sleep(int(scene.size))


def sleep(scene: Scene) -> None:
    """Neither work nor collectives."""
    time.sleep(scene.size)


def spin(scene: Scene) -> None:
    """Work and no collectives."""
    burn(scene.size)


def exhaust(scene: Scene) -> None:
    """The data of this rank is at its end."""
    raise DataExhausted


def make_pair(scene: Scene) -> None:
    """The second group of the deadlock; collective over the world."""
    scene.kept.append(dist.new_group(sorted({scene.injection.rank, scene.next_rank}), backend="gloo"))


def deadlock_groups(scene: Scene) -> None:
    """World and pair, pair and world."""
    pair, vector = scene.kept[0], torch.zeros(16)
    if scene.culprit:
        dist.all_reduce(vector)
        dist.all_reduce(vector, group=pair)
    elif scene.rank == scene.next_rank:
        dist.all_reduce(vector, group=pair)
        dist.all_reduce(vector)
    else:
        dist.all_reduce(vector)


def deadlock_recv(scene: Scene) -> None:
    """Both wait for what the other would send."""
    if scene.culprit:
        dist.recv(torch.zeros(16), src=scene.next_rank)
    elif scene.rank == scene.next_rank:
        dist.recv(torch.zeros(16), src=scene.injection.rank)


def unobserved(scene: Scene) -> None:
    """Nothing of this rank is seen from now on."""
    hooks.detach()
