"""`rlx eval`: become the job that scores a model or a run on validation prompts."""

import hashlib
import re
from pathlib import Path

import typer

from rlx import jobs, run_records, text_files, ui
from rlx.arguments import JSON_OPTION, VERBOSE_OPTION, existing, refuse_empty, refuse_unbuilt, say, split_words
from verl_core.config import write
from verl_core.config.compose import PROJECT_FILE, Resolved, resolve
from verl_core.config.effective import extras
from verl_core.config.errors import EnvError, UserError
from verl_core.config.files import cache_dir, user_path

JOB = "verl_core.controller.eval_job"
HUB_NAME = re.compile(r"[\w.\-]+/[\w.\-]+")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("eval")
def evaluate(
    model: str = typer.Argument(..., metavar="MODEL_OR_RUN", help="A run, a checkpoint, a model folder or a hub name."),
    words: list[str] = typer.Argument(
        None, metavar="PROFILE | KEY=VALUE", help="How to sample and score; default: the run's own configuration."
    ),
    data: Path = typer.Option(None, help="Prompts to score on; default: data.val_files."),
    out: Path = typer.Option(None, help="File for the answers and their scores, one JSON object a line."),
    as_json: bool = JSON_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Score a model or a run on validation prompts.

    A run brings its configuration along; a model folder or hub name needs a profile or an rlx.yaml for the prompts, the
    scorer and the sampling (rollout.val_kwargs).

    Examples: `rlx eval runs/smoke/smoke-1`, `rlx eval my-model smoke`, `rlx eval Qwen/Qwen2.5-0.5B-Instruct gsm8k-ppo`.
    """
    refuse_empty(model, "MODEL_OR_RUN")
    run = _check_source(model)
    if data is not None and not str(data).startswith("builtin:"):
        existing(data, "--data")
    resolved = _resolve(model, run, words or [])
    say(resolved)
    refuse_unbuilt(resolved)
    resolved.config.trainer.logger = ["console"]  # an evaluation reports to nobody: no tracker's extra is needed
    options = jobs.options(config=_write_config(resolved), data=data, out=out, json=as_json)
    uses_gpu = resolved.config.trainer.device != "cpu"
    jobs.become(JOB, [model, *options, *(["-v"] if verbose else [])], extras(resolved.config), uses_gpu=uses_gpu)


def _check_source(model: str) -> Path | None:
    """The run that `model` is or lies in, None for a plain model. UserError for a path that does not exist."""
    if model.startswith("builtin:"):
        return None
    path = user_path(model, "MODEL_OR_RUN")
    if path.exists():
        places = (path.absolute(), path.resolve())  # a link to a checkpoint lies in no run, what it points to does
        folders = (folder for place in places for folder in (place, *place.parents))
        return next((folder for folder in folders if run_records.is_run(folder)), None)
    if not HUB_NAME.fullmatch(model) or model.startswith("."):
        raise UserError(f"there is no model or run at {model}", "`rlx runs ls` lists the runs here")
    ui.note(f"{model} is no folder here: it is taken for a model of the Hugging Face hub")
    return None


def _resolve(model: str, run: Path | None, words: list[str]) -> Resolved:
    """The run's configuration, or the named profile's; a profile is evaluated with the hf engine unless a key says
    otherwise, because that engine needs nothing beside the training back end."""
    profile, overrides = split_words(words)
    if profile is None and run is not None:
        resolved = resolve(None, overrides, run / "config.yaml")
        # that file sets every key, so what it says about keys without effect is news to nobody
        resolved.warnings = [text for text in resolved.warnings if str(run / "config.yaml") not in text]
        return resolved
    if profile is None and not Path(PROJECT_FILE).is_file():
        raise UserError(f"{model} is not a run, so it needs a profile", f"rlx eval {model} PROFILE (`rlx profile ls`)")
    if not any(word.partition("=")[0].endswith(("rollout.engine", "rollout.name")) for word in overrides):
        overrides.append("rollout.engine=hf")
    return resolve(profile, overrides)


def _write_config(resolved: Resolved) -> Path:
    """Write the configuration where the job reads it: the cache folder, under its digest, so that it stays one file."""
    text = write.dump(write.of_run(resolved.config))
    path = cache_dir() / "eval" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text_files.write(path, text)
    except OSError as problem:
        raise EnvError(f"{path} cannot be written: {problem.strerror}", "RLX_CACHE=/a/writable/folder") from problem
    return path
