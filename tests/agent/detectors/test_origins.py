"""From what watched ranks saw to the origin: literal tables."""

import pytest

from ranksight.agent.detectors.origins import Birth, named, origin_of
from ranksight.agent.findings import Finding, Severity
from ranksight.hooks.wire import Origin

A, W, C, G = Origin.AROSE, Origin.WEIGHT, Origin.CAME_IN, Origin.GRADIENT


def birth(rank: int, step: int, at_ns: int, how: Origin, name: str = "layers.2 (Block)", **more: int) -> Birth:
    return Birth(rank, f"h{rank // 2}", step, at_ns, how, name, **more)


@pytest.mark.parametrize(
    ("births", "rank"),
    [
        ([], None),
        ([birth(3, 8, 100, A)], 3),
        ([birth(0, 8, 200, C), birth(3, 8, 300, A)], 3),  # a clock that is behind: where it arose counts
        ([birth(1, 8, 300, A), birth(3, 8, 200, A)], 3),  # the other got it through a collective
        ([birth(1, 8, 100, A), birth(3, 8, 200, W)], 3),  # the bad weight made a sum bad on both
        ([birth(r, 8, r, W) for r in range(4)], None),  # an update has spread it
        ([birth(r, 8, r, G) for r in range(4)], None),  # a reduction has
        ([birth(2, 8, 100, C), birth(0, 8, 200, G)], 2),  # forward on one stage, backward on the one before
        ([birth(2, 9, 100, A), birth(1, 8, 200, C)], 1),  # the earlier step
    ],
)
def test_origin(births: list[Birth], rank: int | None) -> None:
    origin = origin_of(births, 4)
    assert (origin.rank if origin else None) == rank


def finding() -> Finding:
    return Finding(kind="nonfinite", severity=Severity.CRITICAL, message="Bad in step 8.", advice="x", first_step=8)


def test_the_finding_gets_rank_stage_layer_and_sentence() -> None:
    said = named(finding(), [birth(2, 8, 100, A, layer=2, microbatch=1, stage=1)], 4)
    assert (said.ranks, said.hosts, said.stage, said.layer) == ((2,), ("h1",), 1, 2)
    assert said.message == (
        "Bad in step 8. It arose in layers.2 (Block), from finite inputs and weights (rank 2, stage 1, microbatch 1)."
    )
    assert said.evidence["origin"] == {
        "rank": 2, "step": 8, "module": "layers.2 (Block)", "how": "arose", "microbatch": 1,
    }  # fmt: skip


def test_a_later_step_is_said_to_be_later_and_an_earlier_one_is_another_fault() -> None:
    assert "In step 10, when modules were watched: a weight of" in named(finding(), [birth(0, 10, 1, W)], 4).message
    assert named(finding(), [birth(0, 7, 1, A)], 4) == finding()
