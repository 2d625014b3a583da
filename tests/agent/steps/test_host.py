"""Runnable threads from a frozen /proc, and when a host is crowded or oversubscribed."""

from pathlib import Path

from ranksight.agent.detectors.host import cpu_oversubscribed
from ranksight.agent.steps.host import HostSample, HostWatch

SECOND = 1_000_000_000


def proc(folder: Path, runnable: int) -> Path:
    """A /proc with a load average; the reader itself is counted among the runnable."""
    (folder / "loadavg").write_text(f"1.00 1.00 1.00 {runnable + 1}/300 4242\n")
    return folder


def test_looks_are_samples_and_rare(tmp_path: Path) -> None:
    watch = HostWatch(proc(tmp_path, 2), cores=2)
    for at in (SECOND, SECOND + 100_000_000, 2 * SECOND):
        watch.look(at)
    assert list(watch.samples) == [HostSample(SECOND, 2), HostSample(2 * SECOND, 2)]


def test_no_proc_is_no_sample(tmp_path: Path) -> None:
    watch = HostWatch(tmp_path, cores=2)
    watch.look(SECOND)
    assert not watch.samples


def test_a_host_is_crowded_when_half_of_the_looks_say_so(tmp_path: Path) -> None:
    watch = HostWatch(tmp_path, cores=2)
    assert not watch.crowded
    for at, runnable in enumerate((9, 1, 9, 2, 9)):
        proc(tmp_path, runnable)
        watch.look(at * SECOND)
    assert watch.crowded
    for at in range(5, 20):
        proc(tmp_path, 3)
        watch.look(at * SECOND)
    assert not watch.crowded


def samples(*runnable: int) -> list[HostSample]:
    return [HostSample(n * SECOND, count) for n, count in enumerate(runnable)]


def test_pools_of_threads_in_every_rank_are_a_finding_of_the_host() -> None:
    (finding,) = cpu_oversubscribed(samples(9, 12, 3, 14, 9, 11), 2, "h0", [8] * 4, 40)
    assert (finding.kind, finding.cause, finding.ranks, finding.hosts) == ("cpu_oversubscribed", "cpu_contention", (), ("h0",))
    assert finding.evidence["threads"] == 32


def test_what_is_no_oversubscription() -> None:
    busy = samples(9, 12, 9, 14, 9, 11)
    assert cpu_oversubscribed(busy, 2, "h0", [1] * 8, 40) == ()  # a thread per rank
    assert cpu_oversubscribed(busy, 16, "h0", [4] * 4, 40) == ()  # as many threads as cores
    assert cpu_oversubscribed(samples(2, 1, 9, 2, 3, 1), 2, "h0", [8] * 4, 40) == ()  # pools that are not in use at once
    assert cpu_oversubscribed(busy[:4], 2, "h0", [8] * 4, 40) == ()  # a burst
    assert cpu_oversubscribed(busy, 2, "h0", [], 40) == ()  # nobody said
