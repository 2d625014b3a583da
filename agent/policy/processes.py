"""Ending processes for good: SIGTERM first, SIGKILL after a grace, and nobody who belongs to the job is left.

    of_run(run_id) | tree(pids) -> Ending.tick -> True when all are gone

A job is more than the tree below its launcher: children of ranks that died belong to init by now. What `ranksight run`
started carries the run's name in its environment, and so does all that came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from ranksight.hooks.ring import ENV_RUN_ID


def tree(pids: Iterable[int]) -> set[psutil.Process]:
    """These processes and everything below them, as far as it still runs."""
    found: set[psutil.Process] = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
        except psutil.Error:
            continue
    return {process for process in found if _runs(process)}


def of_run(run_id: str, proc: Path = Path("/proc")) -> set[psutil.Process]:
    """Every process of this user whose environment names the run."""
    wanted = f"{ENV_RUN_ID}={run_id}".encode()
    found = set()
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(psutil.Process(int(folder.name)))
        except (OSError, psutil.Error):
            continue
    return {process for process in found if _runs(process)}


class Ending:
    """Ends what `members` finds, which is asked again at each tick. `first` get SIGTERM; they pass it on to the others."""

    def __init__(
        self, members: Callable[[], set[psutil.Process]], first: Iterable[int], grace_seconds: float, now_ns: int
    ) -> None:
        self._members, self._kill_ns = members, now_ns + round(grace_seconds * 1e9)
        self.seen = members()
        asked = tree(first) & {process for process in self.seen if process.pid in set(first)}
        for process in asked:
            _signal(process.terminate)

    def tick(self, now_ns: int) -> bool:
        """Kill what is due; True when nothing is left."""
        self.seen |= self._members()
        alive = {process for process in self.seen if _runs(process)}
        if now_ns >= self._kill_ns:
            for process in alive:
                _signal(process.kill)
        return not alive


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except psutil.Error:
        return


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
