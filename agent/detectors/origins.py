"""Which rank, module and microbatch a number that is not finite came from.

    nonfinite finding + what watched ranks saw first (Birth) -> the finding with its origin, when one is certain

A module whose inputs and weights were finite, or with a bad weight of its own, is where it arose; one with a bad input
only passed it on, unless no other is known. Of several the earliest in time is the origin: the others got it through a
collective. When every rank saw it in its weights or gradients, an update or a reduction has spread it, and no rank is
named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ranksight.agent.findings import Finding
from ranksight.hooks.wire import Origin

_HOW = {
    Origin.AROSE: "it arose in {name}, from finite inputs and weights",
    Origin.WEIGHT: "a weight of {name} is not finite",
    Origin.CAME_IN: "it came into {name}: the input data, a hook or code between modules made it",
    Origin.GRADIENT: "it arose in the backward pass, in the gradient of {name}",
}

_SPREADS = frozenset({Origin.WEIGHT, Origin.GRADIENT})  # an update or a reduction gives it to everyone


@dataclass(frozen=True, slots=True)
class Birth:
    """The first thing that was not finite in a microbatch of a rank; microbatch, stage and layer are -1 when none."""

    rank: int
    host: str
    step: int
    at_ns: int
    how: Origin
    name: str  # of the module or parameter
    layer: int = -1
    microbatch: int = -1
    stage: int = -1


def origin_of(births: Iterable[Birth], ranks: int) -> Birth | None:
    """The birth that explains the others of the earliest step; None when there is none, or all `ranks` have one alike.

    A bad weight goes before whatever follows from it in the same step.
    """
    known = list(births)
    if not known:
        return None
    first = min(birth.step for birth in known)
    here = [birth for birth in known if birth.step == first]
    for kinds in ({Origin.WEIGHT}, {Origin.AROSE}, {Origin.GRADIENT, Origin.CAME_IN}):
        found = [birth for birth in here if birth.how in kinds]
        if found:
            spread = ranks > 1 and len({birth.rank for birth in found if birth.how in _SPREADS}) == ranks
            return None if spread else min(found, key=lambda birth: birth.at_ns)
    return None


def named(finding: Finding, births: Iterable[Birth], ranks: int) -> Finding:
    """The finding with rank, stage, layer and sentence of its origin. Unchanged when the births leave that open."""
    assert finding.first_step is not None
    origin = origin_of((birth for birth in births if birth.step >= finding.first_step), ranks)
    if origin is None:
        return finding
    where = [f"rank {origin.rank}"]
    if origin.stage >= 0:
        where.append(f"stage {origin.stage}")
    if origin.microbatch >= 0:
        where.append(f"microbatch {origin.microbatch}")
    when = "" if origin.step == finding.first_step else f"In step {origin.step}, when modules were watched: "
    how = _HOW[origin.how].format(name=origin.name)
    sentence = f"{when}{how} ({', '.join(where)})."
    return replace(
        finding,
        ranks=(origin.rank,),
        hosts=(origin.host,),
        stage=origin.stage if origin.stage >= 0 else None,
        layer=origin.layer if origin.layer >= 0 else None,
        message=f"{finding.message} {sentence[0].upper()}{sentence[1:]}",
        evidence=finding.evidence
        | {
            "origin": {
                "rank": origin.rank, "step": origin.step, "module": origin.name, "how": origin.how.name.lower(),
                "microbatch": origin.microbatch if origin.microbatch >= 0 else None,
            }
        },
    )  # fmt: skip
