"""One finding per fault over the polls of a job: latched, first failure first, a job that goes on was only slow."""

from ranksight.agent.findings import Severity
from ranksight.agent.stopped.diagnosis import Diagnosis
from tests.support.stops import FAILED, call, job, rank

CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:41"
TIMEOUT = "RuntimeError: Timed out waiting 25000ms for recv operation to complete"


def kinds(diagnosis: Diagnosis) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.kind, finding.ranks) for finding in diagnosis.findings]


def test_a_hang_that_ends_in_timeouts_and_deaths_stays_one_finding() -> None:
    diagnosis = Diagnosis()
    waiting = [call(r, 20, 80.0) for r in (1, 2, 3)]
    assert not diagnosis.update(job(waiting, rank(0, 85.0, phase="data"), now=85.0))
    (new,) = diagnosis.update(job(waiting, rank(0, 88.5, phase="data"), now=88.5))
    assert (new.kind, new.ranks, new.detection_seconds) == ("rank_not_joined", (0,), 8.5)
    assert not diagnosis.update(job(waiting, now=95.0))
    failed = [call(r, 20, 80.0, flags=FAILED) for r in (1, 2, 3)]
    dead = [rank(r, alive=False, life="exception", last_error=TIMEOUT, error_at=105.0, gone_at=105.3) for r in (1, 2, 3)]
    assert not diagnosis.update(job(failed, *dead, now=106.0))
    assert not diagnosis.update(job(failed, *dead, rank(0, alive=False, gone_at=106.4, exit_status=-15), now=107.0))
    assert kinds(diagnosis) == [("rank_not_joined", (0,))]


def test_a_stopped_rank_explains_those_that_wait_for_it_and_its_own_end() -> None:
    diagnosis = Diagnosis()
    waiting = [call(r, 20, 80.0) for r in (0, 2, 3)]
    stopped = {"process_state": "T", "stopped_since_at": 80.0, "python_heartbeat_at": 80.0, "native_heartbeat_at": 80.0}
    for now in (81.0, 83.0, 90.0):
        diagnosis.update(job(waiting, rank(1, now, **stopped), now=now))
    failed = [call(r, 20, 80.0, flags=FAILED) for r in (0, 2, 3)]
    dead = [rank(r, alive=False, life="exception", last_error=TIMEOUT, error_at=105.0, gone_at=105.3) for r in (0, 2, 3)]
    gone = rank(1, alive=False, gone_at=136.0, exit_status=-9, python_heartbeat_at=80.0, native_heartbeat_at=80.0)
    diagnosis.update(job(failed, *dead, gone, now=137.0))
    assert kinds(diagnosis) == [("rank_frozen", (1,))]


def test_a_killed_rank_is_the_only_finding_of_its_cascade() -> None:
    diagnosis = Diagnosis()
    killed = rank(2, alive=False, gone_at=95.4, native_heartbeat_at=94.9, python_heartbeat_at=94.8)
    failed = [call(r, 20, 95.0, flags=FAILED) for r in (0, 1, 3)]
    dead = [rank(r, life="exception", last_error=CLOSED, error_at=95.2) for r in (0, 1, 3)]
    for now in (95.5, 96.0, 104.0):
        diagnosis.update(job(failed, killed, *dead, now=now))
    assert kinds(diagnosis) == [("rank_dead", (2,))]


def test_a_mismatch_explains_the_hang_the_timeouts_and_the_abort_after_it() -> None:
    diagnosis = Diagnosis()
    calls = [call(r, 20, 80.0, shape=(4 if r == 2 else 8,)) for r in range(4)]
    diagnosis.update(job(calls, now=80.4))
    diagnosis.update(job(calls, now=95.0))
    aborted = rank(2, alive=False, gone_at=96.0, exit_status=-6)
    diagnosis.update(job(calls, aborted, now=96.5))
    assert kinds(diagnosis) == [("collective_mismatch", (2,))]
    assert diagnosis.findings[0].detection_seconds == 0.4


def test_a_skipped_call_explains_that_its_rank_ends_first() -> None:
    diagnosis = Diagnosis()
    calls, seq = [], 0
    for step in range(12):
        calls += [call(r, 2 * step + k, 10.0 + step, 10.1 + step, step=step) for r in (0, 2, 3) for k in (0, 1) if (r, step) != (9, 9)]
        for _ in range(1 if step == 5 else 2):
            calls.append(call(1, seq, 10.0 + step, 10.1 + step, step=step))
            seq += 1
    diagnosis.update(job(calls, *(rank(r, step=11) for r in range(4)), now=22.0))
    calls = [one for one in calls if one.group_seq < 23] + [call(r, 23, 21.5, step=11) for r in (0, 2, 3)]
    left = rank(1, alive=False, life="exiting", gone_at=22.0, exit_status=0, step=12)
    diagnosis.update(job(calls, left, *(rank(r, step=11) for r in (0, 2, 3)), now=40.0))
    assert kinds(diagnosis) == [("collective_skipped", (1,))]


def test_uneven_gathers_that_work_do_not_hide_a_later_hang_of_their_group() -> None:
    diagnosis = Diagnosis()
    gathers = [call(r, 19, 80.0, 80.1, op="all_gather", shape=(3 + r,)) for r in range(4)]
    assert not diagnosis.update(job(gathers))
    diagnosis.update(job([*gathers, *(call(r, 20, 90.0) for r in (0, 1, 2))]))
    assert kinds(diagnosis) == [("rank_not_joined", (3,))]


def test_a_job_that_goes_on_was_slow_and_its_next_fault_is_found() -> None:
    diagnosis = Diagnosis()
    diagnosis.update(job([call(r, 20, 90.0) for r in (1, 2, 3)]))
    diagnosis.update(job([], *(rank(r, step=13) for r in range(4)), now=120.0))
    assert kinds(diagnosis) == [("rank_not_joined", (0,))]
    assert diagnosis.findings[0].severity is Severity.WARNING
    assert diagnosis.findings[0].evidence["recovered"] is True
    later = [rank(r, 140.0, step=14) for r in range(4)]
    (new,) = diagnosis.update(job([call(r, 40, 130.0, step=14) for r in (0, 2, 3)], *later, now=140.0))
    assert (new.kind, new.ranks) == ("rank_not_joined", (1,))


def test_a_rank_that_goes_on_after_two_steps_behind_a_silent_mismatch_does_not_make_it_a_warning() -> None:
    diagnosis = Diagnosis()
    diagnosis.update(job([call(r, 20, 80.0, 80.1, shape=(4 if r == 2 else 8,)) for r in range(4)]))
    diagnosis.update(job([], *(rank(r, step=50) for r in range(4))))
    assert diagnosis.findings[0].severity is Severity.CRITICAL
