"""Where a model's shape is read: a folder's config.json, a run's folder, or the table of well-known models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.planning import known
from verl_core.planning.shapes import ModelShape, shape_from

# places of a config.json below a model folder, a checkpoint's role and a run directory (the newest step first)
_PLACES = ("config.json", "huggingface/config.json", "actor/huggingface/config.json", "warmup/config.json")
_IN_RUN = "checkpoints/global_step_*/actor/huggingface/config.json"


def shape_of(path: str, override: Mapping[str, Any], key: str = "model.path") -> ModelShape:
    """The shape of the model that `path` names, with model.override_config applied.

    Raises UserError for a name that is neither a folder here nor in the table, or a folder without a config.json.
    """
    folder = Path(path).expanduser()
    if not path.startswith("builtin:") and folder.is_dir():
        file = _config_file(folder)
        if file is None:
            raise UserError(f"{key}: {path} holds no config.json", "give the folder of a model or of a run")
        return shape_from({**_read(file), **override}, str(file))
    values = known.known_config(path)
    if values is None:
        raise UserError(
            f"{key}={path} is no folder here, and its shape is not known",
            "give model.path a folder with the model's config.json (weights are not needed), or one of "
            + ", ".join(known.names()),
        )
    return shape_from({**values, **override}, f"{key}={path}")


def _config_file(folder: Path) -> Path | None:
    found = [folder / place for place in _PLACES[:3] if (folder / place).is_file()]
    found += sorted(folder.glob(_IN_RUN), key=lambda file: int(file.parents[2].name.rpartition("_")[2]), reverse=True)
    found += [folder / _PLACES[3]] if (folder / _PLACES[3]).is_file() else []
    return found[0] if found else None


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}", "give the config.json of a model") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no JSON object", "give the config.json of a model")
    return values
