"""From a command line and a TOML file to a checked `Config`.

    python -m ranksight.trainer --config run.toml --pp 2 --dp 2
      run.toml   [plan] pp = 4        -> {"pp": 4}
      argv       --pp 2 --dp 2        -> {"pp": 2, "dp": 2}   wins over the file
      Config     model, plan, train, checkpoint, with the defaults of config.py for the rest
      faults     [[fault]] tables of the file and --fault options, added up

The options are the fields of the config parts: nothing is named twice. Unknown keys are errors, in the file as on the
command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ranksight.trainer.config import CheckpointConfig, Config, ConfigError, ModelConfig, ParallelPlan, TrainConfig
from ranksight.trainer.faults.injection import FaultError, Injection

PARTS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "plan": ParallelPlan,
    "train": TrainConfig,
    "checkpoint": CheckpointConfig,
}


def parse(argv: Sequence[str]) -> Config:
    """The configuration in force. ConfigError when it can't work; SystemExit for --help and unknown options."""
    given = vars(_parser().parse_args(argv))
    path, asked = given.pop("config"), given.pop("fault")
    tables, faults = read_toml(Path(path)) if path else ({}, [])
    try:
        faults += [Injection.parse(text) for text in asked]
    except FaultError as error:
        raise ConfigError(str(error)) from error
    return build(tables, given, faults)


def build(
    tables: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Any] | None = None,
    faults: Sequence[Injection] = (),
) -> Config:
    """A config from tables of a file and single options, which win."""
    single = given or {}
    parts: dict[str, Any] = {}
    problems = []
    for name, part in PARTS.items():
        own = {f.name: single[f.name] for f in dataclasses.fields(part) if f.name in single}
        try:
            parts[name] = part(**{**tables.get(name, {}), **own})
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("; ".join(problems))
    return Config(**parts, faults=tuple(faults))


def read_toml(path: Path) -> tuple[dict[str, dict[str, Any]], list[Injection]]:
    """The tables and faults of a file. ConfigError names the file and the key that is unknown or of the wrong type."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    faults = _faults(tables.pop("fault", []), path)
    for name, table in tables.items():
        if name not in PARTS or not isinstance(table, dict):
            raise ConfigError(f"{path}: {name!r} is none of the tables {', '.join(PARTS)}, [[fault]]")
        fields = {f.name: f for f in dataclasses.fields(PARTS[name])}
        for key, value in table.items():
            if key not in fields:
                raise ConfigError(f"{path}: [{name}] has no key {key!r}; known are {', '.join(fields)}")
            wanted = type(fields[key].default)
            if wanted is float and type(value) is int:
                table[key] = float(value)
            elif type(value) is not wanted:
                raise ConfigError(f"{path}: [{name}] {key} = {value!r} is no {wanted.__name__}")
    return tables, faults


def _faults(tables: Any, path: Path) -> list[Injection]:
    if not isinstance(tables, list):
        raise ConfigError(f"{path}: 'fault' is no array of tables: write [[fault]]")
    try:
        return [Injection.of(table, f"{path}: [[fault]] {number}") for number, table in enumerate(tables, 1)]
    except FaultError as error:
        raise ConfigError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node N -m ranksight.trainer",
        description="Train a byte-level mixture-of-experts transformer with data, tensor, pipeline and expert parallel.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", default=None, metavar="FILE", help="TOML file; options on the command line win")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND[:rank=R,step=S,size=X]",
        help="a fault to put in, may be repeated; kinds and sizes are in docs/faults.md",
    )  # fmt: skip
    for name, part in PARTS.items():
        group = parser.add_argument_group(name)
        for f in dataclasses.fields(part):
            flag, text = "--" + f.name.replace("_", "-"), f"{f.metadata['help']} (default: {f.default!r})"
            if isinstance(f.default, bool):
                group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text.replace("%", "%%"))
            else:
                group.add_argument(flag, type=type(f.default), metavar="X", help=text.replace("%", "%%"))
    return parser
