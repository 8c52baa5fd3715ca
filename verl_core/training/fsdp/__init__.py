"""The FSDP2 training engine on transformers models.

`engine.py` is the `TrainEngine`; `network.py` turns a transformers model into per-token quantities, `shard.py` cuts
it over ranks, `optim.py` builds the optimizers, `memory.py` moves and snapshots weights, `state.py` is what a
checkpoint needs."""

from verl_core.training.fsdp.engine import FsdpEngine

__all__ = ["FsdpEngine"]
