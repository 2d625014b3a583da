"""The observer on synthetic ranks: joins, drops, missing ranks, restarts, interleaved groups, death, completeness."""

import tempfile
from pathlib import Path

import pytest

from ranksight.agent.observer import Observer
from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes, fallback_directory
from tests.agent.conftest import BEGIN, MS, SECOND, Host
from tests.support.ring_writer import SMALL, RingWriter


def world(host: Host, size: int, **options: object) -> tuple[list[RingWriter], list[int]]:
    """`size` ranks and their group "0" over all of them."""
    writers = [host.rank(rank, size, local_world_size=size, **options) for rank in range(size)]  # type: ignore[arg-type]
    return writers, [writer.group("0", size, rank, ranks=list(range(size))) for rank, writer in enumerate(writers)]


def test_wait_transfer_and_blame(host: Host) -> None:
    writers, groups = world(host, 4)
    for seq in range(5):
        at = BEGIN + seq * 500 * MS
        for rank, writer in enumerate(writers):
            late = 190 * MS if rank == 2 else rank * MS
            writer.collective(groups[rank], seq, at + late, at + 194 * MS, step=seq)
    host.poll(3)
    line = host.op()
    assert (line["axis"], line["count"], line["instances"], line["bytes"]) == ("world", 20, 5, 20 * 4096)
    assert line["transfer_seconds_total"] == pytest.approx(5 * 0.004)
    assert line["wait_seconds_total"] == pytest.approx(5 * (0.190 + 0.189 + 0.187))
    assert line["busbw_bytes_per_second"] == pytest.approx(4096 / 0.004 * 1.5)
    assert line["duration_seconds"]["max"] == pytest.approx(0.194)  # type: ignore[index]
    blame = host.observer.report_sections()["collectives"]["blame_seconds"]["world"]  # type: ignore[index]
    assert blame == {"0": 0, "1": 0, "2": pytest.approx(5 * 0.566), "3": 0}
    assert host.observer.findings() == ()


def test_members_may_arrive_in_different_polls(host: Host) -> None:
    writers, groups = world(host, 2)
    writers[0].collective(groups[0], 0, BEGIN, BEGIN + MS)
    host.poll()
    assert (host.op()["count"], host.op()["instances"]) == (1, 0)
    writers[1].collective(groups[1], 0, BEGIN + 1, BEGIN + MS)
    host.poll()
    assert host.op()["instances"] == 1
    assert host.observer.timeline.waiting == 0


def test_dropped_records_leave_instances_incomplete_and_the_rest_exact(host: Host) -> None:
    writers = [host.rank(0, 2, local_world_size=2), host.rank(1, 2, local_world_size=2, sizes=Sizes(8, 8, 4096, 4096))]
    groups = [writer.group("0", 2, rank, ranks=[0, 1]) for rank, writer in enumerate(writers)]
    for seq in range(20):  # the ring of rank 1 holds the last 8
        for writer, group in zip(writers, groups, strict=True):
            writer.collective(group, seq, BEGIN + seq * MS, BEGIN + seq * MS + 1000)
    host.poll()
    assert (host.op()["count"], host.op()["instances"]) == (28, 8)
    assert host.observer.timeline.incomplete == 12
    assert host.observer.timeline.waiting == 0
    completeness = host.observer.report_sections()["completeness"]
    assert completeness["records_written"] == 40  # type: ignore[index]
    assert completeness["records_dropped"] == 12  # type: ignore[index]
    (finding,) = host.observer.findings()
    assert finding.kind == "incomplete_data"
    assert finding.message.startswith("12 of 20 records dropped on rank 1:")
    assert finding.ranks == (1,)


def test_an_open_operation_keeps_its_instance_possible(host: Host) -> None:
    writers, groups = world(host, 2)
    ticket = writers[1].collective(groups[1], 0, BEGIN)
    for seq in range(3):
        writers[0].collective(groups[0], seq, BEGIN, BEGIN + MS)
    for seq in range(1, 3):
        writers[1].collective(groups[1], seq, BEGIN, BEGIN + MS)
    host.poll()
    host.poll(30)
    assert host.observer.timeline.waiting == 1
    writers[1].complete(ticket, BEGIN + 30 * SECOND)
    host.poll()
    assert (host.op()["instances"], host.observer.timeline.incomplete) == (3, 0)


