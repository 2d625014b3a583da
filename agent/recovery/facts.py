"""What a recovery plan has to know of a run beside its findings and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of one run. `cursors`: first sample of the job's batch by step, as far as it is known."""

    run_id: str
    exit_code: int | None  # None: the launcher was still running, or nobody knows
    stopped: bool  # by ranksight, which then gives the exit code
    command: tuple[str, ...]  # the launcher's; empty when there was none
    directory: str  # where it was started
    world_size: int | None
    hosts: tuple[str, ...]
    cursors: dict[int, int] = field(default_factory=dict)
    resume_arguments: tuple[str, ...] = ()
