"""`replica_desync`: parameters that were the same on several ranks, step after step, and no longer are.

    CHECKSUM events -> Replicas.add -> checks: {rank: checksum} per optimizer and slice -> judge -> finding

Which ranks are replicas of each other is learned, not told: ranks whose checksums of a slice agreed in AGREED checks in
a row, while the values changed, are replicas (a parameter that nothing updates proves nothing). When such ranks then
disagree in two checks running, the few that left the majority are named; of two ranks nobody can say which is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ranksight.agent.findings import Finding, Severity

AGREED = 3
KEPT_CHECKS = 8
MAX_SLICES = 4096

Checksum = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Check:
    """One slice at one step: what every rank's checksum was."""

    step: int
    sums: Mapping[int, Checksum]

    def classes(self) -> dict[Checksum, frozenset[int]]:
        """Ranks by checksum."""
        ranks: dict[Checksum, set[int]] = {}
        for rank, value in self.sums.items():
            ranks.setdefault(value, set()).add(rank)
        return {value: frozenset(members) for value, members in ranks.items()}


def judge(checks: Sequence[Check]) -> tuple[frozenset[int], frozenset[int]] | None:
    """(replicas, those that left them) by the checks of one slice, oldest first; None while nothing is wrong."""
    if len(checks) < AGREED + 2:
        return None
    *before, last_but_one, last = checks[-(AGREED + 2) :]
    for members in before[-1].classes().values():
        together = [set(members) <= ranks for check in before for ranks in check.classes().values()]
        values = {check.sums[rank] for check in before for rank in list(members)[:1]}
        if len(members) < 2 or sum(together) < len(before) or len(values) < len(before):
            continue
        left = _left(members, last)
        if left and left == _left(members, last_but_one):
            return members, left
    return None


def _left(members: frozenset[int], check: Check) -> frozenset[int]:
    """Members that are not with the majority in a check; all of them when there is no majority."""
    parts = [ranks & members for ranks in check.classes().values() if ranks & members]
    largest = max(parts, key=len, default=frozenset())
    if len(largest) == len(members):
        return frozenset()
    return members - largest if 2 * len(largest) > len(members) else members


@dataclass(slots=True)
class Replicas:
    """Checks of one job, folded from the events of its ranks."""

    _open: dict[tuple[int, int, int], dict[int, Checksum]] = field(default_factory=dict)  # (optimizer, slice, step)
    _checks: dict[tuple[int, int], list[Check]] = field(default_factory=dict)

    def add(self, rank: int, optimizer: int, part: int, step: int, value: Checksum, world: int) -> Finding | None:
        """Take one checksum; a finding when it completes a check that shows replicas apart."""
        key = (optimizer, part, step)
        sums = self._open.setdefault(key, {})
        sums[rank] = value
        if len(sums) < world:
            while len(self._open) > MAX_SLICES:
                del self._open[next(iter(self._open))]
            return None
        del self._open[key]
        checks = self._checks.setdefault((optimizer, part), [])
        checks.append(Check(step, sums))
        del checks[:-KEPT_CHECKS]
        verdict = judge(checks)
        return None if verdict is None else _finding(*verdict, checks)


def _finding(members: frozenset[int], left: frozenset[int], checks: Sequence[Check]) -> Finding:
    first, last = checks[-2].step, checks[-1].step
    named = left if len(left) < len(members) else frozenset()
    words = ", ".join(map(str, sorted(left)))
    who = f"Rank{'s' * (len(left) > 1)} {words}" if named else f"One of ranks {words}"
    return Finding(
        kind="replica_desync",
        severity=Severity.CRITICAL,
        ranks=tuple(sorted(left)),
        first_step=first,
        last_step=last,
        detected_step=last,
        message=(
            f"{who} no longer {'have' if len(named) > 1 else 'has'} the same parameters as the other replicas "
            f"(ranks {', '.join(map(str, sorted(members)))}): checksums differ since step {first}, and agreed before."
        ),
        advice="Go back to a checkpoint before this step; check the memory of the device, or what updates only this rank.",
        evidence={
            "replicas": sorted(members),
            "last_step_in_agreement": checks[-3].step,
            "checksums": {str(rank): f"{int(high):x}:{int(low):08x}" for rank, (low, high) in checks[-1].sums.items()},
        },
    )
