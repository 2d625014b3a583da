"""What both taps write for each kind of call, on a fake backend: fields, sequences, groups, call sites, detail levels."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranksight.hooks import traits, wire
from ranksight.hooks.ring import Ring
from tests.support.jobs import Finished, run_ranks
from tests.support.slots import Slot, groups, open_ring, slots, strings

pytestmark = pytest.mark.ranks

FLOAT, DOUBLE, BFLOAT16 = (wire.DTYPES.index(name) for name in ("float32", "float64", "bfloat16"))
Run = tuple[str, Finished, Ring]


@pytest.fixture(scope="module", params=["native", "python"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    mode: str = request.param
    folder = tmp_path_factory.mktemp(mode)
    script = Path(__file__).with_name("tap_script.py")
    (end,) = run_ranks(script, 1, timeout=300, args=(mode, str(folder)))
    assert end.returncode == 0, end.stderr
    (path,) = folder.glob("*.ring")
    return mode, end, open_ring(path)


def of_step(run: Run, step: int) -> list[Slot]:
    return [slot for slot in slots(run[2]) if slot["step"] == step]


def test_all_reduce(run: Run) -> None:
    mode, _, _ = run
    first, second = of_step(run, 7)
    maximum = wire.REDUCE_OPS.index("max") if mode == "native" else wire.NONE_BYTE  # opaque to the Python tap
    expected = {
        "op": "all_reduce", "shape": [2, 3], "numel": 6, "bytes": 24, "dtype": FLOAT, "peer": -1, "tag": 0,
        "microbatch": 3, "stage": 2, "phase": wire.Phase.BACKWARD, "group": 1, "group_seq": 0, "flags": 0,
        "reduce_op": maximum, "fingerprint": traits.fingerprint(1, maximum, -1, FLOAT, 6),
        "send_splits": [], "recv_splits": [], "n_extra": 0,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert second["group_seq"] == 1
    assert second["dtype"] == BFLOAT16
    assert second["bytes"] == 10
    assert second["flags"] == wire.CollectiveFlag.ASYNC
    assert second["fingerprint"] != first["fingerprint"]


def test_times_are_in_order(run: Run) -> None:
    for slot in of_step(run, 7):
        assert 0 < slot["enqueue_ns"] <= slot["return_ns"]
        assert slot["enqueue_ns"] <= slot["complete_ns"]


def test_call_site_is_the_users_line(run: Run) -> None:
    texts = strings(run[2])
    source = Path(__file__).with_name("tap_script.py").read_text().splitlines()
    for slot, function in zip(of_step(run, 7), ("issue_all_reduce", "Model.forward"), strict=True):
        place, _, name = texts[slot["call_site"]].rpartition(" ")
        path, _, line = place.rpartition(":")
        assert Path(path).name == "tap_script.py"
        assert name == function
        assert "all_reduce" in source[int(line) - 1]


def test_call_site_of_generated_code_and_foreign_letters(run: Run) -> None:
    (slot,) = of_step(run, 12)[:1]
    assert strings(run[2])[slot["call_site"]] == "/tmp/gr\u00fc\u00df\u4f60.py:2 from_text"


def test_bytes_are_the_total_over_the_group(run: Run) -> None:
    by_op = {slot["op"]: slot for slot in of_step(run, 8)}
    assert {op: (slot["bytes"], slot["numel"], slot["peer"]) for op, slot in by_op.items()} == {
        "broadcast": (16, 4, 2),
        "all_gather_into_tensor": (96, 24, -1),
        "reduce_scatter_tensor": (96, 24, -1),
        "gather": (8 * 40, 5, 0),
        "scatter": (8 * 20, 5, 0),
        "all_gather": (128, 32, -1),
        "barrier": (0, 0, -1),
    }
    assert by_op["gather"]["dtype"] == DOUBLE
    assert by_op["barrier"]["dtype"] == wire.NONE_BYTE
    assert len({slot["fingerprint"] for slot in by_op.values()}) == 7


def test_splits_go_on_in_the_next_slots(run: Run) -> None:
    uneven, even, huge = of_step(run, 9)
    assert uneven["shape"] == [36, 2]
    assert uneven["send_splits"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert uneven["recv_splits"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert (uneven["n_extra"], uneven["fingerprint"], uneven["bytes"]) == (1, 0, 36 * 2 * 4)
    assert (even["send_splits"], even["recv_splits"], even["n_extra"]) == ([], [], 0)
    room = 16 + 128 * wire.COLLECTIVE_EXTRA_VALUES
    assert huge["flags"] == wire.CollectiveFlag.TRUNCATED | wire.CollectiveFlag.FAILED
    assert huge["shape"] == [1]
    assert huge["send_splits"] == [1] * 3000
    assert huge["recv_splits"] == [1] * (room - 1 - 3000)


def test_messages_count_by_peer_direction_and_tag(run: Run) -> None:
    assert [(s["op"], s["peer"], s["tag"], s["group_seq"], s["fingerprint"]) for s in of_step(run, 10)] == [
        ("send", 3, 0, 0, 0),
        ("send", 3, 0, 1, 0),
        ("send", 3, 5, 0, 0),
        ("send", 4, 0, 0, 0),
        ("recv", 3, 0, 0, 0),
        ("send", 3, 5, 1, 0),
    ]


def test_groups_have_their_own_sequence_and_incarnation(run: Run) -> None:
    world, three, again = groups(run[2])[:3]
    assert world == ("0", "default_pg", 8, 0, 0)
    assert three[1:] == ("three", 3, 0, 0)
    assert again == (*three[:4], 1)
    sequence = [(slot["group"], slot["group_seq"]) for slot in of_step(run, 11)]
    assert sequence[:3] == [(2, 0), (2, 1), (3, 0)]
    assert sequence[3][0] == 1


def test_meta_tensors_and_forked_children_leave_nothing(run: Run) -> None:
    assert len(of_step(run, 12)) == 1  # the call of from_text


def test_detail_levels_keep_the_sequence(run: Run) -> None:
    _, end, _ = run
    counts = {line.split()[0]: line.split()[1:] for line in end.stdout.splitlines()}
    full, skipped = map(int, counts["full"])
    assert skipped == 0
    sampled = of_step(run, 13)
    assert len(sampled) == 4
    assert all(slot["group_seq"] % traits.SAMPLE_EVERY == 0 for slot in sampled)
    assert list(map(int, counts["end"])) == [full + 4 + 1, 40 + 60]
    (last,) = of_step(run, 14)
    world = [slot for slot in slots(run[2]) if slot["group"] == last["group"] and slot["op"] not in {"send", "recv"}]
    before = max(slot["group_seq"] for slot in world if slot["step"] <= 12)
    assert last["group_seq"] == before + 40 + 64 + 1


def test_removed_tap_is_gone_and_can_come_back(run: Run) -> None:
    _, end, ring = run
    lines = end.stdout.splitlines()
    count, skipped = lines[1].split()[1:]
    assert lines[2] == f"removed {count} {skipped} True"
    assert lines[3] == f"again {int(count) + 1} errors 0"
    (slot,) = of_step(run, 15)
    assert groups(ring)[slot["group"] - 1][0] == "0"
    assert slot["group_seq"] == 0


def test_fingerprints_are_pinned() -> None:
    assert traits.fingerprint(1, 0, -1, 6, 12) == 15465187290343315190
    assert traits.fingerprint(2, 255, 0, 6, 12) == 10579822924700909152
