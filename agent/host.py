"""How busy the processors of this host are with the threads of the ranks.

    /proc/loadavg                  runnable threads of the host, at every look
    /proc/PID/task/*/stat          runnable threads of each rank, only when the host has more runnable threads than cores
    HostWatch.look -> samples -> detectors.host
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KEPT_SAMPLES = 15
INTERVAL_NS = 500_000_000
CROWDED = 1.5


@dataclass(frozen=True, slots=True)
class HostSample:
    """One look: runnable threads of the host, and those of each rank when they were counted (None: not looked at)."""

    at_ns: int
    runnable: int
    busy_threads: dict[int, int] | None


class HostWatch:
    """Samples of one host, the newest last."""

    def __init__(self, proc: Path = Path("/proc"), cores: int | None = None) -> None:
        self._proc = proc
        self.cores = cores or len(os.sched_getaffinity(0))
        self.samples: deque[HostSample] = deque(maxlen=KEPT_SAMPLES)

    @property
    def crowded(self) -> bool:
        """Whether the host has had more than CROWDED runnable threads per core in half of the recent looks."""
        counts = sorted(sample.runnable for sample in self.samples)
        return bool(counts) and counts[len(counts) // 2] > CROWDED * self.cores

    def look(self, now_ns: int, pids: Iterable[tuple[int, int]]) -> None:
        """Take a sample, at most twice a second. `pids`: (rank, pid) of the ranks that run."""
        if self.samples and now_ns - self.samples[-1].at_ns < INTERVAL_NS:
            return
        try:
            # the reader itself is one of the runnable threads
            runnable = int((self._proc / "loadavg").read_text().split()[3].partition("/")[0]) - 1
        except (OSError, IndexError, ValueError):
            return
        busy = {rank: self._busy_threads(pid) for rank, pid in pids} if runnable > self.cores else None
        self.samples.append(HostSample(now_ns, runnable, busy))

    def _busy_threads(self, pid: int) -> int:
        count = 0
        try:
            for task in (self._proc / str(pid) / "task").iterdir():
                try:
                    stat = (task / "stat").read_text()
                except OSError:
                    continue  # ended meanwhile
                count += stat.rpartition(")")[2].split()[0] == "R"
        except OSError:
            return count  # the process ended
        return count
