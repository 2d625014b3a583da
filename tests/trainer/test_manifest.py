"""A checkpoint counts when it is whole, and never before: the writer dies at every one of its file operations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ranksight.trainer import manifest

# Publishes step 3 in a folder that holds steps 1 and 2, keeps two, and dies when its file operations are used up.
WRITER = """
import os, sys
from pathlib import Path
from ranksight.trainer import manifest

folder, left = Path(sys.argv[1]), int(sys.argv[2])
OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}

def die(event, args):
    global left
    if event in OPERATIONS and str(folder) in str(args[0]):
        if left == 0:
            os._exit(9)
        left -= 1

draft = manifest.draft_path(folder, 3)
sys.addaudithook(die)
draft.mkdir()
(draft / "shard").write_bytes(b"3" * 5000)
manifest.publish(draft, manifest.final_path(folder, 3), {"step": 3})
manifest.retain(folder, 2)
"""


def publish(folder: Path, step: int) -> Path:
    draft, final = manifest.draft_path(folder, step), manifest.final_path(folder, step)
    draft.mkdir()
    (draft / "shard").write_bytes(str(step).encode() * 5000)
    manifest.publish(draft, final, {"step": step})
    return final


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, newest first; each must be sound."""
    return [manifest.verify(path)["step"] for path in manifest.complete(folder)]


def test_a_writer_that_dies_anywhere_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    seen = set()
    for operations in range(100):
        folder = tmp_path / f"{operations:02d}"
        folder.mkdir()
        publish(folder, 1)
        publish(folder, 2)
        code = subprocess.run([sys.executable, "-c", WRITER, str(folder), str(operations)], check=False).returncode
        assert code in (0, 9)
        found = steps(folder)
        seen.add(tuple(found))
        assert found in ([2, 1], [3, 2, 1], [3, 2])
        manifest.discard_drafts(folder)
        publish(folder, 3)  # the next generation can write the same step again
        manifest.retain(folder, 2)
        assert steps(folder) == [3, 2]
        assert sorted(p.name for p in folder.iterdir()) == ["step-00000002", "step-00000003"]
        if code == 0:
            break
    else:
        pytest.fail("the writer never came to its end")
    assert operations > 10
    assert seen == {(2, 1), (3, 2, 1), (3, 2)}


def test_replacing_a_checkpoint_of_the_same_step_never_shows_half_of_it(tmp_path: Path) -> None:
    final = publish(tmp_path, 3)
    (final / "left over").write_bytes(b"from before")
    publish(tmp_path, 3)
    assert steps(tmp_path) == [3]
    assert not (final / "left over").exists()


@pytest.mark.parametrize("name", ["shard", manifest.MANIFEST, manifest.MARKER])
def test_a_truncated_or_missing_file_makes_it_incomplete(tmp_path: Path, name: str) -> None:
    for harm in (lambda path: path.write_bytes(path.read_bytes()[:-1]), Path.unlink):
        final = publish(tmp_path, 3)
        harm(final / name)
        assert not manifest.is_complete(final)
        assert manifest.complete(tmp_path) == []
        with pytest.raises(manifest.CheckpointDamaged, match="no complete checkpoint"):
            manifest.verify(final)


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    final = publish(tmp_path, 3)
    content = bytearray((final / "shard").read_bytes())
    content[1234] ^= 1
    (final / "shard").write_bytes(content)
    assert manifest.is_complete(final)
    with pytest.raises(manifest.CheckpointDamaged, match="shard differ from the manifest"):
        manifest.verify(final)


def test_retention_keeps_the_newest_and_takes_broken_ones_with_the_old(tmp_path: Path) -> None:
    for step in range(1, 6):
        publish(tmp_path, step)
    (manifest.final_path(tmp_path, 2) / manifest.MARKER).unlink()
    (manifest.final_path(tmp_path, 4) / manifest.MARKER).unlink()
    manifest.retain(tmp_path, 2)
    assert steps(tmp_path) == [5, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000004", "step-00000005"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert manifest.complete(tmp_path / "never") == []


def test_the_newest_clean_checkpoint_stays_however_old(tmp_path: Path) -> None:
    for step in range(1, 7):
        publish(tmp_path, step)
    manifest.retain(tmp_path, 2, clean_steps=3)
    assert steps(tmp_path) == [6, 5, 3]
    publish(tmp_path, 7)
    manifest.retain(tmp_path, 2, clean_steps=3)
    assert steps(tmp_path) == [7, 6, 3]
    manifest.retain(tmp_path, 2, clean_steps=6)
    assert steps(tmp_path) == [7, 6]
