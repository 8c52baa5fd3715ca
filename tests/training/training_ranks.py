"""Engines on several ranks over gloo, each in a process of its own, for the training tests."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from training_tiny import SMOOTH, VOCAB, totals, weights
from transformers import AutoModelForCausalLM, PretrainedConfig

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
    """On all ranks, in float32. Options: `split` (ulysses_sequence_parallel_size), `checkpointing`, FsdpConfig's."""
    cls = CriticConfig if role == "critic" else ActorConfig
    checkpointing, split = options.pop("checkpointing", False), options.pop("split", 1)
    settings = cls(optim=SMOOTH, fsdp_config=FsdpConfig(**options), grad_clip=1e3, ulysses_sequence_parallel_size=split)
    return FsdpEngine(
        ModelConfig(path=str(folder), enable_gradient_checkpointing=checkpointing),
        settings,
        role=role,
        platform=current("cpu"),
        micro=micro or MicroBatching(sequences=64),
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
    return {"metrics": metrics, "gradients": gradients, "weights": weights(engine), "out": out}


def save(folder: Path, options: dict, to: Path) -> None:
    """A checkpoint of fresh weights."""
    save_role(to, engine_of(folder, **options).state())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def _join(rank: int, count: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)


@contextmanager
def running(count: int) -> Iterator[Callable[..., list[Any]]]:
    """Gives `call(function, first arguments of each rank, *other arguments)`, which returns results by rank."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ranks = [ProcessPoolExecutor(1, spawn, _join, (rank, count, port)) for rank in range(count)]

    def call(function: Callable[..., Any], own: list[Any], *arguments: Any) -> list[Any]:
        waiting = [rank.submit(function, first, *arguments) for rank, first in zip(ranks, own, strict=True)]
        return [future.result() for future in waiting]

    yield call
    for rank in ranks:
        rank.shutdown()
