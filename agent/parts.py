"""What looks at a job beside the observer itself: each part takes records in and gives sections, metrics and findings.

    Observer.poll -> Part.add (records of one rank) -> Part.add_joined (operations of all ranks) -> Part.roll (once a poll)
    report.json  <- Part.sections      metrics <- Part.blocks      findings <- Part.findings
    Observer.final -> Part.close

A part that raises is put out of work and named in the report: it costs its own answers and nobody else's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ranksight.agent.config import Config
from ranksight.agent.policy.conditions import StopConditions

if TYPE_CHECKING:
    from ranksight.agent.collectives.measures import Split
    from ranksight.agent.collectives.timeline import Joined
    from ranksight.agent.export.exposition import Block
    from ranksight.agent.findings import Finding
    from ranksight.agent.observer import Observer, Source
    from ranksight.agent.reading.reader import Batch

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Kind = TypeVar("Kind", bound="Part")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a part may know about the run; `run_dir` None: nothing is written."""

    run_id: str
    run_dir: Path | None = None
    config: Config = field(default_factory=Config)
    stop_conditions: StopConditions = field(default_factory=StopConditions)
    enforce: bool = False  # do what the stop conditions say; else only write it down
    restarts: int = 0  # how often the job was restarted before this run
    owned: bool = False  # a `ranksight run` has started this agent, and ends the launcher when it is told to


class Part:
    """A part with nothing to say. Times are CLOCK_MONOTONIC nanoseconds."""

    def add(self, source: Source, batch: Batch) -> None:
        """Take what one poll found of one ring: settled collectives, events and ended spans."""

    def add_joined(self, joined: Joined, split: Split) -> None:
        """Take operations all of whose members are here, with the wait and transfer of each member."""

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Do what is due at the end of a poll."""

    def findings(self) -> Iterable[Finding]:
        """Faults found so far, each once and the same object as long as nothing changes."""
        return ()

    def sections(self, observer: Observer) -> dict[str, Any]:
        """Keys of report.json with what is known now."""
        return {}

    def blocks(self, observer: Observer) -> Iterator[Block]:
        """Metrics of the catalogue that this part fills."""
        yield from ()

    def close(self, observer: Observer, now_ns: int) -> None:
        """The last records have come: write, send and let go of what is left."""


Maker = Callable[[Surroundings], Part]


def makers() -> tuple[Maker, ...]:
    """The parts of every agent, in the order in which they work."""
    return (
        _experts,
        _budget,
        _links,
        _archive,
        _history,
        _traces,
        _detail,
        _watch,
        _policy,
        _recovery,
    )


def _experts(surroundings: Surroundings) -> Part:
    from ranksight.agent.experts.part import Experts

    return Experts()


def _budget(surroundings: Surroundings) -> Part:
    from ranksight.agent.budget.part import Budget

    return Budget()


def _links(surroundings: Surroundings) -> Part:
    from ranksight.agent.collectives.links_part import Links

    return Links()


def _archive(surroundings: Surroundings) -> Part:
    from ranksight.agent.archive.part import Archive

    return Archive(surroundings) if surroundings.run_dir else Part()


def _history(surroundings: Surroundings) -> Part:
    from ranksight.agent.page.history import History

    return History(surroundings)


def _traces(surroundings: Surroundings) -> Part:
    if surroundings.config.traces.endpoint is None:
        return Part()
    from ranksight.agent.traces.part import Traces

    return Traces(surroundings)


def _detail(surroundings: Surroundings) -> Part:
    from ranksight.agent.overhead.part import DetailKeeper

    return DetailKeeper(surroundings.config.overhead)


def _watch(surroundings: Surroundings) -> Part:
    from ranksight.agent.steps.watch import OriginWatch

    return OriginWatch(surroundings.config.numerics)


def _policy(surroundings: Surroundings) -> Part:
    from ranksight.agent.policy.part import Policy

    return Policy(surroundings)


def _recovery(surroundings: Surroundings) -> Part:
    from ranksight.agent.recovery.part import Recovery

    return Recovery(surroundings)


class Parts:
    """All parts of one observer, asked one after the other. Failures are in `failed`: name of the part -> error."""

    def __init__(self, surroundings: Surroundings, wanted: Iterable[Maker] | None = None) -> None:
        self.failed: dict[str, str] = {}
        self._parts: list[Part] = []
        for make in makers() if wanted is None else wanted:
            self._parts.extend(self._guard(make.__name__, partial(make, surroundings)))
        # Those that take records at all: this is asked for each rank in each poll.
        self._adding = [part for part in self._parts if type(part).add is not Part.add]
        self._adding_joined = [part for part in self._parts if type(part).add_joined is not Part.add_joined]

    def add(self, source: Source, batch: Batch) -> None:
        """See Part.add."""
        if len(batch.events) or len(batch.collectives):
            self._each(lambda part: part.add(source, batch), tuple(self._adding))

    def add_joined(self, joined: Joined, split: Split) -> None:
        """See Part.add_joined."""
        self._each(lambda part: part.add_joined(joined, split), tuple(self._adding_joined))

    def roll(self, observer: Observer, now_ns: int) -> None:
        """See Part.roll."""
        self._each(lambda part: part.roll(observer, now_ns))

    def close(self, observer: Observer, now_ns: int) -> None:
        """See Part.close."""
        self._each(lambda part: part.close(observer, now_ns))

    def findings(self) -> tuple[Finding, ...]:
        """The findings of all parts."""
        return tuple(finding for found in self._each(lambda part: tuple(part.findings())) for finding in found)

    def sections(self, observer: Observer) -> dict[str, Any]:
        """The sections of all parts; later parts may replace what earlier ones said."""
        whole: dict[str, Any] = {}
        for section in self._each(lambda part: part.sections(observer)):
            whole |= section
        return whole

    def blocks(self, observer: Observer) -> Iterator[Block]:
        """The metrics of all parts."""
        for blocks in self._each(lambda part: tuple(part.blocks(observer))):
            yield from blocks

    def find(self, kind: type[Kind]) -> Kind | None:
        """The part of a class, for those that build on it; None when it is not there or has failed."""
        return next((part for part in self._parts if isinstance(part, kind)), None)

    def _each(self, do: Callable[[Part], Answer], parts: tuple[Part, ...] | None = None) -> list[Answer]:
        answers: list[Answer] = []
        for part in tuple(self._parts) if parts is None else parts:
            answer = self._guard(type(part).__name__, partial(do, part))
            answers.extend(answer)
            if not answer:
                for working in (self._parts, self._adding, self._adding_joined):
                    if part in working:
                        working.remove(part)
        return answers

    def _guard(self, name: str, do: Callable[[], Answer]) -> tuple[Answer, ...]:
        """The answer, or none when there was an error."""
        try:
            return (do(),)
        except Exception as error:
            log.exception("%s failed and is put out of work", name)
            self.failed[name] = f"{type(error).__name__}: {error}"
            return ()
