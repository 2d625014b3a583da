"""Save and load the training state with torch.distributed.checkpoint.

    save    every rank: shards -> draft       rank 0: draft -> manifest, rename, marker (manifest.py) -> retention
    load    rank 0: newest sound checkpoint   every rank: facts must fit the run, shards -> parameters in place

The state is flat and named after the whole model: `model.<parameter or buffer>`, `optimizer.<parameter>.<moment>`. No
name knows of stages or shards, so a checkpoint loads into any layout. What is not a tensor (step, data cursor) is in
the manifest.

In the background (`CheckpointConfig.background`) tensors are copied first, then a thread writes while training goes on.
Its collectives run in a group of their own: two threads that share one group would mix up their operations.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver

from ranksight.trainer import manifest, observe
from ranksight.trainer.config import Config, ConfigError


def training_state(
    parts: Sequence[nn.Module], parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """The tensors of this rank by global name; loading writes into these very tensors."""
    state: dict[str, Tensor] = {f"model.{name}": parameter.detach() for name, parameter in parameters.items()}
    for part in parts:
        persistent = part.state_dict().keys()
        state |= {f"model.{name}": buffer for name, buffer in part.named_buffers() if name in persistent}
    for name, parameter in parameters.items():
        state |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return state


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint whose files are what its manifest says, or none, and why newer ones were passed over."""

    path: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    error: manifest.CheckpointDamaged | None = None


class Checkpoints:
    """The checkpoint folder of a run. Every method is collective over the world."""

    def __init__(self, config: Config, corpus_digest: str) -> None:
        self._config = config.checkpoint
        self.folder = Path(config.checkpoint.folder)
        self._identity = {
            "model": asdict(config.model),
            "seed": config.train.seed,
            "precision": config.train.precision,
            "corpus_sha256": corpus_digest,
        }
        self._plan = asdict(config.plan)
        self._leader = dist.get_rank() == 0
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.train.timeout))
        self._publisher = ThreadPoolExecutor(1, "publish")
        self._pending: Future[None] | None = None
        if self._leader and config.checkpoint.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            manifest.discard_drafts(self.folder)

    def save(self, state: dict[str, Tensor], step: int, cursor: int) -> None:
        """Write the state after `step` steps. Waits for an earlier background write first."""
        self.settle()
        draft = manifest.draft_path(self.folder, step)
        if self._leader and draft.exists():
            # No other rank writes a shard before rank 0 has joined the planning inside save.
            shutil.rmtree(draft)
        facts = {"step": step, "cursor": cursor, **self._identity, "plan": self._plan}
        writer = filesystem.FileSystemWriter(draft)
        if self._config.background:
            written = state_dict_saver.async_save(state, storage_writer=writer, process_group=self._group)
            assert isinstance(written, Future)
            self._pending = self._publisher.submit(self._publish, written, draft, facts)
        else:
            state_dict_saver.save(state, storage_writer=writer, process_group=self._group)
            self._publish(None, draft, facts)
            dist.barrier(self._group)  # no rank goes on, and perhaps dies, before the checkpoint counts

    def settle(self) -> None:
        """Wait until the write in the background, if any, is complete; raises what it raised."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None
            dist.barrier(self._group)

    def close(self) -> None:
        """Settle and stop the publishing thread."""
        self.settle()
        self._publisher.shutdown()

    def find(self, resume: str) -> Found:
        """The same checkpoint on every rank: "latest", or a path. CheckpointDamaged when it names an unsound one."""
        found = [Found()]
        if self._leader:
            try:
                found = [self._look(resume)]
            except manifest.CheckpointDamaged as error:
                found = [Found(error=error)]
        dist.broadcast_object_list(found, group=self._group)
        if found[0].error:
            raise found[0].error
        return found[0]

    def load(self, path: Path, facts: Mapping[str, Any], state: dict[str, Tensor]) -> tuple[int, int]:
        """Fill the state; returns (steps done, data cursor).

        ConfigError when the checkpoint belongs to another model, seed, precision or text.
        """
        if differing := [
            f"{key} was {facts.get(key)}, is {value}"
            for key, value in self._identity.items()
            if facts.get(key) != value
        ]:
            raise ConfigError(f"{path} belongs to another run: {'; '.join(differing)}")
        state_dict_loader.load(state, storage_reader=filesystem.FileSystemReader(path), process_group=self._group)
        return facts["step"], facts["cursor"]

    def _look(self, resume: str) -> Found:
        if resume != "latest":
            return Found(Path(resume), manifest.verify(Path(resume)))
        passed_over: list[str] = []
        clean = observe.clean_steps()
        for path in manifest.complete(self.folder):
            if clean is not None and path > manifest.final_path(self.folder, clean):
                passed_over.append(f"{path} was written after the first sign of wrong numbers")
                continue
            try:
                return Found(path, manifest.verify(path), passed_over)
            except manifest.CheckpointDamaged as error:
                passed_over.append(str(error))
        return Found(passed_over=passed_over)

    def _publish(self, written: Future[Any] | None, draft: Path, facts: dict[str, Any]) -> None:
        if written is not None:
            written.result()
        if self._leader:
            manifest.publish(draft, manifest.final_path(self.folder, facts["step"]), facts)
            manifest.retain(self.folder, self._config.keep, observe.clean_steps())
