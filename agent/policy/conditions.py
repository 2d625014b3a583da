"""stop_conditions.toml: when a job is stopped, how, and whether a restart is sensible. Everything is observed by default.

    load(path) -> StopConditions(conditions) -> engine, alert rules, docs/stop-conditions.md (`reference`)

A condition watches findings (`kinds`) or one metric (`metric`, `threshold`). The file says what should be done;
`ranksight run --enforce` lets it be done, and `dry_run = true` takes that back.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import Field, field_validator, model_validator

from ranksight.agent import catalog, config
from ranksight.agent.config import Section
from ranksight.agent.findings import CATEGORY_OF, Severity
from ranksight.hooks.wire import Phase

PHASES = tuple(phase.name.lower() for phase in Phase)
# A restart without a change meets the same fault in the same place: these are written in the code or the data.
WRITTEN_IN_CODE = frozenset({"collective_mismatch", "collective_skipped", "deadlock", "data_exhausted", "resume_mismatch"})


class Action(StrEnum):
    """What is done; each does more harm than the one before."""

    OBSERVE = "observe"
    CHECKPOINT_AND_STOP = "checkpoint_and_stop"
    STOP = "stop"
    KILL = "kill"

    @property
    def order(self) -> int:
        """0 for observe, 3 for kill."""
        return list(Action).index(self)


class Restart(StrEnum):
    """Whether the job may be started again as it is; `auto` decides by the kind of the finding."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


