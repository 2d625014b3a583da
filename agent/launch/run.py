"""`ranksight run -- LAUNCHER ...`: the launcher in the foreground, an agent beside it, a report afterwards.

    run directory, ring folder on tmpfs -> agent process -> launcher with the hooks on its PYTHONPATH
    stop.json of the agent -> the launcher is ended when it is time (see `policy.handover`)
    launcher ends -> exit.json -> SIGTERM to the agent: final read, report.json -> table -> the launcher's exit code

The launcher keeps our stdin, stdout and stderr, and its exit code becomes ours, as a shell would have it. Signals that
ask us to end are handed on; what has not ended STOP_SECONDS later is killed, with all its descendants. The agent is
nobody's business but ours: it starts while the launcher starts, is started again when it dies, and when it leaves no
report this process writes one that says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from ranksight.agent import files
from ranksight.agent.errors import RanksightError, RunDirError
from ranksight.agent.files import AGENT_FILE, EXIT_FILE
from ranksight.agent.launch import leftovers, prebuild, run_info
from ranksight.agent.policy import handover
from ranksight.agent.policy.processes import Ending, of_run, tree
from ranksight.agent.report.build import missing
from ranksight.hooks import inject
from ranksight.hooks.ring import default_directory, fallback_directory

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 12.0  # between the signal that asks the launcher to end and the one that does not ask
REPORT_SECONDS = 10.0  # for the agent's final read and report
LEFTOVER_SECONDS = 30.0  # for what a stopped launcher has left behind to be gone
RESTART_SECONDS = 1.0  # between two starts of an agent that dies


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One run. `port` is where metrics are served when it is free."""

    run_dir: Path
    launcher: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 9474
    config: Path | None = None
    stop_conditions: Path | None = None
    enforce: bool = False
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; `exit_code` is the launcher's, 128 + n when signal n ended it, 75 or 76 when ranksight did."""

    run_id: str
    exit_code: int
    report: dict[str, Any]


def run(options: RunOptions) -> Outcome:
    """Run the launcher under watch. RanksightError when the run can't begin; nothing is raised after it has begun."""
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    run_dir = _make_run_dir(options.run_dir)
    ring_dir = default_directory(run_id, {})
    for rings in (ring_dir, fallback_directory(ring_dir)):
        leftovers.sweep(rings.parent, time.time(), say=lambda text: print(f"ranksight: {text}", file=sys.stderr))
    environ = _environment(run_dir, ring_dir, run_id)
    prebuild.native_tap(options.launcher, environ)
    files.write_json(run_dir / "run.json", run_info.describe(run_id, options.launcher) | {"restarts": options.restarts})
    agent = _Agent(options, run_id, run_dir, ring_dir)
    try:
        exit_code = _Launcher(options.launcher, environ, agent, run_dir, run_id).wait()
        agent.finish(exit_code)
        exit_code = handover.exit_code(run_dir, exit_code)
    finally:
        agent.kill()
        for rings in (ring_dir, fallback_directory(ring_dir)):
            shutil.rmtree(rings, ignore_errors=True)
        shutil.rmtree(run_dir / "inject", ignore_errors=True)
    return Outcome(run_id, exit_code, _read_report(run_dir, run_id, exit_code))


