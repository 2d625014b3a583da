"""Overview: whether the job is healthy, how fast it is, and what it costs."""

from __future__ import annotations

from ranksight.dashboards import judgements
from ranksight.dashboards.panels import RANK, TAIL, Board, Panel, exported, record


def rows() -> list[tuple[str, list[Panel]]]:
    """Titles of rows and the panels in them."""
    return [
        (
            "Is it healthy?",
            [
                Panel("stat", "Ranks alive", "Processes that an agent sees alive.", [(record("run:ranksight_rank_up:sum"), "{{run}}")], "short", 6, 4),
                Panel("stat", "Steps", "Training steps per second.", [(record("run:ranksight_steps:rate1m"), "{{run}}")], "ops", 6, 4),
                Panel("stat", "Records lost", "Share of records that were overwritten before the agent read them. Everything else misses them.", [(record("run:ranksight_records_dropped:ratio_rate5m"), "{{run}}")], "percentunit", 6, 4),
                Panel("stat", "Cost of watching", "Time of tap and hooks divided by the time of all steps, of the rank with the most.", [(record("run:ranksight_hook_overhead_ratio:max"), "{{run}}")], "percentunit", 6, 4),
                judgements.findings(10),
                judgements.alerts(8),
                judgements.stop(6, 8),
            ],
        ),
        (
            "How fast is it?",
            [
                Panel("timeseries", "Step duration", "Over all ranks, from merged histograms: exact to one bucket.", [
                    (record("run:ranksight_step_duration_seconds:p50_1m"), "p50 {{run}}"),
                    (record("run:ranksight_step_duration_seconds:p99_1m"), "p99 {{run}}"),
                    (record("run:ranksight_step_duration_seconds:p999_1m"), "p99.9 {{run}}"),
                ], "s", 12, log=True),
                Panel("heatmap", "Steps by duration", "Steps per second by duration, all ranks. The points are single steps: follow one to its trace.", [(f"sum by (le) ({exported('step_duration_seconds!_bucket', function='rate')})", "{{le}}")], "s", 12),
                Panel("timeseries", "Step duration by rank", "The chosen tail over the chosen window. Synchronous ranks are alike here, also when one of them is slow.", [(f"max by (run, rank) ({exported('step_duration_tail_seconds', RANK, TAIL)})", "rank {{rank}}")], "s", 12),
                Panel("timeseries", "Loss", "The last loss that backward() was called on.", [(f"max by (run, rank) ({exported('loss', RANK)})", "rank {{rank}}")], "short", 12),
            ],
        ),
    ]  # fmt: skip


BOARD = Board("overview", "overview", "Is it healthy, how fast is it, what does it cost?", rows, ("rank", "tail", "window"))
