"""From rings to findings about stopping ranks: synthetic ranks under an observer, with a clock that tests move."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest

from ranksight.agent.findings import Finding
from ranksight.hooks import wire
from tests.support.ring_writer import RingWriter

if TYPE_CHECKING:
    from tests.agent.conftest import Host

SECOND, MS = 1_000_000_000, 1_000_000
WORLD = 4
FREE = {"send", "recv_", "alltoall_base_"}


class Job:
    """Ranks that beat, launch and complete operations as the test says."""

    def __init__(self, host: Host, ranks: int = WORLD) -> None:
        self.host = host
        self.ranks = [host.rank(rank, ranks) for rank in range(ranks)]
        self.groups = [ring.group("0", ranks, rank, ranks=list(range(ranks))) for rank, ring in enumerate(self.ranks)]
        self.seq = [0] * ranks
        self.silent: set[int] = set()

    def launch(self, rank: int, *, step: int, done: bool = True, group: int | None = None, **fields: Any) -> int:
        """One operation of one rank at the current time."""
        ring, now = self.ranks[rank], self.host.now
        op = fields.get("op", "allreduce_")
        agreed = repr((op, fields.get("numel", 1024), fields.get("dtype", 6))).encode()
        seq = fields.pop("seq", self.seq[rank])
        if group is None:
            self.seq[rank] = seq + 1
        return ring.collective(
            group or self.groups[rank],
            seq,
            now,
            now + MS if done else 0,
            step=step,
            thread=ring.ring["pid"],
            fingerprint=0 if op in FREE else zlib.crc32(agreed),
            wait_begin_ns=0 if done else now + 1,
            **fields,
        )

    def step(self, number: int, per_step: int = 2, seconds: float = 0.05) -> None:
        """One step of all ranks."""
        for rank, ring in enumerate(self.ranks):
            begin = self.host.now
            ring.ring["step"], ring.ring["phase"] = number, wire.Phase.OTHER
            for _ in range(per_step):
                self.launch(rank, step=number)
            ring.ring.events.write(wire.EventKind.STEP, begin, begin + round(seconds * SECOND), step=number)
        self.poll(seconds)

    def poll(self, seconds: float) -> None:
        """Let time pass in which hearts beat."""
        for rank, ring in enumerate(self.ranks):
            ring.ring["native_heartbeat_ns"] = self.host.now + round(seconds * SECOND)
            if rank not in self.silent:
                ring.ring["python_heartbeat_ns"] = self.host.now + round(seconds * SECOND)
        self.host.poll(seconds)

    def wait(self, seconds: float) -> None:
        """Let time pass in polls of a quarter of a second."""
        for _ in range(round(seconds * 4)):
            self.poll(0.25)

    def found(self) -> list[Finding]:
        return [finding for finding in self.host.observer.findings() if finding.category != "observer"]


@pytest.fixture
def job(host: Host) -> Job:
    running = Job(host)
    for step in range(12):
        running.step(step)
    return running


def test_a_moving_job_has_no_findings(job: Job) -> None:
    for step in range(12, 40):
        job.step(step)
    assert job.found() == []
    assert job.host.observer.witness.facts(job.host.observer.current(), job.host.now) is None


def test_a_rank_that_does_not_come_is_found_within_ten_seconds(job: Job) -> None:
    for rank in (0, 2, 3):
        job.launch(rank, step=12, done=False)
    job.ranks[1].ring["phase"] = wire.Phase.DATA
    job.wait(7)
    assert job.found() == []
    job.wait(3)
    (finding,) = job.found()
    assert (finding.kind, finding.ranks, finding.group_seq) == ("rank_not_joined", (1,), 24)
    assert finding.detection_seconds is not None and 8 <= finding.detection_seconds <= 10
    assert finding.evidence["launched"] == {"0": 25, "1": 24, "2": 25, "3": 25}


def test_a_long_checkpoint_is_not_a_hang(job: Job) -> None:
    for rank in (1, 2, 3):
        job.launch(rank, step=12, done=False, op="barrier")
    job.ranks[0].ring["phase"] = wire.Phase.CHECKPOINT
    job.wait(60)
    assert job.found() == []


def test_receives_without_a_future_are_seen_while_they_are_waited_for(job: Job) -> None:
    flags = int(wire.CollectiveFlag.NO_COMPLETION)
    for rank in (2, 3):
        job.launch(rank, step=12, done=False, op="recv_", peer=5 - rank, flags=flags, seq=0)
    job.wait(10)
    (finding,) = job.found()
    assert (finding.kind, finding.ranks) == ("deadlock", (2, 3))


def test_a_receive_posted_long_before_it_is_waited_for_still_counts(job: Job) -> None:
    flags = int(wire.CollectiveFlag.NO_COMPLETION | wire.CollectiveFlag.ASYNC)
    tickets = {}
    for rank in (2, 3):
        ring = job.ranks[rank]
        tickets[rank] = ring.collective(
            job.groups[rank], 0, job.host.now, op="recv_", peer=5 - rank, step=12, flags=flags, thread=ring.ring["pid"]
        )
    job.wait(5)
    for rank, ticket in tickets.items():
        job.ranks[rank].complete(ticket, 0, wait_begin_ns=job.host.now)
    job.wait(10)
    (finding,) = job.found()
    assert (finding.kind, finding.ranks) == ("deadlock", (2, 3))


def test_a_mismatch_is_found_with_the_next_polls_and_shows_both_calls(job: Job) -> None:
    for rank in range(4):
        job.launch(rank, step=12, done=False, numel=4 if rank == 2 else 8)
    job.wait(1.25)
    (finding,) = job.found()
    assert (finding.kind, finding.ranks, finding.group_seq) == ("collective_mismatch", (2,), 24)
    assert finding.evidence["calls"]["2"].startswith("all_reduce float32 [4]")
    assert finding.detection_seconds is not None and finding.detection_seconds <= 1.25
    job.wait(30)
    assert len(job.found()) == 1


def test_a_call_left_out_is_found_while_the_job_runs_on(job: Job) -> None:
    for step in range(12, 20):
        for rank in range(4):
            for _ in range(1 if (rank, step) == (1, 13) else 2):
                job.launch(rank, step=step)
            job.ranks[rank].ring["step"] = step
        job.poll(0.25)
    (finding,) = job.found()
    assert (finding.kind, finding.ranks, finding.first_step) == ("collective_skipped", (1,), 13)
    assert finding.detected_step is not None and finding.detected_step <= 19
    assert finding.evidence["launched_in_step"] == 1 and finding.evidence["launched_by_others"] == 2


def test_a_stopped_process_and_a_held_gil(job: Job) -> None:
    for rank in (0, 2, 3):
        job.launch(rank, step=12, done=False)
    job.host.run_process(job.ranks[1].ring["pid"], job.ranks[1].ring["start_ticks"], state="T")
    job.wait(4)
    assert [(finding.kind, finding.ranks) for finding in job.found()] == [("rank_frozen", (1,))]


def test_a_held_gil_is_seen_from_the_native_heartbeat(job: Job) -> None:
    job.silent = {3}
    for rank in (0, 1, 2):
        job.launch(rank, step=12, done=False)
    job.wait(7)
    (finding,) = job.found()
    assert (finding.kind, finding.ranks) == ("rank_frozen", (3,))
    assert "GIL" in finding.message


def test_a_killed_process_is_named_and_its_victims_are_not(job: Job) -> None:
    job.poll(0.25)
    job.host.end_process(job.ranks[2].ring["pid"])
    for rank in (0, 1, 3):
        ticket = job.launch(rank, step=12, done=False)
        ring = job.ranks[rank]
        ring.complete(ticket, 0, flags=int(wire.CollectiveFlag.FAILED), wait_end_ns=job.host.now + 1)
        ring.ring["last_error"] = ring.ring.hooks_table.string("RuntimeError: Connection closed by peer [127.0.0.1]:4")
        ring.ring["life"] = wire.Life.EXCEPTION
        ring.ring.events.write(wire.EventKind.EXCEPTION, job.host.now + 5 * MS, job.host.now + 5 * MS, step=12)
    for _ in range(8):
        job.host.poll(0.25)
    assert [(finding.kind, finding.ranks) for finding in job.found()] == [("rank_dead", (2,))]


def test_a_rank_that_dies_between_two_looks_at_the_processes_is_not_taken_for_a_late_one(job: Job) -> None:
    for rank in (0, 1, 3):
        ticket = job.launch(rank, step=12, done=False)
        job.ranks[rank].complete(ticket, 0, flags=int(wire.CollectiveFlag.FAILED), wait_end_ns=job.host.now + 1)
    job.host.poll(0.05)  # too early for the next look, and the process is still there
    assert job.found() == []
    job.host.end_process(job.ranks[2].ring["pid"])
    job.host.poll(0.25)
    assert [(finding.kind, finding.ranks) for finding in job.found()] == [("rank_dead", (2,))]


def test_a_rank_that_ends_early_ran_out_of_data(job: Job) -> None:
    ring = job.ranks[3]
    ring.ring["life"] = wire.Life.EXITING
    for rank in (0, 1, 2):
        job.launch(rank, step=12, done=False)
    job.wait(2)
    assert [(finding.kind, finding.ranks) for finding in job.found()] == [("data_exhausted", (3,))]


def test_all_ending_in_good_order_is_no_fault(job: Job) -> None:
    for ring in job.ranks:
        ring.ring["life"] = wire.Life.EXITING
        job.poll(0.25)
        job.host.end_process(ring.ring["pid"])
    job.host.poll(2.0)
    job.host.observer.final()
    assert job.found() == []


def test_ranks_that_end_after_the_job_was_asked_to_are_no_fault(job: Job) -> None:
    job.host.observer.stopping()
    for ring in job.ranks:
        job.host.end_process(ring.ring["pid"])
    job.host.poll(2.0)
    job.host.observer.final()
    assert job.found() == []


def test_a_restart_begins_anew(job: Job) -> None:
    job.host.end_process(job.ranks[2].ring["pid"])
    job.host.poll(1.0)
    job.host.poll(1.0)
    assert [finding.kind for finding in job.found()] == ["rank_dead"]
    again = [job.host.rank(rank, WORLD, generation=1) for rank in range(WORLD)]
    groups = [ring.group("0", WORLD, rank, ranks=list(range(WORLD))) for rank, ring in enumerate(again)]
    second = Job.__new__(Job)
    second.host, second.ranks, second.groups, second.seq, second.silent = job.host, again, groups, [0] * WORLD, set()
    for step in range(12):
        second.step(step)
    for rank in (0, 1, 2):
        second.launch(rank, step=12, done=False)
    second.wait(10)
    assert [(finding.kind, finding.ranks) for finding in job.found()] == [("rank_dead", (2,)), ("rank_not_joined", (3,))]


def test_a_second_job_of_the_same_command_is_not_compared_with_the_first(job: Job) -> None:
    for ring in job.ranks:
        ring.ring["life"] = wire.Life.EXITING
        job.host.end_process(ring.ring["pid"])
    job.host.poll(1.0)
    job.host.poll(1.0)
    rings = []
    for rank in range(2):
        rings.append(RingWriter(job.host.ring_dir, rank, 2, pid=900 + rank, start_ticks=77))
        rings[-1].ring["created_monotonic_ns"] = job.host.now
        job.host.run_process(900 + rank, 77)
    second = Job.__new__(Job)
    second.host, second.ranks, second.seq, second.silent = job.host, rings, [0, 0], set()
    second.groups = [ring.group("0", 2, rank, ranks=[0, 1]) for rank, ring in enumerate(rings)]
    for step in range(12):
        for rank in range(2):
            second.launch(rank, step=step, numel=99)
            rings[rank].ring["step"], rings[rank].ring["phase"] = step, wire.Phase.OTHER
            rings[rank].ring.events.write(wire.EventKind.STEP, job.host.now, job.host.now + 50 * MS, step=step)
        second.poll(0.25)
    assert job.found() == []
    second.launch(0, step=12, done=False)
    second.wait(10)
    assert [(finding.kind, finding.ranks) for finding in job.found()] == [("rank_not_joined", (1,))]


def test_sampled_operations_prove_nothing_about_who_has_not_come(job: Job) -> None:
    job.ranks[1].ring["detail"] = wire.Detail.SAMPLED
    for rank in (0, 2, 3):
        job.launch(rank, step=12, done=False)
    job.wait(30)
    assert job.found() == []

