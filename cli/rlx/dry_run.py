"""`rlx train --dry-run`: what the command would do, looked up without making anything."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from glob import iglob
from pathlib import Path
from typing import Any

from rlx import rundir, ui
from rlx.env import interpreter, launch, manager
from verl_core.config import dataset_options
from verl_core.config.compose import Resolved
from verl_core.config.effective import (
    effective,
    extras,
    get,
    has_nvidia_driver,
    role_pools,
    settled,
    uses_reference,
    uses_rollout,
)
from verl_core.config.errors import EnvError, UserError
from verl_core.config.model_roles import frozen_paths
from verl_core.config.prompt_files import prompt_files
from verl_core.config.schema import RlxConfig
from verl_core.config.unbuilt import unbuilt

JOB = "verl_core.controller.job"


@dataclass
class Preview:
    """A training command before it is carried out."""

    values: dict[str, Any]
    """Roles, batch arithmetic (prompts, sequences, tokens), environment, run directory and launch line, for JSON."""
    absent: list[str]
    """What the run would stop at, or fetch, on this machine: a line each."""


def preview(resolved: Resolved, resume: bool, job_args: list[str]) -> Preview:
    """Look up what would run. Makes nothing and needs no network, data or GPU.

    Raises UserError for a taken run name and EnvError for extras that exclude each other.
    """
    config = effective(resolved.config)
    wanted = extras(config)
    run_dir = rundir.plan(resolved, resume)
    command = launch.job_command(launch.planned_python(wanted), JOB, [str(run_dir), *job_args])
    values: dict[str, Any] = {
        "profile": resolved.profile,
        "purpose": config.purpose,
        "model": config.model.path,
        "algorithm": config.algorithm.name,
        "engine": config.rollout.engine if uses_rollout(config) else None,
        "environment": _environment(wanted),
        "roles": _roles(config),
        "batch": _batch(config),
        "memory": _memory(resolved.config),
        "run_dir": str(run_dir),
        "launch": shlex.join(command),
    }
    return Preview(values, [*_absent(config)])


def show(values: dict[str, Any]) -> None:
    """Print a preview's values as a column of names and one of texts."""
    ui.pairs([(name, value) for name, value in _lines(values) if value])


