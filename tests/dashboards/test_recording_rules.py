"""The recording rules: equal to what the generator writes, about metrics that exist, and right on known series."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from ranksight.dashboards import recording_rules
from tests.support.promql import names_and_labels
from tests.support.series import EXPORTED, RECORDED

RULES = [rule for group in recording_rules.GROUPS for rule in group.rules]
BY_RECORD = {rule.record: rule for rule in RULES}


def promtool(*arguments: str | Path) -> None:
    ran = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_committed_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    recording_rules.write(tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in recording_rules.RULES.iterdir()}


def test_records_are_unique_and_named_level_metric_operations() -> None:
    assert len(BY_RECORD) == len(RULES)
    for record in BY_RECORD:
        where, metric, operations = record.split(":")
        assert where.startswith("run") and metric.startswith("ranksight_") and operations, record


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.record)
def test_every_rule_asks_for_series_that_exist_with_the_labels_they_have(rule: recording_rules.Rule) -> None:
    known = EXPORTED | RECORDED
    for name, labels in names_and_labels(promql_parser.parse(rule.expr)):
        assert name in known, name
        # `members` comes from count_values.
        assert labels - known[name] - {"members"} == set(), (name, labels)


@pytest.mark.system("promtool")
def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *sorted(recording_rules.RULES.glob("*.yml")))


def run_info(*hosts: str) -> list[dict[str, str]]:
    return [series(f'ranksight_run_info{{job="train",instance="{host}",run="r1"}}', "1x60") for host in hosts]


def series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


def member(metric: str, rank: int, **more: str) -> str:
    """A series of group "1" of four ranks on two hosts, two on each."""
    labels = {"job": "train", "instance": f"h{rank // 2}", "rank": str(rank), "group": "1", "axis": "dp", **more}
    return f"{metric}{{{','.join(f'{name}={value!r}' for name, value in labels.items())}}}"


def result(labels: dict[str, str], value: float) -> dict[str, Any]:
    return {"labels": f"{{{','.join(f'{name}={text!r}' for name, text in labels.items())}}}", "value": round(value, 6)}


class Checks:
    """A promtool unit test: series of one sample every 15 s, then records and the samples they must have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def check(self, input_series: list[dict[str, str]], at: str, expected: dict[str, list[dict[str, Any]]]) -> None:
        assert set(expected) <= set(BY_RECORD)
        # promtool compares floats for equality, so both sides are rounded.
        queries = [
            {"expr": f"round({record}, 0.000001)", "eval_time": at, "exp_samples": samples} for record, samples in expected.items()
        ]
        content = {
            "rule_files": [str(path) for path in sorted(recording_rules.RULES.glob("*.yml"))],
            "evaluation_interval": "15s",
            "tests": [{"interval": "15s", "input_series": input_series, "promql_expr_test": queries}],
        }
        path = self._folder / f"check{next(self._numbers)}.yml"
        path.write_text(yaml.safe_dump(content))
        promtool("test", "rules", path)


@pytest.fixture
def checks(tmp_path: Path) -> Checks:
    return Checks(tmp_path)


GROUP_INFO = 'ranksight_group_info{{job="train",instance="{}",group="1",axis="dp",ranks="0-3",members="4"}}'
IN_GROUP = {"axis": "dp", "group": "1", "job": "train", "run": "r1"}


def collective_seconds(per_15s: dict[int, float]) -> list[dict[str, str]]:
    infos = [series(GROUP_INFO.format(host), "1x60") for host in ("h0", "h1")]
    return [
        *run_info("h0", "h1"),
        *infos,
        *(series(member("ranksight_group_collective_seconds_total", r), f"0+{s}x60") for r, s in per_15s.items()),
    ]


@pytest.mark.system("promtool")
def test_the_member_with_the_least_collective_time_is_the_awaited_one(checks: Checks) -> None:
    # Rank 2 sits on the other host than ranks 0 and 1; the clocks of the hosts play no part.
    checks.check(
        collective_seconds({0: 9.0, 1: 9.0, 2: 1.5, 3: 7.5}),
        "5m",
        {"run_group_rank:ranksight_group_awaited_seconds:rate1m": [result({**IN_GROUP, "rank": "2"}, 0.5)]},
    )


@pytest.mark.system("promtool")
def test_nobody_is_called_awaited_when_a_member_is_not_seen(checks: Checks) -> None:
    checks.check(
        collective_seconds({0: 9.0, 1: 9.0, 2: 1.5}), "5m", {"run_group_rank:ranksight_group_awaited_seconds:rate1m": []}
    )


