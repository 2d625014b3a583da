"""Which ring folders are nobody's any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ranksight.agent.launch.leftovers import STALE_SECONDS, stale, sweep

NOW = 2_000_000_000.0
OLD, FRESH = NOW - STALE_SECONDS - 1, NOW - 60


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with one process: 7, started at tick 55."""
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"7 (python train.py) S {'0 ' * 18}55 0\n")
    return tmp_path / "proc"


def rings(parent: Path, run: str, *names: str, touched: float) -> Path:
    folder = parent / run
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (touched, touched))
    os.utime(folder, (touched, touched))
    return folder


@pytest.mark.parametrize(
    ("ring", "touched", "is_stale"),
    [
        ("8-55.ring", OLD, True),  # no such process
        ("7-54.ring", OLD, True),  # its number belongs to another now
        ("7-55.ring", OLD, False),  # still runs
        ("8-55.ring", FRESH, False),
        ("notes.txt", OLD, True),
    ],
)
def test_a_folder_is_stale_when_old_and_without_a_living_process(
    tmp_path: Path, proc: Path, ring: str, touched: float, is_stale: bool
) -> None:
    folder = rings(tmp_path / "rings", "run-1", ring, touched=touched)
    assert stale(tmp_path / "rings", NOW, proc) == ([folder] if is_stale else [])


def test_sweeping_removes_and_says_so(tmp_path: Path, proc: Path) -> None:
    gone = rings(tmp_path / "rings", "dead", "8-1.ring", touched=OLD)
    kept = rings(tmp_path / "rings", "living", "7-55.ring", touched=OLD)
    said: list[str] = []
    sweep(tmp_path / "rings", NOW, said.append, proc)
    assert (gone.exists(), kept.exists()) == (False, True)
    assert said == [f"removed the rings of a run that was killed: {gone}"]


def test_no_folder_has_no_leftovers(tmp_path: Path) -> None:
    assert stale(tmp_path / "nothing", NOW) == []
