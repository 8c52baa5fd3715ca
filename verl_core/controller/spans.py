"""Ranks of a pool that share a rollout engine: each `rollout.tensor_model_parallel_size` neighbours of them. The first
holds it; it computes on the GPUs of all, so that all of them take part when it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed

from verl_core.config.effective import ranks_per_engine
from verl_core.config.schema import RlxConfig
from verl_core.platforms import Platform

_START = timedelta(hours=1)  # longer than an engine may take
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Span:
    """Made on every rank of the pool at the same time, after torch's process group.

    Args:
        config: an effective configuration.
        rank: this one's in the pool.
    """

    def __init__(self, config: RlxConfig, rank: int, platform: Platform):
        self.size = ranks_per_engine(config)
        self._rank, self._on_gpu = rank, platform.device.type == "cuda"
        self._devices: list[str] = []
        if self.size > 1:
            # Not the default group: on GPUs its barrier would time out before a large engine is up.
            self._group = distributed.new_group(backend="gloo", timeout=_START)
            self._devices = self._gathered(os.environ.get(_VISIBLE, "")) if self._on_gpu else []

    @property
    def has_engine(self) -> bool:
        """Whether this rank holds the engine of its span. The others have none, and are no replicas."""
        return self._rank % self.size == 0

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the engine's process: it sees the GPUs of the whole span, this rank's first."""
        if not self._devices:
            return {}
        return {_VISIBLE: ",".join(self._devices[self._rank : self._rank + self.size])}

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around the start of an engine, on all ranks: vLLM takes what is free of each GPU for its cache, so that
        nobody may take or free memory there meanwhile."""
        self._meet()
        yield
        self._meet()

    def _meet(self) -> None:
        if self.size > 1:
            distributed.barrier(group=self._group)

    def _gathered(self, own: str) -> list[str]:
        """Each rank's GPU as the driver knows it, by rank; Ray shows a rank no other."""
        every: list[str] = [""] * distributed.get_world_size()
        distributed.all_gather_object(every, own, group=self._group)
        return every
