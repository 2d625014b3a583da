"""The part of the agent that keeps a way back open while a job runs, and writes the recovery plan when it ends.

    events -> History                 faults -> corruption -> tainted.json beside the rings (retention of the trainer)
    end of the run: disk, findings, History -> plan.make -> recovery.json, recovery.md

A plan is written when the run was stopped or failed, and something was found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ranksight.agent import files
from ranksight.agent.detectors import checkpoint
from ranksight.agent.errors import RanksightError
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.observer import Observer, Source
from ranksight.agent.parts import Part, Surroundings
from ranksight.agent.policy.part import Policy
from ranksight.agent.reading.reader import Batch
from ranksight.agent.recovery import checkpoints, corruption, plan
from ranksight.agent.recovery.facts import RunFacts
from ranksight.agent.recovery.history import History
from ranksight.agent.recovery.names import EXPECTED_FILE, PAGE_FILE, RECOVERY_FILE
from ranksight.agent.recovery.page import page
from ranksight.hooks import wire

VERIFY_BYTES = 1 << 30  # read at the end of a run to compare digests: two seconds; `ranksight resume` compares the rest


class Recovery(Part):
    """See the module."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._run_id, self._run_dir = surroundings.run_id, surroundings.run_dir
        self._arguments = surroundings.config.recovery.resume_arguments
        self._history = History()
        self._stalls: tuple[Finding, ...] = ()
        self._found: list[Finding] = []
        self._judged: set[int] = set()  # generations whose begin has been looked at
        self._tainted: corruption.Corruption | None = None

    def add(self, source: Source, batch: Batch) -> None:
        """Take in what a rank says of checkpoints, steps and data."""
        if len(batch.events):
            self._history.add(source.rank, source.reader, batch.events)

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Tell the trainer as soon as numbers are known to be wrong; look at slow writes and at resumed generations."""
        wrong = corruption.since(observer.faults())
        if wrong is not None and wrong != self._tainted:
            _tell(observer.ring_dir, wrong)
            self._tainted = wrong
        if not self._stalls:
            self._stalls = checkpoint.stall((*self._history.writes(), *_being_written(observer, now_ns)))
        for number in sorted(set(self._history.generations) - self._judged):
            self._judge_begin(number)

    def findings(self) -> Iterable[Finding]:
        """Faults of checkpoints."""
        return (*self._stalls, *self._found)

    def close(self, observer: Observer, now_ns: int) -> None:
        """Look at the disk, and write the plan if there is something to recover from."""
        found = self._on_disk()
        newest = max((item.step or 0 for item in found if item.usable), default=-1)
        for item in found:
            # An older one may be on its way out by the trainer's own retention.
            if not item.usable and (item.step is None or item.step > newest):
                self._found.append(checkpoint.incomplete(str(item.path), item.step, item.why))
        run = self._facts(observer)
        findings = observer.findings()
        faulty = any(finding.severity is not Severity.INFO for finding in findings)
        if self._run_dir is None or not faulty or (run.exit_code == 0 and not run.stopped):
            return
        made = plan.make(findings, self._verified(found, corruption.since(findings)), run).to_json()
        files.write_json(self._run_dir / RECOVERY_FILE, made)
        files.write_atomically(self._run_dir / PAGE_FILE, page(made).encode())

    def _judge_begin(self, number: int) -> None:
        """Whether the first step of a generation continues what was saved, or what the generation before it did."""
        mine = self._history.generations[number]
        if mine.first_step is None:
            return
        self._judged.add(number)
        first, cursor = mine.first_step, mine.cursors.get(mine.first_step)
        before = self._history.generations.get(number - 1)
        saved = self._expected() if number == 0 else None
        if saved is not None and (first or cursor is not None):  # who never says a number begins with 0 each time
            verdict = checkpoint.resumed_wrongly(first, cursor, saved["step"], saved["cursor"], {})
        elif before is not None and before.last_step is not None and cursor is not None:
            verdict = checkpoint.resumed_wrongly(first, cursor, min(first, before.last_step + 1), None, before.cursors)
        else:
            return
        if verdict is not None:
            self._found.append(verdict)

    def _expected(self) -> dict[str, Any] | None:
        path = (self._run_dir or Path()) / EXPECTED_FILE
        return files.read_json(path) if self._run_dir and path.exists() else None

    def _on_disk(self) -> list[checkpoints.Checkpoint]:
        """Every checkpoint of the run that can be found, by names and sizes only."""
        named = checkpoints.candidates(self._history.written.values())
        return [checkpoints.examine(path, written, digests=False) for path, written in named.items()]

    def _verified(
        self, found: list[checkpoints.Checkpoint], wrong: corruption.Corruption | None
    ) -> list[checkpoints.Checkpoint]:
        """The same with digests compared, newest clean one first, until one is sound or too much would be read."""
        left = VERIFY_BYTES
        newest_first = sorted(found, key=lambda item: item.step or 0, reverse=True)
        for at, item in enumerate(newest_first):
            if not item.usable or (wrong is not None and wrong.taints(item.step)):
                continue
            left -= checkpoints.size_of(item.path)
            if left < 0:
                break
            newest_first[at] = checkpoints.examine(item.path, self._history.written.get(item.path), digests=True)
            if newest_first[at].usable:
                break
        return newest_first

    def _facts(self, observer: Observer) -> RunFacts:
        current = observer.current()
        info = self._read("run.json")
        code = self._read(files.EXIT_FILE).get("exit_code")
        policy = observer.parts.find(Policy)
        stopped = policy is not None and policy.stopped
        return RunFacts(
            run_id=self._run_id,
            exit_code=policy.exit_code(code) if policy is not None and stopped else code,
            stopped=stopped,
            command=tuple(info.get("command", ())),
            directory=info.get("directory", ""),
            world_size=max((source.reader["world_size"] for source in current), default=None),
            hosts=(observer.witness.host,),
            cursors=self._history.cursors(),
            resume_arguments=self._arguments,
        )

    def _read(self, name: str) -> dict[str, Any]:
        """A file of the run directory; empty when there is none: an agent may run without `ranksight run`."""
        try:
            found = files.read_json((self._run_dir or Path()) / name) if self._run_dir else {}
        except RanksightError:
            return {}
        return found if isinstance(found, dict) else {}


def _tell(ring_dir: Path, wrong: corruption.Corruption) -> None:
    """Leave a note for the trainer's retention (hooks.clean_steps): which checkpoints were written before the evidence."""
    if ring_dir.is_dir():
        note = {"clean_steps": wrong.clean_steps or 0, "kind": wrong.kind}
        files.write_atomically(ring_dir / wire.TAINTED_FILE, json.dumps(note).encode())


def _being_written(observer: Observer, now_ns: int) -> list[checkpoint.Write]:
    """The checkpoint that ranks are in the middle of."""
    seconds = {
        source.rank: (now_ns - source.reader["phase_begin_ns"]) / 1e9
        for source in observer.current()
        if source.reader["phase"] == wire.Phase.CHECKPOINT and source.state is not None
    }
    if not seconds:
        return []
    step = max(source.reader["step"] for source in observer.current())
    return [checkpoint.Write(step, max(seconds.values()), None, ended=False)]
