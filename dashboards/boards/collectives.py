"""Collectives: who waits for whom, on which axis, and how long.

From top to bottom as one asks: is the picture whole and does the job move; where are the tails; who is waited for; what
the network did; and the steps of each rank.
"""

from __future__ import annotations

from ranksight.dashboards.panels import AXIS, OP, RANK, TAIL, Board, Panel, exported, record


def rows() -> list[tuple[str, list[Panel]]]:
    """Titles of rows and the panels in them."""
    return [
        (
            "Is the picture whole, and does the job move?",
            [
                Panel("stat", "Ranks alive", "Processes that an agent sees alive.", [(record("run:ranksight_rank_up:sum"), "{{run}}")], "short", 6, 4),
                Panel("stat", "Steps", "Training steps per second.", [(record("run:ranksight_steps:rate1m"), "{{run}}")], "ops", 6, 4),
                Panel("stat", "Records lost", "Share of records that were overwritten before the agent read them. What is below misses them.", [(record("run:ranksight_records_dropped:ratio_rate5m"), "{{run}}")], "percentunit", 6, 4),
                Panel("stat", "Cost of watching", "Time of tap and hooks divided by the time of all steps, of the rank with the most.", [(record("run:ranksight_hook_overhead_ratio:max"), "{{run}}")], "percentunit", 6, 4),
            ],
        ),
        (
            "How long do collectives take?",
            [
                Panel("timeseries", "Duration by axis, all ranks", "From the call to the completion, waiting included. From merged histograms: exact to one bucket (1, 2.5, 5, 10).", [
                    (record("run_axis_op:ranksight_collective_duration_seconds:p50_1m", AXIS, OP), "p50 {{axis}} {{op}}"),
                    (record("run_axis_op:ranksight_collective_duration_seconds:p99_1m", AXIS, OP), "p99 {{axis}} {{op}}"),
                    (record("run_axis_op:ranksight_collective_duration_seconds:p999_1m", AXIS, OP), "p99.9 {{axis}} {{op}}"),
                ], "s", 12, log=True),
                Panel("heatmap", "Durations", "Operations per second by duration. The points are single operations: follow one to the trace of its step.", [(f"sum by (le) ({exported('collective_duration_seconds!_bucket', AXIS, OP, function='rate')})", "{{le}}")], "s", 12),
                Panel("timeseries", "Duration by rank", "The chosen tail over the chosen window, as each agent measured it (1 %). The ranks of a group are alike here, also when one of them is slow.", [(f"max by (run, rank, axis, op) ({exported('collective_duration_tail_seconds', AXIS, OP, RANK, TAIL)})", "{{axis}} {{op}} rank {{rank}}")], "s", 12, log=True),
                Panel("timeseries", "Exposed time by rank", "Seconds per second for which the calling thread was blocked in collectives.", [(record("run_rank_axis:ranksight_collective_exposed_seconds:rate5m", AXIS, RANK), "{{axis}} rank {{rank}}")], "percentunit", 12),
            ],
        ),
        (
            "Who is waited for?",
            [
                Panel("table", "Awaited ranks", "In each process group the rank that spends the least time in it, because it arrives last, and what the member that waits most loses, in seconds per second. Only groups of which every member is seen.", [(f"sort_desc({record('run_group_rank:ranksight_group_awaited_seconds:rate1m', AXIS)})", "")], "percentunit", 12),
                Panel("table", "Did not join", "While nothing moves: members whose count of launched operations lags behind the others.", [(record("run_group_rank:ranksight_group_not_joined_operations:lag60s", AXIS), "")], "short", 12),
                Panel("matrix", "Blame by rank and axis", "What other ranks of the same host waited for this one over the last five minutes, in seconds per second: a row that stands out is a slow rank, a column a slow axis.", [(record("run_rank_axis:ranksight_blame_seconds:rate5m", AXIS, RANK), "")], "percentunit", 12, matrix=("rank", "axis")),
                Panel("timeseries", "Blame", "What other ranks of the same host waited for this one, in seconds per second.", [(record("run_rank_axis:ranksight_blame_seconds:rate5m", AXIS, RANK), "{{axis}} rank {{rank}}")], "percentunit", 12),
                Panel("timeseries", "Wait by rank", "The chosen tail of the time from a rank's arrival to the last one's. The culprit is the rank that waits least.", [(f"max by (run, rank, axis, op) ({exported('collective_wait_tail_seconds', AXIS, OP, RANK, TAIL)})", "{{axis}} {{op}} rank {{rank}}")], "s", 12, log=True),
                Panel("timeseries", "Oldest operation in flight", "It grows without end in a hang, on every rank that waits.", [(f"max by (run, rank) ({exported('in_flight_oldest_seconds', RANK)})", "rank {{rank}}")], "s", 12),
                Panel("timeseries", "Steps behind", "How many steps a rank is behind the first one.", [(record("run_rank:ranksight_step_in_progress:lag", RANK), "rank {{rank}}")], "short", 12),
            ],
        ),
        (
            "What did the network do?",
            [
                Panel("timeseries", "Transfer", "The chosen tail of the time from the last arrival to the first completion: nobody is waited for here.", [(f"max by (run, axis, op, size) ({exported('collective_transfer_tail_seconds', AXIS, OP, TAIL)})", "{{axis}} {{op}} up to {{size}}")], "s", 12, log=True),
                Panel("timeseries", "Bus bandwidth", "By the convention of nccl-tests, over the time of transfer.", [(record("run_axis_op:ranksight_collective_bus_bytes_per_second:rate5m", AXIS, OP), "{{axis}} {{op}}")], "Bps", 12),
            ],
        ),
        (
            "What did the ranks do?",
            [
                Panel("timeseries", "Step duration by rank", "The chosen tail over the chosen window.", [(f"max by (run, rank) ({exported('step_duration_tail_seconds', RANK, TAIL)})", "rank {{rank}}")], "s", 12),
                Panel("timeseries", "Loss", "The last loss that backward() was called on: a rank's own, one microbatch's under pipelining.", [(f"max by (run, rank) ({exported('loss', RANK)})", "rank {{rank}}")], "short", 12),
            ],
        ),
    ]  # fmt: skip


BOARD = Board("collectives", "collectives", "Tails per axis and operation, who is waited for, bandwidth.", rows, ("axis", "op", "rank", "tail", "window"))
