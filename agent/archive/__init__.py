"""The records of a run as Parquet files: written by the agent while the job runs, read by trace, why and people."""
