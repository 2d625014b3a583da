"""Append-only JSON lines: a line is on disk before what it says is done, and survives a SIGKILL of the agent.

    Log(path).append({...})
    audit.jsonl      decisions with their inputs, and every change of a stop
    findings.jsonl   findings when they are found, worsen, last on and at the end (`FindingsLog`), for replays
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.report.build import json_safe

log = logging.getLogger(__name__)

AUDIT_FILE, FINDINGS_FILE = "audit.jsonl", "findings.jsonl"
_FIRST_AGAIN_NS = 2_000_000_000  # a finding that goes on is written again 2 s later, then whenever it is a quarter older


class Log:
    """One file. `path` None writes nothing. A line that can't be written is logged: it must not keep a stop from going on."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, entry: dict[str, Any]) -> None:
        """One line, with the time of the wall clock in front, on disk when this returns."""
        if self._path is None:
            return
        line = json.dumps({"time": time.time()} | json_safe(entry), allow_nan=False) + "\n"
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, line.encode())
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            log.error("%s: %s; the line was %s", self._path, error.strerror, line.strip())  # noqa: TRY400 - no trace wanted


class FindingsLog:
    """What was found when. Lines: begin (of an agent), found, worse, on, end."""

    def __init__(self, path: Path | None) -> None:
        self._log = Log(path)
        self._begun = False
        self._seen: dict[tuple[object, ...], tuple[int, int, Severity, int | None]] = {}
        self.counts: dict[tuple[str, str], int] = {}

    def look(self, findings: Iterable[Finding], step: int | None, now_ns: int) -> None:
        """Write what is new with these findings."""
        if not self._begun:
            self._begun = True
            self._write("begin", None, step)
        for finding in findings:
            key = (finding.kind, finding.ranks, finding.stage, finding.layer, finding.group)
            known = self._seen.get(key)
            if known is None or finding.severity.order > known[2].order:
                self._write("found" if known is None else "worse", finding, step)
                label = (finding.kind, str(finding.severity))
                self.counts[label] = self.counts.get(label, 0) + 1
                self._seen[key] = (now_ns, now_ns, finding.severity, finding.last_step)
                continue
            first, written, severity, last_step = known
            due = now_ns - written >= max(_FIRST_AGAIN_NS, (written - first) // 4)
            if due and finding.last_step != last_step:
                self._write("on", finding, step)
                self._seen[key] = (first, now_ns, severity, finding.last_step)

    def end(self, step: int | None) -> None:
        """The last line: the job is over."""
        self._write("end", None, step)

    def _write(self, what: str, finding: Finding | None, step: int | None) -> None:
        self._log.append({"event": what, "step": step, "finding": finding and finding.to_json()})
