"""The level of detail follows the cost of the tap in both directions and does not swing."""

from ranksight.agent.overhead.governor import LOWER_AFTER, RAISE_AFTER, Governor, Window
from ranksight.hooks.wire import Detail

BUDGET = 0.005
SECOND = 1_000_000_000
# What an operation costs at each level, in nanoseconds.
COST = {Detail.FULL: 2000, Detail.SAMPLED: 400, Detail.COUNTERS: 250}


def drive(governor: Governor, per_second: int, windows: int, other_rank: int = 0) -> list[Detail]:
    """Levels after each of some windows in which rank 1 issues so many operations a second."""
    levels = []
    for _ in range(windows):
        wall = 10 * SECOND
        seen = [(0, other_rank), (1, per_second)]
        governor.update([Window(r, wall, COST[governor.level] * n * 10, n * 10) for r, n in seen], step=7)
        levels.append(governor.level)
    return levels


def test_a_job_within_the_budget_stays_at_full() -> None:
    assert set(drive(Governor(BUDGET), 2000, 10)) == {Detail.FULL}  # 0.4 %


def test_one_dear_window_is_no_reason() -> None:
    governor = Governor(BUDGET)
    assert drive(governor, 4000, LOWER_AFTER - 1) == [Detail.FULL]
    drive(governor, 1000, 1)
    assert drive(governor, 4000, LOWER_AFTER - 1) == [Detail.FULL]


def test_lowered_above_the_budget_and_raised_again_when_it_fits() -> None:
    governor = Governor(BUDGET)
    assert drive(governor, 4000, 12)[-10:] == [Detail.SAMPLED] * 10  # 0.8 %, then 0.16 %: full would be 0.8 % again
    assert drive(governor, 2000, 12) == [Detail.SAMPLED] * 12  # full would be 0.4 %: too near to the budget
    assert drive(governor, 1000, RAISE_AFTER) == [Detail.SAMPLED] * (RAISE_AFTER - 1) + [Detail.FULL]


def test_down_to_counters_and_back_by_one_level_at_a_time() -> None:
    governor = Governor(BUDGET)
    assert drive(governor, 50_000, 20)[-1] is Detail.COUNTERS  # sampled would be 2 %
    assert drive(governor, 1000, 2 * RAISE_AFTER) == [
        *[Detail.COUNTERS] * (RAISE_AFTER - 1), *[Detail.SAMPLED] * RAISE_AFTER, Detail.FULL,
    ]  # fmt: skip


def test_the_dearest_rank_decides_and_the_change_says_so() -> None:
    governor = Governor(BUDGET)
    wall = 10 * SECOND
    windows = [Window(0, wall, wall // 1000, 100), Window(3, wall, wall // 100, 1000)]
    assert governor.update(windows, 40) is None
    change = governor.update(windows, 41)
    assert change is not None
    assert (change.rank, change.step, change.fraction) == (3, 41, 0.01)
    assert change.sentence(BUDGET) == (
        "Detail lowered from full to sampled at step 41: the tap took 1.00 % of the time of rank 3, budget 0.5 %."
    )


def test_a_level_of_unknown_cost_is_tried() -> None:
    governor = Governor(BUDGET, Detail.SAMPLED)
    assert drive(governor, 100, RAISE_AFTER)[-1] is Detail.FULL


def test_nobody_trains_nothing_moves() -> None:
    assert Governor(BUDGET).update([], 0) is None
