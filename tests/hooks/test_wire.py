"""The wire format: no overlap, aligned fields, stable bytes, one C++ header."""

import hashlib
import struct

import pytest

from ranksight.hooks import wire

LAYOUTS = (wire.HEADER, wire.COLLECTIVE, wire.EVENT)

# Changing an offset, type or meaning of the bytes needs a new VERSION and new digests.
GOLDEN = {"header": "e699ef40c015e9f0", "collective": "cf1795734fd714e1", "event": "152426998278e0df"}


def shape_of(layout: wire.Layout) -> str:
    """Everything about a layout that decides the bytes."""
    return f"{wire.VERSION} {layout.size} " + " ".join(f"{f.name}:{f.code}{f.count}@{f.offset}" for f in layout.fields)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_fields_are_aligned_and_do_not_overlap(layout: wire.Layout) -> None:
    end = 0
    for field in layout.fields:
        assert field.offset >= end, f"{field.name} overlaps the field before it"
        if field.count == 1:
            assert field.offset % struct.calcsize(field.code) == 0, f"{field.name} is not aligned"
        end = field.end
    assert end <= layout.size


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_layout_is_the_published_one(layout: wire.Layout) -> None:
    digest = hashlib.sha256(shape_of(layout).encode()).hexdigest()[:16]
    assert digest == GOLDEN[layout.name]


def test_c_header_states_every_offset() -> None:
    header = wire.c_header()
    for layout in LAYOUTS:
        for field in layout.fields:
            assert f"{layout.name.upper()}_{field.name} = {field.offset};" in header
    for name, _ in wire.OPS:
        assert f'"{name}"' in header


def test_every_dispatcher_op_has_one_code() -> None:
    assert len(set(wire.OP_CODES.values())) == len(wire.OPS)
    assert {wire.OP_NAMES[code] for code in wire.P2P_OPS} == {"send", "recv", "recv_any_source"}
