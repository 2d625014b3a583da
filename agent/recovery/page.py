"""recovery.md: a recovery plan for people, made from recovery.json so that both say the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any


def page(plan: Mapping[str, Any]) -> str:
    """The page of a plan as `Plan.to_json` gives it."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    run = plan["run"]
    yield f"# Recovery of {run['id']}"
    yield ""
    yield plan["verdict"]
    yield ""
    yield f"- ended by: {'a stop condition' if run['stopped'] else 'itself'}, exit code {run['exit_code']}"
    yield f"- confidence: {plan['confidence']}"
    yield f"- restart: {'sensible' if plan['restart']['sensible'] else 'not sensible'}: {plan['restart']['why']}"
    yield f"- change: {plan['change']}"
    for what in ("hosts", "ranks"):
        if plan["excluded"][what]:
            yield f"- leave out {what}: {', '.join(map(str, plan['excluded'][what]))}"
    if plan["skip"]:
        yield f"- data in doubt: {_data(plan['skip'])}"
    yield ""
    yield "## Go on from"
    yield ""
    yield from _checkpoint(plan)
    for title, key in (("Tainted", "tainted"), ("Unusable", "unusable")):
        if plan[key]:
            yield from ("", f"## {title}", "")
            yield from (f"- `{found['path']}`: {found['why']}" for found in plan[key])
    yield from ("", "## Evidence", "")
    for found in plan["evidence"]:
        step = "" if found["first_step"] is None else f" from step {found['first_step']}"
        yield f"- {found['severity']} {found['kind']}{step}: {found['message']}"
    if plan["unknown"]:
        yield from ("", "## Not known", "")
        yield from (f"- {text}" for text in plan["unknown"])


def _checkpoint(plan: Mapping[str, Any]) -> Iterator[str]:
    good = plan["checkpoint"]
    if good is None:
        yield "No checkpoint can be recommended; the command begins anew."
    else:
        state = "every byte verified" if good["verified"] else "bytes not verified"
        yield f"`{good['path']}`: {good['step']} steps done, {state}."
    if plan["command"]:
        yield from ("", "```", shlex.join(plan["command"]), "```")


def _data(skip: Mapping[str, int | None]) -> str:
    samples = "" if skip["begin_sample"] is None else f", samples from {skip['begin_sample']}"
    if skip["begin_sample"] is not None and skip["end_sample"] is not None:
        samples += f" to {skip['end_sample'] - 1}"
    return f"step {skip['begin_step']}{samples}"
