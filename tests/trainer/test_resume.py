"""Going on from a checkpoint is as if nothing had happened, in the same layout to the bit, in another one to 1e-6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ranksight.trainer import manifest
from ranksight.trainer.train import Report
from tests.trainer.forked import run_forked
from tests.trainer.tasks import config, train

pytestmark = pytest.mark.ranks

LAYOUT: dict[str, Any] = {"pp": 2, "dp": 2, "ep": 2}


def losses(reports: list[Report]) -> list[tuple[float, float]]:
    """What must be repeated."""
    return [(report.loss, report.grad_norm) for report in reports]


def eight_steps(folder: Path, background: bool) -> list[Report]:
    """Eight steps without a break, which leave the checkpoints of steps 4 and 8."""
    run = config(**LAYOUT, steps=8, folder=str(folder), every=4, background=background)
    reports: list[Report] = run_forked(train, 4, run)[0]
    return reports


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Report]]:
    """Folder and reports of a run that was never interrupted."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return folder, eight_steps(folder, background=False)


def test_checkpoints_are_complete_and_say_where_the_data_goes_on(whole: tuple[Path, list[Report]]) -> None:
    folder, _ = whole
    facts = [manifest.verify(path) for path in manifest.complete(folder)]
    assert [(f["step"], f["cursor"]) for f in facts] == [(8, 8 * 16), (4, 4 * 16)]
    assert len(facts[0]["corpus_sha256"]) == 64
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000004", "step-00000008"]


def test_same_layout_repeats_every_bit(whole: tuple[Path, list[Report]]) -> None:
    folder, reports = whole
    resumed = run_forked(train, 4, config(**LAYOUT, steps=8), str(folder / "step-00000004"))[0]
    assert losses(resumed) == losses(reports)[4:]


def test_what_was_written_in_the_background_is_the_state_at_its_step(
    whole: tuple[Path, list[Report]], tmp_path: Path
) -> None:
    _, reports = whole
    assert losses(eight_steps(tmp_path, background=True)) == losses(reports)
    resumed = run_forked(train, 4, config(**LAYOUT, steps=8), str(tmp_path / "step-00000004"))[0]
    assert losses(resumed) == losses(reports)[4:]


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"tp": 2, "ep": 2},
        {"pp": 2, "schedule": "ZBVZeroBubble"},
        {"dp": 2, "data_parallel": "replicate"},
        {"pp": 2, "dp": 2, "tp": 2, "ep": 4},
    ],
    ids=["one-process", "tp-ep", "zbv", "replicate", "combined"],
)
def test_another_layout_goes_on_within_a_millionth(whole: tuple[Path, list[Report]], layout: dict[str, Any]) -> None:
    folder, reports = whole
    other = config(**layout, steps=8)
    resumed = run_forked(train, other.plan.world_size, other, str(folder / "step-00000004"))[0]
    assert [report.step for report in resumed] == [5, 6, 7, 8]
    for got, expected in zip(losses(resumed), losses(reports)[4:], strict=True):
        assert got == pytest.approx(expected, abs=1e-6)


def test_damage_and_other_runs_are_refused_and_latest_passes_damage_over(tmp_path: Path) -> None:
    folder = str(tmp_path)
    run_forked(train, 1, config(steps=4, folder=folder, every=2))
    with pytest.raises(AssertionError, match=r"belongs to another run: seed was 0, is 1"):
        run_forked(train, 1, config(steps=6, seed=1), f"{folder}/step-00000002")
    newest = tmp_path / "step-00000004"
    shard = next(newest.glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(AssertionError, match=r"CheckpointDamaged: .*\.distcp differ from the manifest"):
        run_forked(train, 1, config(steps=6), str(newest))
    (reports,) = run_forked(train, 1, config(steps=6, folder=folder), "latest")
    assert [report.step for report in reports] == [3, 4, 5, 6]
