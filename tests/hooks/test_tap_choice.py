"""Which tap is put in place, and what is said when it is not the one that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranksight.hooks import wire
from tests.support.jobs import run_ranks
from tests.support.slots import open_ring

pytestmark = pytest.mark.ranks

SCRIPT = """
import sys
from pathlib import Path
import torch
from ranksight.hooks import ring as rings
from ranksight.hooks import tap as taps
ring = rings.create(Path(sys.argv[1]), rings.Sizes(64, 16, 4096, 4096))
if "broken" in sys.argv:
    torch.library.Library = None
handle = taps.install(ring, sys.argv[2])
print(handle.kind.name, *handle.reasons, sep="\\n")
handle.set_detail(taps.wire.Detail.COUNTERS)
handle.forget_groups(None)
assert handle.drain(0.1)
handle.remove()
handle.remove()
print(ring["detail"])
"""


@pytest.mark.parametrize(
    ("prefer", "extra", "kind", "reasons"),
    [
        ("native", (), "PYTHON", ["no native tap: no C++ compiler (/nonexistent/cxx); install g++"]),
        ("native", ("broken",), "NONE", ["no native tap: no C++ compiler", "no Python tap: 'NoneType' object"]),
        ("none", (), "NONE", []),
        ("best", (), "PYTHON", ["no tap is called 'best'", "no native tap"]),
    ],
)
def test_choice(prefer: str, extra: tuple[str, ...], kind: str, reasons: list[str], tmp_path: Path) -> None:
    (end,) = run_ranks(SCRIPT, 1, {"CXX": "/nonexistent/cxx"}, args=(str(tmp_path), prefer, *extra))
    assert end.returncode == 0, end.stderr
    said_kind, *said, detail = end.stdout.splitlines()
    assert said_kind == kind
    assert len(said) == len(reasons)
    assert all(text.startswith(reason) for text, reason in zip(said, reasons, strict=True))
    assert int(detail) == wire.Detail.COUNTERS
    (path,) = tmp_path.glob("*.ring")
    ring = open_ring(path)
    assert ring["tap"] == wire.Tap[kind]
    assert ring["events_count"] == len(reasons)  # each is a NOTE too
    assert ring["tap_errors"] == 0