def test_who_launched_and_who_did_not(host: Host) -> None:
    writers, groups = world(host, 3)
    for rank in (0, 2):
        writers[rank].collective(groups[rank], 0, BEGIN, BEGIN + MS)
        writers[rank].collective(groups[rank], 1, BEGIN + MS)
    writers[1].collective(groups[1], 0, BEGIN, BEGIN + MS)
    host.poll()
    (operation,) = host.observer.in_flight()
    assert (operation.op, operation.seq) == ("all_reduce", 1)
    assert (operation.launched, operation.not_launched) == ((0, 2), (1,))
    assert operation.since_ns == BEGIN + MS
    text = host.observer.exposition()[0].decode()
    assert 'ranksight_in_flight_operations{rank="1"} 0' in text
    assert 'ranksight_in_flight_oldest_seconds{rank="0"} 0.249' in text
    assert 'ranksight_group_operations_launched_total{rank="1",group="0",axis="world"} 1' in text


def test_a_missing_rank_is_silent_not_healthy(host: Host) -> None:
    writers = [host.rank(rank, 3, local_world_size=3) for rank in (0, 1)]
    groups = [writer.group("0", 3, rank, ranks=[0, 1, 2]) for rank, writer in enumerate(writers)]
    for writer, group in zip(writers, groups, strict=True):
        writer.collective(group, 0, BEGIN, BEGIN + MS)
    host.poll()
    assert host.op()["instances"] == 0
    host.poll(20)
    assert (host.observer.timeline.incomplete, host.op()["instances"]) == (1, 0)
    assert host.op()["wait_seconds"]["p50"] is None  # type: ignore[index]
    (finding,) = host.observer.findings()
    assert finding.message == "Nothing was heard from rank 2: 2 of 3 ranks are observed."
    completeness = host.observer.report_sections()["completeness"]
    assert (completeness["ranks_expected"], completeness["ranks_seen"]) == (3, 2)  # type: ignore[index]


def test_ranks_of_other_hosts_are_neither_missing_nor_measured(host: Host) -> None:
    writers = []
    for rank in (4, 5):
        writer = RingWriter(host.ring_dir, rank, 8, local_rank=rank - 4, pid=100 + rank)
        host.run_process(100 + rank, 1, local_world_size=2)
        writers.append(writer)
    for rank, writer in enumerate(writers):
        everyone = writer.group("0", 8, rank + 4, ranks=list(range(8)))
        neighbours = writer.group("1", 2, rank, ranks=[4, 5], axis="tp")
        writer.collective(everyone, 0, BEGIN, BEGIN + MS)
        writer.collective(neighbours, 0, BEGIN, BEGIN + MS, op="_allgather_base_")
    host.poll()
    assert host.op("all_reduce")["count"] == 2
    assert host.op("all_reduce")["instances"] == 0
    assert host.op("all_gather_into_tensor")["instances"] == 1
    assert host.observer.timeline.partial == 1
    assert host.observer.timeline.waiting == 0
    assert host.observer.findings() == ()


def test_sequences_restart_with_a_generation_and_with_an_incarnation(host: Host) -> None:
    writers, groups = world(host, 2)
    for writer, group in zip(writers, groups, strict=True):
        writer.collective(group, 0, BEGIN, BEGIN + MS)
        writer.collective(group, 1, BEGIN + MS, BEGIN + 2 * MS)
    host.poll()
    again = [writer.group("0", 2, rank, incarnation=1, first_use_ns=BEGIN) for rank, writer in enumerate(writers)]
    for writer, group in zip(writers, again, strict=True):
        writer.collective(group, 0, BEGIN + 10 * MS, BEGIN + 11 * MS)
    host.poll()
    assert host.op()["instances"] == 3
    writers[0].collective(groups[0], 2, BEGIN + 3 * MS)  # in flight when the job is torn down
    host.poll()
    for rank in range(2):
        host.end_process(100 + rank)
    host.poll(1.5)
    restarted = [host.rank(rank, 2, local_world_size=2, generation=1) for rank in range(2)]
    groups = [writer.group("0", 2, rank, ranks=[0, 1]) for rank, writer in enumerate(restarted)]
    for writer, group in zip(restarted, groups, strict=True):
        writer.collective(group, 0, BEGIN + 2 * SECOND, BEGIN + 2 * SECOND + MS)
    host.poll(2)
    assert (host.op()["instances"], host.op()["count"], host.op()["unfinished"]) == (4, 9, 1)
    assert host.observer.timeline.incomplete == 0
    assert [identity.generation for identity in host.observer.identities()] == [0, 0, 1, 1]
    assert [source.reader["generation"] for source in host.observer.current()] == [1, 1]


