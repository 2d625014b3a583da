"""The training loop, read from top to bottom.

set-up   meshes, parts of the model, optimizer, statistics, checkpoints
a step   batch -> forward and backward -> the one all-reduce -> clip, update, balance -> report -> checkpoint
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ranksight.trainer import observe
from ranksight.trainer.checkpoint import Checkpoints, training_state
from ranksight.trainer.config import Config
from ranksight.trainer.corpus import Corpus, python_help
from ranksight.trainer.faults.injector import Injector
from ranksight.trainer.faults.processes import DataExhausted
from ranksight.trainer.faults.scene import Place
from ranksight.trainer.meshes import make_meshes
from ranksight.trainer.model import Transformer
from ranksight.trainer.parallelize import parallelize
from ranksight.trainer.pipeline import forward_backward, layers_of_stage, stages_of_rank
from ranksight.trainer.stats import Stats, StepStats, local
from ranksight.trainer.stop import StopSignal


@dataclass(frozen=True, slots=True)
class Report:
    """One step, as every rank knows it."""

    step: int  # steps done, this one included
    loss: float
    aux_loss: float
    grad_norm: float
    nonfinite_ranks: int  # above 0: the update was skipped
    max_over_mean: float  # tokens of the busiest expert over the mean, in the worst layer
    seconds: float
    tokens: int

    def line(self, steps: int) -> str:
        """For people."""
        text = (
            f"step {self.step:>{len(str(steps))}}/{steps}  loss {self.loss:.4f}  grad norm {self.grad_norm:.3f}"
            f"  {self.tokens / self.seconds:.0f} tokens/s  expert max/mean {self.max_over_mean:.2f}"
        )
        if self.nonfinite_ranks:
            text += f"  not finite on {self.nonfinite_ranks} ranks, update skipped"
        return text


class Trainer:
    """One rank's share of a training run. Needs the default process group; every method is collective."""

    def __init__(self, config: Config, device: torch.device, stop: StopSignal) -> None:
        config.check_world(dist.get_world_size())
        self.config, self.device, self.stop = config, device, stop
        self.corpus = Corpus(python_help(), config.model.seq, config.train.seed)
        with observe.phase("partition"):
            self._build_parts()
            self._build_optimizer()
        self.stats = StepStats(config, self.parameters, self.routers, device)
        self.checkpoints = Checkpoints(config, self.corpus.digest)
        self.step = 0  # steps done
        self.cursor = 0  # next sample of the corpus
        self.faults = Injector(config.faults, self)

    def _build_parts(self) -> None:
        """The stages of this rank, spread over their meshes, and what runs them."""
        config, plan = self.config, self.config.plan
        self.meshes = make_meshes(plan, config.train.device, timedelta(seconds=config.train.timeout))
        self.parts = []
        for stage in stages_of_rank(plan, self.meshes.pp_rank):
            layers = layers_of_stage(stage, plan.stages, config.model.layers)
            part = Transformer(config, layers, first=stage == 0, last=stage == plan.stages - 1)
            part.to(self.device, torch.float64 if config.train.precision == "f64" else torch.float32)
            parallelize(part, config, self.meshes)
            self.parts.append(part)
        self.parameters = {name: parameter for part in self.parts for name, parameter in part.named_parameters()}
        self.routers = {layer: moe.router for part in self.parts for layer, moe in part.moes.items()}
        self.forward_backward = forward_backward(config, self.meshes, self.parts, self.device)

    def _build_optimizer(self) -> None:
        recipe = self.config.train
        # foreach=False: one kernel can't take parameters that live on different meshes
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=recipe.lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, foreach=False
        )
        for parameter in self.parameters.values():  # made now, so that a checkpoint can be loaded before any step
            self.optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }

    def resume(self, resume: str, say: Callable[[str], None]) -> bool:
        """Load the checkpoint that `resume` names ("latest", or a path); False when there is none."""
        found = self.checkpoints.find(resume)
        for reason in found.passed_over:
            say(f"passed over: {reason}")
        if found.path is None:
            return False
        with observe.phase("load"):
            self.step, self.cursor = self.checkpoints.load(found.path, found.facts, self._state())
        self.faults.at(Place.RESUMED, self.step)
        say(f"resumed from {found.path} after step {self.step}, data cursor {self.cursor}")
        return True

    def run(self, on_report: Callable[[Report], None]) -> list[Report]:
        """Train until `steps` are done or all ranks agree to stop; leaves a checkpoint when there is a folder."""
        observe.attach(first_step=self.step)
        reports: list[Report] = []
        every, folder = self.config.checkpoint.every, self.config.checkpoint.folder
        stopped = False
        while self.step < self.config.train.steps and not stopped:
            try:
                report, stopped = self.train_step()
            except DataExhausted:
                break
            reports.append(report)
            on_report(report)
            ends = stopped or self.step == self.config.train.steps
            if folder and observe.checkpoint_wanted() and (ends or (every and self.step % every == 0)):
                self.faults.at(Place.SAVING, self.step)
                with observe.phase("checkpoint"):
                    self.checkpoints.save(self._state(), self.step, self.cursor)
                self.faults.at(Place.SAVED, self.step)
        self.checkpoints.close()
        return reports

    def train_step(self) -> tuple[Report, bool]:
        """One step; the flag says that all ranks leave after it."""
        begin = time.perf_counter()
        self.faults.begin(self.step)
        share = self.config.train.batch // self.config.plan.dp
        with observe.phase("data"):
            self.faults.at(Place.DATA, self.step)
            batch = self.corpus.batch(self.cursor + self.meshes.dp_rank * share, share)
            inputs_BS, targets_BS = batch.inputs_BS.to(self.device), batch.targets_BS.to(self.device)
        observe.batch(batch, self.cursor)
        for router in self.routers.values():
            router.start_step()

        loss = self.forward_backward(inputs_BS, targets_BS)
        self.faults.at(Place.REDUCED, self.step)
        stats = self.stats.exchange(self.step, loss, self._asked_to_stop())
        with observe.phase("optimizer"):
            self._update(stats)

        observe.step(self.step, stats, self.routers, self.config.tokens_per_step)
        self.faults.at(Place.END, self.step)
        self.step += 1
        self.cursor += self.config.train.batch
        return self._report(stats, time.perf_counter() - begin), stats.stop

    def _update(self, stats: Stats) -> None:
        """Clip, step, balance; nothing of it when any rank saw a number that is not finite."""
        if not stats.nonfinite_ranks:
            clip = min(1.0, self.config.train.clip / (stats.grad_norm + 1e-6))
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    local(parameter.grad).mul_(clip)
            self.optimizer.step()
            for layer, router in self.routers.items():
                router.finish_step(stats.load_LE[layer])
        self.optimizer.zero_grad(set_to_none=True)

    def _asked_to_stop(self) -> bool:
        after = observe.stop_after()
        return self.stop.asked or (after is not None and self.step >= after)

    def _report(self, stats: Stats, seconds: float) -> Report:
        nan = float("nan")
        finite = not stats.nonfinite_ranks
        peak = (stats.load_LE.amax(1) / stats.load_LE.mean(1)).max().item()
        return Report(
            step=self.step,
            loss=stats.loss if finite else nan,
            aux_loss=stats.aux_loss,
            grad_norm=stats.grad_norm if finite else nan,
            nonfinite_ranks=stats.nonfinite_ranks,
            max_over_mean=peak,
            seconds=seconds,
            tokens=self.config.tokens_per_step,
        )

    def _state(self) -> dict[str, torch.Tensor]:
        return training_state(self.parts, self.parameters, self.optimizer)
