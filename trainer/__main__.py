"""The command: `torchrun --standalone --nproc-per-node 8 -m ranksight.trainer --pp 2 --dp 2 --tp 2 --ep 4`.

Exit codes: 0 trained to the end, or stopped when asked; 2 the configuration can't work or a checkpoint can't be
used (only rank 0 says why).
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

from ranksight.trainer.config import Config, ConfigError
from ranksight.trainer.manifest import CheckpointDamaged
from ranksight.trainer.options import parse
from ranksight.trainer.stop import StopSignal


def main() -> int:
    """Parse, set up, train, tear down."""
    stop = StopSignal()
    stop.install()
    rank = int(os.environ.get("RANK", "0"))
    try:
        config = parse(sys.argv[1:])
        config.check_world(int(os.environ.get("WORLD_SIZE", "1")))
        run(config, rank, stop)
    except (ConfigError, CheckpointDamaged) as error:
        if rank == 0:
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(config: Config, rank: int, stop: StopSignal) -> None:
    """One rank from the process group's birth to its end."""
    import torch  # slow to import: not before a wrong option was reported, nor before signals are handled

    from ranksight.trainer import observe
    from ranksight.trainer.meshes import process_group
    from ranksight.trainer.train import Trainer

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    torch.set_num_threads(1)  # ranks share the cores of a host; one thread also adds in one order
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    train, plan, steps = config.train, config.plan, config.train.steps
    observe.attach()
    with process_group(train.device, timedelta(seconds=train.timeout), generation) as device:
        trainer = Trainer(config, device, stop)
        say(f"corpus: pydoc_data.topics, {trainer.corpus.num_bytes} bytes, sha256 {trainer.corpus.digest}")
        observe.corpus("pydoc_data.topics", trainer.corpus.digest)
        say(
            f"plan: pp {plan.pp} x dp {plan.dp} x tp {plan.tp} = {plan.world_size} ranks, ep {plan.ep}, "
            f"{plan.microbatches} microbatches" + (f", schedule {plan.schedule}" if plan.pp > 1 else "")
        )
        # A job that torchrun has restarted goes on from its own checkpoints, if it has got as far as one.
        restarted = generation > 0 and config.checkpoint.folder and trainer.resume("latest", say)
        if not restarted and config.checkpoint.resume:
            trainer.resume(config.checkpoint.resume, say)
        reports = trainer.run(lambda report: say(report.line(steps)))
        if reports and reports[-1].step < steps:
            say(f"stopped after step {reports[-1].step} as asked")
    # A gloo thread may still hold the last operation. It needs the GIL to let go of it, and would abort the process
    # when it gets its turn only after the interpreter has begun to shut down.
    time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
