"""Reading rings that are alive, torn, overwritten, late, foreign or dead."""

from pathlib import Path

import numpy as np
import pytest

from ranksight.agent.reading.reader import WAIT_GRACE_NS, WAIT_PATIENCE_NS, Counts, RingError, RingReader, process_state
from ranksight.agent.reading.slots import COLLECTIVE, EVENT, HEADER
from ranksight.hooks import wire
from ranksight.hooks.records import Group
from ranksight.hooks.ring import Sizes
from tests.support.ring_writer import RingWriter, put

NOW = 10**12
SECOND = 10**9
TINY = Sizes(collectives=8, events=4, tap_table=4096, hooks_table=4096)


@pytest.fixture
def writer(tmp_path: Path) -> RingWriter:
    return RingWriter(tmp_path / "run", rank=1, world_size=2, sizes=TINY)


def seqs(reader: RingReader, now: int = NOW, *, final: bool = False) -> list[int]:
    return reader.poll(now, final).collectives["group_seq"].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("layout", "dtype"), [(wire.HEADER, HEADER), (wire.COLLECTIVE, COLLECTIVE), (wire.EVENT, EVENT)]
)
def test_dtypes_are_the_layouts(layout: wire.Layout, dtype: np.dtype[np.void]) -> None:
    assert dtype.itemsize == layout.size
    for field in layout.fields:
        kind, offset = dtype.fields[field.name][:2]  # type: ignore[index]
        assert offset == field.offset
        assert kind.itemsize == field.end - field.offset


def test_golden_bytes_of_a_slot() -> None:
    slot = bytearray(wire.COLLECTIVE.size)
    slot[0:8] = (5).to_bytes(8, "little")
    slot[8:16] = (111).to_bytes(8, "little")
    slot[40:48] = (333).to_bytes(8, "little")
    slot[48:56] = (42).to_bytes(8, "little")
    slot[92:96] = (-1).to_bytes(4, "little", signed=True)
    slot[104:106] = (11).to_bytes(2, "little")
    slot[128:136] = (-9).to_bytes(8, "little", signed=True)
    row = np.frombuffer(bytes(slot), COLLECTIVE)[0]
    named = {name: int(row[name]) for name in ("ticket", "enqueue_ns", "complete_ns", "group_seq", "peer", "op")}
    assert named == {"ticket": 5, "enqueue_ns": 111, "complete_ns": 333, "group_seq": 42, "peer": -1, "op": 11}
    assert row["values"][0] == -9


def test_a_record_is_handed_over_once_and_whole(writer: RingWriter) -> None:
    site = writer.ring.tap_table.string("train.py:12 main")
    group = writer.group("3", 2, 1, ranks=[4, 6], axis="tp")
    writer.collective(
        group, 7, 1000, 3000, op="alltoall_base_", values=(6, 8, 1, 5, 2, 4), n_dims=2, n_send=2, n_recv=2,
        call_site=site, step=9, microbatch=2, stage=3, phase=wire.Phase.BACKWARD, flags=wire.CollectiveFlag.UPPER_BOUND,
    )  # fmt: skip
    reader = RingReader(writer.path)
    (row,) = reader.poll(NOW).collectives
    record = reader.record(row)
    assert record.group == Group("3", "tp", 0, (4, 6), 2)
    assert (record.op, record.group_seq, record.dtype, record.reduce_op) == ("all_to_all_single", 7, "float32", "sum")
    assert (record.enqueue_ns, record.return_ns, record.complete_ns) == (1000, 1001, 3000)
    assert (record.wait_begin_ns, record.wait_end_ns) == (None, None)
    assert (record.shape, record.send_splits, record.recv_splits) == ((6, 8), (1, 5), (2, 4))
    assert (record.call_site, record.step, record.microbatch, record.stage) == ("train.py:12 main", 9, 2, 2)
    assert (record.phase, record.rank) == ("backward", 1)
    assert seqs(reader) == []


