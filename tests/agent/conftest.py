"""A host of synthetic ranks: rings made by `hooks.ring`, a frozen /proc, a clock that tests move."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranksight.agent.observer import Observer
from ranksight.hooks.ring import Sizes
from tests.support.ring_writer import SMALL, RingWriter

SECOND = 1_000_000_000
MS = 1_000_000
BEGIN = 1000 * SECOND


class Host:
    """Ranks of one host under one observer."""

    def __init__(self, root: Path) -> None:
        self.now = BEGIN
        self.ring_dir, self.proc = root / "run-7", root / "proc"
        self.proc.mkdir()
        self.observer = Observer(self.ring_dir, clock_ns=lambda: self.now, proc=self.proc)

    def rank(
        self,
        rank: int,
        world_size: int,
        *,
        local_world_size: int | None = None,
        sizes: Sizes = SMALL,
        generation: int = 0,
    ) -> RingWriter:
        """Start a rank: its ring and its entry in /proc."""
        pid = 100 * (generation + 1) + rank
        writer = RingWriter(self.ring_dir, rank, world_size, sizes=sizes, generation=generation, pid=pid)
        self.run_process(pid, writer.ring["start_ticks"], local_world_size=local_world_size)
        return writer

    def run_process(self, pid: int, ticks: int, state: str = "S", local_world_size: int | None = None) -> None:
        """Put a process into /proc, or change it there."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (python train.py) {state} {'0 ' * 18}{ticks} 0\n")
        if local_world_size is not None:
            (folder / "environ").write_bytes(f"A=1\0LOCAL_WORLD_SIZE={local_world_size}\0".encode())

    def end_process(self, pid: int) -> None:
        """Take a process out of /proc."""
        for path in (self.proc / str(pid)).iterdir():
            path.unlink()
        (self.proc / str(pid)).rmdir()

    def poll(self, seconds: float = 0.25) -> None:
        """Let time pass, then poll."""
        self.now += round(seconds * SECOND)
        self.observer.poll()

    def op(self, name: str = "all_reduce") -> dict[str, object]:
        """The report's line about an operation; fails when there is none."""
        sections = self.observer.report_sections()
        (found,) = [line for line in sections["collectives"]["by_op"] if line["op"] == name]  # type: ignore[index]
        return found  # type: ignore[no-any-return]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)
