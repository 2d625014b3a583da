"""How crowded the processors of this host are.

/proc/loadavg, runnable threads -> HostWatch.look -> samples -> `crowded`, detectors.host
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

KEPT_SAMPLES = 15
INTERVAL_NS = 500_000_000
CROWDED = 1.5


@dataclass(frozen=True, slots=True)
class HostSample:
    """One look: threads of the host that run or could."""

    at_ns: int
    runnable: int


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

    def look(self, now_ns: int) -> None:
        """Take a sample, at most twice a second."""
        if self.samples and now_ns - self.samples[-1].at_ns < INTERVAL_NS:
            return
        try:
            # the reader itself is one of the runnable threads
            runnable = int((self._proc / "loadavg").read_text().split()[3].partition("/")[0]) - 1
        except (OSError, IndexError, ValueError):
            return
        self.samples.append(HostSample(now_ns, runnable))
