"""What ranks recorded comes back from Parquet as it was: values, nulls, strings, groups, limits of size, a crash."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from ranksight.agent.archive import schema
from ranksight.agent.archive.read import open_archive
from ranksight.agent.archive.store import Store
from ranksight.agent.config import ArchiveSection, Config
from ranksight.agent.errors import RunDirError
from ranksight.agent.observer import Observer
from ranksight.agent.parts import Surroundings
from ranksight.hooks import wire
from tests.support.ring_writer import RingWriter

CHECKOUT = Path(__file__).resolve().parents[3]
MS = 1_000_000


def watch(root: Path, **archive: Any) -> Observer:
    """An observer that archives into `root`."""
    surroundings = Surroundings("run-7", root, Config(archive=ArchiveSection(**archive)))
    return Observer(root / "rings", run_id="run-7", surroundings=surroundings, clock_ns=lambda: 10_000 * MS)


def two_ranks(root: Path) -> Iterator[tuple[RingWriter, int]]:
    for rank in range(2):
        writer = RingWriter(root / "rings", rank, 2)
        writer.group("unused", 1, 0, ranks=[rank])
        yield writer, writer.group("0", 2, rank, ranks=[0, 1], axis="dp")


def run(root: Path) -> None:
    """Two ranks: rank 1 comes 5 ms late to an all-reduce of step 3, sends to rank 0, and hangs in a last one."""
    for rank, (writer, group) in enumerate(two_ranks(root)):
        site = writer.ring.tap_table.string("train.py:12 main")
        first = 1000 * MS
        writer.collective(group, 0, first + rank * 5 * MS, first + 6 * MS, step=3, call_site=site, stage=rank + 1)
        writer.collective(
            group, 0, first + 10 * MS, first + 11 * MS, step=3, op="send" if rank else "recv_", peer=1 - rank, tag=4,
            fingerprint=(1 << 63) + 5, microbatch=2, reduce_op=wire.NONE_BYTE, flags=wire.CollectiveFlag.ASYNC,
        )  # fmt: skip
        writer.collective(group, 1, first + 20 * MS, 0, step=4)
        writer.ring.events.write(wire.EventKind.STEP, first, first + 12 * MS, step=3)
        writer.ring.events.write(
            wire.EventKind.PIPELINE, first, first + MS, step=3, code=wire.Action.FORWARD, stage=rank, microbatch=1
        )
        experts = tuple(float(tokens) for tokens in range(40))
        writer.ring.events.write(wire.EventKind.EXPERTS, first, 0, step=3, layer=2, values=experts)
        writer.ring.events.write(wire.EventKind.LOSS, first, first, step=3, values=(2.5,))
        text = writer.ring.hooks_table.string(f"corpus={rank}")
        writer.ring.events.write(wire.EventKind.FACT, first, 0, step=-1, name=text)
    observer = watch(root)
    observer.poll()
    observer.final()
    assert observer.parts.failed == {}
    assert observer.report_sections()["archive"] == {
        "files": 2, "bytes": sum(path.stat().st_size for path in (root / "archive").iterdir()), "rows": 16, "dropped": 0
    }  # fmt: skip


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    run(root)
    return root


def test_operations_come_back_as_they_were(archived: Path) -> None:
    rows = open_archive(archived).collectives(step=3).sort_by([("rank", "ascending"), ("enqueue_ns", "ascending")])
    late, sent = rows.to_pylist()[2:]
    assert late == late | {
        "host": socket.gethostname(), "rank": 1, "generation": 0,
        "group": "0", "axis": "dp", "members": "0,1", "seq": 0, "op": "all_reduce",
        "peer": None, "reduce_op": "sum", "dtype": "float32", "bytes": 4096, "fingerprint": None, "microbatch": None,
        "stage": 1, "call_site": "train.py:12 main", "enqueue_ns": 1005 * MS, "complete_ns": 1006 * MS,
        "wait_begin_ns": None, "asynchronous": False,
    }  # fmt: skip
    assert sent == sent | {
        "op": "send", "peer": 0, "tag": 4, "fingerprint": (1 << 63) + 5, "microbatch": 2, "stage": None,
        "call_site": None, "reduce_op": None, "asynchronous": True,
    }  # fmt: skip


def test_an_operation_that_never_completed_is_there_without_a_completion(archived: Path) -> None:
    rows = open_archive(archived).collectives(step=4).to_pylist()
    assert [(row["rank"], row["seq"], row["complete_ns"]) for row in rows] == [(0, 1, None), (1, 1, None)]


def test_events_come_back_with_all_their_values(archived: Path) -> None:
    rows = [row for row in open_archive(archived).events().to_pylist() if row["rank"] == 1]
    by_kind = {row["kind"]: row for row in rows}
    assert by_kind["experts"]["values"] == [float(tokens) for tokens in range(40)]
    assert by_kind["loss"]["values"] == [2.5] and by_kind["loss"]["end_ns"] is None
    assert (by_kind["pipeline"]["what"], by_kind["pipeline"]["stage"], by_kind["pipeline"]["microbatch"]) == ("forward", 1, 1)
    assert (by_kind["fact"]["text"], by_kind["fact"]["step"]) == ("corpus=1", -1)
    assert (by_kind["step"]["what"], by_kind["step"]["end_ns"]) == (None, 1012 * MS)


def test_who_and_when_stands_in_the_files(archived: Path) -> None:
    archive = open_archive(archived)
    assert (archive.run_id, archive.steps()) == ("run-7", (3, 3))
    (offset,) = archive.wall_offset_ns.values()
    assert abs(offset + time.monotonic_ns() - time.time_ns()) < 60_000 * MS


def test_the_query_of_the_page_names_the_rank_that_was_waited_for(archived: Path) -> None:
    (query,) = re.findall(r"```sql\n(.*?)```", (CHECKOUT / "docs" / "archive.md").read_text(), re.DOTALL)
    found = duckdb.sql(query.replace("archive/", f"{archived}/archive/"))
    assert found is not None and found.fetchall() == [("dp", 1, 1, 0.005)]


def test_the_page_is_what_the_schema_says() -> None:
    assert (CHECKOUT / "docs" / "archive.md").read_text() == schema.markdown()


def test_the_page_shows_the_defaults() -> None:
    (block,) = re.findall(r"```toml\n\[archive\]\n(.*?)```", schema.markdown(), re.DOTALL)
    assert block == "".join(f"{name} = {value:g}\n" if value < 100 else f"{name} = {value}\n" for name, value in ArchiveSection())


def table(number: int, rows: int = 1000) -> pa.Table:
    """Events that don't compress away."""
    values = [[(number * rows + row) * 0.7071] for row in range(rows)]
    columns = {
        field.name: pa.nulls(rows, field.type) if field.name != "values" else pa.array(values, field.type)
        for field in schema.SCHEMAS["events"]
    }
    return pa.table(columns).set_column(6, "step", pa.array([number] * rows, pa.int64()))


