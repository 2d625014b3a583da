"""The `sitecustomize` that `ranksight run` puts on the PYTHONPATH of everything that it launches.

    python starts -> this file -> torch imported? -> rank_process.torch_imported -> attach, now or at init_process_group

A process that never imports torch gets one more finder and nothing else. The `sitecustomize` that this one shadows
runs afterwards, as if it had been found first.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would be loaded in every process


def _torch_imported(module: ModuleType) -> None:
    try:
        from ranksight.hooks import rank_process

        rank_process.torch_imported(module)
    except Exception as error:  # training goes on without us
        print(f"ranksight: not attached: {type(error).__name__}: {error}", file=sys.stderr)


def _run_shadowed() -> None:
    """Run the next sitecustomize on the path; what it raises is reported by Python's site module, as ever."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]  # noqa: PTH100 - as above
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("RANKSIGHT_RING_DIR"):
    try:
        # hooks/imports.py, laid beside this file by `inject.make`
        from ranksight_imports import after_import  # type: ignore[import-not-found]

        after_import("torch", _torch_imported)
    except Exception as problem:
        print(f"ranksight: not attached: {type(problem).__name__}: {problem}", file=sys.stderr)
_run_shadowed()
