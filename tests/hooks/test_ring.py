"""The ring file from the writer's side: header, events, tables, permissions, no room."""

import errno
import os
import stat
from pathlib import Path

import pytest

from ranksight.hooks import ring as ring_module
from ranksight.hooks import wire
from ranksight.hooks.ring import Ring, Sizes, create

SMALL = Sizes(collectives=8, events=4, tap_table=4096, hooks_table=4096)


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return create(tmp_path / "run", SMALL, generation=2)


def event_at(ring: Ring, index: int) -> bytes:
    at = ring["events_offset"] + index % ring["events_slots"] * wire.EVENT.size
    return ring.buffer[at : at + wire.EVENT.size]


def test_header_names_the_process_and_the_unknown_is_not_zero(ring: Ring) -> None:
    assert ring.buffer[:8] == wire.MAGIC
    assert (ring["version"], ring["pid"], ring["generation"]) == (wire.VERSION, os.getpid(), 2)
    assert (ring["rank"], ring["world_size"], ring["local_rank"]) == (-1, -1, -1)
    assert (ring["step"], ring["stop_after_step"], ring["stopped_after_step"]) == (-1, -1, -1)
    assert ring.path.name == f"{os.getpid()}-{ring['start_ticks']}.ring"


def test_file_and_folder_are_private_and_of_the_promised_size(ring: Ring) -> None:
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ring.path.parent.stat().st_mode) == 0o700
    assert ring.path.stat().st_size == SMALL.total
    assert list(ring.path.parent.iterdir()) == [ring.path]


def test_event_bytes(ring: Ring) -> None:
    ticket = ring.events.write(
        wire.EventKind.EXPERTS, 1000, 2000, step=7, code=3, name=5, microbatch=1, stage=2, layer=4, values=(1.5, 2.5)
    )
    slot = event_at(ring, 0)
    fields = {f.name: f.packer.unpack_from(slot, f.offset) for f in wire.EVENT.fields}
    assert ticket == 1
    assert fields["values"] == (1.5, 2.5, 0, 0, 0, 0, 0, 0)
    assert {name: value[0] for name, value in fields.items() if name not in {"values", "thread"}} == {
        "ticket": 1, "begin_ns": 1000, "end_ns": 2000, "step": 7, "kind": wire.EventKind.EXPERTS, "code": 3, "name": 5,
        "microbatch": 1, "stage": 2, "layer": 4, "n_values": 2, "n_extra": 0, "flags": 0,
    }  # fmt: skip


def test_many_values_take_continuation_slots(ring: Ring) -> None:
    values = tuple(float(n) for n in range(8 + 15 + 2))
    ring.events.write(wire.EventKind.EXPERTS, 1, 1, values=values)
    assert ring["events_head"] == 3
    assert ring["events_count"] == 1
    head = event_at(ring, 0)
    assert wire.EVENT["n_extra"].packer.unpack_from(head, wire.EVENT["n_extra"].offset)[0] == 2
    second = event_at(ring, 2)
    assert int.from_bytes(second[:8], "little") == 3
    assert memoryview(second[8:24]).cast("d").tolist() == [23.0, 24.0]


def test_open_span_is_closed_in_place_unless_overwritten(ring: Ring) -> None:
    ticket = ring.events.write(wire.EventKind.PHASE, 10, 0)
    assert ring.events.close(ticket, 30)
    assert wire.EVENT["end_ns"].packer.unpack_from(event_at(ring, 0), wire.EVENT["end_ns"].offset)[0] == 30
    for _ in range(SMALL.events):
        ring.events.write(wire.EventKind.NOTE, 1, 1)
    assert not ring.events.close(ticket, 99)
    assert wire.EVENT["end_ns"].packer.unpack_from(event_at(ring, 0), wire.EVENT["end_ns"].offset)[0] == 1


def test_table_numbers_strings_once_and_refuses_when_full(ring: Ring) -> None:
    assert ring.hooks_table.string("a/train.py:3 main") == 1
    assert ring.hooks_table.string("") == 0
    assert ring.hooks_table.string("other") == 2
    assert ring.hooks_table.string("a/train.py:3 main") == 1
    used = ring["hooks_table_used"]
    assert ring.hooks_table.string("x" * 4090) == 0
    assert ring["hooks_table_used"] == used


def test_group_entry_bytes(ring: Ring) -> None:
    assert ring.hooks_table.group_made(99, [4, 6], "7", "tp") == 1
    at = ring["hooks_table_offset"]
    length, kind, _ = wire.TABLE_ENTRY.unpack_from(ring.buffer, at)
    payload = ring.buffer[at + wire.TABLE_ENTRY.size : at + wire.TABLE_ENTRY.size + length]
    assert kind == wire.TableKind.GROUP_MADE
    assert wire.GROUP_MADE.unpack_from(payload) == (99, 2)
    assert payload[wire.GROUP_MADE.size :] == b"\4\0\0\0\6\0\0\0" + b"7\0tp"


def test_a_full_file_system_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match="No space left"):
        create(tmp_path / "run", SMALL)
    assert list((tmp_path / "run").iterdir()) == []


def test_default_directory_follows_the_environment() -> None:
    assert ring_module.default_directory(environ={"RANKSIGHT_RING_DIR": "/x/y"}) == Path("/x/y")
    named = ring_module.default_directory(environ={"RANKSIGHT_RUN_ID": "a/b"})
    assert named.name == "a_b"
    assert named.parent.name == f"ranksight-{os.getuid()}"
