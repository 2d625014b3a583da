"""The dashboards: equal to what the generator writes, known to Grafana's own models, about series that exist.

There is no Grafana server to draw it. Grafana's published models read it and write it again: what they lose is a field
that Grafana does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from ranksight.dashboards.__main__ import GRAFANA, write_boards
from ranksight.dashboards.boards import BOARDS
from ranksight.dashboards.panels import WIDTH
from tests.support.promql import names_and_labels
from tests.support.series import EXPORTED, RECORDED

COMMITTED = {board.name: json.loads((GRAFANA / f"{board.name}.json").read_text()) for board in BOARDS}
PANELS = [
    (name, panel) for name, committed in COMMITTED.items() for panel in committed["panels"] if panel["type"] != "row"
]
EXPRESSIONS = [(f"{name}: {panel['title']}", target["expr"]) for name, panel in PANELS for target in panel["targets"]]


def lost(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Where `after` lacks what `before` has."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost(value, after.get(name), f"{where}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from lost(*pair, f"{where}[{number}]")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def test_the_committed_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    write_boards(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in GRAFANA.iterdir()
    }


@pytest.mark.parametrize("name", COMMITTED)
def test_grafanas_models_know_every_field(name: str) -> None:
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(COMMITTED[name])))
    assert list(lost(COMMITTED[name], written)) == []


@pytest.mark.parametrize("name", COMMITTED)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = COMMITTED[name]["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < WIDTH, panel["title"]
        taken |= cells


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_queries_ask_for_series_that_exist_with_the_labels_they_have(title: str, expression: str) -> None:
    known = EXPORTED | RECORDED
    for name, labels in names_and_labels(promql_parser.parse(expression)):
        assert name in known, (title, name)
        assert labels - known[name] == set(), (title, name, labels)


@pytest.mark.parametrize("name", COMMITTED)
def test_legends_and_variables_name_what_is_there(name: str) -> None:
    asked = COMMITTED[name]["templating"]["list"]
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(COMMITTED[name]["panels"])))
    assert used <= {variable["name"] for variable in asked}
    for variable in asked:
        if variable["type"] == "query":
            query = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert query and query[2] in EXPORTED[query[1]]


@pytest.mark.parametrize("name", COMMITTED)
def test_every_panel_says_how_to_read_it(name: str) -> None:
    assert [panel["title"] for board, panel in PANELS if board == name and len(panel["description"]) < 20] == []
