"""Both taps against the backend's own count, and against a bare run: nothing missed, nothing changed.

The battery runs once per mode. Its truth is what gloo starts, counted in C++ inside the backend. Where gloo makes
several operations of one call, or none because it refused the call, that is written down here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import run_ranks

pytestmark = pytest.mark.ranks

SIZE = 4
MODES = ("none", "native", "python")
Results = dict[tuple[str, int], dict[str, Any]]

# What gloo starts for one call, by its own names; one all_reduce for each tensor of a coalesced reduce_scatter.
DECOMPOSITION: dict[str, Callable[[int], dict[str, int]]] = {
    "all_gather_into_tensor": lambda rank: {"all_gather": 1},
    "all_gather_coalesced": lambda rank: {"all_gather": 1},
    "all_gather_into_tensor_coalesced": lambda rank: {"all_gather": 1},
    "all_reduce_coalesced": lambda rank: {"all_reduce": 1},
    "all_to_all_single": lambda rank: {"all_to_all": 1},
    "recv_any_source": lambda rank: {"recvAnySource": 1},
    "reduce_scatter": lambda rank: {"all_reduce": SIZE},
    "reduce_scatter_tensor": lambda rank: {"all_reduce": 1},
    "reduce_scatter_tensor_coalesced": lambda rank: {"all_reduce": 1},
    "monitored_barrier": lambda rank: {"send": SIZE - 1, "recv": SIZE - 1} if rank == 0 else {"send": 1, "recv": 1},
}
# Sections whose calls do not end up as the table says.
EXCEPTIONS: dict[str, Callable[[int], dict[str, int]]] = {
    "coalesced": lambda rank: {"all_reduce": 3 + 2, "all_gather": 2},  # the reduce_scatter holds two tensors
    "sparse": lambda rank: {"sparse_all_reduce": 1},
    "wrong_size": lambda rank: {},  # refused before anything starts
    "barrier_times_out": lambda rank: {"recv": 1} if rank == 0 else {},  # the other one never came
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("battery")
    found: Results = {}
    for mode in MODES:
        ends = run_ranks(Path(__file__).with_name("battery.py"), SIZE, timeout=300, args=(mode, str(folder)))
        assert [end.returncode for end in ends] == [0] * SIZE, "\n".join(end.stderr[-3000:] for end in ends)
        for rank in range(SIZE):
            found[mode, rank] = json.loads((folder / f"{mode}-{rank}.json").read_text())
    return found


@pytest.mark.parametrize("mode", ["native", "python"])
def test_tap_counts_what_the_backend_started(results: Results, mode: str) -> None:
    wrong = []
    for rank in range(SIZE):
        for name, section in results[mode, rank].items():
            if name == "tap":
                continue
            expected: Counter[str] = Counter()
            for op, count in section["tap"].items():
                for _ in range(count):
                    expected.update(DECOMPOSITION.get(op, lambda _, op=op: {op: 1})(rank))
            if name in EXCEPTIONS:
                expected = Counter(EXCEPTIONS[name](rank))
            if expected != Counter(section["backend"]):
                wrong.append((rank, name, section["tap"], section["backend"]))
    assert wrong == []


def test_battery_is_not_empty(results: Results) -> None:
    ops = sum((Counter(section["tap"]) for name, section in results["native", 0].items() if name != "tap"), Counter())
    assert len(ops) >= 19, ops  # of 20: `recv_any_source` and `recv` differ by rank
    assert sum(ops.values()) > 150


def test_sections_record_the_same_ops_in_both_taps(results: Results) -> None:
    for rank in range(SIZE):
        native, python = results["native", rank], results["python", rank]
        assert {name: part["tap"] for name, part in native.items() if name != "tap"} == {
            name: part["tap"] for name, part in python.items() if name != "tap"
        }


@pytest.mark.parametrize("mode", ["native", "python"])
@pytest.mark.parametrize("what", ["digest", "error", "backend"])
def test_tap_changes_nothing(results: Results, mode: str, what: str) -> None:
    for rank in range(SIZE):
        bare, tapped = results["none", rank], results[mode, rank]
        for name, section in bare.items():
            if name != "tap":
                assert tapped[name][what] == section[what], (rank, name)


def test_failures_that_are_compared_did_happen(results: Results) -> None:
    failed = {name: part["error"] for name, part in results["none", 0].items() if name != "tap" and part["error"]}
    assert set(failed) == {"op_refused_by_the_worker", "wrong_size", "recv_times_out", "barrier_times_out"}
    assert "Timed out waiting" in failed["recv_times_out"]


@pytest.mark.parametrize("mode", ["native", "python"])
def test_tap_had_no_errors_of_its_own(results: Results, mode: str) -> None:
    for rank in range(SIZE):
        assert results[mode, rank]["tap"] == {"tap_errors": 0, "late_completions": 0, "collectives_skipped": 0}
