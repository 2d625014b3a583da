"""ranksight in its own environment, the trainer in another that has torch and nothing of ranksight."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import ranksight

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

# torch and what it imports; everything else that this environment has is out of the trainer's reach
TORCH = (
    "torch", "functorch", "torchgen", "typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
    "filelock", "fsspec",
)  # fmt: skip
STEPS = 6
TRAIN = f"""
import importlib.util, time, torch, torch.distributed as dist
for name in ("pydantic", "starlette", "numpy", "psutil", "ranksight.agent"):
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    assert found is None, name
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({STEPS}):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1))
print(f"rank {{dist.get_rank()}} loss {{loss.item():.6f}}", flush=True)
dist.destroy_process_group()
time.sleep(0.2)  # gloo's threads let go of their last work
"""


@pytest.fixture(scope="module")
def trainer_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds torch only (as links, to spare gigabytes)."""
    folder = tmp_path_factory.mktemp("trainer") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    here = Path(sysconfig.get_paths()["purelib"])
    for name in TORCH:
        assert (here / name).exists(), name
        (site / name).symlink_to(here / name)
    return python


def test_a_trainer_without_ranksight_is_watched_in_full(trainer_python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    launcher = [str(trainer_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    returncode, out, err = ranksight.run(tmp_path / "run", launcher, cwd=tmp_path, timeout=240)
    assert returncode == 0, err
    assert out.count("loss") == 2
    report = ranksight.report(tmp_path / "run")
    assert report["run"] | {"id": ""} == {"id": "", "exit_code": 0, "world_size": 2, "steps": STEPS, "tap": "native"}
    completeness = report["completeness"]
    assert (completeness["ranks_seen"], completeness["records_dropped"], completeness["notes"]) == (2, 0, [])
    counts = {row["op"]: row["count"] for row in report["collectives"]["by_op"]}
    # DDP reduces one bucket a step, the script one more tensor
    assert counts["all_reduce"] == 2 * 2 * STEPS
