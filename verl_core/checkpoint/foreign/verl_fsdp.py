"""Checkpoints of veRL's FSDP workers: `model_world_size_W_rank_R.pt` of every rank, FSDP1 and FSDP2."""

from __future__ import annotations

from pathlib import Path

from verl_core.checkpoint.foreign.source import ForeignSource, SourceOptions


def open_source(folder: Path, options: SourceOptions) -> ForeignSource | None:
    """The checkpoint in a run's folder (its newest step), in a `global_step_N`, or in a role's own folder."""
    return None
