"""Why a step was bad: literal tables with a known origin, and the whole way from rings through the archive."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from ranksight.agent.archive.read import open_archive
from ranksight.agent.errors import RunDirError
from ranksight.agent.observer import Observer
from ranksight.agent.parts import Surroundings
from ranksight.agent.why.answer import answer, text
from ranksight.agent.why.command import why
from ranksight.agent.why.origin import origin, symptom, way_back
from ranksight.agent.why.path import critical_path
from ranksight.agent.why.records import Call, Number, Span, Window, window
from ranksight.agent.why.touched import touched
from ranksight.hooks import wire
from tests.support.ring_writer import RingWriter

MS = 1_000_000
STEP_MS = 100
PAIRS = {"left": (0, 1), "right": (2, 3)}
SLOW_STEP = 8


def call(rank: int, name: str, step: int, enqueue: float, end: float | None, site: str = "") -> Call:
    """Times in milliseconds."""
    begin = int(enqueue * MS)
    done = None if end is None else int(end * MS)
    blocked = None if done is None else (begin, done)
    axis = name.partition(" ")[0]
    return Call(rank, (name, step), "all_reduce", axis, step, 64, site or f"train.py:{len(axis)} step", begin, done, blocked)


def job(
    late: dict[tuple[int, int], float] | None = None, steps: int = 12, numbers: Iterable[Number] = (),
    spans: Iterable[Span] = (), asked: int = SLOW_STEP, hosts: int = 1,
) -> Window:  # fmt: skip
    """Four ranks: each pair meets after 20 ms of work, then all four 20 ms later; the step ends 10 ms after that.

    `late[rank, step]` is how many ms more a rank works before it meets its pair.
    """
    late = late or {}
    calls: dict[int, list[Call]] = {rank: [] for rank in range(4)}
    marks: list[Span] = []
    begin = 1000.0
    for step in range(steps):
        arrive = {rank: begin + 20 + late.get((rank, step), 0.0) for rank in range(4)}
        met = {pair: max(arrive[rank] for rank in ranks) + 1 for pair, ranks in PAIRS.items()}
        for pair, ranks in PAIRS.items():
            for rank in ranks:
                calls[rank].append(call(rank, f"tp {pair}", step, arrive[rank], met[pair], "train.py:5 forward"))
        joined = max(met.values()) + 20
        for pair, ranks in PAIRS.items():
            for rank in ranks:
                calls[rank].append(call(rank, "world", step, met[pair] + 20, joined + 2, "train.py:9 reduce"))
        end = joined + 12
        marks += [Span(rank, "step", None, step, int(begin * MS), int(end * MS)) for rank in range(4)]
        begin = end
    of_rank = {rank: tuple(mine) for rank, mine in calls.items()}
    return Window(asked, of_rank, (*marks, *spans), tuple(numbers), {rank: f"h{rank % hosts}" for rank in calls})


def test_the_way_back_goes_through_those_who_came_last_and_has_no_gap() -> None:
    seen = job({(3, SLOW_STEP): 70})
    span = seen.steps_of(0)[SLOW_STEP]
    legs = critical_path(seen, 0, span.end_ns, span.begin_ns)
    # The end of rank 0, the transfer of the last all-reduce, the work of the right pair, the one of rank 3 before it.
    assert [(leg.rank, leg.transfer.axis if leg.transfer else "work") for leg in legs] == [
        (0, "work"), (0, "world"), (2, "work"), (2, "tp"), (3, "work"),
    ]  # fmt: skip
    assert sum(leg.seconds for leg in legs) == pytest.approx((span.end_ns - span.begin_ns) / 1e9 + 0.010)
    assert legs[-1].begin_ns == span.begin_ns - 10 * MS  # the last leg is whole: it began in the step before
    assert all(later.begin_ns == earlier.end_ns for later, earlier in pairwise(legs))


def test_a_slow_step_is_traced_to_the_rank_that_worked_longer() -> None:
    gc = Span(3, "gc", None, SLOW_STEP, int(1450 * MS), int(1500 * MS))
    seen = job({(3, SLOW_STEP): 70}, spans=[gc])
    found = symptom(seen)
    began = origin(seen, found, way_back(seen))
    assert found.kind == "slow"
    assert began is not None
    assert (began.kind, began.rank, began.step, began.site) == ("slow_work", 3, SLOW_STEP, "train.py:5 forward")
    assert began.seconds == pytest.approx(0.100)  # 10 ms at the end of the step before count as its work, too
    assert began.usual_seconds == pytest.approx(0.030)
    assert "0.050 s in gc" in began.text


def test_a_rank_that_is_always_late_is_not_its_own_measure() -> None:
    seen = job({(1, step): 40 for step in range(12)})
    began = origin(seen, symptom(seen), way_back(seen))
    assert began is not None
    assert (began.kind, began.rank) == ("slow_work", 1)


def test_a_usual_step_has_no_origin() -> None:
    seen = job({(rank, step): (rank * 7 + step * 3) % 4 for rank in range(4) for step in range(12)})
    told = answer(seen, [])
    assert told["symptom"]["kind"] == "none"
    assert told["origin"] is None
    assert told["touched"] is None


def test_the_first_of_a_run_of_bad_numbers_is_the_origin() -> None:
    good = [Number(rank, "loss", step, step, 2.0) for step in range(12) for rank in range(4)]
    nan = float("nan")
    bad = [
        Number(2, "grad_norm", 6, int(1400 * MS), nan),
        *(Number(rank, "loss", step, int((1300 + 60 * step) * MS), nan) for step in (7, 8) for rank in range(4)),
    ]
    seen = job(numbers=[*(number for number in good if number.step < 7), *bad])
    began = origin(seen, symptom(seen), [])
    assert symptom(seen).kind == "nonfinite"
    assert began is not None
    assert (began.kind, began.rank, began.step) == ("nonfinite", 2, 6)
    assert "no other rank" in began.text


def test_a_jump_of_the_loss_is_compared_with_the_steps_before() -> None:
    numbers = [Number(0, "loss", step, step, 9.0 if step == SLOW_STEP else 2.0) for step in range(12)]
    assert symptom(job(numbers=numbers)).kind == "loss_jump"
    assert symptom(job(numbers=numbers, asked=7)).kind == "none"


def test_what_an_origin_touched_is_followed_through_groups() -> None:
    seen = job(numbers=[Number(3, "loss", SLOW_STEP, int(job().steps_of(3)[SLOW_STEP].begin_ns + 5 * MS), float("inf"))])
    began = origin(seen, symptom(seen), [])
    assert began is not None
    found = touched(seen, began)
    assert [one.rank for one in found.ranks][:2] == [3, 2]  # its pair first, then the others through the whole group
    assert {one.rank for one in found.ranks[2:]} == {0, 1}
    assert found.ranks[1].through == "all_reduce of tp at train.py:5 forward"
    assert found.ranks[2].through == "all_reduce of world at train.py:9 reduce"


def test_checkpoints_after_a_bad_number_are_tainted_and_those_before_are_not_named() -> None:
    begin = job().steps_of(0)[SLOW_STEP].begin_ns
    spans = [
        Span(rank, "checkpoint", None, step, begin + shift * MS, begin + (shift + 5) * MS, f"ckpt/{step}")
        for rank in range(4)
        for step, shift in ((5, -200), (10, 200))
    ]
    seen = job(numbers=[Number(3, "loss", SLOW_STEP, begin + 5 * MS, float("nan"))], spans=spans)
    told = answer(seen, [])
    assert told["touched"]["checkpoints"] == [{"step": 10, "path": "ckpt/10", "ranks": [0, 1, 2, 3], "tainted": True}]
    assert "checkpoint ckpt/10 of step 10: tainted" in text(told)


def test_records_of_two_hosts_have_no_way_back() -> None:
    told = answer(job({(3, SLOW_STEP): 70}, hosts=2), [])
    assert told["symptom"]["kind"] == "slow"
    assert told["origin"] is None
    assert told["way_back"] == []
    assert any("2 clocks" in note for note in told["notes"])


def test_a_step_that_never_ended_is_followed_to_the_rank_that_came_last() -> None:
    seen = job(steps=SLOW_STEP)
    begin = max(span.end_ns for span in seen.spans) / MS
    stuck = {
        rank: call(rank, "world", SLOW_STEP, begin + (90 if rank == 1 else 20), None, "train.py:9 reduce") for rank in range(4)
    }
    hung = Window(SLOW_STEP, {rank: (*mine, stuck[rank]) for rank, mine in seen.calls.items()}, seen.spans, ())
    found = symptom(hung)
    began = origin(hung, found, way_back(hung))
    assert found.kind == "unfinished"
    assert began is None or began.rank == 1
    assert way_back(hung)[0].rank == 1


def test_only_findings_about_the_step_are_repeated() -> None:
    def finding(first: int | None, last: int | None) -> dict[str, object]:
        return {"kind": f"{first}-{last}", "message": "", "first_step": first, "last_step": last}

    findings = [finding(3, 7), finding(3, 8), finding(8, None), finding(9, None), finding(None, None)]
    assert [told["kind"] for told in answer(job(), findings)["findings"]] == ["3-8", "8-None"]


def record(root: Path) -> None:
    """Two ranks, rank 1 works 60 ms longer in step 7 of 10."""
    observer = Observer(root / "rings", run_id="run-7", surroundings=Surroundings("run-7", root), clock_ns=lambda: 10_000 * MS)
    writers = [RingWriter(root / "rings", rank, 2) for rank in range(2)]
    groups = [writer.group("0", 2, rank, ranks=[0, 1], axis="dp") for rank, writer in enumerate(writers)]
    begin = 1000
    for step in range(10):
        late = 60 if step == 7 else 0
        for rank, (writer, group) in enumerate(zip(writers, groups, strict=True)):
            site = writer.ring.tap_table.string("train.py:12 main")
            enter = begin + 20 + (late if rank else 0)
            writer.collective(group, step, enter * MS, (begin + 22 + late) * MS, step=step, call_site=site)
            writer.ring.events.write(wire.EventKind.STEP, begin * MS, (begin + 30 + late) * MS, step=step)
        begin += 30 + late
    observer.poll()
    observer.final()
    assert observer.parts.failed == {}


def test_a_wait_that_nobody_saw_begins_at_the_last_call_before_the_completion(tmp_path: Path) -> None:
    """Buckets of gradients: two asynchronous all-reduces, both complete at 40 ms, without a recorded wait."""
    observer = Observer(tmp_path / "rings", run_id="run-7", surroundings=Surroundings("run-7", tmp_path), clock_ns=lambda: 100 * MS)
    writer = RingWriter(tmp_path / "rings", 0, 1)
    group = writer.group("0", 1, 0, ranks=[0], axis="dp")
    for seq, enter in enumerate((10, 20)):
        writer.collective(group, seq, enter * MS, 40 * MS, step=1, flags=wire.CollectiveFlag.ASYNC)
    writer.collective(group, 2, 50 * MS, 60 * MS, step=1, return_ns=51 * MS)
    observer.poll()
    observer.final()
    calls = window(open_archive(tmp_path), 1).calls[0]
    assert [call.blocked_ns for call in calls] == [(20 * MS, 40 * MS), (20 * MS, 40 * MS), (50 * MS, 60 * MS)]


def test_the_command_answers_from_what_the_ranks_recorded(tmp_path: Path) -> None:
    record(tmp_path)
    out = io.StringIO()
    why(tmp_path, 7, as_json=True, out=out)
    told = json.loads(out.getvalue())
    assert told["symptom"]["kind"] == "slow"
    assert (told["origin"]["rank"], told["origin"]["call_site"]) == (1, "train.py:12 main")
    assert told["origin"]["seconds"] == pytest.approx(0.088)
    words = io.StringIO()
    why(tmp_path, 7, out=words)
    assert "began: rank 1 took 0.088 s, usually 0.028 s" in words.getvalue()


def test_a_step_that_the_archive_lacks_is_an_error_that_says_which_it_has(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(RunDirError, match="nothing of step 70; it has steps 0 to 9"):
        why(tmp_path, 70)
