"""Every metric of the agent, once: exposition, docs/metrics.md, dashboards and rules are derived from this table.

`python -m ranksight.agent.catalog` prints docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    """Metric types of the Prometheus text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric. `unit` is the base unit that ends its name, "" when it has none; `source` says where it is from."""

    name: str
    type: Type
    unit: str
    labels: tuple[str, ...]
    help: str
    source: str


MAX_COMBINATIONS = 64  # (axis, op, size class) with series of their own
MAX_GROUPS = 64  # process groups with series of their own
TOP_EXPERTS = 8  # experts of a layer with series of their own
LAYER_LINES = TOP_EXPERTS + 1 + 6 + 1  # hottest experts and the rest, measures of balance, dead experts
HISTOGRAM_LINES = 25  # 22 buckets, +Inf, sum and count

_C, _G, _H = Type.COUNTER, Type.GAUGE, Type.HISTOGRAM
_OP = ("rank", "axis", "op", "size")
_SHARED = ("axis", "op", "size")
_TAIL = ("window", "tail")
_GROUP = ("rank", "group", "axis")
_RING, _JOIN, _EVENT, _HEAD, _AGENT = "collectives ring", "join over local ranks", "events ring", "ring header", "agent"

METRICS: tuple[Spec, ...] = (
    # collectives, from each rank's own records
    Spec(
        "ranksight_collective_operations_total", _C, "", _OP,
        "Collective and point-to-point operations.", _RING,
    ),
    Spec(
        "ranksight_collective_bytes_total", _C, "bytes", _OP,
        "Payload by the convention of nccl-tests: the total over the group for gathers and scatters.", _RING,
    ),
    Spec(
        "ranksight_collective_duration_seconds", _H, "seconds", ("rank", "axis", "op"),
        "From the call to the completion of the operation, waiting for peers included.", _RING,
    ),
    Spec(
        "ranksight_collective_duration_tail_seconds", _G, "seconds", (*_OP, *_TAIL),
        "Quantiles of the duration over a sliding window, 1 % relative error; the maximum is exact.", _RING,
    ),
    Spec(
        "ranksight_collective_exposed_seconds_total", _C, "seconds", _OP,
        "Time for which the caller was blocked, where it is known.", _RING,
    ),
    Spec(
        "ranksight_collective_exposed_unknown_total", _C, "", _OP,
        "Asynchronous operations whose wait nobody saw, left out of the exposed time.", _RING,
    ),
    Spec(
        "ranksight_collective_upper_bound_total", _C, "", _OP,
        "Operations whose completion is only known to lie before the end of the wait.", _RING,
    ),
    Spec(
        "ranksight_collective_unfinished_total", _C, "", _OP,
        "Operations whose completion was never seen, left out of the durations.", _RING,
    ),
    # collectives, joined over the local members of the group
    Spec(
        "ranksight_collective_wait_seconds", _H, "seconds", ("rank", "axis", "op"),
        "Time a member waited for the last one to arrive; whole instances only.", _JOIN,
    ),
    Spec(
        "ranksight_collective_wait_tail_seconds", _G, "seconds", (*_OP, *_TAIL),
        "Quantiles of the wait over a sliding window, 1 % relative error; the maximum is exact.", _JOIN,
    ),
    Spec(
        "ranksight_collective_instances_total", _C, "", _SHARED,
        "Instances of which every member was seen.", _JOIN,
    ),
    Spec(
        "ranksight_collective_transfer_seconds_total", _C, "seconds", _SHARED,
        "Time between the last arrival and the first completion, summed over instances.", _JOIN,
    ),
    Spec(
        "ranksight_collective_transfer_tail_seconds", _G, "seconds", (*_SHARED, *_TAIL),
        "Quantiles of the transfer time over a sliding window.", _JOIN,
    ),
    Spec(
        "ranksight_collective_skew_tail_seconds", _G, "seconds", (*_SHARED, *_TAIL),
        "Quantiles of the time between first and last arrival over a sliding window.", _JOIN,
    ),
    Spec(
        "ranksight_collective_algorithm_bytes_total", _C, "bytes", _SHARED,
        "Payload of timed instances, the largest over the ranks: divided by the transfer time it is algbw.", _JOIN,
    ),
    Spec(
        "ranksight_collective_bus_bytes_total", _C, "bytes", _SHARED,
        "The same times the bus factor of nccl-tests for the size of the group: divided by the transfer time it is busbw.", _JOIN,
    ),
    Spec(
        "ranksight_collective_bus_bandwidth_tail_bytes_per_second", _G, "", (*_SHARED, *_TAIL),
        "Quantiles of busbw over a sliding window; p1 is the slow tail.", _JOIN,
    ),
    Spec(
        "ranksight_blame_seconds_total", _C, "seconds", ("rank", "axis"),
        "What other ranks waited for this one, because it arrived last.", _JOIN,
    ),
    Spec(
        "ranksight_instances_incomplete_total", _C, "", (),
        "Instances given up because the record of a local member is missing.", _JOIN,
    ),
    Spec(
        "ranksight_instances_partial_total", _C, "", (),
        "Instances with members on other hosts; only their durations are measured here.", _JOIN,
    ),
    Spec(
        "ranksight_join_waiting_operations", _G, "", (),
        "Operations that wait for other members of their instance.", _JOIN,
    ),
    # process groups: what job-wide rules join without a clock
    Spec(
        "ranksight_group_operations_launched_total", _C, "", _GROUP,
        "Collectives launched in the group; the member that lags is the one that did not join.", _RING,
    ),
    Spec(
        "ranksight_group_collective_seconds_total", _C, "seconds", _GROUP,
        "Time spent in operations of the group; the member with the least is the one the others wait for.", _RING,
    ),
    Spec(
        "ranksight_group_info", _G, "", ("group", "axis", "ranks", "members"),
        "A process group: global ranks and number of members; always 1.", _RING,
    ),
    Spec(
        "ranksight_in_flight_operations", _G, "", ("rank",),
        "Operations launched and not complete.", _RING,
    ),
    Spec(
        "ranksight_in_flight_oldest_seconds", _G, "seconds", ("rank",),
        "Age of the oldest operation in flight, 0 when there is none.", _RING,
    ),
    Spec(
        "ranksight_folded_operations_total", _C, "", (),
        'Operations counted under axis, op "other" because the number of series is bounded.', _AGENT,
    ),
    Spec(
        "ranksight_folded_groups", _G, "", (),
        'Process groups counted under group "other" because the number of series is bounded.', _AGENT,
    ),
    # steps
    Spec(
        "ranksight_step_duration_seconds", _H, "seconds", ("rank",),
        "Duration of training steps.", _EVENT,
    ),
    Spec(
        "ranksight_step_duration_tail_seconds", _G, "seconds", ("rank", *_TAIL),
        "Quantiles of the step duration over a sliding window.", _EVENT,
    ),
    Spec(
        "ranksight_step_in_progress", _G, "", ("rank",),
        "Number of the step in progress.", _HEAD,
    ),
    Spec(
        "ranksight_step_in_progress_seconds", _G, "seconds", ("rank",),
        "Age of the step in progress.", _HEAD,
    ),
    Spec(
        "ranksight_loss", _G, "", ("rank",),
        "Last loss that backward() was called on.", _EVENT,
    ),
    Spec(
        "ranksight_gradient_norm", _G, "", ("rank",),
        "Last gradient norm.", _EVENT,
    ),
    Spec(
        "ranksight_samples_total", _C, "", ("rank",),
        "Samples consumed, where the trainer says so.", _EVENT,
    ),
    Spec(
        "ranksight_tokens_total", _C, "", ("rank",),
        "Tokens consumed, where the trainer says so.", _EVENT,
    ),
    Spec(
        "ranksight_rank_resident_memory_bytes", _G, "bytes", ("rank",),
        "Resident memory of the rank's process.", _EVENT,
    ),
    Spec(
        "ranksight_step_part_seconds_total", _C, "seconds", ("rank", "part"),
        "Time of ended steps by what it was spent on: every second is in one part.", "agent: budget",
    ),
    Spec(
        "ranksight_step_part_tail_seconds", _G, "seconds", ("rank", "part", "window", "tail"),
        "Seconds a step spends on a part.", "agent: budget",
    ),
    # ranks
    Spec(
        "ranksight_rank_up", _G, "", ("rank",),
        "1 while the newest process of the rank is alive.", "/proc",
    ),
    Spec(
        "ranksight_rank_info", _G, "", ("rank", "local_rank", "world_size", "generation", "tap"),
        "The newest process of the rank; always 1.", _HEAD,
    ),
    Spec(
        "ranksight_rank_heartbeat_age_seconds", _G, "seconds", ("rank", "thread"),
        "Age of the last beat of the native thread and of the Python thread, which needs the GIL.", _HEAD,
    ),
    Spec(
        "ranksight_ranks_expected", _G, "", (),
        "Ranks that should be on this host, where the launcher says so.", "/proc",
    ),
    Spec(
        "ranksight_ranks_seen", _G, "", (),
        "Ranks of which a ring was seen.", _AGENT,
    ),
    Spec(
        "ranksight_run_info", _G, "", ("run",),
        "The run that is observed; always 1.", _AGENT,
    ),
    # experts
    Spec(
        "ranksight_expert_tokens", _G, "", ("layer", "expert"),
        'Tokens of an expert per step over the last 100 steps; the hottest of each layer, `expert="other"` is the sum of the rest.',
        _EVENT,
    ),
    Spec(
        "ranksight_expert_balance", _G, "", ("layer", "measure"),
        "How even the load of a layer is over the last 100 steps: `max_over_mean`, `cv`, `entropy`, `gini`, `max_violation` "
        "(mean over steps), `dropped` (fraction of tokens).", _EVENT,
    ),
    Spec(
        "ranksight_dead_experts", _G, "", ("layer",),
        "Experts of a layer without a token in the last 50 steps.", _EVENT,
    ),
    Spec(
        "ranksight_expert_rank_rows_total", _C, "", ("rank",),
        "Rows that the experts of a rank got in forward passes, from the splits of all-to-alls.", _JOIN,
    ),
    Spec(
        "ranksight_expert_rank_seconds_total", _C, "seconds", ("rank",),
        "Time of a rank between the all-to-all that brings rows to its experts and the one that takes them home.", _JOIN,
    ),
    Spec(
        "ranksight_expert_rank_imbalance_ratio", _G, "", ("rank",),
        "Rows of a rank divided by the mean of its group, over the last 200 steps.", _JOIN,
    ),
    Spec(
        "ranksight_expert_lost_seconds_total", _C, "seconds", (),
        "Expert time of the slowest rank minus the mean, summed over all-to-alls, of the group that loses most in a step.", _JOIN,
    ),
    Spec(
        "ranksight_folded_experts", _G, "", (),
        'Experts counted under expert "other" because the number of series is bounded.', _AGENT,
    ),
    Spec(
        "ranksight_folded_layers", _G, "", (),
        "Layers whose experts are left out because the number of series is bounded.", _AGENT,
    ),
    # completeness
    Spec(
        "ranksight_records_written_total", _C, "", ("rank", "ring"),
        "Records written by the rank.", _HEAD,
    ),
    Spec(
        "ranksight_records_dropped_total", _C, "", ("rank", "ring"),
        "Records overwritten before the agent could read them.", _AGENT,
    ),
    Spec(
        "ranksight_records_skipped_total", _C, "", ("rank",),
        "Operations that the hooks left out to keep within their budget.", _HEAD,
    ),
    Spec(
        "ranksight_late_completions_total", _C, "", ("rank",),
        "Completions that found their record overwritten.", _HEAD,
    ),
    Spec(
        "ranksight_unreadable_rings", _G, "", (),
        "Ring files that this agent can't read.", _AGENT,
    ),
    # cost of the observation itself
    Spec(
        "ranksight_hook_seconds_total", _C, "seconds", ("rank", "part"),
        "Time the tap and the Python hooks took on calling threads.", _HEAD,
    ),
    Spec(
        "ranksight_hook_overhead_ratio", _G, "", ("rank",),
        "Time of tap and hooks divided by the time of all steps so far.", _HEAD,
    ),
    Spec(
        "ranksight_hook_errors_total", _C, "", ("rank", "part"),
        "Internal errors of tap and hooks, swallowed and counted.", _HEAD,
    ),
    Spec(
        "ranksight_detail_level", _G, "", ("rank",),
        "Detail in force: 1 full, 2 sampled, 3 counters only.", _HEAD,
    ),
    Spec(
        "ranksight_detail_changes_total", _C, "", ("direction",),
        "Times the agent asked for less (lower) or more detail (raise) to keep the tap within its budget.", _AGENT,
    ),
    Spec(
        "ranksight_overhead_budget_ratio", _G, "", (),
        "Share of a rank's time that the tap may take.", _AGENT,
    ),
    Spec(
        "ranksight_findings_total", _C, "", ("kind", "severity"),
        "Findings so far; one that gets worse is counted again with its new severity.", "agent: detectors",
    ),
    Spec(
        "ranksight_stop_state", _G, "", (),
        "0 no stop, 1 ranks are to leave, 2 processes are ended, 3 ranks have left, 4 were ended, 5 the job was through.",
        "agent: policy",
    ),
    Spec(
        "ranksight_agent_poll_seconds_total", _C, "seconds", (),
        "CPU time the agent spent reading rings.", _AGENT,
    ),
    Spec(
        "ranksight_agent_polls_total", _C, "", (),
        "Times the agent read all rings.", _AGENT,
    ),
    Spec(
        "ranksight_agent_exposition_seconds_total", _C, "seconds", (),
        "CPU time the agent spent rendering metrics.", _AGENT,
    ),
    Spec(
        "ranksight_trace_spans_total", _C, "", ("fate",),
        "Spans of kept steps by what became of them: `sent`, `failed`, `dropped_queue`, `dropped_budget`; with `[traces]` only.",
        _AGENT,
    ),
)  # fmt: skip
BY_NAME = {spec.name: spec for spec in METRICS}

_INTRODUCTION = """# Metrics

