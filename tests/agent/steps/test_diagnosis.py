"""Findings from steps are latched, follow their fault, and are doubted on a crowded host."""

from pathlib import Path

import numpy as np
import pytest

from ranksight.agent.findings import Severity
from ranksight.agent.steps.diagnosis import StepDiagnosis
from ranksight.agent.steps.host import HostSample, HostWatch
from ranksight.agent.steps.window import StepWindow

SECOND = 1_000_000_000


class Table:
    """A step table that holds a whole run and shows the part that is over."""

    def __init__(self, busy: np.ndarray) -> None:
        self._busy, self.done = busy, 0

    def window(self, count: int) -> StepWindow | None:
        if not self.done:
            return None
        rows = slice(max(0, self.done - count), self.done)
        busy = self._busy[rows]
        duration = np.repeat(busy.max(axis=1, keepdims=True), busy.shape[1], axis=1)
        return StepWindow.of(np.arange(rows.start, rows.stop), tuple(range(busy.shape[1])), busy=busy, duration=duration)

    def seconds_since(self, step: int | None, now_ns: int) -> float | None:
        return None if step is None else now_ns / SECOND - 0.1 * step


def run(busy: np.ndarray, host: HostWatch, every: int = 10) -> StepDiagnosis:
    """Ten steps a second, looked at once a second."""
    table, diagnosis = Table(busy), StepDiagnosis()
    for done in range(every, len(busy) + 1, every):
        table.done = done
        diagnosis.update(table, {}, host, [1] * 4, done * SECOND // 10)  # type: ignore[arg-type]
    return diagnosis


def slow_rank(share: float = 1.0, start: int = 50) -> np.ndarray:
    rng = np.random.default_rng(0)
    busy = 0.06 * (1 + 0.03 * rng.standard_normal((200, 4)))
    late = rng.random(200) < share
    late[:start] = False
    busy[late, 2] += 0.03
    return busy


@pytest.fixture
def quiet(tmp_path: Path) -> HostWatch:
    return HostWatch(tmp_path, cores=2)


@pytest.fixture
def crowded(tmp_path: Path) -> HostWatch:
    watch = HostWatch(tmp_path, cores=2)
    watch.samples.extend(HostSample(n * SECOND, 9) for n in range(5))
    return watch


def test_a_fault_is_one_finding_that_keeps_its_first_detection(quiet: HostWatch) -> None:
    (finding,) = run(slow_rank(), quiet).findings
    assert (finding.kind, finding.ranks, finding.last_step) == ("straggler", (2,), 199)
    assert finding.first_step is not None and finding.detected_step is not None
    assert 50 <= finding.first_step <= finding.detected_step <= 79
    assert finding.detection_seconds is not None and finding.detection_seconds <= 3.0


def test_a_healthy_run_has_no_finding(quiet: HostWatch) -> None:
    assert run(slow_rank(start=200), quiet).findings == ()


def test_on_a_crowded_host_only_what_is_nearly_always_so_counts(crowded: HostWatch) -> None:
    (steady,) = run(slow_rank(), crowded).findings
    assert steady.severity is Severity.CRITICAL
    doubted = run(slow_rank(share=0.6), crowded).findings
    assert {finding.severity for finding in doubted} <= {Severity.INFO}
