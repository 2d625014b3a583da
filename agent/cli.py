"""The `ranksight` command. Each subcommand is a few lines over the module that does the work.

Modules that bring heavy libraries are imported by the commands that need them: `ranksight run` stands in front of every
job, and should start it at once.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ranksight.agent import bench, doctor, files
from ranksight.agent.errors import ConfigError, RanksightError
from ranksight.agent.examples import epilog, root_epilog
from ranksight.agent.launch import demo, run
from ranksight.agent.launch.demo_faults import FAULTS
from ranksight.agent.report import console as table
from ranksight.hooks.ring import default_directory

if TYPE_CHECKING:
    from ranksight.agent.policy.conditions import StopConditions  # pydantic is slow to import

app = typer.Typer(
    name="ranksight",
    help="Says which rank, which call, which line slows down or stops a distributed PyTorch job, and what it costs.",
    epilog=root_epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Host = Annotated[str, typer.Option(help="Address that the live page and metrics are served on.")]
Port = Annotated[int, typer.Option(help="Port for the live page and metrics; the next free one is taken when it is in use, 0 takes any.")]


class ReportFormat(StrEnum):
    """What `ranksight report` prints."""

    TABLE = "table"
    MD = "md"
    JSON = "json"
    HTML = "html"


ConfigFile = Annotated[Path | None, typer.Option("--config", help="ranksight.toml with settings of the agent.")]
StopConditionsFile = Annotated[
    Path | None, typer.Option("--stop-conditions", help="stop_conditions.toml: when to stop the job, and how.")
]
Enforce = Annotated[bool, typer.Option("--enforce", help="Do what the stop conditions say; else it is only written down.")]
Restarts = Annotated[int, typer.Option(min=0, hidden=True)]


@app.command("run", epilog=epilog("run"), context_settings={"ignore_unknown_options": True})
def run_command(
    launcher: Annotated[list[str], typer.Argument(metavar="-- LAUNCHER...", help="The command as you would run it.")],
    run_dir: Annotated[
        Path | None, typer.Option("--dir", help="Where run.json and report.json go.", show_default="runs/<time>")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 9474,
    config: ConfigFile = None,
    stop_conditions: StopConditionsFile = None,
    enforce: Enforce = False,
    restarts: Restarts = 0,
) -> None:
    """Run a training job under watch; exits with the job's own exit code, or with 75 or 76 when ranksight stopped it."""
    where = run_dir or Path("runs") / _time_name()
    _check_config(config)
    _check_conditions(stop_conditions, enforce)
    options = run.RunOptions(where, tuple(launcher), host, port, config, stop_conditions, enforce, restarts)
    outcome = run.run(options)
    table.render(outcome.report, _stderr(), str(where / "report.json"))
    raise typer.Exit(outcome.exit_code)


