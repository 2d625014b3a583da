"""Ring folders of runs that were killed before they could clean up: memory on tmpfs that nobody would ever give back.

    ring folders of this user -> stale (no living process, untouched for a day) -> removed, and said

A run removes its own rings when it ends; SIGKILL of `ranksight run` leaves them. A day is long enough for any other
reader, such as an agent that was started by hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ranksight.hooks.ring import SUFFIX, start_ticks

STALE_SECONDS = 86400.0


def stale(parent: Path, now: float, proc: Path = Path("/proc")) -> list[Path]:
    """Run folders in `parent` without a living process; `now` is the time of day in seconds. Missing parent: none."""
    if not parent.is_dir():
        return []
    return [folder for folder in sorted(parent.iterdir()) if folder.is_dir() and _is_stale(folder, now, proc)]


def sweep(parent: Path, now: float, say: Callable[[str], None], proc: Path = Path("/proc")) -> None:
    """Remove what is stale. Another run may sweep at the same time, and what can't be removed stays."""
    for folder in stale(parent, now, proc):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            say(f"removed the rings of a run that was killed: {folder}")


def _is_stale(folder: Path, now: float, proc: Path) -> bool:
    try:
        touched = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return False  # somebody else is removing it
    if now - touched < STALE_SECONDS:
        return False
    return not any(_lives(path.stem, proc) for path in folder.glob(f"*{SUFFIX}"))


def _lives(name: str, proc: Path) -> bool:
    """Whether the process that a ring file is named after, "<pid>-<start>", still runs."""
    pid, _, ticks = name.partition("-")
    try:
        return start_ticks(int(pid), proc) == int(ticks)
    except (OSError, ValueError, IndexError):
        return False
