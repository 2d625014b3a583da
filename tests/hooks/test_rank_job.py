"""An unmodified training script under injection, on real ranks: what the rings say equals what the script did."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ranksight.hooks import inject, wire
from tests.support.jobs import Finished, run_ranks
from tests.support.ring_events import Said, read, read_all

SCRIPT = Path(__file__).with_name("training.py")
STEPS = 6

pytestmark = pytest.mark.ranks


class Job(NamedTuple):
    """A finished job: how its ranks ended, what they printed, what their rings hold."""

    ended: list[Finished]
    printed: list[dict[str, Any]]
    rings: dict[int, Said]


def run(folder: Path, nproc: int, *args: str, attached: bool = True) -> Job:
    rings = folder / "rings"
    env = {"WORK": str(folder)}
    if attached:
        made = inject.environment(inject.make(folder / "inject"), rings, "test")
        env |= {name: made[name] for name in ("PYTHONPATH", "RANKSIGHT_RING_DIR", "RANKSIGHT_RUN_ID")}
    ended = run_ranks(SCRIPT, nproc, env, timeout=300, args=("--steps", str(STEPS), *args))
    for rank in ended:
        assert rank.stdout, rank.stderr
    return Job(ended, [json.loads(rank.stdout.splitlines()[0]) for rank in ended], read_all(rings) if attached else {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("job")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def mesh_job(folder: Path) -> Job:
    (folder / "mesh").mkdir()
    return run(folder / "mesh", 4, "--mesh")


def test_every_rank_has_one_ring_and_no_data_worker_has_one(mesh_job: Job) -> None:
    assert [rank.returncode for rank in mesh_job.ended] == [0, 0, 0, 0]
    assert sorted(mesh_job.rings) == [0, 1, 2, 3]
    for rank, said in mesh_job.rings.items():
        assert said.header["pid"] == mesh_job.printed[rank]["pid"]
        assert (said.header["world_size"], said.header["local_rank"]) == (4, rank)
        assert (said.header["hooks_errors"], said.header["tap_errors"]) == (0, 0), said.notes()
        assert said.header["life"] == wire.Life.EXITING


def test_steps_losses_and_norms_are_those_of_the_script(mesh_job: Job) -> None:
    for rank, said in mesh_job.rings.items():
        printed = mesh_job.printed[rank]
        assert [event.step for event in said.of("STEP")] == list(range(STEPS))
        assert [(step, value.hex()) for step, value in said.values("LOSS")] == list(enumerate(printed["losses"]))
        assert [(step, value.hex()) for step, value in said.values("GRAD_NORM")] == list(enumerate(printed["norms"]))
        assert [event.step for event in said.of("DATA")][:STEPS] == list(range(STEPS))


def test_groups_have_ranks_and_axes(mesh_job: Job) -> None:
    for rank, said in mesh_job.rings.items():
        axes = {axis: ranks for axis, ranks in said.axes().values() if axis}
        made = mesh_job.printed[rank]["groups"]
        assert axes == {"dp": tuple(made["dp"]), "tp": tuple(made["tp"]), "everyone": (0, 1, 2, 3)}
        unnamed = [ranks for axis, ranks in said.axes().values() if not axis]
        assert unnamed == ([(0, 3)] if rank in {0, 3} else [])


def test_phases_lie_within_their_steps(mesh_job: Job) -> None:
    for rank, said in mesh_job.rings.items():
        steps = {step: (begin, end) for step, begin, end in said.spans("STEP")}
        for event in said.of("PHASE"):
            if event.step in steps and event.code != wire.Phase.STARTUP:
                begin, end = steps[event.step]
                assert begin <= event.begin_ns < event.end_ns <= end
        seconds = said.phase_seconds(from_step=0)
        wanted = {"data", "forward", "backward", "optimizer", "evaluation"} | ({"checkpoint"} if rank == 0 else set())
        assert wanted <= seconds.keys()


@pytest.fixture(scope="module")
def ended_job(folder: Path) -> Job:
    (folder / "ended").mkdir()
    return run(folder / "ended", 3, "--end", "exit,raise,kill")


def test_exit_codes_are_kept(ended_job: Job) -> None:
    assert [rank.returncode for rank in ended_job.ended] == [3, 1, -signal.SIGKILL]
    assert "ValueError: told to" in ended_job.ended[1].stderr
    assert "ranksight" not in "".join(rank.stderr for rank in ended_job.ended)


def test_rings_say_how_it_ended(ended_job: Job) -> None:
    lives = [wire.Life(ended_job.rings[rank].header["life"]) for rank in range(3)]
    assert lives == [wire.Life.EXITING, wire.Life.EXCEPTION, wire.Life.RUNNING]
    assert [event.name for event in ended_job.rings[1].of("EXCEPTION")] == ["ValueError: told to"]
    assert ended_job.rings[1].header["last_error"] > 0


@pytest.fixture(scope="module")
def compiled_jobs(folder: Path) -> tuple[Job, Job]:
    for name in ("compiled", "bare"):
        (folder / name).mkdir()
    return run(folder / "compiled", 2, "--compile"), run(folder / "bare", 2, "--compile", attached=False)


def test_a_compiled_model_trains_to_the_same_bits(compiled_jobs: tuple[Job, Job]) -> None:
    attached, bare = compiled_jobs
    assert [rank.returncode for rank in attached.ended] == [rank.returncode for rank in bare.ended] == [0, 0]
    for rank in range(2):
        assert attached.printed[rank]["losses"] == bare.printed[rank]["losses"]
        assert attached.printed[rank]["norms"] == bare.printed[rank]["norms"]
        assert attached.ended[rank].stderr == bare.ended[rank].stderr


def test_compilation_is_a_phase(compiled_jobs: tuple[Job, Job]) -> None:
    for said in compiled_jobs[0].rings.values():
        assert [event.step for event in said.of("STEP")] == list(range(STEPS))
        assert said.phase_seconds()["compile"] > 0
        assert (said.header["hooks_errors"], said.header["tap_errors"]) == (0, 0), said.notes()


def test_under_torchrun_the_launcher_is_no_rank(folder: Path) -> None:
    work = folder / "torchrun"
    work.mkdir()
    environ = inject.environment(inject.make(work / "inject"), work / "rings", "test")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    done = subprocess.run(
        [*command, "--steps", "2"],
        env={**environ, "RANK": "0", "OMP_NUM_THREADS": "1", "WORK": str(work)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(read_all(work / "rings")) == [0, 1]


FORKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
def train(steps):
    weight = torch.nn.Parameter(torch.ones(2)); optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        weight.square().sum().backward(); optimizer.step(); optimizer.zero_grad()
train(2)
child = os.fork()
if child == 0:
    train(5)                       # a child of a rank: nobody's steps
    torch.save(torch.ones(1), os.path.join(os.environ["WORK"], "child.pt"))
    os._exit(7)                    # gloo hangs when a child destroys the group of its parent
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
train(1)
dist.destroy_process_group()
"""


