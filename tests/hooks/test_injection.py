"""The injected sitecustomize in Python processes that are not ranks, and the question which ones are."""

import subprocess
import sys
from pathlib import Path

import pytest

from ranksight.hooks import inject, rank_process

TORCHRUN = ["/usr/bin/python", "/env/bin/torchrun", "--nproc-per-node", "2", "train.py"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return inject.make(tmp_path / "inject")


def python(folder: Path, code: str, tmp_path: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    environ = inject.environment(folder, tmp_path / "rings", "a run", {"PATH": "/usr/bin:/bin", **extra})
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )


def test_a_process_without_torch_loads_nothing_of_ours(folder: Path, tmp_path: Path) -> None:
    code = "import sys; print([name for name in sys.modules if name.startswith('ranksight')])"
    assert python(folder, code, tmp_path, RANK="0").stdout == "['ranksight_imports']\n"
    assert not (tmp_path / "rings").exists()


def test_the_shadowed_sitecustomize_runs_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('mine ran')\n")
    assert python(folder, "print('script')", tmp_path, PYTHONPATH=str(tmp_path / "site")).stdout == "mine ran\nscript\n"


def test_torch_that_fails_to_import_fails_as_ever(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text("value = 1\n")  # not the real one: attaching fails
    done = python(folder, "import torch; print(torch.value)", tmp_path, PYTHONPATH=str(tmp_path / "site"), RANK="0")
    assert done.stdout == "1\n"
    assert done.stderr.startswith("ranksight: not attached: ")
    assert done.stderr.count("\n") == 1


def test_making_the_folder_twice_is_fine(folder: Path) -> None:
    assert inject.make(folder) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["ranksight", "ranksight_imports.py", "sitecustomize.py"]


def test_environment_keeps_the_pythonpath_of_the_user(tmp_path: Path) -> None:
    made = inject.environment(tmp_path, Path("/rings"), "7", {"PYTHONPATH": "/mine"})
    assert made == {"PYTHONPATH": f"{tmp_path}:/mine", "RANKSIGHT_RING_DIR": "/rings", "RANKSIGHT_RUN_ID": "7"}


@pytest.mark.parametrize(
    ("environ", "argv", "expected"),
    [
        ({"RANK": "0"}, ["python", "train.py"], True),
        ({"RANK": "3"}, ["python", "-u", "-m", "package.train"], True),
        ({}, ["python", "train.py"], False),
        ({"RANK": "0"}, TORCHRUN, False),  # Kubernetes sets RANK for the launcher of a node
        ({"RANK": "0"}, ["python", "-X", "dev", "-m", "torch.distributed.run", "train.py"], False),
        ({"RANK": "0", "RANKSIGHT_RANK_PID": "5"}, ["python", "-c", "from torch import compile_worker"], False),
        ({"RANK": "0", "RANKSIGHT_RANK_PID": "7"}, ["python", "train.py"], True),  # itself, after exec
        ({"RANK": "first"}, ["python", "train.py"], False),
    ],
)
def test_which_processes_are_ranks(environ: dict[str, str], argv: list[str], expected: bool) -> None:
    assert rank_process.is_rank(environ, argv, pid=7) is expected
