"""The only loop of the agent: read the rings, look for faults, serve, write the report; end when told.

    every POLL_SECONDS    Observer.poll
    every REPORT_SECONDS  report.json, so that there is one whatever happens to this process
    SIGUSR1               the job was asked to end: ranks that end from now on are no fault
    SIGUSR2               a scheduler asks for a stop with a checkpoint after one step
    SIGTERM, SIGINT       final read, last report, report.html, exit 0
    parent gone           the same: an agent outlives its `ranksight run` by one poll

One event loop does it all; HTTP answers between two polls. Nothing here talks to a rank but through its ring.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranksight.agent import files
from ranksight.agent.config import Config
from ranksight.agent.export import http
from ranksight.agent.findings import Finding
from ranksight.agent.observer import Observer
from ranksight.agent.page import pages
from ranksight.agent.parts import Surroundings
from ranksight.agent.policy.conditions import StopConditions
from ranksight.agent.policy.part import Policy
from ranksight.agent.report.build import build
from ranksight.agent.stopped import stacks

log = logging.getLogger("ranksight.agent")

POLL_SECONDS = 0.5  # most of what a poll costs is the same for few records and many
TICK_SECONDS = 0.1  # between looks at how full the rings are
REPORT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """What a daemon needs to know. `run_dir` None: nothing is written. `parent` None: it lives on its own."""

    ring_dir: Path
    run_id: str
    run_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 9474
    parent: int | None = None
    config: Config = field(default_factory=Config)
    stop_conditions: StopConditions | None = None
    enforce: bool = False
    restarts: int = 0
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)


def run(options: DaemonOptions) -> None:
    """Watch until told to end."""
    asyncio.run(_Daemon(options).run())


class _Daemon:
    def __init__(self, options: DaemonOptions) -> None:
        self._options = options
        surroundings = Surroundings(
            options.run_id, options.run_dir, options.config, options.stop_conditions or StopConditions(),
            options.enforce, options.restarts, owned=options.parent is not None,
        )  # fmt: skip
        self._observer = Observer(
            options.ring_dir, run_id=options.run_id, surroundings=surroundings, stacks_of=stacks.ask
        )
        self._ending = asyncio.Event()
        self._failed_polls = 0
        self._said: set[tuple[str, tuple[int, ...]]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ending.set)
        loop.add_signal_handler(signal.SIGUSR1, self._observer.stopping)
        loop.add_signal_handler(signal.SIGUSR2, self._asked_to_leave)
        listener, moved = http.bind(self._options.host, self._options.port)
        port = listener.getsockname()[1]
        if moved:
            log.warning("port %d is in use; metrics are on port %d", self._options.port, port)
        if self._options.run_dir:
            address = {"pid": os.getpid(), "host": self._options.host, "port": port, "run_id": self._options.run_id}
            files.write_json(self._options.run_dir / files.AGENT_FILE, address)
        if self._options.parent is not None:  # someone has just started a job, and may want to look at it
            self._options.say(f"ranksight: live page at http://{self._options.host}:{port}/")
        server = http.server(http.app(self._observer, self._report, self._run_info))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await self._watch()
        finally:
            await http.stop(server, serving)

    async def _watch(self) -> None:
        polled = reported = time.monotonic() - POLL_SECONDS
        while not self._ending.is_set() and not self._orphaned():
            if time.monotonic() - polled >= POLL_SECONDS or self._observer.filling():
                polled = time.monotonic()
                self._read(self._observer.poll)
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                self._write_report()
            try:
                await asyncio.wait_for(self._ending.wait(), TICK_SECONDS)
            except TimeoutError:
                continue
        self._read(self._observer.final)
        self._write_report()
        self._complete_run_info()
        self._write_page()

    def _asked_to_leave(self) -> None:
        policy = self._observer.parts.find(Policy)
        if policy is not None:
            policy.asked_to_leave()

    def _complete_run_info(self) -> None:
        """Add to run.json what only the ranks could say: the layout of the job and facts about its data."""
        path = (self._options.run_dir or Path()) / "run.json"
        if self._options.run_dir and path.exists():
            try:
                files.write_json(path, files.read_json(path) | self._observer.layout())
            except Exception:
                log.exception("run.json could not be completed")

    def _read(self, poll: Callable[[], None]) -> None:
        """One poll; an error in it costs this poll and is logged, the next one may do better."""
        try:
            poll()
            self._say_new()
        except Exception:
            log.exception("a poll failed")
            self._failed_polls += 1

    def _orphaned(self) -> bool:
        return self._options.parent is not None and os.getppid() != self._options.parent

    def _report(self) -> dict[str, Any]:
        code = None
        if self._options.run_dir and (self._options.run_dir / files.EXIT_FILE).exists():
            code = files.read_json(self._options.run_dir / files.EXIT_FILE)["exit_code"]
            policy = self._observer.parts.find(Policy)
            code = code if policy is None else policy.exit_code(code)
        report = build(self._observer, self._options.run_id, code)
        if self._failed_polls:
            report["completeness"]["notes"].append(f"{self._failed_polls} polls of the agent failed; see agent.log")
        for name, error in self._observer.parts.failed.items():
            report["completeness"]["notes"].append(f"{name} of the agent failed ({error}); what it says is missing")
        return report

    def _write_report(self) -> None:
        if self._options.run_dir:
            try:
                files.write_json(self._options.run_dir / "report.json", self._report())
            except Exception:
                log.exception("report.json could not be written")

    def _write_page(self) -> None:
        if self._options.run_dir:
            try:
                pages.write(self._options.run_dir, self._report())
            except Exception:
                log.exception("report.html could not be written")

    def _run_info(self) -> dict[str, Any]:
        """run.json, or nothing where this agent has no run directory or was not started by `ranksight run`."""
        path = (self._options.run_dir or Path()) / "run.json"
        found: dict[str, Any] = files.read_json(path) if self._options.run_dir and path.exists() else {}
        return found

    def _say_new(self) -> None:
        """Print each finding once, when it is found, in one block."""
        for finding in self._observer.faults():
            key = (finding.kind, finding.ranks)
            if key not in self._said and finding.severity.order > 0:
                self._said.add(key)
                self._options.say(block(finding))


def block(finding: Finding) -> str:
    """A finding for a terminal: at most 30 lines."""
    lines = [
        f"ranksight: {str(finding.severity).upper()} {finding.kind}: {finding.message}",
        *([f"  at {finding.call_site}"] if finding.call_site else []),
        f"  {finding.advice}",
    ]
    return "\n".join("\n".join(lines).splitlines()[:30])
