"""What to train and how to lay it out, frozen and checked before a rank does any work.

    argv, TOML -> options.parse -> Config(model, plan, train, checkpoint) -> train.Trainer

The four parts hold what one topic needs. Rules that need only one part are checked when the part is made; rules that
tie parts together are checked by `Config`. Every message names the numbers that do not fit, and one error tells all of
them, so that nobody has to start eight ranks five times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ranksight.trainer.faults.injection import Injection

VOCABULARY = 256  # a token is a byte


class ConfigError(ValueError):
    """The configuration can't work; the message lists every reason."""


class Style(Enum):
    """How a pipeline schedule wants its stages placed."""

    SINGLE = "one stage a rank"
    LOOP = "stage s on rank s % pp, at least two a rank"
    V = "two stages a rank: s and 2 * pp - 1 - s"


SCHEDULES = {
    "GPipe": Style.SINGLE,
    "1F1B": Style.SINGLE,
    "Interleaved1F1B": Style.LOOP,
    "LoopedBFS": Style.LOOP,
    "InterleavedZeroBubble": Style.LOOP,
    "ZBVZeroBubble": Style.V,
    "DualPipeV": Style.V,
}


def _raise_all(problems: Iterable[str]) -> None:
    if found := list(problems):
        raise ConfigError("; ".join(found))


def _at_least(part: object, least: float, *names: str) -> Iterable[str]:
    for name in names:
        if (value := getattr(part, name)) < least:
            yield f"{name} {value} is less than {least:g}"


def _one_of(part: object, name: str, choices: Iterable[str]) -> Iterable[str]:
    if (value := getattr(part, name)) not in (allowed := tuple(choices)):
        yield f"{name} {value!r} is none of {', '.join(allowed)}"


