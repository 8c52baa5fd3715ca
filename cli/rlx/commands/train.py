"""`rlx train`: resolve and check, make the environment and the run directory, become the training job."""

from pathlib import Path

import typer

from rlx import dry_run as dry_runs
from rlx import run_records, rundir, ui
from rlx.arguments import DRY_RUN_OPTION, VERBOSE_OPTION, WORDS_HELP, refuse_unbuilt, resolve_words
from rlx.env import launch
from rlx.launchers import Launcher
from rlx.launchers.command import launch_run
from verl_core.config.compose import Resolved
from verl_core.config.effective import extras

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def train(
    words: list[str] = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help=WORDS_HELP),
    file: Path = typer.Option(None, "--file", "-f", help="Configuration file between the profile and the settings."),
    resume: bool = typer.Option(False, "--resume", help="Go on from the last checkpoint of the run, if it has one."),
    dry_run: bool = DRY_RUN_OPTION,
    as_json: bool = typer.Option(False, "--json", help="End with one JSON object on stdout; step lines go to stderr."),
    launcher: Launcher = typer.Option(None, "--launcher", help="Submit the run there; --dry-run prints the script."),
    strict: bool = typer.Option(False, "--strict", help="Refuse settings that have no effect instead of warning."),
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Train a model by reinforcement learning.

    Without a profile, ./rlx.yaml is used. The run directory is runs/PROJECT/EXPERIMENT (trainer.project_name,
    trainer.experiment_name; an unset experiment name becomes PROFILE-N). Ctrl-C once saves a checkpoint and stops.

    Examples: `rlx train smoke`, `rlx train gsm8k-grpo rollout.engine=hf trainer.seed=1`, `rlx train --resume`.
    """
    from verl_core.planning.plan import refuse_sizes

    resolved = resolve_words(words or [], file, strict)
    if not dry_run:
        refuse_unbuilt(resolved)
    refuse_sizes(resolved.config)
    if launcher:
        flags = [*(["--resume"] if resume else []), *(["--strict"] if strict else []), *(["-v"] if verbose else [])]
        launch_run(launcher, resolved, [*(words or []), *(["-f", str(file)] if file else [])], flags, dry_run, as_json)
        return
    job_args = [*(["--resume"] if resume else []), *(["--json"] if as_json else []), *(["-v"] if verbose else [])]
    if dry_run:
        _show(dry_runs.preview(resolved, resume, job_args), as_json)
        return
    planned = rundir.plan(resolved, resume)  # a taken name is an error before minutes are spent on an environment
    if changed := rundir.changes(planned, resolved):
        ui.note(f"the run goes on with other values than it began with: {', '.join(changed)}")
    wanted = extras(resolved.config)
    python = launch.python_for(wanted, uses_gpu=resolved.config.trainer.device != "cpu")
    run_dir = rundir.start(resolved, resume, environment=str(python.parent.parent))
    _say_start(resolved, run_dir, resume)
    trainer = resolved.config.trainer
    launch.run_in(python, dry_runs.JOB, [str(run_dir), *job_args], trainer.num_threads or 1)


def _show(preview: dry_runs.Preview, as_json: bool) -> None:
    for text in preview.absent:
        ui.warn(text)
    if as_json:
        ui.out_json(preview.values | {"absent": preview.absent})
    else:
        dry_runs.show(preview.values)


def _say_start(resolved: Resolved, run_dir: Path, resume: bool) -> None:
    ui.talk(f"{resolved.profile}: {resolved.config.purpose or 'training'}")
    ui.talk(f"run directory: {run_dir}")
    if resume and not resolved.config.trainer.checkpoint_url and not run_records.has_checkpoint(run_dir):
        ui.warn(f"{run_dir} has no checkpoint to resume from: it starts fresh")
