"""Frozen and dead ranks, and those that only look so: first failure wins, its victims are never named."""

import pytest

from ranksight.agent.detectors import dead, frozen
from ranksight.agent.findings import Severity
from ranksight.agent.stopped.facts import RankFacts
from ranksight.agent.stopped.limits import Limits
from tests.support.stops import call, job, rank

CLOSED = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:41"
TIMEOUT = "RuntimeError: Timed out waiting 25000ms for recv operation to complete"


def stopped(number: int, since: float = 95.0) -> RankFacts:
    return rank(number, process_state="T", stopped_since_at=since, python_heartbeat_at=since, native_heartbeat_at=since)


def test_a_stopped_process_is_frozen() -> None:
    (finding,) = frozen.detect(job([], stopped(1)), Limits())
    assert (finding.kind, finding.ranks, finding.hosts) == ("rank_frozen", (1,), ("h0",))
    assert finding.detection_seconds == pytest.approx(5.0)
    assert "state T" in finding.message


def test_native_alive_and_python_silent_is_a_held_gil() -> None:
    held = [rank(r, python_heartbeat_at=92.0) for r in (9, 14)]
    (finding,) = frozen.detect(job([], *held, size=16), Limits())
    assert (finding.kind, finding.ranks) == ("rank_frozen", (9, 14))
    assert "GIL" in finding.message
    assert finding.evidence["python_silent_seconds"] == {"9": 8.0, "14": 8.0}


def test_a_process_whose_threads_all_stand_still_is_frozen_when_its_host_does_not() -> None:
    still = rank(2, python_heartbeat_at=90.0, native_heartbeat_at=90.0, process_state="D")
    (finding,) = frozen.detect(job([], still), Limits())
    assert finding.ranks == (2,)
    assert "state D" in finding.message


MOVING = {
    "stopped for a moment": [stopped(1, since=99.0)],
    "GIL held for three seconds": [rank(1, python_heartbeat_at=97.0)],
    "GIL held while a checkpoint is pickled": [rank(1, python_heartbeat_at=70.0, phase="checkpoint")],
    "GIL held while libraries are loaded": [rank(1, python_heartbeat_at=70.0, step=-1, phase="startup")],
    "the whole host stood still": [rank(r, python_heartbeat_at=80.0, native_heartbeat_at=80.0) for r in range(4)],
    "no heartbeat was ever written": [rank(1, python_heartbeat_at=None, native_heartbeat_at=None)],
    "the process ends": [rank(1, python_heartbeat_at=80.0, life="exiting")],
    "the process is gone": [rank(1, python_heartbeat_at=80.0, alive=False, gone_at=80.0)],
}


@pytest.mark.parametrize("name", MOVING)
def test_not_frozen(name: str) -> None:
    assert frozen.detect(job([], *MOVING[name]), Limits()) == ()


def test_a_job_that_is_suspended_as_a_whole_is_no_fault() -> None:
    (finding,) = frozen.detect(job([], *(stopped(r) for r in range(4))), Limits())
    assert finding.severity is Severity.INFO


def victims(error: str, ranks: tuple[int, ...], at: float = 95.2) -> list[RankFacts]:
    return [rank(r, life="exception", last_error=error, error_at=at, alive=False, gone_at=at + 0.3) for r in ranks]


def test_a_killed_rank_is_named_and_those_it_cut_off_are_not() -> None:
    killed = rank(2, alive=False, gone_at=95.4, native_heartbeat_at=94.9, python_heartbeat_at=94.8, step=70)
    (finding,) = dead.detect(job([], killed, *victims(CLOSED, (0, 1, 3)), now=96.0), Limits())
    assert (finding.kind, finding.ranks, finding.first_step) == ("rank_dead", (2,), 70)
    assert "ranks 0, 1, 3 are consequences" in finding.message
    assert finding.detection_seconds == pytest.approx(1.1)


def test_the_signal_is_named_where_it_is_known() -> None:
    killed = rank(2, alive=False, gone_at=95.0, exit_status=-9, native_heartbeat_at=94.9, python_heartbeat_at=94.8)
    (finding,) = dead.detect(job([], killed), Limits())
    assert "SIGKILL" in finding.message


def test_the_first_exception_wins_over_later_ones_and_over_the_launchers_signal() -> None:
    failed = rank(1, life="exception", last_error="MemoryError: cannot allocate", error_at=95.0, alive=False, gone_at=95.5)
    later = rank(3, life="exception", last_error="ValueError: bad state", error_at=97.0)
    ended = rank(2, alive=False, gone_at=96.0, exit_status=-15, native_heartbeat_at=95.9)
    (finding,) = dead.detect(job([], failed, later, ended, *victims(CLOSED, (0,))), Limits())
    assert finding.ranks == (1,)
    assert "MemoryError" in finding.message and "memory" in finding.advice


def test_the_same_exception_everywhere_names_all() -> None:
    same = [rank(r, life="exception", last_error="KeyError: 'lr'", error_at=95.0 + r / 10) for r in range(4)]
    (finding,) = dead.detect(job([], *same), Limits())
    assert finding.ranks == (0, 1, 2, 3)


def test_the_first_of_several_deaths_is_named() -> None:
    first = rank(3, alive=False, gone_at=95.4, native_heartbeat_at=94.0, python_heartbeat_at=94.0)
    rest = [rank(r, alive=False, gone_at=95.6, native_heartbeat_at=95.5, python_heartbeat_at=95.5) for r in range(3)]
    (finding,) = dead.detect(job([], first, *rest), Limits())
    assert finding.ranks == (3,)


def test_a_crash_of_the_interpreter_after_the_last_step_says_that_training_was_complete() -> None:
    aborted = rank(2, alive=False, life="exiting", gone_at=95.0, exit_status=-6)
    (finding,) = dead.detect(job([], aborted), Limits())
    assert (finding.severity, finding.ranks) == (Severity.WARNING, (2,))
    assert "SIGABRT; training was complete" in finding.message


NOT_DEAD = {
    "victims alone": victims(CLOSED, (0, 1, 2)),
    "a late rank that the launcher ended after the timeouts of the others": [
        *victims(TIMEOUT, (1, 2, 3)),
        rank(0, alive=False, gone_at=95.9, native_heartbeat_at=95.1, python_heartbeat_at=95.1),
    ],
    "all ended in good order": [rank(r, alive=False, life="exiting", gone_at=95.0) for r in range(4)],
    "group destroyed, process still there": [rank(r, life="group_destroyed") for r in range(4)],
    "interrupted by the user": [rank(r, life="exception", last_error="KeyboardInterrupt", error_at=95.0) for r in range(4)],
}


@pytest.mark.parametrize("name", NOT_DEAD)
def test_nobody_is_called_dead(name: str) -> None:
    assert dead.detect(job([call(1, 20, 94.0)], *NOT_DEAD[name]), Limits()) == ()


def test_what_ends_after_the_job_was_asked_to_stop_is_no_fault() -> None:
    gone = [rank(r, alive=False, gone_at=98.0, exit_status=-15) for r in range(4)]
    assert dead.detect(job([], *gone, stopping_since_ns=97_000_000_000), Limits()) == ()
