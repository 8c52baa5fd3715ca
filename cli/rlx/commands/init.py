"""`rlx init`: write a project folder from the templates."""

import re
import string
from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import DRY_RUN_OPTION
from verl_core.config.catalogue import entry
from verl_core.config.compose import profile_names, resolve
from verl_core.config.errors import UserError
from verl_core.config.files import data_root, templates_dir

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class ProjectTemplate(string.Template):
    """`@@{name}` is replaced, so that the shell's and YAML's own `$` stay as they are."""

    delimiter = "@@"


@app.command()
def init(
    folder: Path = typer.Argument(Path(), metavar="[DIR]", help="Project folder; made if need be."),
    profile: str = typer.Option("smoke", "--profile", help="Profile the project starts from (see `rlx profile ls`)."),
    dry_run: bool = DRY_RUN_OPTION,
) -> None:
    """Write a project folder: configuration, reward, launch scripts.

    Nothing that exists is overwritten.

    Example: `rlx init my-project --profile gsm8k-grpo`.
    """
    resolve(profile)  # an unknown profile is an error before anything is written
    if profile not in profile_names():
        raise UserError(
            f"--profile {profile} is a file", "name one of `rlx profile ls`, then `extends:` it in rlx.yaml"
        )
    files = render(folder.absolute().name, profile)
    try:
        taken = [str(folder / name) for name in files if (folder / name).exists()]
    except OSError as problem:
        raise _unwritable(folder, problem) from problem
    if taken:
        raise UserError(f"{', '.join(taken)} exists already", "name another folder: `rlx init my-project`")
    for name, text in files.items():
        if not dry_run:
            _write(folder / name, text)
        ui.out(str(folder / name))
    if not dry_run:
        place = "" if folder == Path() else f"cd {folder} && "
        ui.talk(f"next: {place}{rlx_command()} train --dry-run")


def render(project: str, profile: str) -> dict[str, str]:
    """The project's files: path inside the folder -> text. Commented keys show the profile's own values."""
    config = resolve(profile).config
    root = templates_dir() / "project"
    name = re.sub(r"[^\w.-]+", "-", project).strip("-.") or "project"
    values = {
        "profile": profile,
        "project": name,
        "dns": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "project",
        "rlx": rlx_command(),
        "model": config.model.path,
        "batch": config.data.train_batch_size,
        "prompt": config.data.max_prompt_length,
        "response": config.data.max_response_length,
        "rollout": _rollout(config.rollout.engine),
        "n": config.rollout.n,
        "temperature": config.rollout.temperature,
        "mini": config.actor.ppo_mini_batch_size,
        "lr": config.actor.optim.lr,
    }
    files = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        target = str(path.relative_to(root)).replace("gitignore", ".gitignore")
        files[target] = ProjectTemplate(path.read_text(encoding="utf-8")).substitute(values)
    return files


def _rollout(engine: str) -> str:
    """The head of the rollout section: an engine that is not built yet is replaced, so that the project runs today."""
    if entry("engine", engine).built:
        return "# rollout:"
    return f"rollout:\n  engine: hf  # the profile's own, {engine}, comes with a later release of rlx"


def rlx_command() -> str:
    """How scripts call this rlx: through its checkout, or by name where it is installed."""
    root = data_root()
    return f"uv run --project {root} rlx" if (root / "cli").is_dir() else "rlx"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)
    except OSError as problem:
        raise _unwritable(path, problem) from problem


def _unwritable(path: Path, problem: OSError) -> UserError:
    return UserError(f"{path} cannot be written: {problem.strerror}", "name a folder you can write")
