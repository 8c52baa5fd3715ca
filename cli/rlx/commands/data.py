"""`rlx data`: become the job that looks at data files."""

from collections.abc import Sequence
from pathlib import Path

import typer

from rlx import jobs
from rlx.arguments import FILE_OPTION, JSON_OPTION, VERBOSE_OPTION, refuse_empty, say, split_words
from rlx.eval_sources import prompts
from rlx.job_config import config_file
from verl_core.config.compose import PROJECT_FILE, of_words, profile_names, resolve
from verl_core.config.prepared_data import needs
from verl_core.config.prompt_files import prompt_files
from verl_core.config.schema import RlxConfig

JOB = "verl_core.data.inspection.job"
EXTRAS = ("fsdp",)
TOKENIZER_KEYS = ("model.path", "model.tokenizer_path")

WORDS = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help="Whose template, limits, columns and scorer count.")
FILES = typer.Argument(..., metavar="FILE", help="A file, folder, glob, builtin:NAME, or a prepared data set's name.")
MODEL = typer.Option(None, help="Folder or hub name whose tokenizer and chat template count.")
SPLIT = typer.Option("train", help="Of a folder: train or val.")

app = typer.Typer(
    help="Show rows of data files, count them, find what is wrong.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


@app.command()
def show(
    data: str = FILES,
    words: list[str] = WORDS,
    row: int = typer.Option(None, min=1, help="Only this row, counted from 1 over all files."),
    n: int = typer.Option(3, "--n", min=1, help="The first this many rows."),
    model: str = MODEL,
    split: str = SPLIT,
    file: Path = FILE_OPTION,
    as_json: bool = JSON_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Show rows as they will be sent.

    That is: the prompt after the chat template, how many ids it has, the answers that are learned from, the ground
    truth and the scorer.

    Examples: `rlx data show builtin:show-your-work smoke`, `rlx data show gsm8k --row 7 --model my-model`.
    """
    options = [*jobs.options(row=row, split=_split(split), json=as_json), "-n", str(n)]
    _become("show", [prompts(data, "FILE")], options, words, model, file, verbose)


@app.command()
def stats(
    data: str = FILES,
    words: list[str] = WORDS,
    against: list[str] = typer.Option(None, help="Count the prompts that these files have, too; may be repeated."),
    max_prompt_length: int = typer.Option(None, min=1, help="Tokens; default: data.max_prompt_length."),
    model: str = MODEL,
    split: str = SPLIT,
    file: Path = FILE_OPTION,
    as_json: bool = JSON_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Count rows, lengths and duplicates, and what files share.

    Lengths are those under the real template where a model is known, else characters.

    Examples: `rlx data stats gsm8k gsm8k-grpo`, `rlx data stats train.jsonl --against test.jsonl`.
    """
    options = jobs.options(split=_split(split), json=as_json, **{"max-prompt-length": max_prompt_length})
    options += [word for each in against or [] for word in jobs.options(against=prompts(each, "--against"))]
    _become("stats", [prompts(data, "FILE")], options, words, model, file, verbose)


@app.command()
def check(
    words: list[str] = typer.Argument(
        None,
        metavar="FILE | PROFILE | KEY=VALUE",
        help="Training files; without any, those of the configuration, or with --val and without a profile none.",
    ),
    val: list[str] = typer.Option(None, help="Validation files; may be repeated."),
    model: str = MODEL,
    file: Path = FILE_OPTION,
    as_json: bool = JSON_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Find what a run would stop at, or be misled by.

    Ends with 1 when there is something: broken rows, conversations that the template refuses, prompts that are too
    long, ground truths that the scorer cannot use, duplicates, and validation prompts that are trained on.

    Examples: `rlx data check gsm8k-grpo`, `rlx data check train.jsonl --val test.jsonl --model my-model`.
    """
    files = [prompts(word, "FILE") for word in words or [] if _is_file(word)]
    rest = [word for word in words or [] if not _is_file(word)]
    val = [prompts(each, "--val") for each in val or []]
    options = [*jobs.options(json=as_json), *(word for each in val for word in jobs.options(val=each))]
    if not (files or val) and not (rest or file or Path(PROJECT_FILE).is_file()):
        raise typer.BadParameter("name files, or a profile whose files are to be checked")
    _become("check", files, options, rest, model, file, verbose, val)


def _config(profile: str | None, overrides: list[str], file: Path | None) -> RlxConfig:
    resolved = resolve(profile, overrides, file)
    say(resolved)
    return resolved.config


def _is_file(word: str) -> bool:
    refuse_empty(word, "FILE")
    return "=" not in word and word not in profile_names() and not word.endswith((".yaml", ".yml"))


def _split(split: str) -> str:
    if split not in ("train", "val"):
        raise typer.BadParameter(f"{split} is neither train nor val", param_hint="--split")
    return split


def _become(
    command: str,
    files: Sequence[str],
    options: list[str],
    words: Sequence[str] | None,
    model: str | None,
    file: Path | None,
    verbose: bool,
    val: Sequence[str] = (),
) -> None:
    """The rows' form follows from the algorithm where a profile or file names one, else from their columns; without a
    model no tokenizer is loaded. The environment has what scoring the files and `val` takes."""
    profile, overrides = split_words(words or [])
    overrides += [f"model.path={model}"] if model is not None else []
    configured = bool(profile or file or Path(PROJECT_FILE).is_file())
    config = _config(profile, overrides, file) if configured else of_words(overrides)
    knows_tokenizer = configured or any(word.partition("=")[0] in TOKENIZER_KEYS for word in overrides)
    options += jobs.options(config=config_file(config, "data"))
    options += [] if knows_tokenizer else ["--no-tokenizer"]
    options += [] if configured else ["--by-columns"]
    scored = files or [each for named in prompt_files(config.data).values() for each in named]
    extras = (*EXTRAS, *sorted(needs([*scored, *val])))
    jobs.become(JOB, [command, *options, *(["-v"] if verbose else []), *files], extras)
