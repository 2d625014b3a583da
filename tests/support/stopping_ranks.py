"""Processes that make steps as ranks do, without torch: coupled now and then, and asking their control block at each end.

    ranks of a round -> rings in folder/<round>/<rank> -> steps until the agreed one -> (round, rank, step it left after)
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ranksight.hooks.recorder import Recorder
from ranksight.hooks.ring import create
from ranksight.hooks.stop import Stop
from tests.support.ring_writer import SMALL

COUPLED = 3  # ranks meet every so many steps, as in an all-reduce: a rank may be so far ahead of another
PATIENCE_S = 60.0
NEVER = 1_000_000


def rank_main(folder: Path, rank: int, rounds: int, meet: Any, results: Any) -> None:
    """One rank in all rounds. Half of the rounds it asks as a trainer does, half of them the hooks leave for it."""
    chance = random.Random(rank)
    for number in range(rounds):
        ring = create(folder / str(number) / str(rank), SMALL)
        ring["rank"] = rank
        recorder = Recorder(ring)
        stop = Stop(recorder, lambda _: None)
        asks = number % 2 == 0
        stop.asked = asks
        results.put((number, rank, _steps(ring, stop, asks, chance, meet)))
        meet.wait(PATIENCE_S)  # all have left: the next round


def _steps(ring: Any, stop: Stop, asks: bool, chance: random.Random, meet: Any) -> int:
    for step in range(NEVER):
        ring.enter_step(step, 1)
        if step % COUPLED == 0:
            meet.wait(PATIENCE_S)
        if chance.random() < 0.1:
            time.sleep(chance.random() * 0.001)
        after = stop.requested(step) if asks else None
        ring.enter_step(step + 1, 1)
        stop.step_ended(step, 1)
        try:
            stop.leave(step, 1)
        except SystemExit:
            return step
        if after is not None and step >= after:
            return step
    return NEVER


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a test; `results` yields (round, rank, step)."""

    folder: Path
    results: Any
    processes: list[BaseProcess]

    def rings(self, number: int, world: int) -> dict[int, Path]:
        """The ring of each rank in a round, once all are there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = {rank: sorted((self.folder / str(number) / str(rank)).glob("*.ring")) for rank in range(world)}
            if all(found.values()):
                return {rank: paths[0] for rank, paths in found.items()}
            assert time.monotonic() < deadline, f"the ranks never began round {number}"
            time.sleep(0.0005)


@contextlib.contextmanager
def start(folder: Path, world: int, rounds: int) -> Iterator[Ranks]:
    """`world` processes for `rounds` stops."""
    context = mp.get_context("spawn")
    meet, results = context.Barrier(world), context.Queue()
    processes: list[BaseProcess] = [
        context.Process(target=rank_main, args=(folder, rank, rounds, meet, results), daemon=True)
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    try:
        yield Ranks(folder, results, processes)
    finally:
        for process in processes:
            process.kill()
            process.join()
        results.close()