Generated from `agent/catalog.py` by `python -m ranksight.agent.catalog`; a test keeps both equal.

Labels: `rank` is the global rank; `axis` the name of the mesh axis, else the description of the process group, else
`world` or `group`; `op` the public name of the operation; `size` the upper bound of its size class; `window` `1m` or
`5m`, sliding in steps of 5 s; `tail` `p50`, `p95`, `p99`, `p999` or `max` (bandwidth: `p1`, `p50`, `p99`).
A series that is missing means "not known"; it is never exported as zero.

| metric | type | labels | meaning | source |
|---|---|---|---|---|
"""

_BOUND = """
## Number of series

With R ranks on the host (at most 64, more share `rank="other"`), C combinations of (axis, op, size class), G process
groups and L layers with experts, C <= {combinations}, G <= {groups}, L <= 64 (what goes beyond is counted under `other`
and in `ranksight_folded_operations_total`, `ranksight_folded_groups`, `ranksight_folded_experts` and
`ranksight_folded_layers`), an agent exports at most

    R * (C + 1) * (6 + 2 * 10 + 2 * {histogram})   per-rank counters, tails of two windows, two histograms
    + (C + 1) * (4 + 2 * 10 + 6)           shared counters, tails, bandwidth
    + R * (C + 1)                          blame
    + (2 * R + 1) * (G + 1)                process groups
    + {layer} * L                               experts: the {top} hottest of each layer and the rest
    + R * 133 + 21                         steps, ranks, completeness, cost

