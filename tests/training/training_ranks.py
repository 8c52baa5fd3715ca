"""Engines on several ranks, each in a process of its own, for the training tests."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from tests.training.training_tiny import SMOOTH, VOCAB, totals, weights
from verl_core.batch import Batch
from verl_core.checkpoint.distributed import load_role, save_role
from verl_core.config.schema import ActorConfig, CriticConfig, FsdpConfig, ModelConfig
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import MicroBatching

SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2}


def write(folder: Path, config: type[PretrainedConfig], **override: Any) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config(**SIZES | override)).save_pretrained(folder)
    return folder


def engine_of(folder: Path, role: str = "actor", micro: MicroBatching | None = None, **options: Any) -> FsdpEngine:
    """On all ranks of the process group, or one alone. Options: `split` (ulysses_sequence_parallel_size), `device`,
    `checkpointing`, `share_prompt`, `optimizer`, FsdpConfig's."""
    local_rank = dist.get_rank() if dist.is_initialized() else 0
    platform = current(options.pop("device", "cpu"), local_rank)
    cls = CriticConfig if role == "critic" else ActorConfig
    checkpointing, split = options.pop("checkpointing", False), options.pop("split", 1)
    share = options.pop("share_prompt", False)
    optim = replace(SMOOTH, optimizer=options.pop("optimizer", "adamw"))
    settings = cls(optim=optim, fsdp_config=FsdpConfig(**options), grad_clip=1e3, ulysses_sequence_parallel_size=split)
    return FsdpEngine(
        ModelConfig(path=str(folder), enable_gradient_checkpointing=checkpointing),
        settings,
        role=role,
        platform=platform,
        micro=micro or MicroBatching(sequences=64),
        share_prompt=share,
    )


def train(share: list[int], batch: Batch, folder: Path, loss: Any, options: dict, saved: Path | None = None) -> dict:
    """Two steps on this rank's share. `gradients`: of the first one (AdamW's first moment is a tenth of it). `saved`:
    a checkpoint to start from."""
    engine = engine_of(folder, **options)
    if saved:
        engine.load_state(load_role(saved, engine.state()))
    mine = batch.select(share)
    metrics = [engine.step(mine, loss, totals(batch))]
    gradients = {name: whole(t) for name, t in engine.state().optimizer.items() if name.startswith("exp_avg/")}
    metrics.append(engine.step(mine, loss, totals(batch)))
    out = engine.forward(mine, loss.needs)
    trained = {name: tensor.cpu() for name, tensor in weights(engine).items()}
    return {"metrics": metrics, "gradients": gradients, "weights": trained, "out": out}


def save(folder: Path, options: dict, to: Path) -> None:
    """A checkpoint of fresh weights."""
    save_role(to, engine_of(folder, **options).state())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()


def _join(rank: int, count: int, meeting: str, device: str) -> None:
    torch.set_num_threads(1)
    platform = current(device, local_rank=rank)
    platform.set_device()
    dist.init_process_group(platform.comm_backend, init_method=f"file://{meeting}", rank=rank, world_size=count)


@contextmanager
def running(count: int, device: str = "cpu") -> Iterator[Callable[..., list[Any]]]:
    """Gives `call(function, first arguments of each rank, *other arguments)`, which returns results by rank."""
    spawn = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:  # they meet at a file: a port that is free now may be taken by then
        meeting = f"{folder}/ranks"
        ranks = [ProcessPoolExecutor(1, spawn, _join, (rank, count, meeting, device)) for rank in range(count)]

        def call(function: Callable[..., Any], own: list[Any], *arguments: Any) -> list[Any]:
            waiting = [rank.submit(function, first, *arguments) for rank, first in zip(ranks, own, strict=True)]
            return [future.result() for future in waiting]

        yield call
        for rank in ranks:
            rank.shutdown()
