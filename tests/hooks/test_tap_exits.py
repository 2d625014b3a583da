"""Ranks end as they would without a tap: a few tries of each awkward end. `tests/bench/exit_codes.py` makes many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs import run_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

TRIES = 2
# What a bare run gives every time. `last_is_backward` is not here: a bare torch aborts in about half of its tries.
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
    for _ in range(TRIES):
        ends = run_ranks(Path(__file__).with_name("exits.py"), 2, args=(mode, str(tmp_path), case))
        assert [end.returncode for end in ends] == CODES[case], ends[0].stderr + ends[1].stderr
