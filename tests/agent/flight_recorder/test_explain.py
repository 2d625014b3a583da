"""Verdicts on dumps with known answers: 12 small gloo faults and two of a 16-rank NCCL job, and on hostile files."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.flight_recorder import DumpError, explain
from ranksight.agent.flight_recorder.command import run

DATA = Path(__file__).parents[2] / "data" / "flight_recorder"

# What a dump can know. Gloo dumps say "retired" for complete and for failed alike and have no call sites, so a rank that
# ended, one that hangs outside of collectives and one that left out an equal call all "had not launched" the last one.
ANSWERS: dict[str, tuple[str | None, tuple[int, ...]]] = {
    "gloo/ok": (None, ()),
    "gloo/a2a_skew": (None, ()),
    "gloo/shape": ("collective_mismatch", (2,)),
    "gloo/gather_scalar": ("collective_mismatch", (0,)),
    "gloo/skip_diff_shape": ("collective_skipped", (1,)),
    "gloo/skip_same_shape": ("rank_not_joined", (1,)),
    "gloo/exhaust": ("rank_not_joined", (2,)),
    "gloo/exc_noexit": ("rank_not_joined", (2,)),
    "gloo/kill9": ("rank_dead", (2,)),
    "gloo/stop": ("rank_frozen", (2,)),
    "gloo/gil": ("pause", (2,)),
    "lock_gil_1st": ("rank_not_joined", (9, 14)),
    "gpu_error_2nd": ("rank_not_joined", (9, 14)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_known_answers(name: str) -> None:
    kind, ranks = ANSWERS[name]
    explanation = explain(DATA / name)
    finding = explanation.finding
    assert explanation.healthy == (kind is None)
    assert (finding.kind, finding.ranks) == (kind, ranks) if finding else kind is None


def test_nothing_is_said_where_the_dumps_hold_nothing() -> None:
    explanation = explain(DATA / "gloo/recv_recv")
    assert explanation.finding is None and not explanation.healthy
    assert "not recorded" in explanation.reason
    assert explanation.to_json()["abstained"] is True


@pytest.mark.parametrize("name", ["gloo/shape", "lock_gil_1st"])
def test_any_file_name_with_the_rank_in_it(name: str, tmp_path: Path) -> None:
    for file in (DATA / name).glob("*_*"):
        if file.name != "fault_injection.log":
            number = file.stem.rsplit("_", 1)[1]
            shutil.copy(file, tmp_path / f"nccl_trace_rank_container-node02_{number}")
    finding = explain(tmp_path).finding
    assert finding and (finding.kind, finding.ranks) == ANSWERS[name]


def test_json_and_pickle_say_the_same(tmp_path: Path) -> None:
    for file in (DATA / "gloo/shape").iterdir():
        (tmp_path / file.stem).write_bytes(pickle.dumps(json.loads(file.read_text())))
    finding = explain(tmp_path).finding
    assert finding and (finding.kind, finding.ranks) == ("collective_mismatch", (2,))


def test_a_missing_dump_does_not_hide_who_is_at_fault(tmp_path: Path) -> None:
    shutil.copytree(DATA / "lock_gil_1st", tmp_path, dirs_exist_ok=True)
    (tmp_path / "_dump_3").unlink()
    explanation = explain(tmp_path)
    assert explanation.finding and explanation.finding.ranks == (9, 14)
    assert explanation.to_json()["ranks_missing"] == [3]


def dump(rank: int, entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "rank": rank, "pg_config": config, "pg_status": {}, "entries": entries} | more


def entry(seq: int, op: str, sizes: list[list[int]], **more: Any) -> dict[str, Any]:
    return {
        "record_id": seq, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": f"nccl:{op}", "time_created_ns": 10**18 + seq, "input_sizes": sizes, "input_dtypes": ["Float"],
        "output_sizes": sizes, "state": "scheduled", "retired": False, "is_p2p": False,
    } | more  # fmt: skip


def write(folder: Path, dumps: list[dict[str, Any]]) -> Path:
    for number, content in enumerate(dumps):
        (folder / f"dump{number}.json").write_text(json.dumps(content))
    return folder


def test_the_call_site_is_the_innermost_frame_outside_of_torch(tmp_path: Path) -> None:
    frames = [
        {"name": "all_reduce", "filename": "/lib/torch/distributed/distributed_c10d.py", "line": 2},
        {"name": "train", "filename": "/job/train.py", "line": 40},
    ]
    late = entry(2, "all_reduce", [[4]], frames=frames)
    explanation = explain(write(tmp_path, [dump(0, [entry(1, "all_reduce", [[4]], state="completed"), late]),
                                           dump(1, [entry(1, "all_reduce", [[4]], state="completed")])]))  # fmt: skip
    assert explanation.finding and explanation.finding.ranks == (1,)
    assert explanation.finding.call_site == "/job/train.py:40 train"


def test_two_ranks_that_both_receive_first_are_a_cycle(tmp_path: Path) -> None:
    receives = [entry(1, f"recv {me}<-{1 - me}", [[4]], is_p2p=True, p2p_seq_id=1) for me in (0, 1)]
    explanation = explain(write(tmp_path, [dump(0, receives[:1]), dump(1, receives[1:])]))
    assert explanation.finding and (explanation.finding.kind, explanation.finding.ranks) == ("deadlock", (0, 1))


def test_all_joined_and_nothing_completes_names_no_rank(tmp_path: Path) -> None:
    explanation = explain(write(tmp_path, [dump(r, [entry(1, "all_reduce", [[4]])]) for r in (0, 1)]))
    assert explanation.finding and (explanation.finding.kind, explanation.finding.ranks) == ("collective_stuck", ())


def test_uneven_gathers_with_outputs_to_match_are_legal(tmp_path: Path) -> None:
    calls = [entry(1, "all_gather", [[4 + r]], output_sizes=[[4], [5]], state="completed") for r in (0, 1)]
    assert explain(write(tmp_path, [dump(r, [calls[r]]) for r in (0, 1)])).healthy


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "unknown version": (dump(0, [], version="3.0"), "version 3.0; this reader knows 2.x"),
    "fields of another shape": (dump(0, [{"record_id": 1}]), "fields are not as expected"),
    "no rank anywhere": ({key: value for key, value in dump(0, []).items() if key != "rank"}, "which rank wrote it"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_can_not_be_read_is_said(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    (tmp_path / "dump.json").write_text(json.dumps(content))
    with pytest.raises(DumpError, match=message):
        explain(tmp_path)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"version": "2.10", "entries": [_Evil()]}))
    with pytest.raises(DumpError, match="plain data only"):
        explain(tmp_path)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("raw", [b"", b"\x80\x05", b"{", b"not a dump", b"[]", b"\x80\x04K\x01."])
def test_other_files_are_no_dumps(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(raw)
    with pytest.raises(DumpError, match="no Flight Recorder dump"):
        explain(tmp_path)


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="both claim rank 0"):
        explain(write(tmp_path, [dump(0, []), dump(0, [])]))


def test_the_command_prints_text_or_json_and_says_what_it_could_not_read(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run(DATA / "gloo/kill9", out=out, err=err) == 0
    assert out.getvalue().startswith("rank_dead: Rank 2 wrote no dump") and "no dump of 2" in out.getvalue()
    out = io.StringIO()
    assert run(DATA / "gloo/ok", as_json=True, out=out, err=err) == 0
    assert json.loads(out.getvalue())["healthy"] is True
    assert run(tmp_path / "nowhere", out=out, err=err) == 2
    assert "no such file" in err.getvalue()
