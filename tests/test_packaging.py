"""What gets installed: the wheel is complete and clean, and each part needs no more than it says.

The wheel is built the way an index would build it, through the sdist, from a copy of the checkout. Checks of what
a part needs run in interpreters that start with nothing (`python -I -S`) and are given the folders they may use.
"""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

FOLDERS = ("agent", "hooks", "dashboards", "trainer")
STDLIB_ONLY = ("records", "wire", "ring", "inject", "native_build")
TOP_LEVEL = {
    *FOLDERS, "tests", "docs", ".ci", ".links", ".gitignore", "pyproject.toml", "constraints.txt", "Makefile",
    "README.md", "LICENSE",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in FOLDERS:
        shutil.copytree(checkout / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (checkout / name).exists():
            shutil.copy(checkout / name, source / name)
    # Without --wheel or --sdist, build makes the sdist, and the wheel from it.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel would put into site-packages."""
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def only_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with torch and the distributions that torch itself requires, and nothing else."""
    folder = tmp_path_factory.mktemp("only_torch")
    todo, done = ["torch"], set[str]()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        distribution = metadata.distribution(name)
        for top in {Path(str(file)).parts[0] for file in distribution.files or ()} - {".."}:
            target = Path(str(distribution.locate_file(top)))
            if not (folder / top).exists() and target.exists() and top != "__pycache__":
                (folder / top).symlink_to(target)
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement:
                todo.append(re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower())
    return folder


def project(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text())


def isolated(code: str, *path: Path) -> str:
    """What `code` prints in an interpreter that has the standard library and the folders in `path`, or fails with."""
    prelude = f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}\n"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", prelude + code], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported_packages(source: Path) -> set[str]:
    """The top-level names that a module imports anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_the_wheel_holds_every_file_of_the_four_packages(checkout: Path, wheel: Path) -> None:
    expected = {
        f"ranksight/{path.relative_to(checkout)}"
        for folder in FOLDERS
        for path in (checkout / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_the_wheel_installs_nothing_but_ranksight(wheel: Path) -> None:
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"ranksight"}
    assert not any(name.endswith("ranksight/__init__.py") for name in zipfile.ZipFile(wheel).namelist())


def test_pyproject_lists_every_package(checkout: Path) -> None:
    found = {
        ".".join(("ranksight", *init.parent.relative_to(checkout).parts))
        for folder in FOLDERS
        for init in (checkout / folder).rglob("__init__.py")
    }
    assert set(project(checkout)["tool"]["setuptools"]["packages"]) == found


def test_the_console_script_points_at_a_function(unpacked: Path) -> None:
    entry_points = configparser.ConfigParser()
    entry_points.read(next(unpacked.glob("*.dist-info")) / "entry_points.txt")
    module, function = entry_points["console_scripts"]["ranksight"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_hooks_import_with_torch_and_nothing_else(unpacked: Path, only_torch: Path, tmp_path: Path) -> None:
    (tmp_path / "ranksight").mkdir()
    (tmp_path / "ranksight" / "hooks").symlink_to(unpacked / "ranksight" / "hooks")
    names = [
        ".".join(("ranksight", *path.relative_to(unpacked / "ranksight").with_suffix("").parts))
        for path in modules(unpacked / "ranksight" / "hooks")
        if path.name not in {"injected.py", "__init__.py"}  # the first runs as sitecustomize, not as a module
    ]
    code = f"""
import importlib, warnings
warnings.simplefilter("ignore")  # torch's own
import torch
for name in {["ranksight.hooks", *names]!r}:
    importlib.import_module(name)
print(torch.__name__)
"""
    assert isolated(code, tmp_path, only_torch) == "torch"


def test_hooks_import_only_torch_and_the_standard_library(checkout: Path) -> None:
    # ranksight_imports is hooks/imports.py under the name that it has beside the injected sitecustomize.
    allowed = {*sys.stdlib_module_names, "torch", "ranksight", "ranksight_imports"}
    foreign = {str(path): imported_packages(path) - allowed for path in modules(checkout / "hooks")}
    assert {path: names for path, names in foreign.items() if names} == {}


@pytest.mark.parametrize("name", STDLIB_ONLY)
def test_what_the_agent_takes_from_hooks_needs_the_standard_library_alone(unpacked: Path, name: str) -> None:
    isolated(f"import ranksight.hooks.{name}", unpacked)


def test_no_module_of_the_agent_loads_torch(checkout: Path) -> None:
    names = [
        ".".join(("ranksight", *path.relative_to(checkout).with_suffix("").parts))
        for folder in ("agent", "dashboards")
        for path in modules(checkout / folder)
        if not path.name.startswith("__")
    ]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("False", "")


def test_constraints_pin_every_declared_package(checkout: Path) -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (checkout / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    declared = project(checkout)
    requirements = [
        *declared["project"]["dependencies"],
        *declared["project"]["optional-dependencies"]["trainer"],
        *declared["dependency-groups"]["dev"],
    ]
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-") for requirement in requirements}
    assert names - pinned == set()


def test_the_top_level_holds_only_what_belongs_there(checkout: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=checkout, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} - TOP_LEVEL == set()
