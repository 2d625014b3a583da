"""What the detectors of stopping ranks look at: the state of every rank and of every operation that matters, now.

    rings, /proc -> JobFacts(ranks, calls, ledger) -> detectors -> findings

Facts are what was seen, without a judgement but one: `Standing`, how a rank stands in its life, which all detectors
share so that they never disagree about who is dead. Times are CLOCK_MONOTONIC nanoseconds; None is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ranksight.agent.stopped.ledger import Ledger
from ranksight.hooks.records import Collective

# What gloo, NCCL and the TCP store say when somebody *else* went away or did not come.
_DISCONNECT = re.compile(
    r"connection (closed|reset|refused|was closed)|broken pipe|socket (closed|error)|closed by peer|remote process"
    r"|connection .*(lost|aborted)|ncclRemoteError|unhandled system error",
    re.IGNORECASE,
)
_TIMEOUT = re.compile(r"timed? ?out|timeout|watchdog|deadline exceeded", re.IGNORECASE)


class Standing(Enum):
    """How a rank stands in its life."""

    RUNNING = auto()
    FROZEN = auto()  # alive, but its Python does not run
    LEFT = auto()  # ended, or is ending, of its own accord and without an error
    FAILED = auto()  # an exception of its own left the main thread
    KILLED = auto()  # gone without a word: a signal, os._exit, a crash in native code
    VICTIM = auto()  # failed because of another rank: a closed connection, a timeout, the launcher's clean-up

    @property
    def waits(self) -> bool:
        """Whether the operation that such a rank sits in, or failed in, says whom it needed."""
        return self in (Standing.RUNNING, Standing.VICTIM)


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank as the agent saw it at `observed_ns`."""

    rank: int
    observed_ns: int
    host: str = ""
    pid: int = 0
    alive: bool = True
    process_state: str | None = None  # letter of /proc/PID/stat
    life: str = "running"  # name of wire.Life, lower case
    last_error: str | None = None
    error_ns: int | None = None  # when it left the main thread
    gone_ns: int | None = None  # when the process was first found gone
    exit_status: int | None = None  # negative: number of the signal
    step: int = -1
    phase: str = "other"
    phase_begin_ns: int | None = None
    python_heartbeat_ns: int | None = None
    native_heartbeat_ns: int | None = None
    stopped_since_ns: int | None = None  # state T since

    @property
    def alive_until_ns(self) -> int | None:
        """The last sign of life that the rank itself left."""
        beats = [beat for beat in (self.python_heartbeat_ns, self.native_heartbeat_ns) if beat is not None]
        return max(beats) if beats else None

    @property
    def failed_ns(self) -> int | None:
        """When it failed or went away, as far as is known."""
        return self.error_ns if self.error_ns is not None else self.gone_ns


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The local ranks of a job. `calls` holds all operations in flight or failed, and those that the ledger disputes."""

    now_ns: int
    world_size: int
    ranks: Mapping[int, RankFacts]
    calls: tuple[Collective, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    p99_step_seconds: float | None = None
    epoch: int = 0  # sets of ranks that were seen before these: restarts, and other jobs of the same command
    stopping_since_ns: int | None = None  # the job was asked to end; what ends after it is no fault

    @property
    def step(self) -> int | None:
        """The step in progress: the furthest that any rank has come to."""
        steps = [facts.step for facts in self.ranks.values() if facts.step >= 0]
        return max(steps) if steps else None


def is_disconnect(error: str | None) -> bool:
    """Whether an error text says that another process went away."""
    return error is not None and _DISCONNECT.search(error) is not None


def is_cascade(error: str | None) -> bool:
    """Whether an error text says that another process went away or did not come: a consequence, never a cause."""
    return error is not None and (is_disconnect(error) or _TIMEOUT.search(error) is not None)
