"""ranksight.toml: everything about the agent that a site may want to set. Unknown keys are errors.

--config F -> load -> Config(one model per section)
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ranksight.agent.errors import RanksightError


class Section(BaseModel):
    """A table of the file; its fields document themselves in docs/configuration.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ArchiveSection(Section):
    """What of the records is kept, in `archive/` of the run directory."""

    max_bytes: int = Field(default=2 << 30, ge=1 << 20)
    """Size of all files of one host; the oldest are removed."""
    rotate_seconds: float = Field(default=15.0, gt=0, le=3600)
    """A file is written at least so often: an agent that is killed costs the records since its last one."""


class TracesSection(Section):
    """One OpenTelemetry trace per kept training step, sent over OTLP/HTTP."""

    endpoint: str | None = Field(default=None, pattern=r"^https?://.+")
    """Where traces go, path included: `http://collector:4318/v1/traces`. Without it there are none."""
    headers: dict[str, str] = {}
    """Sent with every request, for collectors that want a token."""
    service_name: str = "training"
    """`service.name` of the traces."""
    every: int = Field(default=100, ge=1)
    """Every so many steps one is kept, whatever happened in it."""
    slow_factor: float = Field(default=1.5, gt=1)
    """A step that takes so many times the median of the last 100 is kept."""
    spans_per_second: float = Field(default=200.0, gt=0)
    """No more than these are sent on average, over all ranks of the host; a minute of it may be saved up."""


class OverheadSection(Section):
    """What the tap on collectives may cost the ranks."""

    budget: float = Field(default=0.005, gt=0, le=1)
    """Share of a rank's time; above it the tap records samples, then only counts, and goes back when that fits."""


class NumericsSection(Section):
    """Where numbers that are not finite come from."""

    watch: Literal["after_suspicion", "always", "never"] = "after_suspicion"
    """When ranks look at the output of every module: for 50 steps after a suspicion, in every step, or not at all."""


class RecoverySection(Section):
    """How a job goes on after it was stopped or has failed."""

    resume_arguments: tuple[str, ...] = ()
    """Appended to the command by `ranksight resume`; `{checkpoint}` is its path. The reference trainer needs none."""


class Config(Section):
    """The whole file."""

    archive: ArchiveSection = ArchiveSection()
    """The archive of records."""
    traces: TracesSection = TracesSection()
    """Traces of training steps."""
    overhead: OverheadSection = OverheadSection()
    """The budget of the tap."""
    numerics: NumericsSection = NumericsSection()
    """The watch for numbers that are not finite."""
    recovery: RecoverySection = RecoverySection()
    """Recovery plans."""


class ConfigError(RanksightError):
    """A configuration file that can't be used: names the file, the field, the value and what was expected."""


Model = TypeVar("Model", bound=Section)


def load(path: Path | None) -> Config:
    """Read a file; None is all defaults. ConfigError when it can't be read or holds what is not expected."""
    return Config() if path is None else read(path, Config)


def read(path: Path, model: type[Model]) -> Model:
    """A TOML file as a model. ConfigError when it can't be read or holds what is not expected."""
    try:
        text = path.read_bytes().decode()
        return model.model_validate(tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_sentence(dict(item)) for item in error.errors())) from error


def _sentence(item: dict[str, object]) -> str:
    where = ".".join(str(key) for key in item["loc"]) if isinstance(item["loc"], tuple) else ""
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key"
    said = str(item["msg"]).removeprefix("Value error, ")
    if isinstance(item["input"], dict) or item["type"] == "missing":  # the value would be the whole table
        return f"{where}: {said}" if where else said
    return f"{where} = {item['input']!r}: {said}"


_INTRODUCTION = """# Configuration of the agent

Generated from `agent/config.py` by `python -m ranksight.agent.config`; a test keeps both equal.

`--config ranksight.toml` sets what a site may want other than it is; every key has a default and unknown keys are
errors. When to stop a job is a file of its own: [stop conditions](stop-conditions.md).

```toml
[numerics]
watch = "always"
```
"""


def markdown() -> str:
    """The text of docs/configuration.md."""
    lines = [_INTRODUCTION]
    for name, section in Config.model_fields.items():
        model = section.annotation
        assert isinstance(model, type)
        assert issubclass(model, Section)
        lines.append(f"## `[{name}]`\n\n{section.description}\n\n| key | type | default | meaning |\n|---|---|---|---|")
        for key, value in model.model_fields.items():
            kind = value.annotation.__name__ if isinstance(value.annotation, type) else str(value.annotation)
            kind = kind.removeprefix("typing.").replace("|", "or")
            lines.append(f"| `{key}` | {kind} | `{value.default!r}` | {value.description} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(), end="")