@app.command("resume", epilog=epilog("resume"), context_settings={"ignore_unknown_options": True})
def resume_command(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a run with a recovery.json.")],
    launcher: Annotated[
        list[str] | None, typer.Argument(metavar="[-- LAUNCHER...]", help="A changed command.", show_default="that of the plan")
    ] = None,
    another_layout: Annotated[bool, typer.Option(help="The job may have another number of ranks than before.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 9474,
    config: ConfigFile = None,
    stop_conditions: StopConditionsFile = None,
    enforce: Enforce = False,
) -> None:
    """Verify the recovery plan of a run and go on from its checkpoint; exits with 76 when the same fault comes back."""
    from ranksight.agent.policy.engine import FINAL
    from ranksight.agent.recovery import resume

    _check_config(config)
    _check_conditions(stop_conditions, enforce)
    plan = resume.prepare(run_dir, launcher or (), another_layout=another_layout)
    options = {
        "host": host, "port": port, "config": config, "stop_conditions": stop_conditions, "enforce": enforce,
        "restarts": files.read_json(run_dir / "run.json").get("restarts", 0) + 1,
    }  # fmt: skip
    outcome, repeated = resume.resume(run_dir, plan, options)
    table.render(outcome.report, _stderr(), str(plan.run_dir / "report.json"))
    if repeated is not None:
        _stderr().print(f"ranksight: {repeated}", highlight=False)
    raise typer.Exit(outcome.exit_code if repeated is None else FINAL)


@app.command("agent", epilog=epilog("agent"))
def agent_command(
    ring_dir: Annotated[
        Path | None, typer.Option(help="Folder of the rings of one run.", show_default="the rings of this user's run")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option("--dir", help="Where report.json goes; none is written without it.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run in metrics and traces.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 9474,
    config: ConfigFile = None,
    stop_conditions: StopConditionsFile = None,
    enforce: Enforce = False,
    restarts: Restarts = 0,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
    log: Annotated[Path | None, typer.Option(help="File for the agent's own messages.")] = None,
) -> None:
    """Watch the rings of a run without launching it, until SIGTERM: for systemd, Kubernetes and Slurm."""
    from ranksight.agent import daemon
    from ranksight.agent.config import load

    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    rings = ring_dir or default_directory(run_id)
    conditions = _check_conditions(stop_conditions, enforce)
    daemon.run(
        daemon.DaemonOptions(
            rings, run_id or rings.name, run_dir, host, port, parent, load(config), conditions, enforce, restarts
        )
    )


@app.command("report", epilog=epilog("report"))
def report_command(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a run.")],
    form: Annotated[
        ReportFormat, typer.Option("--format", help="A table, Markdown, report.json itself, or report.html made anew.")
    ] = ReportFormat.TABLE,
    json_output: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Show the report of a run. `--format html` writes report.html into the directory and prints its path."""
    path = run_dir / "report.json"
    found = files.read_report(run_dir)
    if json_output or form is ReportFormat.JSON:
        sys.stdout.write(path.read_text())
    elif form is ReportFormat.MD:
        from ranksight.agent.report import markdown

        sys.stdout.write(markdown.render(found))
    elif form is ReportFormat.HTML:
        from ranksight.agent.page import pages

        sys.stdout.write(f"{pages.write(run_dir, found)}\n")
    else:
        table.render(found, Console(), str(path))


@app.command("trace", epilog=epilog("trace"))
def trace_command(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a run; it may still run.")],
    step: Annotated[int, typer.Option(min=0, help="Training step.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write.", show_default="trace-step-N.json in the directory")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Say as JSON which file was written.")] = False,
) -> None:
    """Write one step of all ranks as a timeline, to be opened in Perfetto or chrome://tracing."""
    from ranksight.agent.traces.command import write_trace

    path = write_trace(run_dir, step, out)
    if json_output:
        sys.stdout.write(files.to_json({"step": step, "path": str(path)}))
    else:
        sys.stdout.write(f"{path}: open it in https://ui.perfetto.dev\n")


@app.command("compare", epilog=epilog("compare"))
def compare_command(
    first: Annotated[Path, typer.Argument(help="Directory of a run.")],
    second: Annotated[Path, typer.Argument(help="Directory of the run to hold against it.")],
    everything: Annotated[bool, typer.Option("--all", help="Show what did not change and what can't be told, too.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Say what changed between two runs, with 95 % intervals; and what two such runs can't tell."""
    from ranksight.agent.report import compare_command as comparison

    comparison.run(first, second, everything=everything, json_output=json_output, console=Console())


@app.command("doctor", epilog=epilog("doctor"))
def doctor_command(
    json_output: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    python: Annotated[str | None, typer.Option(help="Interpreter of the training jobs.", show_default="this one")] = None,
) -> None:
    """Say what works on this machine, what is missing, and what cannot be done without it."""
    checks = doctor.examine(python or sys.executable)
    sys.stdout.write(doctor.to_json(checks)) if json_output else doctor.render(checks, Console())
    raise typer.Exit(0 if doctor.usable(checks) else 1)


@app.command("demo", epilog=epilog("demo"))
def demo_command(
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps.", show_default="40, or 60 with a fault")
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(metavar="NAME[:rank=R,step=S,size=X]", help=f"Have something go wrong: {', '.join(FAULTS)}.", show_default="none"),
    ] = None,
    run_dir: Annotated[Path | None, typer.Option("--dir", help="Where the report goes.", show_default="runs/demo-<time>")] = None,
    host: Host = "127.0.0.1",
    port: Port = 9474,
) -> None:
    """Train the reference model on 8 ranks (pipeline 2, data 2, tensor 2, expert 4) under watch, in about two minutes."""
    options = demo.DemoOptions(run_dir or Path("runs") / f"demo-{_time_name()}", steps or demo.steps_for(fault), fault, host, port)
    outcome = demo.run_demo(options, _stderr())
    table.render(outcome.report, _stderr(), str(options.run_dir / "report.json"))
    _stderr().print(demo.what_next(options.run_dir, options.steps), highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(outcome.exit_code)


@app.command("explain", epilog=epilog("explain"))
def explain_command(
    path: Annotated[Path, typer.Argument(help="Folder of PyTorch Flight Recorder dumps, or one of them.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Give a verdict from PyTorch Flight Recorder dumps: which rank, which call, or that they do not say."""
    from ranksight.agent.flight_recorder import command as flight_recorder

    raise typer.Exit(flight_recorder.run(path, json_output))


@app.command("whatif", epilog=epilog("whatif"))
def whatif_command(
    path: Annotated[Path, typer.Argument(help="Parquet trace with one row per operation.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Replay a trace without its slow operations: how much time is lost, to which types, stages and ranks."""
    from ranksight.agent.whatif.command import whatif

    whatif(path, json_output)


@app.command("why", epilog=epilog("why"))
def why_command(
    run_dir: Annotated[Path, typer.Argument(metavar="D", help="Folder of a run.")],
    step: Annotated[int, typer.Option("--step", help="The step to ask about, counted from 0.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
) -> None:
    """Go from a bad step back to the first thing that went wrong, and forward to what that touched."""
    from ranksight.agent.why.command import why

    why(run_dir, step, json_output)


policy_app = typer.Typer(help="Stop conditions: check a file, try it on recorded runs.", no_args_is_help=True)
app.add_typer(policy_app, name="policy")


@policy_app.callback()
def policy_group() -> None:
    """Stop conditions: check a file, try it on recorded runs."""


@policy_app.command("check", epilog=epilog("policy check"))
def policy_check_command(
    path: Annotated[Path, typer.Argument(metavar="F", help="stop_conditions.toml.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the conditions as JSON.")] = False,
) -> None:
    """Say what each condition of a file does, or what is wrong with the file."""
    from ranksight.agent.policy import command as policy

    policy.check(path, Console(), json_output=json_output)


@policy_app.command("replay", epilog=epilog("policy replay"))
def policy_replay_command(
    path: Annotated[Path, typer.Argument(metavar="F", help="stop_conditions.toml.")],
    run_dirs: Annotated[list[Path], typer.Argument(metavar="D...", help="Directories of runs that are over.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print what would have happened as JSON.")] = False,
) -> None:
    """Say what a file of conditions would have stopped in recorded runs, when, and what that saves or costs."""
    from ranksight.agent.policy import command as policy

    policy.replay_runs(path, run_dirs, Console(), _stderr(), json_output=json_output)


bench_app = typer.Typer(help="Measure what ranksight costs on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench_group() -> None:
    """Measure what ranksight costs on this machine."""


@bench_app.command("overhead", epilog=epilog("bench overhead"))
def bench_overhead_command(
    rounds: Annotated[int, typer.Option(min=3, help="More rounds, narrower quartiles; about 20 s each.")] = 12,
    python: Annotated[str | None, typer.Option(help="Interpreter of the training jobs.", show_default="this one")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Cost per collective and per step: bare, native tap, Python tap, torch.profiler, a span per call, Flight Recorder."""
    result = bench.overhead(python or sys.executable, rounds, _stderr())
    if json_output:
        sys.stdout.write(files.to_json(result))
    else:
        bench.render(result, Console())


@app.command("version", epilog=epilog("version"))
def version_command() -> None:
    """Print the version."""
    sys.stdout.write(version("ranksight") + "\n")


def main() -> None:
    """Entry point: errors that the user can mend are one line on stderr and exit code 2."""
    try:
        app()
    except RanksightError as error:
        sys.stderr.write(f"ranksight: {error}\n")
        raise SystemExit(2) from None


def _stderr() -> Console:
    # Findings and tables must not be held back or broken when stderr is a file.
    narrow = 80 if not sys.stderr.isatty() and "COLUMNS" not in os.environ else None
    return Console(stderr=True, width=narrow, soft_wrap=False)


def _check_config(path: Path | None) -> None:
    """A mistake in the file is said before the job starts."""
    if path is not None:
        from ranksight.agent.config import load

        load(path)


def _check_conditions(path: Path | None, enforce: bool) -> StopConditions | None:
    """The stop conditions; a mistake in them is said before the job starts."""
    if path is None:
        if enforce:
            raise ConfigError("--enforce: there is nothing to enforce without --stop-conditions F")
        return None
    from ranksight.agent.policy import conditions

    return conditions.load(path)


def _time_name() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
