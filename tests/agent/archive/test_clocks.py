"""Archives of two hosts: +11.56 s and 50 ppm on one rank's records are found within 2 ms, and it is no straggler."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ranksight.agent.archive.clocks import measured
from ranksight.agent.archive.read import open_archive
from ranksight.agent.archive.schema import SCHEMAS
from ranksight.agent.collectives import measures
from ranksight.agent.observer import Observer
from ranksight.agent.parts import Surroundings
from ranksight.agent.traces.command import step_view
from ranksight.agent.why.command import why
from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes
from tests.support.ring_writer import RingWriter

MS = 1_000_000
STEPS, STEP_MS = 300, 2000
OFFSET_NS, DRIFT, SHIFTED = 11_560_000_000, 50e-6, 1
LATE = {(150, 2): 600, (170, SHIFTED): 600}  # (step, rank): how many ms later
BEGIN_NS = 1_000_000 * MS


def put_off(times: np.ndarray) -> np.ndarray:
    """What another host's clock shows."""
    return times + OFFSET_NS + ((times - BEGIN_NS) * DRIFT).astype(np.int64)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks, ten minutes; then the records of one of them are made those of another host."""
    root = tmp_path_factory.mktemp("run")
    now = BEGIN_NS + (STEPS + 1) * STEP_MS * MS
    observer = Observer(root / "rings", run_id="run-7", surroundings=Surroundings("run-7", root), clock_ns=lambda: now)
    writers = [RingWriter(root / "rings", rank, 3, sizes=Sizes(1024, 1024)) for rank in range(3)]
    groups = [writer.group("0", 3, rank, ranks=[0, 1, 2], axis="dp") for rank, writer in enumerate(writers)]
    random = np.random.default_rng(0)
    for step in range(STEPS):
        begin = BEGIN_NS + step * STEP_MS * MS
        work = [int(random.normal(1000, 20)) + LATE.get((step, rank), 0) for rank in range(3)]
        met = begin + max(work) * MS + 2 * MS
        for rank, (writer, group) in enumerate(zip(writers, groups, strict=True)):
            done = met + int(random.integers(0, 100_000))
            writer.collective(group, step, begin + work[rank] * MS, done, step=step)
            writer.ring.events.write(wire.EventKind.STEP, begin, met + 10 * MS, step=step)
    observer.poll()
    observer.final()
    move(root)
    return root


def move(root: Path) -> None:
    """Give the records of one rank to another host, on another clock."""
    for path in list((root / "archive").glob("*.parquet")):
        table = pq.read_table(path)
        kind = path.name.partition("-")[0]
        theirs = np.asarray(table["rank"]) == SHIFTED
        said = dict(table.schema.metadata)
        pq.write_table(table.filter(pa.array(~theirs)), path)
        moved = table.filter(pa.array(theirs))
        for number, name in enumerate(moved.column_names):
            if name.endswith("_ns"):
                there = ~moved[name].is_null().to_numpy()
                times = put_off(moved[name].fill_null(0).to_numpy())
                moved = moved.set_column(number, SCHEMAS[kind].field(name), pa.array(times, pa.int64(), mask=~there))
        moved = moved.set_column(0, SCHEMAS[kind].field("host"), pa.array(["h1"] * len(moved)))
        said |= {b"ranksight.host": b"h1"}  # its calendar was never set: it says what the other host's says
        pq.write_table(moved.replace_schema_metadata(said), path.with_name(f"{kind}-h1-000001.parquet"))


def test_offset_and_drift_are_found_within_two_milliseconds(recorded: Path) -> None:
    archive = open_archive(recorded)
    clocks = archive.clocks()
    assert clocks.measured
    true = BEGIN_NS + np.arange(0, STEPS * STEP_MS, 500, dtype=np.int64) * MS
    found = clocks.hosts["h1"]
    assert np.abs(found.to_reference(put_off(true)) - true).max() < 2 * MS
    assert found.uncertainty_ns is not None
    assert found.uncertainty_ns < 2 * MS
    said = clocks.to_json()["hosts"]["h1"]
    assert said["drift"] == pytest.approx(DRIFT, abs=1e-6)
    assert said["offset_seconds"] == pytest.approx(11.575, abs=0.02)  # in the middle of the run, 300 s of drift later


def test_no_rank_is_blamed_for_its_clock(recorded: Path) -> None:
    archive = open_archive(recorded)
    raw = archive.collectives()

    def blamed(table: pa.Table) -> np.ndarray:
        rows = table.sort_by([("seq", "ascending"), ("rank", "ascending")])
        enter, leave = (rows[name].to_numpy().astype(np.int64) for name in ("enqueue_ns", "complete_ns"))
        split = measures.split(enter, leave, np.arange(0, len(enter), 3))
        return np.bincount(split.last % 3, minlength=3)

    assert blamed(raw).tolist() == [0, STEPS, 0]
    assert blamed(archive.clocks().corrected(raw)).max() < 0.45 * STEPS


def test_why_names_nobody_in_a_usual_step_and_the_late_one_whatever_its_clock(recorded: Path) -> None:
    def told(step: int) -> dict[str, Any]:
        out = io.StringIO()
        why(recorded, step, as_json=True, out=out)
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    usual = told(100)
    assert (usual["symptom"]["kind"], usual["origin"]) == ("none", None)
    assert usual["clocks"]["hosts"]["h1"]["uncertainty_seconds"] < 0.002
    for (step, rank), late in LATE.items():
        answer = told(step)
        assert answer["symptom"]["kind"] == "slow"
        assert answer["origin"]["rank"] == rank
        assert answer["origin"]["seconds"] - answer["origin"]["usual_seconds"] == pytest.approx(late / 1e3, abs=0.1)
        assert any("the clocks of 2 hosts" in note for note in answer["notes"])


def test_a_trace_of_two_hosts_is_on_one_clock_and_says_who_came_last(recorded: Path) -> None:
    step = max(LATE)[0]
    view = step_view(recorded, open_archive(recorded), step)
    assert (view.end_ns - view.begin_ns) / 1e9 < 2
    last = [cause for cause in view.causes if cause.kind == "last"]
    assert {view.operations[cause.source].rank for cause in last} == {SHIFTED}
    assert {view.operations[cause.target].rank for cause in last} == {0, 2}


def table(rows: list[tuple[str, int, int]], group: str) -> pa.Table:
    """Rows (host, seq, exit) of one group."""
    names = SCHEMAS["collectives"]
    return pa.table(
        {
            "host": [row[0] for row in rows], "generation": [0] * len(rows), "group": [group] * len(rows),
            "incarnation": [0] * len(rows), "members": [group] * len(rows), "seq": [row[1] for row in rows],
            "op": ["all_reduce"] * len(rows), "upper_bound": [False] * len(rows), "complete_ns": [row[2] for row in rows],
        },
        pa.schema([names.field(name) for name in (
            "host", "generation", "group", "incarnation", "members", "seq", "op", "upper_bound", "complete_ns",
        )]),
    )  # fmt: skip


def test_a_host_is_reached_over_another_one_and_the_doubts_add_up() -> None:
    random = np.random.default_rng(1)
    true = [seq * 1000 * MS for seq in range(50)]

    def pair(one: str, by_one: int, other: str, by_other: int) -> pa.Table:
        rows = [(host, seq, at + by + int(random.integers(0, MS))) for seq, at in enumerate(true)
                for host, by in ((one, by_one), (other, by_other))]  # fmt: skip
        return table(rows, one + other)

    both = pa.concat_tables([pair("a", 0, "b", 5 * MS), pair("b", 5 * MS, "c", 900 * MS)])
    clocks = measured(both, dict.fromkeys("abcd", 0) | {"d": 77})
    assert clocks.reference == "b"  # it has shared the most
    assert clocks.hosts["c"].to_reference(np.array([900 * MS]))[0] == pytest.approx(5 * MS, abs=2 * MS)
    between, near = clocks.least_skew_ns("a", "c"), clocks.least_skew_ns("a", "b")
    assert between is not None
    assert near is not None
    assert between > near > 0
    assert clocks.least_skew_ns("a", "a") == 0
    # Nothing was shared with d: its calendar is all there is, and nothing is claimed.
    assert clocks.least_skew_ns("a", "d") is None
    assert not clocks.measured
    assert clocks.hosts["d"].to_reference(np.array([0]))[0] == 77
