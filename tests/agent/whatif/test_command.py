"""`ranksight whatif`: reading foreign files, and what is printed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ranksight.agent import cli
from ranksight.agent.whatif import TraceError, read_trace
from ranksight.agent.whatif.command import whatif
from tests.agent.whatif.traces import rows, write

GOOD = rows((0, 0, "F", 0, 0, 1), (0, 0, "B", 0, 1, 3)) + rows((1, 0, "F", 0, 0, 2), (1, 0, "B", 0, 2, 4))
TRACE = Path(__file__).parents[2] / "data" / "straggler_traces" / "trace-ST.parquet"


def test_text_says_the_loss_and_its_places() -> None:
    out = io.StringIO()
    whatif(TRACE, out=out)
    text = out.getvalue()
    assert "8 workers (dp 2 x 4 stages), 32 steps, 6784 operations" in text
    assert "slowdown S         1.1787     15.2% of the time is lost to stragglers" in text
    assert "121.9%     of the loss goes away when stage 3 is ideal (M_S)" in text
    assert "3.1%     of the loss goes away when rank 7 is ideal (M_W)" in text


def test_json_holds_everything() -> None:
    out = io.StringIO()
    whatif(TRACE, as_json=True, out=out)
    found = json.loads(out.getvalue())
    assert (found["schema"], found["workers"], found["dp_size"], found["stages"]) == (1, 8, 2, 4)
    assert found["slowdown"] == pytest.approx(1.1787, rel=1e-3) and found["m_s"] == pytest.approx(1.2194, rel=1e-3)
    assert found["last_stage"]["stage"] == 3 and found["slowest_workers"]["ranks"] == [7]
    assert found["by_stage"][0]["stage"] == 3 and found["by_worker"][0]["rank"] == 7
    assert {len(column) for column in found["steps"].values()} == {32}
    assert len(found["by_type"]) == 11 and len(found["by_type"][0]["step_slowdowns"]) == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["stage", "gmc"]), "no column stage, gmc; expected step, dp_rank,"),
        (lambda t: t.slice(0, 0), "no rows"),
        (lambda t: with_column(t, "optype", ["all-to-all"] * 4), "column optype: all-to-all; expected one of forward-compute"),
        (lambda t: with_column(t, "duration", [1.0, -0.5, 1.0, 1.0]), "column duration, row 1: -0.5; expected seconds >= 0"),
        (lambda t: with_column(t, "start_ts", [0.0, 0.0, float("nan"), 0.0]), "column start_ts, row 2: nan; expected seconds"),
        (lambda t: with_column(t, "stage", [0, None, 0, 0]), "column stage: 1 of 4 values are missing"),
        (lambda t: with_column(t, "rank", ["a", "b", "c", "d"]), "column rank is string; expected int64"),
        (lambda t: with_column(t, "step", [[1]] * 4), "column step is list"),
    ],
)
def test_a_bad_column_is_named(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(change(pa.Table.from_pylist(GOOD)), path)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def with_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def test_not_a_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no trace")
    with pytest.raises(TraceError, match="text: not a readable Parquet file"):
        read_trace(tmp_path / "text")
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path)


def test_an_error_of_the_replay_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.parquet", GOOD[:-1])
    with pytest.raises(TraceError, match=r"trace.parquet: step 0: the dp ranks have \[2, 1\] operations"):
        whatif(path)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["ranksight", "whatif", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return int(exit_.value.code or 0)

    assert run(str(TRACE), "--json") == 0
    assert json.loads(capsys.readouterr().out)["stages"] == 4
    assert run(str(tmp_path / "none")) == 2
    assert capsys.readouterr().err == f"ranksight: {tmp_path / 'none'}: no such file; expected a Parquet file with one row per operation\n"
