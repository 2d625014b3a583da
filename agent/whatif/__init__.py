"""What slow operations cost a job: its recorded operations replayed with some of them made ideal.

    file -> operations.read_trace -> Operations -> graph.build -> Graph -> replay.replay -> step times
         -> attribution.analyse -> WhatIf -> report.to_json / report.text

The method is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25).
"""

from ranksight.agent.whatif.attribution import Effect, WhatIf, analyse
from ranksight.agent.whatif.operations import Operations, TraceError, read_trace

__all__ = ["Effect", "Operations", "TraceError", "WhatIf", "analyse", "read_trace"]
