"""Ideal bubbles: orders written out with exact answers, and torch's own orders against the formulas."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ranksight.agent.pipeline import ideal
from ranksight.agent.pipeline.ideal import Action, Kind

F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT  # noqa: E741


def seconds(stages: int, f: float, i: float, w: float) -> dict[tuple[int, Kind], float]:
    """The same times on every stage; a whole backward is both halves."""
    return {(stage, kind): time for stage in range(stages) for kind, time in ((F, f), (I, i), (W, w), (B, i + w))}


def order(**ranks: str) -> dict[int, tuple[Action, ...]]:
    return ideal.read_order({rank: texts.split() for rank, texts in enumerate(ranks.values())})


def starts(found: ideal.Simulated) -> dict[str, tuple[float, float]]:
    return {str(span.action): (span.start, span.end) for span in found.spans}


def test_gpipe_of_two_stages() -> None:
    found = ideal.simulate(order(r0="0F0 0F1 0B0 0B1", r1="1F0 1F1 1B0 1B1"), seconds(2, 1, 1, 1))
    assert starts(found) == {
        "0F0": (0, 1), "0F1": (1, 2), "0B0": (5, 7), "0B1": (7, 9),
        "1F0": (1, 2), "1F1": (2, 3), "1B0": (3, 5), "1B1": (5, 7),
    }  # fmt: skip
    assert found.seconds == 9
    assert found.ranks == (ideal.RankTime(0, 6, 0, 3, 0), ideal.RankTime(1, 6, 1, 0, 2))
    assert [rank.bubble for rank in found.ranks] == [3, 3]
    assert found.bubble_fraction == pytest.approx(1 / 3)  # (p - 1) / (m + p - 1)


def test_a_heavier_last_stage_and_its_balance() -> None:
    """1F1B; stage 1 takes 2 s for a forward and 4 s for a backward, stage 0 half of that."""
    one_f_one_b = order(r0="0F0 0F1 0B0 0B1", r1="1F0 1B0 1F1 1B1")
    measured = {(0, F): 1.0, (0, B): 2.0, (1, F): 2.0, (1, B): 4.0}
    found = ideal.simulate(one_f_one_b, measured)
    assert starts(found) == {
        "0F0": (0, 1), "0F1": (1, 2), "0B0": (7, 9), "0B1": (13, 15),
        "1F0": (1, 3), "1B0": (3, 7), "1F1": (7, 9), "1B1": (9, 13),
    }  # fmt: skip
    assert [(rank.busy, rank.warm_up, rank.inside, rank.cool_down) for rank in found.ranks] == [(6, 0, 9, 0), (12, 1, 0, 2)]
    even = ideal.balanced(measured)
    assert even == {(0, F): 1.5, (0, B): 3.0, (1, F): 1.5, (1, B): 3.0}
    assert ideal.simulate(one_f_one_b, even).seconds == 13.5  # (m + p - 1) (t_F + t_B)


def test_weight_gradients_fill_the_gaps() -> None:
    found = ideal.simulate(order(r0="0F0 0F1 0I0 0I1 0W0 0W1", r1="1F0 1I0 1F1 1I1 1W0 1W1"), seconds(2, 1, 1, 1))
    assert starts(found) == {
        "0F0": (0, 1), "0F1": (1, 2), "0I0": (3, 4), "0I1": (5, 6), "0W0": (6, 7), "0W1": (7, 8),
        "1F0": (1, 2), "1I0": (2, 3), "1F1": (3, 4), "1I1": (4, 5), "1W0": (5, 6), "1W1": (6, 7),
    }  # fmt: skip
    assert [rank.bubble for rank in found.ranks] == [2, 2]


def test_a_v_of_stages_with_an_overlapped_pair() -> None:
    """Rank 0 holds stages 0 and 3, rank 1 stages 1 and 2."""
    dual = order(r0="0F0 3F0 (0F1;3B0)OVERLAP_F_B 3F1 0B0 3B1 0B1", r1="1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1")
    found = ideal.simulate(dual, seconds(4, 1, 1, 0))
    assert starts(found) == {
        "0F0": (0, 1), "3F0": (3, 4), "0F1": (4, 5), "3B0": (5, 6), "3F1": (7, 8), "0B0": (9, 10), "3B1": (10, 11), "0B1": (13, 14),
        "1F0": (1, 2), "2F0": (2, 3), "1F1": (5, 6), "2F1": (6, 7), "2B0": (7, 8), "1B0": (8, 9), "2B1": (11, 12), "1B1": (12, 13),
    }  # fmt: skip


def test_only_computes_are_read() -> None:
    texts = ["0UNSHARD", "0F0", "0SEND_F0", None, "", "1RECV_F0", "(0F1;1B0)OVERLAP_F_B", "1W12", "0REDUCE_GRAD", "0RESHARD"]
    assert [str(action) for action in ideal.read_actions(texts)] == ["0F0", "0F1", "1B0", "1W12"]
    with pytest.raises(ValueError, match="action 'F0'; expected stage, kind and microbatch"):
        ideal.read_actions(["F0"])


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ({"r0": "0B0 0F0", "r1": "1F0 1B0"}, "the order never ends: rank 0 at 0B0, rank 1 at 1F0 wait for what does not come"),
        ({"r0": "", "r1": "0REDUCE_GRAD"}, "the order has no computes"),
        ({"r0": "0F0", "r1": "1F0", "r2": "2F0"}, "no time for F of stage 2, which 2F0 needs"),
    ],
)
def test_orders_that_cannot_run(ranks: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ideal.simulate(order(**ranks), seconds(2, 1, 1, 1))


def test_a_rank_without_actions_waits_all_the_time() -> None:
    found = ideal.simulate(order(r0="0F0", r1=""), seconds(1, 3, 0, 0))
    assert [rank.bubble for rank in found.ranks] == [0, 3]


def one_forward_one_backward(ranks: int, microbatches: int) -> dict[int, tuple[Action, ...]]:
    """As Schedule1F1B runs it; what its `_get_pipeline_order` says leaves out the last stage's first forward."""
    texts = {}
    for stage in range(ranks):
        warm = min(ranks - 1 - stage, microbatches)
        steady = [(f"{stage}F{i + warm}", f"{stage}B{i}") for i in range(microbatches - warm)]
        cool = [f"{stage}B{i}" for i in range(microbatches - warm, microbatches)]
        texts[stage] = [*(f"{stage}F{i}" for i in range(warm)), *itertools.chain(*steady), *cool]
    return ideal.read_order(texts)


