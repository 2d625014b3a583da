"""`ranksight whatif F [--json]`: print what slow operations cost the job of a trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TextIO

from ranksight.agent.whatif import report
from ranksight.agent.whatif.attribution import analyse
from ranksight.agent.whatif.operations import TraceError, read_trace


def whatif(path: Path, as_json: bool = False, out: TextIO | None = None) -> None:
    """Print the result for a trace, as text or as JSON. Raises TraceError, naming the file."""
    operations = read_trace(path)
    try:
        result = analyse(operations)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    print(json.dumps(report.to_json(result), indent=2) if as_json else report.text(result), file=out or sys.stdout)