def option(default: Any, text: str) -> Any:
    """A field with its default and the text that `--help` shows."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of the transformer. ConfigError when heads or experts do not divide."""

    layers: int = option(4, "transformer blocks")
    dim: int = option(32, "width of the residual stream")
    heads: int = option(4, "query heads")
    kv_heads: int = option(2, "key and value heads")
    experts: int = option(8, "experts a layer")
    top_k: int = option(2, "experts a token goes to")
    hidden: int = option(48, "hidden width of one expert")
    seq: int = option(64, "bytes in a sequence")

    def __post_init__(self) -> None:
        _raise_all(self._problems())

    def _problems(self) -> Iterable[str]:
        yield from _at_least(self, 1, "layers", "dim", "heads", "kv_heads", "experts", "top_k", "hidden", "seq")
        if self.heads > 0 and self.dim % (2 * self.heads):
            yield f"dim {self.dim} is no multiple of 2 x heads {self.heads} (rotary embeddings turn pairs)"
        if self.kv_heads > 0 and self.heads % self.kv_heads:
            yield f"heads {self.heads} is no multiple of kv_heads {self.kv_heads}"
        if self.top_k > self.experts:
            yield f"top_k {self.top_k} is more than experts {self.experts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """How the ranks share the work: pp x dp x tp ranks; ep folds over dp x tp.

    ConfigError when the axes or the schedule contradict each other.
    """

    pp: int = option(1, "pipeline parallel ranks")
    dp: int = option(1, "data parallel ranks")
    tp: int = option(1, "tensor (and sequence) parallel ranks")
    ep: int = option(1, "expert parallel ranks, out of dp x tp")
    schedule: str = option("1F1B", "pipeline schedule: " + ", ".join(SCHEDULES))
    stages_per_rank: int = option(0, "pipeline stages a rank holds; 0: as few as the schedule allows")
    microbatches: int = option(2, "microbatches a step")
    data_parallel: str = option("shard", "shard parameters over dp (FSDP2), or replicate them")
    recompute: bool = option(False, "recompute activations in the backward pass (activation checkpointing)")

    def __post_init__(self) -> None:
        _raise_all(self._problems())

    @property
    def world_size(self) -> int:
        """Ranks that the plan needs."""
        return self.pp * self.dp * self.tp

    @property
    def efsdp(self) -> int:
        """Ranks that share one expert's parameters."""
        return self.dp * self.tp // self.ep

    @property
    def local_stages(self) -> int:
        """Pipeline stages on one rank."""
        return self.stages_per_rank or (1 if self.pp == 1 or SCHEDULES[self.schedule] is Style.SINGLE else 2)

    @property
    def stages(self) -> int:
        """Pipeline stages of the whole model."""
        return self.pp * self.local_stages

    def _problems(self) -> Iterable[str]:
        sizes = list(_at_least(self, 1, "pp", "dp", "tp", "ep", "microbatches"))
        names = [*_one_of(self, "schedule", SCHEDULES), *_one_of(self, "data_parallel", ("shard", "replicate"))]
        yield from sizes + names + list(_at_least(self, 0, "stages_per_rank"))
        if sizes or names:
            return
        if self.dp * self.tp % self.ep:
            yield f"ep {self.ep} does not divide dp {self.dp} x tp {self.tp} = {self.dp * self.tp} ranks"
        if self.pp > 1:
            yield from self._schedule_problems()
        elif self.stages_per_rank > 1:
            yield f"stages_per_rank {self.stages_per_rank} needs pp > 1, but pp is 1"

    def _schedule_problems(self) -> Iterable[str]:
        name, per_rank, micro = self.schedule, self.local_stages, self.microbatches
        style = SCHEDULES[name]
        if (
            (style is Style.SINGLE and per_rank != 1)
            or (style is Style.V and per_rank != 2)
            or (style is Style.LOOP and per_rank < 2)
        ):
            yield f"schedule {name} places {style.value}, but stages_per_rank is {per_rank}"
        if name == "1F1B" and micro < self.pp:
            yield f"schedule 1F1B needs microbatches >= pp, but microbatches is {micro} and pp is {self.pp}"
        if name == "DualPipeV" and micro < self.stages:
            yield f"schedule DualPipeV needs microbatches >= its {self.stages} stages, but microbatches is {micro}"
        rounds = max(1, micro // self.pp)
        if name in ("Interleaved1F1B", "InterleavedZeroBubble") and micro % rounds:
            yield f"schedule {name} runs {rounds} rounds with pp {self.pp}, which do not divide microbatches {micro}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The recipe. ConfigError when a number is out of range or a name unknown."""

    steps: int = option(40, "steps to have trained at the end, those before a resume included")
    batch: int = option(16, "sequences a step, over all ranks")
    seed: int = option(0, "seed of weights and data order")
    lr: float = option(3e-3, "learning rate of AdamW")
    weight_decay: float = option(0.1, "weight decay of AdamW")
    clip: float = option(1.0, "largest global gradient norm")
    balance: str = option("bias", "expert balancing: bias (no auxiliary loss), aux (auxiliary loss), none")
    bias_rate: float = option(2e-2, "step of the router bias, with balance bias")
    aux_weight: float = option(1e-1, "weight of the auxiliary loss, with balance aux")
    precision: str = option("f32", "f32, f64, or bf16 (parameters and reductions stay f32)")
    device: str = option("cpu", "cpu (gloo) or cuda (NCCL; untested)")
    timeout: float = option(300.0, "seconds after which a collective fails")

    def __post_init__(self) -> None:
        _raise_all(self._problems())

    def _problems(self) -> Iterable[str]:
        yield from _at_least(self, 1, "steps", "batch")
        yield from _at_least(self, 0, "seed", "lr", "weight_decay", "bias_rate", "aux_weight")
        for name in ("clip", "timeout"):
            if getattr(self, name) <= 0:
                yield f"{name} {getattr(self, name)} is not above 0"
        yield from _one_of(self, "balance", ("bias", "aux", "none"))
        yield from _one_of(self, "precision", ("f32", "f64", "bf16"))
        yield from _one_of(self, "device", ("cpu", "cuda"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where checkpoints go and what to resume from. ConfigError when the parts contradict each other."""

    folder: str = option("", "folder of the checkpoints; empty: none are written")
    every: int = option(0, "steps between checkpoints; 0: only at a stop and at the end")
    keep: int = option(2, "complete checkpoints to keep")
    background: bool = option(False, "write in the background while training goes on")
    resume: str = option("", "latest, or the path of one checkpoint (after a restart by torchrun: latest first)")

    def __post_init__(self) -> None:
        _raise_all(self._problems())

    def _problems(self) -> Iterable[str]:
        yield from _at_least(self, 0, "every")
        yield from _at_least(self, 1, "keep")
        if not self.folder:
            if self.every:
                yield f"every {self.every} needs a checkpoint folder"
            if self.resume == "latest":
                yield "resume latest needs a checkpoint folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that one run needs. ConfigError when the parts do not fit together."""

    model: ModelConfig = field(default_factory=ModelConfig)
    plan: ParallelPlan = field(default_factory=ParallelPlan)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    faults: tuple[Injection, ...] = ()

    def __post_init__(self) -> None:
        _raise_all(self._problems())

    @property
    def tokens_per_step(self) -> int:
        """Bytes that one step of the whole job trains on."""
        return self.train.batch * self.model.seq

    @property
    def microbatch(self) -> int:
        """Sequences in one microbatch of one data parallel rank."""
        return self.train.batch // self.plan.dp // self.plan.microbatches

    def check_world(self, world_size: int) -> None:
        """ConfigError when the launcher started another number of ranks than the plan needs."""
        plan = self.plan
        if world_size != plan.world_size:
            raise ConfigError(
                f"pp {plan.pp} x dp {plan.dp} x tp {plan.tp} needs {plan.world_size} ranks, "
                f"but the launcher started {world_size}"
            )

    def _problems(self) -> Iterable[str]:
        model, plan, train = self.model, self.plan, self.train
        if model.experts % plan.ep:
            yield f"experts {model.experts} can't be shared evenly by ep {plan.ep}"
        for name, size in (("heads", model.heads), ("kv_heads", model.kv_heads), ("seq", model.seq)):
            if size % plan.tp:
                yield f"{name} {size} can't be shared evenly by tp {plan.tp}"
        if VOCABULARY % plan.tp:
            yield f"the {VOCABULARY} byte values can't be shared evenly by tp {plan.tp}"
        if model.layers < plan.stages:
            yield f"layers {model.layers} is less than the {plan.stages} stages of schedule {plan.schedule}"
        if train.batch % (plan.dp * plan.microbatches):
            yield (
                f"batch {train.batch} is no multiple of dp {plan.dp} x microbatches {plan.microbatches}"
                f" = {plan.dp * plan.microbatches}"
            )
        for injection in self.faults:
            yield from injection.problems(plan, train.steps, bool(self.checkpoint.folder), bool(self.checkpoint.resume))
