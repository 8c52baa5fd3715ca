"""What a Hugging Face folder holds beside its weights: config, generation config, tokenizer, chat template, code."""

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from verl_core.checkpoint.folders import Folder, names_in
from verl_core.config.errors import UserError

FOLDER = "huggingface"
_KINDS = {".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"}
_OF_TRAINERS = ("zero_to_fp32.py", "trainer_state.json")  # what other programs leave among a model's files
_TEMPLATES = "additional_chat_templates"
_TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens_map", "added_tokens", "chat_template")


def save_huggingface_files(
    folder: Path | str,
    source: Path | str | None = None,
    *,
    config: PreTrainedConfig | None = None,
    generation_config: GenerationConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    code: bool = False,
) -> Path:
    """Fills `<folder>/huggingface` (folder: a role's, inside a checkpoint) and returns it. Called on one rank.

    `source` is the model folder training started from: its text files are copied, and with `code` its Python files too.
    Pass model.trust_remote_code: code that training did not run has no place beside what was trained. The objects that
    were trained with replace them: a tokenizer with an added token, a changed chat template, an overridden config.
    """
    target = Path(folder) / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    if source is not None:
        copy_text_files(Path(source), target, tokenizer=tokenizer is None, code=code)
    # to_json_file, not save_pretrained: the latter refuses configs that it reads, and a save must not fail on that.
    if config is not None:
        config.to_json_file(target / "config.json")
    if generation_config is not None:
        generation_config.to_json_file(target / "generation_config.json")
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    for name in ("config.json", "tokenizer_config.json"):
        _make_code_local(target / name)
    return target


def copy_text_files(source: Path, target: Path, tokenizer: bool = True, code: bool = True) -> None:
    """Copies all of a Hugging Face folder but the weights and their index; without `tokenizer`, not its files; without
    `code`, no Python file."""
    for path in sorted(source.iterdir()):
        if path.name in _OF_TRAINERS or (path.suffix == ".py" and not code):
            continue
        if _of_tokenizer(path) and not tokenizer:
            continue
        if path.is_file() and path.suffix in _KINDS and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)
        elif path.name == _TEMPLATES and path.is_dir() and tokenizer:
            shutil.copytree(path, target / path.name, dirs_exist_ok=True)


def of_model(name: str) -> bool:
    """Whether a file of this name below a Hugging Face folder is one of its text files."""
    path = PurePosixPath(name)
    return str(path.parent) in (".", _TEMPLATES) and path.suffix in _KINDS and path.name not in _OF_TRAINERS


def model_code(folder: Folder) -> list[str]:
    """Names of the model's own Python files."""
    return sorted(name for name in names_in(folder) if name.endswith(".py") and name not in _OF_TRAINERS)


def require_trusted_code(folder: Folder, trusted: bool) -> None:
    """Raises UserError for a model with code of its own that the user has not said to trust."""
    if not trusted and (code := model_code(folder)):
        raise UserError(
            f"{folder} holds code of its own, which this would run: {', '.join(code)}",
            "read it, then give --trust-remote-code",
        )


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files and its chat template, and no other file."""
    for path in sorted(source.iterdir()):
        if path.is_file() and _of_tokenizer(path):
            shutil.copyfile(path, target / path.name)


def _of_tokenizer(path: Path) -> bool:
    named = path.name.startswith(_TOKENIZER) or path.suffix in (".model", ".tiktoken")
    return named and path.suffix != ".py"


def _make_code_local(path: Path) -> None:
    """Rewrites `owner/repository--module.Class` in an auto_map to `module.Class` where the module lies beside it."""
    if not path.is_file():
        return
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))

    def local(entry: Any) -> Any:
        if isinstance(entry, list):
            return [local(item) for item in entry]
        if not isinstance(entry, str) or "--" not in entry:
            return entry
        name = entry.rpartition("--")[2]
        return name if (path.parent / f"{name.partition('.')[0]}.py").is_file() else entry

    if isinstance(code := content.get("auto_map"), dict):
        content["auto_map"] = {key: local(entry) for key, entry in code.items()}
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
