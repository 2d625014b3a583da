"""Append-only JSON lines: a line is on disk before what it says is done, and survives a SIGKILL of the agent.

    Log(path).append({...})
    audit.jsonl      decisions with their inputs, and every change of a stop
    findings.jsonl   findings when they are found, worsen, last on and at the end (`FindingsLog`), for replays
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.report.build import json_safe

AUDIT_FILE, FINDINGS_FILE = "audit.jsonl", "findings.jsonl"
_FIRST_AGAIN_NS = 2_000_000_000  # a finding that goes on is written again 2 s later, then whenever it is a quarter older


class Log:
    """One file. `path` None writes nothing; OSError when it can't be written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, entry: dict[str, Any]) -> None:
        """One line, with the time of the wall clock in front, on disk when this returns."""
        if self._path is None:
            return
        line = json.dumps({"time": time.time()} | json_safe(entry), allow_nan=False) + "\n"
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, line.encode())
            os.fsync(fd)
        finally:
            os.close(fd)


class FindingsLog:
    """What was found when. Lines: found, worse, on, end; `seconds` since the agent first looked."""

    def __init__(self, path: Path | None) -> None:
        self._log = Log(path)
        self._begin_ns: int | None = None
        self._seen: dict[tuple[object, ...], tuple[int, int, Severity, int | None]] = {}
        self.counts: dict[tuple[str, str], int] = {}

    def look(self, findings: Iterable[Finding], step: int | None, now_ns: int) -> None:
        """Write what is new with these findings."""
        if self._begin_ns is None:
            self._begin_ns = now_ns
        for finding in findings:
            key = (finding.kind, finding.ranks, finding.stage, finding.layer, finding.group)
            known = self._seen.get(key)
            if known is None or finding.severity.order > known[2].order:
                self._write("found" if known is None else "worse", finding, step, now_ns)
                label = (finding.kind, str(finding.severity))
                self.counts[label] = self.counts.get(label, 0) + 1
                self._seen[key] = (now_ns, now_ns, finding.severity, finding.last_step)
                continue
            first, written, severity, last_step = known
            due = now_ns - written >= max(_FIRST_AGAIN_NS, (written - first) // 4)
            if due and finding.last_step != last_step:
                self._write("on", finding, step, now_ns)
                self._seen[key] = (first, now_ns, severity, finding.last_step)

    def end(self, step: int | None, now_ns: int) -> None:
        """The last line: the job is over."""
        self._write("end", None, step, now_ns)

    def _write(self, what: str, finding: Finding | None, step: int | None, now_ns: int) -> None:
        seconds = (now_ns - (self._begin_ns or now_ns)) / 1e9
        self._log.append({"event": what, "seconds": seconds, "step": step, "finding": finding and finding.to_json()})
