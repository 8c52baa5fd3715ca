"""`rlx env`: make, list and use the environments that jobs run in."""

import os
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from rlx import ui
from rlx.arguments import JSON_OPTION, say, split_words
from rlx.env import interpreter, launch, manager
from verl_core.config.compose import PROJECT_FILE, resolve
from verl_core.config.effective import extras as extras_of
from verl_core.config.errors import UserError
from verl_core.config.schema import RlxConfig, RolloutConfig

app = typer.Typer(
    help="Make, list and use the software environments of jobs.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


class Engine(StrEnum):
    hf = "hf"
    vllm = "vllm"
    sglang = "sglang"


class Backend(StrEnum):
    fsdp = "fsdp"
    megatron = "megatron"


class CommandAfterDashes(TyperCommand):
    """Keeps what follows `--` apart: it is another program's command line, and not ours to parse."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        ours, theirs = args[:split], args[split + 1 :]
        ctx.meta["command"] = theirs
        return super().parse_args(ctx, ours)


WORDS = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help="Extras that this profile needs.")
ENGINE = typer.Option(None, "--engine", help="Rollout engine; hf needs no extra.")
BACKEND = typer.Option(None, "--backend", help="Training back end.")
EXTRA = typer.Option([], "--extra", metavar="NAME", help="An extra by its name; repeat for more.")


def _extras(words: list[str], engine: Engine | None, backend: Backend | None, named: list[str]) -> set[str]:
    """What the options ask for. With none at all: ./rlx.yaml if there is one, else the fsdp back end alone."""
    profile, overrides = split_words(words)
    nothing_named = not (engine or backend or named)
    found = set(named)
    if profile or overrides or (nothing_named and Path(PROJECT_FILE).is_file()):
        resolved = resolve(profile, overrides + ([f"rollout.engine={engine.value}"] if engine else []))
        say(resolved)
        found |= set(extras_of(resolved.config))
    elif engine:
        found |= set(extras_of(RlxConfig(rollout=RolloutConfig(engine=engine.value))))
    if backend or (nothing_named and not found):
        found |= {(backend or Backend.fsdp).value}
    return found


@app.command()
def sync(
    words: list[str] = WORDS,
    engine: Engine = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
) -> None:
    """Make an environment, or check one, and print its folder."""
    wanted = manager.environment(tuple(_extras(words or [], engine, backend, extra)))
    ui.out(str(manager.ensure(wanted, verify=True).folder))


@app.command()
def which(
    words: list[str] = WORDS,
    engine: Engine = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
) -> None:
    """Print an environment's folder and nothing else, made or not."""
    ui.out(str(manager.environment(tuple(_extras(words or [], engine, backend, extra))).folder))


@app.command(cls=CommandAfterDashes)
def run(
    ctx: typer.Context,
    words: list[str] = WORDS,
    engine: Engine = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
) -> None:
    """Run a command inside an environment.

    Example: `rlx env run gsm8k-ppo -- python script.py`.

    rlx's source is on PYTHONPATH and the environment's programs come first on PATH. With RLX_PYTHON set, its
    interpreter is used instead.
    """
    command: list[str] = ctx.meta["command"]
    if not command:
        raise typer.BadParameter("name a command after `--`, for example: rlx env run smoke -- python script.py")
    python = launch.python_for(tuple(_extras(words or [], engine, backend, extra)))
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which(command[0], path=path)
    if program is None:
        raise UserError(f"there is no program {command[0]!r} in {python.parent} or on PATH", "check its name")
    variables = launch.child_variables() | {"PATH": path}
    if not interpreter.chosen():
        variables["VIRTUAL_ENV"] = str(python.parent.parent)
    launch.execute([program, *command[1:]], variables)


@app.command()
def ls(as_json: bool = JSON_OPTION) -> None:
    """List the environments and their sizes.

    Files are hard links into uv's cache, so sizes overlap: removing one folder may free little.
    """
    rows = [
        {
            "name": folder.name,
            "state": "ready" if marker else "incomplete",
            "bytes": _bytes_of(folder),
            "extras": (marker or {}).get("extras", []),
            "made": (marker or {}).get("made"),
            "path": str(folder),
        }
        for folder, marker in manager.existing()
    ]
    if as_json:
        ui.out_json(rows)
    elif rows:
        ui.table(
            ("ENVIRONMENT", "STATE", "SIZE", "MADE"),
            [(str(r["name"]), str(r["state"]), ui.size(r["bytes"]), str(r["made"] or "")) for r in rows],
        )
    else:
        ui.talk(f"no environments in {manager.envs_dir()}; `rlx train` makes one when it needs it")


def _bytes_of(folder: Path) -> int:
    """Disk space of a folder, each file once."""
    seen: set[int] = set()
    total = 0
    for root, _, files in folder.walk():
        for name in files:
            stat = (root / name).lstat()
            if stat.st_ino not in seen:
                seen.add(stat.st_ino)
                total += stat.st_size
    return total