class Condition(Section):
    """One `[[conditions]]` table."""

    name: str = Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]*$", max_length=64)
    """Letters, digits, `_` and `-`; unique in the file. It names the alert and the lines of the audit."""
    kinds: tuple[str, ...] = ()
    """Kinds of findings that count (docs/findings.md)."""
    severity: Severity = Severity.CRITICAL
    """Findings below this severity do not count."""
    metric: str | None = None
    """A metric of docs/metrics.md instead of findings; not a histogram."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Only series of the metric with these labels count."""
    threshold: float | None = Field(default=None, allow_inf_nan=False)
    """A series counts when its value is beyond this."""
    side: Literal["above", "below"] = "above"
    """Which side of the threshold is beyond it."""
    count: int = Field(default=1, ge=1)
    """So many findings, or series, must count at one time."""
    persist_seconds: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """For so long. Slowness and imbalance last as long as new steps show them; other findings last until resolved."""
    exempt_phases: tuple[str, ...] = ()
    """The condition does not fire while a rank that it is about is in one of these phases."""
    action: Action = Action.OBSERVE
    """What is done when it fires."""
    restart: Restart = Restart.AUTO
    """Exit code of the stopped job: `yes` 75, `no` 76, `auto` 76 for faults written in the code, else 75."""

    @property
    def subject(self) -> str:
        """What it watches, for people."""
        if self.metric is None:
            text = f"{', '.join(self.kinds)} ({self.severity})"
        else:
            labels = ", ".join(f"{key}={value}" for key, value in sorted(self.labels.items()))
            text = f"{self.metric}{{{labels}}} {self.side} {self.threshold:g}"
        return text + (f", at least {self.count}" if self.count > 1 else "")

    @field_validator("kinds")
    @classmethod
    def _kinds_exist(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        return _each_of(kinds, tuple(CATEGORY_OF), "kind of finding")

    @field_validator("exempt_phases")
    @classmethod
    def _phases_exist(cls, phases: tuple[str, ...]) -> tuple[str, ...]:
        return _each_of(phases, PHASES, "phase")

    @model_validator(mode="after")
    def _watches_one_thing(self) -> Condition:
        if bool(self.kinds) == bool(self.metric):
            raise ValueError(f"condition {self.name!r} needs either kinds or a metric")
        if self.metric is None:
            if self.threshold is not None or self.labels:
                raise ValueError(f"condition {self.name!r}: threshold and labels go with a metric, not with kinds")
            return self
        spec = catalog.BY_NAME.get(self.metric)
        if spec is None or spec.type is catalog.Type.HISTOGRAM:
            what = "is not a metric of docs/metrics.md" if spec is None else "is a histogram; take one of its tails"
            raise ValueError(f"condition {self.name!r}: metric {self.metric!r} {what}")
        if self.threshold is None:
            raise ValueError(f"condition {self.name!r}: metric {self.metric!r} needs a threshold")
        unknown = sorted(set(self.labels) - set(spec.labels))
        if unknown:
            raise ValueError(f"condition {self.name!r}: {self.metric} has labels {list(spec.labels)}, not {unknown}")
        return self


class StopConditions(Section):
    """The whole file."""

    conditions: tuple[Condition, ...] = ()
    """The conditions; of several that fire together the harshest action is taken."""
    dry_run: bool = False
    """Write what would have been done into the audit, and do nothing."""
    margin_steps: int = Field(default=2, ge=1)
    """A stop is agreed for so many steps after the newest step of any rank; more where steps are fast."""
    leave_seconds: float = Field(default=120.0, gt=0.0, allow_inf_nan=False)
    """After a stop was asked for, all ranks must have left within this (checkpoint included), else they are ended."""
    grace_seconds: float = Field(default=5.0, ge=0.0, allow_inf_nan=False)
    """Between SIGTERM, which asks the processes of the job to end, and SIGKILL, which does not ask."""
    evidence_seconds: float = Field(default=5.0, ge=0.0, le=10.0, allow_inf_nan=False)
    """At most this long is spent on stacks and other evidence before processes are ended."""
    cool_down_seconds: float = Field(default=300.0, ge=0.0, allow_inf_nan=False)
    """A condition that has fired is quiet for so long. In a resumed job slowness and metrics are, too, at its begin."""
    restart_budget: int = Field(default=3, ge=0)
    """After so many restarts of one job every stop is final (exit code 76)."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> StopConditions:
        names = [condition.name for condition in self.conditions]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"conditions: names must be unique, {twice} are not")
        return self


def load(path: Path) -> StopConditions:
    """Read a file. ConfigError names file, field, value and what was expected."""
    return config.read(path, StopConditions)


def _each_of(values: tuple[str, ...], known: tuple[str, ...], what: str) -> tuple[str, ...]:
    for value in values:
        if value not in known:
            raise ValueError(f"{value!r} is no {what}; there are {', '.join(known)}")
    return values


_INTRODUCTION = """# Stop conditions

Generated from `agent/policy/conditions.py` by `python -m ranksight.agent.policy.conditions`; a test keeps both equal.
How a stop goes is told in [stopping a job](stopping-jobs.md).

```
ranksight policy check stop_conditions.toml
ranksight policy replay stop_conditions.toml runs/monday runs/tuesday
ranksight run --stop-conditions stop_conditions.toml --enforce -- torchrun ... train.py
```

Without `--enforce` everything is observed and nothing is done. An example:

```toml
restart_budget = 2

[[conditions]]
name = "not-finite"
kinds = ["nonfinite", "replica_desync"]
action = "stop"

[[conditions]]
name = "hang"
kinds = ["rank_not_joined", "collective_stuck", "rank_dead", "rank_frozen"]
action = "kill"
persist_seconds = 30

[[conditions]]
name = "slow-rank"
kinds = ["straggler"]
persist_seconds = 600
exempt_phases = ["evaluation", "checkpoint"]
action = "checkpoint_and_stop"

[[conditions]]
name = "slow-steps"
metric = "ranksight_step_duration_tail_seconds"
labels = {window = "5m", tail = "p99"}
threshold = 30.0
persist_seconds = 300
```

## Actions

| action | what is done |
|---|---|
| `observe` | The decision is written down, nothing else. |
| `checkpoint_and_stop` | All ranks leave after the same step, with a checkpoint where the trainer can. |
| `stop` | The same without a checkpoint: what is in memory may be wrong. |
| `kill` | No agreement is sought: evidence, SIGTERM, SIGKILL of the whole process tree. |

An agreed stop that the ranks do not carry out within `leave_seconds` ends like `kill`; so does one about ranks that hang
or are dead.
"""


def reference() -> str:
    """The text of docs/stop-conditions.md."""
    text = _INTRODUCTION
    for title, model in (("The file", StopConditions), ("A condition", Condition)):
        text += f"\n## {title}\n\n| field | values | default | meaning |\n|---|---|---|---|\n"
        for name, field in model.model_fields.items():
            default = "required" if field.is_required() else _toml(field.get_default(call_default_factory=True))
            text += f"| `{name}` | {_values(field.annotation)} | {default} | {field.description} |\n"
    return text


def _values(annotation: object) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{value}`" for value in annotation)
    names = {str: "text", int: "integer", float: "number", bool: "true, false"}
    kinds = [names[kind] for kind in (annotation, *get_args(annotation)) if kind in names]
    if get_origin(annotation) is tuple:
        return f"list of {kinds[0]}" if kinds else "tables"
    return "table of text" if get_origin(annotation) is dict else kinds[0]


def _toml(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | dict):
        return "`[]`" if isinstance(value, tuple) else "`{}`"
    return f"`{value}`" if isinstance(value, StrEnum) or not isinstance(value, str) else f'`"{value}"`'


if __name__ == "__main__":
    print(reference(), end="")