def test_a_forked_child_leaves_the_ring_alone(tmp_path: Path) -> None:
    made = inject.environment(inject.make(tmp_path / "inject"), tmp_path / "rings", "test")
    env = {name: made[name] for name in ("PYTHONPATH", "RANKSIGHT_RING_DIR")} | {"WORK": str(tmp_path)}
    (done,) = run_ranks(FORKS, 1, env)
    assert (done.returncode, done.stderr) == (0, "")
    (ring,) = (tmp_path / "rings").glob("*.ring")
    said = read(ring)
    assert [event.step for event in said.of("STEP")] == [0, 1, 2]
    assert said.of("CHECKPOINT") == []
    assert said.header["life"] == wire.Life.EXITING


def test_training_goes_on_where_no_ring_can_be_made(tmp_path: Path) -> None:
    (tmp_path / f"ranksight-{os.getuid()}").touch()
    made = inject.environment(inject.make(tmp_path / "inject"), tmp_path / f"ranksight-{os.getuid()}" / "rings", "test")
    env = {name: made[name] for name in ("PYTHONPATH", "RANKSIGHT_RING_DIR")}
    (done,) = run_ranks(FORKS, 1, {**env, "WORK": str(tmp_path), "TMPDIR": str(tmp_path)})
    assert done.returncode == 0
    assert done.stderr.startswith("ranksight: not attached: ")
    assert done.stderr.count("\n") == 1
