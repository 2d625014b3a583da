"""What a recovery plan does not know, in sentences, and how far it can be trusted therefore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ranksight.agent.findings import Finding
from ranksight.agent.recovery import advice
from ranksight.agent.recovery.checkpoints import Checkpoint, State
from ranksight.agent.recovery.command import REDACTED, REFERENCE_TRAINER
from ranksight.agent.recovery.corruption import Corruption
from ranksight.agent.recovery.facts import RunFacts


def unknown(
    findings: tuple[Finding, ...],
    wrong: Corruption | None,
    good: Checkpoint | None,
    any_found: bool,
    skip: Mapping[str, int | None] | None,
    run: RunFacts,
) -> tuple[str, ...]:
    """Everything that the plan leaves open."""
    return (
            *_about_checkpoint(wrong, good, any_found),
            *_about_data(skip),
            *_about_hosts(findings, run),
            *_about_command(run),
            *_about_observation(findings),
        )


def confidence(findings: tuple[Finding, ...], wrong: Corruption | None, good: Checkpoint | None) -> str:
    """high: sound checkpoint, dated evidence, complete records; low: no checkpoint, or corruption that has no date."""
    if good is None or (wrong is not None and wrong.clean_steps is None):
        return "low"
    complete = not any(finding.category == "observer" for finding in findings)
    return "high" if good.state is State.SOUND and complete else "medium"


def _about_checkpoint(wrong: Corruption | None, good: Checkpoint | None, any_found: bool) -> Iterator[str]:
    if good is None:
        yield "No checkpoint is both whole and clean." if any_found else "No checkpoint of this run was seen."
        return
    if good.state is not State.SOUND:
        yield f"The bytes of {good.path} were not verified: {good.why}."
    if wrong is not None:
        yield (
            "Wrong numbers may lie still for some steps before they show: when the fault comes back at once, go on from "
            "an older checkpoint."
        )


def _about_data(skip: Mapping[str, int | None] | None) -> Iterator[str]:
    if skip is not None:
        yield "Whether the data of that step is the cause, or the hardware that it ran on."
        if skip["begin_sample"] is None or skip["end_sample"] is None:
            yield "Which samples that step had: the trainer has not said its data cursor (hooks.record_batch)."


def _about_hosts(findings: tuple[Finding, ...], run: RunFacts) -> Iterator[str]:
    if any(finding.kind in advice.BY_HOST for finding in findings) and len(run.hosts) < 2:
        yield "Whether another host would do better: all ranks that were seen ran on one."


def _about_command(run: RunFacts) -> Iterator[str]:
    if not run.command:
        yield "How the job is launched: it was not started by ranksight run."
    elif any(REDACTED in word for word in run.command):
        yield "Words of the command that may be secret: give the whole command to ranksight resume."
    elif REFERENCE_TRAINER not in run.command and not run.resume_arguments:
        yield "How this trainer is told which checkpoint to load: set resume_arguments in ranksight.toml."


def _about_observation(findings: tuple[Finding, ...]) -> Iterator[str]:
    for finding in findings:
        if finding.category == "observer":
            yield finding.message