class Stage:
    """What torch's schedules ask of a stage before they run."""

    def __init__(self, ranks: int, stages: int, index: int) -> None:
        self.group_size, self.num_stages, self.stage_index = ranks, stages, index
        self.group_rank, self.is_last, self.has_backward, self.submod = 0, index == stages - 1, True, None


def torch_order(name: str, ranks: int, microbatches: int, chunks: int) -> dict[int, tuple[Action, ...]]:
    if name == "Schedule1F1B":
        return one_forward_one_backward(ranks, microbatches)
    from torch.distributed.pipelining import schedules

    made: Any = getattr(schedules, name)
    stages = [Stage(ranks, ranks * chunks, chunk * ranks) for chunk in range(chunks)]
    if issubclass(made, schedules.PipelineScheduleSingle):
        actions = made(stages[0], microbatches)._get_pipeline_order()
    else:
        actions = made(stages, microbatches, loss_fn=lambda output, target: output).pipeline_order
    return ideal.read_order({rank: ["" if a is None else str(a) for a in texts] for rank, texts in actions.items()})


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (3, 9), (4, 8)])
@pytest.mark.parametrize("times", [(1, 1, 1), (10, 11, 8), (7, 20, 5), (9, 3, 2)])
@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("ScheduleGPipe", 1), ("Schedule1F1B", 1), ("ScheduleLoopedBFS", 2), ("ScheduleLoopedBFS", 3),
        ("ScheduleInterleaved1F1B", 2), ("ScheduleInterleaved1F1B", 3), ("ScheduleInterleavedZeroBubble", 1),
        ("ScheduleInterleavedZeroBubble", 2),
    ],
)  # fmt: skip
def test_orders_agree_with_formulas(name: str, chunks: int, times: tuple[float, float, float], ranks: int, microbatches: int) -> None:
    found = ideal.simulate(torch_order(name, ranks, microbatches, chunks), seconds(ranks * chunks, *times))
    bubble = ideal.closed_form(name, ranks, microbatches, chunks, *times)
    assert bubble is not None and [rank.bubble for rank in found.ranks] == [bubble] * ranks


@pytest.mark.parametrize(("name", "bubble"), [("ScheduleZBVZeroBubble", 33), ("ScheduleDualPipeV", 39)])
def test_v_schedules_have_a_bubble_but_no_formula(name: str, bubble: float) -> None:
    """Each does all its work, and loses far less than 1F1B's 87 s."""
    found = ideal.simulate(torch_order(name, 4, 8, 2), seconds(8, 10, 11, 8))
    assert [(rank.busy, rank.bubble) for rank in found.ranks] == [(8 * 2 * 29, bubble)] * 4
    assert ideal.closed_form(name, 4, 8, 2, 10, 11, 8) is None


@pytest.mark.parametrize(
    ("name", "microbatches", "chunks", "times"),
    [
        ("ScheduleGPipe", 8, 2, (1, 1, 1)),
        ("ScheduleLoopedBFS", 3, 2, (1, 1, 1)),
        ("ScheduleInterleaved1F1B", 6, 2, (1, 1, 1)),
        ("ScheduleInterleavedZeroBubble", 8, 2, (1, 1, 2)),
        ("SomebodysSchedule", 8, 1, (1, 1, 1)),
    ],
)
def test_no_formula_outside_its_conditions(name: str, microbatches: int, chunks: int, times: tuple[float, float, float]) -> None:
    assert ideal.closed_form(name, 4, microbatches, chunks, *times) is None
