"""Faults are asked for by name; what can't be put in is refused with the reason; the table in the docs is the enum's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranksight.agent.findings import CAUSES, MEANINGS
from ranksight.trainer.config import ConfigError
from ranksight.trainer.faults import kinds
from ranksight.trainer.faults.injection import Injection
from ranksight.trainer.faults.injector import ACTIONS
from ranksight.trainer.faults.kinds import Fault
from ranksight.trainer.options import parse

PLAN = ["--pp", "2", "--dp", "2", "--tp", "2", "--ep", "4"]
REFUSED = [
    ("stragler", "fault 'stragler': 'stragler' is none of kill, exception"),
    ("straggler:rank", "fault 'straggler:rank': 'rank' is no key=value"),
    ("straggler:rank=1,rank=2", "'rank=2' is said twice"),
    ("straggler:ranks=1", "no key 'ranks'; known are rank, step, size"),
    ("straggler:rank=1.5", "rank='1.5' is no whole number"),
    ("straggler:size=much", "size='much' is no number"),
    ("straggler:size=inf", "size = inf is no number from 0 on"),
    ("straggler:step=-1", "step = -1 is no whole number from 0 on"),
    ("straggler:rank=8", "fault straggler is for rank 8, but there are 8 ranks"),
    ("straggler:step=40", "fault straggler is for step 40, but the last of 40 steps is 39"),
    ("kill:size=2", "kill has no size"),
    ("regression:rank=2", "regression strikes all ranks; it takes no rank"),
    ("checkpoint-stall", "fault checkpoint-stall needs a checkpoint folder"),
    ("resume-mismatch", "fault resume-mismatch needs a resume"),
    ("bitflip", "fault bitflip needs data_parallel replicate and dp > 1"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=[text for text, _ in REFUSED])
def test_faults_that_can_not_be_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse([*PLAN, "--fault", text])
    assert reason in str(refusal.value)


def test_faults_need_what_they_need() -> None:
    with pytest.raises(ConfigError, match="fault hot-expert needs ep > 1; fault straggler needs two ranks"):
        parse(["--fault", "hot-expert", "--fault", "straggler"])


def test_faults_of_file_and_command_line_add_up(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[plan]\npp = 2\n[[fault]]\nkind = "gc_pauses"\nrank = 1\n[[fault]]\nkind = "kill"\nstep = 9\n')
    config = parse(["--config", str(file), "--fault", "straggler:rank=1,step=10,size=0.05"])
    assert config.faults == (
        Injection(fault=Fault.GC_PAUSES, rank=1, step=0, size=4e6),
        Injection(fault=Fault.KILL, rank=0, step=9, size=0.0),
        Injection(fault=Fault.STRAGGLER, rank=1, step=10, size=0.05),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[fault]\nkind = "kill"', "'fault' is no array of tables: write [[fault]]"),
        ('[[fault]]\nkind = "kill"\nat = 3', "[[fault]] 1: no key 'at'; known are rank, step, size"),
        ("[[fault]]\nrank = 1", "[[fault]] 1: None is none of kill"),
        ('[[fault]]\nkind = "kill"\nrank = true', "rank = True is no whole number"),
    ],
)
def test_a_wrong_table_is_named(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        parse(["--config", str(file)])
    assert str(file) in str(refusal.value) and reason in str(refusal.value)


def test_every_fault_acts_and_leads_to_a_finding_that_exists() -> None:
    assert set(ACTIONS) == set(Fault) == set(kinds.SPECS)
    assert {fault.spec.finding for fault in Fault} == set(MEANINGS)
    assert {fault.spec.cause for fault in Fault} <= {"", *CAUSES}


def test_the_table_in_the_docs_is_the_enum() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "faults.md"
    assert kinds.markdown() in page.read_text()
