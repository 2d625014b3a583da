"""Prometheus recording rules, built from the agent's metric catalogue: tails, and the joins over a whole job.

    agent.catalog -> GROUPS -> render() -> dashboards/rules/*.yml      (`python -m ranksight.dashboards`)

Every agent is one target that knows the ranks of its host. Prometheus adds `job` and `instance`; the rules add `run`
from `ranksight_run_info`, so that several runs may share a server. Names are level:metric:operations, where the level
names the labels that are left besides `job`: `run_group_rank` has run, group, axis and rank.

The joins over hosts need no common clock:

- In a group all members leave an operation together. Who arrives last spends the least time in it, so the rank with
  the least collective time is the one that the others wait for, and the difference is what they lose.
- Members launch the same operations. When nothing moves and operations are in flight, the member whose counter lags
  is the one that did not join. While a group moves, a lag is only the time between two scrapes.

A rank is called awaited only in groups of which every member is seen: the one that is missing may be the one.

Quantiles of a job come from histograms, the only thing Prometheus can merge: they are exact to one bucket
(1, 2.5, 5, 10, ...). The agent's own `*_tail_seconds` have 1 % but one rank each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from ranksight.agent import catalog

RULES = Path(__file__).with_name("rules")
WINDOWS = ("1m", "5m")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
RUN = ("job", "run")
GROUP = (*RUN, "group", "axis")
STANDSTILL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Rule:
    """One recording rule."""

    record: str
    expr: str


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated one after the other, in one file; `about` stands above it as a comment."""

    name: str
    about: str
    rules: tuple[Rule, ...]


def metric(name: str) -> str:
    """`ranksight_` and `name`; KeyError when the catalogue has no such metric."""
    return catalog.BY_NAME[f"ranksight_{name}"].name


def per_run(operation: str, labels: tuple[str, ...], series: str) -> str:
    """`series` of every agent with the run it belongs to, aggregated to `labels`."""
    joined = f"{series} * on (job, instance) group_left (run) {metric('run_info')}"
    return f"{operation} by ({', '.join(labels)}) ({joined})"


def tails() -> RuleGroup:
    """Quantiles over all ranks of a run, for every histogram of the catalogue."""
    rules: list[Rule] = []
    for spec in catalog.METRICS:
        if spec.type != catalog.Type.HISTOGRAM:
            continue
        labels = tuple(label for label in spec.labels if label != "rank")
        level = "_".join(("run", *labels))
        for window in WINDOWS:
            buckets = f"{level}_le:{spec.name}_bucket:rate{window}"
            rules.append(Rule(buckets, per_run("sum", (*RUN, *labels, "le"), f"rate({spec.name}_bucket[{window}])")))
            rules.extend(
                Rule(f"{level}:{spec.name}:{tail}_{window}", f"histogram_quantile({quantile}, {buckets})")
                for tail, quantile in QUANTILES.items()
            )
    return RuleGroup("tails", "Tails of a whole run: p50 to p99.9 over all ranks.", tuple(rules))


