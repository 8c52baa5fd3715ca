"""What a process sets up before it computes: the same for every rank and for the warm-up."""

from __future__ import annotations

import os

from verl_core.config.schema import TrainerConfig
from verl_core.platforms import Platform, current


def prepare_computing(trainer: TrainerConfig) -> Platform:
    """This process's platform, with the threads, the seed and the determinism that the configuration asks for. Under
    Ray a rank sees only the GPU it was given, so its local rank is 0. Raises MachineError when a GPU is asked for and
    absent."""
    platform = current(trainer.device)
    threads = os.environ.get("OMP_NUM_THREADS")  # the user's environment wins over the default, not over the key
    platform.set_threads(trainer.num_threads or (int(threads) if threads else None))
    platform.seed_all(trainer.seed)
    if trainer.deterministic:
        platform.set_deterministic()
    return platform
