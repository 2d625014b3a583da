"""Ranks end as they would without a tap: a few tries of each awkward end. `tests/bench/exit_codes.py` makes many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs import run_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

TRIES, ENOUGH = 8, 1
# What a bare run gives, but for a SIGABRT of torch's own (pytorch/pytorch#190489), in up to 3 of 8 tries when loaded, which
# must not become the rule. Future callbacks into Python that nobody waits for abort in every try.
# `last_is_backward` is not here: a bare torch aborts in up to half of its tries.
CODES = {
    "in_flight": [0, 0],
    "in_flight_destroyed": [0, 0],
    "destroyed": [0, 0],
    "dead_peer": [0, -9],
    "exception": [7, 1],
}


@pytest.mark.parametrize("mode", ["native", "python"])
@pytest.mark.parametrize("case", list(CODES))
def test_exit_code_is_kept(mode: str, case: str, tmp_path: Path) -> None:
    seen: list[list[int]] = []
    while len(seen) < TRIES and seen.count(CODES[case]) < ENOUGH:
        ends = run_ranks(Path(__file__).with_name("exits.py"), 2, args=(mode, str(tmp_path), case))
        seen.append([end.returncode for end in ends])
        assert all(code in {expected, -6} for code, expected in zip(seen[-1], CODES[case], strict=True)), ends
    assert seen.count(CODES[case]) == ENOUGH, seen
