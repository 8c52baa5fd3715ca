"""Checkpoints: written whole or not at all, read at any world size, merged to a Hugging Face folder.

`CheckpointStore` owns the folder of a run's checkpoints (begin, commit, newest, keep-N); `save_role` / `load_role` move
one engine's state in and out of a role's folder on all ranks; `save_huggingface_files` puts config and tokenizer beside
it; `merge_checkpoint` makes the folder that plain transformers loads. Only safetensors and JSON are written.
"""

from verl_core.checkpoint.distributed import load_role, save_role, state_bytes
from verl_core.checkpoint.store import CheckpointStore, find_checkpoint

__all__ = ["CheckpointStore", "find_checkpoint", "load_role", "save_role", "state_bytes"]
