"""What is on disk is told apart: sound, whole, incomplete, damaged; the format is the reference trainer's own."""

from __future__ import annotations

from pathlib import Path

from ranksight.agent.recovery.checkpoints import State, Written, candidates, examine, size_of
from ranksight.trainer import manifest
from tests.support.checkpoints import publish


def test_what_the_trainer_published_is_sound_and_says_its_step(tmp_path: Path) -> None:
    found = examine(publish(tmp_path, 7), digests=True)
    assert (found.state, found.step, found.facts["cursor"], found.usable) == (State.SOUND, 7, 112, True)
    assert examine(found.path, digests=False).state is State.WHOLE
    assert size_of(found.path) == 5000


def test_one_flipped_bit_is_damage_and_only_digests_see_it(tmp_path: Path) -> None:
    path = publish(tmp_path, 7)
    content = bytearray((path / "shard").read_bytes())
    content[100] ^= 1
    (path / "shard").write_bytes(content)
    assert examine(path, digests=False).state is State.WHOLE
    found = examine(path, digests=True)
    assert (found.state, found.why, found.usable) == (State.DAMAGED, "shard differ from the manifest", False)


def test_each_missing_part_is_named(tmp_path: Path) -> None:
    path = publish(tmp_path, 7)
    (path / "shard").write_bytes(b"7")
    assert examine(path, digests=False).why == "shard has 1 bytes instead of 5000"
    (path / "shard").unlink()
    assert examine(path, digests=False).why == "shard is missing"
    (path / "COMPLETE").unlink()
    found = examine(path, digests=False)
    assert (found.state, found.why, found.step) == (State.INCOMPLETE, "COMPLETE is missing", 7)
    (path / "COMPLETE").write_text("0")
    (path / "manifest.json").write_text("{")
    assert examine(path, digests=False).state is State.INCOMPLETE


def test_formats_without_digests_are_whole_at_best(tmp_path: Path) -> None:
    folder, file = tmp_path / "40", tmp_path / "model.pt"
    folder.mkdir()
    file.write_bytes(b"123")
    written = Written(file, 40, 1, 2, size=3)
    assert examine(file, written, digests=True).state is State.WHOLE
    assert examine(file, Written(file, 40, 1, 2, size=4), digests=True).why == "it has 3 bytes, 4 were written"
    assert examine(folder, Written(folder, 40, 1, 2), digests=True).why == ".metadata is missing"
    (folder / ".metadata").touch()
    assert examine(folder, Written(folder, 40, 1, 2), digests=True).usable
    assert not examine(folder, digests=True).usable  # nobody says its step


def test_renamed_drafts_are_found_beside_the_path_of_the_event(tmp_path: Path) -> None:
    path, gone = publish(tmp_path, 7), manifest.draft_path(tmp_path, 7)
    (tmp_path / "logs").mkdir()
    assert candidates([Written(gone, 7, 1, 2)]) == {path: None}
    assert candidates([Written(tmp_path / "no" / "such", 7, 1, 2)]) == {}
