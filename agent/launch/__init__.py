"""`ranksight run`: the launcher in the foreground, an agent beside it, run.json."""
