"""From findings to a stop that is safe: conditions, decisions, the agreement of the ranks, escalation, and the audit."""
