"""Trajectories and ragged batches.

A `Trajectory` is what an agent loop hands back; `collate` turns groups of them into a `Batch` of flat columns named by
axis (`_N` tokens, `_S` sequences, `_P` prompts, `_blob` anything); `balance` deals sequences out to ranks,
`micro_batches` cuts a rank's share. Nothing here is padded, and nothing here knows an engine or Ray. Shapes:
docs/architecture.md, "Words and shapes".
"""

from verl_core.batch.batch import Batch, concat
from verl_core.batch.packing import balance, micro_batches
from verl_core.batch.trajectory import Segment, Trajectory, collate

__all__ = ["Batch", "Segment", "Trajectory", "balance", "collate", "concat", "micro_batches"]