def launched(values: dict[int, str], oldest: str) -> list[dict[str, str]]:
    return [
        *run_info("h0", "h1"),
        *(series(member("ranksight_group_operations_launched_total", rank), text) for rank, text in values.items()),
        series('ranksight_in_flight_oldest_seconds{job="train",instance="h0",rank="0"}', oldest),
    ]


@pytest.mark.system("promtool")
def test_the_member_whose_counter_lags_in_a_standstill_did_not_join(checks: Checks) -> None:
    # All move until 2m; then ranks 0, 1 and 3 launch one more operation and rank 2 does not.
    moving, one_more, stays = "0+100x8 ", "801x50", "800x50"
    hang = launched({0: moving + one_more, 1: moving + one_more, 2: moving + stays, 3: moving + one_more}, "0x8 0+15x50")
    record = "run_group_rank:ranksight_group_not_joined_operations:lag60s"
    checks.check(hang, "2m15s", {record: []})
    checks.check(hang, "4m", {record: [result({**IN_GROUP, "rank": "2"}, 1)]})


@pytest.mark.system("promtool")
def test_a_lag_between_scrapes_of_a_moving_group_is_no_hang(checks: Checks) -> None:
    moving = launched({0: "0+100x60", 1: "0+100x60", 2: "0 0+100x60", 3: "0+100x60"}, "0.1x60")
    lag = "run_group_rank:ranksight_group_operations_launched:lag"
    samples = [result({**IN_GROUP, "rank": str(rank)}, 100 if rank == 2 else 0) for rank in range(4)]
    checks.check(moving, "5m", {lag: samples, "run_group_rank:ranksight_group_not_joined_operations:lag60s": []})


@pytest.mark.system("promtool")
def test_quantiles_of_a_run_merge_the_histograms_of_its_hosts(checks: Checks) -> None:
    # Per 15 s: 99 operations of at most 1 ms on each host, and one of 50 to 100 ms on h1 alone: 1 of 199.
    def bucket(host: str, le: str, per_15s: int) -> dict[str, str]:
        labels = f'job="train",instance="{host}",rank="{host[1]}",axis="dp",op="all_reduce",le="{le}"'
        return series(f"ranksight_collective_duration_seconds_bucket{{{labels}}}", f"0+{per_15s}x60")

    h0 = [bucket("h0", le, 99) for le in ("0.0005", "0.001", "0.05", "0.1", "+Inf")]
    h1 = [bucket("h1", le, 99) for le in ("0.0005", "0.001", "0.05")] + [bucket("h1", le, 100) for le in ("0.1", "+Inf")]
    labels = {"axis": "dp", "job": "train", "op": "all_reduce", "run": "r1"}
    checks.check(
        [*run_info("h0", "h1"), *h0, *h1],
        "5m",
        {
            "run_axis_op:ranksight_collective_duration_seconds:p50_1m": [result(labels, 0.5 * 199 / 198 * 0.0005)],
            "run_axis_op:ranksight_collective_duration_seconds:p999_1m": [result(labels, 0.05 + 0.05 * (0.999 * 199 - 198))],
        },
    )


@pytest.mark.system("promtool")
def test_two_runs_on_one_server_are_kept_apart(checks: Checks) -> None:
    infos = [series(f'ranksight_run_info{{job="train",instance="h{n}",run="r{n}"}}', "1x60") for n in (0, 1)]
    count = 'ranksight_step_duration_seconds_count{{job="train",instance="h{}",rank="0"}}'.format
    steps = [series(count(n), f"0+{15 * (n + 1)}x60") for n in (0, 1)]
    expected = [result({"job": "train", "run": "r0"}, 1), result({"job": "train", "run": "r1"}, 2)]
    checks.check([*infos, *steps], "5m", {"run:ranksight_steps:rate1m": expected})


@pytest.mark.system("promtool")
def test_dropped_records_are_a_share_of_those_written(checks: Checks) -> None:
    ring = 'job="train",instance="h0",rank="0",ring="collectives"'
    counters = [
        series(f"ranksight_records_written_total{{{ring}}}", "0+1000x60"),
        series(f"ranksight_records_dropped_total{{{ring}}}", "0+50x60"),
    ]
    labels = {"job": "train", "run": "r1"}
    checks.check([*run_info("h0"), *counters], "5m", {"run:ranksight_records_dropped:ratio_rate5m": [result(labels, 0.05)]})
    # Without any record there is nothing to say, and that is not 0.
    idle = [series(f"ranksight_records_{what}_total{{{ring}}}", "7x60") for what in ("written", "dropped")]
    checks.check([*run_info("h0"), *idle], "5m", {"run:ranksight_records_dropped:ratio_rate5m": []})
