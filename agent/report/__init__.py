"""What is left of a run: the verdict, report.json and its table in the terminal."""
