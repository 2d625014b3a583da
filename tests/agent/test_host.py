"""Busy threads from a frozen /proc, and when they are too many."""

from pathlib import Path

from ranksight.agent.detectors.host import cpu_oversubscribed
from ranksight.agent.host import HostSample, HostWatch

SECOND = 1_000_000_000


def proc(folder: Path, runnable: int, ranks: dict[int, str]) -> Path:
    """A /proc with a load average and the states of the threads of each pid."""
    (folder / "loadavg").write_text(f"1.00 1.00 1.00 {runnable + 1}/300 4242\n")
    for pid, states in ranks.items():
        for number, state in enumerate(states):
            task = folder / str(pid) / "task" / str(pid + number)
            task.mkdir(parents=True, exist_ok=True)
            (task / "stat").write_text(f"{pid + number} (py (th)on) {state} 1 2 3\n")
    return folder


def test_runnable_threads_are_counted_per_rank_when_the_host_is_busy(tmp_path: Path) -> None:
    watch = HostWatch(proc(tmp_path, 9, {100: "RRSR", 200: "SSR"}), cores=2)
    watch.look(SECOND, [(0, 100), (1, 200), (2, 300)])
    assert list(watch.samples) == [HostSample(SECOND, 9, {0: 3, 1: 1, 2: 0})]


def test_a_quiet_host_is_not_searched_and_looks_are_rare(tmp_path: Path) -> None:
    watch = HostWatch(proc(tmp_path, 2, {100: "RR"}), cores=2)
    for at in (SECOND, SECOND + 100_000_000, 2 * SECOND):
        watch.look(at, [(0, 100)])
    assert [(sample.at_ns, sample.busy_threads) for sample in watch.samples] == [(SECOND, None), (2 * SECOND, None)]


def test_no_proc_is_no_sample(tmp_path: Path) -> None:
    watch = HostWatch(tmp_path, cores=2)
    watch.look(SECOND, [(0, 1)])
    assert not watch.samples


def test_a_host_is_crowded_when_half_of_the_looks_say_so(tmp_path: Path) -> None:
    watch = HostWatch(tmp_path, cores=2)
    assert not watch.crowded
    for at, runnable in enumerate((9, 1, 9, 2, 9)):
        proc(tmp_path, runnable, {})
        watch.look(at * SECOND, [])
    assert watch.crowded
    for at in range(5, 20):
        proc(tmp_path, 3, {})
        watch.look(at * SECOND, [])
    assert not watch.crowded


def samples(busy: dict[int, int] | None, count: int = 8) -> list[HostSample]:
    return [HostSample(n * SECOND, 20, busy) for n in range(count)]


def test_pools_of_threads_in_every_rank_are_a_finding_of_the_host() -> None:
    (finding,) = cpu_oversubscribed(samples({0: 6, 1: 7, 2: 6, 3: 5}), 2, "h0", 40)
    assert (finding.kind, finding.cause, finding.ranks, finding.hosts) == ("cpu_oversubscribed", "cpu_contention", (), ("h0",))
    assert finding.evidence["runnable_threads"] == 24


def test_what_is_no_oversubscription() -> None:
    assert cpu_oversubscribed(samples(dict.fromkeys(range(8), 1)), 2, "h0", 40) == ()  # a thread per rank
    assert cpu_oversubscribed(samples({0: 6, 1: 7}, count=4), 2, "h0", 40) == ()  # a burst
    assert cpu_oversubscribed(samples({0: 2, 1: 3}), 2, "h0", 40) == ()  # a few more than cores
    assert cpu_oversubscribed(samples(None), 2, "h0", 40) == ()  # quiet
