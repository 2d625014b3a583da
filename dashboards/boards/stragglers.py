"""Stragglers and stops: who is slow, who is stuck, and what was done about it."""

from __future__ import annotations

from ranksight.dashboards import judgements
from ranksight.dashboards.panels import AXIS, RANK, Board, Panel, exported, record


def rows() -> list[tuple[str, list[Panel]]]:
    """Titles of rows and the panels in them."""
    return [
        (
            "Who is waited for?",
            [
                Panel("timeseries", "Blame", "What other ranks of the same host waited for this one, in seconds per second: the one line above the others is the straggler.", [(record("run_rank_axis:ranksight_blame_seconds:rate5m", AXIS, RANK), "{{axis}} rank {{rank}}")], "percentunit", 12, 9),
                Panel("table", "Awaited ranks over all hosts", "In each process group the rank that arrives last, and what the member that waits most loses, in seconds per second.", [(f"sort_desc({record('run_group_rank:ranksight_group_awaited_seconds:rate1m', AXIS)})", "")], "percentunit", 12, 9),
            ],
        ),
        (
            "What was found, and what was done?",
            [
                judgements.findings(10, judgements.kinds(("slow", "hang", "process", "desync"))),
                judgements.alerts(8),
                judgements.stop(6, 8),
            ],
        ),
        (
            "Who is stuck?",
            [
                Panel("table", "Did not join", "While nothing moves: members whose count of launched operations lags behind the others.", [(record("run_group_rank:ranksight_group_not_joined_operations:lag60s", AXIS), "")], "short", 12),
                Panel("timeseries", "Age of the step in progress", "It grows on all ranks together when one of them is stuck.", [(f"max by (run, rank) ({exported('step_in_progress_seconds', RANK)})", "rank {{rank}}")], "s", 12),
                Panel("timeseries", "Steps behind", "How many steps a rank is behind the first one.", [(record("run_rank:ranksight_step_in_progress:lag", RANK), "rank {{rank}}")], "short", 12),
                Panel("timeseries", "Oldest operation in flight", "It grows without end in a hang, on every rank that waits.", [(f"max by (run, rank) ({exported('in_flight_oldest_seconds', RANK)})", "rank {{rank}}")], "s", 12),
            ],
        ),
    ]  # fmt: skip


BOARD = Board("stragglers", "stragglers and stops", "Who is slow, who is stuck, what was done about it.", rows, ("axis", "rank"))
