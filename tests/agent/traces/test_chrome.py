"""The timeline is one that Perfetto takes: tracks nest, arrows start and end in slices, counters have numbers."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.archive import schema
from ranksight.agent.archive.store import Store
from ranksight.agent.cli import main
from ranksight.agent.traces.chrome import chrome
from ranksight.agent.traces.view import view
from tests.support.step_views import STEP, event, operation, table, tables

Trace = list[dict[str, Any]]


@pytest.fixture(scope="module")
def trace() -> Trace:
    whole: dict[str, Any] = json.loads(json.dumps(chrome(view(STEP, *tables()), "run-7"), allow_nan=False))
    assert whole["otherData"] == {"run_id": "run-7", "step": STEP, "begin_unix_ns": 0}
    return whole["traceEvents"]  # type: ignore[no-any-return]


def slices(trace: Trace) -> Trace:
    return [each for each in trace if each["ph"] == "X"]


def names_of_tracks(trace: Trace) -> dict[tuple[int, int], str]:
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in trace if each["name"] == "thread_name"}


def check_nesting(trace: Trace) -> None:
    """Slices of one track lie behind or within each other."""
    by_track = defaultdict(list)
    for each in slices(trace):
        by_track[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    for spans in by_track.values():
        around: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def test_every_rank_is_a_process_with_its_tracks(trace: Trace) -> None:
    processes = {each["pid"]: each["args"]["name"] for each in trace if each["name"] == "process_name"}
    assert processes == {0: "rank 0", 1: "rank 1"}
    tracks = names_of_tracks(trace)
    assert {(each["pid"], each["tid"]) for each in slices(trace)} == set(tracks)
    shown = sorted((each["name"], tracks[0, each["tid"]]) for each in slices(trace) if each["pid"] == 0)
    assert shown == [
        ("all_reduce", "collectives dp"), ("data", "data and pauses"), ("forward", "phases"), ("forward 0", "pipeline"),
        ("gc", "data and pauses"), ("schedule", "pipeline"), ("send", "collectives dp"), ("step", "step"),
        ("transfer", "collectives dp"),
    ]  # fmt: skip


def test_slices_nest_and_have_their_times_in_microseconds(trace: Trace) -> None:
    check_nesting(trace)
    (step,) = (each for each in slices(trace) if each["name"] == "step" and each["pid"] == 1)
    assert (step["ts"], step["dur"]) == (0.0, 100_000.0)


def test_overlapping_operations_get_tracks_of_their_own() -> None:
    rows = [operation(0, "all_reduce", begin, begin + 4, seq=begin) for begin in range(6)]
    events = chrome(view(STEP, table("collectives", rows), table("events", [])), "r")["traceEvents"]
    check_nesting(events)
    names = ["collectives dp", *(f"collectives dp ({lane})" for lane in (2, 3, 4))]
    assert list(names_of_tracks(events).values()) == names


def test_arrows_lead_from_what_held_up_to_what_was_held_up(trace: Trace) -> None:
    found = []
    for begin in (each for each in trace if each["ph"] == "s"):
        (end,) = (each for each in trace if each["ph"] == "f" and each["id"] == begin["id"])
        ends = []
        for point in (begin, end):
            around = [
                each["name"] for each in slices(trace)
                if (each["pid"], each["tid"]) == (point["pid"], point["tid"]) and each["ts"] <= point["ts"] <= each["ts"] + each["dur"]
            ]  # fmt: skip
            ends.append((point["pid"], *around))
        assert begin["ts"] <= end["ts"] and end["bp"] == "e"
        found.append((begin["cat"], *ends))
    assert sorted(found) == [
        ("last", (1, "all_reduce"), (0, "all_reduce", "transfer")), ("p2p", (0, "send"), (1, "recv", "transfer")),
    ]  # fmt: skip


def test_a_transfer_begins_when_nobody_is_waited_for_any_more(trace: Trace) -> None:
    transfers = [(each["pid"], each["ts"], each["dur"]) for each in slices(trace) if each["name"] == "transfer"]
    assert sorted(transfers) == [(0, 80_000.0, 5_000.0), (1, 30_000.0, 2_000.0)]


def test_the_bubble_rises_while_a_stage_idles(trace: Trace) -> None:
    points = [(each["ts"], each["args"]["idle ms"]) for each in trace if each["name"] == "bubble" and each["pid"] == 1]
    assert points == [(8_000.0, 0.0), (35_000.0, 27.0), (58_000.0, 32.0)]


def test_tokens_of_all_experts_are_there_or_added_up(trace: Trace) -> None:
    counters = [each for each in trace if each["name"] == "tokens per expert, layer 3"]
    assert [each["pid"] for each in counters] == [0, 1]
    assert len(counters[0]["args"]) == 17
    assert sum(counters[0]["args"].values()) == sum(range(20))
    assert counters[0]["args"]["expert 19"] == 19 and counters[0]["args"]["the others"] == 0 + 1 + 2 + 3


def test_an_operation_that_never_ended_is_marked() -> None:
    rows = [operation(0, "all_reduce", 1, None)]
    events = chrome(view(STEP, table("collectives", rows), table("events", [event(0, "step", 0, 9)])), "r")["traceEvents"]
    (hung,) = (each for each in slices(events) if each["name"] == "all_reduce")
    assert hung["args"]["unfinished"] is True and hung["dur"] == 8_000.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    metadata = {
        "ranksight.version": str(schema.VERSION), "ranksight.run_id": "run-7", "ranksight.host": "h0",
        "ranksight.wall_offset_ns": "1000",
    }  # fmt: skip
    store = Store(tmp_path / "archive", "h0", 1 << 30, metadata)
    for kind, rows in zip(("collectives", "events"), tables(), strict=True):
        store.put(kind, rows)
    assert store.close(60)
    return tmp_path


def test_the_command_writes_the_step(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run_dir / "step.json"
    monkeypatch.setattr("sys.argv", ["ranksight", "trace", str(run_dir), "--step", str(STEP), "-o", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert json.loads(out.read_text())["otherData"] == {"run_id": "run-7", "step": STEP, "begin_unix_ns": 1000}


def test_a_step_that_is_not_there_is_an_error_that_says_what_is(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ranksight", "trace", str(run_dir), "--step", "99"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "holds nothing of step 99; it holds steps 7 to 7" in capsys.readouterr().err