def test_an_unpublished_slot_holds_back_what_follows(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    writer.collective(group, 0, 1000, 2000)
    torn = writer.collective(group, 1, 1000, 2000, publish=False)
    writer.collective(group, 2, 1000, 2000)
    assert seqs(reader) == [0]
    assert reader.counts() == Counts(3, 1, 0)
    writer.publish(torn)
    assert seqs(reader) == [1, 2]
    assert reader.counts() == Counts(3, 3, 0)


def test_what_a_dead_writer_left_half_written_is_given_up_and_counted(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    writer.collective(group, 0, 1000, 2000, publish=False)
    writer.collective(group, 1, 1000, 2000)
    assert seqs(reader) == []
    assert seqs(reader, final=True) == [1]
    assert reader.counts() == Counts(2, 1, 1)


def test_a_slot_that_is_overwritten_during_the_copy_is_not_used(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    writer.collective(group, 0, 1000, 2000)
    tickets = reader.collectives._tickets

    class Changed:
        """The tickets after the copy: the writer has begun to fill the slot again."""

        def __getitem__(self, place: slice) -> np.ndarray:
            return np.zeros_like(tickets[place])

    reader.collectives._tickets = Changed()  # type: ignore[assignment]
    assert seqs(reader) == []
    reader.collectives._tickets = tickets
    assert reader.collectives.lost_slots == 1
    assert reader.counts() == Counts(1, 0, 1)


@pytest.mark.parametrize("overrun", [9, 17, 100])
def test_overwritten_records_are_counted_exactly(writer: RingWriter, overrun: int) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    writer.collective(group, 0, 1000, 2000)
    assert seqs(reader) == [0]
    for seq in range(1, overrun + 1):
        writer.collective(group, seq, 1000, 2000)
    assert seqs(reader) == list(range(overrun - 7, overrun + 1))
    assert reader.counts() == Counts(overrun + 1, 9, overrun - 8)


@pytest.mark.parametrize("first", range(8))
def test_continuation_slots_at_every_place_of_the_ring(writer: RingWriter, first: int) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    for seq in range(first):
        writer.collective(group, seq, 1000, 2000)
    assert len(seqs(reader)) == first
    splits = tuple(range(1, 17 + 40))  # two continuation slots
    writer.collective(group, first, 1000, 2000, op="alltoall_base_", values=splits, n_send=28, n_recv=28)
    writer.collective(group, first + 1, 1000, 2000)
    assert seqs(reader) == [first, first + 1]
    ((_, rest),) = reader.collectives.extras.items()
    assert rest[:40].tolist() == list(range(17, 57))
    assert reader.counts() == Counts(first + 2, first + 2, 0)


def test_orphaned_continuation_slots_are_no_records(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    splits = tuple(range(17 + 90))  # three continuation slots
    writer.collective(group, 0, 1000, 2000, op="alltoall_base_", values=splits, n_send=50, n_recv=57)
    for seq in range(1, 7):  # overwrites the head and one continuation of the first
        writer.collective(group, seq, 1000, 2000)
    assert seqs(reader) == [1, 2, 3, 4, 5, 6]
    assert reader.counts() == Counts(7, 6, 1)


def test_late_completion(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    ticket = writer.collective(group, 0, 1000)
    assert seqs(reader) == []
    assert reader.open_rows["group_seq"].tolist() == [0]
    writer.complete(ticket, 5000)
    assert seqs(reader) == [0]
    assert len(reader.open_rows) == 0


def test_an_asynchronous_operation_is_settled_by_its_wait_or_after_a_while(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    waited = writer.collective(group, 0, 1000, 2000, flags=wire.CollectiveFlag.ASYNC)
    writer.collective(group, 1, 1000, NOW - 10, flags=wire.CollectiveFlag.ASYNC)
    assert seqs(reader, NOW - 5) == [0]  # complete long ago
    assert seqs(reader, NOW) == []
    assert seqs(reader, NOW + WAIT_GRACE_NS) == [1]
    waited = writer.collective(group, 2, 1000, NOW, flags=wire.CollectiveFlag.ASYNC)
    assert seqs(reader) == []
    writer.complete(waited, NOW, wait_begin_ns=NOW + 5, wait_end_ns=NOW + 6)
    assert seqs(reader) == [2]


def test_a_synchronous_operation_that_is_waited_for_is_open(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    ticket = writer.collective(group, 0, 1000, NOW - 10, wait_begin_ns=1500)
    assert seqs(reader) == []
    writer.complete(ticket, NOW - 10, wait_end_ns=NOW - 9)
    assert seqs(reader) == [0]


def test_an_open_record_whose_slot_is_overwritten_is_handed_over_unfinished(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    writer.collective(group, 0, 1000)
    assert seqs(reader) == []
    for seq in range(1, 9):
        writer.collective(group, seq, 1000, 2000)
    batch = reader.poll(NOW).collectives
    assert batch["group_seq"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert batch["complete_ns"].tolist() == [0] + [2000] * 8
    assert reader.counts() == Counts(9, 9, 0)


def test_failed_operations_do_not_stay_open(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    writer.collective(group, 0, 1000, flags=wire.CollectiveFlag.FAILED, return_ns=0)
    assert seqs(reader) == [0]


def test_an_operation_that_only_a_wait_can_see_complete(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    reader = RingReader(writer.path)
    waited = writer.collective(group, 0, NOW, flags=wire.CollectiveFlag.NO_COMPLETION)
    writer.collective(group, 1, NOW, flags=wire.CollectiveFlag.NO_COMPLETION | wire.CollectiveFlag.ASYNC)
    assert seqs(reader, NOW) == []
    writer.complete(waited, NOW + 5, wait_begin_ns=NOW + 2, wait_end_ns=NOW + 5, flags=wire.CollectiveFlag.UPPER_BOUND)
    assert seqs(reader, NOW) == [0]
    assert seqs(reader, NOW + WAIT_PATIENCE_NS) == []
    assert seqs(reader, NOW + WAIT_PATIENCE_NS + SECOND) == [1]


def test_events_with_continuation_and_open_spans(writer: RingWriter) -> None:
    reader = RingReader(writer.path)
    name = writer.ring.hooks_table.string("no compiler")
    tokens = tuple(float(n) for n in range(20))
    writer.ring.events.write(wire.EventKind.EXPERTS, 5, 6, step=3, layer=2, values=tokens)
    span = writer.ring.events.write(wire.EventKind.PHASE, 7, 0, code=wire.Phase.DATA, name=name)
    batch = reader.poll(NOW)
    (event,) = [reader.event(row, batch.event_extras) for row in batch.events]
    assert (event.kind, event.values, event.layer, event.step) == ("experts", tokens, 2, 3)
    assert writer.ring.events.close(span, 9)
    batch = reader.poll(NOW)
    (event,) = [reader.event(row, batch.event_extras) for row in batch.events]
    assert (event.kind, event.end_ns, event.name) == ("phase", 9, "no compiler")
    for _ in range(9):
        writer.ring.events.write(wire.EventKind.NOTE, 1, 1)
    assert len(reader.poll(NOW).events) == 4
    assert reader.counts("events") == Counts(11, 6, 5)


def test_groups_follow_the_latest_word_about_them(writer: RingWriter) -> None:
    writer.group("0", 2, 1, description="default_pg")
    writer.group("5", 1, 0, description="mesh_dp")
    writer.group("7", 1, 0, ranks=[1], axis="", description="undefined", first_use_ns=50)
    reader = RingReader(writer.path)
    reader.poll(NOW)
    assert [group.axis for group in reader.groups] == ["world", "dp", "group"]
    assert [group.ranks for group in reader.groups] == [(0, 1), (), (1,)]
    writer.ring.hooks_table.group_made(60, [1], "7", "ep")  # named after its first use
    writer.group("7", 2, 1, ranks=[1, 0], axis="cp", incarnation=1, first_use_ns=99)  # a new group of the same name
    reader.poll(NOW)
    assert reader.groups[2] == Group("7", "ep", 0, (1,), 1)
    assert reader.groups[3] == Group("7", "cp", 1, (1, 0), 2)


def test_what_is_not_a_ring_is_refused_in_words(tmp_path: Path) -> None:
    small = tmp_path / "1-1.ring"
    small.write_bytes(b"x" * 100)
    with pytest.raises(RingError, match="100 bytes are less than a ring header"):
        RingReader(small)
    foreign = tmp_path / "2-2.ring"
    foreign.write_bytes(b"\x7fELF" + b"\0" * 8000)
    with pytest.raises(RingError, match="not a ring file"):
        RingReader(foreign)
    writer = RingWriter(tmp_path / "run", 0, 1, sizes=TINY)
    whole = writer.path.read_bytes()
    cut = tmp_path / "3-3.ring"
    cut.write_bytes(whole[: wire.HEADER_BYTES + 300])
    with pytest.raises(RingError, match="truncated: its collectives do not fit in 4396 bytes"):
        RingReader(cut)
    newer = bytearray(whole)
    put(newer, wire.HEADER, 0, "version", 99)
    other = tmp_path / "4-4.ring"
    other.write_bytes(newer)
    with pytest.raises(RingError, match="wire version 99, this agent reads 1"):
        RingReader(other)
    with pytest.raises(RingError, match="can't open it"):
        RingReader(tmp_path / "none.ring")


def test_process_state(tmp_path: Path) -> None:
    def stat(pid: int, state: str, ticks: int) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) {state} {'0 ' * 18}{ticks} 0 0\n")

    stat(10, "T", 77)
    assert process_state(10, 77, tmp_path) == "T"
    assert process_state(10, 78, tmp_path) is None  # the pid belongs to another process now
    stat(10, "Z", 77)
    assert process_state(10, 77, tmp_path) is None
    assert process_state(11, 77, tmp_path) is None


def test_a_released_reader_keeps_what_it_knew(writer: RingWriter) -> None:
    group = writer.group("0", 2, 1)
    writer.collective(group, 0, 1000)
    reader = RingReader(writer.path)
    reader.poll(NOW, final=True)
    writer.path.unlink()
    reader.release()
    assert reader["rank"] == 1
    assert reader.counts() == Counts(1, 1, 0)
    assert reader.record(reader.open_rows[0]).complete_ns is None
