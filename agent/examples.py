"""Examples of every command: the end of each `--help`, and docs/commands.md. Tests parse them all.

    epilog("policy check") -> text that typer puts below the options, a blank line between lines
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "ranksight run -- torchrun --standalone --nproc-per-node 8 train.py --lr 3e-4",
        "ranksight run --dir runs/today --host 0.0.0.0 -- srun python train.py",
        "ranksight run --stop-conditions stop_conditions.toml --enforce -- torchrun --nproc-per-node 8 train.py",
    ),
    "resume": (
        "ranksight resume runs/today",
        "ranksight resume runs/today -- torchrun --nproc-per-node 8 train.py --lr 1e-4",
    ),
    "agent": ("ranksight agent --dir runs/today --run-id today --config ranksight.toml",),
    "report": ("ranksight report runs/today", "ranksight report runs/today --format md > report.md", "ranksight report runs/today --json"),
    "trace": ("ranksight trace runs/today --step 120 -o step-120.json",),
    "compare": ("ranksight compare runs/before runs/after", "ranksight compare runs/before runs/after --all --json"),
    "doctor": ("ranksight doctor", "ranksight doctor --python /opt/train/bin/python --json"),
    "demo": ("ranksight demo", "ranksight demo --fault straggler", "ranksight demo --fault nan-gradient:rank=5,step=20 --dir runs/nan"),
    "explain": ("ranksight explain dumps/", "ranksight explain dumps/ --json"),
    "whatif": ("ranksight whatif trace.parquet", "ranksight whatif trace.parquet --json"),
    "why": ("ranksight why runs/today --step 120", "ranksight why runs/today --step 120 --json"),
    "version": ("ranksight version",),
    "policy check": ("ranksight policy check stop_conditions.toml",),
    "policy replay": ("ranksight policy replay stop_conditions.toml runs/monday runs/tuesday --json",),
    "bench overhead": ("ranksight bench overhead", "ranksight bench overhead --rounds 30 --json > cost.json"),
}  # fmt: skip

EXIT_CODES = {
    0: "all went well; `run`, `resume` and `demo` exit with the code of what they ran",
    1: "`doctor`: jobs can't be watched here",
    2: "a mistake in options or files; stderr says which, and what was expected",
    75: "ranksight stopped the job, and a retry is sensible",
    76: "ranksight stopped the job, and it would fail again without a change",
}


def epilog(command: str) -> str:
    """What stands at the end of a command's help."""
    return "\n\n".join(("Examples:", *EXAMPLES[command]))


def root_epilog() -> str:
    """What stands at the end of `ranksight --help`."""
    codes = (f"{code}: {meaning}" for code, meaning in EXIT_CODES.items())
    return "\n\n".join(("Exit codes:", *codes, "NO_COLOR=1 turns colours off; COLUMNS is the width of tables."))