def test_interleaved_groups_are_kept_apart(host: Host) -> None:
    writers = [host.rank(rank, 4, local_world_size=4) for rank in range(4)]
    axes = {"tp": ([0, 1], [2, 3]), "dp": ([0, 2], [1, 3])}
    for rank, writer in enumerate(writers):
        numbers = {}
        for axis, groups in axes.items():
            ranks = next(ranks for ranks in groups if rank in ranks)
            numbers[axis] = writer.group(f"{axis}{ranks[0]}", 2, ranks.index(rank), ranks=ranks, axis=axis)
        for seq in range(6):
            for axis, delay in (("tp", rank % 2), ("dp", rank // 2)):
                at = BEGIN + seq * 10 * MS + (5 * MS if axis == "dp" else 0)
                writer.collective(numbers[axis], seq, at + delay * MS, at + 2 * MS)
    host.poll()
    sections = host.observer.report_sections()["collectives"]
    assert {line["axis"]: line["instances"] for line in sections["by_op"]} == {"dp": 12, "tp": 12}  # type: ignore[index]
    blame = sections["blame_seconds"]  # type: ignore[index]
    assert blame["tp"] == {"0": 0, "1": pytest.approx(0.006), "2": 0, "3": pytest.approx(0.006)}
    assert blame["dp"] == {"0": 0, "1": 0, "2": pytest.approx(0.006), "3": pytest.approx(0.006)}


def test_point_to_point_operations_join_by_direction_and_tag(host: Host) -> None:
    writers, groups = world(host, 2)
    for rank, writer in enumerate(writers):
        peer = 1 - rank
        for seq in range(3):
            at = BEGIN + seq * 10 * MS
            writer.collective(groups[rank], seq, at, at + 4 * MS, op="send", peer=peer, tag=5)
            writer.collective(groups[rank], seq, at + rank * MS, at + 4 * MS, op="recv_", peer=peer, tag=5)
        writer.collective(groups[rank], 0, BEGIN, BEGIN + MS)  # a collective of the same group and number
    writers[0].collective(groups[0], 0, BEGIN, BEGIN + MS, op="recv_any_source_")
    host.poll()
    assert (host.op("send")["instances"] + host.op("recv")["instances"]) == 6  # type: ignore[operator]
    assert host.op("all_reduce")["instances"] == 1
    assert host.observer.timeline.partial == 1  # from any source: nothing says who sent it
    assert host.op("recv")["wait_seconds_total"] == 0
    assert host.op("send")["wait_seconds_total"] == pytest.approx(0.003)  # of rank 0, for the receive of rank 1


def test_unequal_all_to_all_counts_the_largest(host: Host) -> None:
    writers, groups = world(host, 2)
    for rank, size in enumerate((1000, 9000)):
        writers[rank].collective(groups[rank], 0, BEGIN, BEGIN + MS, op="alltoall_base_", bytes=size)
    host.poll()
    assert host.op("all_to_all_single")["algbw_bytes_per_second"] == pytest.approx(9000 / 0.001)
    assert host.op("all_to_all_single")["busbw_bytes_per_second"] == pytest.approx(9000 / 0.001 / 2)


def test_a_dead_rank_is_read_to_its_end_and_its_operation_stays_visible(host: Host) -> None:
    writers, groups = world(host, 2)
    host.poll()
    writers[0].collective(groups[0], 0, BEGIN, BEGIN + MS)
    writers[0].collective(groups[0], 1, BEGIN + MS)
    writers[1].collective(groups[1], 0, BEGIN, BEGIN + MS)
    host.end_process(100)
    host.poll(1.5)
    host.poll()
    assert (host.op()["count"], host.op()["unfinished"], host.op()["instances"]) == (3, 1, 1)
    (operation,) = host.observer.in_flight()
    assert (operation.launched, operation.not_launched) == ((0,), (1,))
    text = host.observer.exposition()[0].decode()
    assert 'ranksight_rank_up{rank="0"} 0' in text
    assert 'ranksight_rank_up{rank="1"} 1' in text


def test_a_reused_pid_is_not_the_rank(host: Host) -> None:
    world(host, 2)
    host.run_process(101, ticks=999)
    host.poll(1.5)
    assert [source.state for source in host.observer.current()] == ["S", None]


def test_the_final_poll_takes_what_is_left(host: Host) -> None:
    writers, groups = world(host, 1)
    host.poll()
    writers[0].collective(groups[0], 0, BEGIN, BEGIN + MS, flags=wire.CollectiveFlag.ASYNC)
    writers[0].collective(groups[0], 1, BEGIN, publish=False)
    host.observer.final()
    assert host.op()["count"] == 1
    completeness = host.observer.completeness().ranks[0].collectives
    assert (completeness.written, completeness.captured, completeness.dropped) == (2, 1, 1)
    host.observer.final()
    assert host.op()["count"] == 1


def test_the_ring_folder_may_come_later_and_hold_foreign_files(tmp_path: Path) -> None:
    observer = Observer(tmp_path / "none", clock_ns=lambda: BEGIN, proc=tmp_path)
    observer.poll()
    assert observer.ranks_expected() is None
    assert observer.report_sections()["overhead"]["fraction"] is None  # type: ignore[index]
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "9-9.ring").write_bytes(b"\0" * 5000)
    (tmp_path / "none" / "notes.txt").write_text("not a ring")
    observer.poll()
    observer.poll()
    (finding,) = observer.findings()
    assert finding.message.startswith("A ring file can't be read: 9-9.ring: not a ring file")


def test_steps_loss_tokens_notes_and_cost(host: Host) -> None:
    (writer,), _ = world(host, 1)
    for step in range(4):
        at = BEGIN + step * 100 * MS
        writer.ring.events.write(wire.EventKind.STEP, at, at + 100 * MS, step=step)
        writer.ring.events.write(wire.EventKind.LOSS, at, at, step=step, values=(3.0 - step,))
        writer.ring.events.write(wire.EventKind.BATCH, at, at, step=step, values=(8.0, 1024.0, 0.0, 0.0))
    writer.ring.events.write(wire.EventKind.GRAD_NORM, BEGIN, BEGIN, values=(float("nan"),))
    writer.ring.events.write(
        wire.EventKind.NOTE, BEGIN, BEGIN, name=writer.ring.hooks_table.string("no compiler: Python tap")
    )
    writer.ring["tap_cost_ns"], writer.ring["hooks_cost_ns"] = MS, MS
    writer.ring["tap"] = wire.Tap.NONE
    host.poll()
    sections = host.observer.report_sections()
    (rank,) = sections["steps"]["per_rank"]  # type: ignore[index]
    assert (rank["steps"], rank["last_step"], rank["loss"], rank["tokens"]) == (4, 3, 0.0, 4096)
    assert rank["grad_norm"] == "nan"
    assert rank["seconds"]["p50"] == pytest.approx(0.1, rel=0.01)
    assert sections["overhead"]["fraction"] == pytest.approx(0.005)  # type: ignore[index]
    assert "rank 0: no compiler: Python tap" in sections["completeness"]["notes"]  # type: ignore[index]
    (finding,) = host.observer.findings()
    assert finding.message == "Collectives are not seen on rank 0: no tap could be installed there."


def test_rings_that_found_no_room_on_tmpfs_are_read_where_they_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    RingWriter(fallback_directory(tmp_path / "run-7"), 0, 1)
    observer = Observer(tmp_path / "run-7")
    observer.poll()
    assert [identity.rank for identity in observer.identities()] == [0]


def test_a_ring_that_fills_asks_to_be_read_early(host: Host) -> None:
    writers, groups = world(host, 2)
    host.poll()
    assert not host.observer.filling()
    for seq in range(SMALL.collectives // 8):
        writers[1].collective(groups[1], seq, BEGIN, BEGIN + 1)
    assert host.observer.filling()
    host.poll()
    assert not host.observer.filling()
