"""What one rank knows, all ranks act upon after the same step."""

from __future__ import annotations

import pytest

from tests.trainer.forked import run_forked
from tests.trainer.tasks import config, train_through_nan, train_until_ranksight_stops_rank

pytestmark = pytest.mark.ranks


def test_all_leave_after_the_step_that_one_rank_was_told() -> None:
    run = config(dp=2, ep=2, steps=1000)
    for reports in run_forked(train_until_ranksight_stops_rank, 2, run, 1, 2):
        assert [report.step for report in reports] == [1, 2, 3]  # steps 0 to 2


def test_a_number_that_is_not_finite_skips_the_update_on_every_rank() -> None:
    for told in run_forked(train_through_nan, 2, config(dp=2, ep=2), 1):
        ranks, loss_is_nan, changed = zip(*told, strict=True)
        assert ranks[0] == ranks[2] == 0
        assert ranks[1] > 0
        assert loss_is_nan == (False, True, False)
        assert changed == (True, False, True)
