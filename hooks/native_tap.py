"""Python's side of the native tap: load the compiled library, put its kernels and its `Work.wait` in place.

native_build.library() -> ctypes -> ranksight_install(ring file)   kernels at BackendSelect, heartbeat thread
                                 -> ranksight_wait_method          replaces Work.wait, which calls the old one
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from ranksight.hooks import native_build

_MESSAGE_BYTES = 1024
_first_wait: dict[str, Any] = {}


class NativeTap:
    """The tap of this process, in place until `remove`."""

    def __init__(self, ring_path: Path) -> None:
        """Install it; `native_build.Unavailable` with the reason when that is not possible."""
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            raise native_build.Unavailable("this torch is built without torch.distributed")
        path = native_build.library()
        try:
            self._library = ctypes.PyDLL(str(path))  # keeps the GIL: every call here is short
        except OSError as error:
            raise native_build.Unavailable(f"cannot load {path}: {error}") from error
        self._library.ranksight_wait_method.restype = ctypes.py_object
        self._library.ranksight_wait_method.argtypes = [ctypes.py_object, ctypes.py_object]
        skip, keep = foreign_folders(Path(torch.__file__).parent)
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        failed = self._library.ranksight_install(
            os.fsencode(ring_path), os.fsencode(skip), os.fsencode(keep), message, ctypes.c_size_t(_MESSAGE_BYTES)
        )
        text = message.value.decode("utf-8", "replace")
        if failed:
            raise native_build.Unavailable(text)
        self.missing_ops = text.split()
        self._work = work_class()
        # From the class's own dict: what getattr returns is no method any more and would lose `self`.
        # In a forked child the parent's method is still there, so the first one found is kept.
        self._wait = _first_wait.setdefault("wait", self._work.__dict__["wait"])
        self._work.wait = self._library.ranksight_wait_method(self._work, self._wait.__func__)

    def remove(self) -> None:
        """Take kernels and method out again; operations in flight still get their times."""
        self._work.wait = self._wait
        self._library.ranksight_remove()

    def drain(self, timeout_s: float) -> bool:
        """Nothing of this tap needs a living interpreter, so there is nothing to wait for."""
        return True

    def forget_groups(self, name: str | None) -> None:
        """The next use of group `name` (every group when None) starts a new incarnation."""
        self._library.ranksight_forget_groups(None if name is None else name.encode())


def work_class() -> Any:
    """The class whose `wait` is replaced; untyped, because assigning to a method is what this is for."""
    import torch

    return torch._C._distributed_c10d.Work


def foreign_folders(torch_folder: Path) -> tuple[str, str]:
    """Beginnings of files that are not the user's, and what after such a beginning is the user's all the same; as lines.

    Foreign are torch and the code that it generates, the standard library, ranksight, and the decorator of
    `typing_extensions` that wraps deprecated functions of torch.
    """
    paths = sysconfig.get_paths()
    folders = {str(torch_folder), str(Path(__file__).parent), paths["stdlib"], paths["platstdlib"]}
    prefixes = {f"{folder}/" for name in folders for folder in (name, os.path.realpath(name))}
    prefixes |= {f"{torch_folder.parent}/typing_extensions.", f"{paths['purelib']}/typing_extensions."}
    prefixes.add(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{tempfile.gettempdir()}/torchinductor_")
    prefixes |= {"<frozen ", "<eval_with_key>"}
    return "".join(f"{prefix}\n" for prefix in sorted(prefixes)), "site-packages/\ndist-packages/\n"
