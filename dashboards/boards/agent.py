"""The agent itself: whether what the other dashboards say is complete, and what watching costs."""

from __future__ import annotations

from ranksight.dashboards.panels import RANK, Board, Panel, exported, record


def rows() -> list[tuple[str, list[Panel]]]:
    """Titles of rows and the panels in them."""
    return [
        (
            "Does it see every rank?",
            [
                Panel("stat", "Ranks seen", "Ranks of which a ring was seen, by host.", [(exported("ranks_seen"), "{{instance}}")], "short", 6, 4),
                Panel("stat", "Ranks expected", "Ranks that the launcher started, by host. No value: nobody says.", [(exported("ranks_expected"), "{{instance}}")], "short", 6, 4),
                Panel("stat", "Unreadable rings", "Ring files that the agent can't read: other versions, or cut short.", [(exported("unreadable_rings"), "{{instance}}")], "short", 6, 4),
                Panel("stat", "Lowest detail", "1 full, 2 sampled, 3 counters only: what the hooks record to stay within their budget.", [(f"max by (run) ({exported('detail_level')})", "{{run}}")], "short", 6, 4),
                Panel("timeseries", "Age of the heartbeats", "The native thread beats also while a rank holds the GIL; the Python thread does not.", [(f"max by (run, rank, thread) ({exported('rank_heartbeat_age_seconds', RANK)})", "rank {{rank}} {{thread}}")], "s", 12),
                Panel("timeseries", "Polls", "Times per second that the agent read the rings. Nothing here means that no agent is there.", [(f"sum by (run, instance) ({exported('agent_polls_total', function='rate')})", "{{instance}}")], "ops", 12),
            ],
        ),
        (
            "What is missing?",
            [
                Panel("timeseries", "Records lost", "Share of records that were overwritten before they were read.", [(record("run:ranksight_records_dropped:ratio_rate5m"), "{{run}}")], "percentunit", 8),
                Panel("timeseries", "Left out by the hooks", "Operations per second that the hooks only counted.", [(f"sum by (run, rank) ({exported('records_skipped_total', RANK, function='rate')})", "rank {{rank}}")], "ops", 8),
                Panel("timeseries", "Instances given up", "Operations per second of which the record of a member is missing.", [(f"sum by (run) ({exported('instances_incomplete_total', function='rate')})", "{{run}}")], "ops", 8),
                Panel("timeseries", "Errors of the hooks", "Swallowed and counted; training never sees them.", [(f"sum by (run, rank, part) ({exported('hook_errors_total', RANK, function='increase')})", "rank {{rank}} {{part}}")], "short", 8),
                Panel("timeseries", "Operations folded away", "Counted under other, because the number of series is bounded.", [(f"sum by (run) ({exported('folded_operations_total', function='rate')})", "{{run}}")], "ops", 8),
                Panel("timeseries", "Waiting to be joined", "Operations whose other members have not come yet.", [(f"sum by (run) ({exported('join_waiting_operations')})", "{{run}}")], "short", 8),
                Panel("timeseries", "Spans by fate", "Spans of kept steps per second: sent to the collector, failed there, or dropped because the queue or the budget was full. Only with [traces].", [(f"sum by (run, fate) ({exported('trace_spans_total', function='rate')})", "{{fate}}")], "short", 8),
            ],
        ),
        (
            "What does it cost?",
            [
                Panel("timeseries", "Cost of the hooks", "Time of tap and hooks divided by the time of the steps.", [(f"max by (run, rank) ({exported('hook_overhead_ratio', RANK)})", "rank {{rank}}")], "percentunit", 12),
                Panel("timeseries", "Cost of the agent", "Share of one core that goes to reading and to rendering metrics.", [
                    (f"sum by (run, instance) ({exported('agent_poll_seconds_total', function='rate')})", "reading {{instance}}"),
                    (f"sum by (run, instance) ({exported('agent_exposition_seconds_total', function='rate')})", "metrics {{instance}}"),
                ], "percentunit", 12),
            ],
        ),
    ]  # fmt: skip


BOARD = Board("agent", "the agent itself", "Completeness and cost of the observation.", rows, ("rank",))
