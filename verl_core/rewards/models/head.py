"""Whether a model's folder holds a reward model: one output, whose layer is called as transformers calls it."""

from __future__ import annotations

import json
from pathlib import Path

from verl_core.config.errors import UserError

HEAD = "score.weight"
_OTHER_HEADS = ("score", "classifier", "v_head", "value_head", "regression_head")
_TRAIN = "train one with `rlx train rm-pairs`, then `rlx merge --role reward_model`"


def require_head(folder: Path) -> None:
    """Raises UserError for a folder of Hugging Face files without a layer `score` of one output, as a language model
    or an adapter has none. Reads the files' headers only."""
    shapes = {name: shape for file in sorted(folder.glob("*.safetensors")) for name, shape in _shapes(file).items()}
    if any(name.startswith("base_model.model.") for name in shapes):
        raise UserError(
            f"{folder} holds an adapter, not a whole reward model",
            "fold it into its base first (peft's merge_and_unload, then save_pretrained)",
        )
    if HEAD not in shapes:
        others = [name for name in shapes if name.split(".")[0] in _OTHER_HEADS]
        found = f"; it has {others[0]}, which is no layer that transformers reads a score from" if others else ""
        raise UserError(f"{folder} is no reward model: no weights {HEAD}{found}", _TRAIN)
    if shapes[HEAD][0] != 1:
        raise UserError(f"{folder} has {shapes[HEAD][0]} outputs, a reward model has one", _TRAIN)


def _shapes(file: Path) -> dict[str, list[int]]:
    """Of the tensors in a safetensors file, from its header: 8 bytes of length, then JSON."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise UserError(f"{file} cannot be read: {error}", "copy the folder again") from error