lines. Histograms have no `size` label and blame has neither `op` nor `size`, so C counts fewer combinations there. A
job of pp 2, dp 2, tp 2, ep 4 on 8 ranks has about 25 combinations and 9,000 lines.
"""


def most_lines(ranks: int, combinations: int = MAX_COMBINATIONS, groups: int = MAX_GROUPS, layers: int = 0) -> int:
    """The bound that docs/metrics.md states, for a host with so many ranks."""
    rows = combinations + 1
    return (
        ranks * rows * (6 + 2 * 10 + 2 * HISTOGRAM_LINES)
        + rows * (4 + 2 * 10 + 6)
        + ranks * rows
        + (2 * ranks + 1) * (groups + 1)
        + LAYER_LINES * layers
        + ranks * 133
        + 21
    )


def markdown() -> str:
    """The text of docs/metrics.md."""
    bound = _BOUND.format(
        combinations=MAX_COMBINATIONS, groups=MAX_GROUPS, histogram=HISTOGRAM_LINES, layer=LAYER_LINES, top=TOP_EXPERTS
    )
    rows = (
        f"| `{spec.name}` | {spec.type} | {', '.join(f'`{label}`' for label in spec.labels) or '-'} | {spec.help} | {spec.source} |\n"
        for spec in METRICS
    )
    return _INTRODUCTION + "".join(rows) + bound


if __name__ == "__main__":
    print(markdown(), end="")
