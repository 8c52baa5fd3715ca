"""What `rlx eval` scores: where a source's weights are, which prompts it answers, and what its answers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from verl_core.checkpoint.adapter import base_folder, settings_of
from verl_core.checkpoint.find import find_checkpoint, require_undamaged
from verl_core.checkpoint.inspect import checkpoints_folder
from verl_core.checkpoint.manifest import read_manifest
from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig, RewardConfig, RlxConfig
from verl_core.config.urls import is_url
from verl_core.controller.executors.base import placements
from verl_core.controller.generation import Generation
from verl_core.controller.sources import val_sampling
from verl_core.data.dataset import PromptDataset, PromptRow
from verl_core.models.adapter_folder import is_adapter
from verl_core.models.pretrained import resolve
from verl_core.planning.plan import refuse_sizes
from verl_core.rewards.models.judge import instruction_of

_EVALUATED = ("actor/",)
DIGITS = 12  # hexadecimal digits of a digest


@dataclass
class Candidate:
    """One source, found and ready to be started. `prompts` are in file order; `depends` maps what its answers depend on
    to a digest of it: answers with equal digests may stand in one file."""

    name: str
    checkpoint: Path | None
    generation: Generation
    dataset: PromptDataset
    prompts: list[PromptRow]
    depends: dict[str, str]

    @property
    def config(self) -> RlxConfig:
        return self.generation.config

    @property
    def n(self) -> int:
        """Answers a question."""
        return self.config.rollout.val_kwargs.n

    @property
    def chunk(self) -> int:
        """Questions generated, scored and kept together: twice what the engines hold at a time, so that they are full
        most of the time, and an interruption costs little."""
        engines = next(place.ranks for place in placements(self.config) if "rollout" in place.roles)
        return max(1, 2 * self.config.rollout.max_num_seqs * engines // self.n)

    @property
    def place(self) -> str | None:
        """Where the checkpoint is; on an object store, of which `checkpoint` is a copy, its URL."""
        if self.checkpoint is None or isinstance(folder := checkpoints_folder(self.name), Path):
            return None if self.checkpoint is None else str(self.checkpoint)
        return str(folder if folder.name == self.checkpoint.name else folder / self.checkpoint.name)

    @property
    def label(self) -> str:
        """The source as it was named, with the checkpoint that this meant."""
        if self.checkpoint is None or self.checkpoint.name == Path(self.name).name:
            return self.name
        return f"{self.name} at {self.checkpoint.name}"


def find(source: str, config: RlxConfig, seed: int) -> Candidate:
    """The candidate named by a Hugging Face folder, a hub name, a run (its newest whole checkpoint) or a checkpoint.

    `config` is an effective configuration. Raises UserError for what is not there, not whole or without prompts, and
    where answers may be longer than the model takes; EnvError when the hub cannot be reached.
    """
    folder, checkpoint, model = _locate(source, config.model)
    refuse_sizes(replace(config, model=replace(model, path=folder)))
    config = replace(config, model=model)
    generation = Generation(config, folder, blank=checkpoint is not None)
    dataset = generation.val_prompts()
    if dataset is None:
        raise UserError("no prompts to evaluate on", "give --data FILE")
    rows = dataset.take(range(len(dataset)))
    depends = {
        "model": _digest(_weights(checkpoint, Path(folder), model), replace(model, path="")),
        "prompts": _digest([[r.uid, r.ids, r.data_source, r.ground_truth, r.extra_info] for r in rows]),
        "sampling": _digest(val_sampling(config), config.rollout.val_kwargs.n, seed),
        "scoring": _digest(*_scoring(config.reward)),
        "engine": _digest(config.rollout.engine, config.rollout.dtype, config.trainer.device),
    }
    return Candidate(source, checkpoint, generation, dataset, rows, depends)


def _locate(source: str, model: ModelConfig) -> tuple[str, Path | None, ModelConfig]:
    """The Hugging Face folder of architecture and tokenizer, the checkpoint whose weights to load over it, and the
    model's settings with the adapter that this checkpoint has."""
    path = Path(source).expanduser()
    if is_url(source) or (path.is_dir() and not (path / "config.json").exists()):
        checkpoint = find_checkpoint(source, _EVALUATED)
        if "actor" not in (roles := read_manifest(checkpoint).roles):
            raise UserError(
                f"{source} has no model that answers: it trained a {', '.join(sorted(roles))}",
                "name a run that has an actor; val/acc in its metrics is how it orders held-out pairs",
            )
        require_undamaged(checkpoint, _EVALUATED)
        trained = checkpoint / "actor" / "weights"
        folder = base_folder(checkpoint, "actor") if is_adapter(trained) else checkpoint / "actor" / "huggingface"
        return str(folder), checkpoint, settings_of(trained, model)
    if model.lora_adapter_path is None:  # a fresh adapter would change nothing
        model = replace(model, lora_rank=0)
    return str(resolve(source)), None, model


def _weights(checkpoint: Path | None, folder: Path, model: ModelConfig) -> list[Any]:
    """What tells the weights apart without reading them: a checkpoint's checksums, else names, sizes and times of
    files. The base of an adapter is a folder, too."""
    adapter = [Path(model.lora_adapter_path)] if model.lora_adapter_path else []
    if checkpoint is None:
        return [_listing(path) for path in (folder, *adapter)]
    own = [(name, piece.blake2b) for name, piece in read_manifest(checkpoint).below(("actor/weights/",))]
    return [own, [] if checkpoint in folder.parents else _listing(folder)]


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _scoring(reward: RewardConfig) -> Iterable[Any]:
    """The rules and their arguments, and the models that score. The length penalty leaves evaluation alone."""
    custom, model, judge = reward.custom_reward_function, reward.reward_model, reward.judge
    yield reward.scorers
    yield reward.reward_kwargs
    yield reward.timeout_s
    yield reward.cpu_s
    yield reward.memory_mb
    yield custom.name
    yield Path(custom.path).expanduser().read_text(encoding="utf-8") if custom.path else None
    if "reward_model" in reward.scorers:
        yield model.read_at, model.max_length, model.truncation, model.dtype, _listing(resolve(str(model.path)))
    if "judge" in reward.scorers:
        yield judge.model, judge.path, instruction_of(judge), judge.show_ground_truth
        yield judge.scale, judge.labels, judge.temperature, judge.max_tokens, judge.extra_body


def _digest(*values: Any) -> str:
    """Equal for equal values: dataclasses by their fields, whatever JSON does not know by its text."""
    text = json.dumps(
        values, sort_keys=True, default=lambda v: asdict(v) if hasattr(v, "__dataclass_fields__") else repr(v)
    )
    return hashlib.blake2b(text.encode(), digest_size=DIGITS // 2).hexdigest()
