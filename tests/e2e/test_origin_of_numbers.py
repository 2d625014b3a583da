"""A rank whose third block divides by zero, in a script that skips the update: the finding names rank, module and step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ranksight

pytestmark = [pytest.mark.ranks]

FIRST = 12
TRAIN = f"""
import time, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), 1.0
    def forward(self, x):
        return x + torch.tanh(self.linear(x)) / self.scale * self.scale
model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(8, 1))
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(40):
    model[2].scale = 0.0 if dist.get_rank() == 1 and step >= {FIRST} else 1.0
    optimizer.zero_grad()
    wrapped(torch.randn(8, 8)).square().mean().backward()
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        optimizer.step()
    time.sleep(0.02)  # a job that is over before anybody has looked would be found wrong only at its end
dist.destroy_process_group()
time.sleep(0.2)  # gloo's threads let go of their last work
"""


def test_the_module_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    launcher = [*ranksight.TORCHRUN, "--nproc-per-node", "2", "train.py"]
    code, _, errors = ranksight.run(tmp_path / "run", launcher, cwd=tmp_path)
    report = ranksight.report(tmp_path / "run")
    (finding,) = [found for found in report["findings"] if found["kind"] == "nonfinite"]
    assert code == 0, errors
    assert (finding["ranks"], finding["first_step"], finding["layer"]) == ([1], FIRST, 2)
    origin = finding["evidence"]["origin"]
    assert (origin["module"], origin["how"], origin["rank"]) == ("2 (Block)", "arose", 1)
    assert origin["step"] == FIRST + 1  # the rank watches itself from the step after its own loss was bad
