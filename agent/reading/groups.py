"""Process groups as the whole host sees them: one number per (generation, name, incarnation, member ranks).

Each ring numbers its groups for itself. The registry gives equal groups of different rings the same number, so that
records can be joined by it, and knows how many members of a group are on this host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ranksight.hooks.records import Group

Key = tuple[int, str, int, tuple[int, ...], int]


@dataclass(slots=True)
class HostGroup:
    """One process group; `local` are its ranks on this host, ascending, None while nobody knows them."""

    generation: int
    group: Group
    local: tuple[int, ...] | None
    expected: int  # members of which records can come from this host

    @property
    def whole(self) -> bool:
        """Whether every member is on this host."""
        return self.expected == self.group.size


@dataclass(slots=True)
class GroupRegistry:
    """Numbers groups from 0; number 0 stands for records whose group is not known."""

    local_ranks: dict[int, frozenset[int]] = field(default_factory=dict)  # by generation
    world_sizes: dict[int, int] = field(default_factory=dict)
    groups: list[HostGroup] = field(default_factory=lambda: [HostGroup(0, Group("", "unknown", 0, (), 0), None, 0)])
    _numbers: dict[Key, int] = field(default_factory=dict)
    changes: int = 0  # grows whenever a number, an axis or a count of local members changed

    def number(self, generation: int, group: Group) -> int:
        """Number of a group; an axis said later replaces the one known so far."""
        key = (generation, group.name, group.incarnation, group.ranks, group.size)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.groups)
            self.groups.append(self._on_host(generation, group))
            self.changes += 1
        elif self.groups[number].group.axis != group.axis:
            self.groups[number].group = group
            self.changes += 1
        return number

    def set_host(self, generation: int, local_ranks: frozenset[int], world_size: int) -> None:
        """Say which ranks of a generation run on this host."""
        if self.local_ranks.get(generation) == local_ranks and self.world_sizes.get(generation) == world_size:
            return
        self.local_ranks[generation], self.world_sizes[generation] = local_ranks, world_size
        self.groups[1:] = [self._on_host(known.generation, known.group) for known in self.groups[1:]]
        self.changes += 1

    def sizes(self) -> NDArray[np.int64]:
        """Group size by number."""
        return np.array([known.group.size for known in self.groups], np.int64)

    def expected(self) -> NDArray[np.int64]:
        """Members on this host by number."""
        return np.array([known.expected for known in self.groups], np.int64)

    def _on_host(self, generation: int, group: Group) -> HostGroup:
        here = self.local_ranks.get(generation, frozenset())
        if group.ranks:
            local = tuple(sorted(rank for rank in group.ranks if rank in here))
            return HostGroup(generation, group, local, len(local))
        # Without ranks, all that is certain is that a world on one host has all its members here.
        alone = len(here) == self.world_sizes.get(generation, -1)
        return HostGroup(generation, group, None, group.size if alone else min(group.size, 1))
