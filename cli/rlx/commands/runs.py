"""`rlx runs`: what has been trained here. `ls`, `show` and `verify` need no environment; `plot` becomes a job that can
draw."""

from pathlib import Path
from typing import Any

import typer

from rlx import jobs, run_checkpoints, run_records, ui
from rlx.arguments import JSON_OPTION
from rlx.run_checkpoints import Inspected
from verl_core.config.errors import EnvError, UserError
from verl_core.config.urls import is_url

PLOT_JOB = "verl_core.tracking.plot_job"
PLOT_EXTRAS = ("plot",)
SHOWN_METRICS = (
    "critic/rewards/mean",
    "critic/score/mean",
    "response_length/mean",
    "actor/kl_loss",
    "actor/entropy",
    "actor/grad_norm",
    "actor/pg_loss",
)

app = typer.Typer(
    help="List runs, show one, check its checkpoints, draw its curves.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)

DIR = typer.Option("runs", "--dir", help="Folder that holds the runs (trainer.default_local_dir).")


@app.command()
def ls(root: Path = DIR, as_json: bool = JSON_OPTION) -> None:
    """List the runs here, oldest first.

    With steps done, the newest whole checkpoint (and how many are broken), held-out score at the start and at the end,
    and how each ended.
    """
    runs = run_records.find_runs(root)
    try:
        run_checkpoints.reach(runs)
    except EnvError as error:
        ui.warn(error.message)
    rows = [_overview(run) for run in runs]
    if as_json:
        ui.out_json(rows)
    elif rows:
        ui.table(
            ("RUN", "PROFILE", "STARTED", "STEPS", "CHECKPOINT", "SCORE", "STATE"),
            [
                (r["run"], r["profile"], r["started"], str(r["steps"]), _saved(r), _score(r["val"]), r["state"])
                for r in rows
            ],
        )
    else:
        ui.talk(f"no runs in {root}; `rlx train smoke` makes one")


@app.command()
def show(name: str = typer.Argument(..., metavar="RUN", help="A run directory."), as_json: bool = JSON_OPTION) -> None:
    """Show how a run was started, how far it came, its last metrics, and its checkpoints."""
    if is_url(name):
        raise UserError(f"{name} is no run directory, it holds checkpoints alone", f"rlx runs verify {name}")
    _existing_run(run := Path(name))
    record = run_records.read_json(run / "run.json") or {}
    summary = run_records.read_json(run / "summary.json")
    metrics = run_records.last_metrics(run)
    run_checkpoints.reach([run])
    checkpoints = run_checkpoints.checkpoints_of(run)
    if as_json:
        told = run_checkpoints.as_json(checkpoints)
        ui.out_json({"run": record, "summary": summary, "metrics": metrics, "checkpoints": told})
        return
    view = _overview(run)
    git = record.get("git")
    rows = [
        ("run", view["run"]),
        ("command", " ".join(record.get("argv", []))),
        ("profile", view["profile"]),
        ("started", view["started"]),
        ("state", view["state"]),
        ("steps", str(view["steps"])),
        ("score", _score(view["val"])),
        ("commit", f"{git['sha'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""),
        ("environment", record.get("environment") or ""),
    ]
    if summary:
        rows.append(("seconds", ", ".join(f"{name} {value:.1f}" for name, value in summary.get("seconds", {}).items())))
        rows.append(("tokens/s", str(summary.get("tokens_per_s") or "")))
    rows += [(name, f"{metrics[name]:.4g}") for name in SHOWN_METRICS if metrics and metrics.get(name) is not None]
    rows += [(c.path.name, run_checkpoints.state(c)) for c in checkpoints]
    ui.pairs([row for row in rows if row[1]])


@app.command()
def verify(
    run: str = typer.Argument(
        ..., metavar="RUN", help="A run directory, its checkpoints folder, one global_step_N, or the URL of either."
    ),
    checksums: bool = typer.Option(False, "--checksums", help="Read every file: finds changed ones, takes its time."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Tell which checkpoints of a run are whole.

    Missing, cut and changed files are named. Exit code 1 when the newest checkpoint is broken.
    """
    run_checkpoints.reach([run])
    found = run_checkpoints.checkpoints_of(run)
    run_checkpoints.require_some(found, run)
    if checksums:
        found = run_checkpoints.read_all(found)
    if as_json:
        ui.out_json(run_checkpoints.as_json(found))
        raise typer.Exit(0 if run_checkpoints.newest_is_whole(found) else 1)
    run_checkpoints.table(found)
    run_checkpoints.refuse_broken_newest(found)


@app.command()
def plot(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run directories; several are drawn together."),
    out: Path = typer.Option(None, help="Picture file to write; default: plot.png in the first run directory."),
    terminal: bool = typer.Option(True, "--terminal/--no-terminal", help="Draw in the terminal as well."),
) -> None:
    """Draw curves into a picture file, and in the terminal.

    Reward, response length, KL, entropy and step time.
    """
    for run in runs:
        _existing_run(run)
    words = jobs.options(out=out) + ([] if terminal else ["--no-terminal"])
    jobs.become(PLOT_JOB, [*map(str, runs), *words], PLOT_EXTRAS)


def _existing_run(run: Path) -> None:
    if not run_records.is_run(run):
        raise UserError(f"{run} is not a run directory", "`rlx runs ls` lists the runs here")


def _overview(run: Path) -> dict[str, Any]:
    record = run_records.read_json(run / "run.json") or {}
    summary = run_records.read_json(run / "summary.json") or {}
    steps = summary.get("steps", (run_records.last_metrics(run) or {}).get("step", 0))
    checkpoints = _checkpoints(run)
    whole = run_checkpoints.newest_whole(checkpoints)
    return {
        "run": str(run),
        "profile": record.get("profile", ""),
        "started": record.get("started", ""),
        "steps": steps,
        "checkpoint": whole.step if whole else None,
        "broken_checkpoints": [c.step for c in checkpoints if not c.whole],
        "val": summary.get("val"),
        "state": summary.get("exit_reason", "unfinished"),
    }


def _checkpoints(run: Path) -> list[Inspected]:
    """None, with a warning, where a store cannot be reached: the others are still to be listed."""
    try:
        return run_checkpoints.checkpoints_of(run)
    except (UserError, EnvError) as error:
        ui.warn(f"{run}: {error.message}")
        return []


def _saved(run: dict[str, Any]) -> str:
    newest = "" if run["checkpoint"] is None else str(run["checkpoint"])
    broken = len(run["broken_checkpoints"])
    return f"{newest} ({broken} broken)".strip() if broken else newest


def _score(val: dict[str, Any] | None) -> str:
    return f"{val['first']:.3f} -> {val['last']:.3f}" if val else ""
