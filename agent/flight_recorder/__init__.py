"""Verdicts from PyTorch Flight Recorder dumps, with the agent's own ledger and wait-for graph.

`explain(path)`: files -> dumps.read_folder -> Dump per rank -> verdict -> Explanation (a finding, healthy, or why neither).
"""

from ranksight.agent.flight_recorder.dumps import DumpError
from ranksight.agent.flight_recorder.verdict import Explanation, explain

__all__ = ["DumpError", "Explanation", "explain"]
