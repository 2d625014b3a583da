"""The folder that goes on PYTHONPATH so that an unmodified training script is watched.

    make(folder) -> folder         folder/sitecustomize.py      -> hooks/injected.py
                                   folder/ranksight_imports.py  -> hooks/imports.py
                                   folder/ranksight/hooks       -> hooks/
    environment(folder, ...)       PYTHONPATH and RANKSIGHT_* for the launcher

These are links into this package, so nothing has to be installed where the trainer lives: `ranksight` is a namespace
package, and its `hooks` need only the standard library and the torch that is there. Standard library alone; the agent
calls this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ranksight.hooks import ring

_HOOKS = Path(__file__).resolve().parent
_LINKS = {"sitecustomize.py": "injected.py", "ranksight_imports.py": "imports.py", "ranksight/hooks": ""}


def make(folder: Path) -> Path:
    """Lay the folder out (made when missing) and return its absolute path; OSError when that is not possible."""
    folder = folder.absolute()
    (folder / "ranksight").mkdir(parents=True, exist_ok=True)
    for name, target in _LINKS.items():
        link = folder / name
        if link.is_symlink():
            link.unlink()
        link.symlink_to(_HOOKS / target)
    return folder


def environment(folder: Path, ring_dir: Path, run_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environ` with what makes Python processes started from it attach; `folder` comes from `make`."""
    path = environ.get("PYTHONPATH")
    return {
        **environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else str(folder),
        ring.ENV_RING_DIR: str(ring_dir),
        ring.ENV_RUN_ID: run_id,
    }
