"""Checkpoints: written whole or not at all, read at any world size, merged to a Hugging Face folder.

`CheckpointStore` owns the folder of a run's checkpoints (begin, commit, newest, keep-N); `save_role` / `load_role` move
one engine's state in and out of a role's folder on all ranks; `save_huggingface_files` puts config and tokenizer beside
it; `plan_merge` and `merge` (merge.py) make the folder that plain transformers loads. Only safetensors and JSON are
written. Names are imported when they are used: `rlx runs` reads manifests where there is no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_core.checkpoint.distributed import load_role, save_role, state_bytes
    from verl_core.checkpoint.find import find_checkpoint
    from verl_core.checkpoint.huggingface import save_huggingface_files
    from verl_core.checkpoint.store import CheckpointStore

__all__ = ["CheckpointStore", "find_checkpoint", "load_role", "save_huggingface_files", "save_role", "state_bytes"]

_HOME = {
    "CheckpointStore": "store",
    "find_checkpoint": "find",
    "load_role": "distributed",
    "save_huggingface_files": "huggingface",
    "save_role": "distributed",
    "state_bytes": "distributed",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
