"""Files of a run directory that belong to recovery."""

RECOVERY_FILE, PAGE_FILE = "recovery.json", "recovery.md"
EXPECTED_FILE = "resume.json"  # in the directory of a resumed run: step, cursor and path of its checkpoint
