"""The plan: the newest checkpoint that is whole and older than the evidence, and everything that is left open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.recovery import plan
from ranksight.agent.recovery.checkpoints import Checkpoint, State
from ranksight.agent.recovery.command import resuming
from ranksight.agent.recovery.corruption import since, suspect_steps
from ranksight.agent.recovery.facts import RunFacts
from ranksight.agent.recovery.page import page

TRAINER = ("torchrun", "--nproc-per-node", "2", "-m", "ranksight.trainer", "--dp", "2")


def finding(kind: str, severity: Severity = Severity.CRITICAL, **more: Any) -> Finding:
    return Finding(kind=kind, severity=severity, message=f"{kind} it is.", advice="", **more)


def checkpoint(step: int, state: State = State.SOUND) -> Checkpoint:
    return Checkpoint(Path(f"/c/step-{step:08d}"), step, state, "" if state is State.SOUND else "why not", {"cursor": 16 * step})


def facts(**more: Any) -> RunFacts:
    known: dict[str, Any] = {
        "run_id": "r1", "exit_code": 1, "stopped": False, "command": TRAINER, "directory": "/job", "world_size": 2,
        "hosts": ("a",), "cursors": {step: 16 * step for step in range(9)},
    }  # fmt: skip
    return RunFacts(**(known | more))


NAN = finding("nonfinite", first_step=6, last_step=9, ranks=(1,))


@pytest.mark.parametrize(
    ("found", "good", "tainted"),
    [
        ([2, 4, 6, 8], 6, [8]),  # after 6 steps: steps 0 to 5, and the fault was seen in step 6
        ([7, 8], None, [7, 8]),
        ([4], 4, []),
        ([], None, []),
    ],
)
def test_a_checkpoint_is_good_when_it_was_written_before_the_evidence(
    found: list[int], good: int | None, tainted: list[int]
) -> None:
    made = plan.make([NAN], [checkpoint(step) for step in found], facts()).to_json()
    assert (made["checkpoint"] or {}).get("step") == good
    assert [item["step"] for item in made["tainted"]] == tainted
    assert made["confidence"] == ("low" if good is None else "high")


@pytest.mark.parametrize("state", [State.INCOMPLETE, State.DAMAGED])
def test_an_unusable_checkpoint_is_passed_over_and_named(state: State) -> None:
    made = plan.make([finding("rank_dead")], [checkpoint(4), checkpoint(8, state)], facts()).to_json()
    assert made["checkpoint"]["step"] == 4
    assert made["unusable"] == [{"path": "/c/step-00000008", "step": 8, "state": str(state), "why": "why not"}]


def test_bytes_that_were_not_compared_lower_the_confidence() -> None:
    made = plan.make([finding("rank_dead")], [checkpoint(4), checkpoint(8, State.WHOLE)], facts()).to_json()
    assert (made["checkpoint"]["step"], made["checkpoint"]["verified"], made["confidence"]) == (8, False, "medium")
    assert "The bytes of /c/step-00000008 were not verified: why not." in made["unknown"]


def test_a_slow_rank_taints_nothing_and_is_left_out_with_its_host() -> None:
    slow = finding("straggler", Severity.WARNING, ranks=(5,), hosts=("b",), first_step=3)
    made = plan.make([slow], [checkpoint(8)], facts(hosts=("a", "b"))).to_json()
    assert (made["checkpoint"]["step"], made["tainted"], made["corruption"], made["skip"]) == (8, [], None, None)
    assert made["excluded"] == {"ranks": [5], "hosts": ["b"]}


def test_checksums_date_the_fault_to_the_last_comparison_that_agreed() -> None:
    apart = finding("replica_desync", first_step=30, evidence={"last_step_in_agreement": 20})
    found = since([NAN, apart]), since([apart]), since([apart, finding("collective_skipped")])
    assert [(item.kind, item.clean_steps) for item in found if item] == [
        ("nonfinite", 6), ("replica_desync", 20), ("collective_skipped", None),
    ]  # fmt: skip
    assert since([finding("nonfinite", Severity.WARNING, first_step=1), finding("straggler")]) is None


def test_evidence_without_a_step_taints_every_checkpoint() -> None:
    made = plan.make([finding("collective_skipped")], [checkpoint(4)], facts()).to_json()
    assert (made["checkpoint"], made["confidence"], len(made["tainted"])) == (None, "low", 1)
    assert made["restart"]["sensible"] is False


def test_the_data_of_the_first_bad_step_is_named_as_far_as_it_is_known() -> None:
    assert suspect_steps([finding("grad_spike", Severity.WARNING, first_step=7), NAN]) == (6, 7)
    known = plan.make([NAN], [], facts()).to_json()["skip"]
    assert known == {"begin_step": 6, "end_step": 7, "begin_sample": 96, "end_sample": 112}
    last = plan.make([NAN], [], facts(cursors={5: 80, 6: 96})).to_json()["skip"]
    assert last == known
    silent = plan.make([NAN], [], facts(cursors={})).to_json()
    assert (silent["skip"]["begin_sample"], silent["skip"]["end_sample"]) == (None, None)
    assert any("which samples" in text.lower() for text in silent["unknown"])


def test_the_command_names_the_checkpoint_once() -> None:
    path = Path("/c/step-00000006")
    assert resuming(TRAINER, path, ()) == (*TRAINER, "--resume", str(path))
    assert resuming((*TRAINER, "--resume", "latest"), path, ()) == (*TRAINER, "--resume", str(path))
    assert resuming(("python", "train.py"), path, ()) == ("python", "train.py")
    assert resuming(("python", "train.py"), path, ("--from={checkpoint}",)) == ("python", "train.py", f"--from={path}")
    assert resuming(TRAINER, None, ()) == TRAINER


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ((), "How the job is launched"),
        (("python", "train.py", "--token", "<redacted>"), "Words of the command that may be secret"),
        (("python", "train.py"), "How this trainer is told which checkpoint to load"),
    ],
)
def test_what_is_missing_from_the_command_is_said(command: tuple[str, ...], unknown: str) -> None:
    made = plan.make([NAN], [checkpoint(4)], facts(command=command))
    assert any(text.startswith(unknown) for text in made.unknown)


def test_remarks_need_no_recovery() -> None:
    with pytest.raises(ValueError, match="nothing to recover"):
        plan.make([finding("pause", Severity.INFO)], [], facts())


def test_the_page_says_what_the_file_says() -> None:
    found = [checkpoint(4), checkpoint(8), checkpoint(2, State.DAMAGED)]
    text = page(json.loads(json.dumps(plan.make([NAN], found, facts()).to_json())))
    for part in (
        "# Recovery of r1", "nonfinite it is.", "`/c/step-00000004`: 4 steps done, every byte verified.",
        "- `/c/step-00000008`: written after nonfinite was seen in step 6", "- `/c/step-00000002`: why not",
        "data in doubt: step 6, samples from 96 to 111", "--dp 2 --resume /c/step-00000004", "## Not known",
    ):  # fmt: skip
        assert part in text
    assert "begins anew" in page(plan.make([NAN], [], facts()).to_json())
