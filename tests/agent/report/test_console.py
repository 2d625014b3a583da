"""The end-of-run table: fits 80 columns, says what is unknown, shows what is wrong."""

import io
from typing import Any

import pytest
from rich.console import Console

from ranksight.agent.report.build import missing
from ranksight.agent.report.console import render, seconds, size


def tail(p50: float | None, p99: float | None) -> dict[str, float | None]:
    return {"p50": p50, "p99": p99}


def report(**change: Any) -> dict[str, Any]:
    row = {
        "axis": "tp", "op": "reduce_scatter_tensor_coalesced", "count": 123456, "bytes": 10 * 2**20,
        "duration_seconds": tail(0.00514, 0.0446), "wait_seconds": tail(None, None), "transfer_seconds": tail(8e-7, 1.0),
    }  # fmt: skip
    whole = missing("run-1", 0, "for the test.") | {
        "verdict": {"healthy": True, "headline": "Nothing wrong was found.", "primary": None},
        "findings": [],
        "collectives": {"by_op": [row]},
        "steps": {"per_rank": [{"seconds": tail(0.5, 0.6), "job_tokens": 4096.0, "step_seconds": 2.0}]},
        "overhead": {"fraction": 0.0041},
    }
    whole["run"] |= {"steps": 40}
    return whole | change


def shown(whole: dict[str, Any]) -> str:
    out = io.StringIO()
    render(whole, Console(file=out, width=80, no_color=True), "runs/x/report.json")
    return out.getvalue()


def test_a_healthy_run_fits_80_columns_and_names_everything() -> None:
    text = shown(report())
    assert max(map(len, text.splitlines())) <= 80
    for part in ("tp", "123,456", "5.14 ms", "44.6 ms", "10 MiB", "2.00 steps/s", "2,048 tokens/s", "0.41 %", "runs/x/report.json"):
        assert part in text
    assert "healthy: Nothing wrong was found." in text
    assert " - " in text  # the unknown wait is neither zero nor empty


def test_a_sick_run_shows_the_root_cause_once_and_the_other_findings() -> None:
    findings = [
        {"severity": "critical", "kind": "deadlock", "message": "Ranks 0, 1 wait for each other.", "advice": "Use one order."},
        {"severity": "warning", "kind": "pause", "message": "A pause.", "advice": "-"},
    ]
    verdict = {"healthy": False, "headline": "Ranks 0, 1 wait for each other.", "primary": 0}
    text = shown(report(findings=findings, verdict=verdict))
    assert text.count("Ranks 0, 1 wait for each other.") == 1
    assert "not healthy" in text
    assert "Use one order." in text
    assert "warning pause: A pause." in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"state": "left"}, "stopped: all ranks left after step 7, because of nonfinite"),
        ({"state": "ended"}, "stopped: the processes were ended, because of nonfinite"),
        ({"state": "observed"}, "not stopped, observed only (stop), because of nonfinite"),
        ({"state": "completed", "finding": None}, "not stopped: the job was through first, because ranksight_loss is 9."),
    ],
)
def test_a_stop_is_one_line(change: dict[str, Any], text: str) -> None:
    stop = {"step": 7, "action": "stop", "finding": {"kind": "nonfinite"}, "reason": "ranksight_loss is 9."}
    assert text in shown(report(stop=stop | change)).splitlines()


def test_a_run_that_nobody_saw_prints_no_table() -> None:
    text = shown(missing("run-1", 0, "the agent left no report."))
    assert "axis" not in text
    assert "not healthy: There are no records of this run: the agent left no report." in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (8e-7, "0.8 us"), (0.000605, "605 us"), (0.0123, "12.3 ms"), (0.419, "419 ms"), (2.5, "2.5 s")]
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (512, "512 B"), (1536, "1.5 KiB"), (160 * 2**20, "160 MiB"), (2**41, "2 TiB")])
def test_size(value: float | None, text: str) -> None:
    assert size(value) == text
