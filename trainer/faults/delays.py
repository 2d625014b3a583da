"""A rank that is late: every step, once, or because something else runs in its process."""

from __future__ import annotations

import gc
import threading

import torch

from ranksight.trainer import observe
from ranksight.trainer.faults.scene import Scene, burn


def compute(scene: Scene) -> None:
    """Processor time, as a slower core would take it."""
    burn(scene.size)


def keep_garbage(scene: Scene) -> None:
    """Objects that every collection must walk, and the collection in every fourth step."""
    if not scene.kept:
        scene.kept.extend([] for _ in range(int(scene.size)))
    if (scene.step - scene.injection.step) % 4 == 3:
        gc.collect()


def fight_for_gil(scene: Scene) -> None:
    """Threads that compute in Python, beside the one that trains."""
    while len(scene.kept) < int(scene.size):
        thread = threading.Thread(target=burn, args=(3600.0,), daemon=True)
        thread.start()
        scene.kept.append(thread)


def oversubscribe(scene: Scene) -> None:
    """A pool as large as if the host were this rank's own, and work for it."""
    if not scene.kept:
        torch.set_num_threads(int(scene.size))
        scene.kept.append(torch.randn(1024, 1024))
    for _ in range(4):
        scene.kept[0] @ scene.kept[0]


def leak(scene: Scene) -> None:
    """Written to, or the pages would not be resident."""
    scene.kept.append(b"\x01" * int(scene.size))


def slow_save(scene: Scene) -> None:
    """A storage that does not answer."""
    with observe.phase("checkpoint"):
        threading.Event().wait(scene.size)
