"""How long transfers take on each channel of the job, so that channels of the same kind can be compared.

    joined instances -> add: seconds from the moment all were there until the last one was done, per channel
    recent()         -> Channels: the medians of the last looks, one row per channel, for detectors.links

A channel is one operation and size (a power of two of bytes) in one group, or in one direction of one pair of ranks.
Uneven all-to-alls are left out: their sizes differ between ranks. Memory: MOST channels of KEPT numbers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ranksight.agent.collectives.timeline import Joined
from ranksight.agent.reading.groups import GroupRegistry
from ranksight.hooks import wire

MOST = 2048
KEPT = 64
_UNEVEN = np.zeros(1 << 16, bool)
_UNEVEN[list(wire.UNEVEN_OPS)] = True


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a channel: the median seconds of its transfers since the look before, and how many there were."""

    step: int
    seconds: float
    transfers: int


@dataclass(slots=True)
class Channel:
    """Transfers of one kind between the same ranks, the latest last."""

    axis: str
    op: str
    size: int  # log2 of the bytes
    group: str
    ranks: tuple[int, ...]
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def family(self) -> tuple[str, str, int]:
        """Channels of one family do the same work."""
        return self.axis, self.op, self.size


class Channels:
    """All channels of a host."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int, int, int], Channel] = {}

    def all(self) -> list[Channel]:
        """Every channel, in the order in which they were first used."""
        return list(self._channels.values())

    def add(self, joined: Joined, registry: GroupRegistry) -> None:
        """Take whole instances of one poll."""
        facts, starts = joined.facts, joined.starts
        firsts = facts[starts]
        keep = ~_UNEVEN[firsts["op"]] & (firsts["step"] >= 0)
        if not keep.any():
            return
        counts = np.diff(starts, append=len(facts))
        seconds = (np.maximum.reduceat(facts["exit"], starts) - np.maximum.reduceat(facts["enter"], starts)) / 1e9
        sizes = np.log2(np.maximum(np.maximum.reduceat(facts["bytes"], starts), 1)).astype(np.int64)
        at = np.flatnonzero(keep)
        keys = np.stack((firsts["key"][at], np.minimum.reduceat(facts["op"], starts)[at].astype(np.int64), sizes[at]))
        order = np.lexsort((seconds[at], *keys))
        at, keys = at[order], keys[:, order]
        new = np.ones(len(at), bool)
        new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        begins = np.flatnonzero(new)
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(at)], strict=True):
            instance = int(at[begin])
            channel = self._channel(tuple(keys[:, begin].tolist()), facts, int(starts[instance]), int(counts[instance]), registry)
            if channel is not None:
                middle = float(seconds[at[(begin + end - 1) // 2]])  # sorted by seconds within a channel
                channel.samples.append(Sample(int(firsts["step"][at[begin:end]].max()), middle, end - begin))

    def _channel(
        self, key: tuple[int, int, int], facts: np.ndarray, start: int, count: int, registry: GroupRegistry
    ) -> Channel | None:
        known = self._channels.get(key)
        if known is None and len(self._channels) < MOST:
            members = tuple(sorted(set(facts["rank"][start : start + count].tolist())))
            group = registry.groups[int(facts["group"][start])].group
            known = self._channels[key] = Channel(group.axis, wire.OP_NAMES[key[1]], key[2], group.name, members)
        return known
