"""Where a model's files are: a local folder, or a snapshot of a hub repository; its configuration files."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    StrictDataclassError,
)
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig

from verl_core.config.errors import EnvError, UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.attention import check_packable

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_TEXT_FILES = ["*.json", "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken"]
_WEIGHT_FILES = ["*.safetensors"]


def resolve(path: str | Path, *, config: bool = True, weights: bool = True) -> Path:
    """The folder of a model: `path` itself when it is one, else the snapshot of the hub repository of that name
    (downloaded when it is not in the cache). `config` and `weights` say what it must hold, beside a tokenizer.

    Raises UserError for a folder that lacks them and for an unknown or gated repository, EnvError when the hub cannot
    be reached."""
    folder = Path(path).expanduser()
    name = str(path)
    if not folder.is_dir():
        if folder.exists() or not _HUB_NAME.fullmatch(name):
            raise UserError(
                f"model path {name!r} is not a folder",
                hint="give a Hugging Face folder or a hub name like Qwen/Qwen2.5-0.5B-Instruct",
            )
        folder = _download(name, weights)
    if config:
        _check_config(folder)
    if weights:
        _check_weights(folder)
    return folder


def _download(name: str, weights: bool) -> Path:
    patterns = _TEXT_FILES + (_WEIGHT_FILES if weights else [])
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError:
        raise UserError(
            f"hub model {name!r} is gated",
            hint=f"accept its terms at https://huggingface.co/{name}, then hf auth login",
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{name!r} is neither a folder here nor a model on the hub",
            hint="check the spelling; a private one needs hf auth login",
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:  # no network, HF_HUB_OFFLINE, server trouble
        reason = str(error).splitlines()[0].removeprefix("Got: ") if str(error) else type(error).__name__
        raise EnvError(
            f"cannot get model {name!r} from the hub, and it is not in the cache: {reason}",
            hint=f"connect, or fetch it elsewhere (hf download {name} --local-dir DIR) and give DIR in its place",
        ) from None


def _check_config(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model folder {folder} has no config.json", hint="give a folder written by save_pretrained or rlx merge"
        )


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        missing = sorted(name for name in files if not (folder / name).is_file())
        if missing:
            raise UserError(
                f"model folder {folder} lacks {len(missing)} of {len(files)} weight files, e.g. {missing[0]}",
                hint="copy or download the folder again",
            )
    elif not any(folder.glob("*.safetensors")):
        other = sorted(f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".gguf"))
        raise UserError(
            f"model folder {folder} has no weights (*.safetensors)"
            + (f", only {', '.join(other[:3])}" if other else ""),
            hint="convert it with save_pretrained" if other else "copy or download the folder again",
        )


def load_hf_config(model: ModelConfig, path: str | Path | None = None) -> PreTrainedConfig:
    """The config.json of `path` (None: model.path) with model.override_config applied. Raises UserError for an
    unknown field or architecture, and for one that cannot run packed."""
    folder = resolve(path or model.path, weights=False)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    except StrictDataclassError as error:
        raise UserError(
            f"cannot read {folder / 'config.json'}: {' '.join(str(error).split())}",
            hint="correct that field there; padding, for example, is one id and never a list",
        ) from error
    except (ValueError, OSError, KeyError) as error:
        raise UserError(
            f"cannot read {folder / 'config.json'}: {str(error).strip().splitlines()[0]}",
            hint="set model.trust_remote_code=true if the checkpoint brings its own code",
        ) from error
    _override(config, model.override_config, "model.override_config")
    check_packable(config)
    return config


def _override(config: PreTrainedConfig, values: dict[str, Any], where: str) -> None:
    for key, value in values.items():
        if not hasattr(config, key):
            near = get_close_matches(key, config.to_dict(), n=3)
            raise UserError(
                f"{where}.{key}: {type(config).__name__} has no field {key!r}",
                hint=f"nearest: {', '.join(near)}" if near else "see the model's config.json for its fields",
            )
        old = getattr(config, key)
        if isinstance(old, PreTrainedConfig) and isinstance(value, dict):
            _override(old, value, f"{where}.{key}")
        else:
            merged = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
            try:
                setattr(config, key, merged)
            except StrictDataclassError as error:
                raise UserError(
                    f"{where}.{key}={value!r} is not a value of that field", hint=f"config.json has {old!r}"
                ) from error


def load_generation_config(path: str | Path) -> GenerationConfig:
    """generation_config.json of a model folder or hub name, or the special ids of config.json where there is none."""
    folder = resolve(path, weights=False)
    file = folder / "generation_config.json"
    if not file.is_file():
        words = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _generation({key: words.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    return _generation(json.loads(file.read_text(encoding="utf-8")))


def _generation(words: dict[str, Any]) -> GenerationConfig:
    """Of several pad ids, which transformers does not take, the first: padding fills and means nothing."""
    pad = words.get("pad_token_id")
    return GenerationConfig.from_dict({**words, "pad_token_id": pad[0] if isinstance(pad, list) and pad else pad})
