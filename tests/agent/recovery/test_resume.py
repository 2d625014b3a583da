"""`ranksight resume` refuses what is no longer as the plan says, and knows a fault that comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ranksight.agent import files
from ranksight.agent.recovery.resume import ResumeRefused, prepare, ranks_of, repeated
from tests.support.checkpoints import publish

COMMAND = ["torchrun", "--nproc-per-node", "2", "train.py"]


def evidence(kind: str = "nonfinite", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "call_site": None, "first_step": None, "ranks": [], **more}


@pytest.fixture
def planned(tmp_path: Path) -> dict[str, Any]:
    path = publish(tmp_path / "checkpoints", 7)
    return {
        "run": {"hosts": ["a"], "world_size": 2},
        "excluded": {"hosts": [], "ranks": []},
        "command": COMMAND,
        "checkpoint": {"path": str(path), "step": 7, "cursor": 112, "layout": {"pp": 2, "dp": 1, "tp": 1}},
        "evidence": [evidence()],
    }


def ready(folder: Path, planned: dict[str, Any], **more: Any) -> Any:
    files.write_json(folder / "recovery.json", planned)
    return prepare(folder, more.pop("command", ()), host="a", **more)


def test_a_sound_plan_is_carried_out_in_a_directory_of_its_own(tmp_path: Path, planned: dict[str, Any]) -> None:
    plan = ready(tmp_path, planned)
    assert (plan.command, plan.run_dir) == (tuple(COMMAND), tmp_path / "resumed-1")
    assert plan.expected == {"step": 7, "cursor": 112, "path": planned["checkpoint"]["path"]}
    plan.run_dir.mkdir()
    assert ready(tmp_path, planned).run_dir == tmp_path / "resumed-2"
    assert ready(tmp_path, planned, command=["other"]).command == ("other",)


def test_a_checkpoint_that_was_changed_since_is_refused(tmp_path: Path, planned: dict[str, Any]) -> None:
    shard = Path(planned["checkpoint"]["path"]) / "shard"
    shard.write_bytes(shard.read_bytes().replace(b"7", b"8"))
    with pytest.raises(ResumeRefused, match="shard differ from the manifest"):
        ready(tmp_path, planned)
    planned["checkpoint"]["path"] += "-gone"
    with pytest.raises(ResumeRefused, match="is gone"):
        ready(tmp_path, planned)


def test_another_number_of_ranks_must_be_wanted(tmp_path: Path, planned: dict[str, Any]) -> None:
    planned["command"] = ["torchrun", "--nproc_per_node=4", "train.py"]
    with pytest.raises(ResumeRefused, match="was written by 2 ranks, the command starts 4"):
        ready(tmp_path, planned)
    assert ready(tmp_path, planned, another_layout=True).command[1] == "--nproc_per_node=4"


def test_secrets_missing_commands_and_excluded_hosts_are_refused(tmp_path: Path, planned: dict[str, Any]) -> None:
    with pytest.raises(ResumeRefused, match="give it whole"):
        ready(tmp_path, planned | {"command": ["train", "--token", "<redacted>"]})
    with pytest.raises(ResumeRefused, match="the plan has no command"):
        ready(tmp_path, planned | {"command": []})
    out = planned | {"excluded": {"hosts": ["a"], "ranks": [0]}, "run": {"hosts": ["a", "b"], "world_size": 2}}
    with pytest.raises(ResumeRefused, match="leaves out this host, a"):
        ready(tmp_path, out)


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nproc-per-node 4 --nnodes 2 t.py", 8),
        ("torchrun --nproc_per_node=4 t.py", 4),
        ("torchrun --nproc-per-node gpu t.py", None),
        ("torchrun --nproc-per-node 4 --nnodes 1:2 t.py", None),
        ("python t.py", None),
    ],
)
def test_the_ranks_of_a_launcher(command: str, ranks: int | None) -> None:
    assert ranks_of(command.split()) == ranks


AT_LINE = {"kind": "deadlock", "call_site": "a.py:1 f"}


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (evidence(first_step=6), evidence(first_step=6), True),
        (evidence(first_step=6), evidence(first_step=9), False),
        (evidence(first_step=6), evidence("divergence", first_step=6), False),
        (evidence(**AT_LINE, first_step=3), evidence(**AT_LINE, first_step=9), True),
        (evidence("rank_dead", ranks=[1]), evidence("rank_dead", ranks=[2]), False),
        (evidence("rank_dead", ranks=[1]), evidence("rank_dead", ranks=[1]), True),
    ],
)
def test_the_same_fault_at_the_same_place_is_known_again(before: Any, after: Any, same: bool) -> None:
    said = repeated({"evidence": [before]}, {"evidence": [after]})
    assert (said is not None) is same
    assert said is None or said.startswith(f"{after['kind']} came back at the same place")
