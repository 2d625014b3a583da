"""Rings as the agent sees them: records in order, groups numbered once for the whole host."""
