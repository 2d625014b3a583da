"""ranksight.toml: everything about the agent that a site may want to set. Unknown keys are errors.

    --config F -> load -> Config(one model per section)
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ranksight.agent.errors import RanksightError


class Section(BaseModel):
    """A table of the file; its fields document themselves in docs/configuration.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Config(Section):
    """The whole file."""


class ConfigError(RanksightError):
    """A configuration file that can't be used: names the file, the field, the value and what was expected."""


def load(path: Path | None) -> Config:
    """Read a file; None is all defaults. ConfigError when it can't be read or holds what is not expected."""
    if path is None:
        return Config()
    try:
        text = path.read_bytes().decode()
        return Config.model_validate(tomllib.loads(text))
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
    return f"{where} = {item['input']!r}: {item['msg']}"
