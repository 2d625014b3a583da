"""Rank processes for tests, without a launcher between the test and the ranks.

    with start_ranks(SCRIPT, nproc=2, env={...}) as job:   # plain `python script.py` with RANK, WORLD_SIZE, MASTER_*
        job.await_line(0, "ready")                         # readiness by protocol, not by sleeping
        os.kill(job.pids[0], signal.SIGSTOP)
        finished = job.wait(timeout=60)

`run_ranks` is the same for jobs that only have to end. Leaving the block kills whatever still runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple


class Finished(NamedTuple):
    """How one rank ended; a negative return code is the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str


class Rank(NamedTuple):
    """One running rank and the files that its output goes to."""

    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]


class Job:
    """Running ranks; `pids[r]` is the process of rank r."""

    def __init__(self, ranks: list[Rank]) -> None:
        self._ranks = ranks
        self.pids = [rank.process.pid for rank in ranks]

    def output(self, rank: int) -> str:
        """What the rank has printed so far."""
        return _text(self._ranks[rank].stdout)

    def await_line(self, rank: int, text: str, timeout: float = 60.0) -> None:
        """Return once the rank has printed `text`; AssertionError with its output when it ends or is late."""
        deadline = time.monotonic() + timeout
        while text not in self.output(rank):
            ended = self._ranks[rank].process.poll()
            assert ended is None and time.monotonic() < deadline, (
                f"rank {rank} (exit code {ended}) never printed {text!r}:\n"
                f"{self.output(rank)}\n{_text(self._ranks[rank].stderr)}"
            )
            time.sleep(0.01)

    def wait(self, timeout: float) -> list[Finished]:
        """Wait for every rank; TimeoutError with the outputs when one is still running after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for number, rank in enumerate(self._ranks):
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                outputs = "\n".join(f"--- rank {n}\n{self.output(n)}{_text(r.stderr)}" for n, r in enumerate(self._ranks))
                raise TimeoutError(f"rank {number} still runs after {timeout} s:\n{outputs}") from None
        return [Finished(r.process.returncode, _text(r.stdout), _text(r.stderr)) for r in self._ranks]

    def kill(self) -> None:
        """Kill every rank with its children (stopped ones too) and reap them."""
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, signal.SIGKILL)
            rank.process.wait()


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 24, 0).decode("utf-8", "replace")


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def start_ranks(
    script: str | Path, nproc: int, env: Mapping[str, str] | None = None, args: tuple[str, ...] = ()
) -> Iterator[Job]:
    """Start `nproc` ranks of `script`: a file, or the text of a program."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ranks-")))
        if isinstance(script, str):
            (folder / "script.py").write_text(script)
            script = folder / "script.py"
        common = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RANKSIGHT_")},
            "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc), **(env or {}),
        }  # fmt: skip
        ranks: list[Rank] = []
        job = None
        try:
            for number in range(nproc):
                out = stack.enter_context((folder / f"{number}.out").open("w+b"))
                err = stack.enter_context((folder / f"{number}.err").open("w+b"))
                process = subprocess.Popen(
                    [sys.executable, str(script), *args], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    env={**common, "RANK": str(number), "LOCAL_RANK": str(number)}, start_new_session=True,
                )  # fmt: skip
                ranks.append(Rank(process, out, err))
            job = Job(ranks)
            yield job
        finally:
            (job or Job(ranks)).kill()


def run_ranks(
    script: str | Path,
    nproc: int,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    args: tuple[str, ...] = (),
) -> list[Finished]:
    """Run `nproc` ranks of `script` to their end; TimeoutError (all killed) when they need more than `timeout` s."""
    with start_ranks(script, nproc, env, args) as job:
        return job.wait(timeout)
