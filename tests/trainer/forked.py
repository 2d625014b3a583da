"""Ranks as forks of a server that has imported torch and the trainer once: a job of eight starts in a second.

    results = run_forked(task, 8, config)     # task(config) in each rank, with the default group made; pickled results

A task that raises fails the job with the rank's traceback. Nothing outlives the call.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "ranksight.trainer.train", "tests.trainer.forked"])


def run_forked(task: Callable[..., Any], world_size: int, *args: Any, timeout: float = 240.0) -> list[Any]:
    """What `task(*args)` returned on each rank. AssertionError with a rank's traceback when one failed or is late."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        store = Path(folder) / "store"
        pipes = [_context.Pipe(duplex=False) for _ in range(world_size)]
        ranks = [
            _context.Process(target=_rank, args=(theirs, rank, world_size, str(store), task, args), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        try:
            for rank in ranks:
                rank.start()
            for _, theirs in pipes:
                theirs.close()
            return _collect([ours for ours, _ in pipes], time.monotonic() + timeout)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
                rank.close()
            for ours, _ in pipes:
                ours.close()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        missing = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(missing, timeout=max(0.0, deadline - time.monotonic()))
        assert ready, f"ranks {[pipes.index(pipe) for pipe in missing]} have not answered in time"
        for pipe in missing:
            if pipe in ready:
                rank = pipes.index(pipe)
                try:
                    succeeded, results[rank] = pipe.recv()
                except EOFError:
                    raise AssertionError(f"rank {rank} died without a word") from None
                assert succeeded, f"rank {rank} failed:\n{results[rank]}"
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    pipe: Connection, rank: int, world_size: int, store: str, task: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        result = task(*args)
        dist.destroy_process_group()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    else:
        pipe.send((True, result))
    # The parent kills the process once it has every answer: no rank leaves while a peer still needs it.
    time.sleep(3600)
