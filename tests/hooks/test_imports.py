"""Callbacks after imports, with modules made for the test."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ranksight.hooks import imports


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that was never imported before."""
    name = f"awaited_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("import inspect\nvalue = 7\ndef function():\n    return value\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_callback_comes_after_the_module_has_run_and_once(module: str) -> None:
    seen: list[int] = []
    imports.after_import(module, lambda made: seen.append(made.value))
    assert seen == []
    importlib.import_module(module)
    assert seen == [7]
    del sys.modules[module]
    importlib.import_module(module)
    assert seen == [7]


def test_module_that_is_there_already_is_called_back_at_once(module: str) -> None:
    importlib.import_module(module)
    seen: list[str] = []
    imports.after_import(module, lambda made: seen.append(made.__name__))
    assert seen == [module]


def test_module_keeps_its_loader_and_source(module: str) -> None:
    import inspect

    imports.after_import(module, lambda made: None)
    made = importlib.import_module(module)
    assert type(made.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(made.__loader__)
    assert "return value" in inspect.getsource(made.function)


def test_forgotten_callbacks_do_not_run(module: str) -> None:
    seen: list[ModuleType] = []
    callback = seen.append
    imports.after_import(module, callback)
    imports.forget(callback)
    importlib.import_module(module)
    assert seen == []


def test_a_module_that_fails_to_import_fails_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_when_awaited.py").write_text("raise ValueError('mine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports.after_import("broken_when_awaited", lambda made: None)
    with pytest.raises(ValueError, match="mine"):
        importlib.import_module("broken_when_awaited")
