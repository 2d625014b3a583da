"""The command under torchrun: its lines, its end when asked to stop, its life after a rank's death."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ranksight.trainer import manifest
from tests.trainer.forked import run_forked
from tests.trainer.tasks import config, train

pytestmark = pytest.mark.ranks

LINE = re.compile(r"step +(\d+)/\d+  loss (\S+)  grad norm (\S+)  \d+ tokens/s  expert max/mean \d+\.\d+")


class Torchrun:
    """A running job; `lines` are those of rank 0 that have been read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def read_until(self, text: str) -> None:
        """Return once a line holds `text`; AssertionError with all lines when the job ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return
        raise AssertionError(f"never said {text!r}:\n" + "\n".join(self.lines))

    def ranks(self) -> dict[int, psutil.Process]:
        """Processes of the ranks."""
        children = psutil.Process(self.process.pid).children()
        return {int(child.environ()["RANK"]): child for child in children if "RANK" in child.environ()}

    def finish(self) -> int:
        """Read the rest; the exit code."""
        assert self.process.stdout is not None
        self.lines += [line.rstrip() for line in self.process.stdout]
        return self.process.wait()

    def steps(self, since: str = "corpus") -> list[tuple[int, str]]:
        """Step and loss of the step lines after the first line that begins with `since`."""
        begin = next(number for number, line in enumerate(self.lines) if line.startswith(since))
        return [(int(m[1]), m[2]) for m in map(LINE.match, self.lines[begin:]) if m]


@contextmanager
def torchrun(*options: str, launcher: tuple[str, ...] = ()) -> Iterator[Torchrun]:
    """Two ranks of the trainer; whatever still runs at the end is killed."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *launcher,
        "-m", "ranksight.trainer", "--dp", "2", "--ep", "2", *options,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            yield Torchrun(process)
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()


def test_a_rank_that_is_asked_stops_all_after_the_same_step_with_a_checkpoint(tmp_path: Path) -> None:
    with torchrun("--steps", "100000", "--folder", str(tmp_path)) as job:
        job.read_until("step")
        job.ranks()[1].send_signal(signal.SIGUSR1)
        assert job.finish() == 0
    last, _ = job.steps()[-1]
    assert job.lines[-1] == f"stopped after step {last} as asked"
    assert [manifest.verify(path)["step"] for path in manifest.complete(tmp_path)] == [last]


@pytest.mark.slow
def test_after_a_rank_was_killed_torchrun_restarts_and_the_job_goes_on(tmp_path: Path) -> None:
    options = ("--steps", "100000", "--folder", str(tmp_path), "--every", "5")
    with torchrun(*options, launcher=("--max-restarts", "1", "--monitor-interval", "0.1")) as job:
        job.read_until(" 12/")
        job.ranks()[1].kill()
        job.read_until("resumed from")
        resumed = job.lines[-1]
        job.read_until("loss")
        job.ranks()[0].send_signal(signal.SIGUSR1)
        assert job.finish() == 0
    match = re.search(r"after step (\d+), data cursor (\d+)", resumed)
    assert match
    step, cursor = int(match[1]), int(match[2])
    assert step >= 10
    assert (step % 5, cursor) == (0, step * 16)
    before, again = job.steps(since="plan"), job.steps(since="resumed")
    assert again[0][0] == step + 1
    # the losses of both lives are those of a run that nobody killed
    whole = run_forked(train, 2, config(dp=2, ep=2, steps=step + 1))[0]
    for number, loss in before[:step] + again[:1]:
        assert loss == f"{whole[number - 1].loss:.4f}"


def test_a_plan_that_does_not_fit_ends_with_one_line_and_code_2() -> None:
    command = [sys.executable, "-m", "ranksight.trainer", "--dp", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "error: pp 1 x dp 2 x tp 1 needs 2 ranks, but the launcher started 1\n"
    quiet = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "RANK": "1"})
    assert (quiet.returncode, quiet.stderr) == (2, "")


def test_one_process_needs_no_launcher(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ranksight.trainer", "--steps", "2", "--folder", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    corpus, plan, *steps = ended.stdout.splitlines()
    assert re.fullmatch(r"corpus: pydoc_data.topics, \d+ bytes, sha256 [0-9a-f]{64}", corpus)
    assert plan == "plan: pp 1 x dp 1 x tp 1 = 1 ranks, ep 1, 2 microbatches"
    assert len(steps) == 2
    assert all(map(LINE.fullmatch, steps))
    missing = subprocess.run([*command, "--resume", "/nowhere"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stderr) == (2, "error: /nowhere is no complete checkpoint\n")
