"""What a rank of a pool knows of the engine that it shares."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import distributed

from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.controller.spans import Span


def tell(folder: str) -> None:
    """Writes whether the rank has the engine, what the engine's process sees, and whether an engine that takes its time
    was ready when the rank went on."""
    rank = distributed.get_rank()
    os.environ["CUDA_VISIBLE_DEVICES"] = f"GPU-{rank}"  # as Ray shows it
    words = ["rollout.engine=vllm", "cluster.nproc=4", "rollout.tensor_model_parallel_size=2"]
    gpu = SimpleNamespace(device=torch.device("cuda", 0))
    span = Span(effective(resolve("smoke", words).config), rank, gpu)  # type: ignore[arg-type]
    with span.starting():
        if span.has_engine:
            time.sleep(0.3)
            (Path(folder) / f"ready{rank}").touch()
    both = len(list(Path(folder).glob("ready*")))
    (Path(folder) / f"{rank}.txt").write_text(f"{span.has_engine} {span.environment} {both}")
