"""`rlx eval`: become the job that scores models and runs on held-out prompts."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import typer

from rlx import eval_sources, jobs, run_checkpoints
from rlx.arguments import (
    FILE_OPTION,
    JSON_OPTION,
    VERBOSE_OPTION,
    refuse_empty,
    refuse_unbuilt,
    say,
    split_words,
)
from rlx.job_config import config_file
from verl_core.config.compose import PROJECT_FILE, Resolved, resolve
from verl_core.config.effective import extras
from verl_core.config.errors import UserError
from verl_core.config.prepared_data import needs
from verl_core.config.schema import RlxConfig

JOB = "verl_core.controller.eval_job"

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("eval")
def evaluate(
    source: str = typer.Argument(
        ..., metavar="MODEL_OR_RUN", help="A run, a checkpoint, a model folder or a hub name."
    ),
    words: list[str] = typer.Argument(
        None,
        metavar="MODEL_OR_RUN | PROFILE | KEY=VALUE",
        help="More of them, to compare with the first; how to sample and score, by default as the run does.",
    ),
    data: list[str] = typer.Option(
        None, help="Prompts: a file, a folder, or what `rlx prepare` made, e.g. gsm8k; default: data.val_files."
    ),
    n: int = typer.Option(None, "--n", min=1, help="Answers a question."),
    temperature: float = typer.Option(None, min=0.0, help="0: greedy."),
    top_p: float = typer.Option(None, help="Nucleus share, in (0, 1]."),
    top_k: int = typer.Option(None, help="The k most probable tokens only; -1: all."),
    max_tokens: int = typer.Option(None, min=1, help="Longest answer, in tokens."),
    limit: int = typer.Option(None, min=1, help="Only the first this many questions."),
    seed: int = typer.Option(None, min=0, help="Of the draws, ties and intervals; default: trainer.seed."),
    engine: str = typer.Option(None, help="Rollout engine; default: the run's own, hf for a plain model."),
    profile: str = typer.Option(None, help="The profile, where its name could be taken for a source's."),
    file: Path = FILE_OPTION,
    out: Path = typer.Option(None, help="Keep every answer, one JSON object a line; goes on after what is there."),
    as_json: bool = JSON_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Score a model or a run on validation prompts.

    A run brings its configuration along; a model folder or hub name needs a profile or an rlx.yaml for the prompts, the
    scorer and the sampling (rollout.val_kwargs). Of several, each is compared with the first, question by question.

    Examples: `rlx eval runs/smoke/smoke-1`, `rlx eval my-model smoke`, `rlx eval my-model gsm8k-grpo --data gsm8k --n 8
    --temperature 1 --out answers.jsonl`, `rlx eval my-model runs/gsm8k/gsm8k-grpo-1`.
    """
    refuse_empty(source, "MODEL_OR_RUN")
    sources, rest = eval_sources.split(source, words or [])
    runs = [eval_sources.run_of(each) for each in sources]
    files = [eval_sources.prompts(each) for each in data or []]
    if profile is not None:
        refuse_empty(profile, "--profile")
        rest = [*rest, profile]
    rest += _settings(n, temperature, top_p, top_k, max_tokens, limit, engine)
    resolved = _resolve(source, next(filter(None, runs), None), rest, file)
    say(resolved)
    refuse_unbuilt(resolved)
    _refuse_greedy(resolved.config, n, top_p, top_k)
    configs = _configs(resolved, runs, rest, file)
    options = [word for config in configs for word in jobs.options(config=config_file(config, "eval"))]
    options += [word for each in files for word in jobs.options(data=each)]
    options += jobs.options(seed=seed, out=out, json=as_json)
    uses_gpu = resolved.config.trainer.device != "cpu"
    stores = [run_checkpoints.extras_of(each) or () for each in sources]
    wanted = sorted({*extras(configs[0]), *needs(files), *chain(*stores)})
    jobs.become(JOB, [*sources, *options, *(["-v"] if verbose else [])], wanted, uses_gpu=uses_gpu)


def _settings(
    n: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    max_tokens: int | None,
    limit: int | None,
    engine: str | None,
) -> list[str]:
    """The options as settings, which come after those of the command line."""
    named = {
        "rollout.val_kwargs.n": n,
        "rollout.val_kwargs.temperature": temperature,
        "rollout.val_kwargs.do_sample": None if temperature is None else str(temperature > 0).lower(),
        "rollout.val_kwargs.top_p": top_p,
        "rollout.val_kwargs.top_k": top_k,
        "data.max_response_length": max_tokens,
        "data.val_max_samples": limit,
        "rollout.engine": engine,
    }
    return [f"{key}={value}" for key, value in named.items() if value is not None]


def _refuse_greedy(config: RlxConfig, n: int | None, top_p: float | None, top_k: int | None) -> None:
    """UserError for options that change nothing where every token is the most probable one."""
    val = config.rollout.val_kwargs
    idle = [f"--n {n}"] if n is not None and n > 1 else []
    idle += [f"--{name} {value}" for name, value in (("top-p", top_p), ("top-k", top_k)) if value is not None]
    if idle and not (val.do_sample and val.temperature > 0):
        raise UserError(
            f"{' and '.join(idle)} says nothing about greedy answers, which are all alike", "--temperature 1"
        )


def _resolve(source: str, run: Path | None, words: list[str], file: Path | None = None) -> Resolved:
    """The run's configuration, or the named profile's; a profile is evaluated with the hf engine unless a key says
    otherwise, because that engine needs nothing beside the training back end."""
    profile, overrides = split_words(words)
    if profile is None and file is None and run is not None:
        resolved = resolve(None, overrides, run / "config.yaml")
        # that file sets every key, so what it says about keys without effect is news to nobody
        resolved.warnings = [text for text in resolved.warnings if str(run / "config.yaml") not in text]
        return resolved
    if profile is None and file is None and not Path(PROJECT_FILE).is_file():
        raise UserError(
            f"{source} is not a run, so it needs a profile", f"rlx eval {source} PROFILE (`rlx profile ls`)"
        )
    if not any(word.partition("=")[0].endswith(("rollout.engine", "rollout.name")) for word in overrides):
        overrides.append("rollout.engine=hf")
    return resolve(profile, overrides, file)


def _configs(resolved: Resolved, runs: list[Path | None], words: list[str], file: Path | None) -> list[RlxConfig]:
    """One configuration a source: all sample and score alike, and where that is as a run does, each run has its own
    model section (its template, its adapter). An evaluation reports to nobody: no tracker's extra is needed."""
    resolved.config.trainer.logger = ["console"]
    profile, overrides = split_words(words)
    own_models = profile is None and file is None
    return [
        replace(resolved.config, model=resolve(None, overrides, run / "config.yaml").config.model)
        if run is not None and own_models
        else resolved.config
        for run in runs
    ]