def groups() -> RuleGroup:
    """Which rank a process group waits for, and which one did not join."""
    within, member = f"on ({', '.join(GROUP)})", (*GROUP, "rank")
    seconds = f"run_group_rank:{metric('group_collective_seconds_total').removesuffix('_total')}:rate1m"
    counter = metric("group_operations_launched_total").removesuffix("_total")
    launched, furthest, lag = f"run_group_rank:{counter}:max", f"run_group:{counter}:max", f"run_group_rank:{counter}:lag"
    oldest = f"run:{metric('in_flight_oldest_seconds')}:max"
    still = f"{furthest} == {furthest} offset {STANDSTILL_SECONDS}s"
    whole = "run_group:ranksight_group_whole:bool"
    seen = f'count_values by ({", ".join(GROUP)}) ("members", count by ({", ".join(GROUP)}) ({seconds}))'
    rules = (
        Rule(seconds, per_run("sum", member, f"rate({metric('group_collective_seconds_total')}[1m])")),
        # Compares a number of series with the label `members`; there is no series for a group with a member missing.
        Rule(
            whole,
            f"max by ({', '.join(GROUP)}) (\n  {seen}\n"
            f"  and on ({', '.join((*GROUP, 'members'))}) {per_run('max', (*GROUP, 'members'), metric('group_info'))}\n)",
        ),
        # The value is what the member that waits most loses, in seconds per second; only the awaited rank is left.
        Rule(
            "run_group_rank:ranksight_group_awaited_seconds:rate1m",
            f"max by ({', '.join(GROUP)}) ({seconds})\n"
            f"  - {within} group_right ()\n"
            f"    (bottomk by ({', '.join(GROUP)}) (1, {seconds}) and {within} {whole})",
        ),
        Rule(launched, per_run("max", member, metric("group_operations_launched_total"))),
        Rule(furthest, f"max by ({', '.join(GROUP)}) ({launched})"),
        Rule(lag, f"{furthest} - {within} group_right () {launched}"),
        Rule(oldest, per_run("max", RUN, metric("in_flight_oldest_seconds"))),
        Rule(
            f"run_group_rank:ranksight_group_not_joined_operations:lag{STANDSTILL_SECONDS}s",
            f"{lag} > 0\n  and {within} ({still})\n  and on (job, run) ({oldest} > {STANDSTILL_SECONDS})",
        ),
    )
    return RuleGroup("groups", "Process groups over all hosts: who is waited for, who did not join.", rules)


def job() -> RuleGroup:
    """Speed, blame, bandwidth and completeness of a whole run."""
    step = metric("step_in_progress")
    dropped, written = metric("records_dropped_total"), metric("records_written_total")
    bus, transfer = metric("collective_bus_bytes_total"), metric("collective_transfer_seconds_total")
    by_op = (*RUN, "axis", "op")
    rules = (
        Rule("run:ranksight_steps:rate1m", per_run("max", RUN, f"rate({metric('step_duration_seconds')}_count[1m])")),
        Rule(f"run_rank:{step}:max", per_run("max", (*RUN, "rank"), step)),
        Rule(
            f"run_rank:{step}:lag",
            f"max by (job, run) (run_rank:{step}:max) - on (job, run) group_right () run_rank:{step}:max",
        ),
        Rule("run:ranksight_rank_up:sum", per_run("sum", RUN, metric("rank_up"))),
        Rule(
            "run_rank_axis:ranksight_blame_seconds:rate5m",
            per_run("sum", (*RUN, "rank", "axis"), f"rate({metric('blame_seconds_total')}[5m])"),
        ),
        Rule(
            "run_rank_axis:ranksight_collective_exposed_seconds:rate5m",
            per_run("sum", (*RUN, "rank", "axis"), f"rate({metric('collective_exposed_seconds_total')}[5m])"),
        ),
        Rule(
            "run_axis_op:ranksight_collective_bus_bytes_per_second:rate5m",
            f"{per_run('sum', by_op, f'rate({bus}[5m])')}\n  / ({per_run('sum', by_op, f'rate({transfer}[5m])')} > 0)",
        ),
        # What is missing from all of the above.
        Rule(
            "run:ranksight_records_dropped:ratio_rate5m",
            f"{per_run('sum', RUN, f'rate({dropped}[5m])')}\n  / ({per_run('sum', RUN, f'rate({written}[5m])')} > 0)",
        ),
        Rule("run:ranksight_hook_overhead_ratio:max", per_run("max", RUN, metric("hook_overhead_ratio"))),
    )
    return RuleGroup("job", "A whole run: speed, blame, bandwidth, and how complete the picture is.", rules)


GROUPS = (tails(), groups(), job())


class _Dumper(yaml.SafeDumper):
    """Writes expressions of several lines as literal blocks."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


def render(group: RuleGroup) -> str:
    """The text of a rule file."""
    rules = [{"record": rule.record, "expr": rule.expr} for rule in group.rules]
    content = {"groups": [{"name": f"ranksight.{group.name}", "rules": rules}]}
    head = f"# {group.about}\n# Generated by `python -m ranksight.dashboards`; a test keeps both equal.\n"
    return head + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000)


def write(folder: Path) -> None:
    """One file per group, named after it."""
    folder.mkdir(exist_ok=True)
    for group in GROUPS:
        (folder / f"{group.name}.yml").write_text(render(group))