def _lines(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    batch, environment = values["batch"], values["environment"]
    for name in ("profile", "purpose", "model", "algorithm", "engine"):
        yield name, values[name]
    yield "roles", ", ".join(f"{role} on {pool}" for role, pool in values["roles"].items())
    yield "ranks", str(batch["ranks"])
    many = "{prompts} prompts x {samples} answers" if "rollout" in values["roles"] else "{prompts} rows x {samples}"
    yield "batch", (many + " = {sequences} sequences a step").format(**batch)
    yield "update", _update_line(batch)
    yield "length", "up to {max_prompt} prompt + {max_response} response tokens".format(**batch)
    yield "memory", values["memory"]
    yield "steps", str(batch["steps"]) if batch["steps"] else f"{batch['epochs']} epochs"
    yield "environment", f"{environment['path']} ({environment['state']})"
    yield "run", values["run_dir"]
    yield "launch", values["launch"]


def _update_line(batch: dict[str, Any]) -> str:
    tokens, sequences = batch["max_tokens"], batch["micro_batch"]
    share = f"{tokens} tokens" if sequences is None else f"{sequences} sequences"
    return (
        "{optimizer_steps} optimizer steps a step ({ppo_epochs} x {mini_batches} mini-batches of "
        "{mini_batch_sequences} sequences)".format(**batch)
        + f", up to {share} a forward on each rank"
    )


def _batch(config: RlxConfig) -> dict[str, Any]:
    from verl_core.planning.work import work_of

    data, actor, work = config.data, config.actor, work_of(config)
    mini_batches = data.train_batch_size // actor.ppo_mini_batch_size
    return {
        "ranks": _ranks(config, actor.pool),
        "prompts": data.train_batch_size,
        "samples": work.samples,
        "sequences": work.sequences,
        "mini_batches": mini_batches,
        "mini_batch_sequences": actor.ppo_mini_batch_size * work.samples,
        "ppo_epochs": actor.ppo_epochs,
        "optimizer_steps": mini_batches * actor.ppo_epochs,
        "micro_batch": actor.ppo_micro_batch_size_per_gpu,
        "max_tokens": actor.ppo_max_token_len_per_gpu,
        "max_prompt": data.max_prompt_length,
        "max_response": data.max_response_length,
        "epochs": config.trainer.total_epochs,
        "steps": config.trainer.total_training_steps,
    }


def _memory(config: RlxConfig) -> str:
    """The verdict of `rlx plan` for this machine, or why there is none."""
    from verl_core.planning.plan import gpu_for, planned

    try:
        gpu, why = gpu_for(config, None)
        found = planned(config, gpu)
    except UserError as problem:
        return f"not planned: {problem.message}"
    where, share = found.tightest, found.tightest.memory.total / gpu.memory
    used = f"{ui.size(where.memory.total)} of {ui.size(gpu.memory)} ({share:.0%}) in {where.name}"
    absent = " (no NVIDIA GPU here)" if why.startswith("this machine has no") else ""
    return f"{found.verdict} on {gpu.name}{absent}: {used}; more: `rlx plan`"


def _roles(config: RlxConfig) -> dict[str, str]:
    """Role -> pool, for the roles this run has, a reference inside the actor's engine among them."""
    reference = {"ref": settled(config.ref.pool)} if uses_reference(config) else {}
    return role_pools(config) | reference


def _ranks(config: RlxConfig, pool: str) -> int:
    found = config.cluster.pools[pool]
    return found.nodes * found.gpus


def _environment(wanted: tuple[str, ...]) -> dict[str, Any]:
    named = interpreter.chosen()
    if named is not None:
        return {"path": named, "extras": list(wanted), "state": "named by RLX_PYTHON"}
    environment = manager.environment(wanted)
    return {"path": str(environment.folder), "extras": list(wanted), "state": _state(environment)}


def _state(environment: manager.Environment) -> str:
    if environment.complete():
        return "ready"
    try:
        n_packages, n_bytes = manager.download_size(environment)
    except EnvError as problem:
        return f"to be made; {problem.message}"
    if not n_packages:
        return "to be made, nothing to download"
    return f"to be made, {n_packages} packages to download, up to {ui.size(n_bytes)}"


def _absent(config: RlxConfig) -> Iterator[str]:
    """What the real run would stop at, or fetch, on this machine."""
    yield from unbuilt(config)
    for key, files in prompt_files(config.data).items():
        for file in files:
            if not file.startswith("builtin:") and not _exists(file):
                made = dataset_options.maker(file)
                yield f"{key}: {file} is not there" + (f"; `rlx prepare {made}` makes it" if made else "")
    for key, path in {"model.path": config.model.path, **frozen_paths(config)}.items():
        if not path.startswith("builtin:") and not Path(path).expanduser().exists():
            local = path.startswith(("/", ".", "~"))  # no name on the hub does
            hub = "is no folder here; the run will fetch it from the Hugging Face hub"
            yield f"{key}: {path} {'is not there' if local else hub}"
    for key in ("reward.custom_reward_function.path", "data.curriculum.path", "reward.judge.instruction_file"):
        if (path := get(config, key)) and not _exists(path):
            yield f"{key}: {path} is not there"
    if config.trainer.device == "cuda" and not has_nvidia_driver():
        yield "trainer.device: cuda, and this machine has no NVIDIA driver"


def _exists(file: str) -> bool:
    """True for an existing file or folder, or a glob that matches one."""
    path = Path(file).expanduser()
    return path.exists() or any(iglob(str(path), recursive=True))  # noqa: PTH207  # takes any pattern, pathlib does not
