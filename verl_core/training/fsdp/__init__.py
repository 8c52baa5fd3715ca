"""The FSDP2 training engine on transformers models.

`engine.py` is the `TrainEngine`; `network.py` turns a transformers model into per-token quantities, `layout.py` says
which ranks share what, `division.py`, `tensor.py` and `experts.py` cut layers into parts, `shard.py` shards everything,
`optim.py` builds the optimizers, `memory.py` moves and snapshots weights, `state.py` is what a checkpoint needs."""

from verl_core.training.fsdp.engine import FsdpEngine

__all__ = ["FsdpEngine"]
