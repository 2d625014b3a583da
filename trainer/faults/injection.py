r"""How faults are asked for, on the command line and in a TOML file.

    --fault straggler:rank=3,step=10,size=0.05     [[fault]]  kind = "straggler"  rank = 3  step = 10  size = 0.05
                          \                           /
                            Injection(fault, rank, step, size) -> problems(plan) -> Injector

Faults compose: the option may be repeated, and those of the file and of the command line add up. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ranksight.trainer.faults.kinds import Fault, Needs, Who

KEYS = ("rank", "step", "size")


class FaultError(ValueError):
    """The fault can't be put in; the message says why and what was expected."""


class Plan(Protocol):
    """What a fault must know about the layout."""

    @property
    def dp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def data_parallel(self) -> str: ...
    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault: on which rank (the first struck, where several are), from which step (counted from 0), how large."""

    fault: Fault
    rank: int = 0
    step: int = 0
    size: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Injection:
        """From `kind:rank=R,step=S,size=X`, all but the kind optional. FaultError names what is wrong."""
        kind, _, rest = text.partition(":")
        values: dict[str, Any] = {}
        for pair in filter(None, rest.split(",")):
            key, equals, value = pair.partition("=")
            if not equals or key in values:
                raise FaultError(f"fault {text!r}: {pair!r} is {'said twice' if equals else 'no key=value'}")
            values[key] = _number(text, key, value)
        return cls.of({"kind": kind, **values}, f"fault {text!r}")

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str) -> Injection:
        """From a table with the keys kind, rank, step, size. FaultError begins with `where`."""
        fault = _fault(table.get("kind"), where)
        if unknown := [key for key in table if key not in ("kind", *KEYS)]:
            raise FaultError(f"{where}: no key {unknown[0]!r}; known are {', '.join(KEYS)}")
        for key, wanted in (("rank", (int,)), ("step", (int,)), ("size", (int, float))):
            value = table.get(key, 0)
            if isinstance(value, bool) or not isinstance(value, wanted) or not 0 <= value < float("inf"):
                raise FaultError(f"{where}: {key} = {value!r} is no {'whole ' * (key != 'size')}number from 0 on")
        spec = fault.spec
        if "rank" in table and spec.who in {Who.ALL, Who.TURNS}:
            raise FaultError(f"{where}: {fault.value} strikes {spec.who}; it takes no rank")
        if "size" in table and not spec.unit:
            raise FaultError(f"{where}: {fault.value} has no size")
        size = float(table.get("size", spec.size))
        return cls(fault=fault, rank=table.get("rank", 0), step=table.get("step", 0), size=size)

    def problems(self, plan: Plan, steps: int, checkpoints: bool, resumes: bool) -> Iterator[str]:
        """Why this fault can't happen in a run of this plan."""
        name, needs = f"fault {self.fault.value}", self.fault.spec.needs
        if self.rank >= plan.world_size:
            yield f"{name} is for rank {self.rank}, but there are {plan.world_size} ranks"
        if self.step >= steps:
            yield f"{name} is for step {self.step}, but the last of {steps} steps is {steps - 1}"
        met = {
            Needs.NOTHING: True,
            Needs.PEERS: plan.world_size > 1,
            Needs.EXPERTS: plan.ep > 1,
            Needs.CHECKPOINTS: checkpoints,
            Needs.RESUME: resumes,
            Needs.REPLICAS: plan.dp > 1 and plan.data_parallel == "replicate",
        }
        if not met[needs]:
            yield f"{name} needs {needs}"

    def at_work(self, step: int) -> bool:
        """Whether the fault does something in this step, on the ranks that it strikes."""
        return step >= self.step if self.fault.spec.lasts else step == self.step


def _fault(kind: Any, where: str) -> Fault:
    try:
        return Fault(str(kind).replace("_", "-"))
    except ValueError:
        known = ", ".join(fault.value for fault in Fault)
        raise FaultError(f"{where}: {kind!r} is none of {known}") from None


def _number(text: str, key: str, value: str) -> float | int:
    if key not in KEYS:
        raise FaultError(f"fault {text!r}: no key {key!r}; known are {', '.join(KEYS)}")
    try:
        return float(value) if key == "size" else int(value)
    except ValueError:
        raise FaultError(f"fault {text!r}: {key}={value!r} is no {'' if key == 'size' else 'whole '}number") from None