def _make_run_dir(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(f"{path}: can't make the run directory: {error.strerror}") from error
    if (path / "run.json").exists():
        raise RunDirError(f"{path}: holds a run already; give another directory with --dir")
    return path.absolute()


def _environment(run_dir: Path, ring_dir: Path, run_id: str) -> dict[str, str]:
    ring_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return inject.environment(inject.make(run_dir / "inject"), ring_dir, run_id)


def _read_report(run_dir: Path, run_id: str, exit_code: int) -> dict[str, Any]:
    """The agent's last report with the exit code, or one that says that there is none."""
    path = run_dir / "report.json"
    try:
        report: dict[str, Any] = files.read_json(path)
        if report["run"]["exit_code"] == exit_code:
            return report
        report["run"]["exit_code"] = exit_code
        report["completeness"]["notes"].append("the agent ended before the launcher; this is its last report")
        report["verdict"] |= {"healthy": False, "primary": report["verdict"]["primary"]}
        if report["verdict"]["primary"] is None:
            lost = missing(run_id, exit_code, "the agent ended before the launcher did.")
            report["findings"], report["verdict"] = lost["findings"], lost["verdict"]
    except (RanksightError, KeyError, TypeError):
        report = missing(run_id, exit_code, "the agent left no report.")
    files.write_json(path, report)
    return report


class _Agent:
    """The agent process of a run, started again when it dies."""

    def __init__(self, options: RunOptions, run_id: str, run_dir: Path, ring_dir: Path) -> None:
        self._run_dir = run_dir
        self._command = [
            sys.executable, "-m", "ranksight.agent", "agent", "--ring-dir", str(ring_dir), "--dir", str(run_dir),
            "--run-id", run_id, "--host", options.host, "--port", str(options.port), "--parent", str(os.getpid()),
            *(["--config", str(options.config)] if options.config else []),
            *(["--stop-conditions", str(options.stop_conditions)] if options.stop_conditions else []),
            *(["--enforce"] if options.enforce else []), "--restarts", str(options.restarts),
        ]  # fmt: skip
        self._process = self._start()
        self._started = time.monotonic()
        self._leave_asked = False  # by a scheduler, while the agent was not ready to hear it

    def look(self) -> None:
        """Start it again when it is gone, but not more than once a second; tell it what it was not ready for."""
        if self._process.poll() is not None and time.monotonic() - self._started >= RESTART_SECONDS:
            self._started = time.monotonic()
            self._process = self._start()
        if self._leave_asked:
            self.ask_to_leave()

    def stopping(self) -> None:
        """Tell it that the job was asked to end. An agent that is not ready yet has seen nothing to misjudge."""
        if (self._run_dir / AGENT_FILE).exists() and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def ask_to_leave(self) -> None:
        """Tell it that a scheduler wants the job to leave after one step, with a checkpoint."""
        self._leave_asked = not ((self._run_dir / AGENT_FILE).exists() and self._process.poll() is None)
        if not self._leave_asked:
            self._process.send_signal(signal.SIGUSR2)

    def finish(self, exit_code: int) -> None:
        """Say how the launcher ended and wait for the final report."""
        files.write_json(self._run_dir / EXIT_FILE, {"exit_code": exit_code})
        if self._process.poll() is not None:
            self._process = self._start()  # the rings are still there, and somebody must read them
        deadline = time.monotonic() + REPORT_SECONDS
        while not (self._run_dir / AGENT_FILE).exists() and self._process.poll() is None:
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        """End it whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        (self._run_dir / EXIT_FILE).unlink(missing_ok=True)

    def _start(self) -> subprocess.Popen[bytes]:
        (self._run_dir / AGENT_FILE).unlink(missing_ok=True)
        with (self._run_dir / "agent.log").open("ab") as log:
            # Findings go to our stderr at once; everything else that it has to say goes to its log.
            return subprocess.Popen(
                [*self._command, "--log", str(self._run_dir / "agent.log")],
                stdin=subprocess.DEVNULL, stdout=log, process_group=0,
            )  # fmt: skip


class _Launcher:
    """The launcher as a child in our own process group, so that the terminal's keys reach it as ever."""

    def __init__(
        self, command: Sequence[str], environ: dict[str, str], agent: _Agent, run_dir: Path, run_id: str
    ) -> None:
        self._agent, self._run_dir, self._run_id = agent, run_dir, run_id
        self._ending: Ending | None = None
        self._kill_at: float | None = None
        self._previous = {number: signal.signal(number, self._hand_on) for number in HANDED_ON}
        try:
            self._process = subprocess.Popen(command, env=environ)
        except OSError as error:
            self._restore()
            agent.kill()
            raise RanksightError(f"can't start {command[0]!r}: {error.strerror}") from error

    def wait(self) -> int:
        """Wait for its end; the exit code a shell would give."""
        descendants: list[psutil.Process] = []
        try:
            while True:
                try:
                    code = self._process.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    self._agent.look()
                self._carry_out_order()
                if self._kill_at is not None:
                    descendants = _descendants(self._process.pid) or descendants
                    if time.monotonic() >= self._kill_at:
                        _kill(descendants)
                        self._process.kill()
        finally:
            self._restore()
        if self._kill_at is not None:
            _kill(descendants)  # a launcher that went first may have left ranks behind
        deadline = time.monotonic() + LEFTOVER_SECONDS
        while self._ending is not None and not self._ending.tick(time.monotonic_ns()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return code if code >= 0 else 128 - code

    def _carry_out_order(self) -> None:
        """End the job when the agent has said so and its time is up; an agent that has died since changes nothing."""
        now = time.monotonic_ns()
        if self._ending is not None:
            self._ending.tick(now)
            return
        order = handover.read(self._run_dir)
        if order is not None and not order.state.over and now >= order.end_by_ns:
            members = lambda: tree([self._process.pid]) | of_run(self._run_id)  # noqa: E731 - one expression, used once
            self._ending = Ending(members, [self._process.pid], order.grace_seconds, now)

    def _hand_on(self, number: int, _: FrameType | None) -> None:
        if number in ENDING and self._kill_at is None:
            self._kill_at = time.monotonic() + STOP_SECONDS
            self._agent.stopping()
        if number == signal.SIGUSR1 and not _handles(self._process.pid, number):
            self._agent.ask_to_leave()  # the launcher would die of it
            return
        if number != signal.SIGINT or not sys.stdin.isatty():  # the terminal has sent it to the whole group
            self._process.send_signal(number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _handles(pid: int, number: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process catches or ignores a signal; True when that can't be told."""
    try:
        lines = dict(line.split(":", 1) for line in (proc / str(pid) / "status").read_text().splitlines() if ":" in line)
        return bool((int(lines["SigCgt"], 16) | int(lines["SigIgn"], 16)) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return True


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
