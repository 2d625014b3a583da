"""`ranksight explain PATH [--json]`: print the verdict of a folder of Flight Recorder dumps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TextIO

from ranksight.agent.flight_recorder.dumps import DumpError
from ranksight.agent.flight_recorder.verdict import Explanation, explain
from ranksight.agent.words import numbers_in_words

UNREADABLE = 2


def run(path: Path, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Exit status 0 when the dumps could be read, whatever they say, and 2 when they could not."""
    out, err = out or sys.stdout, err or sys.stderr
    try:
        explanation = explain(path)
    except DumpError as error:
        print(f"ranksight explain: {error}", file=err)
        return UNREADABLE
    print(json.dumps(explanation.to_json(), indent=2) if as_json else text(explanation), file=out)
    return 0


def text(explanation: Explanation) -> str:
    """The verdict for people, at most some twenty lines."""
    finding = explanation.finding
    if finding:
        lines = [f"{finding.kind}: {explanation.reason}", f"  {finding.advice}"]
        waits = finding.evidence.get("waiting") or {}
        lines += [f"  rank {rank} sits in {what}" for rank, what in list(waits.items())[:10]]
        lines += [f"  ... and {len(waits) - 10} more ranks"] if len(waits) > 10 else []
    else:
        lines = [f"{'healthy' if explanation.healthy else 'no verdict'}: {explanation.reason}"]
    missing = set(explanation.ranks_expected) - set(explanation.ranks_found)
    lines.append(f"dumps of ranks {numbers_in_words(explanation.ranks_found)} (version {', '.join(explanation.versions)})")
    if missing:
        lines.append(f"no dump of {numbers_in_words(missing)}")
    return "\n".join([*lines, *explanation.notes])
