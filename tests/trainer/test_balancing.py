"""Balancing evens out the experts' load, and without it the load stays uneven."""

from __future__ import annotations

import statistics

import pytest

from tests.trainer.forked import run_forked
from tests.trainer.tasks import config, train

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("balance", ["bias", "aux", "none"])
def test_load_of_the_busiest_expert(balance: str) -> None:
    (reports,) = run_forked(train, 1, config(steps=100, balance=balance))
    before = statistics.mean(report.max_over_mean for report in reports[:10])
    after = statistics.mean(report.max_over_mean for report in reports[-10:])
    assert before > 2.0
    assert after > 3.0 if balance == "none" else after < 1.5
