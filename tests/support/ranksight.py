"""The `ranksight` command for tests, as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

RANKSIGHT = (sys.executable, "-m", "ranksight.agent")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment with one thread per rank and without traces of an outer run."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RANKSIGHT_R")}
    return {**clean, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **(extra or {})}


def start(
    run_dir: Path, launcher: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None,
    options: Sequence[str] = ("--port", "0"),
) -> subprocess.Popen[str]:  # fmt: skip
    """Start `ranksight run` in a session of its own; its output is on the pipes."""
    return subprocess.Popen(
        [*RANKSIGHT, "run", "--dir", str(run_dir), *options, "--", *launcher], cwd=cwd, env=environment(env),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], timeout: float = 120.0) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; the whole session is killed when it takes longer."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


def run(run_dir: Path, launcher: Sequence[str], **more: Any) -> tuple[int, str, str]:
    """`start` and `finish`."""
    timeout = more.pop("timeout", 120.0)
    return finish(start(run_dir, launcher, **more), timeout)


def report(run_dir: Path) -> dict[str, Any]:
    """report.json of a run."""
    found: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return found


def await_file(path: Path, process: subprocess.Popen[str], timeout: float = 60.0) -> Path:
    """Return once `path` is there; AssertionError when the process ends first or it takes longer."""
    await_true(path.exists, process, f"{path.name} never appeared", timeout)
    return path


def await_true(condition: Callable[[], bool], process: subprocess.Popen[str], what: str, timeout: float = 60.0) -> None:
    """Return once `condition` holds; AssertionError with `what` when the process ends first or it takes longer."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert process.poll() is None, f"{what}: it ended with {process.returncode}"
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def processes_of_session(session: int) -> list[psutil.Process]:
    """What still runs in the session that `start` made."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
