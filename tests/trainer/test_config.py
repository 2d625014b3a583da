"""Plans that can't work are refused with the numbers; files and options are read as the same fields."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ranksight.trainer.config import SCHEDULES, Config, ConfigError, ParallelPlan
from ranksight.trainer.options import PARTS, parse

IMPOSSIBLE = [
    ("--pp 0", "pp 0 is less than 1"),
    ("--dp -2 --microbatches 0", "dp -2 is less than 1; microbatches 0 is less than 1"),
    ("--dp 2 --tp 2 --ep 3", "ep 3 does not divide dp 2 x tp 2 = 4 ranks"),
    ("--ep 2", "ep 2 does not divide dp 1 x tp 1 = 1 ranks"),
    ("--dp 16 --ep 16 --microbatches 1", "experts 8 can't be shared evenly by ep 16"),
    ("--dp 3", "batch 16 is no multiple of dp 3 x microbatches 2 = 6"),
    ("--tp 4", "kv_heads 2 can't be shared evenly by tp 4"),
    ("--tp 8 --heads 16 --kv-heads 8 --seq 60", "seq 60 can't be shared evenly by tp 8"),
    ("--tp 3 --heads 6 --kv-heads 3 --dim 36 --seq 66", "the 256 byte values can't be shared evenly by tp 3"),
    ("--pp 8 --microbatches 8", "layers 4 is less than the 8 stages of schedule 1F1B"),
    ("--pp 4 --schedule GPipe --stages-per-rank 2", "GPipe places one stage a rank, but stages_per_rank is 2"),
    ("--pp 2 --schedule ZBVZeroBubble --stages-per-rank 3", "two stages a rank"),
    ("--pp 2 --schedule LoopedBFS --stages-per-rank 1", "at least two a rank, but stages_per_rank is 1"),
    ("--stages-per-rank 2", "stages_per_rank 2 needs pp > 1, but pp is 1"),
    ("--pp 4 --microbatches 2", "1F1B needs microbatches >= pp, but microbatches is 2 and pp is 4"),
    ("--pp 2 --schedule DualPipeV", "DualPipeV needs microbatches >= its 4 stages, but microbatches is 2"),
    (
        "--pp 2 --schedule Interleaved1F1B --microbatches 5 --batch 5",
        "Interleaved1F1B runs 2 rounds with pp 2, which do not divide microbatches 5",
    ),
    ("--schedule zigzag", "schedule 'zigzag' is none of GPipe, 1F1B, Interleaved1F1B"),
    ("--data-parallel both", "data_parallel 'both' is none of shard, replicate"),
    ("--dim 30", "dim 30 is no multiple of 2 x heads 4"),
    ("--heads 4 --kv-heads 3", "heads 4 is no multiple of kv_heads 3"),
    ("--top-k 9 --pp 0", "top_k 9 is more than experts 8; pp 0 is less than 1"),
    ("--clip 0", "clip 0.0 is not above 0"),
    ("--precision f16", "precision 'f16' is none of f32, f64, bf16"),
    ("--every 5", "every 5 needs a checkpoint folder"),
    ("--resume latest", "resume latest needs a checkpoint folder"),
    ("--keep 0", "keep 0 is less than 1"),
]


@pytest.mark.parametrize(("argv", "reason"), IMPOSSIBLE, ids=[argv for argv, _ in IMPOSSIBLE])
def test_impossible_plans_are_refused_with_their_numbers(argv: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(argv.split())
    assert reason in str(refusal.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_has_a_plan(schedule: str) -> None:
    plan = parse(["--pp", "2", "--schedule", schedule, "--microbatches", "4"]).plan
    assert plan.stages == (2 if schedule in ("GPipe", "1F1B") else 4)


def test_a_launcher_with_another_number_of_ranks_is_refused() -> None:
    config = Config(plan=ParallelPlan(pp=2, dp=2, tp=2, ep=4))
    config.check_world(8)
    with pytest.raises(ConfigError, match="pp 2 x dp 2 x tp 2 needs 8 ranks, but the launcher started 4"):
        config.check_world(4)


def test_options_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[plan]\npp = 2\ndp = 2\nrecompute = true\n[train]\nlr = 1\n")
    config = parse(["--config", str(file), "--dp", "4", "--no-recompute"])
    assert (config.plan.pp, config.plan.dp, config.plan.tp, config.plan.recompute) == (2, 4, 1, False)
    assert config.train.lr == 1.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[plan]\ncp = 2\n", r"\[plan\] has no key 'cp'; known are pp, dp"),
        ("[paln]\npp = 2\n", "'paln' is none of the tables model, plan, train, checkpoint"),
        ("pp = 2\n", "'pp' is none of the tables"),
        ('[plan]\npp = "2"\n', r"\[plan\] pp = '2' is no int"),
        ("[plan]\nrecompute = 1\n", r"\[plan\] recompute = 1 is no bool"),
        ("[plan\n", "Expected"),
    ],
)
def test_a_file_with_unknown_or_wrong_keys_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        parse(["--config", str(tmp_path / "run.toml")])


def test_unknown_options_end_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(["--cp", "2"])
    assert end.value.code == 2
    assert "unrecognized arguments: --cp" in capsys.readouterr().err


def test_option_names_are_unique_over_the_parts() -> None:
    names = [f.name for part in PARTS.values() for f in dataclasses.fields(part)]
    assert len(names) == len(set(names))


def test_a_config_can_not_be_changed() -> None:
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.plan.pp = 2  # type: ignore[misc]