METADATA = {
    "ranksight.version": str(schema.VERSION), "ranksight.run_id": "r", "ranksight.host": "h",
    "ranksight.wall_offset_ns": "0",
}  # fmt: skip


def test_the_oldest_files_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    whole = Store(tmp_path / "one" / "archive", "h", 1 << 30, METADATA)
    whole.put("events", table(0))
    assert whole.close(60)
    store = Store(tmp_path / "archive", "h", round(whole.held.bytes * 3.5), METADATA)
    for number in range(7):
        store.put("events", table(number))
    assert store.close(60)
    assert (store.held.files, store.held.rows, store.held.dropped) == (3, 3000, 4000)
    assert set(open_archive(tmp_path).events().column("step").to_pylist()) == {4, 5, 6}


def test_a_disk_that_is_behind_costs_rows_that_are_counted(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("a file where the folder should be")
    store = Store(tmp_path / "archive", "h", 1 << 30, METADATA)
    store.put("events", table(0))
    assert store.close(60)
    assert (store.held.files, store.held.dropped) == (0, 1000)


def test_another_agent_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "archive" / f".events-h-00000{number + 1}.parquet.77").parent.mkdir(exist_ok=True)
        (tmp_path / "archive" / f".events-h-00000{number + 1}.parquet.77").write_bytes(b"half of it")
        store = Store(tmp_path / "archive", "h", 1 << 30, METADATA)
        store.put("events", table(number))
        assert store.close(60)
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == [
        "events-h-000000.parquet", "events-h-000001.parquet"
    ]  # fmt: skip
    assert store.held.rows == 2000


def test_an_agent_that_is_killed_leaves_whole_files(tmp_path: Path) -> None:
    (tmp_path / "ranksight.toml").write_text("[archive]\nrotate_seconds = 0.2\n")
    writer = RingWriter(tmp_path / "rings", 0, 1)
    group = writer.group("0", 1, 0, ranks=[0])
    writer.collective(group, 0, time.monotonic_ns(), time.monotonic_ns() + 1000, step=1)
    agent = subprocess.Popen(
        [sys.executable, "-m", "ranksight.agent", "agent", "--ring-dir", tmp_path / "rings", "--dir", tmp_path,
         "--port", "0", "--config", tmp_path / "ranksight.toml"],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "archive").glob("[!.]*.parquet")):
            assert agent.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        agent.kill()
        agent.communicate()
    assert open_archive(tmp_path).collectives(step=1).num_rows == 1


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no archive here"):
        open_archive(tmp_path)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "events-h-000000.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RunDirError, match=r"events-h-000000\.parquet: not a Parquet file"):
        open_archive(tmp_path)


def test_an_archive_of_another_version_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "archive", "h", 1 << 30, METADATA | {"ranksight.version": "99"})
    store.put("events", table(0))
    assert store.close(60)
    with pytest.raises(RunDirError, match="archive version 99, this reads 1"):
        open_archive(tmp_path)


def test_nothing_is_archived_without_a_run_directory(tmp_path: Path) -> None:
    surroundings = replace(Surroundings("r", tmp_path), run_dir=None)
    observer = Observer(tmp_path / "rings", surroundings=surroundings)
    observer.final()
    assert observer.parts.failed == {} and "archive" not in observer.report_sections()
