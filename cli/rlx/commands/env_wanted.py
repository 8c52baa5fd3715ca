"""Which extras a command line asks for: a profile with settings, `--engine` and `--backend`, or extras by name."""

from enum import StrEnum
from pathlib import Path

import typer

from rlx.arguments import say, split_words
from rlx.env import manager
from verl_core.config.compose import PROJECT_FILE, resolve
from verl_core.config.effective import extras as extras_of
from verl_core.config.schema import RlxConfig, RolloutConfig


class Engine(StrEnum):
    hf = "hf"
    vllm = "vllm"
    sglang = "sglang"


class Backend(StrEnum):
    fsdp = "fsdp"
    megatron = "megatron"


WORDS = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help="Extras that this profile needs.")
ENGINE = typer.Option(None, "--engine", help="Rollout engine; hf needs no extra.")
BACKEND = typer.Option(None, "--backend", help="Training back end.")
EXTRA = typer.Option([], "--extra", metavar="NAME", help="An extra by its name; repeat for more.")


def wanted_extras(
    words: list[str] | None, engine: Engine | None, backend: Backend | None, named: list[str]
) -> tuple[str, ...]:
    """What the options ask for, sorted. With none at all: ./rlx.yaml if there is one, else the fsdp back end alone."""
    profile, overrides = split_words(words or [])
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
    return tuple(sorted(found))


def wanted_environment(
    words: list[str] | None, engine: Engine | None, backend: Backend | None, named: list[str]
) -> manager.Environment:
    """The environment of `wanted_extras`; nothing is made."""
    return manager.environment(wanted_extras(words, engine, backend, named))
