"""One clock for the records of several hosts, from the collectives that their ranks finish together.

    collectives of all hosts -> measured -> Clocks -> corrected(table)   times of every host on the reference's clock
                                                   -> least_skew_ns      what between two hosts is no evidence

The host with the most collectives is the reference. A host that shares none with it is reached over others, and the
uncertainties add up. One that shares too few with anybody is put where its calendar says, and nothing is claimed of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ranksight.agent.collectives.clock import SYNCHRONISING_OPS, ClockModel, estimate

Ints = NDArray[np.int64]

COLUMNS = ("host", "generation", "group", "incarnation", "members", "seq", "op", "upper_bound", "complete_ns")
MOST = 20_000  # instances that a fit is made from, spread evenly over the run
_INSTANCE = ["generation", "group", "incarnation", "members", "seq"]


@dataclass(frozen=True, slots=True)
class HostClock:
    """How times of a host become those of the reference: by `models`, one after the other, else by `shift_ns`."""

    models: tuple[ClockModel, ...] = ()
    shift_ns: int = 0
    measured: bool = True

    @property
    def uncertainty_ns(self) -> float | None:
        """By how much a corrected time may be wrong; None when that was not measured."""
        return sum(model.uncertainty_ns for model in self.models) if self.measured else None

    def to_reference(self, times_ns: Ints) -> Ints:
        """Times of this host on the clock of the reference."""
        for model in self.models:
            times_ns = model.to_reference(times_ns)
        return times_ns + self.shift_ns


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all hosts of an archive."""

    reference: str
    hosts: Mapping[str, HostClock]

    @property
    def measured(self) -> bool:
        """Whether all records can be put on one clock with a known uncertainty."""
        return all(clock.measured for clock in self.hosts.values())

    def least_skew_ns(self, one: str, other: str) -> float | None:
        """Twice the uncertainty between two hosts: skew below is no evidence; 0 on one host, None when not measured."""
        if one == other:
            return 0.0
        doubts = [self.hosts[host].uncertainty_ns for host in (one, other)]
        return None if None in doubts else 2 * sum(doubt or 0.0 for doubt in doubts)

    def corrected(self, table: pa.Table) -> pa.Table:
        """A table of the archive with all its `*_ns` columns on the clock of the reference."""
        if len(self.hosts) < 2:
            return table
        host = np.asarray(table["host"].to_pylist(), object)
        for number, name in enumerate(table.column_names):
            if not name.endswith("_ns"):
                continue
            known = ~table[name].is_null().to_numpy()
            times = table[name].fill_null(0).to_numpy().astype(np.int64, copy=True)
            for one, clock in self.hosts.items():
                mine = known & (host == one)
                times[mine] = clock.to_reference(times[mine])
            table = table.set_column(number, table.schema.field(number), pa.array(times, pa.int64(), mask=~known))
        return table

    def to_json(self) -> dict[str, Any]:
        """Offset (seconds), drift and uncertainty of each host against the reference, as they were measured."""
        return {
            "reference": self.reference,
            "hosts": {host: _said(clock) for host, clock in self.hosts.items() if host != self.reference},
        }


def _said(clock: HostClock) -> dict[str, Any]:
    doubt = clock.uncertainty_ns
    rate, at = 1.0, clock.models[-1].at_ns if clock.models else 0
    for model in clock.models:
        rate *= 1 + model.drift
    # The offset at one moment of the reference's clock, whatever way led to it.
    back = at
    for model in reversed(clock.models):
        back += round(model.offset_ns + model.drift * (back - model.at_ns))
    return {
        "offset_seconds": (back - at - clock.shift_ns) / 1e9,
        "drift": rate - 1 if clock.measured else None,
        "uncertainty_seconds": None if doubt is None else doubt / 1e9,
        "instances": min((model.instances for model in clock.models), default=0),
    }


def measured(collectives: pa.Table, wall_offset_ns: Mapping[str, int]) -> Clocks:
    """The clocks from a table with COLUMNS; `wall_offset_ns` names all hosts, and says what their calendars say."""
    names = sorted(wall_offset_ns)
    if len(names) < 2:
        return Clocks(names[0] if names else "", {name: HostClock() for name in names})
    exits = _exits(collectives)
    written = {one["values"]: one["counts"] for one in pc.value_counts(collectives["host"]).to_pylist()}
    reference = max(names, key=lambda name: written.get(name, 0))
    found = {reference: HostClock()}
    while True:
        reached = [
            (model, other, known)
            for known, other in permutations(names, 2)
            if known in found and other not in found and (model := _between(exits.get(known, {}), exits.get(other, {})))
        ]
        if not reached:
            break
        model, other, known = min(reached, key=lambda one: one[0].uncertainty_ns)
        found[other] = HostClock((model, *found[known].models))
    for name in names:
        if name not in found:
            found[name] = HostClock((), wall_offset_ns[name] - wall_offset_ns[reference], measured=False)
    return Clocks(reference, {name: found[name] for name in names})


def _exits(table: pa.Table) -> dict[str, dict[tuple[Any, ...], int]]:
    """For each host the first exit of its ranks from each instance that all members leave together."""
    usable = (
        pc.is_in(table["op"], value_set=pa.array(sorted(SYNCHRONISING_OPS)))
        .combine_chunks()
        .to_numpy(zero_copy_only=False)
        & ~pc.is_null(table["complete_ns"]).to_numpy()
        & ~table["upper_bound"].fill_null(True).to_numpy()
        & ~pc.is_null(table["members"]).to_numpy()
    )
    first = table.filter(pa.array(usable)).group_by(["host", *_INSTANCE]).aggregate([("complete_ns", "min")])
    exits: dict[str, dict[tuple[Any, ...], int]] = {}
    columns = [first[name].to_pylist() for name in ("host", *_INSTANCE, "complete_ns_min")]
    for host, *instance, exit_ns in zip(*columns, strict=True):
        exits.setdefault(host, {})[tuple(instance)] = exit_ns
    return exits


def _between(known: Mapping[tuple[Any, ...], int], other: Mapping[tuple[Any, ...], int]) -> ClockModel | None:
    shared = sorted(known.keys() & other.keys(), key=known.__getitem__)
    shared = shared[:: -(-len(shared) // MOST) or 1]
    pairs = np.array([(known[instance], other[instance]) for instance in shared], np.int64).reshape(-1, 2)
    return estimate(pairs[:, 0], pairs[:, 1])
