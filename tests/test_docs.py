"""The documents say what is there: links lead somewhere, and targets, commands, metrics and names exist."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from ranksight import hooks
from ranksight.agent import catalog, config
from ranksight.agent.policy import conditions
from ranksight.agent.recovery import runbooks

CHECKOUT = Path(__file__).resolve().parents[1]
DOCUMENTS = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("**/*.md"))]
TEXT = {path: path.read_text() for path in DOCUMENTS}
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def code(document: Path) -> Iterator[str]:
    """What stands in code blocks and in code spans."""
    text = TEXT[document]
    yield from re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(document: Path) -> set[str]:
    """The fragments of the headings."""
    headings = re.findall(r"^#+ +(.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))


@each_document
def test_links_lead_to_a_file_and_a_heading(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT[document]):
        if "://" in target:
            continue
        name, _, fragment = target.partition("#")
        path = (document.parent / name) if name else document
        assert path.exists(), target
        assert not fragment or fragment in anchors(path), target


def test_the_runbooks_are_what_the_tables_say() -> None:
    assert TEXT[CHECKOUT / "docs" / "runbooks.md"] == runbooks.page()


@each_document
def test_make_targets_that_are_named_exist(document: Path) -> None:
    named = {target for text in code(document) for target in re.findall(r"^make ([a-z-]+)|[^\w]make ([a-z-]+)", text)}
    assert {target for pair in named for target in pair if target} - make_targets() == set()


def test_the_table_of_make_targets_is_complete() -> None:
    listed = set(re.findall(r"^\| `make ([a-z-]+)", TEXT[CHECKOUT / "docs" / "development.md"], re.MULTILINE))
    assert listed == make_targets() - {"help"}


@each_document
def test_commands_that_are_named_exist(document: Path) -> None:
    command = get_command(importlib.import_module("ranksight.agent.cli").app)
    known = set(getattr(command, "commands", {}))
    named = {name for text in code(document) for name in re.findall(r"^(?:\$ )?ranksight ([a-z]+)", text, re.MULTILINE)}
    assert named - known == set()


def test_the_configuration_page_is_what_the_models_say() -> None:
    assert TEXT[CHECKOUT / "docs" / "configuration.md"] == config.markdown()


def test_the_metrics_page_is_what_the_catalogue_says() -> None:
    assert TEXT[CHECKOUT / "docs" / "metrics.md"] == catalog.markdown()


def test_the_page_of_stop_conditions_is_what_the_models_say() -> None:
    assert TEXT[CHECKOUT / "docs" / "stop-conditions.md"] == conditions.reference()


@each_document
def test_metrics_that_are_named_exist(document: Path) -> None:
    named = {name for text in code(document) for name in re.findall(r"(?<![:\w])ranksight_[a-z_]+", text)}
    assert named - set(catalog.BY_NAME) == set()


@each_document
def test_names_of_the_hooks_that_are_used_exist(document: Path) -> None:
    used = {name for text in code(document) for name in re.findall(r"\bhooks\.([a-z_]+)\(", text)}
    assert {name for name in used if not hasattr(hooks, name)} == set()


def test_the_table_of_hooks_is_complete() -> None:
    listed = re.findall(r"^\| `([a-z_]+)\(", TEXT[CHECKOUT / "docs" / "unmodified-scripts.md"], re.MULTILINE)
    assert {*listed, "attach", "detach"} == set(hooks.__all__)


@each_document
def test_python_examples_are_python(document: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", TEXT[document], re.MULTILINE | re.DOTALL):
        ast.parse(block)


def test_the_table_of_markers_is_what_pytest_knows() -> None:
    markers = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    section = TEXT[CHECKOUT / "docs" / "development.md"].split("| marker |", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    listed = re.findall(r"^\| `([a-z]+)", section, re.MULTILINE)
    assert listed == [re.split(r"[:(]", marker, maxsplit=1)[0] for marker in markers]
