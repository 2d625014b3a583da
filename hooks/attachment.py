"""Puts everything in place in a rank, once, and takes it out again: the one file that knows the order.

    ring file -> recorder -> phases, numerics, steps -> tap -> groups -> flow, checkpoints -> pauses, exits, heartbeat

The tap comes before the groups, so that the first group's first operation is seen; the heartbeat comes last, so that a
half-made attachment has no thread. Whatever fails is said in one line or one note; training goes on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ranksight.hooks import rank_process, ring
from ranksight.hooks.patch import Patches
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.ring import Ring, Sizes

SIZES = (Sizes(), Sizes(collectives=2048, events=4096, tap_table=1 << 17, hooks_table=1 << 17))


class Attachment:
    """All that is in place in this process."""

    def __init__(self, made: Ring, prefer: str) -> None:
        import torch

        from ranksight.hooks import tap
        from ranksight.hooks.checkpoints import Checkpoints
        from ranksight.hooks.checksums import Checksums
        from ranksight.hooks.exits import Exits
        from ranksight.hooks.flow import Flow
        from ranksight.hooks.groups import Groups
        from ranksight.hooks.heartbeat import Heartbeat
        from ranksight.hooks.memory import Memory
        from ranksight.hooks.numerics import Numerics
        from ranksight.hooks.origin import Watch
        from ranksight.hooks.pauses import Pauses
        from ranksight.hooks.phases import Phases
        from ranksight.hooks.pipeline import Pipeline
        from ranksight.hooks.settings import Settings
        from ranksight.hooks.steps import Steps
        from ranksight.hooks.stop import Stop

        self.recorder = recorder = Recorder(made)
        self.patches = Patches(recorder, torch.compiler.is_compiling)
        self.phases = Phases(recorder)
        self.numerics = Numerics(recorder)
        self.steps = Steps(recorder, self.phases, self.numerics.flush)
        self.tap = tap.install(made, prefer)
        self.watch = Watch(recorder)
        self.numerics.suspect.append(self.watch.suspect)
        self.groups = Groups(recorder, self.tap.forget_groups)
        self.stop = Stop(recorder, self.tap.set_detail)
        self.pauses = Pauses(recorder)
        self.exits = Exits(recorder, self.finish)
        self.heartbeat = Heartbeat(recorder)
        self.steps.before_end.append(self.pauses.write)
        self.steps.at_end += [
            self.stop.step_ended,
            Memory(recorder).step_ended,
            Settings(recorder).step_ended,
            lambda _step, _now: self.groups.scan(),
            self.watch.step_ended,
            self.stop.leave,  # the last: it may end the process
        ]
        if torch.distributed.is_available():
            self._part("groups", self.groups)
        self._part("steps and phases", Flow(recorder, self.phases, self.steps, self.numerics))
        self._part("pipeline", Pipeline(recorder, self.steps))
        self._part("checksums", Checksums(recorder, self.numerics))
        self._part("checkpoints", Checkpoints(recorder, self.phases))
        self._part("origins", self.watch)
        self.pauses.install()
        self.exits.install()
        self.heartbeat.start()

    def _part(self, name: str, part: Any) -> None:
        """Install one part; without it the others still work."""
        try:
            part.install(self.patches)
        except Exception:
            self.recorder.failed(f"installing {name}")

    def finish(self) -> None:
        """Write what is still to be written; the process is about to end."""
        self.numerics.flush(self.recorder.step)
        self.pauses.write()
        self.stop.leaving()
        self.recorder.say_cost()
        self.tap.drain(2.0)

    def remove(self) -> None:
        """Take everything out."""
        self.finish()
        self.heartbeat.stop()
        self.tap.remove()
        self.abandon()

    def abandon(self) -> None:
        """Take the Python hooks out without a word to the ring: in a forked child it is the parent's."""
        self.recorder.active = False
        self.exits.remove()
        self.pauses.remove()
        self.patches.remove()


current: Attachment | None = None
_failed = False
_fork_watched = False


def attach(ring_dir: Path | None = None, *, tap: str = "native", first_step: int | None = None) -> bool:
    """Attach this process; see `api.attach`."""
    global current, _failed
    if current is None and not _failed:
        try:
            made, note = _make_ring(ring_dir or ring.default_directory())
            current = Attachment(made, tap)
            if note:
                current.recorder.note(note)
            _identify(made)
            _watch_fork()
            os.environ[rank_process.ENV_RANK_PID] = str(os.getpid())
        except Exception as error:
            _failed = True
            print(f"ranksight: not attached: {type(error).__name__}: {error}", file=sys.stderr)
    if current is not None and first_step is not None:
        current.steps.count_from(first_step, current.recorder.clock_ns())
    return current is not None


def detach() -> None:
    """Take everything out; see `api.detach`."""
    global current
    attached, current = current, None
    if attached is not None:
        os.environ.pop(rank_process.ENV_RANK_PID, None)
        attached.remove()


def _make_ring(directory: Path) -> tuple[Ring, str]:
    """The ring file: in `directory`, smaller if need be, else below the temporary directory, with a note about it."""
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    first: OSError | None = None
    for folder in (directory, ring.fallback_directory(directory)):
        for sizes in SIZES:
            try:
                made = ring.create(folder, sizes, generation)
            except OSError as error:
                first = first or error
                continue
            return made, "" if first is None else f"{first}; the ring is {made.path} with {sizes.total} bytes"
    assert first is not None
    raise first


def _identify(made: Ring) -> None:
    """Rank and world as the launcher says them, until the default process group does."""
    for field, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE"), ("local_rank", "LOCAL_RANK")):
        value = os.environ.get(variable, "")
        if made[field] == -1 and value.isdigit():
            made[field] = int(value)


def _watch_fork() -> None:
    global _fork_watched
    if not _fork_watched:
        _fork_watched = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """A child shares the parent's ring: let go of it. Should the child become a rank itself, it gets its own."""
    global current
    attached, current = current, None
    if attached is not None:
        attached.abandon()
        rank_process.await_process_group()
