"""A checkpoint as the reference trainer leaves it, with one file that is no tensor."""

from __future__ import annotations

from pathlib import Path

from ranksight.trainer import manifest


def publish(folder: Path, step: int) -> Path:
    """The checkpoint of pp 2 after `step` steps of 16 samples."""
    draft, final = manifest.draft_path(folder, step), manifest.final_path(folder, step)
    draft.mkdir(parents=True)
    (draft / "shard").write_bytes(str(step % 10).encode() * 5000)
    manifest.publish(draft, final, {"step": step, "cursor": 16 * step, "plan": {"pp": 2, "dp": 1, "tp": 1}})
    return final
