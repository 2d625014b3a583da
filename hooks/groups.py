"""The process groups of this rank: global ranks and axis of each, and when they are gone.

    torch.distributed makes one      -> GROUP_MADE (name, global ranks); the default one also tells rank and world size
    DeviceMesh gives one to a dim    -> GROUP_MADE again with the axis, also where the dim takes an existing group
    name_axis(group, axis)           -> the same, said by the trainer
    one is destroyed                 -> the tap forgets it, so that a new one of this name starts from sequence 0

The wrapped functions are those of distributed_c10d that all public ways lead to, so it does not matter how the caller
got hold of them. Groups made in other ways (splitting, shrinking) are found by `scan` at the end of the step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.distributed import device_mesh, distributed_c10d

from ranksight.hooks import wire
from ranksight.hooks.patch import RAISED, Patches
from ranksight.hooks.recorder import Recorder


class Groups:
    """What is known of the groups that exist. `forget` tells the tap that one is gone, None: all of them."""

    def __init__(self, recorder: Recorder, forget: Callable[[str | None], None]) -> None:
        self._recorder, self._forget = recorder, forget
        self._ranks: dict[str, list[int]] = {}
        self._axes: dict[str, str] = {}

    def install(self, patches: Patches) -> None:
        """Watch groups come and go, and take in those that are there."""
        c10d: Any = distributed_c10d
        patches.wrap(c10d, "_new_process_group_helper", after=self._helper_returned)
        patches.wrap(c10d, "_update_default_pg", after=lambda _, args, result: self._default_set(args[0], result))
        patches.wrap(c10d, "_unregister_process_group", before=lambda args, _: self.destroyed(str(args[0])))
        patches.wrap(c10d, "_unregister_all_process_groups", before=lambda _args, _kwargs: self.destroyed(None))
        mesh: Any = device_mesh.DeviceMesh
        patches.wrap(mesh, "_init_one_process_group", after=self._dim_has_group)
        patches.wrap(mesh, "from_group", after=lambda _, _args, result: self._mesh_made(result))
        default = c10d._get_default_group() if distributed_c10d.is_initialized() else None
        if default is not None:
            self._default_set(default, None)
        self.scan()

    def made(self, name: str, ranks: list[int], axis: str = "") -> None:
        """A group exists, or has got an axis."""
        known = self._ranks.get(name) == ranks
        if known and (not axis or self._axes.get(name) == axis):
            return
        self._ranks[name] = ranks
        if axis:
            self._axes[name] = axis
        number = self._recorder.ring.hooks_table.group_made(self._recorder.clock_ns(), ranks, name, axis)
        if number == 0:
            self._recorder.failed("hooks table is full, a group is missing in it")

    def name_axis(self, group: Any, axis: str) -> None:
        """Give an axis to a group: a ProcessGroup, None for the default one, or a group's name."""
        if not isinstance(group, str):
            group = (group or distributed_c10d._get_default_group()).group_name
        if group not in self._ranks:
            self.scan()
        if group in self._ranks:
            self.made(group, self._ranks[group], axis)

    def scan(self) -> None:
        """Take in groups that came to be unseen."""
        world = distributed_c10d._world
        if len(world.pg_names) <= len(self._ranks):
            return
        for group, name in list(world.pg_names.items()):
            if name not in self._ranks:
                ranks = world.pg_group_ranks.get(group) or range(group.size())
                self.made(name, sorted(ranks))

    def destroyed(self, name: str | None) -> None:
        """A group is gone, or all are."""
        if name is None:
            self._ranks.clear()
            self._axes.clear()
        else:
            self._ranks.pop(name, None)
            self._axes.pop(name, None)
        self._forget(name)

    def _helper_returned(self, _: object, args: tuple[Any, ...], result: Any) -> None:
        group = result[0] if isinstance(result, tuple) else None
        if not isinstance(group, distributed_c10d.ProcessGroup):
            return  # raised, or this rank is no member
        self.made(group.group_name, sorted(args[2]) or list(range(group.size())))

    def _default_set(self, group: Any, result: object) -> None:
        if result is RAISED:
            return
        ring = self._recorder.ring
        if group is None:
            ring["life"] = wire.Life.GROUP_DESTROYED
            return
        self._recorder.adopt_thread()
        ring["rank"], ring["world_size"] = group.rank(), group.size()
        local = os.environ.get("LOCAL_RANK", "")
        if local.isdigit():
            ring["local_rank"] = int(local)
        ring["life"] = wire.Life.RUNNING

    def _dim_has_group(self, _: object, args: tuple[Any, ...], name: Any) -> None:
        dim = str(args[2])
        if isinstance(name, str) and not dim.startswith("dim_"):  # "dim_0": the mesh has no names
            self._first_axis(name, dim)

    def _mesh_made(self, mesh: Any) -> None:
        if mesh is not RAISED and mesh.mesh_dim_names:
            for name, dim in zip(mesh._dim_group_names, mesh.mesh_dim_names, strict=True):
                self._first_axis(name, dim)

    def _first_axis(self, name: str, axis: str) -> None:
        """The first mesh that names a group wins: later ones flatten or regroup it."""
        if name not in self._ranks:
            self.scan()
        if name in self._ranks and name not in self._axes:
            self.made(name, self._ranks[name], axis)
